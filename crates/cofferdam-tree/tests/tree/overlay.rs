//! The kernel's overlay agrees with what is written and read here.

use crate::support::{Scratch, in_mount_namespace, shell, walk, write};
use cofferdam_tree::{Caps, DeltaWriter, Found, remove_tree};
use rustix::fd::AsFd;
use std::ffi::OsStr;
use std::fs;

#[test]
#[ignore = "needs a mount namespace; run by the next test"]
fn delta_over_base() {
    let scratch = Scratch::new();
    for path in ["keep", "gone", "dir/keep", "dir/gone", "replaced/old", "to-file/x/y", "to-dir"] {
        write(scratch.join("base").join(path), "base");
    }
    for dir in ["delta", "upper", "work", "merged"] {
        fs::create_dir(scratch.join(dir)).unwrap();
    }
    let mut delta = DeltaWriter::new(crate::support::open(&scratch.join("delta")), None);
    delta.whiteout(b"gone").unwrap();
    delta.whiteout(b"dir/gone").unwrap();
    delta.whiteout(b"to-file/x/y").unwrap();
    delta.put_file(b"to-file", false, &b"delta"[..], None).unwrap();
    delta.whiteout(b"to-dir").unwrap();
    delta.put_file(b"to-dir/new", true, &b"delta"[..], None).unwrap();
    delta.opaque_dir(b"replaced").unwrap();
    delta.put_file(b"replaced/new", false, &b"delta"[..], None).unwrap();
    shell(
        "mount -t overlay overlay -o lowerdir=delta:base,upperdir=upper,workdir=work,userxattr merged",
        scratch.path(),
    );
    let paths = |root: &str| -> Vec<String> {
        walk(&scratch.join(root), Caps::default())
            .unwrap()
            .into_iter()
            .map(|(path, _)| String::from_utf8(path).unwrap())
            .collect()
    };
    let wanted =
        ["dir", "dir/keep", "keep", "replaced", "replaced/new", "to-dir", "to-dir/new", "to-file"];
    assert_eq!(paths("merged"), wanted);

    shell(
        "rm merged/keep; rm -r merged/dir; mkdir merged/dir; echo > merged/dir/new",
        scratch.path(),
    );
    shell("umount merged", scratch.path());
    let upper = walk(&scratch.join("upper"), Caps::default()).unwrap();
    let wanted = [
        (b"dir".to_vec(), Found::Dir { opaque: true }),
        (b"dir/new".to_vec(), Found::File { executable: false, size: 1 }),
        (b"keep".to_vec(), Found::Whiteout),
    ];
    assert_eq!(upper, wanted);
    for name in ["upper", "work", "delta"] {
        remove_tree(scratch.fd().as_fd(), OsStr::new(name)).unwrap();
    }
}

#[test]
fn a_delta_over_its_base_shows_the_new_tree() {
    in_mount_namespace("overlay::delta_over_base");
}

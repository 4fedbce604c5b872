use crate::support::{Scratch, is_root, os, walk, write};
use cofferdam_tree::{Caps, DeltaError, DeltaWriter, FileTime, Found};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

fn writer(scratch: &Scratch) -> DeltaWriter {
    DeltaWriter::new(scratch.fd(), None)
}

fn found(scratch: &Scratch) -> Vec<(String, Found)> {
    walk(scratch.path(), Caps::default())
        .unwrap()
        .into_iter()
        .map(|(path, found)| (String::from_utf8(path).unwrap(), found))
        .collect()
}

const PLAIN: Found = Found::Dir { opaque: false };
const OPAQUE: Found = Found::Dir { opaque: true };

fn file(size: u64) -> Found {
    Found::File { executable: false, size }
}

#[test]
fn stat_data_are_those_that_stay() {
    let scratch = Scratch::new();
    let mut delta = writer(&scratch);
    let mtime = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
    let stats = [
        ("d/run", delta.put_file(b"d/run", true, &b"abc"[..], Some(mtime)).unwrap()),
        ("d/plain", delta.put_file(b"d/plain", false, &b""[..], None).unwrap()),
        ("link", delta.put_symlink(b"link", b"/nowhere", Some(mtime)).unwrap()),
    ];
    for (path, stat) in stats {
        let now = fs::symlink_metadata(scratch.join(path)).unwrap();
        assert_eq!(
            (stat.dev, stat.ino, stat.mode, stat.uid, stat.gid, stat.size),
            (now.dev(), now.ino(), now.mode(), now.uid(), now.gid(), now.size()),
        );
        let time = |sec, nsec: i64| FileTime { sec, nsec: u32::try_from(nsec).unwrap() };
        assert_eq!(stat.mtime, time(now.mtime(), now.mtime_nsec()));
        assert_eq!(stat.ctime, time(now.ctime(), now.ctime_nsec()));
        if path != "d/plain" {
            assert_eq!(stat.mtime, FileTime::from(mtime));
        }
    }
    assert_eq!(stats[0].1.mode & 0o7777, 0o755);
    assert_eq!(stats[1].1.mode & 0o7777, 0o644);
    assert_eq!(fs::metadata(scratch.join("d")).unwrap().permissions().mode() & 0o7777, 0o755);
}

#[test]
fn whiteouts_and_opaque_directories() {
    let scratch = Scratch::new();
    let mut delta = writer(&scratch);
    delta.whiteout(b"a/b/gone").unwrap();
    delta.opaque_dir(b"a/new").unwrap();
    delta.put_file(b"a/new/f", false, &b"x"[..], None).unwrap();
    let wanted = [
        ("a", PLAIN),
        ("a/b", PLAIN),
        ("a/b/gone", Found::Whiteout),
        ("a/new", OPAQUE),
        ("a/new/f", file(1)),
    ];
    assert_eq!(found(&scratch), wanted.map(|(path, found)| (path.to_owned(), found)));
}

#[test]
fn what_is_put_wins_in_any_order() {
    type Call = fn(&mut DeltaWriter) -> Result<(), DeltaError>;
    type Case<'a> = (&'a [Call], &'a [(&'a str, Found)]);
    let cases: [Case<'_>; 4] = [
        // A file is replaced by another.
        (
            &[|d| d.whiteout(b"a"), |d| d.put_file(b"a", false, &b"x"[..], None).map(|_| ())],
            &[("a", file(1))],
        ),
        // A file becomes a directory.
        (
            &[|d| d.whiteout(b"a"), |d| d.put_file(b"a/b", false, &b"x"[..], None).map(|_| ())],
            &[("a", OPAQUE), ("a/b", file(1))],
        ),
        // A directory becomes a file.
        (
            &[
                |d| d.whiteout(b"a/b/c"),
                |d| d.whiteout(b"a/d"),
                |d| d.put_file(b"a", false, &b"x"[..], None).map(|_| ()),
            ],
            &[("a", file(1))],
        ),
        // A directory is deleted, and its content as well.
        (&[|d| d.whiteout(b"a"), |d| d.whiteout(b"a/b")], &[("a", Found::Whiteout)]),
    ];
    for (calls, wanted) in cases {
        for reversed in [false, true] {
            let scratch = Scratch::new();
            let mut delta = writer(&scratch);
            let mut order: Vec<_> = calls.to_vec();
            if reversed {
                order.reverse();
            }
            for call in order {
                call(&mut delta).unwrap();
            }
            let seen = found(&scratch);
            if reversed && wanted[0].1 == Found::Whiteout {
                // The directory that held the inner mark hides everything instead.
                assert_eq!(seen[0], ("a".to_owned(), OPAQUE));
                continue;
            }
            assert_eq!(
                seen,
                wanted
                    .iter()
                    .map(|(path, found)| ((*path).to_owned(), found.clone()))
                    .collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn the_parent_that_was_replaced_is_not_written_into() {
    let scratch = Scratch::new();
    let mut delta = writer(&scratch);
    delta.whiteout(b"a/b").unwrap();
    delta.put_file(b"a", false, &b"x"[..], None).unwrap();
    delta.whiteout(b"a/c").unwrap();
    assert_eq!(found(&scratch), [("a".to_owned(), file(1))]);
}

#[test]
fn contradictions_are_errors() {
    let scratch = Scratch::new();
    let mut delta = writer(&scratch);
    delta.put_file(b"a/b", false, &b"x"[..], None).unwrap();
    let exists =
        |result: Result<(), DeltaError>| assert!(matches!(result, Err(DeltaError::Exists { .. })));
    exists(delta.put_file(b"a/b", false, &b""[..], None).map(|_| ()));
    exists(delta.put_file(b"a", false, &b""[..], None).map(|_| ()));
    exists(delta.put_symlink(b"a/b/c", b"x", None).map(|_| ()));
    exists(delta.opaque_dir(b"a/b"));
}

#[test]
fn paths_that_leave_are_refused() {
    let scratch = Scratch::new();
    let mut delta = writer(&scratch);
    for bad in [b"".as_slice(), b"/etc/x", b"../x", b"a/../../x", b"./x", b"a//b", b"a/", b"a\0b"] {
        assert!(matches!(
            delta.put_file(bad, false, &b""[..], None),
            Err(DeltaError::InvalidPath { .. })
        ));
        assert!(matches!(delta.put_symlink(bad, b"t", None), Err(DeltaError::InvalidPath { .. })));
        assert!(matches!(delta.whiteout(bad), Err(DeltaError::InvalidPath { .. })));
        assert!(matches!(delta.opaque_dir(bad), Err(DeltaError::InvalidPath { .. })));
    }
    assert!(found(&scratch).is_empty());
}

#[test]
fn worktrunk_2501_symlinks_on_the_way_are_not_followed() {
    let scratch = Scratch::new();
    let outside = Scratch::new();
    write(outside.join("f"), "keep");
    let mut delta = writer(&scratch);
    delta.put_symlink(b"link", outside.path().as_os_str().as_encoded_bytes(), None).unwrap();
    assert!(matches!(
        delta.put_file(b"link/f", false, &b"x"[..], None),
        Err(DeltaError::Exists { .. })
    ));
    assert!(matches!(
        delta.put_file(b"link/d/g", false, &b"x"[..], None),
        Err(DeltaError::Exists { .. })
    ));
    delta.whiteout(b"link/f").unwrap();
    assert_eq!(fs::read(outside.join("f")).unwrap(), b"keep");
    assert_eq!(crate::support::names(outside.path()), ["f"]);
    // Also one that somebody else puts there.
    symlink(outside.path(), scratch.join("swapped")).unwrap();
    assert!(delta.opaque_dir(b"swapped/d").is_err());
    assert_eq!(crate::support::names(outside.path()), ["f"]);
}

#[test]
fn names_of_any_bytes() {
    let scratch = Scratch::new();
    let mut delta = writer(&scratch);
    delta.put_file(b"a\nb/\xff", false, &b"x"[..], None).unwrap();
    delta.whiteout(b"a\nb/\xfe").unwrap();
    assert!(scratch.join(os(b"a\nb/\xff")).exists());
}

#[test]
fn a_reader_that_fails_is_told_apart() {
    struct Broken;
    impl std::io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("gone"))
        }
    }
    let scratch = Scratch::new();
    assert!(matches!(
        writer(&scratch).put_file(b"f", false, Broken, None),
        Err(DeltaError::Content { .. })
    ));
}

#[test]
fn everything_is_given_to_the_owner() {
    let scratch = Scratch::new();
    let owner = if is_root() {
        (1234, 5678)
    } else {
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
    };
    let mut delta = DeltaWriter::new(scratch.fd(), Some(owner));
    delta.put_file(b"d/f", true, &b"x"[..], None).unwrap();
    delta.put_symlink(b"d/l", b"f", None).unwrap();
    delta.whiteout(b"d/w").unwrap();
    delta.opaque_dir(b"o").unwrap();
    for path in ["d", "d/f", "d/l", "d/w", "o"] {
        let stat = fs::symlink_metadata(scratch.join(path)).unwrap();
        assert_eq!((stat.uid(), stat.gid()), owner, "{path}");
    }
    assert_eq!(fs::metadata(scratch.join("d/f")).unwrap().permissions().mode() & 0o7777, 0o755);
}

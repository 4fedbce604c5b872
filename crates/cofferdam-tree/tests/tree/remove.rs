use crate::support::{Scratch, chmod, deep, in_mount_namespace, is_root, names, os, shell, write};
use cofferdam_tree::{RemoveError, remove_tree};
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

fn remove(scratch: &Scratch, name: &[u8]) -> Result<(), RemoveError> {
    remove_tree(scratch.fd().as_fd(), os(name))
}

#[test]
fn missing_is_fine_and_other_names_are_refused() {
    let scratch = Scratch::new();
    write(scratch.join("keep"), "");
    remove(&scratch, b"nothing").unwrap();
    for bad in [b"".as_slice(), b".", b"..", b"a/b", b"/", b"../keep", b"a\0"] {
        assert!(matches!(remove(&scratch, bad), Err(RemoveError::InvalidName { .. })));
    }
    assert!(scratch.join("keep").exists());
}

#[test]
fn files_of_any_kind() {
    let scratch = Scratch::new();
    let tree = scratch.join("t");
    write(tree.join("f"), "x");
    fs::hard_link(tree.join("f"), scratch.join("other-name")).unwrap();
    write(tree.join("unreadable"), "x");
    chmod(tree.join("unreadable"), 0);
    rustix::fs::mkfifoat(CWD, tree.join("fifo"), Mode::empty()).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap();
    fs::write(tree.join(os(b"new\nline\xff")), "").unwrap();
    remove(&scratch, b"t").unwrap();
    assert_eq!(names(scratch.path()), ["other-name"]);
    remove(&scratch, b"other-name").unwrap();
    assert!(names(scratch.path()).is_empty());
}

#[test]
fn golang_go_27161_readonly_dirs() {
    let scratch = Scratch::new();
    write(scratch.join("t/mod/a/b/f"), "x");
    for dir in ["t/mod/a/b", "t/mod/a", "t/mod", "t"] {
        chmod(scratch.join(dir), 0o555);
    }
    remove(&scratch, b"t").unwrap();
    assert!(names(scratch.path()).is_empty());
}

#[test]
fn overlay_work_dirs_of_mode_000() {
    let scratch = Scratch::new();
    write(scratch.join("t/work/work/inner/f"), "x");
    chmod(scratch.join("t/work/work/inner"), 0o311);
    chmod(scratch.join("t/work/work"), 0);
    chmod(scratch.join("t"), 0o4);
    remove(&scratch, b"t").unwrap();
    assert!(names(scratch.path()).is_empty());
}

#[test]
fn fuse_overlayfs_93_whiteouts_removed() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.join("t/d")).unwrap();
    for name in ["t/w", "t/d/w"] {
        rustix::fs::mknodat(CWD, scratch.join(name), FileType::CharacterDevice, Mode::empty(), 0)
            .unwrap();
    }
    remove(&scratch, b"t").unwrap();
    assert!(names(scratch.path()).is_empty());
}

#[test]
fn symlinks_are_removed_and_what_they_lead_to_is_not() {
    let scratch = Scratch::new();
    write(scratch.join("outside/f"), "x");
    chmod(scratch.join("outside"), 0o555);
    fs::create_dir(scratch.join("t")).unwrap();
    symlink("../outside", scratch.join("t/dir")).unwrap();
    symlink("/proc/self", scratch.join("t/hop")).unwrap();
    symlink(".", scratch.join("t/loop")).unwrap();
    symlink("t", scratch.join("link")).unwrap();
    remove(&scratch, b"link").unwrap();
    remove(&scratch, b"t").unwrap();
    assert!(scratch.join("outside/f").exists());
    assert_eq!(fs::metadata(scratch.join("outside")).unwrap().permissions().mode() & 0o777, 0o555);
}

#[test]
fn five_thousand_levels() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.join("t")).unwrap();
    let bottom = deep(&scratch.join("t"), 5000);
    rustix::fs::mkfifoat(&bottom, "f", Mode::RWXU).unwrap();
    remove(&scratch, b"t").unwrap();
    assert!(names(scratch.path()).is_empty());
}

#[test]
fn deep_with_siblings_at_every_level() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.join("t")).unwrap();
    deep(&scratch.join("t"), 300);
    let mut at = crate::support::open(&scratch.join("t"));
    for _ in 0..300 {
        for name in ["a", "e", "z"] {
            rustix::fs::mkdirat(&at, name, Mode::RWXU).unwrap();
            rustix::fs::mkdirat(&at, format!("{name}/x"), Mode::RWXU).unwrap();
        }
        at = rustix::fs::openat(&at, "d", rustix::fs::OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    remove(&scratch, b"t").unwrap();
    assert!(names(scratch.path()).is_empty());
}

#[test]
fn twenty_thousand_entries() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.join("t")).unwrap();
    let dir = crate::support::open(&scratch.join("t"));
    // Links, because making inodes is what takes time; deleting names is what is tested.
    rustix::fs::mknodat(&dir, "file", FileType::RegularFile, Mode::RWXU, 0).unwrap();
    for index in 0..20_000 {
        if index % 50 == 0 {
            rustix::fs::mkdirat(&dir, format!("{index}"), Mode::RWXU).unwrap();
        } else {
            rustix::fs::linkat(&dir, "file", &dir, format!("{index}"), AtFlags::empty()).unwrap();
        }
    }
    remove(&scratch, b"t").unwrap();
    assert!(names(scratch.path()).is_empty());
}

#[test]
fn a_parent_that_may_not_be_written_is_left_as_it_is() {
    let scratch = Scratch::new();
    write(scratch.join("p/t/f"), "x");
    chmod(scratch.join("p"), 0o555);
    let removed = remove_tree(crate::support::open(&scratch.join("p")).as_fd(), os(b"t"));
    assert_eq!(fs::metadata(scratch.join("p")).unwrap().permissions().mode() & 0o777, 0o555);
    if is_root() {
        removed.unwrap();
    } else {
        assert!(matches!(removed, Err(RemoveError::Io { path, .. }) if path.as_bytes() == b"t"));
        assert!(scratch.join("p/t/f").exists(), "nothing goes when the whole can't");
    }
}

#[test]
fn four_removers_of_one_tree() {
    let scratch = Scratch::new();
    for a in 0..30 {
        for b in 0..10 {
            write(scratch.join(format!("t/{a}/{b}/c/f")), "x");
        }
    }
    deep(&scratch.join("t/5/5"), 200);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| remove(&scratch, b"t"))).collect();
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
    });
    assert!(names(scratch.path()).is_empty());
}

#[test]
#[ignore = "needs a mount namespace; run by the next test"]
fn mounts() {
    let scratch = Scratch::new();
    write(scratch.join("outside/f"), "x");
    fs::create_dir_all(scratch.join("t/a/m")).unwrap();
    shell("mount --bind outside t/a/m", scratch.path());
    let refused = remove(&scratch, b"t");
    assert!(
        matches!(refused, Err(RemoveError::MountPoint { path }) if path.as_bytes() == b"t/a/m")
    );
    shell("umount t/a/m; mount -t tmpfs none t/a/m; touch t/a/m/g", scratch.path());
    assert!(matches!(remove(&scratch, b"t"), Err(RemoveError::MountPoint { .. })));
    assert!(scratch.join("t/a/m/g").exists());
    shell("umount t/a/m; touch t/f; mount --bind outside/f t/f", scratch.path());
    assert!(
        matches!(remove(&scratch, b"t"), Err(RemoveError::MountPoint { path }) if path.as_bytes() == b"t/f")
    );
    shell("umount t/f; mount --bind outside t", scratch.path());
    assert!(
        matches!(remove(&scratch, b"t"), Err(RemoveError::MountPoint { path }) if path.as_bytes() == b"t")
    );
    assert!(scratch.join("outside/f").exists());
    shell("umount t", scratch.path());
    remove(&scratch, b"t").unwrap();
    assert!(scratch.join("outside/f").exists());
}

#[test]
fn mount_points_are_refused_and_named() {
    in_mount_namespace("remove::mounts");
}

use crate::support::{Scratch, again, names, os};
use cofferdam_tree::{DurableError, fsync_dir, write_atomic, write_atomic_at};
use rustix::fd::AsFd;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

#[test]
fn replaces_and_leaves_nothing_beside() {
    let scratch = Scratch::new();
    let path = scratch.join("f");
    write_atomic(&path, b"one", 0o600).unwrap();
    write_atomic(&path, b"two", 0o666).unwrap();
    write_atomic_at(scratch.fd().as_fd(), os(b"\xff"), b"three", 0o644).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"two");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o666);
    assert_eq!(names(scratch.path()).len(), 2);
    fsync_dir(scratch.path()).unwrap();
}

#[test]
fn a_symlink_is_replaced_and_not_written_through() {
    let scratch = Scratch::new();
    fs::write(scratch.join("target"), "old").unwrap();
    symlink("target", scratch.join("f")).unwrap();
    write_atomic(&scratch.join("f"), b"new", 0o644).unwrap();
    assert_eq!(fs::read(scratch.join("target")).unwrap(), b"old");
    assert!(fs::symlink_metadata(scratch.join("f")).unwrap().is_file());
}

#[test]
fn failure_leaves_the_old_version() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.join("f/x")).unwrap();
    assert!(matches!(
        write_atomic(&scratch.join("f"), b"", 0o644),
        Err(DurableError::Rename { .. })
    ));
    assert_eq!(names(scratch.path()), ["f"]);
    assert!(matches!(
        write_atomic(&scratch.join("no/f"), b"", 0o644),
        Err(DurableError::Directory { .. })
    ));
    assert!(matches!(write_atomic("/".as_ref(), b"", 0o644), Err(DurableError::Directory { .. })));
}

#[test]
#[ignore = "the process that the next test interrupts"]
fn write_new() {
    let path = PathBuf::from(std::env::var_os("TREE_TEST_FILE").expect("run by another test"));
    let _ = write_atomic(&path, b"new", 0o644);
}

#[test]
fn interrupted_before_the_rename_the_old_version_stays() {
    for (failpoint, left) in [
        ("durable:write=kill", 2),
        ("durable:rename=kill", 2),
        ("durable:write=enospc", 1),
        ("durable:rename=eio", 1),
    ] {
        let scratch = Scratch::new();
        let path = scratch.join("f");
        fs::write(&path, "old").unwrap();
        again("durable::write_new")
            .env("TREE_TEST_FILE", &path)
            .env("COFFERDAM_FAILPOINT", failpoint)
            .output()
            .unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old", "{failpoint}");
        assert_eq!(names(scratch.path()).len(), left, "{failpoint}");
    }
}

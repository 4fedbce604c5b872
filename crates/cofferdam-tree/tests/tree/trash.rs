use crate::support::{Scratch, chmod, in_mount_namespace, names, shell, write};
use cofferdam_tree::Trash;
use std::fs;
use std::io::ErrorKind;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn taken_at_once_and_removed_later() {
    let scratch = Scratch::new();
    let trash = Trash::new(scratch.join("trash")).unwrap();
    for name in ["a", "b", "c"] {
        write(scratch.join(name).join("d/f"), "x");
        trash.take(scratch.path(), name).unwrap();
        assert!(!scratch.join(name).exists());
    }
    let report = trash.empty(Duration::ZERO).unwrap();
    assert_eq!((report.removed, report.left), (0, 3));
    let report = trash.empty(LONG).unwrap();
    assert_eq!((report.removed, report.left, report.stuck.len()), (3, 0, 0));
    assert!(names(trash.dir()).is_empty());
}

#[test]
fn equal_names_do_not_meet_in_the_trash() {
    let scratch = Scratch::new();
    let trash = Trash::new(scratch.join("trash")).unwrap();
    for _ in 0..3 {
        write(scratch.join("t/f"), "x");
        trash.take(scratch.path(), "t").unwrap();
    }
    assert_eq!(names(trash.dir()).len(), 3);
}

#[test]
fn readonly_and_unreadable_directories_can_be_taken() {
    let scratch = Scratch::new();
    let trash = Trash::new(scratch.join("trash")).unwrap();
    for mode in [0o555, 0] {
        write(scratch.join("t/f"), "x");
        chmod(scratch.join("t"), mode);
        trash.take(scratch.path(), "t").unwrap();
    }
    assert_eq!(trash.empty(LONG).unwrap().removed, 2);
}

#[test]
fn what_is_missing_or_no_name_is_an_error() {
    let scratch = Scratch::new();
    let trash = Trash::new(scratch.join("trash")).unwrap();
    assert_eq!(trash.take(scratch.path(), "t").unwrap_err().kind(), ErrorKind::NotFound);
    for bad in ["..", "a/b", ""] {
        assert_eq!(trash.take(scratch.path(), bad).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    std::os::unix::fs::symlink("elsewhere", scratch.join("link")).unwrap();
    trash.take(scratch.path(), "link").unwrap();
    assert_eq!(trash.empty(LONG).unwrap().removed, 1);
}

#[test]
fn callers_at_the_same_time_do_not_trip_over_each_other() {
    let scratch = Scratch::new();
    let trash = Trash::new(scratch.join("trash")).unwrap();
    for index in 0..20 {
        for file in 0..20 {
            write(scratch.join(format!("t/{file}/{index}/f")), "x");
        }
        trash.take(scratch.path(), "t").unwrap();
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| trash.empty(LONG).unwrap())).collect();
        for thread in threads {
            let report = thread.join().unwrap();
            assert_eq!((report.left, report.stuck.len()), (0, 0), "{report:?}");
        }
    });
    assert!(names(trash.dir()).is_empty());
}

#[test]
#[ignore = "needs a mount namespace; run by the next test"]
fn other_file_system() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.join("m")).unwrap();
    shell("mount -t tmpfs none m; mkdir m/t", scratch.path());
    let trash = Trash::new(scratch.join("trash")).unwrap();
    assert_eq!(trash.take(&scratch.join("m"), "t").unwrap_err().kind(), ErrorKind::CrossesDevices);
    assert!(scratch.join("m/t").exists());
    write(scratch.join("t/x/f"), "");
    trash.take(scratch.path(), "t").unwrap();
    let inside = trash.dir().join(&names(trash.dir())[0]).join("x");
    shell(&format!("mount --bind m {}", inside.display()), scratch.path());
    let report = trash.empty(LONG).unwrap();
    assert_eq!((report.removed, report.left, report.stuck.len()), (0, 1, 1));
    shell(&format!("umount {}; umount m", inside.display()), scratch.path());
}

#[test]
fn nothing_is_copied_across_file_systems() {
    in_mount_namespace("trash::other_file_system");
}

use crate::support::{Scratch, again};
use cofferdam_tree::{Lock, LockError, is_held};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Barrier, mpsc};

#[test]
fn exclusive_excludes_and_drop_releases() {
    let scratch = Scratch::new();
    let path = scratch.join("lock");
    assert!(!is_held(&path).unwrap());
    let lock = Lock::try_exclusive(&path).unwrap().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(is_held(&path).unwrap());
    assert!(Lock::try_exclusive(&path).unwrap().is_none());
    assert!(Lock::try_shared(&path).unwrap().is_none());
    drop(lock);
    assert!(!is_held(&path).unwrap());
    assert!(path.exists(), "a lock file is never removed");
    assert!(Lock::try_exclusive(&path).unwrap().is_some());
}

#[test]
fn shared_holders_keep_exclusive_ones_out() {
    let scratch = Scratch::new();
    let path = scratch.join("lock");
    let one = Lock::shared(&path).unwrap();
    let two = Lock::try_shared(&path).unwrap().unwrap();
    assert!(Lock::try_exclusive(&path).unwrap().is_none());
    assert!(!is_held(&path).unwrap(), "shared is not held");
    drop((one, two));
    assert!(Lock::try_exclusive(&path).unwrap().is_some());
}

#[test]
fn the_holder_is_named_while_it_holds_and_not_after() {
    let scratch = Scratch::new();
    let path = scratch.join("lock");
    assert_eq!(Lock::holder(&path), None);
    let lock = Lock::try_exclusive(&path).unwrap().unwrap();
    assert_eq!(Lock::holder(&path).as_deref(), Some(""));
    lock.describe("task long-name, pid 12345").unwrap();
    lock.describe("task b").unwrap();
    assert_eq!(Lock::holder(&path).as_deref(), Some("task b"));
    drop(lock);
    assert_eq!(Lock::holder(&path), None);
}

#[test]
fn of_eight_contenders_exactly_one_gets_it() {
    let scratch = Scratch::new();
    for round in 0..50 {
        let path = scratch.join(format!("lock{round}"));
        let start = Barrier::new(8);
        let end = Barrier::new(8);
        let winners: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        let lock = Lock::try_exclusive(&path).unwrap();
                        end.wait();
                        usize::from(lock.is_some())
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(winners, 1);
    }
}

#[test]
fn waiters_take_turns_and_are_told_once() {
    let scratch = Scratch::new();
    let path = scratch.join("lock");
    let inside = std::sync::atomic::AtomicUsize::new(0);
    let first = Lock::try_exclusive(&path).unwrap().unwrap();
    first.describe("task a").unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let (tell, inside, path) = (tell.clone(), &inside, &path);
            scope.spawn(move || {
                let _lock =
                    Lock::exclusive(path, |text| tell.send(text.to_owned()).unwrap()).unwrap();
                assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                std::thread::yield_now();
                assert_eq!(inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst), 1);
            });
        }
        for _ in 0..8 {
            assert_eq!(told.recv().unwrap(), "task a");
        }
        drop(first);
    });
    drop(tell);
    assert!(told.recv().is_err(), "called more than once");
}

#[test]
fn werf_lockgate_48_unlinked_lock() {
    let scratch = Scratch::new();
    let path = scratch.join("lock");
    let old = Lock::try_exclusive(&path).unwrap().unwrap();
    let (tell, waiting) = mpsc::channel();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let lock = Lock::exclusive(&path, |_| tell.send(()).unwrap()).unwrap();
            // Held on the file that others find, not on the one that was removed.
            assert!(is_held(&path).unwrap());
            drop(lock);
        });
        waiting.recv().unwrap();
        fs::remove_file(&path).unwrap();
        let new = Lock::try_exclusive(&path).unwrap().expect("the new file is free");
        drop(old);
        drop(new);
        waiter.join().unwrap();
    });
}

#[test]
fn a_lock_whose_file_is_replaced_leaves_the_name_free() {
    let scratch = Scratch::new();
    let path = scratch.join("lock");
    let old = Lock::try_exclusive(&path).unwrap().unwrap();
    fs::write(scratch.join("other"), "").unwrap();
    fs::rename(scratch.join("other"), &path).unwrap();
    let inode = fs::metadata(&path).unwrap().ino();
    let new = Lock::try_exclusive(&path).unwrap().unwrap();
    assert_eq!(fs::metadata(new.path()).unwrap().ino(), inode);
    drop(old);
}

#[test]
fn a_child_does_not_keep_the_lock() {
    let scratch = Scratch::new();
    let path = scratch.join("lock");
    let lock = Lock::try_exclusive(&path).unwrap().unwrap();
    let mut child =
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    drop(lock);
    assert!(Lock::try_exclusive(&path).unwrap().is_some());
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
#[ignore = "the other process of the next test"]
fn hold_until_killed() {
    let path = PathBuf::from(std::env::var_os("TREE_TEST_LOCK").expect("run by another test"));
    let _lock = Lock::try_exclusive(&path).unwrap().unwrap();
    println!("\nholding");
    let _ = std::io::stdin().lock().lines().count();
}

#[test]
fn sigkill_frees_the_lock() {
    let scratch = Scratch::new();
    let path = scratch.join("lock");
    let mut holder = again("lock::hold_until_killed")
        .env("TREE_TEST_LOCK", &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(holder.stdout.take().unwrap());
    assert!(output.lines().any(|line| line.unwrap() == "holding"));
    assert!(is_held(&path).unwrap());
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(Lock::try_exclusive(&path).unwrap().is_some());
}

#[test]
fn what_is_no_file_is_refused_and_never_waited_for() {
    let scratch = Scratch::new();
    let path = scratch.join("lock");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    assert!(matches!(Lock::try_exclusive(&path), Err(LockError::NotAFile { .. })));
    fs::remove_file(&path).unwrap();
    symlink(scratch.join("elsewhere"), &path).unwrap();
    assert!(matches!(Lock::try_exclusive(&path), Err(LockError::NotAFile { .. })));
    assert!(!scratch.join("elsewhere").exists());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(Lock::try_exclusive(&path), Err(LockError::NotAFile { .. })));
    assert!(matches!(Lock::try_exclusive(&scratch.join("no/lock")), Err(LockError::Open { .. })));
    assert!(!is_held(&scratch.join("no/lock")).unwrap());
}

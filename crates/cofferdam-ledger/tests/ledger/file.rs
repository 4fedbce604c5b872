//! Opening: new, newer, foreign, damaged; the write-ahead log.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Barrier;

use cofferdam_ledger::{Change, Filter, Ledger, LedgerError, State};

use crate::{NORMAL, id, new_task, place, raw, task_in};

#[test]
fn a_new_ledger_is_private_and_empty() {
    let (_dir, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    assert_eq!(ledger.tasks(Filter::default()).unwrap(), []);
    assert_eq!(ledger.task(&id("00000000")).unwrap(), None);
    assert_eq!(ledger.path(), path);
    for file in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
        let mode = path.with_file_name(file).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let mode: String =
        raw(&path).pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
}

#[test]
fn sixteen_openers_make_one_ledger() {
    let (_dir, path) = place();
    let barrier = Barrier::new(16);
    std::thread::scope(|scope| {
        for n in 0..16 {
            let (path, barrier) = (&path, &barrier);
            scope.spawn(move || {
                barrier.wait();
                let mut ledger = Ledger::open(path).unwrap();
                ledger.create_task(new_task(&format!("{n:08}"), &format!("n{n}"))).unwrap();
            });
        }
    });
    assert_eq!(Ledger::open(&path).unwrap().tasks(Filter::default()).unwrap().len(), 16);
}

#[test]
fn a_newer_ledger_is_left_alone() {
    let (_dir, path) = place();
    task_in(&mut Ledger::open(&path).unwrap(), "aaaaaaaa", State::Queued);
    raw(&path).pragma_update(None, "user_version", 4).unwrap();
    let wal = path.with_file_name("ledger.db-wal");
    let read = || (std::fs::read(&path).unwrap(), std::fs::read(&wal).unwrap_or_default());
    let before = read();
    for _ in 0..2 {
        let newer = Ledger::open(&path).unwrap_err();
        assert!(matches!(newer, LedgerError::Newer { found: 4, known: 3, .. }), "{newer}");
    }
    assert!(before == read(), "the file has changed");
}

#[test]
fn other_files_are_refused_by_name() {
    let (dir, path) = place();
    let said = |path: &Path| Ledger::open(path).unwrap_err();
    let garbage = [b'x'; 9000];
    std::fs::write(&path, garbage).unwrap();
    let error = said(&path);
    assert!(matches!(error, LedgerError::NotALedger { .. }), "{error}");
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), garbage);

    let foreign = dir.path().join("foreign.db");
    raw(&foreign).execute_batch("CREATE TABLE t (x)").unwrap();
    let bytes = std::fs::read(&foreign).unwrap();
    let error = said(&foreign);
    assert!(matches!(error, LedgerError::NotALedger { .. }), "{error}");
    assert_eq!(std::fs::read(&foreign).unwrap(), bytes);

    let error = said(&dir.path().join("no/such/ledger.db"));
    assert!(matches!(error, LedgerError::Open { .. }), "{error}");
    let error = said(dir.path());
    assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{error}");
}

#[test]
fn a_torn_file_is_named() {
    let (dir, path) = place();
    let mut ledger = Ledger::open(&path).unwrap();
    for n in 0..200 {
        ledger.create_task(new_task(&format!("{n:08}"), &format!("n{n}"))).unwrap();
    }
    assert!(ledger.checkpoint().unwrap());
    drop(ledger);
    let whole = std::fs::read(&path).unwrap();
    let torn = dir.path().join("torn.db");
    for cut in [50, 4096, whole.len() / 2, whole.len() - 100] {
        std::fs::write(&torn, &whole[..cut]).unwrap();
        let error = Ledger::open(&torn)
            .and_then(|mut ledger| {
                ledger.tasks(Filter::default())?;
                ledger.create_task(new_task("zzzzzzzz", "z"))
            })
            .unwrap_err();
        assert!(
            matches!(
                error,
                LedgerError::Damaged { .. }
                    | LedgerError::NotALedger { .. }
                    | LedgerError::Corrupt { .. }
            ),
            "cut at {cut}: {error:?}"
        );
        assert!(error.to_string().contains(torn.to_str().unwrap()), "{error}");
        for rest in ["torn.db-wal", "torn.db-shm"] {
            let _ = std::fs::remove_file(dir.path().join(rest));
        }
    }
}

#[test]
fn a_row_that_makes_no_sense_is_named() {
    let (_dir, path) = place();
    let mut ledger = Ledger::open(&path).unwrap();
    let task = task_in(&mut ledger, "aaaaaaaa", State::Running);
    raw(&path).execute("UPDATE tasks SET state = 'lost'", []).unwrap();
    let error = ledger.task(&task).unwrap_err();
    assert!(matches!(error, LedgerError::Corrupt { .. }), "{error}");
    let said = format!("the ledger `{}` holds the unknown task state `lost`", path.display());
    assert_eq!(error.to_string(), said);
    ledger.transition(&task, State::Running, State::Failed, Change::default(), NORMAL).unwrap_err();
    raw(&path).execute("UPDATE tasks SET state = 'running', facts = '{'", []).unwrap();
    let error = ledger.tasks(Filter::default()).unwrap_err().to_string();
    assert!(error.contains("unreadable facts of task `aaaaaaaa`"), "{error}");
}

#[test]
fn a_path_that_looks_like_a_uri_is_a_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file:ledger.db?mode=memory");
    task_in(&mut Ledger::open(&path).unwrap(), "aaaaaaaa", State::Queued);
    assert!(path.exists());
    assert_eq!(Ledger::open(&path).unwrap().tasks(Filter::default()).unwrap().len(), 1);
}

#[test]
fn closing_does_not_checkpoint_and_gc_does() {
    let (_dir, path) = place();
    let wal = path.with_file_name("ledger.db-wal");
    task_in(&mut Ledger::open(&path).unwrap(), "aaaaaaaa", State::Queued);
    assert!(wal.metadata().unwrap().len() > 0);
    let ledger = Ledger::open(&path).unwrap();
    assert!(ledger.checkpoint().unwrap());
    assert_eq!(wal.metadata().unwrap().len(), 0);
    assert_eq!(ledger.tasks(Filter::default()).unwrap().len(), 1);
}

#[test]
fn a_checkpoint_waits_for_nobody() {
    let (_dir, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    let writer = raw(&path);
    writer.execute_batch("BEGIN IMMEDIATE; DELETE FROM verdicts").unwrap();
    assert!(!ledger.checkpoint().unwrap());
    writer.execute_batch("ROLLBACK").unwrap();
    assert!(ledger.checkpoint().unwrap());
}

#[test]
fn two_that_open_a_new_one_at_once_are_in_no_ones_way() {
    let (_dir, path) = place();
    std::fs::write(&path, "").unwrap();
    // Between the first look of this one and its second, another is done and has a task.
    let faster = || {
        task_in(&mut Ledger::open(&path).unwrap(), "aaaaaaaa", State::Queued);
        true
    };
    let ledger = Ledger::open_unless_lost(&path, faster).unwrap();
    assert_eq!(ledger.tasks(Filter::default()).unwrap().len(), 1);
}

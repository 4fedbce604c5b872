use cofferdam_ledger::{Claim, Key, LedgerError};

use super::*;

const REPORT: Key<'_> = Key { key: "report-2026-11-30", request: "r1" };

fn once(ledger: &mut Ledger, id: &str) -> Claim {
    ledger.create_task_once(new_task(id, id), REPORT).unwrap()
}

#[track_caller]
fn own(claim: Claim) -> TaskId {
    match claim {
        Claim::Own(task) => task.id,
        Claim::Earlier(task) => panic!("it is that of {}", task.id),
    }
}

#[track_caller]
fn earlier(claim: Claim) -> TaskId {
    match claim {
        Claim::Earlier(task) => task.id,
        Claim::Own(task) => panic!("{} has it", task.id),
    }
}

fn go(ledger: &mut Ledger, id: &TaskId, to: State) {
    for pair in way_to(to).windows(2) {
        step(ledger, id, pair[0], pair[1]);
    }
}

#[test]
fn of_many_at_once_one_has_the_key() {
    let (_dir, path) = place();
    Ledger::open(&path).unwrap();
    let claims: Vec<Claim> = std::thread::scope(|scope| {
        let claim = |number: u32| {
            let path = &path;
            scope.spawn(move || once(&mut Ledger::open(path).unwrap(), &format!("{number:08}")))
        };
        let threads: Vec<_> = (0..32).map(claim).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (own, others): (Vec<_>, Vec<_>) =
        claims.into_iter().partition(|claim| matches!(claim, Claim::Own(_)));
    let own = match own.as_slice() {
        [Claim::Own(task)] => task.id.clone(),
        several => panic!("{several:?}"),
    };
    assert_eq!(others.len(), 31);
    assert!(others.into_iter().all(|other| earlier(other) == own));
    assert_eq!(Ledger::open(&path).unwrap().tasks(Default::default()).unwrap().len(), 1);
}

#[test]
fn what_was_done_is_not_done_again_and_what_was_not_can_be() {
    for state in State::ALL.iter().copied() {
        let (_dir, path) = place();
        let mut ledger = Ledger::open(&path).unwrap();
        let first = own(once(&mut ledger, "00000001"));
        go(&mut ledger, &first, state);
        let kept = match state {
            State::Landed | State::Empty | State::Superseded | State::InDoubt | State::Ready => {
                true
            }
            state => state.is_live(),
        };
        let second = once(&mut ledger, "00000002");
        if kept {
            assert_eq!(earlier(second), first, "{state}");
            assert!(ledger.task(&id("00000002")).unwrap().is_none(), "{state}");
        } else {
            let second = own(second);
            // And the first can't have it back while the second works.
            let again = ledger.claim_key(&first, REPORT).unwrap();
            assert_eq!(earlier(again), second, "{state}");
            go(&mut ledger, &second, State::Rejected);
            assert_eq!(own(ledger.claim_key(&first, REPORT).unwrap()), first, "{state}");
        }
    }
}

#[test]
fn a_task_that_was_dropped_gives_its_key_back() {
    let (_dir, path) = place();
    let mut ledger = Ledger::open(&path).unwrap();
    let first = own(once(&mut ledger, "00000001"));
    go(&mut ledger, &first, State::Ready);
    ledger.settle(&first).unwrap();
    own(once(&mut ledger, "00000002"));
}

#[test]
fn one_key_is_for_one_request() {
    let (_dir, path) = place();
    let mut ledger = Ledger::open(&path).unwrap();
    let first = own(once(&mut ledger, "00000001"));
    let other = Key { request: "r2", ..REPORT };
    let ask = |ledger: &mut Ledger| ledger.create_task_once(new_task("00000002", "b"), other);
    let error = ask(&mut ledger).unwrap_err();
    assert!(matches!(&error, LedgerError::KeyOfAnother { key, holder }
        if key == REPORT.key && holder.as_ref() == "00000001"));
    assert!(matches!(ledger.claim_key(&first, other), Err(LedgerError::KeyOfAnother { .. })));
    go(&mut ledger, &first, State::Rejected);
    own(ask(&mut ledger).unwrap());
    own(ledger.create_task_once(new_task("00000003", "c"), Key { key: "b", ..REPORT }).unwrap());
}

#[test]
fn a_key_is_found_before_a_name_is_taken() {
    let (_dir, path) = place();
    let mut ledger = Ledger::open(&path).unwrap();
    let first = own(once(&mut ledger, "00000001"));
    let same_name = new_task("00000002", "00000001");
    assert_eq!(earlier(ledger.create_task_once(same_name, REPORT).unwrap()), first);
}

#[test]
fn a_key_is_forgotten_with_its_task() {
    let (_dir, path) = place();
    let mut ledger = Ledger::open(&path).unwrap();
    let first = own(once(&mut ledger, "00000001"));
    go(&mut ledger, &first, State::Empty);
    ledger.settle(&first).unwrap();
    assert_eq!(ledger.prune(i64::MAX).unwrap(), [first]);
    own(once(&mut ledger, "00000002"));
}

/// One of the first version, as it was made by it.
#[test]
fn a_ledger_of_the_first_version_is_brought_up() {
    let (_dir, path) = place();
    let task = task_in(&mut Ledger::open(&path).unwrap(), "00000001", State::Landed);
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute_batch(
        "DROP TABLE keys; DROP TABLE series; DROP INDEX tasks_series;
             ALTER TABLE tasks DROP COLUMN series; PRAGMA user_version = 1;",
    )
    .unwrap();
    // While two open it at once, and one of the old program goes on.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| Ledger::open(&path).unwrap());
        }
    });
    raw.query_row("SELECT count(*) FROM tasks", [], |row| row.get::<_, u32>(0)).unwrap();
    let mut ledger = Ledger::open(&path).unwrap();
    assert_eq!(ledger.task(&task).unwrap().unwrap().state, State::Landed);
    own(once(&mut ledger, "00000002"));
    let version: i32 = raw.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 3);
}

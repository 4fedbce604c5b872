//! The ledger through its public interface, on real files.

use std::collections::{BTreeSet, HashSet};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;

use cofferdam_ledger::{
    Change, Durability, Filter, Ledger, LedgerError, NewPublication, NewTask, Outcome,
    PublicationState, State, Task, TaskId, TaskName, VerdictRow, now_ms,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const NORMAL: Durability = Durability::Normal;
const FULL: Durability = Durability::Full;

fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.db");
    (dir, path)
}

fn id(text: &str) -> TaskId {
    TaskId::parse(text).unwrap()
}

fn new_task(id_text: &str, name: &str) -> NewTask {
    NewTask {
        id: id(id_text),
        name: TaskName::parse(name).unwrap(),
        repo: "repo-1".to_owned(),
        spec: json!({"command": ["true"]}),
        facts: json!({"base": "b0"}),
    }
}

fn step(ledger: &mut Ledger, id: &TaskId, from: State, to: State) -> Task {
    ledger.transition(id, from, to, Change::default(), NORMAL).unwrap()
}

/// Some legal way from `queued` to `end`.
fn way_to(end: State) -> Vec<State> {
    let mut ways = vec![vec![State::Queued]];
    let mut seen = HashSet::from([State::Queued]);
    while let Some(way) = ways.pop() {
        let last = *way.last().unwrap();
        if last == end {
            return way;
        }
        for &next in State::ALL {
            if last.may_become(next) && seen.insert(next) {
                ways.push([way.as_slice(), &[next]].concat());
            }
        }
    }
    panic!("no way to {end}");
}

fn task_in(ledger: &mut Ledger, id_text: &str, state: State) -> TaskId {
    let task = ledger.create_task(new_task(id_text, id_text)).unwrap();
    for pair in way_to(state).windows(2) {
        step(ledger, &task.id, pair[0], pair[1]);
    }
    task.id
}

fn publication(task: &TaskId) -> NewPublication {
    NewPublication {
        task: task.clone(),
        target: "branch main".to_owned(),
        old: Some("aaa".to_owned()),
        new: "bbb".to_owned(),
        journal: json!({"pack": "p1"}),
    }
}

fn raw(path: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(path).unwrap()
}

#[test]
fn the_table_of_steps() {
    use State::*;
    let expected = |from: State| -> BTreeSet<State> {
        let ends = [Failed, TimedOut, Cancelled, Broken];
        let more: &[State] = match from {
            Queued => &[Preparing],
            Preparing => &[Running],
            Running => &[Harvesting],
            Harvesting => &[Verifying, Empty, Ready, Conflicted, Rejected],
            Verifying => &[Publishing, Empty, Ready, Conflicted, Rejected, Superseded],
            Publishing => &[Landed, Ready, Conflicted, Superseded, InDoubt],
            Ready | Conflicted | Rejected => return BTreeSet::from([Verifying]),
            Landed | Empty | Superseded | InDoubt | Failed | TimedOut | Cancelled | Broken => {
                return BTreeSet::new();
            }
        };
        ends.iter().chain(more).copied().collect()
    };
    assert_eq!(State::ALL.len(), 17);
    for &from in State::ALL {
        let may: BTreeSet<_> =
            State::ALL.iter().copied().filter(|to| from.may_become(*to)).collect();
        assert_eq!(may, expected(from), "from {from}");
        assert!(!from.may_become(from), "{from} to itself");
        assert_ne!(from.is_live(), from.is_end());
    }
}

#[test]
fn landing_takes_verifying_and_publishing() {
    let before_landed: Vec<_> =
        State::ALL.iter().filter(|state| state.may_become(State::Landed)).collect();
    assert_eq!(before_landed, [&State::Publishing]);
    let before_publishing: Vec<_> =
        State::ALL.iter().filter(|state| state.may_become(State::Publishing)).collect();
    assert_eq!(before_publishing, [&State::Verifying]);
    assert_eq!(way_to(State::Landed).last(), Some(&State::Landed));
    for &state in State::ALL {
        way_to(state);
        if state.is_live() {
            assert!(State::ALL.iter().any(|to| to.is_end() && state.may_become(*to)), "{state}");
        }
    }
}

#[test]
fn every_step_is_obeyed_by_the_ledger() {
    let (_dir, path) = place();
    let mut ledger = Ledger::open(&path).unwrap();
    for (n, &from) in State::ALL.iter().enumerate() {
        for (m, &to) in State::ALL.iter().enumerate() {
            let task = task_in(&mut ledger, &format!("t{n:02}x{m:04}"), from);
            let result = ledger.transition(&task, from, to, Change::default(), NORMAL);
            let now = ledger.task(&task).unwrap().unwrap().state;
            if from.may_become(to) {
                assert_eq!(result.unwrap().state, to);
                assert_eq!(now, to);
            } else {
                assert!(matches!(result, Err(LedgerError::Illegal { .. })), "{from} to {to}");
                assert_eq!(now, from);
            }
        }
    }
}

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
fn a_task_is_kept_across_connections() {
    let (_dir, path) = place();
    let task = Ledger::open(&path).unwrap().create_task(new_task("aaaaaaaa", "one")).unwrap();
    assert_eq!(task.state, State::Queued);
    let ledger = Ledger::open(&path).unwrap();
    assert_eq!(ledger.task(&task.id).unwrap(), Some(task.clone()));
    let history = ledger.history(&task.id).unwrap();
    assert_eq!(history.len(), 1);
    assert_eq!((history[0].from, history[0].to), (None, State::Queued));
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
fn of_sixteen_racers_one_wins() {
    let (_dir, path) = place();
    let task = task_in(&mut Ledger::open(&path).unwrap(), "aaaaaaaa", State::Queued);
    let barrier = Barrier::new(16);
    let results: Vec<_> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..16)
            .map(|n| {
                let (path, barrier, task) = (&path, &barrier, &task);
                scope.spawn(move || {
                    let mut ledger = Ledger::open(path).unwrap();
                    let detail = format!("racer {n}");
                    let change = Change { detail: Some(&detail), ..Change::default() };
                    let to = if n % 2 == 0 { State::Preparing } else { State::Cancelled };
                    barrier.wait();
                    ledger.transition(task, State::Queued, to, change, NORMAL).map(|_| n)
                })
            })
            .collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).collect()
    });
    let (won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!(won.len(), 1);
    for error in lost {
        let error = error.unwrap_err();
        assert!(matches!(error, LedgerError::Stale { expected: State::Queued, .. }), "{error}");
    }
    let winner = format!("racer {}", won[0].as_ref().unwrap());
    let history = Ledger::open(&path).unwrap().history(&task).unwrap();
    assert_eq!(history.len(), 2);
    assert_eq!(history[1].detail.as_deref(), Some(winner.as_str()));
}

#[test]
fn sixteen_noters_lose_nothing() {
    let (_dir, path) = place();
    let task = task_in(&mut Ledger::open(&path).unwrap(), "aaaaaaaa", State::Running);
    std::thread::scope(|scope| {
        for n in 0..16 {
            let (path, task) = (&path, &task);
            scope.spawn(move || {
                let mut ledger = Ledger::open(path).unwrap();
                let durability = if n % 4 == 0 { FULL } else { NORMAL };
                ledger.note(task, json!({ format!("n{n}"): n }), durability).unwrap();
            });
        }
    });
    let facts = Ledger::open(&path).unwrap().task(&task).unwrap().unwrap().facts;
    assert_eq!(facts.as_object().unwrap().len(), 17);
}

#[test]
fn a_name_has_one_unsettled_holder() {
    let (_dir, path) = place();
    let mut ledger = Ledger::open(&path).unwrap();
    ledger.create_task(new_task("aaaaaaaa", "nightly")).unwrap();
    let taken = ledger.create_task(new_task("bbbbbbbb", "nightly")).unwrap_err();
    assert!(
        matches!(&taken, LedgerError::NameTaken { name, holder }
            if name.as_ref() == "nightly" && *holder == id("aaaaaaaa")),
        "{taken}"
    );
    assert_eq!(ledger.task(&id("bbbbbbbb")).unwrap(), None);
    let same_id = ledger.create_task(new_task("aaaaaaaa", "other")).unwrap_err();
    assert!(matches!(same_id, LedgerError::IdTaken { .. }), "{same_id}");

    let live = ledger.settle(&id("aaaaaaaa")).unwrap_err();
    assert!(matches!(live, LedgerError::Live { state: State::Queued, .. }), "{live}");
    step(&mut ledger, &id("aaaaaaaa"), State::Queued, State::Cancelled);
    ledger.create_task(new_task("bbbbbbbb", "nightly")).unwrap_err();
    ledger.settle(&id("aaaaaaaa")).unwrap();
    ledger.settle(&id("aaaaaaaa")).unwrap();
    ledger.create_task(new_task("bbbbbbbb", "nightly")).unwrap();
    assert!(ledger.task(&id("aaaaaaaa")).unwrap().unwrap().settled);
    let nobody = ledger.settle(&id("zzzzzzzz")).unwrap_err();
    assert!(matches!(nobody, LedgerError::NoSuchTask { .. }), "{nobody}");
}

#[test]
fn sixteen_runs_want_one_name() {
    let (_dir, path) = place();
    Ledger::open(&path).unwrap();
    let won = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..16)
            .map(|n| {
                let path = &path;
                scope.spawn(move || {
                    let mut ledger = Ledger::open(path).unwrap();
                    match ledger.create_task(new_task(&format!("{n:08}"), "nightly")) {
                        Ok(_) => 1,
                        Err(LedgerError::NameTaken { .. }) => 0,
                        Err(other) => panic!("{other}"),
                    }
                })
            })
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).sum::<usize>()
    });
    assert_eq!(won, 1);
}

#[test]
fn facts_merge_key_by_key() {
    let (_dir, path) = place();
    let mut ledger = Ledger::open(&path).unwrap();
    let task = ledger.create_task(new_task("aaaaaaaa", "one")).unwrap();
    let change = Change {
        facts: Some(json!({"pid": 7, "limits": {"cpu": 1}})),
        reason: Some("waits"),
        detail: Some("first"),
    };
    let task =
        ledger.transition(&task.id, State::Queued, State::Preparing, change, NORMAL).unwrap();
    assert_eq!(task.facts, json!({"base": "b0", "pid": 7, "limits": {"cpu": 1}}));
    assert_eq!(task.reason.as_deref(), Some("waits"));
    ledger.note(&task.id, json!({"pid": null, "limits": {"mem": 2}, "no": null}), FULL).unwrap();
    let now = ledger.task(&task.id).unwrap().unwrap();
    assert_eq!(now.facts, json!({"base": "b0", "limits": {"mem": 2}}));
    assert_eq!(now.spec, task.spec);
    ledger.note_if(&task.id, State::Preparing, json!({"a": 1}), NORMAL).unwrap();
    let stale = ledger.note_if(&task.id, State::Running, json!({"a": 2}), NORMAL).unwrap_err();
    assert!(matches!(stale, LedgerError::Stale { found: State::Preparing, .. }), "{stale}");
    let list = ledger.note(&task.id, json!([1]), NORMAL).unwrap_err();
    assert!(matches!(list, LedgerError::NotAnObject { what: "facts" }), "{list}");
    let change = Change { facts: Some(json!("text")), ..Change::default() };
    ledger.transition(&task.id, State::Preparing, State::Running, change, NORMAL).unwrap_err();
    let now = step(&mut ledger, &task.id, State::Preparing, State::Running);
    assert_eq!(now.facts, json!({"base": "b0", "limits": {"mem": 2}, "a": 1}));
    assert_eq!(now.reason, None, "a reason belongs to one state");
    let details: Vec<_> =
        ledger.history(&task.id).unwrap().into_iter().map(|row| row.detail).collect();
    assert_eq!(details, [None, Some("first".to_owned()), None]);
}

#[test]
fn find_takes_id_then_name_then_prefix() {
    let (_dir, path) = place();
    let mut ledger = Ledger::open(&path).unwrap();
    let found =
        |ledger: &Ledger, text: &str| ledger.find(text).unwrap().map(|task| task.id.to_string());
    ledger.create_task(new_task("abcd0001", "nightly")).unwrap();
    step(&mut ledger, &id("abcd0001"), State::Queued, State::Failed);
    ledger.settle(&id("abcd0001")).unwrap();
    ledger.create_task(new_task("abcd0002", "nightly")).unwrap();
    assert_eq!(found(&ledger, "nightly").as_deref(), Some("abcd0002"));
    step(&mut ledger, &id("abcd0002"), State::Queued, State::Failed);
    ledger.settle(&id("abcd0002")).unwrap();
    assert_eq!(found(&ledger, "nightly").as_deref(), Some("abcd0002"), "newest settled");

    // A name that looks like another task's id, or like the beginning of one.
    ledger.create_task(new_task("efgh0001", "abcd0001")).unwrap();
    ledger.create_task(new_task("efgh0002", "efgh0")).unwrap();
    assert_eq!(found(&ledger, "abcd0001").as_deref(), Some("abcd0001"));
    assert_eq!(found(&ledger, "efgh0").as_deref(), Some("efgh0002"));

    assert_eq!(found(&ledger, "efgh0001").as_deref(), Some("efgh0001"));
    ledger.create_task(new_task("zzzz9999", "last")).unwrap();
    assert_eq!(found(&ledger, "zzzz").as_deref(), Some("zzzz9999"));
    assert_eq!(found(&ledger, "zzz"), None, "too short");
    assert_eq!(found(&ledger, "zzzz%"), None);
    assert_eq!(found(&ledger, ""), None);
    let several = ledger.find("abcd").unwrap_err();
    assert_eq!(several.to_string(), "`abcd` fits several tasks: abcd0002, abcd0001");
}

#[test]
fn lists_are_filtered_and_newest_first() {
    let (_dir, path) = place();
    let mut ledger = Ledger::open(&path).unwrap();
    task_in(&mut ledger, "aaaa0001", State::Running);
    task_in(&mut ledger, "aaaa0002", State::Ready);
    let gone = task_in(&mut ledger, "aaaa0003", State::Failed);
    ledger.settle(&gone).unwrap();
    ledger.create_task(NewTask { repo: String::new(), ..new_task("aaaa0004", "other") }).unwrap();
    let list = |filter| -> String {
        let tasks = ledger.tasks(filter).unwrap();
        tasks.iter().map(|task| &task.id.as_ref()[7..]).collect()
    };
    let all = Filter::default();
    assert_eq!(list(all), "4321");
    assert_eq!(list(Filter { limit: Some(2), ..all }), "43");
    assert_eq!(list(Filter { live_only: true, ..all }), "41");
    assert_eq!(list(Filter { unsettled_only: true, ..all }), "421");
    assert_eq!(list(Filter { repo: Some("repo-1"), ..all }), "321");
    assert_eq!(list(Filter { repo: Some(""), ..all }), "4");
    let narrow =
        Filter { repo: Some("repo-1"), live_only: true, unsettled_only: true, limit: Some(9) };
    assert_eq!(list(narrow), "1");
}

#[test]
fn pruning_forgets_only_what_is_over() {
    let (_dir, path) = place();
    let mut ledger = Ledger::open(&path).unwrap();
    let over = task_in(&mut ledger, "aaaa0001", State::Landed);
    let kept = task_in(&mut ledger, "aaaa0002", State::Failed);
    let open = task_in(&mut ledger, "aaaa0003", State::Publishing);
    ledger.begin_publication(publication(&open)).unwrap();
    step(&mut ledger, &open, State::Publishing, State::InDoubt);
    ledger.record_verdict(&verdict("k1", &over), NORMAL).unwrap();
    ledger.settle(&over).unwrap();
    ledger.settle(&open).unwrap();
    // Once more live though settled: a person lands it again.
    let again = task_in(&mut ledger, "aaaa0004", State::Ready);
    ledger.settle(&again).unwrap();
    step(&mut ledger, &again, State::Ready, State::Verifying);

    assert_eq!(ledger.prune(0).unwrap(), []);
    assert_eq!(ledger.prune(now_ms() + 60_000).unwrap(), std::slice::from_ref(&over));
    assert_eq!(ledger.task(&over).unwrap(), None);
    assert_eq!(ledger.history(&over).unwrap(), []);
    assert_eq!(ledger.verdict("k1").unwrap().unwrap().task, over);
    for id in [kept, open, again] {
        assert!(ledger.task(&id).unwrap().is_some());
    }
}

fn verdict(key: &str, task: &TaskId) -> VerdictRow {
    VerdictRow {
        key: key.to_owned(),
        tree: "t1".to_owned(),
        check: "test".to_owned(),
        outcome: Outcome::Passed,
        task: task.clone(),
        at_ms: 5,
        took_ms: 1200,
        detail: json!({"log": "x"}),
    }
}

#[test]
fn verdicts_are_replaced_and_voided() {
    let (_dir, path) = place();
    let mut ledger = Ledger::open(&path).unwrap();
    let (one, two) = (id("aaaaaaaa"), id("bbbbbbbb"));
    assert_eq!(ledger.verdict("k1").unwrap(), None);
    ledger.record_verdict(&verdict("k1", &one), FULL).unwrap();
    ledger.record_verdict(&verdict("k2", &two), NORMAL).unwrap();
    assert_eq!(ledger.verdict("k1").unwrap(), Some(verdict("k1", &one)));
    let newer = VerdictRow { outcome: Outcome::BaselineBroken, ..verdict("k1", &one) };
    ledger.record_verdict(&newer, NORMAL).unwrap();
    assert_eq!(ledger.verdict("k1").unwrap(), Some(newer));
    assert_eq!(ledger.void_verdicts(&one).unwrap(), 1);
    assert_eq!(ledger.void_verdicts(&one).unwrap(), 0);
    assert_eq!(ledger.verdict("k1").unwrap(), None);
    assert!(ledger.verdict("k2").unwrap().is_some());
}

#[test]
fn a_publication_goes_from_intent_to_done() {
    use PublicationState::*;
    let (_dir, path) = place();
    let mut ledger = Ledger::open(&path).unwrap();
    let task = task_in(&mut ledger, "aaaaaaaa", State::Publishing);
    assert_eq!(ledger.publication_of(&task).unwrap(), None);
    let first = ledger.begin_publication(publication(&task)).unwrap();
    assert_eq!(ledger.open_publications().unwrap().len(), 1);
    ledger.note_publication(first, json!({"index": "i1", "pack": null}), FULL).unwrap();
    ledger.advance_publication(first, Intent, Abandoned, NORMAL).unwrap();
    assert_eq!(ledger.open_publications().unwrap(), []);

    let second = ledger.begin_publication(publication(&task)).unwrap();
    assert!(second > first);
    let jump = ledger.advance_publication(second, Intent, Done, NORMAL).unwrap_err();
    assert!(matches!(jump, LedgerError::IllegalPublication { .. }), "{jump}");
    let committed = ledger.advance_publication(second, Intent, Committed, FULL).unwrap();
    assert_eq!(committed.journal, json!({"pack": "p1"}));
    let twice = ledger.advance_publication(second, Intent, Abandoned, FULL).unwrap_err();
    assert!(matches!(twice, LedgerError::StalePublication { found: Committed, .. }), "{twice}");
    assert_eq!(ledger.open_publications().unwrap(), [committed]);
    ledger.advance_publication(second, Committed, Done, NORMAL).unwrap();
    assert_eq!(ledger.publication_of(&task).unwrap().unwrap().state, Done);
    let orphan = ledger.begin_publication(publication(&id("zzzzzzzz"))).unwrap_err();
    assert!(matches!(orphan, LedgerError::NoSuchTask { .. }), "{orphan}");
}

#[test]
fn the_table_of_publication_steps() {
    use PublicationState::*;
    for &from in PublicationState::ALL {
        for &to in PublicationState::ALL {
            let legal = [(Intent, Committed), (Intent, Abandoned), (Committed, Done)];
            assert_eq!(from.may_become(to), legal.contains(&(from, to)), "{from} to {to}");
        }
    }
}

#[test]
fn a_committed_change_is_not_denied() {
    let (_dir, path) = place();
    let mut ledger = Ledger::open(&path).unwrap();
    for (n, &to) in State::ALL.iter().enumerate() {
        if !State::Publishing.may_become(to) {
            continue;
        }
        let task = task_in(&mut ledger, &format!("{n:08}"), State::Publishing);
        let publication = ledger.begin_publication(publication(&task)).unwrap();
        let (intent, committed) = (PublicationState::Intent, PublicationState::Committed);
        ledger.advance_publication(publication, intent, committed, FULL).unwrap();
        let result = ledger.transition(&task, State::Publishing, to, Change::default(), FULL);
        let honest = matches!(to, State::Landed | State::InDoubt | State::Broken);
        assert_eq!(result.is_ok(), honest, "{to}");
        if let Err(error) = result {
            assert!(matches!(error, LedgerError::Committed { .. }), "{error}");
        }
    }
}

#[test]
fn land_ends_both_or_neither() {
    let (_dir, path) = place();
    let mut ledger = Ledger::open(&path).unwrap();
    let task = task_in(&mut ledger, "aaaaaaaa", State::Publishing);
    let other = task_in(&mut ledger, "bbbbbbbb", State::Publishing);
    let own = ledger.begin_publication(publication(&task)).unwrap();
    let foreign = ledger.begin_publication(publication(&other)).unwrap();

    let wrong = ledger.land(&task, foreign, Change::default()).unwrap_err();
    assert!(matches!(wrong, LedgerError::NoSuchPublication { .. }), "{wrong}");
    assert_eq!(ledger.task(&task).unwrap().unwrap().state, State::Publishing);
    assert_eq!(ledger.open_publications().unwrap().len(), 2);

    let change = Change { facts: Some(json!({"landed": "bbb"})), ..Change::default() };
    let landed = ledger.land(&task, own, change).unwrap();
    assert_eq!(landed.state, State::Landed);
    assert_eq!(landed.facts["landed"], "bbb");
    assert_eq!(ledger.publication_of(&task).unwrap().unwrap().state, PublicationState::Done);
    let twice = ledger.land(&task, own, Change::default()).unwrap_err();
    assert!(matches!(twice, LedgerError::Stale { found: State::Landed, .. }), "{twice}");

    let (intent, abandoned) = (PublicationState::Intent, PublicationState::Abandoned);
    ledger.advance_publication(foreign, intent, abandoned, NORMAL).unwrap();
    let late = ledger.land(&other, foreign, Change::default()).unwrap_err();
    assert!(matches!(late, LedgerError::StalePublication { .. }), "{late}");
    assert_eq!(ledger.task(&other).unwrap().unwrap().state, State::Publishing);
}

#[test]
fn a_newer_ledger_is_left_alone() {
    let (_dir, path) = place();
    task_in(&mut Ledger::open(&path).unwrap(), "aaaaaaaa", State::Queued);
    raw(&path).pragma_update(None, "user_version", 2).unwrap();
    let wal = path.with_file_name("ledger.db-wal");
    let read = || (std::fs::read(&path).unwrap(), std::fs::read(&wal).unwrap_or_default());
    let before = read();
    for _ in 0..2 {
        let newer = Ledger::open(&path).unwrap_err();
        assert!(matches!(newer, LedgerError::Newer { found: 2, known: 1 }), "{newer}");
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

/// What a child does under a failpoint, on the ledger in `LEDGER_TEST_PATH`.
#[test]
fn child() {
    let Some(path) = std::env::var_os("LEDGER_TEST_PATH") else { return };
    let mut ledger = Ledger::open(Path::new(&path)).unwrap();
    let task = id("aaaaaaaa");
    let run = |ledger: &mut Ledger| -> cofferdam_ledger::Result<()> {
        ledger.create_task(new_task("bbbbbbbb", "child"))?;
        ledger.transition(&task, State::Verifying, State::Publishing, Change::default(), NORMAL)?;
        let publication = ledger.begin_publication(publication(&task))?;
        let (intent, committed) = (PublicationState::Intent, PublicationState::Committed);
        ledger.advance_publication(publication, intent, committed, FULL)?;
        ledger.land(&task, publication, Change::default())?;
        Ok(())
    };
    let error = run(&mut ledger).unwrap_err();
    assert!(matches!(error, LedgerError::Injected(_)), "{error}");
}

#[test]
fn failpoints_stand_on_both_sides_of_each_write() {
    if !cfg!(debug_assertions) {
        eprintln!("SKIPPED: failpoints are compiled out of release builds");
        return;
    }
    // What is in the ledger past each point: child task, task, publication.
    let steps = [
        ("ledger:queued", [Value::Null, json!("verifying"), Value::Null]),
        ("ledger:publishing", [json!("queued"), json!("verifying"), Value::Null]),
        ("publication:intent", [json!("queued"), json!("publishing"), Value::Null]),
        ("publication:committed", [json!("queued"), json!("publishing"), json!("intent")]),
        ("ledger:landed", [json!("queued"), json!("publishing"), json!("committed")]),
        ("", [json!("queued"), json!("landed"), json!("done")]),
    ];
    for pair in steps.windows(2) {
        let (point, before) = &pair[0];
        for (side, expected) in [("before", before), ("after", &pair[1].1)] {
            for action in ["eio", "kill"] {
                let (_dir, path) = place();
                task_in(&mut Ledger::open(&path).unwrap(), "aaaaaaaa", State::Verifying);
                let plan = format!("{point}:{side}={action}");
                let status = Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "child", "--test-threads=1"])
                    .env("LEDGER_TEST_PATH", &path)
                    .env("COFFERDAM_FAILPOINT", &plan)
                    .output()
                    .unwrap()
                    .status;
                match action {
                    "kill" => assert_eq!(status.signal(), Some(9), "{plan}"),
                    _ => assert!(status.success(), "{plan}"),
                }
                let ledger = Ledger::open(&path).unwrap();
                let state = |text| ledger.task(&id(text)).unwrap().map(|task| task.state);
                let publication = ledger.publication_of(&id("aaaaaaaa")).unwrap();
                let found = json!([
                    state("bbbbbbbb"),
                    state("aaaaaaaa"),
                    publication.map(|publication| publication.state)
                ]);
                assert_eq!(found, json!(expected), "{plan}");
            }
        }
    }
}

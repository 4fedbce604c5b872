//! Tasks: creation, races, facts, look-up, the end.

use std::sync::Barrier;

use cofferdam_ledger::{Change, Filter, Ledger, LedgerError, NewTask, State, now_ms};
use serde_json::json;

use crate::landing::verdict;
use crate::{FULL, NORMAL, id, new_task, place, publication, step, task_in};

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
    let narrow = Filter {
        series: None,
        after_seq: None,
        repo: Some("repo-1"),
        live_only: true,
        unsettled_only: true,
        stepped_since_ms: Some(0),
        limit: Some(9),
    };
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
    assert_eq!(ledger.verdict("k1").unwrap().unwrap().task, over);
    assert_eq!(ledger.prune(now_ms() + 60_000).unwrap(), std::slice::from_ref(&over));
    assert_eq!(ledger.task(&over).unwrap(), None);
    assert_eq!(ledger.history(&over).unwrap(), []);
    assert_eq!(ledger.verdict("k1").unwrap(), None);
    for id in [kept, open, again] {
        assert!(ledger.task(&id).unwrap().is_some());
    }
}

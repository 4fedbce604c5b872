//! Verdicts, publications, landings.

use cofferdam_ledger::{
    Change, Ledger, LedgerError, Outcome, PublicationState, State, TaskId, VerdictRow,
};
use serde_json::json;

use crate::{FULL, NORMAL, id, place, publication, task_in};

pub(crate) fn verdict(key: &str, task: &TaskId) -> VerdictRow {
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

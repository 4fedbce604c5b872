//! The table of states.

use std::collections::BTreeSet;

use cofferdam_ledger::{Change, Ledger, LedgerError, PublicationState, State};

use crate::{NORMAL, place, task_in, way_to};

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
            Ready | Conflicted | Rejected | Cancelled | Broken => {
                return BTreeSet::from([Running, Verifying]);
            }
            Failed | TimedOut => return BTreeSet::from([Running]),
            Landed | Empty | Superseded | InDoubt => return BTreeSet::new(),
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
fn the_table_of_publication_steps() {
    use PublicationState::*;
    for &from in PublicationState::ALL {
        for &to in PublicationState::ALL {
            let legal = [(Intent, Committed), (Intent, Abandoned), (Committed, Done)];
            assert_eq!(from.may_become(to), legal.contains(&(from, to)), "{from} to {to}");
        }
    }
}

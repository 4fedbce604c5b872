//! Picking up what a dead supervisor left.
//!
//! Every command begins with this; it is one query when there is nothing to do.
//! For each task in a live state:
//!
//! 1. Its lock is tried. Held: somebody is at work, leave it alone.
//! 2. A free lock says that the supervisor is gone, and no more: its processes
//!    can live on for 100 ms. They are ended as their level knows how to, and
//!    waited for. Only then is anything of the task's touched.
//! 3. Past the commit point the only way is forward: the journal is followed and
//!    the task has landed. Before it, the target is as it was, and what can still
//!    be landed waits for a person. Anything else has failed.
//!
//! Nothing is deleted here but locks and copies that the dead supervisor held in
//! the person's worktree; contexts are left for [`crate::settle`].

use cofferdam_ledger::{Change as LedgerChange, Durability, Filter, PublicationState, State, Task};

use crate::control::Control;
use crate::facts::Facts;
use crate::job::reopen;
use crate::report::Silent;
use crate::source::{Source, of_source};
use crate::{Dam, Error, boundary, enter, land};

/// Brings every task that nobody supervises to an end; what could not be done
/// now is returned in words, and tried again next time.
///
/// # Errors
/// When the ledger can't be read.
pub fn reconcile(dam: &mut Dam) -> Result<Vec<String>, Error> {
    let live = dam.ledger.tasks(Filter { live_only: true, ..Filter::default() })?;
    let mut left = Vec::new();
    for task in live {
        let (id, name) = (task.id.clone(), task.name.clone());
        match of_source!(&task, one(dam, &task)) {
            Ok(()) | Err(Error::Live(_)) => {}
            Err(error) => left.push(format!("task `{name}` ({id}): {}", land::chain(&error))),
        }
    }
    Ok(left)
}

fn one<S: Source>(dam: &mut Dam, task: &Task) -> Result<(), Error> {
    let dir = dam.task_dir(&task.id);
    if dir.path().is_dir() && dir.is_live()? {
        return Ok(());
    }
    let mut job = match reopen::<S>(dam, task, Control::default(), &Silent) {
        Ok(job) => job,
        // Without its repository nothing can have been published by halves that
        // could still be finished; the record says what was to happen.
        Err(Error::Git(error)) if task.state != State::Publishing => {
            return without_repository(dam, task, &error.to_string());
        }
        Err(error) => return Err(error),
    };
    // Read again below the lock: somebody may have been faster.
    if job.state.is_end() {
        return Ok(());
    }
    boundary::of_level(job.request.level).end_processes(&job.dir, job.id.as_str())?;
    crate::limits::forget_groups(&job.dir);
    if job.facts.visited
        && matches!(job.state, State::Running | State::Harvesting)
        && enter::pick_up(&mut job).unwrap_or(false)
    {
        return job.write_receipt().map(drop);
    }
    match job.state {
        State::Publishing => {
            let publication = job.dam.ledger.publication_of(&job.id)?.filter(|found| {
                matches!(found.state, PublicationState::Intent | PublicationState::Committed)
            });
            S::recover(&mut job, publication)
        }
        State::Verifying => job.end(
            State::Ready,
            "its supervisor died while it was being verified; `dam land` goes on",
        ),
        State::Harvesting if job.facts.has_result() => {
            job.advance(State::Verifying, None)?;
            job.end(State::Ready, "its supervisor died before it was verified; `dam land` goes on")
        }
        state => {
            job.facts.died = true;
            job.end(State::Failed, &format!("its supervisor died while it was {state}"))
        }
    }?;
    job.write_receipt().map(drop)
}

fn without_repository(dam: &mut Dam, task: &Task, why: &str) -> Result<(), Error> {
    let reason = format!("its supervisor died, and its repository can't be used: {why}");
    // Who waits for its key goes on.
    let facts = Some(Facts { died: true, ..Facts::of(task)? }.to_value());
    let change = LedgerChange { facts, reason: Some(&reason), ..LedgerChange::default() };
    dam.ledger.transition(&task.id, task.state, State::Failed, change, Durability::Normal)?;
    Ok(())
}

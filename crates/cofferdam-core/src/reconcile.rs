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

use cofferdam_git::CommitId;
use cofferdam_ledger::{
    Change as LedgerChange, Durability, Filter, Publication, PublicationState, State, Task,
};

use crate::control::Control;
use crate::job::{Job, reopen};
use crate::report::Silent;
use crate::target::{Change, Journal, Recovery};
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
        match one(dam, task) {
            Ok(()) | Err(Error::Live(_)) => {}
            Err(error) => left.push(format!("task `{name}` ({id}): {}", land::chain(&error))),
        }
    }
    Ok(left)
}

fn one(dam: &mut Dam, task: Task) -> Result<(), Error> {
    let dir = dam.task_dir(&task.id);
    if dir.path().is_dir() && dir.is_live()? {
        return Ok(());
    }
    let found = reopen(dam, task.clone(), Control::default(), &Silent);
    let mut job = match found {
        Ok(job) => job,
        // Without its repository nothing can have been published by halves that
        // could still be finished; the record says what was to happen.
        Err(Error::Git(error)) if task.state != State::Publishing => {
            return without_repository(dam, &task, &error.to_string());
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
        State::Publishing => publishing(&mut job),
        State::Verifying => job.end(
            State::Ready,
            "its supervisor died while it was being verified; `dam land` goes on",
        ),
        State::Harvesting if job.facts.change.is_some() => {
            job.advance(State::Verifying, None)?;
            job.end(State::Ready, "its supervisor died before it was verified; `dam land` goes on")
        }
        state => job.end(State::Failed, &format!("its supervisor died while it was {state}")),
    }?;
    job.write_receipt().map(drop)
}

fn without_repository(dam: &mut Dam, task: &Task, why: &str) -> Result<(), Error> {
    let reason = format!("its supervisor died, and its repository can't be used: {why}");
    let change = LedgerChange { reason: Some(&reason), ..LedgerChange::default() };
    dam.ledger.transition(&task.id, task.state, State::Failed, change, Durability::Normal)?;
    Ok(())
}

fn publishing(job: &mut Job<'_>) -> Result<(), Error> {
    let publication = job.dam.ledger.publication_of(&job.id)?.filter(|found| {
        matches!(found.state, PublicationState::Intent | PublicationState::Committed)
    });
    const WHY: &str = "its supervisor died before anything was published";
    match publication {
        Some(publication) => finish(job, &publication, WHY),
        None => {
            let (repo, store) = (job.repo.clone(), job.store.clone());
            job.target().open(&repo, &store).unstage(job.id.as_str())?;
            job.end(State::Ready, WHY)
        }
    }
}

/// Looks on which side of its commit point a publication stopped, and takes the
/// job on from there: landed, or ready, because of `why`.
pub(crate) fn finish(job: &mut Job<'_>, publication: &Publication, why: &str) -> Result<(), Error> {
    let commit = |text: &str| {
        cofferdam_git::Oid::parse(text)
            .map(CommitId)
            .ok_or_else(|| Error::Internal(format!("publication {} is broken", publication.id)))
    };
    let new = commit(&publication.new)?;
    let old = publication.old.as_deref().map(commit).transpose()?;
    let journal: Journal =
        serde_json::from_value(publication.journal.clone()).map_err(|error| {
            Error::Internal(format!(
                "the journal of publication {} is broken: {error}",
                publication.id
            ))
        })?;
    let target = job.target().clone();
    let (repo, store) = (job.repo.clone(), job.store.clone());
    let task = job.id.to_string();
    let change = Change { old: old.as_ref(), new: &new, task: &task };
    let _held = job.with_git()?;
    let ledger = &mut job.dam.ledger;
    let recovery = target
        .open(&repo, &store)
        .recover(&journal, change, &mut |journal| {
            let value = serde_json::to_value(journal).expect("a journal serialises");
            ledger.note_publication(publication.id, value, Durability::Full)?;
            Ok(())
        })
        .map_err(|error| match error {
            crate::target::PublishError::Error(error) => error,
            other => Error::Internal(other.to_string()),
        })?;
    match recovery {
        Recovery::Committed(warning) => {
            job.facts.landed = Some(new);
            let facts = job.facts.to_value();
            let change = LedgerChange {
                facts: Some(facts),
                reason: warning.as_deref(),
                detail: Some("recovered"),
            };
            job.dam.ledger.land(&job.id, publication.id, change)?;
            job.state = State::Landed;
            Ok(())
        }
        Recovery::NotCommitted if publication.state == PublicationState::Intent => {
            let (from, to) = (PublicationState::Intent, PublicationState::Abandoned);
            job.dam.ledger.advance_publication(publication.id, from, to, Durability::Normal)?;
            job.end(State::Ready, why)
        }
        // It was committed and is no longer there: somebody took it back.
        Recovery::NotCommitted => {
            let change = LedgerChange {
                facts: Some(job.facts.to_value()),
                reason: Some(
                    "it landed and was taken back by somebody else before its supervisor's end was noticed",
                ),
                detail: Some("recovered"),
            };
            job.dam.ledger.land(&job.id, publication.id, change)?;
            job.state = State::Landed;
            Ok(())
        }
    }
}

//! A landing in a directory that is in use: the paths that were changed, each whole.
//!
//! The redo record in `journal/` is the commit point; nothing in a context can reach it.
//! Before it, nothing has changed. After it, the only way is forward, and a path that
//! somebody else has changed in between is left alone and told.

use std::fs::File;
use std::path::PathBuf;
use std::time::Instant;

use cofferdam_ledger::{
    Change as LedgerChange, Durability, NewPublication, Publication, PublicationId,
    PublicationState, State,
};
use cofferdam_tree::target::patch::Op;
use cofferdam_tree::target::{PatchTarget, Redo, TargetError};

use super::publish::not_published;
use super::snapshot::TREE;
use super::{Candidate, Files, changes, snapshot};
use crate::error::IoContext;
use crate::job::Job;
use crate::land::chain;
use crate::report::{Event, Meter};
use crate::{Error, state_dir};

/// How many paths that were left alone are told by name.
const TOLD: usize = 5;

fn target(job: &Job<'_, Files>) -> Result<PatchTarget, Error> {
    let output = job.facts.outputs.first();
    let output = output.ok_or_else(|| Error::Internal("a patch has no directory".into()))?;
    Ok(PatchTarget::at(&output.place)?)
}

fn journal(job: &Job<'_, Files>) -> Result<PathBuf, Error> {
    let dir = job.dam.dir().join("journal");
    match std::fs::create_dir(&dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(state_dir::not_made(&dir, error))
        }
        _ => Ok(dir),
    }
}

/// What is not as it was when the task began, in words.
pub(super) fn drift(job: &Job<'_, Files>) -> Result<Option<String>, Error> {
    let target = match target(job) {
        Err(Error::Target(error)) => return Ok(Some(chain(&error))),
        target => target?,
    };
    let mut meter = Meter::begin(job.reporter, "looking at what is there");
    for (number, op) in changes::ops(job)?.iter().enumerate() {
        meter.at(number as u64, 0);
        let place = target.path().join(&op.path);
        match target.look(&op.path, &mut |_| true) {
            Ok(now) if now == op.old => {}
            Ok(_) => {
                let place = place.display();
                return Ok(Some(format!("`{place}` has changed since the task began")));
            }
            Err(error @ (TargetError::Unsuitable { .. } | TargetError::Drifted { .. })) => {
                return Ok(Some(error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Lands the changes.
pub(super) fn publish(job: &mut Job<'_, Files>) -> Result<(), Error> {
    let begun = Instant::now();
    job.advance(State::Publishing, None)?;
    // The promise itself: whatever became of the results on the disk since.
    let judged = job.facts.outputs.first().and_then(|output| output.result.clone());
    if judged != Some(snapshot::content(job)?) {
        return Err(Error::Internal("what would land is not what was verified".into()));
    }
    let ops = changes::ops(job)?;
    let redo = match stage(job, &ops) {
        Ok(redo) => redo,
        Err(error) => {
            target(job)?.unstage(&ops, job.id.as_str())?;
            return not_published(job, &error);
        }
    };
    let publication = job.dam.ledger.begin_publication(NewPublication {
        task: job.id.clone(),
        target: job.target_text(),
        old: None,
        new: Candidate::of(&job.facts).id,
        journal: serde_json::json!({ "version": 1, "patch": true }),
    });
    let publication = match publication {
        Ok(publication) => publication,
        Err(error) => {
            redo.abandon()?;
            return not_published(job, &error.into());
        }
    };
    let dir = journal(job)?;
    let committed = redo.compare(&mut |_| true).and_then(|()| redo.write(&dir, job.id.as_str()));
    if let Err(error) = committed {
        // A record that could not be made durable is none, if it can be removed.
        forget(job)?;
        redo.abandon()?;
        let (from, to) = (PublicationState::Intent, PublicationState::Abandoned);
        job.dam.ledger.advance_publication(publication, from, to, Durability::Normal)?;
        return not_published(job, &error.into());
    }
    job.took("landed", begun);
    let left_alone = apply(job, &redo)?;
    land(job, publication, left_alone, None)?;
    let (count, dir) = (redo.changes.len(), redo.dir.display());
    let paths = if count == 1 { "path" } else { "paths" };
    job.told("landed", begun, format!("{count} {paths} of {dir}"));
    Ok(())
}

fn stage(job: &Job<'_, Files>, ops: &[Op]) -> Result<Redo, Error> {
    let mut meter = Meter::begin(job.reporter, "putting the changes beside what is there");
    let tree = job.dir.results().join(TREE);
    let mut done = 0;
    let mut open = |op: &Op| {
        done += 1;
        meter.at(done, ops.len() as u64);
        File::open(tree.join(&op.path))
    };
    let umask = super::publish::umask().at("read", "/proc/self/status")?;
    let target = target(job)?;
    target.unstage(ops, job.id.as_str())?;
    Ok(target.stage(ops, job.id.as_str(), umask, &mut open, &mut |_| true)?)
}

/// Goes on past the commit point. Gives what was left alone, in words.
fn apply(job: &Job<'_, Files>, redo: &Redo) -> Result<Option<String>, Error> {
    Meter::begin(job.reporter, "landing");
    let left_alone = redo.apply()?;
    if left_alone.is_empty() {
        return Ok(None);
    }
    let mut text: Vec<String> = left_alone.iter().take(TOLD).map(ToString::to_string).collect();
    if left_alone.len() > TOLD {
        text.push(format!("and {} more", left_alone.len() - TOLD));
    }
    Ok(Some(format!("left alone: {}", text.join("; "))))
}

fn land(
    job: &mut Job<'_, Files>,
    publication: PublicationId,
    left_alone: Option<String>,
    detail: Option<&str>,
) -> Result<(), Error> {
    let facts = Some(job.facts.to_value());
    let change = LedgerChange { facts, reason: left_alone.as_deref(), detail };
    job.dam.ledger.land(&job.id, publication, change)?;
    job.state = State::Landed;
    if let Some(text) = left_alone {
        job.reporter.report(Event::Warning { text });
    }
    forget(job)
}

/// Removes the redo record.
fn forget(job: &Job<'_, Files>) -> Result<(), Error> {
    let path = journal(job)?.join(job.id.as_str());
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.at("remove", path),
    }
}

/// Takes on what a dead supervisor left.
pub(super) fn recover(
    job: &mut Job<'_, Files>,
    publication: Option<Publication>,
    why: &str,
) -> Result<(), Error> {
    let dir = journal(job)?;
    if dir.join(job.id.as_str()).exists() {
        let redo = Redo::read(&dir, job.id.as_str())?;
        let left_alone = apply(job, &redo)?;
        let publication = publication
            .ok_or_else(|| Error::Internal("a redo record without a publication".into()))?;
        return land(job, publication.id, left_alone, Some("recovered"));
    }
    let ops = changes::ops(job)?;
    target(job)?.unstage(&ops, job.id.as_str())?;
    if let Some(publication) = publication {
        let (from, to) = (PublicationState::Intent, PublicationState::Abandoned);
        job.dam.ledger.advance_publication(publication.id, from, to, Durability::Normal)?;
    }
    job.end(State::Ready, why)
}

//! The landing of files.
//!
//! 1. The landing locks of all their places are taken, in one order for everybody.
//! 2. What is there has to be what was there when the task began.
//! 3. The checks judge the results: these files, and nothing else of the context's.
//! 4. Each is staged beside what it replaces, and compared with what was judged.
//! 5. The journal is written; then the places change.
//!
//! One file commits with its own rename. Of several, the commit point is the ledger's
//! record that all are staged and nothing has drifted: from then on the only way is
//! forward, and a place that somebody else changed in between is left alone and told.

use std::path::PathBuf;
use std::time::Instant;

use cofferdam_ledger::{
    Change as LedgerChange, Durability, NewPublication, Publication, PublicationState, State,
};
use cofferdam_tree::target::file::Seen;
use cofferdam_tree::target::{Recovered, TargetError};
use cofferdam_tree::{Lock, Totals};
use serde::{Deserialize, Serialize};

use super::place::{Made, Place, Staged};
use super::snapshot::result_of;
use super::{Candidate, Content, Files, Mode, admit, command, patch, versions};
use crate::error::IoContext;
use crate::gate;
use crate::job::Job;
use crate::land::{
    NO_CHECK_GIVEN, admission, chain, checks, concluded, goes_on, inputs_changed, lock_name,
    not_admitted,
};
use crate::report::{Event, Meter};
use crate::request::Check;
use crate::{Error, limits, series};

/// What recovery needs, as the ledger keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Journal {
    /// Version of this form: 1.
    version: u32,
    files: Vec<Staged>,
}

/// How often records are added to a file that somebody else writes meanwhile.
const TRIES: u32 = 20;

/// See the module; [`crate::source::Source::land`].
pub(super) fn land(job: &mut Job<'_, Files>, publish: bool) -> Result<(), Error> {
    let Some(_locks) = lock_places(job)? else { return not_admitted(job) };
    job.advance(State::Verifying, None)?;
    if let Some(newer) = series::newer(job.dam, &job.record()?)? {
        let why = format!("`{}` of the same series began later, and is done already", newer.name);
        return job.end(State::Superseded, &why);
    }
    let is_patch = job.facts.outputs.first().is_some_and(|output| output.mode == Mode::Patch);
    let drifted = if is_patch { patch::drift(job)? } else { drift(job)? };
    if let Some(why) = drifted {
        return job.end(State::Conflicted, &why);
    }
    let is_there = job.facts.outputs.iter().all(|output| output.differing().is_none());
    if is_there && job.request.publish.is_none() {
        let places = job.target_text();
        return job.end(State::Empty, &format!("what was made is there already: {places}"));
    }
    let asked = job.dam.own.checks.clone();
    let checks = checks(job, asked);
    job.facts.no_check = job.request.no_check;
    if inputs_changed(job)? || !verify(job, &checks)? || !goes_on(job, &checks, publish)? {
        return Ok(());
    }
    match job.request.publish.clone() {
        Some(command) => command::publish(job, &command),
        None if is_patch => patch::publish(job),
        None => self::publish(job),
    }
}

/// Takes the landing locks of all places; `None` when a person lost patience.
fn lock_places(job: &Job<'_, Files>) -> Result<Option<Vec<Lock>>, Error> {
    if let Some(publish) = &job.request.publish {
        let key = lock_name("command", publish.argv.join("\0").as_bytes());
        let lock = admission(job, &key, &publish.to_string())?;
        return Ok(lock.map(|lock| vec![lock]));
    }
    let mut places: Vec<&PathBuf> = job.facts.outputs.iter().map(|output| &output.place).collect();
    places.sort();
    let mut locks = Vec::new();
    for place in places {
        let key = lock_name("file", place.as_os_str().as_encoded_bytes());
        match admission(job, &key, &place.display().to_string())? {
            Some(lock) => locks.push(lock),
            None => return Ok(None),
        }
    }
    Ok(Some(locks))
}

/// What is not as it was when the task began, in words.
fn drift(job: &Job<'_, Files>) -> Result<Option<String>, Error> {
    let mut meter = Meter::begin(job.reporter, "looking at what is there");
    for (output, known) in job.request.outputs.iter().zip(&job.facts.outputs) {
        let now = match admit::look(output, &mut meter, &job.control) {
            Ok(now) => now,
            Err(Error::Target(
                error @ (TargetError::Unsuitable { .. } | TargetError::Drifted { .. }),
            )) => {
                return Ok(Some(error.to_string()));
            }
            Err(error) if error.is_missing() => {
                return Ok(Some(format!(
                    "`{}` has gone since the task began",
                    output.to.display()
                )));
            }
            Err(error) => return Err(error),
        };
        let place = known.place.display();
        if now.place != known.place {
            let to = output.to.display();
            return Ok(Some(format!(
                "`{to}` leads to `{}` now, and led to `{place}` when the task began",
                now.place.display()
            )));
        }
        let how = match (&known.before, &now.before) {
            _ if known.mode == Mode::Append => continue,
            (before, now) if before == now => continue,
            (Some(_), None) => "has gone",
            (None, Some(_)) => "has appeared",
            _ => "has changed",
        };
        return Ok(Some(format!("`{place}` {how} since the task began")));
    }
    Ok(None)
}

/// Whether the results may be published; the task has ended when not.
fn verify(job: &mut Job<'_, Files>, checks: &[Check]) -> Result<bool, Error> {
    let begun = Instant::now();
    if checks.is_empty() && !job.request.no_check {
        job.end(State::Ready, NO_CHECK_GIVEN)?;
        return Ok(false);
    }
    let candidate = Candidate::of(&job.facts);
    let judgement = gate::judge_all(job, &candidate, checks)?;
    concluded(job, checks, judgement, begun)
}

fn publish(job: &mut Job<'_, Files>) -> Result<(), Error> {
    job.advance(State::Publishing, None)?;
    let adds = job.facts.outputs.iter().all(|output| output.mode == Mode::Append);
    for _ in 0..TRIES {
        match publish_once(job)? {
            // Who has added something meanwhile has done no harm.
            Some(TargetError::Drifted { .. }) if adds => {}
            Some(error) => return not_published(job, &error.into()),
            None => return Ok(()),
        }
    }
    job.end(State::Ready, "what is there changes faster than it could be added to")
}

/// Gives what has drifted; nothing has changed then.
fn publish_once(job: &mut Job<'_, Files>) -> Result<Option<TargetError>, Error> {
    let begun = Instant::now();
    let staged = match stage(job) {
        Ok(staged) => staged,
        Err(Error::Target(error @ TargetError::Drifted { .. })) => {
            unstage(job)?;
            return Ok(Some(error));
        }
        Err(error) => {
            unstage(job)?;
            return not_published(job, &error).map(|()| None);
        }
    };
    if staged.is_empty() {
        // Others have added the same records.
        let places = job.target_text();
        job.end(State::Ready, "")?;
        job.advance(State::Verifying, None)?;
        job.end(State::Empty, &format!("what was made is there already: {places}"))?;
        return Ok(None);
    }
    let journal = Journal { version: 1, files: staged };
    let single = match journal.files.as_slice() {
        [single] => Some(single),
        _ => None,
    };
    let hash = |content: &Content| content.hash().to_owned();
    let begun_publication = job.dam.ledger.begin_publication(NewPublication {
        task: job.id.clone(),
        target: job.target_text(),
        old: single.and_then(|single| single.old.as_ref()).map(hash),
        new: single.map_or_else(|| Candidate::of(&job.facts).id, |single| hash(&single.new)),
        journal: serde_json::to_value(&journal).expect("a journal serialises"),
    });
    let publication = match begun_publication {
        Ok(publication) => publication,
        Err(error) => {
            unstage(job)?;
            return not_published(job, &error.into()).map(|()| None);
        }
    };
    let committed = match single {
        Some(single) => single.commit(),
        None => journal.files.iter().try_for_each(Staged::compare),
    };
    match committed {
        Ok(()) => {}
        Err(error @ TargetError::Drifted { .. }) => {
            let (from, to) = (PublicationState::Intent, PublicationState::Abandoned);
            job.dam.ledger.advance_publication(publication, from, to, Durability::Normal)?;
            unstage(job)?;
            return Ok(Some(error));
        }
        // A step failed, and nothing says on which side of the point that was.
        Err(error) => {
            let why = format!("it could not be published: {}", chain(&error));
            let found = job.dam.ledger.publication_of(&job.id)?;
            let found = found.ok_or_else(|| Error::Internal("the publication is gone".into()))?;
            return finish(job, &found, &why).map(|()| None);
        }
    }
    let mut warning = None;
    if single.is_none() {
        let (from, to) = (PublicationState::Intent, PublicationState::Committed);
        job.dam.ledger.advance_publication(publication, from, to, Durability::Full)?;
        warning = forward(&journal)?;
    }
    job.took("landed", begun);
    let facts = Some(job.facts.to_value());
    let change = LedgerChange { facts, reason: warning.as_deref(), detail: None };
    job.dam.ledger.land(&job.id, publication, change)?;
    job.state = State::Landed;
    let pruned = journal.files.iter().try_for_each(Staged::prune);
    let old = pruned.err().map(|error| format!("old versions stay: {}", chain(&error)));
    for text in warning.into_iter().chain(old) {
        job.reporter.report(Event::Warning { text });
    }
    let what = journal.files.iter().map(|file| {
        let how = if file.old.is_some() { "replaced" } else { "made" };
        format!("{} {how} ({})", file.place.display(), limits::size(file.new.size()))
    });
    job.told("landed", begun, what.collect::<Vec<_>>().join(", "));
    Ok(None)
}

/// Puts each result that is new beside what it replaces.
fn stage(job: &Job<'_, Files>) -> Result<Vec<Staged>, Error> {
    let mut meter = Meter::begin(job.reporter, "putting it beside what is there");
    let umask = umask().at("read", "/proc/self/status")?;
    let mut done = 0;
    let mut go_on = |totals: Totals| {
        done += totals.bytes;
        meter.at(done >> 20, 0);
        true
    };
    let mut staged = Vec::new();
    for (number, output) in job.facts.outputs.iter().enumerate() {
        let Some(content) = output.differing() else { continue };
        let path = result_of(&job.dir, &output.from);
        let like_old = output.from.as_os_str().is_empty();
        let made = Made { path: &path, content, umask, like_old };
        let place = Place::at(&output.place, output.way)?;
        let gone = || TargetError::Drifted { path: output.place.clone(), how: "has gone" };
        let mut keep = |old: &Seen| {
            let kept = versions::keep(job.dam, &output.place, job.id.as_str(), old.file());
            if let Err(error) = kept {
                let text = format!("`dam undo` can't take this back: {}", chain(&error));
                job.reporter.report(Event::Warning { text });
            }
        };
        let temp = temp_name(job, number);
        let place = place.ok_or_else(gone)?;
        staged.extend(place.stage(output, &made, &temp, &mut keep, &mut go_on)?);
    }
    Ok(staged)
}

/// The name of what is staged for an output. Nobody else uses it: it has the task's id.
fn temp_name(job: &Job<'_, Files>, number: usize) -> String {
    format!(".dam-{}-{number}", job.id)
}

/// Removes what was staged, where that is not known from a journal.
fn unstage(job: &Job<'_, Files>) -> Result<(), Error> {
    for (number, output) in job.facts.outputs.iter().enumerate() {
        if let Some(place) = Place::at(&output.place, output.way)? {
            place.unstage(&temp_name(job, number))?;
        }
    }
    Ok(())
}

/// Goes on past the commit point of several. Gives what was left alone, in words.
fn forward(journal: &Journal) -> Result<Option<String>, Error> {
    let mut left_alone = Vec::new();
    for file in &journal.files {
        if file.complete()? != Recovered::Committed {
            let place = file.place.display();
            left_alone.push(format!("`{place}` was changed by somebody else, and left alone"));
        }
    }
    Ok((!left_alone.is_empty()).then(|| left_alone.join("; ")))
}

/// The places are as they were.
pub(super) fn not_published(job: &mut Job<'_, Files>, error: &Error) -> Result<(), Error> {
    let drifted = matches!(
        error,
        Error::Target(
            TargetError::Drifted { .. }
                | TargetError::Unsuitable { .. }
                | TargetError::NotHere { .. }
        )
    );
    match error {
        error if drifted => job.end(State::Conflicted, &error.to_string()),
        error => job.end(State::Ready, &format!("it could not be published: {}", chain(error))),
    }
}

/// See [`crate::source::Source::recover`].
pub(super) fn recover(
    job: &mut Job<'_, Files>,
    publication: Option<Publication>,
) -> Result<(), Error> {
    const WHY: &str = "its supervisor died before anything was published";
    if let Some(command) = job.request.publish.clone() {
        return command::recover(job, &command, publication.as_ref());
    }
    if job.facts.outputs.first().is_some_and(|output| output.mode == Mode::Patch) {
        return patch::recover(job, publication, WHY);
    }
    match publication {
        Some(publication) => finish(job, &publication, WHY),
        None => {
            unstage(job)?;
            job.end(State::Ready, WHY)
        }
    }
}

/// Looks on which side of its commit point a publication stopped, and takes the job on
/// from there: landed, or ready, because of `why`.
fn finish(job: &mut Job<'_, Files>, publication: &Publication, why: &str) -> Result<(), Error> {
    let broken = |error: &dyn std::fmt::Display| {
        Error::Internal(format!("the journal of publication {} is broken: {error}", publication.id))
    };
    let journal: Journal =
        serde_json::from_value(publication.journal.clone()).map_err(|error| broken(&error))?;
    if journal.version != 1 {
        return Err(broken(&format!("its version is {}", journal.version)));
    }
    let landed = match (publication.state, journal.files.as_slice()) {
        (PublicationState::Committed, _) => Some(forward(&journal)?),
        (_, [single]) => match single.recover()? {
            Recovered::Committed => Some(None),
            Recovered::ChangedSince => Some(Some(format!(
                "it landed, and `{}` was changed by somebody else since",
                single.place.display()
            ))),
            Recovered::NotCommitted => None,
        },
        _ => None,
    };
    let Some(warning) = landed else {
        unstage(job)?;
        let (from, to) = (PublicationState::Intent, PublicationState::Abandoned);
        job.dam.ledger.advance_publication(publication.id, from, to, Durability::Normal)?;
        return job.end(State::Ready, why);
    };
    let change = LedgerChange {
        facts: Some(job.facts.to_value()),
        reason: warning.as_deref(),
        detail: Some("recovered"),
    };
    job.dam.ledger.land(&job.id, publication.id, change)?;
    job.state = State::Landed;
    Ok(())
}

/// The caller's file mode creation mask.
pub(super) fn umask() -> std::io::Result<u32> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok())
        .ok_or_else(|| std::io::Error::other("it names no umask"))
}

//! A landing: admission, candidate, verdict, publication.
//!
//! 1. The target's landing lock is taken: landings into one target are serial,
//!    and whoever waits is served in the order of coming.
//! 2. The change set is put on the target's tip *of now*: the candidate.
//! 3. The checks judge the candidate. Not the change set: two changes that are
//!    each right can be wrong together.
//! 4. What lands is compared with what was judged, tree by tree.
//! 5. The target changes, in one step, with the journal before it.
//!
//! The lock is held from 2 to 5, so among ours nobody can come in between.
//! Somebody else can (a person who commits): the step in 5 names the old value,
//! fails, and everything starts at 2 again.

use std::time::Instant;

use cofferdam_git::difference::{self, Changes};
use cofferdam_git::merge::{self, Conflict, Merged};
use cofferdam_git::{CommitId, GitError, Objects, Told, TreeId, lfs};
use cofferdam_ledger::{
    Change as LedgerChange, Durability, NewPublication, Publication, PublicationState, State,
};
use cofferdam_tree::{BytePath, Lock, hex};

use crate::admit::refuse_replaced;
use crate::config::Config;
use crate::error::IoContext;
use crate::facts::Facts;
use crate::gate::{self, Candidate, Judgement};
use crate::job::Job;
use crate::judge_files::JudgeFiles;
use crate::once::patiently;
use crate::report::{Event, Meter};
use crate::request::Check;
use crate::target::{Change, Journal, PublishError, Recovery, TargetRef};
use crate::{Error, input, judge_files, lessons};

/// Why a change waits that nothing was to be verified with.
pub const NO_CHECK_GIVEN: &str =
    "no check was given; `--check CMD` or `[[check]]` in cofferdam.toml names one";

/// How often a target that somebody else moved is tried again.
const TRIES: u32 = 5;

/// How an attempt to publish ended.
enum Published {
    Landed,
    Drifted(String),
    Ended,
}

/// Takes a harvested task to its end. The task is in state `harvesting`, or in
/// one from which a person can land it again.
///
/// # Errors
/// When something of ours fails; the task's record then says so.
pub fn land(job: &mut Job<'_>, publish: bool) -> Result<(), Error> {
    // The branch can have become a symbolic one while the task waited.
    if let TargetRef::Branch { name } = job.target() {
        let name = job.source.repo.ref_behind(name)?;
        job.facts.target = Some(TargetRef::Branch { name });
    }
    let (key, what) = place_of(job);
    let Some(_lock) = admission(job, &key, &what)? else { return not_admitted(job) };
    job.advance(State::Verifying, None)?;
    for _ in 0..TRIES {
        let Some((candidate, checks, files)) = candidate(job)? else { return Ok(()) };
        if job.interrupted() {
            return job.end(State::Cancelled, "interrupted");
        }
        if inputs_changed(job)? || !verify(job, &candidate, &files, &checks)? {
            return Ok(());
        }
        if !goes_on(job, &checks, publish)? {
            return Ok(());
        }
        match self::publish(job, &candidate)? {
            Published::Landed | Published::Ended => return Ok(()),
            Published::Drifted(why) => {
                job.end(State::Ready, &why)?;
                job.advance(State::Verifying, None)?;
            }
        }
    }
    job.end(State::Conflicted, "the target moved faster than it could be verified")
}

/// Whether what was verified is to be published now; the task has ended when not.
pub(crate) fn goes_on<S>(
    job: &mut Job<'_, S>,
    checks: &[Check],
    publish: bool,
) -> Result<bool, Error> {
    // A check read them, too.
    if !checks.is_empty() && inputs_changed(job)? {
        return Ok(false);
    }
    if !publish {
        let checked = if checks.is_empty() { "not checked" } else { "verified" };
        job.end(State::Ready, &format!("{checked}; `dam land {}` lands it", job.name))?;
        return Ok(false);
    }
    if job.interrupted() {
        job.end(State::Cancelled, "interrupted")?;
        return Ok(false);
    }
    Ok(true)
}

/// Whether an input is no longer what the task was given; the task has ended then.
pub(crate) fn inputs_changed<S>(job: &mut Job<'_, S>) -> Result<bool, Error> {
    for input in job.facts.inputs.clone() {
        if input::has_changed(&input)? {
            let why = format!("its input `{}` has changed since", input.source.display());
            job.end(State::Ready, &why)?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// The name of the target's landing lock, and the target in words.
fn place_of(job: &Job<'_>) -> (String, String) {
    let target = job.target();
    let name = match target {
        TargetRef::Branch { name } | TargetRef::NewBranch { name } => name.clone(),
        TargetRef::Remote(_) => format!("remote/{target}"),
    };
    (lock_name(&job.source.repo.key(), name.as_bytes()), target.to_string())
}

/// Waits for a target's landing lock; `None` when a person lost patience.
pub(crate) fn admission<S>(
    job: &Job<'_, S>,
    key: &str,
    target: &str,
) -> Result<Option<Lock>, Error> {
    let path = job.dam.landing_lock(key);
    if let Some(lock) = Lock::try_exclusive(&path)? {
        let _ = lock.describe(job.name.as_ref());
        return Ok(Some(lock));
    }
    let holder = Lock::holder(&path).unwrap_or_default();
    job.reporter.report(Event::Waiting { what: format!("the landing into {target}"), holder });
    let lock = patiently(move || Lock::exclusive(&path, |_| {}), || job.interrupted())?;
    if let Some(lock) = &lock {
        let _ = lock.describe(job.name.as_ref());
    }
    Ok(lock)
}

/// Ends a job that a person did not let wait any longer.
pub(crate) fn not_admitted<S>(job: &mut Job<'_, S>) -> Result<(), Error> {
    // Of a task that waits anyway nothing has changed.
    if job.state.is_live() {
        job.end(State::Cancelled, "interrupted while waiting to land")
    } else {
        Err(Error::Interrupted)
    }
}

/// A file name for a target in a repository, or elsewhere.
pub(crate) fn lock_name(repo: &str, name: &[u8]) -> String {
    use sha2::Digest;
    let hash = sha2::Sha256::digest(name);
    format!("{repo}-{}", hex(&hash[..8]))
}

/// The candidate, its checks, and what it does to their files; `None` when the task
/// has ended instead.
fn candidate(job: &mut Job<'_>) -> Result<Option<(Candidate, Vec<Check>, JudgeFiles)>, Error> {
    let begun = Instant::now();
    Meter::begin(job.reporter, "putting it on the tip");
    let base = Facts::need("base", job.facts.base.as_ref())?.clone();
    let base_tree = Facts::need("base's tree", job.facts.base_tree.as_ref())?.clone();
    let change = Facts::need("change set", job.facts.change.as_ref())?.clone();
    let change_tree = Facts::need("change set's tree", job.facts.change_tree.as_ref())?.clone();
    let target = job.target().clone();
    if matches!(target, TargetRef::Remote(_)) && !job.facts.lfs.is_empty() {
        job.end(State::Ready, "what Git LFS keeps can't be sent to a remote yet")?;
        return Ok(None);
    }
    // Started now, it is there when the target has answered.
    let mut objects = Objects::start(&job.source.store)?;
    let now = target.open(&job.source.repo, &job.source.store).fingerprint();
    let now = match now {
        // Which is nothing of the change's, and may be otherwise tomorrow.
        Err(Error::Git(error @ GitError::Failed { .. }))
            if matches!(target, TargetRef::Remote(_)) && !error.is_of_this_machine() =>
        {
            let why = format!("`{target}` can't be looked at: {}", error.in_words());
            job.end(State::Ready, &why)?;
            return Ok(None);
        }
        now => now?,
    };
    let tip = match (&target, now) {
        (TargetRef::NewBranch { .. }, Some(_)) => {
            job.end(State::Conflicted, &format!("branch `{target}` exists already"))?;
            return Ok(None);
        }
        (TargetRef::NewBranch { .. }, None) => {
            Facts::need("base", job.facts.pinned.as_ref())?.clone()
        }
        (_, Some(tip)) => tip,
        (_, None) => {
            job.end(State::Conflicted, &format!("`{target}` does not exist"))?;
            return Ok(None);
        }
    };
    let tip_tree = objects.tree_of(&tip)?;
    refuse_replaced(&job.source.repo, &job.source.config, &[&tip.0, &tip_tree.0])?;
    let attributes = job.stack()?.attributes(&job.dam.layers);
    let scratch = job.dir.path().join("merge");
    std::fs::create_dir_all(&scratch).at("make", &scratch)?;
    let merged = merge::onto(
        &job.source.store,
        (&base, &base_tree),
        &change_tree,
        (&tip, &tip_tree),
        &attributes,
        &scratch,
    );
    std::fs::remove_dir_all(&scratch).at("remove", &scratch)?;
    let tree = match merged? {
        Merged::Clean(tree) => match lessons::added(job, &mut objects, tree)? {
            Ok(tree) => tree,
            Err(why) => {
                job.end(State::Conflicted, &why)?;
                return Ok(None);
            }
        },
        Merged::Conflict(paths) => {
            let why = conflict(job, &base_tree, paths)?;
            job.end(State::Conflicted, &why)?;
            return Ok(None);
        }
    };
    if tree == tip_tree {
        job.end(State::Empty, &format!("`{target}` holds the whole change already"))?;
        return Ok(None);
    }
    let config = Config::at(&mut objects, &tip)?.joined(&job.dam.own);
    let commit = if tip == base && tree == change_tree {
        change
    } else {
        let text = job.commit_text()?;
        merge::commit(&job.source.store, &tree, &tip, &text)?
    };
    let checks = checks(job, config.checks);
    let candidate = Candidate { tip, commit, tree };
    // Asked only where the answer decides something.
    let changes = if checks.is_empty() && config.protect.is_empty() {
        Changes::none()
    } else {
        Changes::new(|| difference::diff(&job.source.store, &tip_tree, &candidate.tree, false))?
    };
    let protected = match config.protect.as_slice() {
        [] => None,
        patterns => Some(judge_files::protected(&changes, patterns)?),
    };
    if let Some(protected) = protected.filter(|protected| !protected.is_empty()) {
        drop(changes);
        job.end(State::Rejected, &format!("`land.protect` protects {protected}"))?;
        return Ok(None);
    }
    let files = judge_files::look(job, &mut objects, &candidate, &tip_tree, &changes, &checks)?;
    drop(changes);
    job.facts.check_changes.clone_from(&files.changed);
    job.facts.check_changes_allowed = job.request.allow_check_changes;
    job.facts.no_check = job.request.no_check;
    job.took("candidate", begun);
    Ok(Some((candidate, checks, files)))
}

/// The checks of a job, where a configuration asks for some.
pub(crate) fn checks<S>(job: &Job<'_, S>, mut asked: Vec<Check>) -> Vec<Check> {
    asked.extend(job.request.checks.iter().cloned());
    if job.request.no_check {
        asked.clear();
    }
    asked
}

/// How many paths are told by name.
const TOLD: usize = 5;

/// Why a change does not merge, in words: with `--carry-dirty`, what is in the way is
/// perhaps not of the target but never was there.
fn conflict(job: &Job<'_>, base_tree: &TreeId, conflict: Conflict) -> Result<String, Error> {
    let target = job.target();
    let told = |path: &[u8]| format!("`{}`", BytePath::from(path));
    let (mut carried, mut of_target) = (Told::new(TOLD), conflict.paths);
    if job.request.carry_dirty {
        let pinned = Facts::need("base", job.facts.pinned.as_ref())?;
        let before = job.source.store.tree_of(pinned)?;
        for difference in difference::diff(&job.source.store, &before, base_tree, false)? {
            let difference = difference?;
            let path = difference.path.as_slice();
            if let Ok(at) = of_target.binary_search_by(|known| known.as_slice().cmp(path)) {
                of_target.remove(at);
                let what = if difference.old_mode == 0 { "untracked" } else { "not committed" };
                carried.push(|| format!("{} ({what})", told(path)));
            }
        }
    }
    let mut why = Vec::new();
    if !carried.is_empty() {
        why.push(format!(
            "it changes work that was carried in and is not on `{target}`: {carried}; when that \
             is committed, it can land"
        ));
    }
    if !of_target.is_empty() || conflict.more > 0 {
        let mut paths = Told::new(TOLD);
        of_target.iter().for_each(|path| paths.push(|| told(path)));
        paths.more(conflict.more);
        why.push(format!("it conflicts with what `{target}` has by now: {paths}"));
    }
    Ok(why.join("; "))
}

/// Whether the candidate may land; the task has ended when not.
fn verify(
    job: &mut Job<'_>,
    candidate: &Candidate,
    files: &JudgeFiles,
    checks: &[Check],
) -> Result<bool, Error> {
    let begun = Instant::now();
    if checks.is_empty() && !job.request.no_check {
        job.end(State::Ready, NO_CHECK_GIVEN)?;
        return Ok(false);
    }
    let judgement = gate::judge(job, candidate, files, checks)?;
    concluded(job, checks, judgement, begun)
}

/// Tells what the checks said. Whether the candidate may land; the task has ended when
/// not.
pub(crate) fn concluded<S>(
    job: &mut Job<'_, S>,
    checks: &[Check],
    judgement: Judgement,
    begun: Instant,
) -> Result<bool, Error> {
    match judgement {
        Judgement::Passed => {
            let text = match checks {
                [] => "no check, as asked".to_owned(),
                [one] => format!("`{}` passed", one.name),
                several => format!("{} checks passed", several.len()),
            };
            job.step("verified", begun, text);
            Ok(true)
        }
        Judgement::Rejected(why) => {
            job.end(State::Rejected, &why)?;
            Ok(false)
        }
        Judgement::NoVerdict(why) => {
            job.end(State::Ready, &why)?;
            Ok(false)
        }
        Judgement::Interrupted => {
            job.end(State::Cancelled, "interrupted during its checks")?;
            Ok(false)
        }
    }
}

fn publish(job: &mut Job<'_>, candidate: &Candidate) -> Result<Published, Error> {
    let begun = Instant::now();
    Meter::begin(job.reporter, "landing");
    // The promise itself, not a formality: a merger that took another base once
    // landed trees that nobody had verified.
    let landing = job.source.store.tree_of(&candidate.commit)?;
    let judged_other = job.facts.checks.iter().any(|check| check.tree != landing.as_str());
    if landing != candidate.tree || judged_other {
        return Err(Error::Internal("what would land is not what was verified".into()));
    }
    job.facts.landed_on = Some(candidate.tip.clone());
    job.advance(State::Publishing, None)?;
    let target = job.target().clone();
    let (repo, store) = (job.source.repo.clone(), job.source.store.clone());
    let open = target.open(&repo, &store);
    let task = job.id.to_string();
    let held = job.with_git()?;
    let old = match target {
        TargetRef::NewBranch { .. } => None,
        _ => Some(&candidate.tip),
    };
    let change = Change { old, new: &candidate.commit, task: &task };
    lfs::publish(&store.lfs, &repo, &job.facts.lfs)?;
    let staged = match open.stage(change) {
        Ok(staged) => staged,
        Err(error) => return not_published(job, error),
    };
    let begun_publication = job.dam.ledger.begin_publication(NewPublication {
        task: job.id.clone(),
        target: target.to_string(),
        old: old.map(ToString::to_string),
        new: candidate.commit.to_string(),
        journal: serde_json::to_value(staged.journal()).expect("a journal serialises"),
    });
    let publication = match begun_publication {
        Ok(publication) => publication,
        Err(error) => return not_published(job, PublishError::Error(error.into())),
    };
    let ledger = &mut job.dam.ledger;
    let mut past_the_point = false;
    let committed = open.commit(staged, change, &mut || {
        past_the_point = true;
        let (from, to) = (PublicationState::Intent, PublicationState::Committed);
        ledger.advance_publication(publication, from, to, Durability::Normal)?;
        Ok(())
    });
    let warning = match committed {
        Ok(warning) => warning,
        Err(error @ (PublishError::Drifted(_) | PublishError::InTheWay(_))) if !past_the_point => {
            let (from, to) = (PublicationState::Intent, PublicationState::Abandoned);
            job.dam.ledger.advance_publication(publication, from, to, Durability::Normal)?;
            return not_published(job, error);
        }
        // A step failed, and nothing says on which side of the point that was: a ref
        // can have moved although its directory could not be synced.
        Err(error) => {
            drop(held);
            let why = format!("it could not be published: {}", chain(&error));
            let found = job.dam.ledger.publication_of(&job.id)?;
            let found = found.ok_or_else(|| Error::Internal("the publication is gone".into()))?;
            finish(job, &found, &why)?;
            return Ok(Published::Ended);
        }
    };
    drop(held);
    job.facts.landed = Some(candidate.commit.clone());
    job.took("landed", begun);
    let facts = job.facts.to_value();
    let change = LedgerChange { facts: Some(facts), reason: warning.as_deref(), detail: None };
    job.dam.ledger.land(&job.id, publication, change)?;
    job.state = State::Landed;
    if let Some(text) = warning {
        job.reporter.report(Event::Warning { text });
    }
    let text = match old {
        Some(old) => format!("{target} {}..{}", old.0.short(), candidate.commit.0.short()),
        None => format!("{target} at {}", candidate.commit.0.short()),
    };
    job.told("landed", begun, text);
    Ok(Published::Landed)
}

/// The target is as it was.
fn not_published(job: &mut Job<'_>, error: PublishError) -> Result<Published, Error> {
    match error {
        PublishError::Drifted(why) => Ok(Published::Drifted(why)),
        PublishError::InTheWay(why) => {
            job.end(State::Ready, &why)?;
            Ok(Published::Ended)
        }
        PublishError::Error(error) => {
            job.end(State::Ready, &format!("it could not be published: {}", chain(&error)))?;
            Ok(Published::Ended)
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
    let (repo, store) = (job.source.repo.clone(), job.source.store.clone());
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
            PublishError::Error(error) => error,
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

/// An error with its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = error.source();
    }
    text
}

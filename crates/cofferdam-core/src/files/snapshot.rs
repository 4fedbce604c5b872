//! The source `dir`: a directory as it is when the task begins.
//!
//! ```text
//! base            a copy of it, made before the command starts: the lower of the overlay
//! results/tree    what the command left: base and upper merged, copied by a helper in a
//!                 user namespace of the task's own kind
//! ```
//!
//! Between the two nothing is shared with the original, so whatever becomes of that in the
//! meantime is drift, and found.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use cofferdam_ledger::State;
use cofferdam_sandbox::{Ids, enter_user_namespace, read_only_overlay};
use cofferdam_tree::target::tree::{Keep, Owners, SetId, TreeError, copy_tree};
use cofferdam_tree::{TextOrBytes, Totals, TreeFingerprint, WalkError};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use serde_with::As;

use super::{Content, Files, Mode};
use crate::context::Context;
use crate::error::IoContext;
use crate::job::Job;
use crate::report::Meter;
use crate::source::TakenOut;
use crate::{Error, TaskDir, harvest};

/// The first argument that makes a binary call [`main`].
pub const ARGUMENT: &str = "__merge";

/// How often a directory that is written meanwhile is copied again.
const TRIES: u32 = 3;

/// The copy of the directory, in the task's own.
pub(crate) const BASE: &str = "base";
/// What the command left, in that of the results.
pub(super) const TREE: &str = "tree";

fn failed(step: &'static str, path: &Path) -> impl FnOnce(TreeError) -> Error {
    move |error| Error::Io { step, path: path.to_owned(), source: error.into() }
}

fn open(path: &Path) -> Result<File, Error> {
    File::open(path).at("open", path)
}

/// The fingerprint of a tree of ours.
fn fingerprint(dir: &Path, meter: &mut Meter<'_>) -> Result<TreeFingerprint, Error> {
    let mut done = 0;
    let told = &mut |totals: Totals| {
        done += totals.entries;
        meter.at(done, 0);
        true
    };
    TreeFingerprint::of(open(dir)?.as_fd(), told).map_err(failed("read", dir))
}

/// Copies the directory that the task starts from.
pub(super) fn take(job: &mut Job<'_, Files>, dir: &Path) -> Result<(), Error> {
    let mut meter = Meter::begin(job.reporter, "copying the directory");
    let owners = match job.ids.switch {
        true => Owners::All { uid: job.ids.uid, gid: job.ids.gid },
        false => Owners::Ours,
    };
    // What is replaced as a whole would lose them, though the task leaves it as it is.
    let whole = job.facts.outputs.first().is_some_and(|output| output.mode == Mode::Tree);
    let set_id = if whole { SetId::Refused } else { SetId::Dropped };
    let keep = Keep { owners, set_id, sync: false };
    let (to, control) = (open(job.dir.path())?, job.control.clone());
    for tried in 1.. {
        let from = open(dir)?;
        let mut done = 0;
        let told = &mut |totals: Totals| {
            done += totals.entries;
            meter.at(done, 0);
            control.interrupts() == 0
        };
        match copy_tree(from.as_fd(), to.as_fd(), OsStr::new(BASE), keep, told) {
            Err(TreeError::Walk(WalkError::Changed { .. })) if tried < TRIES => continue,
            Err(error) if error.is_interrupted() => return Err(Error::Interrupted),
            copied => drop(copied.map_err(failed("copy", dir))?),
        }
        let base = job.dir.path().join(BASE);
        let copied = fingerprint(&base, &mut meter)?;
        let output = job.facts.outputs.first_mut();
        let output = output.ok_or_else(|| Error::Internal("a directory is no output".into()))?;
        match (&output.before, output.mode) {
            // What is replaced as a whole is compared as a whole, with its owners.
            (Some(Content::Tree(seen)), Mode::Tree) if seen.content == copied.content => {
                return Ok(());
            }
            (_, Mode::Tree) if tried < TRIES => {
                *output = super::admit::look(&job.request.outputs[0], &mut meter, &control)?;
                std::fs::remove_dir_all(&base).at("remove", &base)?;
            }
            (_, Mode::Tree) => break,
            _ => {
                output.before = Some(Content::Tree(copied));
                return Ok(());
            }
        }
    }
    Err(Error::usage(format!("`{}` is written all the time", dir.display()), None))
}

/// Takes out what the command left of the directory, as a whole.
pub(super) fn take_out(job: &mut Job<'_, Files>, context: &Context) -> Result<TakenOut, Error> {
    let results = job.dir.results();
    if results.exists() {
        job.dam.trash.take(job.dir.path(), "results").at("move away", &results)?;
    }
    std::fs::create_dir(&results).at("make", &results)?;
    context.give(&results)?;
    let mut meter = Meter::begin(job.reporter, "taking the directory out");
    if let Err(why) = merge(context, &results, &mut meter)? {
        return Ok(TakenOut::End(State::Failed, why));
    }
    let result = match fingerprint(&results.join(TREE), &mut meter) {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::PermissionDenied => {
            let why = format!("it can't be taken out, because its owner may not read it: {source}");
            return Ok(TakenOut::End(State::Failed, why));
        }
        result => result?,
    };
    for output in &mut job.facts.outputs {
        output.result = Some(Content::Tree(result.clone()));
    }
    Ok(TakenOut::Result)
}

/// What was taken out, read again.
pub(super) fn content(job: &Job<'_, Files>) -> Result<Content, Error> {
    let mut meter = Meter::begin(job.reporter, "reading the result");
    let tree = fingerprint(&job.dir.results().join(TREE), &mut meter)?;
    Ok(Content::Tree(tree))
}

#[derive(Serialize, Deserialize)]
struct Merging {
    ids: Ids,
    #[serde(with = "As::<TextOrBytes>")]
    base: PathBuf,
    layers: Vec<String>,
    results: String,
}

/// Copies base and upper, merged, into a directory of the task's. Gives why that can't be,
/// when it is because of what is there.
fn merge(
    context: &Context,
    results: &Path,
    meter: &mut Meter<'_>,
) -> Result<Result<(), String>, Error> {
    let (lower, upper) = context.lowers();
    let results = results.strip_prefix(&context.base).unwrap_or(results);
    let merging = Merging {
        ids: context.ids,
        base: context.base.clone(),
        layers: std::iter::once(upper).chain(lower).collect(),
        results: results.display().to_string(),
    };
    let mut child = harvest::spawn("dam-merge", ARGUMENT, &merging)?;
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    for line in lines.map_while(Result::ok) {
        meter.at(line.parse().unwrap_or(0), 0);
    }
    let done = child.wait_with_output().at("wait for", "the merge helper")?;
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    match done.status.code() {
        Some(0) => Ok(Ok(())),
        Some(REFUSED) => Ok(Err(said)),
        Some(FULL) => {
            Err(std::io::Error::from(rustix::io::Errno::NOSPC)).at("copy the result to", results)
        }
        _ => Err(Error::Internal(format!("the merge helper failed: {}: {said}", done.status))),
    }
}

/// The helper's exit codes: for what is there, and for what it can't be written to.
const REFUSED: i32 = 3;
const FULL: i32 = 4;

/// Is the helper; never returns.
pub fn main() -> ! {
    let code = match work() {
        Ok(()) => 0,
        Err(error) => {
            let tree = error.downcast_ref::<TreeError>();
            eprintln!("{error}");
            match tree {
                Some(error)
                    if error.raw_os_error() == Some(rustix::io::Errno::NOSPC.raw_os_error()) =>
                {
                    FULL
                }
                Some(TreeError::Refused { .. } | TreeError::Walk(_)) => REFUSED,
                _ => 1,
            }
        }
    };
    std::process::exit(code)
}

fn work() -> Result<(), Box<dyn std::error::Error>> {
    const EVERY: u64 = 1000;
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text)?;
    let merging: Merging = serde_json::from_slice(&text)?;
    rustix::process::chdir(&merging.base)?;
    enter_user_namespace(merging.ids, rustix::thread::UnshareFlags::NEWNS)?;
    // What is mounted is a place, and not open for reading.
    let merged = read_only_overlay(&merging.layers)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let merged = rustix::fs::openat(&merged, ".", flags, rustix::fs::Mode::empty())?;
    let results = File::open(&merging.results)?;
    let keep = Keep { owners: Owners::Ours, set_id: SetId::Dropped, sync: false };
    let mut out = std::io::stdout().lock();
    let (mut done, mut told) = (0, 0);
    let mut go_on = |totals: Totals| {
        done += totals.entries;
        if done - told >= EVERY {
            told = done;
            // Whoever does not listen is waited for all the same.
            let _ = writeln!(out, "{done}");
        }
        true
    };
    copy_tree(merged.as_fd(), results.as_fd(), OsStr::new(TREE), keep, &mut go_on)?;
    Ok(())
}

/// Where the result of an output is.
pub(crate) fn result_of(dir: &TaskDir, from: &Path) -> PathBuf {
    match from.as_os_str().is_empty() {
        true => dir.results().join(TREE),
        false => dir.results().join(from),
    }
}

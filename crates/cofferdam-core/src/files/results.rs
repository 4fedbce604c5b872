//! Results: what a command was to make, taken out of its context.
//!
//! A context is hostile. Each output is opened below its upper with nothing followed and
//! has to be a regular file; content comes out, holes as holes, and whether it is a
//! program, and nothing else: no owner, no set-id bits, no extended attributes, no other
//! names. The copy is in the task's directory, where the command, which has ended, can't
//! write, and its fingerprint is what a verdict is about.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cofferdam_ledger::State;
use cofferdam_tree::target::append::Records;
use cofferdam_tree::target::copy_content;
use cofferdam_tree::target::tree::{Keep, Owners, SetId, copy_tree};
use cofferdam_tree::walk::{open_dir_below, open_file_below};
use cofferdam_tree::{Fingerprint, Totals, TreeFingerprint, WalkError};

use super::changes;
use super::place::GoOn;
use super::{Content, Files, GivenFact, Mode};
use crate::Error;
use crate::context::Context;
use crate::error::IoContext;
use crate::job::Job;
use crate::report::Meter;
use crate::source::TakenOut;

const NO_SPACE: i32 = rustix::io::Errno::NOSPC.raw_os_error();

/// Copies the results out of a context whose last process is gone.
pub(super) fn take(job: &mut Job<'_, Files>, context: &Context) -> Result<TakenOut, Error> {
    let dir = job.dir.results();
    if dir.exists() {
        job.dam.trash.take(job.dir.path(), "results").at("move away", &dir)?;
    }
    std::fs::create_dir(&dir).at("make", &dir)?;
    context.give(&dir)?;
    let upper = context.upper();
    let upper = File::open(&upper).at("open", &upper)?;
    let mut meter = Meter::begin(job.reporter, "taking the results out");
    let (control, mut done) = (job.control.clone(), 0);
    let mut go_on = |totals: Totals| {
        done += totals.bytes;
        meter.at(done >> 20, 0);
        control.interrupts() == 0
    };
    for output in &mut job.facts.outputs {
        output.result = None;
        let taken = match output.mode {
            Mode::Tree => take_tree(context, &upper, &dir, &output.from, &mut go_on)?,
            Mode::File | Mode::Append | Mode::Patch => {
                take_one(context, &upper, &dir, &output.from, &mut go_on)?
            }
        };
        match taken {
            Ok(result) => {
                if output.mode == Mode::Tree
                    && let Some(path) = changes::git_in(&dir.join(&output.from))?
                {
                    let path = output.from.join(path);
                    return failed(&path, "is git's own, and can't be part of what lands");
                }
                if output.mode == Mode::Append
                    && let Err(error) = records(&dir.join(&output.from), &output.place)
                {
                    return failed(&output.from, &format!("can't be appended: {error}"));
                }
                output.result = Some(result);
            }
            // There is nothing to be added.
            Err(Why::Missing) if output.mode == Mode::Append => {}
            Err(Why::Interrupted) => {
                return Ok(TakenOut::End(State::Cancelled, "interrupted".into()));
            }
            Err(Why::Missing) => return failed(&output.from, "was not made by the command"),
            Err(Why::NoFile(why)) => return failed(&output.from, &why),
        }
    }
    let Some(publish) = &job.request.publish else { return Ok(TakenOut::Result) };
    job.facts.given.clear();
    for from in publish.files() {
        let inside = job.place.top.join(&from);
        // What is an input there is no result.
        if job.facts.inputs.iter().any(|input| inside.starts_with(&input.dest)) {
            continue;
        }
        match take_one(context, &upper, &dir, &from, &mut go_on)? {
            Ok(result) => job.facts.given.push(GivenFact { from, result }),
            Err(Why::Interrupted) => {
                return Ok(TakenOut::End(State::Cancelled, "interrupted".into()));
            }
            // Not every word is a file.
            Err(Why::Missing) => {}
            Err(Why::NoFile(why)) => return failed(&from, &why),
        }
    }
    if job.facts.given.is_empty() {
        let why = format!("the command made nothing that `{}` names", publish.argv.join(" "));
        return Ok(TakenOut::End(State::Failed, why));
    }
    Ok(TakenOut::Result)
}

fn failed(from: &Path, why: &str) -> Result<TakenOut, Error> {
    Ok(TakenOut::End(State::Failed, format!("`{}` {why}", from.display())))
}

/// Why a file did not come out.
enum Why {
    Missing,
    NoFile(String),
    Interrupted,
}

/// Copies one file out, from `from` below `upper` to the same place below `dir`.
fn take_one(
    context: &Context,
    upper: &File,
    dir: &Path,
    from: &Path,
    go_on: GoOn<'_>,
) -> Result<Result<Content, Why>, Error> {
    let made = match open_file_below(upper, from.as_os_str().as_encoded_bytes()) {
        Ok(Some(made)) => made,
        Ok(None) => return Ok(Err(Why::Missing)),
        Err(WalkError::NotAFile { .. }) => {
            let why = "was made, but is not a file, or a link leads there";
            return Ok(Err(Why::NoFile(why.into())));
        }
        Err(error) => return Ok(Err(Why::NoFile(format!("can't be taken out: {error}")))),
    };
    let go_on = &mut |bytes| go_on(Totals { entries: 0, bytes });
    let interrupted = |error: &std::io::Error| error.kind() == std::io::ErrorKind::Interrupted;
    let path = dir.join(from);
    context.make_dirs_above(dir, from)?;
    let copy = File::options().read(true).write(true).create_new(true).open(&path);
    let copy = copy.at("make", &path)?;
    match copy_content(&made, &copy, go_on) {
        Err(error) if interrupted(&error) => return Ok(Err(Why::Interrupted)),
        copied => copied.at("copy the result to", &path)?,
    }
    let mode = made.metadata().at("look at", &path)?.permissions().mode() & 0o100;
    let mode = if mode == 0 { 0o644 } else { 0o755 };
    copy.set_permissions(std::fs::Permissions::from_mode(mode)).at("set the mode of", &path)?;
    context.give(&path)?;
    match Fingerprint::of(&copy, go_on) {
        Err(error) if interrupted(&error) => Ok(Err(Why::Interrupted)),
        fingerprint => Ok(Ok(Content::File(fingerprint.at("read", &path)?))),
    }
}

/// As [`take_one`] for a directory and all that is in it.
fn take_tree(
    context: &Context,
    upper: &File,
    dir: &Path,
    from: &Path,
    go_on: GoOn<'_>,
) -> Result<Result<Content, Why>, Error> {
    let made = match open_dir_below(upper, from.as_os_str().as_encoded_bytes()) {
        Ok(Some(made)) => made,
        Ok(None) => return Ok(Err(Why::Missing)),
        Err(error) => return Ok(Err(Why::NoFile(format!("was made, but {error}")))),
    };
    let (Some(parent), Some(name)) =
        (dir.join(from).parent().map(Path::to_owned), from.file_name())
    else {
        return Err(Error::Internal("an output has no name".into()));
    };
    context.make_dirs_above(dir, from)?;
    let open = File::open(&parent).at("open", &parent)?;
    let ids = context.ids;
    let owners = match ids.switch {
        true => Owners::All { uid: ids.uid, gid: ids.gid },
        false => Owners::Ours,
    };
    let keep = Keep { owners, set_id: SetId::Dropped, sync: false };
    let copied = copy_tree(made.as_fd(), open.as_fd(), name, keep, go_on).and_then(|_| {
        let copy = open_dir_below(&open, name.as_encoded_bytes())?;
        let gone = || WalkError::Changed { path: name.as_encoded_bytes().into() };
        TreeFingerprint::of(copy.ok_or_else(gone)?.as_fd(), go_on)
    });
    match copied {
        Ok(fingerprint) => Ok(Ok(Content::Tree(fingerprint))),
        Err(error) if error.is_interrupted() => Ok(Err(Why::Interrupted)),
        Err(error) if error.raw_os_error() == Some(NO_SPACE) => {
            let source = std::io::Error::from_raw_os_error(NO_SPACE);
            Err(source).at("copy the result to", parent.join(name))
        }
        Err(error) => Ok(Err(Why::NoFile(format!("can't be taken out: {error}")))),
    }
}

/// Whether a file holds records that can be appended.
fn records(path: &Path, place: &Path) -> Result<(), Error> {
    let file = File::open(path).at("open the result", path)?;
    Records::read(&file, place, &mut |_| true)?;
    Ok(())
}

/// Makes sure that the results which are given to a command are those that were judged.
///
/// # Errors
/// [`Error::Internal`] when they are not.
pub(super) fn still_verified(job: &Job<'_, Files>) -> Result<(), Error> {
    for given in &job.facts.given {
        let file = open(job, &given.from)?;
        let now = Fingerprint::of(&file, &mut |_| true).at("read", job.dir.results())?;
        if Content::File(now) != given.result {
            return Err(Error::Internal("what would land is not what was verified".into()));
        }
    }
    Ok(())
}

/// The result at a path, opened for reading.
pub(super) fn open(job: &Job<'_, Files>, from: &Path) -> Result<File, Error> {
    let path = job.dir.results().join(from);
    File::open(&path).at("open the result", path)
}

/// Keeps the results of a context that goes, beside the log.
pub(super) fn save(job: &mut Job<'_, Files>) -> Result<(), Error> {
    if !job.facts.has_result() {
        return Ok(());
    }
    let (from, to) = (job.dir.results(), job.dir.path().join("saved"));
    match std::fs::rename(&from, &to) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        moved => moved.at("keep", from),
    }
}

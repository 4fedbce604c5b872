//! Results: what a command was to make, taken out of its context.
//!
//! A context is hostile. Each output is opened below its upper with nothing followed and
//! has to be a regular file; content comes out, holes as holes, and whether it is a
//! program, and nothing else: no owner, no set-id bits, no extended attributes, no other
//! names. The copy is in the task's directory, where the command, which has ended, can't
//! write, and its fingerprint is what a verdict is about.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cofferdam_ledger::State;
use cofferdam_tree::target::copy_content;
use cofferdam_tree::walk::open_file_below;
use cofferdam_tree::{Fingerprint, WalkError};

use super::Files;
use crate::Error;
use crate::context::Context;
use crate::error::IoContext;
use crate::job::Job;
use crate::report::Meter;
use crate::source::TakenOut;

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
    let mut done = 0;
    for number in 0..job.facts.outputs.len() {
        let from = job.facts.outputs[number].from.clone();
        let failed =
            |why: &str| Ok(TakenOut::End(State::Failed, format!("`{}` {why}", from.display())));
        let made = match open_file_below(&upper, from.as_os_str().as_encoded_bytes()) {
            Ok(Some(made)) => made,
            Ok(None) => return failed("was not made by the command"),
            Err(WalkError::NotAFile { .. }) => {
                return failed("was made, but is not a file, or a link leads there");
            }
            Err(error) => return failed(&format!("can't be taken out: {error}")),
        };
        let mut go_on = |bytes: u64| {
            done += bytes;
            meter.at(done >> 20, 0);
            job.control.interrupts() == 0
        };
        let path = dir.join(&from);
        context.make_dirs_above(&dir, &from)?;
        let copy = File::options().read(true).write(true).create_new(true).open(&path);
        let copy = copy.at("make", &path)?;
        let copied = copy_content(&made, &copy, &mut go_on);
        if copied.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::Interrupted) {
            return Ok(TakenOut::End(State::Cancelled, "interrupted".into()));
        }
        copied.at("copy the result to", &path)?;
        let mode = made.metadata().at("look at", &path)?.permissions().mode() & 0o100;
        let mode = if mode == 0 { 0o644 } else { 0o755 };
        copy.set_permissions(std::fs::Permissions::from_mode(mode)).at("set the mode of", &path)?;
        context.give(&path)?;
        let fingerprint = match Fingerprint::of(&copy, &mut go_on) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {
                return Ok(TakenOut::End(State::Cancelled, "interrupted".into()));
            }
            fingerprint => fingerprint.at("read", &path)?,
        };
        job.facts.outputs[number].result = Some(fingerprint);
    }
    Ok(TakenOut::Result)
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

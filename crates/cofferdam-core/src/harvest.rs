//! Both halves of a harvest: starting the helper, and being it.
//!
//! The helper is this binary again, with an empty environment, in a user
//! namespace of the task's own kind where the task has one. See `cofferdam_git::harvest`.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Stdio};

use cofferdam_git::GitError;
use cofferdam_git::harvest::{
    Collected, CommitText, Onto, Refusal, Rules, collect, scan, scan_copy,
};
use cofferdam_sandbox::{Ids, enter_user_namespace, read_only_overlay};
use cofferdam_tree::TextOrBytes;
use cofferdam_tree::walk::open_up;
use serde::{Deserialize, Serialize};
use serde_with::As;

use crate::context::Context;
use crate::error::IoContext;
use crate::facts::Facts;
use crate::job::Job;
use crate::report::Meter;
use crate::{Error, boundary};

/// The first argument that makes a binary call [`main`].
pub const ARGUMENT: &str = "__harvest";

/// What a context's files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum From {
    /// The upper of an overlay, read in a user namespace of the task's own kind.
    Overlay,
    /// A checkout beside the layer that it is a copy of.
    Copy,
}

#[derive(Serialize, Deserialize)]
struct Reading {
    from: From,
    ids: Ids,
    #[serde(with = "As::<TextOrBytes>")]
    base: PathBuf,
    lower: Vec<String>,
    upper: String,
    rules: Rules,
}

pub(crate) struct Helper {
    child: Child,
    frames: ChildStdout,
}

impl Helper {
    pub(crate) fn frames(&mut self) -> &mut ChildStdout {
        &mut self.frames
    }

    pub(crate) fn end(mut self) -> Result<(), Error> {
        drop(self.frames);
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut said);
        }
        let status = self.child.wait().at("wait for", "the harvest helper")?;
        if status.success() {
            Ok(())
        } else {
            Err(cofferdam_git::GitError::from(Refusal::Helper(format!(
                "{status}: {}",
                said.trim()
            )))
            .into())
        }
    }
}

pub(crate) fn start(context: &Context, from: From, rules: &Rules) -> Result<Helper, Error> {
    let (lower, upper) = context.lowers();
    let job = Reading {
        from,
        ids: context.ids,
        base: context.base.clone(),
        lower,
        upper,
        rules: rules.clone(),
    };
    let mut child = spawn("dam-harvest", ARGUMENT, &job)?;
    let frames = child.stdout.take().expect("piped");
    Ok(Helper { child, frames })
}

/// Starts this binary again as a helper that reads what to do from its input, with an empty
/// environment.
pub(crate) fn spawn(name: &str, argument: &str, job: &impl Serialize) -> Result<Child, Error> {
    let job = serde_json::to_vec(job).map_err(std::io::Error::other).at("describe", name)?;
    let mut child = std::process::Command::new("/proc/self/exe")
        .arg0(name)
        .arg(argument)
        .env_clear()
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .at("start", name)?;
    // A helper that died says so when it is waited for.
    let _ = child.stdin.take().expect("piped").write_all(&job);
    Ok(child)
}

/// Takes the change set out of a context whose last process is gone.
///
/// # Errors
/// [`Refusal`] for what can't land, other errors when it can't be read.
pub(crate) fn take(
    job: &Job<'_>,
    context: &Context,
    text: &CommitText,
) -> Result<Collected, Error> {
    let base = Facts::need("base", job.facts.base.as_ref())?;
    let base_tree = Facts::need("base's tree", job.facts.base_tree.as_ref())?;
    let attributes = job.stack()?.attributes(&job.dam.layers);
    let mut changes = boundary::of_level(job.request.level).changes(context, &job.rules()?)?;
    let (id, frames) = (job.id.as_str(), changes.frames());
    let mut meter = Meter::begin(job.reporter, "harvesting");
    let mut progress = |done| meter.at(done, 0);
    let onto = Onto { base: (base, base_tree), attributes: &attributes, text, task: id };
    let collected = collect(&job.source.store, &job.source.config, onto, frames, &mut progress);
    match (collected, changes.end()) {
        // What the helper itself says explains a cut-off stream. Any other error is
        // why it found nobody who listens.
        (Err(GitError::Refused(Refusal::Helper(_))), Err(helper)) => Err(helper),
        (collected, ended) => {
            let collected = collected?;
            ended?;
            Ok(collected)
        }
    }
}

/// Is the helper; never returns.
pub fn main() -> ! {
    let code = match work() {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    };
    std::process::exit(code)
}

fn work() -> Result<(), Box<dyn std::error::Error>> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text)?;
    let job: Reading = serde_json::from_slice(&text)?;
    rustix::process::chdir(&job.base)?;
    if job.from == From::Overlay {
        enter_user_namespace(job.ids, rustix::thread::UnshareFlags::NEWNS)?;
    }
    let open = |name: &str| -> std::io::Result<OwnedFd> {
        let flags = rustix::fs::OFlags::RDONLY
            | rustix::fs::OFlags::DIRECTORY
            | rustix::fs::OFlags::CLOEXEC;
        Ok(rustix::fs::open(name, flags, rustix::fs::Mode::empty())?)
    };
    let out = std::io::BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    if job.from == From::Copy {
        // It is ours, so what the command forbade us is no secret to be kept.
        open_up(rustix::fs::CWD, job.upper.as_bytes())?;
    }
    let upper = open(&job.upper)?;
    if job.from == From::Copy {
        let [base] = job.lower.as_slice() else { return Err("a copy is of one layer".into()) };
        scan_copy(upper, open(base)?, &job.rules, out)?;
        return Ok(());
    }
    let lower = match job.lower.as_slice() {
        [single] => open(single)?,
        several => read_only_overlay(several)?,
    };
    let all: Vec<String> = std::iter::once(job.upper.clone()).chain(job.lower).collect();
    let merged = read_only_overlay(&all)?;
    scan(upper, merged, lower, &job.rules, out)?;
    Ok(())
}

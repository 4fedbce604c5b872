//! Why a command failed, as far as the isolation is the cause.
//!
//! Most first failures in a context have a cause that the command can't know: a
//! program, a file, a login or a network that is there outside and withheld
//! inside. What it prints is compared with patterns (a data file, see its top),
//! and what is found says which option would allow it.
//!
//! 1. The last 64 KiB of the log become lines, counted from the end of their
//!    stream: a cause stands near the end, and a word in passing does not.
//! 2. Each pattern takes the last line that it matches.
//! 3. Where it can be looked at, the host must have what the command lacked.
//! 4. At most three findings are told, the most specific first.
//!
//! A command that ended well has not failed, but when it changed nothing either, a
//! few of the patterns count: an agent whose every step failed says that it is done.
//!
//! Only words come of it: neither state nor exit code depend on a diagnosis. And
//! the words that it is made from are the command's, who may have its own reasons
//! to print them.

mod host;
mod patterns;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cofferdam_sandbox::{Network, View, Wall};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::boundary;
use crate::context::Context;
use crate::job::Job;
use crate::log::{LogLine, Stream, read_tail};
use crate::request::Level;
use crate::supervise::{Ended, Plan};

/// How many findings are told.
const MOST: usize = 3;
/// How much of a log is looked at, in bytes.
const TAIL: u64 = 64 << 10;
/// How much of a line is looked at, in characters.
const LONGEST_LINE: usize = 2000;

/// A cause that lies in the isolation, and what would help.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// Which cause, such as `read-only`: the headings of `docs/diagnosis.md`.
    pub id: String,
    /// The cause, for people.
    pub message: String,
    /// What would help.
    pub hint: String,
}

/// What failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    /// The command of a task.
    Command,
    /// A check.
    Check,
}

/// What was in force when it failed.
struct Failure<'a> {
    role: Role,
    level: Level,
    /// Whether it ended well, and changed nothing.
    idle: bool,
    network: Network,
    wall: Wall,
    read_only: bool,
    /// Where it could write, when that is all that was kept from it.
    writable: &'a [PathBuf],
    /// The environment that it had.
    env: &'a [(OsString, OsString)],
    top: &'a Path,
    home: &'a Path,
}

/// A line of what was printed.
struct Line {
    text: String,
    /// How many lines of its stream come after it.
    after: usize,
}

/// What is looked at outside.
trait Host {
    /// The file that the caller would start by this name, when the task has none.
    fn program(&self, name: &str) -> Option<PathBuf>;
    /// A file of the checkout or (`~/`) of the home, when the task has none.
    fn file(&self, path: &str) -> Option<PathBuf>;
    /// Whether somebody listens on a port of the host's loopback.
    fn listens(&self, port: u16) -> bool;
    /// Whether the disk that holds the contexts is full.
    fn disk_is_full(&self) -> bool;
    /// Whether the caller could write a file there.
    fn can_write(&self, path: &Path) -> bool;
}

/// Where a path lies, as a task sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Where {
    Repository,
    Private,
    Memory,
    System,
    /// At level `worktree`: what the caller can write and the command could not.
    Walled,
    Unknown,
}

impl Where {
    fn of(path: Option<&str>, failure: &Failure<'_>, host: &dyn Host) -> Where {
        let Some(path) = path.map(Path::new) else { return Where::Unknown };
        if failure.level == Level::Worktree {
            let own = failure.writable.iter().any(|dir| path.starts_with(dir));
            let walled = path.is_absolute() && !own && host.can_write(path);
            return if walled { Where::Walled } else { Where::Unknown };
        }
        let below = |dirs: &[&str]| dirs.iter().any(|dir| path.starts_with(dir));
        if !path.is_absolute() || path.starts_with(failure.top) {
            Where::Repository
        } else if path.starts_with(failure.home) || below(&["/tmp", "/var/tmp"]) {
            Where::Private
        } else if below(&["/dev/shm", "/run"]) {
            Where::Memory
        } else {
            Where::System
        }
    }
}

/// What the failure of a command in `context` leaves to be said; nothing when it
/// did not fail by itself. One that ended well and changed nothing counts as well.
pub(crate) fn failure<S>(
    job: &Job<'_, S>,
    context: &Context,
    role: Role,
    plan: &Plan<'_>,
    ended: Ended,
) -> Vec<Diagnosis> {
    let command = &plan.spec.command;
    let idle = matches!(ended, Ended::Exited { code: Some(0), .. });
    if idle
        && !(role == Role::Command && boundary::of_level(job.request.level).is_untouched(context))
    {
        return Vec::new();
    }
    let missing = match ended {
        Ended::TimedOut
        | Ended::Interrupted
        | Ended::OutOfMemory
        | Ended::OutOfDisk
        | Ended::Killed => return Vec::new(),
        Ended::Exited { .. } => None,
        Ended::NotStarted(errno) => {
            command.argv.first().filter(|_| errno == Errno::NOENT.raw_os_error())
        }
    };
    // A log that can't be read says nothing.
    let mut printed = read_tail(plan.log, TAIL).unwrap_or_default();
    if let Some(program) = missing {
        let text = format!("exec: {}: not found", program.display()).into_bytes();
        printed.push(LogLine { at_ms: 0, stream: Stream::Err.name().into(), text });
    }
    if printed.is_empty() {
        return Vec::new();
    }
    let failure = Failure {
        role,
        level: job.request.level,
        network: match plan.spec.view {
            View::Own { network, .. } => network,
            View::Host => Network::Open,
        },
        writable: &plan.spec.writable,
        idle,
        wall: plan.spec.wall,
        read_only: context.read_only,
        env: &command.env,
        top: &job.place.top,
        home: &job.place.person.home,
    };
    diagnose(&failure, &lines(&printed), &host::Outside::of(job, context, &command.cwd))
}

/// The lines of a log that can name a cause, without colours and without what was
/// overwritten, each counted from the end of its stream.
fn lines(printed: &[LogLine]) -> Vec<Line> {
    let streams = [Stream::Out, Stream::Err];
    let mut seen = [0, 0];
    let mut lines = Vec::new();
    for line in printed.iter().rev() {
        let text = plain(&String::from_utf8_lossy(&line.text));
        let stream = streams.iter().position(|stream| line.stream == stream.name());
        if let Some(stream) = stream.filter(|_| !text.trim().is_empty()) {
            if !is_passed_test(&text) {
                lines.push(Line { text, after: seen[stream] });
            }
            seen[stream] += 1;
        }
    }
    lines.reverse();
    lines
}

/// Whether a test runner says that a test has passed: what else the line says is
/// the test's name.
fn is_passed_test(line: &str) -> bool {
    let line = line.trim();
    let begins = ["ok ", "PASS", "[PASS]", "✓", "✔", "√"];
    let ends = [" ok", " PASSED", " passed", " PASS"];
    begins.iter().any(|word| line.starts_with(word)) || ends.iter().any(|word| line.ends_with(word))
}

fn plain(text: &str) -> String {
    let text = text.trim_end_matches('\r');
    let text = text.rsplit('\r').next().unwrap_or_default();
    let mut plain = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c == '\x1b' {
            // A control sequence ends with its first letter.
            rest.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(c);
        }
    }
    match plain.char_indices().nth(LONGEST_LINE) {
        Some((end, _)) => plain[..end].to_owned(),
        None => plain,
    }
}

/// What the lines say about the isolation, the most specific first. A line is
/// told of once.
fn diagnose(failure: &Failure<'_>, lines: &[Line], host: &dyn Host) -> Vec<Diagnosis> {
    let mut left: Vec<&Line> = lines.iter().collect();
    let mut told: Vec<Diagnosis> = Vec::new();
    for pattern in patterns::all() {
        if told.len() == MOST {
            break;
        }
        let counts = pattern.level == failure.level && (pattern.idle || !failure.idle);
        if !counts || told.iter().any(|known| known.id == pattern.id) {
            continue;
        }
        let Some((at, found)) = pattern.look(failure, &left, host) else { continue };
        left.remove(at);
        if !told.iter().any(|known| known.hint == found.hint) {
            told.push(found);
        }
    }
    told
}

/// A template with its placeholders filled; `None` when one is not known.
fn fill(template: &str, words: &patterns::Words) -> Option<String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}')?;
        // `${NAME}` is somebody else's placeholder.
        let value = match before.ends_with('$') {
            true => Cow::Owned(format!("{{{name}}}")),
            false => Cow::Borrowed(words.get(name)?.as_str()),
        };
        text.push_str(before);
        text.push_str(&value);
        rest = after;
    }
    text.push_str(rest);
    Some(text)
}

//! What came of the tasks since a moment: what a person reads in the morning.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;

use cofferdam_ledger::{Filter, State, Task, now_ms};
use cofferdam_tree::disk_usage;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::log::read_tail;
use crate::receipt::Receipt;
use crate::reconcile::reconcile;
use crate::{Dam, Error};

/// The version of this form.
const VERSION: u32 = 1;

/// How much of the end of a log is looked through, in bytes.
const LOOKED_AT: u64 = 256 << 10;

/// How long a line is told, in characters.
const LONGEST_LINE: usize = 300;

/// Words of a line that says what went wrong, in lower case.
const BAD_WORDS: &[&str] = &[
    "error",
    "fail",
    "panicked",
    "assert",
    "not ok",
    "fatal",
    "exception",
    "cannot",
    "can't",
    "no such",
    "denied",
    "undefined",
    "expected",
];

/// What makes nothing of one of those words, when no digit comes before it.
const HARMLESS: &[&str] = &["0 error", "0 fail", "no error", "no fail"];

/// See the module. Printed by `dam report`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Overview {
    /// Version of this form: 1.
    pub version: u32,
    /// From when on, milliseconds since 1970.
    pub since_ms: i64,
    /// Until when, milliseconds since 1970.
    pub until_ms: i64,
    /// How many tasks are in each state.
    pub counts: BTreeMap<String, u64>,
    /// The tasks that have gone a step since, or are still at work; the last one first.
    pub tasks: Vec<ReportedTask>,
    /// What all of it takes.
    pub disk: DiskReport,
}

/// A task, and what it or its check said.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ReportedTask {
    /// As `dam show` has it.
    pub receipt: Receipt,
    /// When it came into its state, milliseconds since 1970.
    pub at_ms: i64,
    /// Whether it waited for a person, who dropped it.
    #[serde(default)]
    pub dropped: bool,
    /// Of what failed, its check or its command: the first line that says so, else the
    /// last one.
    pub said: Option<String>,
}

/// Bytes on disk.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
pub struct DiskReport {
    /// Contexts, logs and receipts of tasks.
    pub tasks_bytes: u64,
    /// Layers that contexts stand on.
    pub layers_bytes: u64,
    /// Git objects that have not landed.
    pub stores_bytes: u64,
    /// What the file system has left, for the caller.
    pub free_bytes: u64,
}

/// What came of the tasks since `since_ms`, milliseconds since 1970.
///
/// # Errors
/// When the ledger can't be read. What can't be measured or read counts as nothing.
pub fn since(dam: &mut Dam, since_ms: i64) -> Result<Overview, Error> {
    reconcile(dam)?;
    let filter = Filter { stepped_since_ms: Some(since_ms), ..Filter::default() };
    let mut tasks = dam.ledger.tasks(filter)?;
    let live = dam.ledger.tasks(Filter { live_only: true, ..Filter::default() })?;
    for task in live {
        if tasks.iter().all(|known| known.id != task.id) {
            tasks.push(task);
        }
    }
    let mut counts = BTreeMap::new();
    let mut reported = Vec::new();
    for task in &tasks {
        *counts.entry(task.state.to_string()).or_default() += 1;
        let history = dam.ledger.history(&task.id)?;
        let at_ms = history.last().map_or(task.updated_ms, |step| step.at_ms);
        let receipt = Receipt::of(task)?;
        let said = said(dam, task, &receipt);
        let waited = matches!(task.state, State::Ready | State::InDoubt);
        let dropped = waited && task.settled;
        reported.push(ReportedTask { receipt, at_ms, dropped, said });
    }
    reported.sort_by_key(|task| std::cmp::Reverse(task.at_ms));
    Ok(Overview {
        version: VERSION,
        since_ms,
        until_ms: now_ms(),
        counts,
        tasks: reported,
        disk: disk(dam),
    })
}

/// The line that tells why a task failed or was rejected.
fn said(dam: &Dam, task: &Task, receipt: &Receipt) -> Option<String> {
    let dir = dam.task_dir(&task.id);
    let log = match task.state {
        State::Failed => dir.log(),
        State::Rejected | State::Ready => {
            let number = receipt.checks.iter().position(|check| !check.passed())?;
            dir.path().join(format!("check-{number}.log"))
        }
        _ => return None,
    };
    let lines = read_tail(&log, LOOKED_AT).ok()?;
    let texts = lines.iter().map(|line| String::from_utf8_lossy(&line.text));
    let texts: Vec<String> = texts.map(|text| text.trim().to_owned()).collect();
    telling(&texts).map(|line| line.chars().take(LONGEST_LINE).collect())
}

/// The first line that says that something went wrong, else the last that says anything.
fn telling(lines: &[String]) -> Option<&String> {
    let tells = |line: &&String| {
        let line = line.to_lowercase();
        let is_harmless = |word: &&str| {
            let is_whole =
                |at: usize| !line[..at].ends_with(|before: char| before.is_ascii_digit());
            line.match_indices(*word).any(|(at, _)| is_whole(at))
        };
        BAD_WORDS.iter().any(|word| line.contains(word)) && !HARMLESS.iter().any(is_harmless)
    };
    lines.iter().find(tells).or_else(|| lines.iter().rev().find(|line| !line.is_empty()))
}

fn disk(dam: &Dam) -> DiskReport {
    let used = |path: &Path| {
        let dir = std::fs::File::open(path).ok();
        dir.and_then(|dir| disk_usage(dir.as_fd()).ok()).map_or(0, |usage| usage.bytes)
    };
    let free = rustix::fs::statvfs(dam.dir()).map_or(0, |stat| stat.f_bavail * stat.f_frsize);
    DiskReport {
        tasks_bytes: used(&dam.tasks_dir()),
        layers_bytes: used(&dam.contexts_dir().join("layers")),
        stores_bytes: used(&dam.dir().join("store")),
        free_bytes: free,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(lines: &[&str]) -> Option<String> {
        telling(&lines.iter().map(ToString::to_string).collect::<Vec<_>>()).cloned()
    }

    #[test]
    fn the_line_that_tells_is_found() {
        let cargo = ["running 2 tests", "test a ... ok", "test b ... FAILED", "error: test failed"];
        assert_eq!(told(&cargo).as_deref(), Some("test b ... FAILED"));
        let tap = ["ok 1 - a", "not ok 2 - b", "# fail 1"];
        assert_eq!(told(&tap).as_deref(), Some("not ok 2 - b"));
        let harmless = ["0 errors, 0 failed", "3 rows are missing", ""];
        assert_eq!(told(&harmless).as_deref(), Some("3 rows are missing"));
        assert_eq!(told(&["10 failed", "see above"]).as_deref(), Some("10 failed"));
        assert_eq!(told(&["", ""]), None);
        assert_eq!(told(&[]), None);
    }
}

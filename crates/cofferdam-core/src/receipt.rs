//! The evidence of a task: who, base, change, verdicts, isolation in force.

use cofferdam_git::harvest::ChangedPath;
use cofferdam_ledger::{Outcome, State, Task};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::diagnose::Diagnosis;
use crate::facts::{ChangeCounts, Facts};
use crate::files::{Content, Mode, OutputFact};
use crate::input::InputReport;
use crate::limits::LimitReport;
use crate::request::{Level, Request};
use crate::{Error, ExitCode};

/// The version of this form. Fields are added, never changed or taken away,
/// without a new number.
pub const VERSION: u32 = 1;

/// What isolated a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Isolation {
    /// The level.
    pub level: Level,
    /// Where the command finds the repository's files; none before it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top: Option<String>,
    /// Network scope: `none` or `open`.
    pub network: String,
    /// `full`, or `nested` for programs with a sandbox of their own. At level
    /// `worktree`: `landlock` when it can write in its context alone, else `none`.
    pub wall: String,
    /// ABI of Landlock; 0 when the kernel has none.
    pub landlock_abi: u32,
    /// The host's user id that the task ran as.
    pub uid: u32,
    /// Its limits, and who sees to each.
    #[serde(default)]
    pub limits: Vec<LimitReport>,
    /// The tool homes that it saw, as `rust (~/.cargo, ~/.rustup)`.
    #[serde(default)]
    pub tools: Vec<String>,
}

/// What one check said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckReport {
    /// Its name.
    pub name: String,
    /// Its command.
    pub run: String,
    /// `passed`, `flaky-passed`, `failed`, `error`, `timed-out`, or `baseline-broken`
    /// when the target itself fails it.
    pub outcome: String,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// Of that, how long until its context stood and its command could start, the
    /// first time; 0 when it was not run.
    #[serde(default)]
    pub ready_ms: u64,
    /// Whether an earlier verdict on the same candidate was used.
    pub cached: bool,
    /// Whether it ran with pinned files of the target in place of changed ones.
    #[serde(default)]
    pub pinned: bool,
    /// The tree that was checked.
    pub tree: String,
    /// The verdict's key in the ledger.
    pub key: String,
}

impl CheckReport {
    /// Whether the check lets the candidate through.
    #[must_use]
    pub fn passed(&self) -> bool {
        Outcome::parse(&self.outcome).is_some_and(Outcome::passed)
    }
}

/// A changed path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PathReport {
    /// `A`dded, `M`odified, `D`eleted, `T`ype changed.
    pub kind: char,
    /// The path.
    pub path: String,
}

impl From<&ChangedPath> for PathReport {
    fn from(path: &ChangedPath) -> Self {
        PathReport { kind: path.kind, path: path.path.clone() }
    }
}

/// A file that the task was to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputReport {
    /// Where the command was to make it, relative to the top of its context.
    pub from: String,
    /// The file that it becomes.
    pub to: String,
    /// `file`, `append` or `tree`: how it becomes that.
    #[serde(default)]
    pub mode: Mode,
    /// Whether that was there when the task began.
    pub was_there: bool,
    /// SHA-256 of what the command made, in hexadecimal digits; none when it made nothing.
    pub sha256: Option<String>,
    /// Its size, in bytes.
    pub size: Option<u64>,
}

impl From<&OutputFact> for OutputReport {
    fn from(output: &OutputFact) -> Self {
        OutputReport {
            from: output.from.display().to_string(),
            to: output.place.display().to_string(),
            was_there: output.before.is_some(),
            mode: output.mode,
            sha256: output.result.as_ref().map(|result| result.hash().to_owned()),
            size: output.result.as_ref().map(Content::size),
        }
    }
}

/// A step that the task took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepReport {
    /// Its name.
    pub step: String,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
}

/// See the module. Printed by `dam run --format json` and `dam show`, and kept
/// as `receipt.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Receipt {
    /// [`VERSION`].
    pub version: u32,
    /// The task's id.
    pub task: String,
    /// Its name.
    pub name: String,
    /// Where it is in its life.
    pub state: String,
    /// What `dam run` ended with, or would have.
    pub exit_code: u8,
    /// Why it is in its state.
    pub reason: Option<String>,
    /// The command.
    pub command: String,
    /// The directory of the repository.
    pub repository: Option<String>,
    /// What is to be changed.
    pub target: Option<String>,
    /// The commit it started from.
    pub base: Option<String>,
    /// The change set's commit, in our store.
    pub change: Option<String>,
    /// How many paths changed.
    pub changed: Option<ChangeCounts>,
    /// The first hundred of them.
    pub paths: Vec<PathReport>,
    /// What was left out of the change set: the first hundred, and how much more.
    pub left_out: Vec<String>,
    /// What the checks said.
    pub checks: Vec<CheckReport>,
    /// Whether the task was to land without any check.
    pub no_check: bool,
    /// The first hundred changed files that decide what a check says.
    pub check_changes: Vec<String>,
    /// Whether a person allowed those.
    pub check_changes_allowed: bool,
    /// The tip that it landed on.
    pub landed_on: Option<String>,
    /// The landed commit.
    pub landed: Option<String>,
    /// What isolated it.
    pub isolation: Option<Isolation>,
    /// What it was given to read.
    pub inputs: Vec<InputReport>,
    /// The files that it was to make, when it works on files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputReport>,
    /// How often the command was started.
    pub attempt: u32,
    /// How each attempt but the last ended.
    pub attempts: Vec<String>,
    /// How often a person was in its context.
    #[serde(default)]
    pub entered: u32,
    /// How the command of this `dam enter` ended: its exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enter_exit: Option<i32>,
    /// How the command of this `dam enter` ended: the signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enter_signal: Option<i32>,
    /// The command's exit code.
    pub command_exit: Option<i32>,
    /// The signal that ended the command.
    pub command_signal: Option<i32>,
    /// Why the command or a check failed, as far as the isolation is the cause.
    #[serde(default)]
    pub diagnosis: Vec<Diagnosis>,
    /// The steps it took.
    pub steps: Vec<StepReport>,
    /// When it was created, milliseconds since 1970.
    pub created_ms: i64,
    /// When its record last changed, milliseconds since 1970.
    pub updated_ms: i64,
    /// Whether its context is still on disk.
    pub context_kept: bool,
    /// The key under which it is done once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whether this `dam run` has only told what an earlier one for the same key did.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
}

/// Why a task is in its state; one that waits for a person whose context is gone
/// waits no more.
fn reason(task: &Task) -> Option<String> {
    let over = matches!(task.state, State::Landed | State::Empty);
    if !task.settled || over || task.state.is_live() {
        return task.reason.clone();
    }
    let why = task.reason.as_deref().unwrap_or("no reason was recorded");
    Some(format!("its context is gone; {why}"))
}

impl Receipt {
    /// The receipt of a task as the ledger has it.
    ///
    /// # Errors
    /// [`Error::Internal`] when the record makes no sense.
    pub fn of(task: &Task) -> Result<Receipt, Error> {
        let facts = Facts::of(task)?;
        let request: Request = serde_json::from_value(task.spec.clone()).map_err(|error| {
            Error::Internal(format!("the request of task `{}` is broken: {error}", task.id))
        })?;
        let exit =
            if task.state.is_live() { ExitCode::Done } else { ExitCode::of_state(task.state) };
        Ok(Receipt {
            version: VERSION,
            task: task.id.to_string(),
            name: task.name.to_string(),
            state: task.state.to_string(),
            exit_code: exit as u8,
            reason: reason(task),
            command: request.command(),
            repository: facts.repo_dir.as_ref().map(|dir| dir.display().to_string()),
            target: request.publish.as_ref().map(ToString::to_string).or(facts.target_text()),
            base: facts.base.as_ref().map(ToString::to_string),
            change: facts.change.as_ref().map(ToString::to_string),
            changed: facts.counts,
            paths: facts.paths.iter().map(PathReport::from).collect(),
            left_out: facts.left_out,
            checks: facts.checks,
            no_check: facts.no_check || request.no_check,
            check_changes: facts.check_changes,
            check_changes_allowed: facts.check_changes_allowed,
            landed_on: facts.landed_on.as_ref().map(ToString::to_string),
            landed: facts.landed.as_ref().map(ToString::to_string),
            isolation: facts.isolation,
            inputs: facts.inputs,
            outputs: facts.outputs.iter().map(OutputReport::from).collect(),
            attempt: facts.attempt,
            attempts: facts.attempts,
            entered: facts.entered,
            enter_exit: None,
            enter_signal: None,
            command_exit: facts.exit_code,
            command_signal: facts.signal,
            diagnosis: facts.diagnosis,
            steps: facts
                .steps
                .into_iter()
                .map(|(step, took_ms)| StepReport { step, took_ms })
                .collect(),
            created_ms: task.created_ms,
            updated_ms: task.updated_ms,
            context_kept: !task.settled,
            key: request.key.map(|key| key.key),
            replayed: false,
        })
    }

    /// The state as a type.
    #[must_use]
    pub fn state(&self) -> Option<State> {
        State::parse(&self.state)
    }
}

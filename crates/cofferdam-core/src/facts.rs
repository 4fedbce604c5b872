//! What was found out about a task on its way, as the ledger keeps it.
//!
//! Every field is optional or has a default: a task can end at any step, and an
//! older record has fewer of them.

use std::path::PathBuf;

use cofferdam_git::harvest::{ChangeSet, ChangedPath};
use cofferdam_git::layer::LayerStack;
use cofferdam_git::lfs::Pointer;
use cofferdam_git::{CommitId, TreeId};
use cofferdam_ledger::Task;
use cofferdam_sandbox::Ids;
use cofferdam_tree::TextOrBytes;
use serde::{Deserialize, Serialize};
use serde_with::As;

use crate::Error;
use crate::diagnose::Diagnosis;
use crate::files::{Content, GivenFact, OutputFact};
use crate::input::InputReport;
use crate::receipt::{CheckReport, Isolation};
use crate::target::TargetRef;

/// See the module.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// A directory in the repository from which it is found again.
    #[serde(skip_serializing_if = "Option::is_none", with = "As::<Option<TextOrBytes>>")]
    pub repo_dir: Option<PathBuf>,
    /// What is to be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetRef>,
    /// The commit that the task started from (with `--carry-dirty`, one of ours
    /// that holds the uncommitted work).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<CommitId>,
    /// Its tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_tree: Option<TreeId>,
    /// The commit of the person's that the base is or lies on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<CommitId>,
    /// The layers below the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<LayerStack>,
    /// As whom the task runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<Ids>,
    /// The boot that the upper directory is good in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// What is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Where the command was started, inside.
    #[serde(skip_serializing_if = "Option::is_none", with = "As::<Option<TextOrBytes>>")]
    pub cwd: Option<PathBuf>,
    /// What it was given to read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<InputReport>,
    /// How often the command was started.
    pub attempt: u32,
    /// How often a person was in its context.
    pub entered: u32,
    /// Whether one is. Written when nobody is, too.
    pub visited: bool,
    /// Whether its supervisor died and nothing came of it: who waits for its key goes on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub died: bool,
    /// How each attempt but the last ended.
    pub attempts: Vec<String>,
    /// The command's exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Why the command or a check failed, as far as the isolation is the cause.
    /// Written when it is empty too: a key that is left out keeps its old value.
    pub diagnosis: Vec<Diagnosis>,
    /// The change set's commit on the base.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<CommitId>,
    /// Its tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change_tree: Option<TreeId>,
    /// How many paths were added, modified and deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<ChangeCounts>,
    /// The first changed paths: the record is written at every step, and a change
    /// set can have a million.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<ChangedPath>,
    /// What was left out of the change set, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Content of its files that Git LFS has to keep.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lfs: Vec<Pointer>,
    /// What it is to make outside of any repository, and what became of that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputFact>,
    /// Files that a command is given which publishes them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub given: Vec<GivenFact>,
    /// How the command ended that was to publish them: its exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish_exit: Option<i32>,
    /// The commit message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What the checks said last. Written when it is empty too, as the diagnosis is.
    pub checks: Vec<CheckReport>,
    /// Changed files that decide what a check says, in words. Written when it is empty
    /// too, like the next two: a key that is left out keeps its old value.
    pub check_changes: Vec<String>,
    /// Whether a person allowed those.
    pub check_changes_allowed: bool,
    /// Whether it was to land without any check.
    pub no_check: bool,
    /// The target's tip when the landing was decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub landed_on: Option<CommitId>,
    /// The landed commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub landed: Option<CommitId>,
    /// Milliseconds that each step took, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<(String, u64)>,
}

/// How many paths changed, by how.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct ChangeCounts {
    /// New paths.
    pub added: u64,
    /// Paths with other content, mode or type.
    pub modified: u64,
    /// Paths that are gone.
    pub deleted: u64,
}

impl Facts {
    /// What is to be changed, in words.
    pub(crate) fn target_text(&self) -> Option<String> {
        if let Some(target) = &self.target {
            return Some(target.to_string());
        }
        let places = self.outputs.iter().map(|output| output.place.display().to_string());
        Some(places.collect::<Vec<_>>().join(", ")).filter(|text| !text.is_empty())
    }

    /// Whether there is a result that could land.
    pub(crate) fn has_result(&self) -> bool {
        self.change.is_some()
            || self.outputs.iter().any(|output| output.result.is_some())
            || !self.given.is_empty()
    }

    /// Whether the result is the same as that of `other`.
    pub(crate) fn same_result(&self, other: &Facts) -> bool {
        let results = |facts: &Facts| -> Vec<Option<Content>> {
            let outputs = facts.outputs.iter().map(|output| output.result.clone());
            outputs.chain(facts.given.iter().map(|given| Some(given.result.clone()))).collect()
        };
        self.change_tree == other.change_tree && results(self) == results(other)
    }

    /// Takes in a change set.
    pub(crate) fn set_change(&mut self, change: ChangeSet) {
        let cofferdam_git::harvest::ChangeCounts { added, modified, deleted } = change.counts;
        self.counts = Some(ChangeCounts { added, modified, deleted });
        self.paths = change.paths;
        self.change = Some(change.commit);
        self.change_tree = Some(change.tree);
        self.lfs = change.lfs;
    }

    /// Forgets what an attempt came to, but that there was one.
    pub(crate) fn forget_attempt(&mut self) {
        (self.exit_code, self.signal) = (None, None);
        (self.change, self.change_tree, self.counts) = (None, None, None);
        (self.paths, self.left_out) = (Vec::new(), Vec::new());
        self.lfs = Vec::new();
        self.outputs.iter_mut().for_each(|output| output.result = None);
        self.given.clear();
        self.publish_exit = None;
        self.died = false;
        (self.message, self.landed_on) = (None, None);
        self.diagnosis.clear();
        self.checks.clear();
    }

    /// The keys of what [`Facts::forget_attempt`] forgets, as the ledger forgets them.
    pub(crate) fn forgotten() -> serde_json::Value {
        let keys = [
            "exit_code",
            "signal",
            "change",
            "change_tree",
            "counts",
            "paths",
            "left_out",
            "lfs",
            "given",
            "publish_exit",
            "died",
            "message",
            "landed_on",
        ];
        let nulls = keys.map(|key| (key.to_owned(), serde_json::Value::Null));
        serde_json::Value::Object(nulls.into_iter().collect())
    }

    /// The facts of a task.
    ///
    /// # Errors
    /// [`Error::Internal`] when the record was made by something else.
    pub fn of(task: &Task) -> Result<Facts, Error> {
        serde_json::from_value(task.facts.clone()).map_err(|error| {
            Error::Internal(format!("the record of task `{}` is broken: {error}", task.id))
        })
    }

    pub(crate) fn to_value(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("facts serialise")
    }

    pub(crate) fn need<'a, T>(what: &'static str, value: Option<&'a T>) -> Result<&'a T, Error> {
        value.ok_or_else(|| Error::Internal(format!("the task's record lacks its {what}")))
    }
}

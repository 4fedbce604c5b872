//! What a person asked for.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use cofferdam_ledger::TaskName;
use cofferdam_sandbox::{Limits, Network, Wall};
use cofferdam_tree::TextOrBytes;
use serde::{Deserialize, Serialize};
use serde_with::As;

use crate::files::{Output, PublishCommand};
use crate::input::Input;
use crate::once::OnceKey;
use crate::series::OfSeries;

/// How strong the boundary is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A checkout of its own; by convention, and by Landlock where there is one.
    Worktree,
    /// Own namespaces.
    Sandbox,
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Level::Worktree => "worktree",
            Level::Sandbox => "sandbox",
        })
    }
}

/// Where the result is to go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Into {
    /// The branch that is checked out.
    Current,
    /// A named branch, local or `REMOTE/BRANCH`.
    Named(String),
    /// A new branch `dam/<name>`.
    NewBranch,
}

/// Where the files of a task's context come from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceRef {
    /// A commit of the repository that the caller is in.
    #[default]
    Repo,
    /// Nowhere: it begins empty, but for its inputs.
    Scratch,
    /// A directory, by its absolute path without symbolic links.
    Dir(PathBuf),
}

impl SourceRef {
    fn is_repo(&self) -> bool {
        *self == SourceRef::Repo
    }
}

/// A verifying command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Its name, for people.
    pub name: String,
    /// Run by `sh -c` at the top of the repository.
    pub run: String,
    /// How long it may take.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "duration")]
    pub timeout: Option<Duration>,
    /// Patterns of paths that are those of the target's tip when it runs, beside the
    /// files that its command names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<String>,
    /// How often it is tried again when it fails, for a check that fails by chance.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retry: u32,
    /// Whether it never uses a cache. None does yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clean: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Check {
    /// A check that says no more than its command.
    #[must_use]
    pub fn new(run: &str) -> Check {
        Check {
            name: run.to_owned(),
            run: run.to_owned(),
            timeout: None,
            pinned: Vec::new(),
            retry: 0,
            clean: false,
        }
    }
}

/// One task as it was asked for. Kept in the ledger, except for the values of
/// environment variables. Fields that a newer program added are passed over:
/// one of its tasks must not hide all others from an older program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// Program and arguments.
    #[serde(with = "As::<Vec<TextOrBytes>>")]
    pub argv: Vec<OsString>,
    /// Where its files come from.
    #[serde(default, skip_serializing_if = "SourceRef::is_repo")]
    pub source: SourceRef,
    /// What it is to make outside of any repository.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Output>,
    /// A command of the host's that is to publish what was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish: Option<PublishCommand>,
    /// The commit to start from; the target's tip when not given.
    pub base: Option<String>,
    /// Where the result is to go.
    pub into: Into,
    /// Checks from the command line.
    pub checks: Vec<Check>,
    /// Land without any check.
    pub no_check: bool,
    /// Paths that are not in the base and that the task gets a copy of, relative
    /// to the top of the repository.
    #[serde(with = "As::<Vec<TextOrBytes>>")]
    pub carry: Vec<PathBuf>,
    /// Start from the uncommitted work in the checkout.
    pub carry_dirty: bool,
    /// Names of further environment variables.
    pub env_names: Vec<String>,
    /// Their values; never kept.
    #[serde(skip)]
    pub env: Vec<(OsString, OsString)>,
    /// Network scope.
    pub network: Network,
    /// Whether nobody said so: a configuration can ask for another.
    #[serde(skip)]
    pub network_is_default: bool,
    /// How the second wall stands.
    pub wall: Wall,
    /// How long the command may take.
    #[serde(with = "duration")]
    pub timeout: Option<Duration>,
    /// The task's name.
    pub name: Option<TaskName>,
    /// The landed commit's message.
    pub message: Option<String>,
    /// Whether to land when everything is well.
    pub land: bool,
    /// Outside data that it may read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<Input>,
    /// What it may use at most.
    #[serde(default)]
    pub limits: Limits,
    /// Limits that the kernel has to enforce: `memory`, `cpus`, `pids`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub require: Vec<String>,
    /// Most of the command's output that is kept, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<u64>,
    /// The file of the repository that lessons are added to, relative to its top.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lessons: Option<String>,
    /// How often the command runs in its context while a check rejects what it did.
    #[serde(default = "once")]
    pub attempts: u32,
    /// Land a change to files that decide what a check says, if the checks pass with
    /// those of the target and with the changed ones.
    #[serde(default)]
    pub allow_check_changes: bool,
    /// Keep the context in any case.
    pub keep: bool,
    /// No writable files in the repository.
    pub read_only: bool,
    /// How strong the boundary has to be.
    pub level: Level,
    /// The key under which it is done once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<OnceKey>,
    /// The series that it is a run of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<OfSeries>,
    /// Whether another one for the same key is waited for.
    #[serde(skip)]
    pub wait: bool,
}

fn once() -> u32 {
    1
}

impl Request {
    /// The command as one line, for people.
    #[must_use]
    pub fn command(&self) -> String {
        self.argv.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }
}

mod duration {
    use super::{Deserialize, Duration};
    use serde::{Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "the signature that serde calls")]
    pub(super) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.serialize_some(&humantime::format_duration(*value).to_string()),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| humantime::parse_duration(&text).map_err(serde::de::Error::custom))
            .transpose()
    }
}

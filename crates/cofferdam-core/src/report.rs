//! What is told while a task runs.

use schemars::JsonSchema;
use serde::Serialize;

use crate::diagnose::Diagnosis;
use crate::receipt::{CheckReport, Isolation};

/// Something that happened. Printed as one line by `--format jsonl`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A task was created.
    Started {
        /// Its id.
        task: String,
        /// Its name.
        name: String,
        /// The commit it starts from.
        base: String,
        /// What is to be changed.
        target: String,
        /// What isolates it.
        isolation: Isolation,
        /// Whether no layer had to be made.
        warm: bool,
    },
    /// The command is started again in its context.
    Attempt {
        /// Which time this is.
        number: u32,
        /// Why.
        why: String,
    },
    /// A layer is being made.
    Layer {
        /// Files written.
        done: u64,
        /// Files in all.
        all: u64,
    },
    /// Uncommitted work that the task does not see.
    NotInBase {
        /// Tracked files with changes.
        changed: u64,
        /// Untracked files that are not ignored.
        untracked: u64,
    },
    /// It has to wait for another task.
    Waiting {
        /// What for.
        what: String,
        /// Whom for.
        holder: String,
    },
    /// The command printed something.
    Output {
        /// `out` or `err`.
        stream: &'static str,
        /// What, lossy where it is not UTF-8.
        text: String,
        /// The bytes themselves.
        #[serde(skip)]
        bytes: Vec<u8>,
    },
    /// A step is done.
    Step {
        /// Its name, in the past tense.
        step: &'static str,
        /// How long it took, in milliseconds.
        took_ms: u64,
        /// What came of it, for people.
        text: String,
    },
    /// A check has said something.
    Check(CheckReport),
    /// The log of a check that did not pass.
    CheckLog {
        /// The check.
        name: String,
        /// The end of what it printed.
        text: String,
    },
    /// Why the command or a check failed, as far as the isolation is the cause.
    Diagnosis(Diagnosis),
    /// Something that a person should know.
    Warning {
        /// What.
        text: String,
    },
}

/// Whoever listens.
pub trait Reporter: Sync {
    /// Something happened.
    fn report(&self, event: Event);
}

/// Nobody listens.
#[derive(Debug, Clone, Copy)]
pub struct Silent;

impl Reporter for Silent {
    fn report(&self, _event: Event) {}
}

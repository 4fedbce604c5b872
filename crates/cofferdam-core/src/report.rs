//! What is told while a task runs.

use std::time::{Duration, Instant};

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
    /// A step goes on that can take long. The first of a step comes when it begins.
    Progress {
        /// What is being done.
        step: &'static str,
        /// Files done.
        done: u64,
        /// Files in all; 0 where nobody knows.
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
    /// Another task has done, or is to do, what was asked for.
    Replayed {
        /// Its id.
        task: String,
        /// Its name.
        name: String,
        /// The key.
        key: String,
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

/// Tells how far a step is, not more often than somebody could read it.
pub(crate) struct Meter<'a> {
    reporter: &'a dyn Reporter,
    step: &'static str,
    told: Instant,
}

impl<'a> Meter<'a> {
    const EVERY: Duration = Duration::from_millis(200);

    /// A step begins.
    pub(crate) fn begin(reporter: &'a dyn Reporter, step: &'static str) -> Meter<'a> {
        reporter.report(Event::Progress { step, done: 0, all: 0 });
        Meter { reporter, step, told: Instant::now() }
    }

    /// It has come so far; 0 in all where nobody knows.
    pub(crate) fn at(&mut self, done: u64, all: u64) {
        if self.told.elapsed() >= Meter::EVERY {
            self.told = Instant::now();
            self.reporter.report(Event::Progress { step: self.step, done, all });
        }
    }
}

/// Nobody listens.
#[derive(Debug, Clone, Copy)]
pub struct Silent;

impl Reporter for Silent {
    fn report(&self, _event: Event) {}
}

//! The durable record of tasks, verdicts and publications.
//!
//! One SQLite file in WAL mode, opened by many processes at once. The ledger is
//! the authority on what happened; event files and receipts derive from it. It
//! knows nothing of git, sandboxes or files: what it can't name it holds as JSON.
//!
//! Entry point: [`Ledger::open`]. Then, in the order of a task's life:
//!
//! 1. [`Ledger::create_task`] reserves id and name; the state is `queued`.
//!    [`Ledger::create_task_once`] does so for the first who comes with a key.
//! 2. [`Ledger::transition`] moves the task along [`State::may_become`], one
//!    compare-and-swap per step, *before* the step begins.
//! 3. [`Ledger::record_verdict`] keeps what a check said about one candidate.
//! 4. [`Ledger::begin_publication`] writes the intent, [`Ledger::advance_publication`]
//!    the commit point, [`Ledger::land`] the end of both records at once.
//! 5. [`Ledger::settle`] says that the context is gone; the name is free again.
//! 6. [`Ledger::prune`] forgets old tasks; [`Ledger::checkpoint`] belongs to gc.
//!
//! Why this order: the record is always ahead of the deed, so a crash leaves a
//! record that names what may have been done, never a deed without a record.
//!
//! What callers can rely on:
//!
//! - A write is one transaction and applies whole or not at all. The error
//!   [`LedgerError::Injected`] from a failpoint named `…:after` is the exception:
//!   the write has been committed.
//! - Of two writers that race for the same step exactly one wins; the other gets
//!   [`LedgerError::Stale`].
//! - With [`Durability::Normal`] a write survives the death of the process, with
//!   [`Durability::Full`] also the loss of power.
//! - Times are wall-clock milliseconds since the epoch, for people. The clock can
//!   step back: order is `seq`.
//!
//! ```
//! use cofferdam_ledger::{Change, Durability, Ledger, NewTask, State, TaskId, TaskName};
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("ledger.db");
//! let mut ledger = Ledger::open(&path)?;
//! let task = ledger.create_task(NewTask {
//!     id: TaskId::parse("0a1b2c3d")?,
//!     name: TaskName::from_words("Fix the login page"),
//!     repo: String::new(),
//!     series: None,
//!     spec: serde_json::json!({ "command": ["make"] }),
//!     facts: serde_json::json!({}),
//! })?;
//! let task = ledger.transition(
//!     &task.id,
//!     State::Queued,
//!     State::Preparing,
//!     Change::default(),
//!     Durability::Normal,
//! )?;
//! assert_eq!(task.name.as_ref(), "fix-the-login-page");
//! assert_eq!(task.state, State::Preparing);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod error;
mod key;
mod name;
mod publication;
mod row;
mod schema;
mod series;
mod state;
mod store;
mod task;
mod verdict;

pub use error::{LedgerError, Result};
pub use key::{Claim, Key};
pub use name::{IdError, NameError, TaskId, TaskName};
pub use publication::{NewPublication, Publication, PublicationId};
pub use state::{Outcome, PublicationState, State};
pub use store::{Durability, Ledger, now_ms};
pub use task::{Change, Filter, NewTask, Task, TransitionRow};
pub use verdict::VerdictRow;

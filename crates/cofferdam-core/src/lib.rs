//! The life of a task: context, harvest, gate, landing, settle.
//!
//! [`task`] is the line that a task takes, one function an arrow. What each
//! arrow needs stands beside it:
//!
//! - [`request`] is what a person asked for, [`facts`] what was found out, both
//!   kept in the ledger; [`receipt`] is the evidence in the end.
//! - [`context`] makes a context's directories and view, [`boundary`] is the
//!   seam to what isolates it, [`supervise`] runs a command in one.
//! - [`harvest`] is both halves of reading a result.
//! - [`gate`] decides, [`target`] is the seam to what is changed, [`land`] is
//!   the landing from candidate to publication.
//! - [`enter`] lets a person into a context.
//! - [`apparmor`] is what an ordinary user's machine can need before all that.
//! - [`diagnose`] says why a command failed, as far as the isolation is the cause.
//! - [`reconcile`] picks up what a dead supervisor left; [`settle`] deletes.
//! - [`control`] is how a person ends a run, [`report`] how they hear of it.

#![forbid(unsafe_code)]

mod admit;
pub mod apparmor;
pub mod boundary;
pub mod config;
pub mod context;
pub mod control;
pub mod diagnose;
pub mod disk;
pub mod enter;
mod error;
pub mod facts;
pub mod files;
pub mod gate;
pub mod harvest;
pub mod input;
mod job;
mod judge_files;
pub mod land;
mod lessons;
pub mod limits;
mod log;
mod look;
pub mod lookup;
pub mod once;
pub mod overview;
pub mod query;
pub mod receipt;
pub mod reconcile;
mod repo;
pub mod report;
pub mod request;
pub mod series;
pub mod settle;
mod source;
mod state_dir;
pub mod supervise;
pub mod target;
pub mod task;
pub mod tools;
pub mod trust;

pub use error::{Error, ExitCode};
pub use log::{LogLine, read_log};
pub use state_dir::{Dam, TaskDir};

pub use cofferdam_ledger::{Outcome, State, Task, TaskId, TaskName};
pub use cofferdam_sandbox::{Limits, Network, Wall, init};
pub use cofferdam_tree::{RemoveError, remove_tree};

/// Which git this is.
///
/// # Errors
/// [`Error::Git`] when there is none, or one that is too old.
pub fn git_version() -> Result<String, Error> {
    Ok(cofferdam_git::version::query()?)
}

/// Finds out whether tasks of the caller can run here, by running something
/// behind `boundary` with its files where those of tasks would be.
///
/// # Errors
/// [`Error::Isolation`] with the step that does not work here.
pub fn probe(
    dam: &Dam,
    boundary: &dyn boundary::Boundary,
) -> Result<cofferdam_sandbox::probe::Ability, Error> {
    use error::IoContext;
    let name = format!("probe-{}", std::process::id());
    let dir = dam.tasks_dir().join(&name);
    std::fs::create_dir(&dir).at("make", &dir)?;
    let ids = cofferdam_sandbox::Ids::for_task(dam.dir()).at("look at", dam.dir())?;
    let ability = boundary.probe(&dir, ids);
    dam.trash.take(&dam.tasks_dir(), &name).at("move away", &dir)?;
    dam.trash.empty(std::time::Duration::from_secs(5)).at("empty", dam.trash.dir())?;
    ability
}

//! The seam to what isolates a context.
//!
//! A level is one implementation. It is probed by doing it, it puts a context's
//! files in place, a command runs behind it, and what the command changed comes out
//! of it as a stream of frames that is treated as hostile whoever wrote it.

mod sandbox;
mod worktree;

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_git::harvest::Rules;
use cofferdam_git::layer::{LayerMaker, LayerStack};
use cofferdam_git::{GitError, TreeId};
use cofferdam_sandbox::probe::Ability;
use cofferdam_sandbox::{Ids, Limits, Network, Spec, Starter};

use crate::context::{Context, Place, Told, What};
use crate::error::IoContext;
use crate::harvest::Helper;
use crate::receipt::Isolation;
use crate::request::{Level, Request};
use crate::tools::ToolDir;
use crate::{Error, TaskDir};

pub use sandbox::Sandbox;
pub use worktree::Worktree;

/// How long a killed process may take to be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Is told files done and files in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// See the module.
pub trait Boundary {
    /// Finds out whether it can be had, by doing it in `scratch`, an empty
    /// directory of ours.
    ///
    /// # Errors
    /// [`Error::Isolation`] with the step that does not work here.
    fn probe(&self, scratch: &Path, ids: Ids) -> Result<Ability, Error>;

    /// Refuses what a request wants and this level can't keep.
    ///
    /// # Errors
    /// [`Error::Usage`], [`Error::LevelNotAvailable`].
    fn admit(&self, request: &Request) -> Result<(), Error>;

    /// The limits that hold where a person says nothing.
    fn limits(&self) -> Limits;

    /// The network that a command has which is to have `asked`.
    fn network(&self, asked: Network) -> Network;

    /// What will be in force for a request that was admitted.
    fn isolation(&self, request: &Request, place: &Place) -> Isolation;

    /// The variables that every command behind it starts with.
    fn environment(&self, place: &Place) -> Vec<(OsString, OsString)>;

    /// The host's directories that a context has overlays of its own on.
    fn homes<'a>(&self, place: &'a Place) -> &'a [ToolDir];

    /// Where a command finds the object directories that are borrowed.
    fn object_dirs(&self, place: &Place) -> Vec<PathBuf>;

    /// Where a command finds the repository's files.
    fn top(&self, context: &Context, place: &Place) -> PathBuf;

    /// What a context of `tree` stands on. `near` is what the task stands on, for a
    /// check's: nobody will ask what that changed.
    ///
    /// # Errors
    /// When a layer can't be made.
    fn layers(
        &self,
        maker: &LayerMaker<'_>,
        tree: &TreeId,
        near: Option<&LayerStack>,
        progress: Progress<'_>,
    ) -> Result<LayerStack, GitError>;

    /// Puts the files of `tree` into a context that was just made.
    ///
    /// # Errors
    /// When they can't be written.
    fn fill(
        &self,
        maker: &LayerMaker<'_>,
        context: &Context,
        tree: &TreeId,
        progress: Progress<'_>,
    ) -> Result<(), GitError>;

    /// Starts the process that will put a command behind the boundary and waits to
    /// be told which; what that prints goes to `terminal`, when there is one.
    ///
    /// # Errors
    /// [`Error::Isolation`]. There is no weaker second try.
    fn start(&self, terminal: Option<OwnedFd>) -> Result<Starter, Error> {
        Starter::start(terminal).map_err(Error::Isolation)
    }

    /// The whole specification of a command in a context.
    ///
    /// # Errors
    /// When what it is told can't be put down.
    fn spec(
        &self,
        context: &Context,
        place: &Place,
        what: What<'_>,
        told: &Told,
    ) -> Result<Spec, Error>;

    /// Ends what is left of the processes of a task that nobody supervises any more,
    /// or whose pid 1 was killed, and waits for it.
    ///
    /// # Errors
    /// When one does not end.
    fn end_processes(&self, dir: &TaskDir, task: &str) -> Result<(), Error>;

    /// Whether it is certain, without a look at the files, that nothing has changed.
    fn is_untouched(&self, context: &Context) -> bool;

    /// What the command changed in a context whose last process is gone.
    ///
    /// # Errors
    /// When the reader can't be started.
    fn changes(&self, context: &Context, rules: &Rules) -> Result<Changes, Error>;
}

/// A stream of frames and the process that writes it.
pub struct Changes(Helper);

impl Changes {
    /// The frames.
    pub fn frames(&mut self) -> &mut (impl Read + use<>) {
        self.0.frames()
    }

    /// Waits for the process.
    ///
    /// # Errors
    /// When it failed.
    pub fn end(self) -> Result<(), Error> {
        self.0.end()
    }
}

/// Ends each pid 1 that a task had, found by pid, start time and boot.
fn end_first_processes(dir: &TaskDir) -> Result<(), Error> {
    for process in dir.processes() {
        process.kill_and_wait(PATIENCE).at("end the processes of", dir.path())?;
    }
    Ok(())
}

/// The boundary of a level.
#[must_use]
pub fn of_level(level: Level) -> &'static dyn Boundary {
    match level {
        Level::Sandbox => &Sandbox,
        Level::Worktree => &Worktree,
    }
}

//! The seam to what isolates a context.
//!
//! A level is one implementation. It is probed by doing it, a command runs
//! behind it, and what the command changed comes out of it as a stream of frames
//! that is treated as hostile whoever wrote it.

use std::io::Read;
use std::path::Path;

use cofferdam_git::harvest::Rules;
use cofferdam_sandbox::probe::Ability;
use cofferdam_sandbox::{Ids, SandboxError, Starter, probe};

use crate::Error;
use crate::context::Context;
use crate::harvest::{self, Helper};
use crate::request::Level;

/// See the module.
pub trait Boundary {
    /// Which level this is.
    fn level(&self) -> Level;

    /// Finds out whether it can be had, by doing it in `scratch`, an empty
    /// directory of ours.
    ///
    /// # Errors
    /// [`Error::Isolation`] with the step that does not work here.
    fn probe(&self, scratch: &Path, ids: Ids) -> Result<Ability, Error>;

    /// Starts the process that will put a command behind the boundary and waits to
    /// be told which.
    ///
    /// # Errors
    /// [`Error::Isolation`]. There is no weaker second try.
    fn start(&self) -> Result<Starter, Error>;

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

/// Own namespaces.
#[derive(Debug, Clone, Copy)]
pub struct Sandbox;

/// An isolation error is one only when the kernel refused a step; anything else
/// is ours.
fn isolation(error: SandboxError) -> Error {
    Error::Isolation(error)
}

impl Boundary for Sandbox {
    fn level(&self) -> Level {
        Level::Sandbox
    }

    fn probe(&self, scratch: &Path, ids: Ids) -> Result<Ability, Error> {
        probe::run(scratch, ids).map_err(isolation)
    }

    fn start(&self) -> Result<Starter, Error> {
        Starter::start().map_err(isolation)
    }

    fn changes(&self, context: &Context, rules: &Rules) -> Result<Changes, Error> {
        Ok(Changes(harvest::start(context, rules)?))
    }
}

/// The boundary of a level.
///
/// # Errors
/// [`Error::Usage`] for one that is not built yet.
pub fn of_level(level: Level) -> Result<Box<dyn Boundary>, Error> {
    match level {
        Level::Sandbox => Ok(Box::new(Sandbox)),
        Level::Worktree => Err(Error::usage(
            "level `worktree` is not available yet",
            "leave `--level` out: `sandbox` is stronger and is the default",
        )),
    }
}

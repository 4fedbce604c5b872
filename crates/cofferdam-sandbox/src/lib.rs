//! The boundary of a task: what it may see, what it may touch, and how it ends.
//!
//! A task runs in its own user, mount, pid, ipc, uts, net and cgroup
//! namespaces, below a root file system assembled for it alone, as an
//! unprivileged user, behind Landlock and a seccomp filter. With the host's own
//! view ([`View::Host`]) only Landlock is left of that.
//!
//! - [`Spec`] says what a task gets; [`view`] fills in the system part of it.
//! - [`Starter`] starts the task; [`Running`] is the supervisor's end of it.
//! - [`init::main`] is the other end: pid 1 of the task, a re-exec of the same
//!   binary. A binary that uses a [`Starter`] must call [`init::main`] first thing
//!   in `main` when its first argument is [`init::ARGUMENT`].
//! - [`Ids`] decides as whom a task runs: never as the host's uid 0.
//! - [`probe`] finds out what this machine can do, by doing it.
//! - [`process`] names processes so that a reused pid is never mistaken for one.

mod cgroup;
mod descendants;
mod ids;
pub mod init;
mod landlock;
pub mod limits;
mod mounts;
pub mod probe;
pub mod process;
mod seccomp;
mod spawn;
mod spec;
mod userns;
pub mod view;

pub use cgroup::refuse_delegated;
pub use descendants::end_marked;
pub use ids::{FALLBACK_ID, Ids};
pub use landlock::abi as landlock_abi;
pub use limits::Limits;
pub use mounts::read_only_overlay;
pub use spawn::{Event, Remote, Running, Starter};
pub use spec::{Command, Mount, Network, Spec, View, Wall};
pub use userns::enter as enter_user_namespace;

use std::path::PathBuf;

/// Why a task could not be started behind its boundary.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A step of building the boundary was refused by the kernel. Nothing of
    /// the task has run.
    #[error("{step}{}: {}", path_suffix(path), std::io::Error::from_raw_os_error(*errno))]
    Setup {
        /// What was being done, as a fragment: `create a user namespace`.
        step: String,
        /// The path concerned, if any.
        path: Option<PathBuf>,
        /// The kernel's error number.
        errno: i32,
    },
    /// The probe's program could do what it must not, or not what it must.
    #[error("a program that was tried in it ended with exit code {0}")]
    Probe(i32),
    /// The process that builds the boundary ended without a word.
    #[error("the process that prepares the sandbox ended early ({0})")]
    InitDied(String),
    /// The supervisor's own side failed.
    #[error("{step}")]
    Supervisor {
        /// What was being done.
        step: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}

impl SandboxError {
    /// Whether the disk of a context is full: other steps that the kernel refuses with
    /// the same error number met a limit on namespaces or mounts.
    #[must_use]
    pub fn is_for_want_of_room(&self) -> bool {
        matches!(self, SandboxError::Setup { step, errno, .. }
            if *errno == libc::ENOSPC && step == mounts::OVERLAY)
    }

    /// The same, of this path.
    fn of(self, path: &std::path::Path) -> SandboxError {
        match self {
            SandboxError::Setup { step, errno, .. } => {
                SandboxError::Setup { step, path: Some(path.to_owned()), errno }
            }
            other => other,
        }
    }
}

fn path_suffix(path: &Option<PathBuf>) -> String {
    path.as_ref().map(|path| format!(" `{}`", path.display())).unwrap_or_default()
}

//! What a landing changes outside of any repository.
//!
//! | target | what a reader sees meanwhile | commit point |
//! |---|---|---|
//! | [`mod@file`] | the old content or the new one, whole | the rename |
//! | [`append`] | the file without the new records, or with all of them | the rename |
//! | [`patch`] | each file whole, but some old and some new | the redo record |
//! | [`tree`] | the old directory or the new one, whole | the exchange of two names, or the rename of a link |
//!
//! Each goes through the same steps: it is *looked at* when the task begins, which
//! gives its [`Fingerprint`]; the new content is *staged* beside it and synced; then,
//! looked at again and found as it was, it is *committed*; after a crash it is
//! *recovered*, from what the journal said before the commit: where, the name of what
//! was staged, what was there and what was to be. A patch, which commits before it changes
//! anything, is *applied* instead, as often as it takes.
//!
//! Nothing here takes a lock: who publishes holds one for the target.

pub mod append;
mod beside;
mod copy;
pub mod file;
mod fingerprint;
pub mod patch;
pub mod redo;
mod stamp;
pub mod tree;

pub use copy::content as copy_content;
pub use file::FileTarget;
pub use fingerprint::{Fingerprint, hex};
pub use patch::PatchTarget;
pub use redo::Redo;
pub use stamp::Stamp;
pub use tree::{TreeFingerprint, TreeTarget};

use std::io;
use std::path::{Path, PathBuf};

/// Why a target could not be looked at or changed.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// What is there can't be replaced by what was made.
    #[error("`{}` is {found}", path.display())]
    Unsuitable {
        /// The target.
        path: PathBuf,
        /// What it is, as a fragment: `a directory`.
        found: &'static str,
    },
    /// It is not what it was when the task began. Nothing has changed.
    #[error("`{}` {how}", path.display())]
    Drifted {
        /// The target.
        path: PathBuf,
        /// What it did, as a fragment: `has changed since the task began`.
        how: &'static str,
    },
    /// A line of what was to be appended is no record. Nothing has changed.
    #[error("line {line} of the records for `{}` {how}", path.display())]
    Record {
        /// The target.
        path: PathBuf,
        /// Which line, from 1.
        line: u64,
        /// What is wrong with it, as a fragment: `is not UTF-8`.
        how: String,
    },
    /// A redo record can't be trusted. Nothing has changed.
    #[error("the redo record `{}` {how}", path.display())]
    Redo {
        /// The record, or the directory that it is about.
        path: PathBuf,
        /// What is wrong with it, as a fragment: `has version 2, not 1`.
        how: String,
    },
    /// It can't be replaced as one step at this place. Nothing has changed.
    #[error("{step} `{}`: {why}; {instead}", path.display())]
    NotHere {
        /// What was being done, as a fragment: `exchange`.
        step: &'static str,
        /// The target.
        path: PathBuf,
        /// Why not, as a clause: `something is mounted on it`.
        why: &'static str,
        /// What works, as a clause.
        instead: &'static str,
    },
    /// A system call failed. Before the commit point nothing has changed.
    #[error("{step} `{}`", path.display())]
    Io {
        /// What was being done, as a fragment: `copy the result beside`.
        step: &'static str,
        /// The target.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl TargetError {
    /// The kernel's answer, where there is one.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            TargetError::Io { source, .. } => source
                .raw_os_error()
                .or_else(|| source.get_ref()?.downcast_ref::<tree::TreeError>()?.raw_os_error()),
            TargetError::Unsuitable { .. }
            | TargetError::Drifted { .. }
            | TargetError::Record { .. }
            | TargetError::Redo { .. }
            | TargetError::NotHere { .. } => None,
        }
    }
}

/// On which side of the commit point a dead process left a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovered {
    /// It had changed, and is what it was to be.
    Committed,
    /// It had changed, and somebody has changed it since.
    ChangedSince,
    /// It had not changed. What was staged is gone.
    NotCommitted,
}

/// Adds to a failed system call what was being done, and with what.
trait Step<T> {
    fn step(self, step: &'static str, path: &Path) -> Result<T, TargetError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: &'static str, path: &Path) -> Result<T, TargetError> {
        self.map_err(|error| TargetError::Io { step, path: path.into(), source: error.into() })
    }
}

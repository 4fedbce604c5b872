//! Why a tree could not be read or copied, with the place in it.

use std::io;

use rustix::io::Errno;

use crate::path::BytePath;
use crate::walk::WalkError;

/// Why a tree could not be read or copied. Paths are relative to its top.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The walk ended early.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// It holds something that is not copied.
    #[error("`{path}` is {found}")]
    Refused {
        /// The entry.
        path: BytePath,
        /// What it is, as a fragment: `a named pipe`.
        found: &'static str,
    },
    /// A copy can't belong to whom the original does.
    #[error("owner {uid}:{gid} of `{path}` can't be kept: {source}")]
    Owner {
        /// The entry.
        path: BytePath,
        /// The owner that it was to have.
        uid: u32,
        /// The group that it was to have.
        gid: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Anything else: [`io::ErrorKind::Interrupted`] when the caller said so.
    #[error("{step} `{path}`: {source}")]
    Io {
        /// What was being done, as a fragment: `copy`.
        step: &'static str,
        /// The entry.
        path: BytePath,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl TreeError {
    pub(super) fn io(step: &'static str, path: &[u8], source: impl Into<io::Error>) -> TreeError {
        TreeError::Io { step, path: path.into(), source: source.into() }
    }

    fn source(&self) -> Option<&io::Error> {
        match self {
            TreeError::Walk(WalkError::Io { source, .. })
            | TreeError::Owner { source, .. }
            | TreeError::Io { source, .. } => Some(source),
            TreeError::Walk(_) | TreeError::Refused { .. } => None,
        }
    }

    /// Whether whoever was told how far it is said no.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self, TreeError::Io { source, .. } if source.kind() == io::ErrorKind::Interrupted)
    }

    /// The kernel's answer, where there is one.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            TreeError::Walk(WalkError::Unreadable { .. }) => Some(Errno::ACCESS.raw_os_error()),
            _ => self.source()?.raw_os_error(),
        }
    }
}

impl From<TreeError> for io::Error {
    fn from(error: TreeError) -> io::Error {
        let kind = match &error {
            TreeError::Walk(WalkError::Unreadable { .. }) => io::ErrorKind::PermissionDenied,
            TreeError::Refused { .. } => io::ErrorKind::InvalidInput,
            _ => error.source().map_or(io::ErrorKind::Other, io::Error::kind),
        };
        io::Error::new(kind, error)
    }
}

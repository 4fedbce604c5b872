//! What can go wrong with the ledger.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

use crate::{PublicationId, PublicationState, State, TaskId, TaskName};

/// The result of a call on the ledger.
pub type Result<T, E = LedgerError> = std::result::Result<T, E>;

/// An error of the ledger. Unless it says otherwise, nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The file can't be created or opened.
    #[error("open the ledger `{}`: {source}", path.display())]
    Open {
        /// The ledger's file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is no SQLite database, or one with something else in it.
    #[error("`{}` is not a ledger: {what}", path.display())]
    NotALedger {
        /// The file.
        path: PathBuf,
        /// What was found there.
        what: String,
    },
    /// The file is a torn or damaged SQLite database.
    #[error("the ledger `{}` is damaged: {source}", path.display())]
    Damaged {
        /// The ledger's file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// The ledger was written by a newer version of the program.
    #[error("the ledger `{}` has version {found}, this program knows {known}", path.display())]
    Newer {
        /// The ledger's file.
        path: PathBuf,
        /// The ledger's version.
        found: i32,
        /// The newest version that this program reads.
        known: i32,
    },
    /// Others held the write lock for 30 seconds.
    #[error("the ledger `{}` stayed locked by another process for 30 s", path.display())]
    Busy {
        /// The ledger's file.
        path: PathBuf,
    },
    /// SQLite failed in any other way (disk full, read-only, I/O).
    #[error("use the ledger `{}`: {source}", path.display())]
    Sqlite {
        /// The ledger's file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// A row holds what this version can't have written.
    #[error("the ledger `{}` holds {what}", path.display())]
    Corrupt {
        /// The ledger's file.
        path: PathBuf,
        /// Which value, of which row.
        what: String,
    },
    /// Facts and journals are JSON objects.
    #[error("{what} of a record must be a JSON object")]
    NotAnObject {
        /// `facts` or `journal`.
        what: &'static str,
    },
    /// A task with this id exists.
    #[error("task id `{id}` is taken")]
    IdTaken {
        /// The id.
        id: TaskId,
    },
    /// A task that is not settled has this name.
    #[error("the name `{name}` is taken by task `{holder}`")]
    NameTaken {
        /// The name.
        name: TaskName,
        /// Who has it.
        holder: TaskId,
    },
    /// A task that was asked for something else holds this key or has spent it.
    #[error("the key `{key}` is that of `{holder}`, which was asked for something else")]
    KeyOfAnother {
        /// The key.
        key: String,
        /// Whose it is.
        holder: TaskName,
    },
    /// No task has this id.
    #[error("there is no task `{id}`")]
    NoSuchTask {
        /// The id.
        id: TaskId,
    },
    /// Several ids begin with the given text.
    #[error("`{prefix}` fits several tasks: {}", list(candidates))]
    Ambiguous {
        /// The text.
        prefix: String,
        /// Newest first, at most eight.
        candidates: Vec<TaskId>,
    },
    /// The task has moved on.
    #[error("task `{id}` is `{found}`, not `{expected}`")]
    Stale {
        /// The task.
        id: TaskId,
        /// The state the caller believed in.
        expected: State,
        /// The state in the ledger.
        found: State,
    },
    /// [`State::may_become`] forbids the step.
    #[error("a task can't go from `{from}` to `{to}`")]
    Illegal {
        /// The present state.
        from: State,
        /// The state asked for.
        to: State,
    },
    /// The task is past a commit point: it may not end as if nothing had landed.
    #[error("task `{id}` has changed its target and can't become `{to}`")]
    Committed {
        /// The task.
        id: TaskId,
        /// The publication that is `committed` or `done`.
        publication: PublicationId,
        /// The state asked for.
        to: State,
    },
    /// A live task can't be settled.
    #[error("task `{id}` is `{state}` and can't be settled")]
    Live {
        /// The task.
        id: TaskId,
        /// Its state.
        state: State,
    },
    /// The task has no such publication.
    #[error("there is no publication {id}{}", of_task(task.as_ref()))]
    NoSuchPublication {
        /// The publication.
        id: PublicationId,
        /// The task it was looked for in, if in one.
        task: Option<TaskId>,
    },
    /// The publication has moved on.
    #[error("publication {id} is `{found}`, not `{expected}`")]
    StalePublication {
        /// The publication.
        id: PublicationId,
        /// The state the caller believed in.
        expected: PublicationState,
        /// The state in the ledger.
        found: PublicationState,
    },
    /// [`PublicationState::may_become`] forbids the step.
    #[error("a publication can't go from `{from}` to `{to}`")]
    IllegalPublication {
        /// The present state.
        from: PublicationState,
        /// The state asked for.
        to: PublicationState,
    },
    /// A failpoint asked for this error. Past an `:after` point the write stands.
    #[error("injected failure: {0}")]
    Injected(#[source] io::Error),
}

impl LedgerError {
    /// Whether the disk that the ledger is on has no room left.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::Sqlite { source, .. } => is_full(source),
            Self::Open { source, .. } | Self::Injected(source) => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            _ => false,
        }
    }

    /// Whether a write failed for a reason that SQLite keeps to itself.
    #[must_use]
    pub fn is_failed_write(&self) -> bool {
        let Self::Sqlite { source, .. } = self else { return false };
        let rusqlite::Error::SqliteFailure(error, _) = source else { return false };
        is_full(source)
            || matches!(
                error.extended_code,
                rusqlite::ffi::SQLITE_IOERR_WRITE | rusqlite::ffi::SQLITE_IOERR_TRUNCATE
            )
    }

    /// Whether the ledger can be read and not written.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::Sqlite { source, .. } => matches!(
                source.sqlite_error_code(),
                Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied)
            ),
            Self::Open { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied
            ),
            _ => false,
        }
    }
}

/// Its own word for it, or that of the file of shared memory: SQLite can't make that
/// as large as it has to be.
fn is_full(source: &rusqlite::Error) -> bool {
    let rusqlite::Error::SqliteFailure(error, _) = source else { return false };
    error.code == ErrorCode::DiskFull
        || matches!(
            error.extended_code,
            rusqlite::ffi::SQLITE_IOERR_SHMSIZE
                | rusqlite::ffi::SQLITE_IOERR_SHMOPEN
                | rusqlite::ffi::SQLITE_IOERR_SHMMAP
        )
}

fn list(ids: &[TaskId]) -> String {
    ids.iter().map(TaskId::as_ref).collect::<Vec<_>>().join(", ")
}

fn of_task(task: Option<&TaskId>) -> String {
    task.map(|id| format!(" of task `{id}`")).unwrap_or_default()
}

/// An error inside a transaction, before it is known which file it is about.
#[derive(Debug)]
pub(crate) enum Fault {
    Sql(rusqlite::Error),
    /// The row holds this.
    Corrupt(String),
    Ledger(LedgerError),
}

impl From<rusqlite::Error> for Fault {
    fn from(source: rusqlite::Error) -> Self {
        Self::Sql(source)
    }
}

impl From<LedgerError> for Fault {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

impl Fault {
    pub(crate) fn at(self, path: &Path) -> LedgerError {
        match self {
            Self::Ledger(error) => error,
            Self::Corrupt(what) => LedgerError::Corrupt { path: path.to_owned(), what },
            Self::Sql(source) => at(path, source),
        }
    }
}

/// Names the file that `source` is about.
pub(crate) fn at(path: &Path, source: rusqlite::Error) -> LedgerError {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => LedgerError::Busy { path },
        Some(ErrorCode::NotADatabase) => {
            LedgerError::NotALedger { path, what: "no SQLite database".to_owned() }
        }
        Some(ErrorCode::DatabaseCorrupt) => LedgerError::Damaged { path, source },
        _ => LedgerError::Sqlite { path, source },
    }
}

//! The whole error space, with an exit code for each kind.

use std::path::PathBuf;

use cofferdam_git::GitError;
use cofferdam_ledger::{LedgerError, State, TaskName};
use cofferdam_sandbox::SandboxError;
use cofferdam_sandbox::limits::Rung;
use cofferdam_tree::LockError;
use cofferdam_tree::target::TargetError;
use cofferdam_tree::target::tree::TreeError;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::apparmor;
use crate::request::Level;

/// What the process ends with. Stable: scripts and schedulers rely on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// Landed, or nothing changed.
    Done = 0,
    /// The command failed, or was not found.
    CommandFailed = 1,
    /// The request makes no sense here.
    Usage = 2,
    /// A check said no.
    Rejected = 3,
    /// Conflict, drift, superseded.
    Conflict = 4,
    /// Held by another.
    Held = 5,
    /// The isolation asked for is not to be had here.
    Isolation = 6,
    /// Time was up.
    TimedOut = 7,
    /// Waits for a person.
    Ready = 8,
    /// A disk is full, or a limit of the caller's is reached.
    NoRoom = 9,
    /// An error of ours.
    Internal = 70,
    /// Interrupted.
    Interrupted = 130,
}

impl ExitCode {
    /// The one with this number; an internal error when there is none.
    #[must_use]
    pub fn of_number(number: u8) -> ExitCode {
        use ExitCode::*;
        let all = [
            Done,
            CommandFailed,
            Usage,
            Rejected,
            Conflict,
            Held,
            Isolation,
            TimedOut,
            Ready,
            NoRoom,
            Interrupted,
        ];
        all.into_iter().find(|code| *code as u8 == number).unwrap_or(Internal)
    }

    /// What a task that ended in `state` means for the caller.
    #[must_use]
    pub fn of_state(state: State) -> ExitCode {
        match state {
            State::Landed | State::Empty => ExitCode::Done,
            State::Failed => ExitCode::CommandFailed,
            State::Rejected => ExitCode::Rejected,
            State::Conflicted | State::Superseded => ExitCode::Conflict,
            State::TimedOut => ExitCode::TimedOut,
            State::Ready | State::InDoubt => ExitCode::Ready,
            State::Cancelled => ExitCode::Interrupted,
            _ => ExitCode::Internal,
        }
    }
}

/// Everything that can go wrong, in terms of what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request makes no sense here.
    #[error("{message}")]
    Usage {
        /// What is wrong.
        message: String,
        /// What would help.
        hint: Option<String>,
    },
    /// No task of that name or id.
    #[error("there is no task `{0}`")]
    NoSuchTask(String),
    /// Not possible in the task's state.
    #[error("task `{name}` is {state}: {why}")]
    WrongState {
        /// The task.
        name: String,
        /// Where it is.
        state: State,
        /// Why that is in the way.
        why: String,
    },
    /// The task's supervisor is at work.
    #[error("task `{0}` is running")]
    Live(String),
    /// A task for the same key is at work, and was not to be waited for.
    #[error("`{name}` is at work for the key `{key}`")]
    KeyHeld {
        /// The key.
        key: String,
        /// The task.
        name: TaskName,
    },
    /// No series of that name.
    #[error("there is no series `{0}`")]
    NoSuchSeries(String),
    /// Another run of the series is at work, and was not to be waited for.
    #[error("a run of the series `{series}` is at work{}", at_work.as_ref().map(|name| format!(": `{name}`")).unwrap_or_default())]
    SeriesBusy {
        /// The series.
        series: TaskName,
        /// The run, when it is known already.
        at_work: Option<String>,
    },
    /// The series has failed too often.
    #[error("the series `{series}` has stopped: {why}")]
    SeriesStopped {
        /// The series.
        series: TaskName,
        /// Why.
        why: String,
    },
    /// A person lost patience; nothing has changed.
    #[error("interrupted")]
    Interrupted,
    /// The boundary can't be had.
    #[error("the sandbox can't be had here")]
    Isolation(#[source] SandboxError),
    /// The level can't be had by this caller.
    #[error("level `{level}` can't be had here: {why}")]
    LevelNotAvailable {
        /// Which.
        level: Level,
        /// Why.
        why: String,
    },
    /// Landlock was required.
    #[error("Landlock does not stand here: the kernel has none, or `--nested` takes it away")]
    NoLandlock,
    /// A tool home is in the way of the boundary.
    #[error("{home} can't be had inside")]
    ToolHome {
        /// Which: path and name.
        home: String,
        /// What would help.
        remedy: String,
        /// What was refused.
        source: SandboxError,
    },
    /// A limit that has to be enforced by the kernel can't be here.
    #[error("the limit `{limit}` can't be enforced by the kernel here{}", rung.map(|rung| format!(": there is only `{}`", rung.as_str())).unwrap_or_else(|| ": it was not set".into()))]
    LimitNotEnforced {
        /// Which.
        limit: String,
        /// What there is instead.
        rung: Option<Rung>,
    },
    /// The state directory can't be used.
    #[error("the state directory `{path}` can't be used: {why}")]
    StateDir {
        /// Where.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// git.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A lock of ours.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A file of ours.
    #[error("failed to {step} `{path}`")]
    Io {
        /// What was being done.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file that a task is to make or replace.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A configuration.
    #[error("{file}: {message}")]
    Config {
        /// Which file.
        file: String,
        /// What is wrong.
        message: String,
    },
    /// The caller may have no more threads.
    #[error("a thread can't be started")]
    NoThread(#[source] std::io::Error),
    /// AppArmor's parser refused something.
    #[error("`{command}` failed: {said}")]
    AppArmor {
        /// How it was called.
        command: String,
        /// What it said.
        said: String,
    },
    /// What went wrong with a task.
    #[error("{error}")]
    OfTask {
        /// Its name.
        name: TaskName,
        /// What.
        #[source]
        error: Box<Error>,
    },
    /// A record or answer of ours that makes no sense.
    #[error("{0}")]
    Internal(String),
}

impl Error {
    pub(crate) fn usage(
        message: impl Into<String>,
        hint: impl Into<Option<&'static str>>,
    ) -> Error {
        Error::Usage { message: message.into(), hint: hint.into().map(str::to_owned) }
    }

    /// The same, said of a task.
    pub(crate) fn of_task(self, name: &TaskName) -> Error {
        match self {
            Error::OfTask { .. } => self,
            other => Error::OfTask { name: name.clone(), error: Box::new(other) },
        }
    }

    /// The process's exit code for this error.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        if let Error::OfTask { error, .. } = self {
            return error.exit_code();
        }
        if self.is_for_want_of_room() || self.limit().is_some() {
            return ExitCode::NoRoom;
        }
        match self {
            Error::Usage { .. }
            | Error::NoSuchTask(_)
            | Error::NoSuchSeries(_)
            | Error::Config { .. } => ExitCode::Usage,
            Error::WrongState { .. } => ExitCode::Usage,
            Error::Interrupted => ExitCode::Interrupted,
            Error::Git(
                GitError::NotARepository(_)
                | GitError::Gone(_)
                | GitError::Unborn(_)
                | GitError::NotTrusted { .. }
                | GitError::NoSuchRevision(_)
                | GitError::Unsupported(_)
                | GitError::Lfs { .. }
                | GitError::MissingObject(_)
                | GitError::CorruptObject { .. }
                | GitError::Submodule { .. }
                | GitError::NotStarted(_),
            ) => ExitCode::Usage,
            Error::Git(GitError::Refused(_)) => ExitCode::CommandFailed,
            Error::Git(GitError::Locked(_)) => ExitCode::Held,
            Error::Ledger(LedgerError::NameTaken { .. }) | Error::Live(_) => ExitCode::Held,
            Error::KeyHeld { .. } | Error::SeriesBusy { .. } | Error::SeriesStopped { .. } => {
                ExitCode::Held
            }
            Error::Ledger(LedgerError::Newer { .. } | LedgerError::KeyOfAnother { .. }) => {
                ExitCode::Usage
            }
            Error::Ledger(error) if error.is_read_only() => ExitCode::Isolation,
            Error::Lock(_) if self.is_denied() => ExitCode::Isolation,
            Error::Git(error) if error.is_denied() => ExitCode::Isolation,
            Error::Target(TargetError::Unsuitable { .. } | TargetError::NotHere { .. }) => {
                ExitCode::Usage
            }
            Error::Target(TargetError::Drifted { .. }) => ExitCode::Conflict,
            Error::Target(_) if self.is_denied() || self.is_missing() => ExitCode::Usage,
            Error::Target(_) | Error::Io { .. } if self.is_unfit() => ExitCode::Usage,
            Error::Isolation(_)
            | Error::StateDir { .. }
            | Error::LevelNotAvailable { .. }
            | Error::NoLandlock
            | Error::AppArmor { .. }
            | Error::ToolHome { .. }
            | Error::LimitNotEnforced { .. } => ExitCode::Isolation,
            _ => ExitCode::Internal,
        }
    }

    /// Whether what was to be written may not be.
    fn is_denied(&self) -> bool {
        use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        match self {
            Error::Ledger(error) => error.is_read_only(),
            _ => causes(self).any(|cause| {
                let error = cause.downcast_ref::<std::io::Error>();
                error.is_some_and(|error| {
                    matches!(error.kind(), ReadOnlyFilesystem | PermissionDenied)
                })
            }),
        }
    }

    /// Whether a path is none that could be meant, or leads to what nothing is done with.
    fn is_unfit(&self) -> bool {
        use rustix::io::Errno;
        const NO_PATH: [Errno; 3] = [Errno::NOTDIR, Errno::LOOP, Errno::NAMETOOLONG];
        causes(self).filter_map(|cause| cause.downcast_ref::<std::io::Error>()).any(|error| {
            let refused = error.get_ref().and_then(|inner| inner.downcast_ref::<TreeError>());
            matches!(refused, Some(TreeError::Refused { .. }))
                || Errno::from_io_error(error).is_some_and(|errno| NO_PATH.contains(&errno))
        })
    }

    /// Whether what was to be there is not.
    pub(crate) fn is_missing(&self) -> bool {
        causes(self).any(|cause| {
            let error = cause.downcast_ref::<std::io::Error>();
            error.is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        })
    }

    /// Whether a disk is full, or has no more files to give, or a quota is used up.
    #[must_use]
    pub fn is_for_want_of_room(&self) -> bool {
        match self {
            Error::OfTask { error, .. } => error.is_for_want_of_room(),
            Error::Ledger(error) => error.is_full(),
            Error::Git(error) if error.is_for_want_of_room() => true,
            Error::Isolation(error) => error.is_for_want_of_room(),
            Error::ToolHome { .. } => false,
            _ => causes(self).any(|cause| {
                cause.downcast_ref::<std::io::Error>().is_some_and(|error| {
                    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
                    matches!(error.kind(), StorageFull | QuotaExceeded)
                })
            }),
        }
    }

    /// The limit of the caller's that is in the way, in words.
    pub(crate) fn limit(&self) -> Option<&'static str> {
        const PROCESSES: &str = "no more processes or threads can be started: see `ulimit -u`, and \
                                 `pids.max` of the control group";
        const SIZE: &str = "a limit on the size of files is in the way: see `ulimit -f`";
        let is_setup = |errno: Errno| {
            matches!(self, Error::Isolation(SandboxError::Setup { errno: found, .. })
                if *found == errno.raw_os_error())
        };
        let is_source = |errno: Errno| {
            causes(self).any(|cause| {
                cause
                    .downcast_ref::<std::io::Error>()
                    .is_some_and(|error| error.raw_os_error() == Some(errno.raw_os_error()))
            })
        };
        let is_too_large = match self {
            Error::Git(error) if error.is_too_large() => true,
            Error::Ledger(error) => {
                error.is_failed_write() && getrlimit(Resource::Fsize).current.is_some()
            }
            _ => is_source(Errno::FBIG),
        };
        if is_too_large {
            return Some(SIZE);
        }
        let is_git = matches!(self, Error::Git(error) if error.is_at_process_limit());
        (is_git || is_setup(Errno::AGAIN) || is_source(Errno::AGAIN)).then_some(PROCESSES)
    }

    /// What a person can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        if let Error::OfTask { name, error } = self {
            let is_of_it = matches!(**error, Error::Git(GitError::Refused(_) | GitError::Gone(_)));
            return error
                .hint()
                .map(|hint| if is_of_it { hint.replace("NAME", name.as_ref()) } else { hint });
        }
        if let Some(limit) = self.limit() {
            return Some(limit.into());
        }
        if self.is_for_want_of_room() {
            return Some(
                "a disk is full: `dam gc` and `dam drop NAME` give back what tasks have on it; then \
                 `dam land NAME` goes on with work that was done"
                    .into(),
            );
        }
        match self {
            Error::Usage { hint, .. } => hint.clone(),
            Error::NoSuchTask(_) => Some("`dam list` shows the tasks there are".into()),
            Error::Isolation(error) => isolation_hint(error, apparmor::is_missing("/".as_ref())),
            Error::LevelNotAvailable { .. } => {
                Some("leave `--level` out: `sandbox` runs it as another user".into())
            }
            Error::ToolHome { remedy, .. } => Some(remedy.clone()),
            Error::LimitNotEnforced { .. } => Some(
                "control groups that are delegated (`systemd-run --user --scope -p Delegate=yes`), \
                 or root, can enforce it"
                    .into(),
            ),
            Error::StateDir { .. } => {
                Some("set `COFFERDAM_STATE` to a directory on a local disk".into())
            }
            Error::Ledger(LedgerError::Newer { .. }) => Some(
                "a newer `dam` has written it: use that one, or another directory with \
                 `COFFERDAM_STATE`"
                    .into(),
            ),
            Error::Ledger(LedgerError::NotALedger { .. } | LedgerError::Damaged { .. }) => Some(
                "nothing of it was changed. Put back a copy of it, or move it away with its `-wal` \
                 and `-shm`: a new one is made then, the work in `contexts` stays, and `dam gc` \
                 names it"
                    .into(),
            ),
            Error::Git(error) if error.is_denied() => {
                Some("the repository can't be written here, by you".into())
            }
            Error::Ledger(_) | Error::Lock(_) if self.is_denied() => Some(
                "the state directory can't be written; `COFFERDAM_STATE` names another".into(),
            ),
            Error::Ledger(LedgerError::NameTaken { name, .. }) => Some(format!(
                "`dam show {name}` shows it; `dam drop {name}` frees the name and deletes its context"
            )),
            Error::NoSuchSeries(_) => Some("`dam list --series` shows those there are".into()),
            Error::SeriesBusy { .. } => Some(
                "this run did not begin; `--overlap wait` waits for the other's end, `--overlap \
                 allow` does not mind it"
                    .into(),
            ),
            Error::SeriesStopped { series, .. } => Some(format!(
                "when it is mended, `dam resume {series}` lets it go on"
            )),
            Error::KeyHeld { .. } => Some("without `--no-wait` its outcome is waited for".into()),
            Error::Ledger(LedgerError::KeyOfAnother { holder, .. }) => Some(format!(
                "`dam show {holder}` shows what that was; another request needs another key, in another \
                 repository too: put the name of the loop into it"
            )),
            Error::Live(name) => {
                Some(format!("`dam stop {name}` ends it, `dam wait {name}` waits for it"))
            }
            Error::Git(GitError::NotARepository(_)) if std::env::var_os("GIT_DIR").is_some() => {
                Some("`GIT_DIR` is not followed: change into the repository".into())
            }
            Error::Git(GitError::Gone(_)) => Some(
                "when it is there again, `dam land NAME` goes on with work that was done; \
                 `dam drop NAME` gives it up"
                    .into(),
            ),
            Error::Git(GitError::NotARepository(_)) => {
                Some("change into the repository that the work is for".into())
            }
            Error::Git(GitError::NotTrusted { dir, .. }) => Some(format!(
                "if you trust what is in it: `git config --global --add safe.directory {}`",
                dir.display()
            )),
            Error::Git(GitError::Refused(_)) => Some(
                "its context is kept: `dam enter NAME` goes in to mend it, `dam list` names it".into(),
            ),
            Error::Git(GitError::Lfs { .. }) => Some(
                "`git lfs install` and `git lfs pull` make it whole; with `GIT_LFS_SKIP_SMUDGE=1` \
                 tasks see pointers"
                    .into(),
            ),
            Error::Git(GitError::MissingObject(_)) => Some(
                "`git fetch --refetch --no-filter` fetches what a partial clone left out; in \
                 any other, `git fsck` says what else is missing"
                    .into(),
            ),
            Error::Git(GitError::CorruptObject { .. }) => Some(
                "`git fsck` says what else is damaged; a copy of the object in another clone, put \
                 in its place, mends it"
                    .into(),
            ),
            Error::Git(GitError::Submodule { .. }) => {
                Some("`git submodule update --init --recursive` brings it up to date".into())
            }
            Error::Git(GitError::Unborn(_)) => Some("make a first commit".into()),
            Error::Git(GitError::NotStarted(_)) => Some("install git, 2.38 or newer".into()),
            _ => None,
        }
    }
}

/// An error and what it came from.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

fn isolation_hint(error: &SandboxError, profile_is_missing: bool) -> Option<String> {
    let SandboxError::Setup { step, errno, .. } = error else { return None };
    let denied = matches!(
        rustix::io::Errno::from_raw_os_error(*errno),
        rustix::io::Errno::PERM
            | rustix::io::Errno::ACCESS
            | rustix::io::Errno::NOSPC
            | rustix::io::Errno::USERS
    );
    if !denied {
        return None;
    }
    // Which step is refused depends on the version: some let the namespace be made, and
    // take its rights away.
    if profile_is_missing {
        let binary = std::env::current_exe().unwrap_or_else(|_| "dam".into());
        return Some(format!(
            "AppArmor restricts user namespaces here: `{}` writes and loads a profile that lets \
             this program have them",
            apparmor::call(&binary)
        ));
    }
    let text = if step.contains("user namespace")
        || step.contains("user id")
        || step.contains("namespaces")
    {
        "user namespaces are switched off or restricted here: see `user.max_user_namespaces`, \
         `kernel.unprivileged_userns_clone` and, with AppArmor, `dam setup`; in a container, its \
         security profile"
    } else if step.contains("mount a new") {
        "the `/proc` here has something mounted on it, as containers do: start the container \
         with `--security-opt systempaths=unconfined`"
    } else {
        "`dam doctor` tries each step and says what is missing"
    };
    Some(text.into())
}

pub(crate) trait IoContext<T> {
    fn at(self, step: &'static str, path: impl Into<PathBuf>) -> Result<T, Error>;
}

impl<T, E: Into<std::io::Error>> IoContext<T> for Result<T, E> {
    fn at(self, step: &'static str, path: impl Into<PathBuf>) -> Result<T, Error> {
        self.map_err(|source| Error::Io { step, path: path.into(), source: source.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_profile_is_what_the_hint_names() {
        let refused = |step: &str, errno: rustix::io::Errno| SandboxError::Setup {
            step: step.into(),
            path: None,
            errno: errno.raw_os_error(),
        };
        for step in ["create a user namespace", "separate the mounts from the host's"] {
            let error = refused(step, rustix::io::Errno::ACCESS);
            let hint = isolation_hint(&error, true).expect("hint");
            assert!(hint.contains(" setup` writes"), "{hint}");
            let hint = isolation_hint(&error, false).expect("hint");
            assert!(!hint.contains(" setup` writes"), "{hint}");
        }
        let other = refused("create a user namespace", rustix::io::Errno::NOMEM);
        assert_eq!(isolation_hint(&other, true), None);
    }
}

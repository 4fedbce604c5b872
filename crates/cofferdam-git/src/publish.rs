//! Moving a branch of the person's repository.
//!
//! 1. What is new goes into the repository as one pack: written by `index-pack`
//!    as the repository's owner, checked (`--fsck-objects`), synced by git, and
//!    its directory by us. Objects that nothing refers to change nothing.
//! 2. The ref moves in one transaction that names the old value. This is the
//!    commit point. git syncs the ref's file; the directories on the way to it
//!    are ours to sync, before anybody writes that it landed.
//!
//! Each system call that changes something stands between two failpoints.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cofferdam_failpoint::hit;
use cofferdam_tree::fsync_dir;

use crate::command::{Conversation, Finished};
use crate::{CommitId, GitCommand, GitError, IoContext, Oid, Repository, Store};

/// Lets `into` index and check what `commit` has and none of `have` does, from the
/// one git to the other, without passing through our memory.
pub(crate) fn pack_into(
    store: &Store,
    commit: &CommitId,
    have: &[&CommitId],
    into: GitCommand,
) -> Result<Finished, GitError> {
    let mut wanted = format!("{commit}\n");
    for known in have {
        wanted.push_str(&format!("^{known}\n"));
    }
    let mut packing = store
        .git()
        .args(["pack-objects", "--stdout", "--revs", "--quiet", "--delta-base-offset"])
        .converse()?;
    let pack = packing.child.stdout.take().expect("piped");
    let mut stdin = packing.child.stdin.take().expect("piped");
    // A git that does not want to read says why at its end.
    let _ = stdin.write_all(wanted.as_bytes());
    drop(stdin);
    let done = into.args(["index-pack", "--stdin", "--fsck-objects"]).reading(pack).finish()?;
    // What the other end refuses is the reason when this one could not go on.
    match packing.end() {
        Err(error) if done.status.success() => Err(error),
        _ => Ok(done),
    }
}

/// Moves the objects of `commit` that the repository lacks into it.
///
/// # Errors
/// [`GitError`]; the repository has the whole pack or none of it then.
pub fn move_objects(
    store: &Store,
    repo: &Repository,
    commit: &CommitId,
    have: &[&CommitId],
) -> Result<(), GitError> {
    hit("publish:pack:before").at("write a pack in", &repo.objects)?;
    let into = repo.git().setting("pack.writeReverseIndex=false");
    let done = pack_into(store, commit, have, into)?;
    if !done.status.success() {
        return Err(done.failed());
    }
    hit("publish:pack:written").at("write a pack in", &repo.objects)?;
    let dir = repo.objects.join("pack");
    fsync_dir(&dir).at("sync", &dir)?;
    fsync_dir(&repo.objects).at("sync", &repo.objects)?;
    hit("publish:pack:after").at("write a pack in", &repo.objects)
}

/// Why a ref did not move.
#[derive(Debug, thiserror::Error)]
pub enum RefError {
    /// Somebody else moved it first.
    #[error("`{name}` is no longer at {expected}")]
    Moved {
        /// The ref.
        name: String,
        /// Where it was expected.
        expected: String,
    },
    /// A remote did not take it, or can't be reached. Nothing has changed.
    #[error("`{name}` {why}")]
    Refused {
        /// The branch.
        name: String,
        /// What became of it, and what was said.
        why: String,
    },
    /// Anything else.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A lock file of git's is there. Nothing has changed.
    #[error(transparent)]
    Locked(#[from] Locked),
}

/// A lock file of git's.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{0}` is held by another git process; if none is running, one that died has left it, and it can be removed"
)]
pub struct Locked(pub PathBuf);

impl Locked {
    /// Reads it from what git said.
    fn in_words(error: &GitError) -> Option<Locked> {
        let GitError::Failed { stderr, .. } = error else { return None };
        let (before, _) = stderr.split_once(".lock': File exists")?;
        let (_, path) = before.rsplit_once("Unable to create '")?;
        Some(Locked(format!("{path}.lock").into()))
    }
}

/// To some failed writes git says no reason: a likely one is looked for.
fn with_reason(error: GitError, repo: &Repository) -> GitError {
    use rustix::fs::{Access, AtFlags, CWD, accessat, statvfs};
    use rustix::io::Errno;
    let GitError::Failed { command, code, stderr } = error else { return error };
    let full = statvfs(&repo.common_dir)
        .is_ok_and(|fs| fs.f_bavail == 0 || (fs.f_files > 0 && fs.f_favail == 0));
    let writable = accessat(CWD, &repo.common_dir, Access::WRITE_OK, AtFlags::EACCESS);
    let reason = match writable {
        Err(errno @ (Errno::ROFS | Errno::ACCESS)) => Some(errno),
        _ => full.then_some(Errno::NOSPC),
    };
    let reason = reason.map(|errno| std::io::Error::from(errno).to_string());
    let stderr = match reason.filter(|reason| !stderr.contains(reason.as_str())) {
        Some(reason) => format!("{}: {reason}", stderr.trim_end()),
        None => stderr,
    };
    GitError::Failed { command, code, stderr }
}

/// Moves `name` from `old` (`None`: it must not exist) to `new` (`None`: it is
/// deleted), durably.
///
/// # Errors
/// [`RefError::Moved`] when it is not at `old`; nothing has changed then.
pub fn move_ref(
    repo: &Repository,
    name: &str,
    old: Option<&Oid>,
    new: Option<&Oid>,
    reason: &str,
) -> Result<(), RefError> {
    let zero = repo.format.zero();
    let line = match new {
        Some(new) => format!("update {name}\0{new}\0{}\0", old.unwrap_or(&zero)),
        None => format!("delete {name}\0{}\0", old.unwrap_or(&zero)),
    };
    let done = repo
        .git()
        .args(["update-ref", "--stdin", "-z", "--create-reflog", "-m", reason])
        .input(line)
        .finish()?;
    if !done.status.success() {
        let now = repo.resolve(name)?;
        // It can be killed after it was done.
        if new.is_some() && now.as_ref().map(|commit| &commit.0) == new {
            sync_ref(&repo.common_dir, name).at("sync the refs in", &repo.common_dir)?;
            return Ok(());
        }
        if now.as_ref().map(|commit| &commit.0) != old {
            let expected = old.map_or("absent".into(), |old| old.short().to_owned());
            return Err(RefError::Moved { name: name.to_owned(), expected });
        }
        let error = with_reason(done.failed(), repo);
        return Err(match Locked::in_words(&error) {
            Some(locked) => locked.into(),
            None => error.into(),
        });
    }
    sync_ref(&repo.common_dir, name).at("sync the refs in", &repo.common_dir)?;
    Ok(())
}

/// Syncs the directories in which a ref can have changed.
fn sync_ref(common_dir: &Path, name: &str) -> io::Result<()> {
    // Missing where refs are packed; with reftables, `refs/heads` is a file.
    let sync = |dir: &Path| match fsync_dir(dir) {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(())
        }
        other => other,
    };
    let mut dir = common_dir.join(name);
    while dir.pop() && dir.starts_with(common_dir) {
        sync(&dir)?;
    }
    sync(&common_dir.join("reftable"))
}

/// The ref that pins the base of a task while its context exists.
#[must_use]
pub fn keep_ref(task: &str) -> String {
    format!("refs/dam/keep/{task}")
}

/// A pin of the base of a task, and the git that set it. It stays to remove the
/// pin as well, unless it is dropped before: for a short task that spares the start
/// of another one. It ends when we do.
#[derive(Debug)]
pub struct Pin {
    git: Option<Conversation>,
    task: String,
}

impl Pin {
    /// Starts to pin `commit`; [`Pin::set`] waits for it. Not synced: a pin only has
    /// to outlive us, and a base that is lost in a power cut takes a context with it
    /// that is worthless then anyway.
    ///
    /// # Errors
    /// [`GitError::NotStarted`].
    pub fn start(repo: &Repository, task: &str, commit: &CommitId) -> Result<Pin, GitError> {
        hit("publish:pin:before").at("write", repo.common_dir.join("refs/dam"))?;
        let mut git = change_pins(repo).converse()?;
        let change = format!("start\0update {}\0{commit}\0\0commit\0", keep_ref(task));
        // One that does not want to read says why when it is waited for.
        let _ = git.say(change.as_bytes());
        Ok(Pin { git: Some(git), task: task.to_owned() })
    }

    /// Waits until the pin is set.
    ///
    /// # Errors
    /// [`GitError`].
    pub fn set(&mut self, repo: &Repository) -> Result<(), GitError> {
        let Some(mut git) = self.git.take() else { return Ok(()) };
        if !git.hear(b"start: ok\ncommit: ok\n") {
            let command = git.command.clone();
            git.end().map_err(|error| with_reason(error, repo))?;
            return Err(GitError::Unexpected { command, answer: String::new() });
        }
        self.git = Some(git);
        hit("publish:pin:after").at("write", repo.common_dir.join("refs/dam"))
    }

    /// Starts to remove the pin; [`Unpin::done`] waits for it.
    ///
    /// # Errors
    /// [`GitError::NotStarted`].
    pub fn remove(mut self, repo: &Repository) -> Result<Unpin, GitError> {
        let task = std::mem::take(&mut self.task);
        let Some(mut git) = self.git.take() else { return Unpin::start(repo, &task) };
        hit("publish:pin:before").at("write", repo.common_dir.join("refs/dam"))?;
        let change = format!("start\0delete {}\0\0commit\0", keep_ref(&task));
        let _ = git.say(change.as_bytes());
        Ok(Unpin { git, task })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(git) = self.git.take() {
            // Nothing was asked of it since the pin was set.
            let _ = git.end();
        }
    }
}

/// A pin that is being removed.
#[derive(Debug)]
pub struct Unpin {
    git: Conversation,
    task: String,
}

impl Unpin {
    /// Starts to remove a task's pin, if there is one.
    ///
    /// # Errors
    /// [`GitError::NotStarted`].
    pub fn start(repo: &Repository, task: &str) -> Result<Unpin, GitError> {
        hit("publish:pin:before").at("write", repo.common_dir.join("refs/dam"))?;
        Unpin::again(repo, task)
    }

    fn again(repo: &Repository, task: &str) -> Result<Unpin, GitError> {
        let mut git = change_pins(repo).converse()?;
        let _ = git.say(format!("delete {}\0\0", keep_ref(task)).as_bytes());
        Ok(Unpin { git, task: task.to_owned() })
    }

    /// Waits until the pin is gone, and the directories that it leaves empty.
    ///
    /// # Errors
    /// [`GitError`].
    pub fn done(self, repo: &Repository) -> Result<(), GitError> {
        // The one that set it can have been ended long ago.
        let done = self.git.end().or_else(|_| Unpin::again(repo, &self.task)?.git.end());
        if let Err(error) = done {
            let error = match Locked::in_words(&error) {
                Some(locked) => locked.into(),
                None => with_reason(error, repo),
            };
            if !error.is_for_want_of_room() || !removed_by_hand(repo, &keep_ref(&self.task))? {
                return Err(error);
            }
        }
        hit("publish:pin:after").at("write", repo.common_dir.join("refs/dam"))?;
        for dir in ["refs/dam/keep", "refs/dam"] {
            // Only an empty one goes.
            let _ = std::fs::remove_dir(repo.common_dir.join(dir));
            hit("publish:pin:dir").at("remove", repo.common_dir.join(dir))?;
        }
        Ok(())
    }
}

/// Removes the file of a ref of ours: git makes another file first, for which a disk can
/// have no room. Whether the ref is gone then: it can be a packed one.
fn removed_by_hand(repo: &Repository, name: &str) -> Result<bool, GitError> {
    let path = repo.common_dir.join(name);
    let locked = path.with_extension("lock").exists();
    if locked || std::fs::remove_file(path).is_err() {
        return Ok(false);
    }
    Ok(repo.resolve(name)?.is_none())
}

fn change_pins(repo: &Repository) -> GitCommand {
    repo.git().setting("core.fsync=none").setting("core.logAllRefUpdates=false").args([
        "update-ref",
        "--stdin",
        "-z",
    ])
}

/// Whether `ancestor` is part of the history of `commit`.
///
/// # Errors
/// [`GitError`].
pub fn is_ancestor(
    repo: &Repository,
    ancestor: &CommitId,
    commit: &CommitId,
) -> Result<bool, GitError> {
    let done = repo
        .git()
        .args(["merge-base", "--is-ancestor", ancestor.as_str(), commit.as_str()])
        .finish()?;
    match done.status.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        // The commit never arrived here.
        _ if !repo.git().args(["cat-file", "-e", ancestor.as_str()]).finish()?.status.success() => {
            Ok(false)
        }
        _ => Err(done.failed()),
    }
}

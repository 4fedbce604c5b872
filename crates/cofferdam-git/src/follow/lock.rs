//! The lock of a worktree's index, known by its inode before it is taken.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cofferdam_failpoint::hit;
use cofferdam_tree::fsync_dir;

use super::worktree::git_dirs;
use super::{FollowError, InTheWay, Worktree};
use crate::publish::Locked;
use crate::{GitError, IoContext, Repository, RunAs};

/// A lock file under another name, with an identity that a journal can hold.
/// Dropping it removes the file.
#[derive(Debug)]
pub struct LockDraft {
    pub(super) worktree: Worktree,
    lock: IndexLock,
}

/// What a journal says about the lock of one worktree.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockRecord {
    /// The worktree.
    pub worktree: Worktree,
    /// The lock file's name before it was taken.
    #[serde(with = "serde_with::As::<cofferdam_tree::TextOrBytes>")]
    pub draft: PathBuf,
    /// Device and inode of the lock file.
    pub identity: (u64, u64),
}

impl LockDraft {
    /// Makes the file `dam-lock-NAME` in the worktree's git directory.
    ///
    /// # Errors
    /// [`GitError::Io`].
    pub fn new(repo: &Repository, worktree: Worktree, name: &str) -> Result<LockDraft, GitError> {
        let path = draft_path(&worktree.git_dir, name);
        let index = worktree.git_dir.join("index");
        hit("follow:draft:before").at("make", &path)?;
        let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).open(&path);
        let meta = match file.at("make", &path)?.metadata().at("look at", &path) {
            Ok(meta) => meta,
            Err(error) => {
                let _ = remove_ours(&path);
                return Err(error);
            }
        };
        let lock = IndexLock {
            path,
            identity: (meta.dev(), meta.ino()),
            mode: std::fs::metadata(index).map_or(0o644, |meta| meta.mode() & 0o777),
            owner: repo.owner.clone(),
            held: true,
        };
        hit("follow:draft:after").at("make", &lock.path)?;
        Ok(LockDraft { worktree, lock })
    }

    /// What has to be in the journal before the lock is taken.
    #[must_use]
    pub fn record(&self) -> LockRecord {
        LockRecord {
            worktree: self.worktree.clone(),
            draft: self.lock.path.clone(),
            identity: self.lock.identity,
        }
    }

    pub(super) fn take(mut self, patience: Duration) -> Result<IndexLock, FollowError> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        let path = self.worktree.git_dir.join("index.lock");
        let deadline = Instant::now() + patience;
        loop {
            hit("follow:lock:before").at("lock", &path)?;
            match renameat_with(CWD, &self.lock.path, CWD, &path, RenameFlags::NOREPLACE) {
                Ok(()) => break,
                Err(rustix::io::Errno::EXIST) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(rustix::io::Errno::EXIST) => {
                    return Err(InTheWay::IndexLocked(Locked(path)).into());
                }
                Err(error) => return Err(error).at("lock", path)?,
            }
        }
        self.lock.path = path;
        hit("follow:lock:after").at("lock", &self.lock.path)?;
        Ok(self.lock)
    }
}

fn draft_path(git_dir: &Path, name: &str) -> PathBuf {
    git_dir.join(format!("dam-lock-{name}"))
}

/// Removes the drafts of this name that a dead process made and did not come to
/// write down, in whichever worktree.
///
/// # Errors
/// [`GitError::Io`].
pub fn forget_drafts(repo: &Repository, name: &str) -> Result<(), GitError> {
    git_dirs(repo).iter().try_for_each(|git_dir| remove_ours(&draft_path(git_dir, name)))
}

/// Removes a file whose name nobody but us uses, if it is there.
fn remove_ours(path: &Path) -> Result<(), GitError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).at("remove", path),
        _ => Ok(()),
    }
}

/// Our hold on a worktree's index. Dropping it removes the lock file.
#[derive(Debug)]
pub(super) struct IndexLock {
    path: PathBuf,
    identity: (u64, u64),
    mode: u32,
    owner: Option<RunAs>,
    held: bool,
}

impl IndexLock {
    /// Writes `from` into the lock file and makes that the index.
    pub(super) fn replace_index(mut self, from: &Path) -> Result<(), GitError> {
        let mut source = std::fs::File::open(from).at("read", from)?;
        // The second in which git wrote it, not ours: see `copy_index`.
        let time = source.metadata().and_then(|meta| meta.modified()).at("look at", from)?;
        let dir = self.path.parent().expect("in a git directory").to_owned();
        let mut write = || -> io::Result<()> {
            hit("follow:index:write")?;
            let mut file = std::fs::File::create(&self.path)?;
            io::copy(&mut source, &mut file)?;
            file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(self.mode))?;
            if let Some(owner) = &self.owner {
                std::os::unix::fs::fchown(&file, Some(owner.uid), Some(owner.gid))?;
            }
            file.set_modified(time)?;
            file.sync_all()?;
            hit("follow:index:rename")?;
            std::fs::rename(&self.path, dir.join("index"))?;
            hit("follow:index:renamed")?;
            fsync_dir(&dir)
        };
        write().at("write", &self.path)?;
        self.held = false;
        Ok(())
    }
}

impl Drop for IndexLock {
    fn drop(&mut self) {
        // Only what is still ours: after a rename the name can be somebody else's.
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == self.identity);
        if self.held && ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes what a follow that died left behind: its lock, recognised by device
/// and inode, its draft and its copies of the index, which nobody else makes.
///
/// # Errors
/// [`GitError::Io`].
pub fn clean_up(record: &LockRecord) -> Result<(), GitError> {
    let git_dir = &record.worktree.git_dir;
    let lock = git_dir.join("index.lock");
    if std::fs::symlink_metadata(&lock)
        .is_ok_and(|meta| (meta.dev(), meta.ino()) == record.identity)
    {
        hit("follow:unlock").at("remove", &lock)?;
        std::fs::remove_file(&lock).at("remove", &lock)?;
    }
    // The identity does not matter here: recovery makes drafts anew.
    remove_ours(&record.draft)?;
    for name in ["dam-index", "dam-index.lock", "dam-index-one", "dam-index-one.lock"] {
        remove_ours(&git_dir.join(name))?;
    }
    Ok(())
}

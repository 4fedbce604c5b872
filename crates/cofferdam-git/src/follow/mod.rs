//! Letting a checked-out worktree follow its branch.
//!
//! A ref that moves under a checked-out worktree without it is a trap: the
//! person's next `git commit -a` reverts the whole landing. And git's own
//! two-tree update loses work in three ways on its own: it overwrites ignored
//! files without a word, reports success when it could not remove something,
//! and leaves the worktree behind when the index is locked. So, in this order:
//!
//! 0. [`LockDraft`] makes the lock file under another name; the caller writes its
//!    identity into the journal. A lock that a crash leaves behind is then known
//!    to be ours, whenever the crash came.
//! 1. [`Follow::begin`] renames it to `index.lock` (waiting a little when that is
//!    taken) and refuses where an operation of the person's is unfinished.
//! 2. Every path that will change is looked at: a path that is to appear must
//!    not exist in any form, ignored or not; a directory that is to become a
//!    file must hold nothing but what goes.
//! 3. A dry run on a *copy* of the index lets git judge what is tracked: dirty
//!    where it overlaps is refused, dirty elsewhere is none of our business.
//! 4. The caller moves the ref: the commit point.
//! 5. [`Follow::apply`] does the update on the copy, checks every changed path,
//!    writes the copy into the lock file and renames it to be the index.
//!
//! Until 4 nothing of the person's has changed; dropping a [`Follow`] only
//! removes the lock. After 4 the only way is forward: [`resume`] goes on after a
//! crash, path by path: already new, still old, or neither, which is the
//! person's and stays.

mod lock;
mod resume;
mod worktree;

pub use lock::{LockDraft, LockRecord, clean_up, forget_drafts};
pub use resume::resume;
pub use worktree::{Worktree, worktrees_on};

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_failpoint::hit;
use cofferdam_tree::BytePath;

use crate::layer::{Difference, parse_raw};
use crate::modules::GITLINK;
use crate::{CommitId, GitCommand, GitError, IoContext, Repository, alternates};
use lock::IndexLock;

/// Why a worktree can't follow now. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum InTheWay {
    /// An unfinished merge, rebase, cherry-pick, revert or bisect.
    #[error("a {what} is in progress in `{worktree}`")]
    Operation {
        /// Which.
        what: &'static str,
        /// Where.
        worktree: PathBuf,
    },
    /// Somebody holds the index.
    #[error("`{0}` is held by another git process (or left by one that died)")]
    IndexLocked(PathBuf),
    /// Paths of the person's.
    #[error("{} in `{worktree}`: {}", if paths.len() == 1 { "a path is in the way" } else { "paths are in the way" }, list(paths))]
    Paths {
        /// Where.
        worktree: PathBuf,
        /// Each with what it is.
        paths: Vec<String>,
    },
    /// git's own judgement in the dry run.
    #[error("uncommitted changes are in the way in `{worktree}`: {said}")]
    Dirty {
        /// Where.
        worktree: PathBuf,
        /// What git said.
        said: String,
    },
}

fn list(paths: &[String]) -> String {
    const SHOWN: usize = 3;
    let mut text = paths.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if paths.len() > SHOWN {
        text.push_str(&format!(" and {} more", paths.len() - SHOWN));
    }
    text
}

/// Why following failed.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The person's work is in the way.
    #[error(transparent)]
    InTheWay(#[from] InTheWay),
    /// After the commit point: some paths are neither old nor new. They were
    /// left as they are.
    #[error(
        "the branch has moved, but these paths of `{worktree}` were left alone: {}",
        list(paths)
    )]
    LeftAlone {
        /// Where.
        worktree: PathBuf,
        /// Which.
        paths: Vec<String>,
    },
    /// Anything else.
    #[error(transparent)]
    Git(#[from] GitError),
}

/// A worktree that is about to follow: its index is locked.
#[derive(Debug)]
pub struct Follow<'a> {
    repo: &'a Repository,
    lender: Option<PathBuf>,
    worktree: Worktree,
    lock: Option<IndexLock>,
    old: CommitId,
    new: CommitId,
    changes: Vec<Difference>,
}

impl<'a> Follow<'a> {
    /// Steps 1 to 3 of the module's opening. Until the objects of `new` are in the
    /// repository, they are read from `lender`, an object directory.
    ///
    /// # Errors
    /// [`FollowError::InTheWay`]; nothing has changed then.
    pub fn begin(
        repo: &'a Repository,
        lender: Option<&Path>,
        draft: LockDraft,
        old: &CommitId,
        new: &CommitId,
        patience: Duration,
    ) -> Result<Follow<'a>, FollowError> {
        no_operation(&draft.worktree)?;
        let worktree = draft.worktree.clone();
        let lock = draft.take(patience)?;
        let changes = differences(repo, lender, old, new)?;
        let follow = Follow {
            repo,
            lender: lender.map(Path::to_owned),
            worktree,
            lock: Some(lock),
            old: old.clone(),
            new: new.clone(),
            changes,
        };
        follow.look_at_paths()?;
        follow.copy_index()?;
        let mut judged = follow.read_tree(&["-n"])?;
        if judged.is_err() {
            // To git a file that was only touched is changed until somebody looks
            // into it. Its exit code says that something else is changed.
            follow.git().args(["update-index", "-q", "--refresh"]).finish()?;
            judged = follow.read_tree(&["-n"])?;
        }
        if let Err(said) = judged {
            let worktree = follow.worktree.dir.clone();
            return Err(InTheWay::Dirty { worktree, said: said.trim().replace('\n', " ") }.into());
        }
        Ok(follow)
    }

    /// Step 5, after the commit point.
    ///
    /// # Errors
    /// [`FollowError::LeftAlone`] when a path became something else meanwhile.
    pub fn apply(mut self) -> Result<(), FollowError> {
        hit("follow:update:before").at("update", &self.worktree.dir)?;
        // Looked at again: what appeared since the first look is the person's.
        let clear = match self.look_at_paths() {
            Ok(()) => self.read_tree(&[])?.is_ok(),
            Err(FollowError::InTheWay(_)) => false,
            Err(error) => return Err(error),
        };
        if !clear {
            return self.path_by_path();
        }
        hit("follow:update:after").at("update", &self.worktree.dir)?;
        let paths = self.verify()?;
        self.commit_index()?;
        if paths.is_empty() {
            Ok(())
        } else {
            Err(FollowError::LeftAlone { worktree: self.worktree.dir.clone(), paths })
        }
    }

    fn index_copy(&self) -> PathBuf {
        self.worktree.git_dir.join("dam-index")
    }

    fn copy_index(&self) -> Result<(), GitError> {
        let (index, copy) = (self.worktree.git_dir.join("index"), self.index_copy());
        hit("follow:copy:before").at("copy", &index)?;
        crate::copy_index(&index, &copy)?;
        if let Some(owner) = &self.repo.owner
            && copy.exists()
        {
            std::os::unix::fs::chown(&copy, Some(owner.uid), Some(owner.gid))
                .at("hand over", &copy)?;
        }
        hit("follow:copy:after").at("copy", &copy)
    }

    /// The two-tree update on the copied index; the inner error is what git said.
    fn read_tree(&self, more: &[&str]) -> Result<Result<(), String>, GitError> {
        let done = self
            .git()
            .args(["read-tree", "-m", "-u"])
            .args(more)
            .args([self.old.as_str(), self.new.as_str()])
            .finish()?;
        Ok(if done.status.success() { Ok(()) } else { Err(done.stderr) })
    }

    fn git(&self) -> GitCommand {
        let git = GitCommand::persons(&self.worktree.git_dir, self.repo.owner.as_ref());
        borrowing(git, self.lender.as_deref())
            .work_tree(&self.worktree.dir)
            .env("GIT_INDEX_FILE", self.index_copy())
            .setting("core.splitIndex=false")
    }

    fn place(&self, path: &[u8]) -> PathBuf {
        self.worktree.dir.join(OsStr::from_bytes(path))
    }

    /// Step 2.
    fn look_at_paths(&self) -> Result<(), FollowError> {
        let goes: HashSet<&[u8]> = self
            .changes
            .iter()
            .filter(|change| change.old_mode != 0)
            .map(|change| change.path.as_slice())
            .collect();
        let mut in_the_way = Vec::new();
        let mut dirs = HashSet::new();
        for change in &self.changes {
            if let Some(dir) = self.not_writable(&change.path, &mut dirs) {
                let shown = if dir.is_empty() { b"." } else { dir };
                in_the_way.push(format!("`{}` (not writable)", BytePath::from(shown)));
            }
            if change.new_mode == 0 {
                continue;
            }
            if let Some(what) = self.obstacle(&change.path, change.old_mode != 0, &goes)? {
                in_the_way.push(what);
            }
        }
        if in_the_way.is_empty() {
            return Ok(());
        }
        Err(InTheWay::Paths { worktree: self.worktree.dir.clone(), paths: in_the_way }.into())
    }

    /// The directory that a path lies in or would be made in, when nothing can be
    /// changed there: git would report success and leave its files behind. Each is
    /// told once.
    fn not_writable<'p>(&self, path: &'p [u8], seen: &mut HashSet<&'p [u8]>) -> Option<&'p [u8]> {
        use rustix::fs::{Access, AtFlags, CWD, accessat};
        let above = |path: &'p [u8]| path.iter().rposition(|byte| *byte == b'/');
        let mut dir = path;
        let meta = loop {
            dir = above(dir).map_or(&b""[..], |at| &dir[..at]);
            if !seen.insert(dir) {
                return None;
            }
            match std::fs::symlink_metadata(self.place(dir)) {
                Ok(meta) => break meta,
                Err(_) if dir.is_empty() => return None,
                Err(_) => {}
            }
        };
        if !meta.is_dir() {
            return None;
        }
        let place = self.place(dir);
        let writable = match &self.repo.owner {
            // git works as the owner, not as us.
            Some(owner) => owner.uid != meta.uid() || meta.mode() & 0o300 == 0o300,
            None => {
                let wanted = Access::WRITE_OK | Access::EXEC_OK;
                accessat(CWD, &place, wanted, AtFlags::EACCESS).is_ok()
            }
        };
        (!writable).then_some(dir)
    }

    fn obstacle(
        &self,
        path: &[u8],
        tracked: bool,
        goes: &HashSet<&[u8]>,
    ) -> Result<Option<String>, GitError> {
        let shown = |path: &[u8], what: &str| format!("`{}` ({what})", BytePath::from(path));
        for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            let parent = &path[..at];
            match std::fs::symlink_metadata(self.place(parent)) {
                Ok(meta) if meta.is_dir() => {}
                Ok(_) if goes.contains(parent) => return Ok(None),
                Ok(_) => return Ok(Some(shown(parent, "not a directory"))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error).at("look at", self.place(parent)),
            }
        }
        let place = self.place(path);
        match std::fs::symlink_metadata(&place) {
            Ok(meta) if meta.is_dir() => {
                // An empty directory or one whose whole content goes is no loss.
                let mut kept = None;
                first_kept(&place, path, goes, &mut kept).at("look into", &place)?;
                Ok(kept.map(|kept| shown(&kept, "not tracked")))
            }
            Ok(_) if tracked => Ok(None),
            Ok(_) => Ok(Some(shown(path, "not tracked"))),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error).at("look at", place),
        }
    }

    /// Paths that are not what they should be now.
    fn verify(&self) -> Result<Vec<String>, GitError> {
        let mut wrong = Vec::new();
        for change in &self.changes {
            let meta = std::fs::symlink_metadata(self.place(&change.path)).ok();
            let right = match change.new_mode {
                0 => meta.is_none_or(|meta| meta.is_dir()),
                GITLINK => true,
                mode => meta.is_some_and(|meta| {
                    let symlink = mode == 0o120_000;
                    meta.is_symlink() == symlink && !meta.is_dir()
                }),
            };
            if !right {
                wrong.push(change.path.as_slice());
            }
        }
        if !wrong.is_empty() {
            // Outside of a sparse checkout nothing is to be there.
            let absent = self.absent_by_intent()?;
            wrong.retain(|path| !absent.contains(*path));
        }
        Ok(wrong.into_iter().map(|path| format!("`{}`", BytePath::from(path))).collect())
    }

    /// Paths of the copied index that are not to be in the worktree.
    fn absent_by_intent(&self) -> Result<HashSet<Vec<u8>>, GitError> {
        let listed = self.git().args(["ls-files", "-t", "-z"]).run()?;
        let paths = listed.split(|byte| *byte == 0);
        Ok(paths.filter_map(|line| line.strip_prefix(b"S ")).map(<[u8]>::to_vec).collect())
    }

    /// The copy becomes the index.
    fn commit_index(&mut self) -> Result<(), FollowError> {
        let copy = self.index_copy();
        let Some(lock) = self.lock.take() else { return Ok(()) };
        lock.replace_index(&copy)?;
        hit("follow:copy:remove").at("remove", &copy)?;
        std::fs::remove_file(&copy).at("remove", &copy)?;
        hit("follow:copy:removed").at("remove", &copy)?;
        Ok(())
    }
}

impl Drop for Follow<'_> {
    fn drop(&mut self) {
        let copy = self.index_copy();
        let _ = std::fs::remove_file(&copy);
        let _ = std::fs::remove_file(copy.with_extension("lock"));
    }
}

/// The first thing below `dir` that does not go with the update.
fn first_kept(
    dir: &Path,
    path: &[u8],
    goes: &HashSet<&[u8]>,
    kept: &mut Option<Vec<u8>>,
) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let inner = [path, b"/", entry.file_name().as_bytes()].concat();
        if entry.file_type()?.is_dir() {
            first_kept(&entry.path(), &inner, goes, kept)?;
        } else if !goes.contains(inner.as_slice()) {
            *kept = Some(inner);
        }
        if kept.is_some() {
            break;
        }
    }
    Ok(())
}

fn borrowing(git: GitCommand, lender: Option<&Path>) -> GitCommand {
    match lender {
        Some(objects) => git.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", alternates::variable(objects)),
        None => git,
    }
}

fn differences(
    repo: &Repository,
    lender: Option<&Path>,
    old: &CommitId,
    new: &CommitId,
) -> Result<Vec<Difference>, GitError> {
    let done = borrowing(repo.git(), lender)
        .args(["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev"])
        .args([old.as_str(), new.as_str()])
        .finish()?;
    if !done.status.success() {
        return Err(done.failed());
    }
    parse_raw(&done.stdout).ok_or_else(|| done.unexpected())
}

fn no_operation(worktree: &Worktree) -> Result<(), InTheWay> {
    let in_progress = [
        ("MERGE_HEAD", "merge"),
        ("rebase-merge", "rebase"),
        ("rebase-apply", "rebase"),
        ("CHERRY_PICK_HEAD", "cherry-pick"),
        ("REVERT_HEAD", "revert"),
        ("BISECT_START", "bisect"),
        // Of several commits, between two of them.
        ("sequencer", "cherry-pick or revert"),
    ];
    for (file, what) in in_progress {
        if worktree.git_dir.join(file).symlink_metadata().is_ok() {
            return Err(InTheWay::Operation { what, worktree: worktree.dir.clone() });
        }
    }
    Ok(())
}

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
//!    What will be written must fit on the disk: git removes a file before it writes
//!    the new one.
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

mod absent;
mod lock;
mod look;
mod resume;
mod room;
mod worktree;

pub use lock::{LockDraft, LockRecord, clean_up, forget_drafts};
pub use resume::resume;
pub use worktree::{Worktree, worktrees_on};

use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_failpoint::hit;
use cofferdam_tree::BytePath;

use crate::difference::{Changes, Differences};
use crate::mode::{GITLINK, LINK};
use crate::publish::Locked;
use crate::{
    CommitId, GitCommand, GitError, IoContext, Objects, Repository, Told, alternates, below,
};
use absent::Absent;
use lock::IndexLock;
use look::Look;
use room::Room;

/// Why a worktree can't follow now. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum InTheWay {
    /// An unfinished merge, rebase, cherry-pick, revert or bisect.
    #[error("{what} is in progress in `{worktree}`")]
    Operation {
        /// Which.
        what: &'static str,
        /// Where.
        worktree: PathBuf,
    },
    /// A linked worktree that is not where it was: unmounted, moved or deleted. The index
    /// of one that comes back would not know of the landing.
    #[error(
        "the worktree `{}` has the branch checked out and is not there now; if it is gone for good, {}`git worktree prune` forgets it",
        worktree.display(),
        if *locked { format!("`git worktree unlock {}` and ", worktree.display()) } else { String::new() }
    )]
    Missing {
        /// Where it was.
        worktree: PathBuf,
        /// Whether git was told not to forget it.
        locked: bool,
    },
    /// The worktree of the repository itself is not where its git directory says, or
    /// that says nothing.
    #[error("the repository `{}` has the branch checked out, and {why}", git_dir.display())]
    NotFound {
        /// The git directory.
        git_dir: PathBuf,
        /// Why it is not found.
        why: String,
    },
    /// Somebody holds the index.
    #[error(transparent)]
    IndexLocked(Locked),
    /// What is to be written does not fit.
    #[error("there is not enough room for the new files in `{worktree}`: {}", wanted(*bytes, *files))]
    NoRoom {
        /// Where.
        worktree: PathBuf,
        /// How many bytes they take.
        bytes: u64,
        /// How many files they are.
        files: u64,
    },
    /// Paths of the person's.
    #[error("{} in `{worktree}`: {paths}", if paths.count() == 1 { "a path is in the way" } else { "paths are in the way" })]
    Paths {
        /// Where.
        worktree: PathBuf,
        /// Each with what it is.
        paths: Told,
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

fn wanted(bytes: u64, files: u64) -> String {
    format!("{files} with {} KiB", bytes.div_ceil(1024))
}

/// How many paths are told by name.
const TOLD: usize = 3;

/// Why following failed.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The person's work is in the way.
    #[error(transparent)]
    InTheWay(#[from] InTheWay),
    /// After the commit point: some paths are neither old nor new. They were
    /// left as they are.
    #[error("the branch has moved, but these paths of `{worktree}` were left alone: {paths}")]
    LeftAlone {
        /// Where.
        worktree: PathBuf,
        /// Which.
        paths: Told,
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
    changes: Changes<'a>,
    needs: Room,
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
        let mut follow = Follow {
            repo,
            lender: lender.map(Path::to_owned),
            worktree,
            lock: Some(lock),
            old: old.clone(),
            new: new.clone(),
            changes,
            needs: Room::default(),
        };
        let sizes = room::ask(&follow)?;
        follow.look_at_paths()?;
        follow.needs = room::needed(sizes)?;
        follow.still_fits()?;
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

    /// Whether what is to be written has room, asked again when something else of ours
    /// has taken some.
    ///
    /// # Errors
    /// [`FollowError::InTheWay`].
    pub fn still_fits(&self) -> Result<(), FollowError> {
        room::look(self, self.needs)
    }

    /// Step 5, after the commit point.
    ///
    /// # Errors
    /// [`FollowError::LeftAlone`] when a path became something else meanwhile.
    pub fn apply(mut self) -> Result<(), FollowError> {
        hit("follow:update:before").at("update", &self.worktree.dir)?;
        // Looked at again: what appeared since the first look is the person's.
        match self.look_at_paths() {
            Ok(()) if self.read_tree(&[])?.is_ok() => {}
            Ok(()) => return self.path_by_path(true),
            Err(FollowError::InTheWay(_)) => return self.path_by_path(false),
            Err(error) => return Err(error),
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
        below(&self.worktree.dir, path)
    }

    /// Step 2.
    fn look_at_paths(&self) -> Result<(), FollowError> {
        let mut look = Look::new(self);
        self.changes.each(|change| look.at(change))?;
        look.at_the_end()?;
        if look.in_the_way.is_empty() {
            return Ok(());
        }
        let (worktree, paths) = (self.worktree.dir.clone(), look.in_the_way);
        Err(InTheWay::Paths { worktree, paths }.into())
    }

    /// Paths that are not what they should be now.
    fn verify(&self) -> Result<Told, GitError> {
        let mut wrong = Told::new(TOLD);
        let mut absent = Absent::new(self);
        // Asked only where it decides something.
        let mut no_symlinks = None;
        self.changes.each(|change| {
            let meta = std::fs::symlink_metadata(self.place(&change.path)).ok();
            let right = match change.new_mode {
                0 => meta.is_none_or(|meta| meta.is_dir()),
                GITLINK => true,
                mode => match meta {
                    None => false,
                    Some(meta) if meta.is_dir() => false,
                    Some(meta) if mode == LINK && meta.is_file() => match no_symlinks {
                        Some(known) => known,
                        None => *no_symlinks.insert(self.is_set_to_false("core.symlinks")?),
                    },
                    Some(meta) => meta.is_symlink() == (mode == LINK),
                },
            };
            // Outside of a sparse checkout nothing is to be there.
            if !right && !absent.has(&change.path)? {
                wrong.push(|| format!("`{}`", BytePath::from(change.path.as_slice())));
            }
            Ok::<_, GitError>(())
        })?;
        Ok(wrong)
    }

    /// Whether the checkout's configuration says no to what is on by default.
    fn is_set_to_false(&self, setting: &str) -> Result<bool, GitError> {
        let done = self.git().args(["config", "--type=bool", setting]).finish()?;
        Ok(done.stdout.trim_ascii() == b"false")
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

fn borrowing(git: GitCommand, lender: Option<&Path>) -> GitCommand {
    match lender {
        Some(objects) => git.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", alternates::variable(objects)),
        None => git,
    }
}

fn differences<'a>(
    repo: &'a Repository,
    lender: Option<&Path>,
    old: &CommitId,
    new: &CommitId,
) -> Result<Changes<'a>, GitError> {
    let (lender, old, new) = (lender.map(Path::to_owned), old.clone(), new.clone());
    Changes::new(move || {
        let git = borrowing(repo.git(), lender.as_deref());
        let mut objects = Objects::of(git, repo.format)?;
        let trees = [objects.tree_of(&old)?, objects.tree_of(&new)?];
        Ok(Differences::of(objects, [&trees[0], &trees[1]], false))
    })
}

fn no_operation(worktree: &Worktree) -> Result<(), InTheWay> {
    let in_progress = [
        ("MERGE_HEAD", "a merge"),
        ("rebase-merge", "a rebase"),
        ("rebase-apply/applying", "`git am`"),
        ("rebase-apply", "a rebase"),
        ("CHERRY_PICK_HEAD", "a cherry-pick"),
        ("REVERT_HEAD", "a revert"),
        ("BISECT_START", "a bisect"),
        // Of several commits, between two of them.
        ("sequencer", "a cherry-pick or revert"),
    ];
    for (file, what) in in_progress {
        if worktree.git_dir.join(file).symlink_metadata().is_ok() {
            return Err(InTheWay::Operation { what, worktree: worktree.dir.clone() });
        }
    }
    Ok(())
}

//! Going on after a crash, path by path.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use cofferdam_failpoint::hit;
use cofferdam_tree::BytePath;

use super::room::Room;
use super::{Absent, Follow, FollowError, LockDraft, TOLD, differences};
use crate::difference::Difference;
use crate::{CommitId, GitError, IoContext, Repository, Told};

/// Goes on after a crash between the ref and the index: the branch is at `new`,
/// the worktree somewhere between `old` and `new`. `draft` is a new lock whose
/// record is in the journal; what the dead one left was removed by [`clean_up`].
///
/// # Errors
/// [`FollowError::LeftAlone`] names paths that are neither; everything else has
/// been brought to `new`.
pub fn resume(
    repo: &Repository,
    draft: LockDraft,
    old: &CommitId,
    new: &CommitId,
) -> Result<(), FollowError> {
    let worktree = draft.worktree.clone();
    let lock = draft.take(Duration::from_secs(5))?;
    let changes = differences(repo, None, old, new)?;
    let (old, new, needs) = (old.clone(), new.clone(), Room::default());
    Follow { repo, lender: None, worktree, lock: Some(lock), old, new, changes, needs }
        .path_by_path(false)
}

impl Follow<'_> {
    /// Brings each path from old to new on its own; what is neither stays. `cut_off`:
    /// a git of ours has just failed in the middle of that, on a full disk perhaps.
    pub(super) fn path_by_path(mut self, cut_off: bool) -> Result<(), FollowError> {
        self.copy_index()?;
        let mut still_absent = Vec::new();
        let mut left_alone = Told::new(TOLD);
        // Deletions first, so that a file can become a directory and the other way.
        for deletions in [true, false] {
            let mut absent = Absent::new(&self);
            self.changes.each(|change| {
                if (change.new_mode == 0) != deletions {
                    return Ok(());
                }
                if absent.has(&change.path)? && self.object_at(&change.path)?.is_none() {
                    if change.new_mode != 0 {
                        still_absent.extend(&change.path);
                        still_absent.push(0);
                    }
                } else if !self.bring_forward(change, cut_off)? {
                    left_alone.push(|| format!("`{}`", BytePath::from(change.path.as_slice())));
                }
                Ok::<_, GitError>(())
            })?;
        }
        hit("follow:paths:after").at("update", &self.worktree.dir)?;
        self.record_as_landed()?;
        if !still_absent.is_empty() {
            let git = self.git().args(["update-index", "-z", "--skip-worktree", "--stdin"]);
            git.input(still_absent).run()?;
        }
        // Its exit code only says that something of the person's differs.
        self.git().args(["update-index", "-q", "--refresh"]).finish()?;
        self.commit_index()?;
        if left_alone.is_empty() {
            Ok(())
        } else {
            Err(FollowError::LeftAlone { worktree: self.worktree.dir.clone(), paths: left_alone })
        }
    }

    /// Tells the copied index what has landed. Also of a path that was left alone: what
    /// the person has there shows as a change of theirs, and committing it reverts
    /// nothing else.
    fn record_as_landed(&self) -> Result<(), GitError> {
        let mut git = self.git().args(["update-index", "-z", "--index-info"]).converse()?;
        let zero = self.repo.format.zero();
        let mut said = Ok(());
        for deletions in [true, false] {
            self.changes.each(|change| {
                if (change.new_mode == 0) == deletions {
                    let mut line = match change.new_mode {
                        0 => format!("0 {zero}\t"),
                        mode => format!("{mode:o} {}\t", change.new),
                    }
                    .into_bytes();
                    line.extend(&change.path);
                    line.push(0);
                    said = std::mem::replace(&mut said, Ok(())).and_then(|()| git.say(&line));
                }
                Ok::<_, GitError>(())
            })?;
        }
        let (command, answer) = (git.command.clone(), said.err().map(|error| error.to_string()));
        // When it did not want to read on, it says why.
        git.end()?;
        answer.map_or(Ok(()), |answer| Err(GitError::Unexpected { command, answer }))
    }

    /// Brings one path from old to new; `false` when it is neither or can't be.
    fn bring_forward(&self, change: &Difference, cut_off: bool) -> Result<bool, GitError> {
        let now = self.object_at(&change.path)?;
        let is = |mode: u32, oid: &crate::Oid| match &now {
            None => mode == 0,
            Some((found_mode, found)) => *found_mode == mode && found == oid.as_str(),
        };
        if is(change.new_mode, &change.new) {
            return Ok(true);
        }
        let is_old = is(change.old_mode, &change.old) || (cut_off && self.is_cut_off(change)?);
        if !is_old {
            return Ok(false);
        }
        hit("follow:path").at("update", &self.worktree.dir)?;
        let place = self.place(&change.path);
        if change.new_mode == 0 {
            // One that can't be changed is left alone like one that was.
            if std::fs::remove_file(&place).is_err() {
                return Ok(false);
            }
            hit("follow:path:removed").at("update", &self.worktree.dir)?;
            let mut dir = place;
            while dir.pop() && dir != self.worktree.dir && std::fs::remove_dir(&dir).is_ok() {
                hit("follow:path:dir").at("update", &self.worktree.dir)?;
            }
            return Ok(true);
        }
        // git writes the file by its own rules, through an index that holds it alone.
        let index = self.worktree.git_dir.join("dam-index-one");
        let _ = std::fs::remove_file(&index);
        let git = || self.git().env("GIT_INDEX_FILE", &index);
        let write = |mode: u32, oid: &crate::Oid| {
            let mut line = format!("{mode:o} {oid}\t").into_bytes();
            line.extend(&change.path);
            line.push(0);
            git().args(["update-index", "-z", "--index-info"]).input(line).run()?;
            hit("follow:path:write").at("update", &self.worktree.dir)?;
            let done = git().args(["checkout-index", "--force", "--all"]).finish()?;
            hit("follow:path:written").at("update", &self.worktree.dir)?;
            Ok::<_, GitError>(done)
        };
        let done = write(change.new_mode, &change.new)?;
        let failed = (!done.status.success()).then(|| done.failed());
        let no_room = failed.as_ref().is_some_and(GitError::is_for_want_of_room);
        if no_room {
            // git has removed what was there, so there is room for that.
            match change.old_mode {
                0 => drop(std::fs::remove_file(&place)),
                mode => drop(write(mode, &change.old)?),
            }
        }
        let _ = std::fs::remove_file(&index);
        match failed {
            Some(error) if no_room => Err(error),
            failed => Ok(failed.is_none()),
        }
    }

    /// Whether a path is gone, or holds but the beginning of what was to be written.
    fn is_cut_off(&self, change: &Difference) -> Result<bool, GitError> {
        let place = self.place(&change.path);
        match std::fs::symlink_metadata(&place) {
            Err(error) => Ok(error.kind() == std::io::ErrorKind::NotFound),
            Ok(meta) if meta.is_file() && change.new_mode != 0 => {
                let new = self.git().args(["cat-file", "blob", change.new.as_str()]).run()?;
                Ok(new.starts_with(&std::fs::read(&place).at("read", &place)?))
            }
            Ok(_) => Ok(false),
        }
    }

    /// Mode and object name of what lies at a path, by git's own conversions.
    fn object_at(&self, path: &[u8]) -> Result<Option<(u32, String)>, GitError> {
        let place = self.place(path);
        let meta = match std::fs::symlink_metadata(&place) {
            Ok(meta) if meta.is_dir() => return Ok(None),
            Ok(meta) => meta,
            Err(_) => return Ok(None),
        };
        let (mode, content) = if meta.is_symlink() {
            let target = std::fs::read_link(&place).at("read", &place)?;
            (0o120_000, target.into_os_string().into_encoded_bytes())
        } else {
            let mode = if meta.mode() & 0o100 != 0 { 0o100_755 } else { 0o100_644 };
            (mode, std::fs::read(&place).at("read", &place)?)
        };
        let git = self.git().args(["hash-object", "--stdin"]);
        let git = if mode == 0o120_000 {
            git.args(["--no-filters"])
        } else {
            let mut option = b"--path=".to_vec();
            option.extend(path);
            git.args([OsStr::from_bytes(&option)])
        };
        Ok(Some((mode, git.input(content).oid()?.to_string())))
    }
}

//! Going on after a crash, path by path.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use cofferdam_failpoint::hit;
use cofferdam_tree::BytePath;

use super::room::Room;
use super::{Absent, Follow, FollowError, LockDraft, TOLD, differences};
use crate::difference::Difference;
use crate::mode::{EXECUTABLE, GITLINK, LINK};
use crate::{CommitId, GitError, IoContext, Oid, Repository, Told};

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
        let disk = Disk::of(&self)?;
        let mut still_absent = Vec::new();
        let mut left_alone = Told::new(TOLD);
        // Deletions first, so that a file can become a directory and the other way.
        for deletions in [true, false] {
            let mut absent = Absent::new(&self);
            self.changes.each(|change| {
                if (change.new_mode == 0) != deletions {
                    return Ok(());
                }
                if absent.has(&change.path)? && Now::at(self.place(&change.path))? == Now::Absent {
                    if change.new_mode != 0 {
                        still_absent.extend(&change.path);
                        still_absent.push(0);
                    }
                } else if !self.bring_forward(change, disk, cut_off)? {
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
    fn bring_forward(
        &self,
        change: &Difference,
        disk: Disk,
        cut_off: bool,
    ) -> Result<bool, GitError> {
        let place = self.place(&change.path);
        let now = Now::at(place.clone())?;
        let mut seen = Seen::default();
        let mut is = |mode: u32, oid: &Oid| {
            Ok::<_, GitError>(match (&now, mode) {
                (Now::Absent, mode) => mode == 0,
                (_, 0 | GITLINK) => false,
                (Now::Link(target), LINK) => {
                    let hashed = || self.git().args(["hash-object", "--stdin", "--no-filters"]);
                    *seen.get(true, || hashed().input(target.as_bytes()).oid())? == *oid
                }
                (Now::Link(_), _) => false,
                (Now::File { .. }, LINK) if !disk.no_symlinks => false,
                (Now::File { executable }, mode) => {
                    let is_link = mode == LINK;
                    let right = is_link || disk.no_modes || *executable == (mode == EXECUTABLE);
                    right && *seen.get(is_link, || self.hash(&change.path, is_link))? == *oid
                }
            })
        };
        if is(change.new_mode, &change.new)? {
            return Ok(true);
        }
        let is_old = is(change.old_mode, &change.old)? || (cut_off && self.is_cut_off(change)?);
        if !is_old {
            return Ok(false);
        }
        hit("follow:path").at("update", &self.worktree.dir)?;
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
                let file = std::fs::File::open(&place).at("read", &place)?;
                let mut git =
                    self.git().args(["cat-file", "blob", change.new.as_str()]).converse()?;
                let blob = git.child.stdout.take().expect("piped");
                let begins = is_beginning_of(file, blob).at("read", &place)?;
                // By a signal, when it was not let to print all of it.
                let ended = git.child.wait().at("read", &place)?;
                match ended.code() {
                    None | Some(0) => Ok(begins),
                    Some(_) => Err(GitError::MissingObject(change.new.clone())),
                }
            }
            Ok(_) => Ok(false),
        }
    }

    /// The object that a file is, by git's own conversions, or by none.
    fn hash(&self, path: &[u8], as_it_is: bool) -> Result<Oid, GitError> {
        let place = self.place(path);
        let file = std::fs::File::open(&place).at("read", &place)?;
        let how = if as_it_is { b"--no-filters".to_vec() } else { [b"--path=", path].concat() };
        self.git()
            .args(["hash-object", "--stdin"])
            .args([OsStr::from_bytes(&how)])
            .reading(file)
            .oid()
    }
}

/// What a checkout's settings say that the disk can't have.
#[derive(Clone, Copy)]
struct Disk {
    /// `core.symlinks=false`: files stand for links.
    no_symlinks: bool,
    /// `core.fileMode=false`: the executable bit says nothing.
    no_modes: bool,
}

impl Disk {
    fn of(follow: &Follow<'_>) -> Result<Disk, GitError> {
        Ok(Disk {
            no_symlinks: follow.is_set_to_false("core.symlinks")?,
            no_modes: follow.is_set_to_false("core.fileMode")?,
        })
    }
}

/// What is at a path of the checkout.
#[derive(PartialEq)]
enum Now {
    /// Nothing, or a directory.
    Absent,
    Link(OsString),
    File {
        executable: bool,
    },
}

impl Now {
    fn at(place: PathBuf) -> Result<Now, GitError> {
        Ok(match std::fs::symlink_metadata(&place) {
            Err(_) => Now::Absent,
            Ok(meta) if meta.is_dir() => Now::Absent,
            Ok(meta) if meta.is_symlink() => {
                Now::Link(std::fs::read_link(&place).at("read", &place)?.into_os_string())
            }
            Ok(meta) => Now::File { executable: meta.mode() & 0o100 != 0 },
        })
    }
}

/// The object that something is as it is, and by git's conversions: each is asked for once.
#[derive(Default)]
struct Seen([Option<Oid>; 2]);

impl Seen {
    fn get(
        &mut self,
        as_it_is: bool,
        hash: impl FnOnce() -> Result<Oid, GitError>,
    ) -> Result<&Oid, GitError> {
        match &mut self.0[usize::from(as_it_is)] {
            Some(known) => Ok(known),
            none => Ok(none.insert(hash()?)),
        }
    }
}

/// Whether all of `part` is what `whole` begins with.
fn is_beginning_of(part: impl Read, whole: impl Read) -> io::Result<bool> {
    let (mut part, mut whole) =
        (BufReader::with_capacity(1 << 16, part), BufReader::with_capacity(1 << 16, whole));
    loop {
        let (next, expected) = (part.fill_buf()?, whole.fill_buf()?);
        let both = next.len().min(expected.len());
        if next.is_empty() {
            return Ok(true);
        }
        if both == 0 || next[..both] != expected[..both] {
            return Ok(false);
        }
        part.consume(both);
        whole.consume(both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_the_beginning_of_a_whole_or_is_not() {
        let is = |part: &str, whole: &str| is_beginning_of(part.as_bytes(), whole.as_bytes());
        for (part, whole, wanted) in
            [("", "", true), ("", "a", true), ("ab", "abc", true), ("abc", "abc", true)]
                .into_iter()
                .chain([("abcd", "abc", false), ("ax", "abc", false), ("a", "", false)])
        {
            assert_eq!(is(part, whole).expect("read"), wanted, "{part:?} of {whole:?}");
        }
        let long = "x".repeat(200_000);
        assert!(is(&long[..150_000], &long).expect("read"));
        assert!(!is(&format!("{}y", &long[..150_000]), &long).expect("read"));
    }
}

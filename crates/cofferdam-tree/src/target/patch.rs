//! Several files of a directory that is in use, changed by one commit.
//!
//! A reader sees each file whole, the old one or the new one. It does **not** see all of
//! them change at one moment: one that takes no lock can find some paths changed and
//! others not yet, while a patch is applied, and after a crash until it is applied again.
//! Where that matters the target has to be a whole tree.
//!
//! 1. [`PatchTarget::look`] tells, when the task begins, what is at each path.
//! 2. [`PatchTarget::stage`] makes the new files and links beside the places that they
//!    will have, and syncs them and their directories. Where a directory is missing they
//!    wait in the nearest one above it that exists. It gives a [`Redo`].
//! 3. [`Redo::compare`] looks at each path once more.
//! 4. The caller writes the redo record where it stays, [`Redo::write`] or a ledger with
//!    a sync. That is the commit point: before it [`Redo::abandon`] takes back what was
//!    staged, after it the only way is forward.
//! 5. [`Redo::apply`] goes through the paths: one that is new already is skipped, one
//!    that is still old is changed, if what was staged for it is what was written down,
//!    and anything else is left alone and told, because it is somebody else's. Then the directories are synced. It can be repeated after any
//!    number of crashes and ends the same.
//!
//! What is staged is made durable before the record is: a record whose files are gone
//! after a power cut could not be applied.
//!
//! Nothing below the directory is followed, whoever plants links there meanwhile, and no
//! mount is crossed. So a staged file and its place are on one file system: it waits in
//! the same directory, or in one whose missing descendants are made by the patch.
//!
//! A path can change between a file, a link and nothing, or between a directory and
//! nothing. That a file becomes a directory, or the reverse, is refused: between the two
//! steps which that takes, a crash leaves what is neither old nor new.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cofferdam_failpoint::hit;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_with::As;

use super::file::{GoOn, Making, Seen, TRIES, Version};
use super::redo::{Planned, Redo, Temp};
use super::{FileTarget, Fingerprint, Step, TargetError, copy};
use crate::descent::{c_name, open_dir};
use crate::path::{TextOrBytes, components};
use crate::stat::probe_at;

/// From how many on, one `syncfs` takes the place of an `fsync` for each file or directory.
/// It waits for what others have written to the file system as well, but each `fsync`
/// waits for a commit of the file system's journal, and of a thousand that is seconds.
const MANY: usize = 32;

const NO_DIR: &str = "not a directory, or behind a symbolic link";
const NO_PATH: &str = "no path below the directory";

/// A directory some paths of which are to be changed.
#[derive(Debug)]
pub struct PatchTarget {
    dir: OwnedFd,
    path: PathBuf,
}

/// What is at a path, or is to be there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Nothing, or a directory above it is missing.
    Nothing,
    /// A regular file.
    File(Fingerprint),
    /// A symbolic link, by what it holds.
    Link(#[serde(with = "As::<TextOrBytes>")] PathBuf),
    /// A directory, whatever is in it.
    Dir,
}

/// One change of a patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    /// Relative to the directory, of any bytes, without `.`, `..` and empty components.
    pub path: PathBuf,
    /// What was there when the task began.
    pub old: State,
    /// What becomes of it.
    pub change: Change,
}

/// What becomes of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A file, made or replaced. It keeps the owner, permissions and extended attributes of
    /// a file that it replaces.
    Write {
        /// Whether it is a program.
        executable: bool,
    },
    /// A symbolic link that holds this, made or replaced.
    Link(PathBuf),
    /// A directory, where nothing is. Those above a new path need not be named.
    MakeDir,
    /// Nothing: a file or link is removed, or a directory of which the patch removes
    /// all that it holds.
    Remove,
}

/// What is at a place now.
pub(super) struct Now {
    pub(super) state: State,
    /// None for nothing.
    pub(super) version: Option<Version>,
    seen: Option<Seen>,
}

impl Now {
    const NOTHING: Now = Now { state: State::Nothing, version: None, seen: None };
}

impl PatchTarget {
    /// The directory at an absolute path; symbolic links on the way stand for what they
    /// lead to.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn open(path: &Path) -> Result<PatchTarget, TargetError> {
        if !path.is_absolute() {
            let found = "not the absolute path of a directory";
            return Err(TargetError::Unsuitable { path: path.into(), found });
        }
        PatchTarget::at(&std::fs::canonicalize(path).step("find", path)?)
    }

    /// The directory at a path that [`PatchTarget::path`] gave. A link there is not followed.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn at(path: &Path) -> Result<PatchTarget, TargetError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            // A link, too, is no directory (open(2)).
            Err(Errno::NOTDIR | Errno::LOOP) => {
                Err(TargetError::Unsuitable { path: path.into(), found: "not a directory" })
            }
            dir => Ok(PatchTarget { dir: dir.step("open", path)?, path: path.into() }),
        }
    }

    /// Where it is, absolute, without symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is at a path now. `go_on` is told how many bytes were read.
    ///
    /// # Errors
    /// [`TargetError::Unsuitable`] when a link or a mount is on the way, or when something
    /// else than a file, link or directory is there; else as [`FileTarget::look`].
    pub fn look(
        &self,
        path: &Path,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<State, TargetError> {
        Ok(self.now(path, go_on)?.state)
    }

    fn now(&self, path: &Path, go_on: GoOn<'_>) -> Result<Now, TargetError> {
        self.place(path)?.map_or(Ok(Now::NOTHING), |place| now_at(&place, go_on))
    }

    /// The place of a path; none when a directory above it is missing.
    pub(super) fn place(&self, path: &Path) -> Result<Option<FileTarget>, TargetError> {
        let (Some(_), Some(parent), Some(name)) =
            (components(path.as_os_str().as_bytes()), path.parent(), path.file_name())
        else {
            return Err(self.unsuitable(path, NO_PATH));
        };
        let dir = self.dir(parent)?;
        Ok(dir.map(|dir| FileTarget::of(dir, name, self.path.join(path))))
    }

    /// A directory below, or this one for an empty path; none when it is missing.
    pub(super) fn dir(&self, path: &Path) -> Result<Option<OwnedFd>, TargetError> {
        let name = match path.as_os_str().as_bytes() {
            b"" => c_name(b"."),
            path => c_name(path),
        };
        match name.and_then(|name| open_dir(&self.dir, &name)) {
            Err(Errno::NOENT) => Ok(None),
            // A link is no directory when it is last, and a loop before that (openat2(2)).
            Err(Errno::NOTDIR | Errno::LOOP) => Err(self.unsuitable(path, NO_DIR)),
            Err(Errno::XDEV) => Err(self.unsuitable(path, "on another file system")),
            dir => dir.map(Some).step("open", &self.path.join(path)),
        }
    }

    pub(super) fn unsuitable(&self, path: &Path, found: &'static str) -> TargetError {
        TargetError::Unsuitable { path: self.path.join(path), found }
    }

    /// Makes what is to come beside its places, and syncs it: nothing that is there
    /// changes. Names begin with `.dam-TASK-`, which must be nobody else's; what an earlier
    /// attempt left under them goes. `open` gives the content of a file that is to be
    /// written. New files and directories have the permissions that `umask` leaves.
    /// `go_on` is told how many bytes were copied or read.
    ///
    /// # Errors
    /// [`TargetError::Unsuitable`] for changes that contradict each other or can't be made,
    /// [`TargetError::Drifted`] where a path is no longer as its [`Op::old`]; nothing is
    /// staged then, unless removing it failed too.
    pub fn stage(
        &self,
        ops: &[Op],
        task: &str,
        umask: u32,
        open: &mut dyn FnMut(&Op) -> io::Result<File>,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Redo, TargetError> {
        let staged = self.stage_all(ops, task, umask, open, go_on);
        if staged.is_err() {
            let _ = self.unstage(ops, task);
        }
        staged
    }

    fn stage_all(
        &self,
        ops: &[Op],
        task: &str,
        umask: u32,
        open: &mut dyn FnMut(&Op) -> io::Result<File>,
        go_on: GoOn<'_>,
    ) -> Result<Redo, TargetError> {
        let dir = |path| Planned { path, old: State::Nothing, new: State::Dir, temp: None };
        let mut changes: Vec<Planned> = self.plan(ops)?.into_iter().map(dir).collect();
        let is_write = |op: &&Op| matches!(op.change, Change::Write { .. });
        // A link can't be synced by itself.
        let whole = ops.iter().any(|op| matches!(op.change, Change::Link(_)))
            || ops.iter().filter(is_write).count() > MANY;
        let mut touched = BTreeSet::new();
        for (number, op) in ops.iter().enumerate() {
            hit("target:patch:stage").step("stage", &self.path.join(&op.path))?;
            let now = self.now(&op.path, go_on)?;
            let mut planned = Planned {
                path: op.path.clone(),
                old: op.old.clone(),
                new: if op.change == Change::MakeDir { State::Dir } else { State::Nothing },
                temp: None,
            };
            planned.compare(&now.state, self)?;
            if matches!(op.change, Change::Write { .. } | Change::Link(_)) {
                let (dir, beside) = self.nearest(&op.path)?;
                let temp = Temp { dir, name: temp_name(task, number) };
                self.remove(&temp)?;
                let name = temp.name.as_ref();
                planned.new = match &op.change {
                    Change::Link(target) => make_link(&beside, name, target, &op.old)?,
                    _ => {
                        let file = open(op).step("open what is to become", beside.path())?;
                        let executable = op.change == Change::Write { executable: true };
                        let size = file.metadata().step("copy", beside.path())?.len();
                        let (temp, sync) = (name, !whole);
                        let old = now.seen.as_ref().map(|seen| &seen.file);
                        let making = Making { temp, old, size, executable, umask, sync };
                        let write = &mut |made: &File, go_on: GoOn<'_>| {
                            copy::content(&file, made, go_on).step("copy", beside.path())
                        };
                        State::File(beside.make(making, write, go_on)?)
                    }
                };
                touched.insert(temp.dir.clone());
                planned.temp = Some(temp);
            }
            changes.push(planned);
        }
        changes.sort_by(|one, other| one.path.cmp(&other.path));
        self.sync(&touched, whole)?;
        Ok(Redo { version: Redo::VERSION, dir: self.path.clone(), umask, changes })
    }

    /// Checks that the changes can all be made, and gives the directories above them that
    /// are missing and not among them.
    fn plan(&self, ops: &[Op]) -> Result<BTreeSet<PathBuf>, TargetError> {
        let mut by_path = BTreeMap::new();
        for op in ops {
            let refused = match (&op.old, &op.change) {
                _ if components(op.path.as_os_str().as_bytes()).is_none() => Some(NO_PATH),
                // A task knows its own id, and so what the staged files are called.
                _ if op.path.iter().any(|name| name.as_bytes().starts_with(b".dam-")) => {
                    Some("called like what is staged")
                }
                _ if by_path.insert(op.path.as_path(), &op.change).is_some() => {
                    Some("changed twice by one patch")
                }
                (State::Nothing, Change::Remove) => Some("not there to be removed"),
                (State::Dir, Change::Write { .. } | Change::Link(_)) => Some("a directory"),
                (State::File(_) | State::Link(_) | State::Dir, Change::MakeDir) => {
                    Some("not free for a directory")
                }
                _ => None,
            };
            if let Some(found) = refused {
                return Err(self.unsuitable(&op.path, found));
            }
        }
        let mut missing = BTreeSet::new();
        for op in ops {
            let goes = op.change == Change::Remove;
            for above in above(&op.path) {
                match by_path.get(above) {
                    None if goes => {}
                    None if self.dir(above)?.is_some() => {}
                    None => {
                        missing.insert(above.to_path_buf());
                    }
                    Some(Change::MakeDir) if !goes => {}
                    Some(Change::Remove) if goes => {}
                    Some(_) => {
                        let found = "below what the same patch makes or removes";
                        return Err(self.unsuitable(&op.path, found));
                    }
                }
            }
        }
        Ok(missing)
    }

    /// The nearest directory above a path that exists, and a target of that path in it.
    fn nearest(&self, path: &Path) -> Result<(PathBuf, FileTarget), TargetError> {
        for above in path.ancestors().skip(1) {
            if let (Some(dir), Some(name)) = (self.dir(above)?, path.file_name()) {
                let target = FileTarget::of(dir, name, self.path.join(path));
                return Ok((above.to_path_buf(), target));
            }
        }
        Err(self.unsuitable(path, NO_PATH))
    }

    /// Removes what [`PatchTarget::stage`] with these arguments has staged, of which there is
    /// no redo record: it failed, or its process died. Can be repeated.
    ///
    /// # Errors
    /// [`TargetError::Io`].
    pub fn unstage(&self, ops: &[Op], task: &str) -> Result<(), TargetError> {
        let mut touched = BTreeSet::new();
        for (number, op) in ops.iter().enumerate() {
            // It is in the one that was the nearest then.
            for above in op.path.ancestors().skip(1) {
                let temp = Temp { dir: above.to_path_buf(), name: temp_name(task, number) };
                if self.remove(&temp)? {
                    touched.insert(temp.dir);
                }
            }
        }
        self.sync(&touched, false)
    }

    /// Removes something staged. Gives whether it was there.
    pub(super) fn remove(&self, temp: &Temp) -> Result<bool, TargetError> {
        let dir = match self.dir(&temp.dir) {
            // What was in the directory went with it.
            Ok(None) | Err(TargetError::Unsuitable { .. }) => return Ok(false),
            Ok(Some(dir)) => dir,
            Err(error) => return Err(error),
        };
        let path = self.path.join(&temp.dir).join(&temp.name);
        hit("target:patch:unstage").step("remove", &path)?;
        match rustix::fs::unlinkat(dir, &temp.name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(false),
            removed => removed.step("remove", &path).map(|()| true),
        }
    }

    /// Makes the names in these directories durable, with `whole` all that is on the file
    /// system. That was opened before anything was written to it: so `syncfs` tells of each
    /// write that failed (syncfs(2), since Linux 5.8).
    pub(super) fn sync(&self, dirs: &BTreeSet<PathBuf>, whole: bool) -> Result<(), TargetError> {
        hit("target:patch:sync").step("sync", &self.path)?;
        if whole || dirs.len() > MANY {
            return rustix::fs::syncfs(&self.dir).step("sync", &self.path);
        }
        for path in dirs {
            match self.dir(path) {
                // Somebody else has removed it, or the patch.
                Ok(None) | Err(TargetError::Unsuitable { .. }) => {}
                dir => {
                    if let Some(dir) = dir? {
                        rustix::fs::fsync(&dir).step("sync", &self.path.join(path))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The directories above a path, without the target itself.
fn above(path: &Path) -> impl Iterator<Item = &Path> {
    path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty())
}

fn temp_name(task: &str, number: usize) -> String {
    format!(".dam-{task}-{number}")
}

/// What is at a place now, of whatever kind.
pub(super) fn now_at(place: &FileTarget, go_on: GoOn<'_>) -> Result<Now, TargetError> {
    let path = place.path();
    let unsuitable = |found| Err(TargetError::Unsuitable { path: path.into(), found });
    let name = c_name(place.name.as_bytes()).step("look at", path)?;
    for _ in 0..TRIES {
        let probe = match probe_at(&place.dir, &name) {
            Err(Errno::NOENT) => return Ok(Now::NOTHING),
            probe => probe.step("look at", path)?,
        };
        if probe.mount_root {
            return unsuitable("a mount point");
        }
        let changed = probe.stat.ctime;
        let version = Some((probe.stat.ino, changed.sec, i64::from(changed.nsec)));
        let state = match probe.file_type() {
            FileType::RegularFile => match place.look(go_on)? {
                None => continue,
                Some(seen) => {
                    let state = State::File(seen.fingerprint.clone());
                    return Ok(Now { state, version: Some(seen.version), seen: Some(seen) });
                }
            },
            FileType::Symlink => match rustix::fs::readlinkat(&place.dir, &name, Vec::new()) {
                Err(Errno::NOENT | Errno::INVAL) => continue,
                target => {
                    let target = target.step("read", path)?;
                    State::Link(OsStr::from_bytes(target.as_bytes()).into())
                }
            },
            FileType::Directory => State::Dir,
            _ => return unsuitable("neither a file, a link nor a directory"),
        };
        if version == place.version()? {
            return Ok(Now { state, version, seen: None });
        }
    }
    Err(place.drifted("is being written to"))
}

/// Makes a symbolic link beside a place, with the owner of the one that it replaces.
fn make_link(
    beside: &FileTarget,
    temp: &OsStr,
    target: &Path,
    old: &State,
) -> Result<State, TargetError> {
    const STEP: &str = "make a link beside";
    hit("target:patch:link").step(STEP, beside.path())?;
    rustix::fs::symlinkat(target, &beside.dir, temp).step(STEP, beside.path())?;
    if matches!(old, State::Link(_)) {
        let stat = |name: &OsStr| rustix::fs::statat(&beside.dir, name, AtFlags::SYMLINK_NOFOLLOW);
        let (old, new) = (stat(&beside.name), stat(temp));
        let (old, new) = (old.step(STEP, beside.path())?, new.step(STEP, beside.path())?);
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid) {
            let (uid, gid) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let kept = rustix::fs::chownat(&beside.dir, temp, Some(uid), Some(gid), flags);
            kept.step("keep the owner of", beside.path())?;
        }
    }
    Ok(State::Link(target.into()))
}

#[cfg(test)]
mod tests;

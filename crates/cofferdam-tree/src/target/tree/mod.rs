//! One directory, replaced as a whole.
//!
//! A reader that opens the directory sees the old tree or the new one, and one that has it
//! open goes on reading the old one. (One that goes through the path for each file can see
//! the old one's first and the new one's second; no file system has anything against that.)
//!
//! There are two [`Way`]s. Where the place is a directory, it and the new one *exchange*
//! their names. Where the place is a symbolic *link* to a directory, the new one becomes
//! another directory beside the link, which is replaced by a link to that.
//!
//! 1. [`TreeTarget::stage`] copies the result into a directory beside, on the same file
//!    system, gives its top the owner, permissions and attributes of what it replaces, and
//!    makes it durable.
//! 2. [`TreeTarget::commit`] reads what is there once more and compares it with what was
//!    there when the task began. Then it exchanges the names, or renames the link, and
//!    syncs the directory that holds them.
//! 3. Between the comparison and the exchange somebody can have written. So what was
//!    replaced is read again, and when it is not what it was, it gets its name back:
//!    nobody's write is lost.
//! 4. What was replaced becomes a version, see [`Version`]. Readers that still have it open
//!    are not disturbed until it is the fourth.
//!
//! Who has a file of the old tree open, or works in it, goes on writing to the old one
//! afterwards; that is in the version. A mount made of the directory elsewhere (into a
//! container, for instance) shows the old one for ever: there a link is no better.

mod commit;
mod copy;
mod error;
mod fingerprint;
mod recover;
#[cfg(test)]
mod tests;
mod version;

pub use copy::{Keep, Owners, SetId, copy_tree};
pub use error::TreeError;
pub use fingerprint::TreeFingerprint;
pub use version::{KEPT, Version, is_version_name};

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use cofferdam_failpoint::hit;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, openat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use self::copy::{Attributes, copy_with_top};
use super::file::of_stat;
use super::{Step, TargetError};
use crate::descent::c_name;
use crate::random;
use crate::stat::{Probe, probe_at, probe_fd};
use crate::walk::{Totals, WalkError};

/// How often a tree that is written meanwhile is read again.
const TRIES: u32 = 3;
/// What is being done, in messages.
const EXCHANGE: &str = "exchange";

/// How a directory is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// It and the new one exchange their names.
    Exchange,
    /// A symbolic link in its place is replaced by one to the new directory.
    Link,
}

/// A directory that is to be replaced, or made, by its place.
#[derive(Debug)]
pub struct TreeTarget {
    dir: OwnedFd,
    name: OsString,
    path: PathBuf,
    way: Way,
}

/// What is at a target's place.
#[derive(Debug)]
pub struct Seen {
    /// All that it holds.
    pub fingerprint: TreeFingerprint,
    dir: OwnedFd,
}

/// A verified result that is to become the target.
#[derive(Debug, Clone, Copy)]
pub struct Tree<'a> {
    /// The directory whose content is copied, opened for reading.
    pub dir: BorrowedFd<'a>,
    /// Who owns the copy, and whether it keeps set-id bits. It is synced in any case.
    pub keep: Keep,
    /// Whether what has a namesake in the tree that is replaced has its owner.
    pub like_old: bool,
    /// Permission bits that a directory which replaces nothing does not get.
    pub umask: u32,
}

/// A symbolic link in the target's place.
struct Link {
    text: CString,
    /// Inode, and the time of its last change.
    version: (u64, i64, i64),
}

impl TreeTarget {
    /// The target at an absolute path, whose directory must exist. A symbolic link to a
    /// directory is itself what will be replaced; other links in the path are followed.
    /// Whether it can be replaced here is tried out with two names beside it.
    ///
    /// # Errors
    /// [`TargetError::NotHere`] when it can't be, with the way that can.
    pub fn open(path: &Path) -> Result<TreeTarget, TargetError> {
        let (parent, name) = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if path.is_absolute() => (parent, name),
            _ => {
                let found = "not the absolute path of a directory";
                return Err(TargetError::Unsuitable { path: path.into(), found });
            }
        };
        let parent = std::fs::canonicalize(parent).step("find the directory of", path)?;
        let place = parent.join(name);
        let is_link = place.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
        let target = TreeTarget::at(&place, if is_link { Way::Link } else { Way::Exchange })?;
        let is_there = target.directory()?.is_some();
        target.probe(is_there)?;
        Ok(target)
    }

    /// The target at a path that [`TreeTarget::path`] gave, to be replaced in this way.
    /// Whatever is there now: [`TreeTarget::look`] tells.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn at(place: &Path, way: Way) -> Result<TreeTarget, TargetError> {
        let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
            let found = "not the absolute path of a directory";
            return Err(TargetError::Unsuitable { path: place.into(), found });
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(parent, flags, Mode::empty());
        let dir = dir.step("open the directory of", place)?;
        Ok(TreeTarget { dir, name: name.to_owned(), path: place.to_owned(), way })
    }

    /// Where it is, absolute; no symbolic link leads there, though it can be one itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it is replaced.
    #[must_use]
    pub fn way(&self) -> Way {
        self.way
    }

    /// Opens what is there now; for a link, where it leads.
    fn directory(&self) -> Result<Option<OwnedFd>, TargetError> {
        let unsuitable = |found| Err(TargetError::Unsuitable { path: self.path.clone(), found });
        let Some(probe) = self.stat(&self.name)? else { return Ok(None) };
        match (self.way, probe.file_type()) {
            (Way::Exchange, FileType::Directory) => {
                let parent = probe_fd(&self.dir).step("look at the directory of", &self.path)?;
                if probe.mount_root {
                    return Err(self.not_here(EXCHANGE, Errno::BUSY));
                }
                if probe.stat.dev != parent.stat.dev {
                    return Err(self.not_here(EXCHANGE, Errno::XDEV));
                }
                self.beside(&self.name)
            }
            (Way::Exchange, FileType::Symlink) => unsuitable("a symbolic link"),
            (Way::Exchange, _) => unsuitable("not a directory"),
            (Way::Link, FileType::Symlink) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                match openat(&self.dir, &self.name, flags, Mode::empty()) {
                    Err(Errno::NOENT) => unsuitable("a symbolic link to nothing"),
                    Err(Errno::NOTDIR) => unsuitable("a symbolic link to what is no directory"),
                    dir => Ok(Some(dir.step("open", &self.path)?)),
                }
            }
            (Way::Link, _) => unsuitable("no symbolic link any more"),
        }
    }

    fn stat(&self, name: &OsStr) -> Result<Option<Probe>, TargetError> {
        match c_name(name.as_bytes()).and_then(|name| probe_at(&self.dir, &name)) {
            Err(Errno::NOENT) => Ok(None),
            probe => Ok(Some(probe.step("look at", &self.path)?)),
        }
    }

    /// Opens the directory of this name beside the target, if there is one.
    fn beside(&self, name: &OsStr) -> Result<Option<OwnedFd>, TargetError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&self.dir, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let found = "not a directory";
                Err(TargetError::Unsuitable { path: self.path.with_file_name(name), found })
            }
            dir => Ok(Some(dir.step("open", &self.path)?)),
        }
    }

    /// Tries out what a commit will do, with two names that nobody knows.
    fn probe(&self, exchanges: bool) -> Result<(), TargetError> {
        let name = || Ok::<_, io::Error>(self.derived("probe", &random::name(12)?));
        let (one, other) = (name().step("probe", &self.path)?, name().step("probe", &self.path)?);
        let tried = self.probe_with(&one, &other, exchanges);
        for name in [one, other] {
            let _ = unlinkat(&self.dir, name, AtFlags::REMOVEDIR);
        }
        tried
    }

    fn probe_with(&self, one: &OsStr, other: &OsStr, exchanges: bool) -> Result<(), TargetError> {
        let inode = |name| Ok::<_, TargetError>(self.stat(name)?.map(|probe| probe.stat.ino));
        let make = "make a directory beside";
        hit("target:tree:probe").map_err(|error| self.refused(make, error))?;
        let made = rustix::fs::mkdirat(&self.dir, one, Mode::RWXU);
        made.map_err(|errno| self.refused(make, errno.into()))?;
        if !exchanges || self.way == Way::Link {
            return Ok(());
        }
        rustix::fs::mkdirat(&self.dir, other, Mode::RWXU).step(make, &self.path)?;
        let before = (inode(one)?, inode(other)?);
        self.swap(one, other)?;
        if (inode(other)?, inode(one)?) == before {
            Ok(())
        } else {
            Err(self.not_here(EXCHANGE, Errno::OPNOTSUPP))
        }
    }

    /// Reads what is there now; none when nothing is. `go_on` is told what was read since
    /// it was last asked.
    ///
    /// # Errors
    /// [`TargetError::Io`] with [`io::ErrorKind::Interrupted`] when `go_on` said no;
    /// [`TargetError::Drifted`] when it is written all the time.
    pub fn look(&self, go_on: &mut dyn FnMut(Totals) -> bool) -> Result<Option<Seen>, TargetError> {
        self.read(&|| self.directory(), go_on)
    }

    fn read(
        &self,
        open: &dyn Fn() -> Result<Option<OwnedFd>, TargetError>,
        go_on: &mut dyn FnMut(Totals) -> bool,
    ) -> Result<Option<Seen>, TargetError> {
        for _ in 0..TRIES {
            let Some(dir) = open()? else { return Ok(None) };
            match TreeFingerprint::of(dir.as_fd(), go_on) {
                Err(TreeError::Walk(WalkError::Changed { .. })) => {}
                read => {
                    let fingerprint = read.step("read", &self.path)?;
                    return Ok(Some(Seen { fingerprint, dir }));
                }
            }
        }
        Err(self.drifted("is being written to"))
    }

    /// That it is not what it was when the task began.
    #[must_use]
    pub fn has_changed(&self) -> TargetError {
        self.drifted("has changed since the task began")
    }

    fn drifted(&self, how: &'static str) -> TargetError {
        TargetError::Drifted { path: self.path.clone(), how }
    }

    /// Makes `temp` beside it, a copy of this tree, durable. Gives what the target will be.
    /// Where it replaces a directory, its top has that one's owner in any case. `go_on` is
    /// told what was copied or read since it was last asked.
    ///
    /// # Errors
    /// [`TargetError::Io`]; `temp` is gone then.
    pub fn stage(
        &self,
        temp: &OsStr,
        tree: Tree<'_>,
        old: Option<&Seen>,
        go_on: &mut dyn FnMut(Totals) -> bool,
    ) -> Result<TreeFingerprint, TargetError> {
        hit("target:tree:copy").step("copy the result beside", &self.path)?;
        let of = |dir| Attributes::of(dir, b"").step("keep the attributes of", &self.path);
        let result = of(tree.dir)?;
        let top = match old {
            Some(old) => Attributes { mtime: result.mtime, ..of(old.dir.as_fd())? },
            None => Attributes {
                mode: 0o777 & !tree.umask,
                owner: None,
                mtime: result.mtime,
                extended: Vec::new(),
            },
        };
        let keep = Keep { sync: true, ..tree.keep };
        let like = old.filter(|_| tree.like_old).map(|old| old.dir.as_fd());
        copy_with_top(tree.dir, self.dir.as_fd(), temp, (keep, like), top, go_on)
            .step("copy the result beside", &self.path)?;
        let staged = self.read(&|| self.beside(temp), go_on);
        match staged {
            Ok(Some(staged)) => Ok(staged.fingerprint),
            other => {
                let _ = self.unstage(temp);
                Err(other.err().unwrap_or_else(|| self.drifted("is being written to")))
            }
        }
    }

    /// Renames a directory to a name that nothing has. On file systems that don't know such
    /// a rename the plain one has to do: it replaces nothing but an empty directory.
    fn rename_new(&self, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
        match rustix::fs::renameat_with(&self.dir, from, &self.dir, to, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                rustix::fs::renameat(&self.dir, from, &self.dir, to)
            }
            renamed => renamed,
        }
    }

    fn swap(&self, one: &OsStr, other: &OsStr) -> Result<(), TargetError> {
        let flags = RenameFlags::EXCHANGE;
        let swapped = hit("target:tree:swap")
            .and_then(|()| Ok(rustix::fs::renameat_with(&self.dir, one, &self.dir, other, flags)?));
        swapped.map_err(|error| self.refused(EXCHANGE, error))
    }

    /// The link in the target's place, where there is one.
    fn link(&self) -> Result<Option<Link>, TargetError> {
        if self.way == Way::Exchange {
            return Ok(None);
        }
        let read = self.link_version().and_then(|version| {
            Ok(Link { text: rustix::fs::readlinkat(&self.dir, &self.name, Vec::new())?, version })
        });
        match read {
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            read => Ok(Some(read.step("look at", &self.path)?)),
        }
    }

    fn link_version(&self) -> Result<(u64, i64, i64), Errno> {
        let stat = rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(of_stat(&stat))
    }

    fn sync(&self) -> Result<(), TargetError> {
        hit("target:tree:sync-dir").step("sync the directory of", &self.path)?;
        rustix::fs::fsync(&self.dir).step("sync the directory of", &self.path)
    }

    /// What a refused change of names means.
    fn refused(&self, step: &'static str, error: io::Error) -> TargetError {
        match Errno::from_io_error(&error) {
            Some(
                errno @ (Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::BUSY | Errno::XDEV),
            ) => self.not_here(step, errno),
            // File systems say in several ways that they don't know the question.
            Some(errno @ (Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)) if step == EXCHANGE => {
                self.not_here(step, errno)
            }
            _ => TargetError::Io { step, path: self.path.clone(), source: error },
        }
    }

    fn not_here(&self, step: &'static str, errno: Errno) -> TargetError {
        const PATCH: &str = "a patch, which changes file by file, works";
        let (why, instead) = match errno {
            Errno::ACCESS | Errno::PERM => ("names in its directory can't be changed", PATCH),
            Errno::ROFS => ("its file system is read-only", "a place elsewhere works"),
            Errno::BUSY => ("it is a mount point", "a directory below it, or a patch, works"),
            Errno::XDEV => {
                let why = "it is on another device than its directory, or in a lower layer";
                (why, "a directory below it, or a patch, works")
            }
            _ => {
                let why = "this file system can't exchange two names";
                (why, "a symbolic link to a directory in its place works")
            }
        };
        TargetError::NotHere { step, path: self.path.clone(), why, instead }
    }

    /// `.NAME.dam-KIND-ID`, beside the target.
    fn derived(&self, kind: &str, id: &str) -> OsString {
        let mut name = OsString::from(".");
        name.push(&self.name);
        name.push(format!(".dam-{kind}-{id}"));
        name
    }
}

fn suffixed(name: &OsStr, suffix: &str) -> OsString {
    OsString::from_vec([name.as_bytes(), suffix.as_bytes()].concat())
}

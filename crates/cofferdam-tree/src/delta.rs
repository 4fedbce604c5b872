//! Writes the difference between two trees as one overlay directory.
//!
//! A delta laid over its base shows the new tree: files and symlinks are there
//! as they are, deletions are whiteouts, and a directory that hides what is
//! below it is opaque. An ordinary user may make all of these
//! (Documentation/filesystems/overlayfs.rst, "userxattr").
//!
//! Calls may come in any order; **what is put wins over what is deleted**:
//!
//! | there already | `put_*` | `whiteout` | `opaque_dir` |
//! |---|---|---|---|
//! | nothing | made | made | made |
//! | whiteout | replaces it | stays | replaces it |
//! | file or symlink | `Exists` | stays | `Exists` |
//! | directory with nothing put | replaces it | made opaque | made opaque |
//! | directory with something put | `Exists` | made opaque | made opaque |
//!
//! A whiteout on the way to something put becomes an opaque directory: it said
//! that nothing from below shows. A whiteout below another one, or below a file
//! that is put, needs no mark of its own.
//!
//! Modes are exactly 0644, 0755 and 0777 (symlinks) whatever the umask is. The
//! path is resolved one component at a time below the root, following nothing.
//! Nothing is synced here; [`LayerStore::build`](crate::LayerStore::build) decides that.

use crate::descent::{c_name, open_beneath, open_dir};
use crate::path::{BytePath, components};
use crate::remove::remove_tree;
use crate::stat::{FileStat, FileTime, Probe, probe_at, probe_fd};
use crate::walk::{Caps, Found, OPAQUE, Visit, WalkError, Walker};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::SystemTime;

/// Why a delta can't be written.
#[derive(Debug, thiserror::Error)]
pub enum DeltaError {
    /// Empty, absolute, or with an empty, `.` or `..` component.
    #[error("`{path}` is not a path below the delta")]
    InvalidPath {
        /// As given.
        path: BytePath,
    },
    /// Two calls contradict each other.
    #[error("`{path}` is already in the delta")]
    Exists {
        /// What is there.
        path: BytePath,
    },
    /// The content given could not be read.
    #[error("content for `{path}` can't be read: {source}")]
    Content {
        /// The file it is for.
        path: BytePath,
        /// The reader's error.
        source: io::Error,
    },
    /// The kernel refused.
    #[error("`{path}` can't be written: {source}")]
    Write {
        /// The entry.
        path: BytePath,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// See the module.
pub struct DeltaWriter {
    root: OwnedFd,
    owner: Option<(u32, u32)>,
    /// The last parent used: sorted input then costs one open per directory.
    last: Option<(Vec<u8>, OwnedFd)>,
}

/// What a whiteout above the place means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Above {
    /// It becomes an opaque directory.
    Replace,
    /// There is nothing to do below it.
    Hiding,
}

type Result<T> = std::result::Result<T, DeltaError>;

impl DeltaWriter {
    /// Writes below `root`. With `owner` (uid, gid), everything made is given to
    /// them, which takes `CAP_CHOWN`.
    #[must_use]
    pub fn new(root: OwnedFd, owner: Option<(u32, u32)>) -> Self {
        Self { root, owner, last: None }
    }

    /// Writes a file of mode 0755 or 0644 and returns its stat data as they are
    /// when everything is done to it.
    ///
    /// # Errors
    /// See [`DeltaError`].
    pub fn put_file(
        &mut self,
        path: &[u8],
        executable: bool,
        mut content: impl Read,
        mtime: Option<SystemTime>,
    ) -> Result<FileStat> {
        let (dir, name) = self.place(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let fd = open_beneath(dir.as_fd(), &name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| write_error(path, errno))?;
        let mut file = File::from(fd);
        copy(path, &mut content, &mut file)?;
        let finish = || {
            self.give(|uid, gid| rustix::fs::fchown(&file, uid, gid))?;
            rustix::fs::fchmod(&file, Mode::from_raw_mode(if executable { 0o755 } else { 0o644 }))?;
            if let Some(mtime) = mtime {
                rustix::fs::futimens(&file, &times(mtime))?;
            }
            Ok(probe_fd(&file)?.stat)
        };
        finish().map_err(|errno: Errno| write_error(path, errno))
    }

    /// Writes a symlink, whatever its target is, and returns its stat data.
    ///
    /// # Errors
    /// See [`DeltaError`].
    pub fn put_symlink(
        &mut self,
        path: &[u8],
        target: &[u8],
        mtime: Option<SystemTime>,
    ) -> Result<FileStat> {
        let (dir, name) = self.place(path)?;
        let finish = || {
            rustix::fs::symlinkat(target, &dir, &name)?;
            self.give(|uid, gid| {
                rustix::fs::chownat(&dir, &name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            })?;
            if let Some(mtime) = mtime {
                rustix::fs::utimensat(&dir, &name, &times(mtime), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Ok(probe_at(&dir, &name)?.stat)
        };
        finish().map_err(|errno: Errno| write_error(path, errno))
    }

    /// Hides what the base has at `path`.
    ///
    /// # Errors
    /// See [`DeltaError`].
    pub fn whiteout(&mut self, path: &[u8]) -> Result<()> {
        let parts =
            components(path).ok_or_else(|| DeltaError::InvalidPath { path: path.into() })?;
        // Something put above, or a whiteout, hides everything the base has below.
        let Some(dir) = self.parent(&parts, Above::Hiding)? else { return Ok(()) };
        let name = c_name(parts[parts.len() - 1]).map_err(|errno| write_error(path, errno))?;
        match existing(&dir, &name).map_err(|errno| write_error(path, errno))? {
            Some(probe) if probe.is_dir() => self.opaque_dir(path),
            Some(_) => Ok(()),
            None => {
                let make = || {
                    rustix::fs::mknodat(&dir, &name, FileType::CharacterDevice, Mode::empty(), 0)?;
                    self.give(|uid, gid| {
                        rustix::fs::chownat(&dir, &name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
                    })
                };
                make().map_err(|errno: Errno| write_error(path, errno))
            }
        }
    }

    /// Makes a directory that hides what the base has at `path`.
    ///
    /// # Errors
    /// See [`DeltaError`].
    pub fn opaque_dir(&mut self, path: &[u8]) -> Result<()> {
        let parts =
            components(path).ok_or_else(|| DeltaError::InvalidPath { path: path.into() })?;
        let dir = self.parent_for_put(&parts)?;
        self.directory(dir.as_fd(), path, parts[parts.len() - 1], true).map(|_| ())
    }

    /// The directory and the name for something to be put, with nothing there.
    fn place(&mut self, path: &[u8]) -> Result<(OwnedFd, std::ffi::CString)> {
        let parts =
            components(path).ok_or_else(|| DeltaError::InvalidPath { path: path.into() })?;
        let dir = self.parent_for_put(&parts)?;
        let fail = |errno| write_error(path, errno);
        let name = c_name(parts[parts.len() - 1]).map_err(fail)?;
        match existing(&dir, &name).map_err(fail)? {
            None => {}
            Some(probe) if probe.is_whiteout() => {
                rustix::fs::unlinkat(&dir, &name, AtFlags::empty()).map_err(fail)?;
            }
            Some(probe) if probe.is_dir() && nothing_put(dir.as_fd(), &name) => {
                self.last = None;
                remove_tree(dir.as_fd(), OsStr::from_bytes(name.to_bytes())).map_err(|error| {
                    DeltaError::Write { path: path.into(), source: io::Error::other(error) }
                })?;
            }
            Some(_) => return Err(DeltaError::Exists { path: path.into() }),
        }
        Ok((dir, name))
    }

    fn parent_for_put(&mut self, parts: &[&[u8]]) -> Result<OwnedFd> {
        match self.parent(parts, Above::Replace)? {
            Some(dir) => Ok(dir),
            None => Err(DeltaError::Exists { path: BytePath(parts.join(&b'/')) }),
        }
    }

    /// The directory above, made with those above it as plain directories.
    /// `None` when a component hides what is below and may not be replaced.
    fn parent(&mut self, parts: &[&[u8]], above: Above) -> Result<Option<OwnedFd>> {
        let names = &parts[..parts.len() - 1];
        let wanted = names.join(&b'/');
        let fail = |errno| write_error(&wanted, errno);
        let again = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(fail);
        if names.is_empty() {
            return again(&self.root).map(Some);
        }
        if let Some((path, fd)) = &self.last
            && *path == wanted
        {
            return again(fd).map(Some);
        }
        let mut at = again(&self.root)?;
        for (index, part) in names.iter().enumerate() {
            if above == Above::Hiding {
                let name = c_name(part).map_err(fail)?;
                match existing(&at, &name).map_err(fail)? {
                    Some(probe) if !probe.is_dir() => return Ok(None),
                    _ => {}
                }
            }
            at = self.directory(at.as_fd(), &names[..=index].join(&b'/'), part, false)?;
        }
        let kept = again(&at)?;
        self.last = Some((wanted, kept));
        Ok(Some(at))
    }

    fn directory(
        &self,
        dir: BorrowedFd<'_>,
        path: &[u8],
        name: &[u8],
        opaque: bool,
    ) -> Result<OwnedFd> {
        let fail = |errno| write_error(path, errno);
        let name = c_name(name).map_err(fail)?;
        let mut opaque = opaque;
        let fresh = match existing(dir, &name).map_err(fail)? {
            None => true,
            Some(probe) if probe.is_whiteout() => {
                rustix::fs::unlinkat(dir, &name, AtFlags::empty()).map_err(fail)?;
                opaque = true;
                true
            }
            Some(probe) if probe.is_dir() => false,
            Some(_) => return Err(DeltaError::Exists { path: path.into() }),
        };
        let open = || {
            if fresh {
                rustix::fs::mkdirat(dir, &name, Mode::RWXU)?;
            }
            let fd = open_dir(dir, &name)?;
            if opaque {
                rustix::fs::fsetxattr(&fd, OPAQUE, b"y", XattrFlags::empty())?;
            }
            if fresh {
                self.give(|uid, gid| rustix::fs::fchown(&fd, uid, gid))?;
                rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o755))?;
            }
            Ok(fd)
        };
        open().map_err(fail)
    }

    fn give(
        &self,
        chown: impl FnOnce(Option<Uid>, Option<Gid>) -> std::result::Result<(), Errno>,
    ) -> std::result::Result<(), Errno> {
        match self.owner {
            Some((uid, gid)) => chown(Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))),
            None => Ok(()),
        }
    }
}

fn write_error(path: &[u8], errno: Errno) -> DeltaError {
    DeltaError::Write { path: path.into(), source: errno.into() }
}

fn existing(dir: impl AsFd, name: &CStr) -> std::result::Result<Option<Probe>, Errno> {
    match probe_at(dir, name) {
        Ok(probe) => Ok(Some(probe)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Whether the directory holds nothing but marks.
fn nothing_put(dir: BorrowedFd<'_>, name: &CStr) -> bool {
    let Ok(fd) = open_dir(dir, name) else { return false };
    Walker::new(fd, Caps { depth: u32::MAX, entries: u64::MAX, ..Caps::default() })
        .walk::<WalkError>(&mut |entry| match entry.found {
            Found::Whiteout | Found::Dir { .. } => Ok(Visit::Descend),
            _ => Err(WalkError::NotAFile { path: entry.path.into() }),
        })
        .is_ok()
}

fn times(mtime: SystemTime) -> Timestamps {
    let time = FileTime::from(mtime);
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: time.sec, tv_nsec: i64::from(time.nsec) },
    }
}

fn copy(path: &[u8], content: &mut impl Read, file: &mut File) -> Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match content.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(len) => file
                .write_all(&buffer[..len])
                .map_err(|source| DeltaError::Write { path: path.into(), source })?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(DeltaError::Content { path: path.into(), source }),
        }
    }
}

//! The one remover of trees: deletes what `std::fs::remove_dir_all` can't, and
//! nothing else.
//!
//! What has to go includes 0555 directories (Go's module cache), mode-000
//! directories (an overlay's `work/work`), whiteouts, a hundred thousand entries
//! in one directory, and trees deeper than a stack or `PATH_MAX` allows. What
//! must stay is everything that a symlink or a mount inside the tree leads to.
//!
//! For each directory, from the outside in:
//!
//! 1. Open it below its parent with `openat2`, following nothing and crossing no
//!    mount. Without permission: open it with `O_PATH`, add `rwx` for the owner
//!    through the descriptor, open it again. Modes are only ever changed on
//!    directories of the tree itself.
//! 2. Read names a buffer at a time. Unlink what is not a directory at once, go
//!    into what is.
//! 3. At the end of the listing go up and `rmdir`. If it is not empty after all
//!    (file systems may skip names when entries are removed while listing, or
//!    somebody is still writing), list it again, a bounded number of times.
//!
//! Two removers may work on one tree: what has vanished is done.

use crate::descent::{Descent, c_name, open_beneath, open_dir, read_buffer};
use crate::path::{BytePath, is_name};
use crate::stat::{Identity, probe_at, probe_fd};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;

/// Why a tree, or the rest of it, is still there.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// The name is empty, `.`, `..` or has a slash.
    #[error("`{name}` does not name an entry of a directory")]
    InvalidName {
        /// As given.
        name: BytePath,
    },
    /// Something is mounted inside the tree.
    #[error("`{path}` is a mount point")]
    MountPoint {
        /// Where, beginning with the name that was to be removed.
        path: BytePath,
    },
    /// New entries appeared faster than they were removed.
    #[error("`{path}` is still being written to")]
    Busy {
        /// The directory.
        path: BytePath,
    },
    /// Anything else the kernel said.
    #[error("`{path}` can't be removed: {source}")]
    Io {
        /// Where, beginning with the name that was to be removed.
        path: BytePath,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

/// How often one directory that should be empty is listed again.
const PATIENCE: u32 = 200;
/// How often to begin again at the top because another remover was faster.
const RESTARTS: u32 = 10_000;

/// Removes `name` in `parent` with all that is below it. A missing one is fine.
/// Needs write permission on `parent`, whose mode is never changed.
///
/// # Errors
/// The first that occurs; what was removed until then stays removed.
pub fn remove_tree(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), RemoveError> {
    remove_while(parent, name, &mut || true).map(|_| ())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    Done,
    Stopped,
}

/// Like [`remove_tree`]; asks `go_on` after every buffer of names.
pub(crate) fn remove_while(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Removal, RemoveError> {
    let bytes = name.as_bytes();
    if !is_name(bytes) {
        return Err(RemoveError::InvalidName { name: bytes.into() });
    }
    let name = c_name(bytes).map_err(|errno| error(bytes, b"", errno))?;
    let mut restarts = 0;
    loop {
        match (Remover { parent, name: &name, go_on, stubborn: None }).run() {
            // A directory above vanished: another remover is at work on it. Look again from the top.
            Err(RemoveError::Io { path, source }) if is_gone(&source) => {
                if restarts == RESTARTS {
                    return Err(RemoveError::Busy { path });
                }
                restarts += 1;
            }
            other => return other,
        }
    }
}

fn is_gone(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::STALE))
}

fn shown(root: &[u8], below: &[u8]) -> BytePath {
    BytePath(if below.is_empty() { root.to_vec() } else { [root, b"/", below].concat() })
}

fn error(root: &[u8], below: &[u8], errno: Errno) -> RemoveError {
    let path = shown(root, below);
    match errno {
        Errno::XDEV | Errno::BUSY => RemoveError::MountPoint { path },
        other => RemoveError::Io { path, source: other.into() },
    }
}

struct Remover<'a> {
    parent: BorrowedFd<'a>,
    name: &'a CStr,
    go_on: &'a mut dyn FnMut() -> bool,
    /// The last directory that was not empty after all, and how often in a row.
    stubborn: Option<(Vec<u8>, u32)>,
}

/// Directories of the last buffer, still to go into.
type Pending = Vec<CString>;

impl Remover<'_> {
    fn fail(&self, below: &[u8], errno: Errno) -> RemoveError {
        error(self.name.to_bytes(), below, errno)
    }

    fn run(&mut self) -> Result<Removal, RemoveError> {
        let Some((root, _)) =
            unlink_or_enter(self.parent, self.name).map_err(|errno| self.fail(b"", errno))?
        else {
            return Ok(Removal::Done);
        };
        let mut descent =
            Descent::new(root, Pending::new()).map_err(|errno| self.fail(b"", errno))?;
        loop {
            if !(self.go_on)() {
                return Ok(Removal::Stopped);
            }
            if let Some(sub) = descent.top().1.pop() {
                let entered = unlink_or_enter(descent.top().0, &sub)
                    .map_err(|errno| self.fail(&descent.path_of(sub.to_bytes()), errno))?;
                if let Some((fd, identity)) = entered
                    && let Some(evicted) =
                        descent.push(sub.to_bytes(), fd, identity, Pending::new())
                {
                    // It is listed anew when it is opened again, so its names need no memory.
                    *evicted = Pending::new();
                }
                continue;
            }
            if self.batch(&mut descent)? {
                continue;
            }
            let left = descent.path().to_vec();
            match descent.pop().map_err(|errno| self.fail(&left, errno))? {
                Some(name) => {
                    let name = c_name(&name).map_err(|errno| self.fail(&left, errno))?;
                    if !self.rmdir(descent.top().0, &name, &left)? {
                        descent.top().1.push(name);
                    }
                }
                None if self.rmdir(self.parent, self.name, b"")? => return Ok(Removal::Done),
                None => {
                    rustix::fs::seek(descent.top().0, rustix::fs::SeekFrom::Start(0))
                        .map_err(|errno| self.fail(b"", errno))?;
                }
            }
        }
    }

    /// Removes what one buffer of names holds and is no directory. `false` at the end.
    fn batch(&self, descent: &mut Descent<Pending>) -> Result<bool, RemoveError> {
        let mut failed = None;
        let (dir, pending) = descent.top();
        let listed = read_buffer(dir, |name| {
            match unlink(dir, name) {
                Ok(true) => {}
                Ok(false) => pending.push(name.to_owned()),
                Err(errno) => {
                    failed = Some((name.to_owned(), errno));
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        if let Some((name, errno)) = failed {
            return Err(self.fail(&descent.path_of(name.to_bytes()), errno));
        }
        match listed {
            // The directory itself was removed meanwhile, so it is empty.
            Err(Errno::NOENT) => Ok(false),
            other => other.map_err(|errno| self.fail(descent.path(), errno)),
        }
    }

    /// Returns whether the directory is gone; otherwise it has to be listed again.
    fn rmdir(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        below: &[u8],
    ) -> Result<bool, RemoveError> {
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                let times = match self.stubborn.take() {
                    Some((path, times)) if path == below => times + 1,
                    _ => 1,
                };
                if times > PATIENCE {
                    return Err(RemoveError::Busy { path: shown(self.name.to_bytes(), below) });
                }
                self.stubborn = Some((below.to_vec(), times));
                Ok(false)
            }
            // Somebody put a file in its place: the next look unlinks it.
            Err(Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(self.fail(below, errno)),
        }
    }
}

/// Unlinks `name`; `false` when it is a directory.
fn unlink(dir: BorrowedFd<'_>, name: &CStr) -> Result<bool, Errno> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR) => Ok(false),
        // POSIX lets unlink answer EPERM for a directory; some network file systems do.
        Err(Errno::PERM) if probe_at(dir, name).is_ok_and(|probe| probe.is_dir()) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Unlinks `name`, or opens it when it is a directory. `None` when it is gone.
fn unlink_or_enter(dir: BorrowedFd<'_>, name: &CStr) -> Result<Option<(OwnedFd, Identity)>, Errno> {
    for _ in 0..PATIENCE {
        if unlink(dir, name)? {
            return Ok(None);
        }
        match enter(dir, name) {
            Ok(entered) => return Ok(Some(entered)),
            Err(Errno::NOENT) => return Ok(None),
            // Swapped for a file or symlink between the two calls.
            Err(Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::NOTEMPTY)
}

/// Opens a directory and makes it one whose entries its owner can remove.
fn enter(dir: BorrowedFd<'_>, name: &CStr) -> Result<(OwnedFd, Identity), Errno> {
    let fd = match open_dir(dir, name) {
        Err(Errno::ACCESS) => {
            unlock_dir(dir, name)?;
            open_dir(dir, name)?
        }
        other => other?,
    };
    let probe = probe_fd(&fd)?;
    if probe.stat.mode & 0o700 != 0o700 {
        // Not allowed to: then unlinking in it tells whether that matters (a capability may do).
        let _ = rustix::fs::fchmod(&fd, owner_may(probe.stat.mode));
    }
    Ok((fd, probe.identity()))
}

/// Lets the owner list, search and change the directory `name`, also when it has mode 000.
pub(crate) fn unlock_dir(dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let fd = open_beneath(dir, name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
    let mode = probe_fd(&fd)?.stat.mode;
    // An O_PATH descriptor refuses fchmod; its /proc link leads to this very inode (open(2)).
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    match rustix::fs::chmodat(CWD, &*link, owner_may(mode), AtFlags::empty()) {
        Err(Errno::NOENT | Errno::PERM) => Err(Errno::ACCESS),
        other => other,
    }
}

fn owner_may(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777 | 0o700)
}

//! Kernel locks that say who works on something, for as long as they live.
//!
//! A [`Lock`] is `flock(2)` on a file. The kernel releases it when the last
//! descriptor goes, however the process ends, so there is no stale lock and no
//! pid to guess about. Descriptors are close-on-exec: a child keeps it no longer
//! than until its exec, unless it was started to finish something that the lock
//! stands for ([`Lock::lend`]). Dropping a `Lock` unlocks explicitly, because another
//! thread's child may be between fork and exec at that moment; only the process
//! that took it does so, a forked copy just closes.
//!
//! After `flock` succeeds, the path is looked up again: had somebody removed or
//! replaced the file while we waited, we would hold a lock on a file that nobody
//! else can find, and two could work at once. In that case start over. The file
//! is never removed here.
//!
//! What the file contains is for people ("task x of pid y"); nothing decides by it.

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most that is read of who holds a lock, in bytes.
const TEXT_MAX: usize = 4096;

/// Why a lock could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The file can't be opened or made.
    #[error("lock file `{}` can't be opened: {source}", path.display())]
    Open {
        /// The lock file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A symlink, fifo, directory or device stands in its place.
    #[error("lock file `{}` is not a regular file", path.display())]
    NotAFile {
        /// The lock file.
        path: PathBuf,
    },
    /// The file system does not lock (some network file systems answer `ENOLCK`).
    #[error("`{}` can't be locked: {source}", path.display())]
    Flock {
        /// The lock file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The holder's text can't be written.
    #[error("lock file `{}` can't be written: {source}", path.display())]
    Describe {
        /// The lock file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A held lock; dropping it releases it.
#[derive(Debug)]
#[must_use = "a lock that is dropped at once protects nothing"]
pub struct Lock {
    fd: OwnedFd,
    path: PathBuf,
    taken_by: Pid,
}

impl Drop for Lock {
    fn drop(&mut self) {
        if rustix::process::getpid() == self.taken_by {
            unlock(&self.fd);
        }
    }
}

enum Attempt {
    Held(Lock),
    /// Open on the file that somebody else holds.
    Busy(OwnedFd),
}

impl Lock {
    fn new(fd: OwnedFd, path: &Path) -> Self {
        Self { fd, path: path.to_owned(), taken_by: rustix::process::getpid() }
    }

    /// Takes the lock for this process alone, or returns `None` when it is held.
    /// Makes the file (mode 0600) when it is missing. When it is held by shared
    /// holders only, the answer takes about 25 ms.
    ///
    /// # Errors
    /// See [`LockError`]; a lock that is held is not an error.
    pub fn try_exclusive(path: &Path) -> Result<Option<Self>, LockError> {
        try_exclusive_with(path, || std::thread::sleep(jitter()))
    }

    /// Takes the lock for this process alone, waiting for it. When it has to
    /// wait, `while_waiting` is called once, with what the holder wrote (which
    /// may be empty).
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn exclusive(path: &Path, while_waiting: impl FnMut(&str)) -> Result<Self, LockError> {
        wait(
            path,
            FlockOperation::NonBlockingLockExclusive,
            FlockOperation::LockExclusive,
            while_waiting,
        )
    }

    /// Takes the lock together with other shared holders, waiting while somebody
    /// holds it exclusively.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn shared(path: &Path) -> Result<Self, LockError> {
        wait(path, FlockOperation::NonBlockingLockShared, FlockOperation::LockShared, |_| {})
    }

    /// Takes the lock together with other shared holders, or returns `None` when
    /// somebody holds it exclusively.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn try_shared(path: &Path) -> Result<Option<Self>, LockError> {
        Ok(match attempt(path, FlockOperation::NonBlockingLockShared)? {
            Attempt::Held(lock) => Some(lock),
            Attempt::Busy(_) => None,
        })
    }

    /// Writes who holds the lock, for those who wait. At most 4096 bytes of it are shown.
    ///
    /// # Errors
    /// `Describe` when the file can't be written.
    pub fn describe(&self, text: &str) -> Result<(), LockError> {
        let write = || {
            rustix::fs::ftruncate(&self.fd, 0)?;
            let mut rest = text.as_bytes();
            while !rest.is_empty() {
                let at = (text.len() - rest.len()) as u64;
                let written = retry(|| rustix::io::pwrite(&self.fd, rest, at))?;
                rest = &rest[written..];
            }
            Ok(())
        };
        write().map_err(|errno: Errno| LockError::Describe {
            path: self.path.clone(),
            source: errno.into(),
        })
    }

    /// What the present holder wrote, or `None` when nobody holds the lock
    /// exclusively. Text that a holder who is gone left behind is not returned.
    #[must_use]
    pub fn holder(path: &Path) -> Option<String> {
        is_held(path).ok()?.then(|| {
            open_existing(path).ok().flatten().map(|fd| read_text(&fd)).unwrap_or_default()
        })
    }

    /// A descriptor that children inherit: those started while it is open hold the
    /// lock as well, until they end, though this process be killed. Releasing the
    /// lock here releases it for all.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn lend(&self) -> io::Result<OwnedFd> {
        Ok(rustix::io::dup(&self.fd)?)
    }

    /// The lock file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether somebody holds the lock at `path` exclusively. A missing file is a free lock.
///
/// # Errors
/// Of opening or locking the file.
pub fn is_held(path: &Path) -> io::Result<bool> {
    let Some(fd) = open_existing(path)? else { return Ok(false) };
    match retry(|| rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared)) {
        Ok(()) => {
            unlock(&fd);
            Ok(false)
        }
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// How often `try_exclusive` looks past locks that are only shared.
const PROBE_TRIES: u32 = 20;

/// `is_held` holds a shared lock for a moment. That is no holder, so a lock that
/// is only shared is tried again after a pause.
fn try_exclusive_with(path: &Path, mut pause: impl FnMut()) -> Result<Option<Lock>, LockError> {
    for _ in 0..PROBE_TRIES {
        match attempt(path, FlockOperation::NonBlockingLockExclusive)? {
            Attempt::Held(lock) => return Ok(Some(lock)),
            Attempt::Busy(fd) => {
                if !only_shared(&fd) {
                    return Ok(None);
                }
                drop(fd);
                pause();
            }
        }
    }
    Ok(None)
}

fn jitter() -> Duration {
    let mut byte = [0u8];
    let _ = getrandom::fill(&mut byte);
    Duration::from_micros(200 + u64::from(byte[0]) * 8)
}

fn only_shared(fd: &OwnedFd) -> bool {
    let shared = rustix::fs::flock(fd, FlockOperation::NonBlockingLockShared).is_ok();
    if shared {
        unlock(fd);
    }
    shared
}

fn unlock(fd: &OwnedFd) {
    // Fails only for a descriptor that is none; closing it then releases all there is.
    let _ = rustix::fs::flock(fd, FlockOperation::Unlock);
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn attempt(path: &Path, operation: FlockOperation) -> Result<Attempt, LockError> {
    loop {
        let fd = open(path)?;
        let busy = match retry(|| rustix::fs::flock(&fd, operation)) {
            Ok(()) => false,
            Err(Errno::WOULDBLOCK) => true,
            Err(errno) => return Err(flock_error(path, errno)),
        };
        // Also when busy: the file that somebody holds may not be the one at the path any more.
        if is_at(&fd, path)? {
            return Ok(if busy { Attempt::Busy(fd) } else { Attempt::Held(Lock::new(fd, path)) });
        }
    }
}

fn wait(
    path: &Path,
    at_once: FlockOperation,
    blocking: FlockOperation,
    mut while_waiting: impl FnMut(&str),
) -> Result<Lock, LockError> {
    let mut told = false;
    loop {
        let fd = match attempt(path, at_once)? {
            Attempt::Held(lock) => return Ok(lock),
            Attempt::Busy(fd) => fd,
        };
        if !told {
            told = true;
            while_waiting(&read_text(&fd));
        }
        retry(|| rustix::fs::flock(&fd, blocking)).map_err(|errno| flock_error(path, errno))?;
        if is_at(&fd, path)? {
            return Ok(Lock::new(fd, path));
        }
    }
}

fn flock_error(path: &Path, errno: Errno) -> LockError {
    LockError::Flock { path: path.to_owned(), source: errno.into() }
}

/// Never waits: a fifo in the lock's place would block a plain open.
const FLAGS: OFlags =
    OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

fn open(path: &Path) -> Result<OwnedFd, LockError> {
    let flags = FLAGS | OFlags::RDWR | OFlags::CREATE;
    let not_a_file = || LockError::NotAFile { path: path.to_owned() };
    let failed = |errno: Errno| match errno {
        Errno::LOOP | Errno::ISDIR | Errno::NXIO => not_a_file(),
        other => LockError::Open { path: path.to_owned(), source: other.into() },
    };
    let fd = retry(|| rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)).map_err(failed)?;
    let stat = rustix::fs::fstat(&fd).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(not_a_file());
    }
    Ok(fd)
}

fn open_existing(path: &Path) -> io::Result<Option<OwnedFd>> {
    match retry(|| rustix::fs::open(path, FLAGS | OFlags::RDONLY, Mode::empty())) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether `path` still names the file that `fd` is open on.
fn is_at(fd: &OwnedFd, path: &Path) -> Result<bool, LockError> {
    let failed = |errno: Errno| LockError::Open { path: path.to_owned(), source: errno.into() };
    let held = rustix::fs::fstat(fd).map_err(failed)?;
    match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(named) => {
            Ok(held.st_nlink > 0 && (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino))
        }
        // ESTALE: a network file system's way to say that it was replaced.
        Err(Errno::NOENT | Errno::STALE) => Ok(false),
        Err(errno) => Err(failed(errno)),
    }
}

fn read_text(fd: &OwnedFd) -> String {
    let mut text = vec![0; TEXT_MAX];
    let len = retry(|| rustix::io::pread(fd, &mut text[..], 0)).unwrap_or(0);
    text.truncate(len);
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_at_the_lock_is_not_a_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let mut looking = Lock::try_shared(&path).unwrap();
        assert!(looking.is_some());
        let got = try_exclusive_with(&path, || drop(looking.take())).unwrap();
        assert!(got.is_some());
        assert!(is_held(&path).unwrap());
    }
}

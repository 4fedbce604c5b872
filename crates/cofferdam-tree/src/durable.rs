//! Small files that are either the old or the new version after a power cut.
//!
//! Order: write a temporary file in the same directory, `fsync` it, rename it
//! over the name, `fsync` the directory. Without the first `fsync` the name can
//! point at an empty file afterwards; without the second the old version can
//! come back. After SIGKILL a file `.NAME.tmp-RANDOM` can remain beside it.

use crate::random;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file could not be written durably. The old version, if any, is still there
/// unless the step is `sync`: then it may be either.
#[derive(Debug, thiserror::Error)]
pub enum DurableError {
    /// The path has no file name, or its directory can't be opened.
    #[error("directory of `{}` can't be opened: {source}", path.display())]
    Directory {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The temporary file can't be made, filled or synced.
    #[error("`{}` can't be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The temporary file can't take the name.
    #[error("`{}` can't be replaced: {source}", path.display())]
    Rename {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The directory can't be synced.
    #[error("directory of `{}` can't be synced: {source}", path.display())]
    Sync {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl From<DurableError> for io::Error {
    fn from(error: DurableError) -> Self {
        let kind = match &error {
            DurableError::Directory { source, .. }
            | DurableError::Write { source, .. }
            | DurableError::Rename { source, .. }
            | DurableError::Sync { source, .. } => source.kind(),
        };
        Self::new(kind, error)
    }
}

/// Makes the names in the directory at `path` durable.
///
/// # Errors
/// Of opening or syncing it.
pub fn fsync_dir(path: &Path) -> io::Result<()> {
    let dir = open_dir(path)?;
    Ok(rustix::fs::fsync(&dir)?)
}

/// Replaces the file at `path` with `bytes`, with permission bits `mode`
/// whatever the umask is.
///
/// Failpoints: `durable:write` before the temporary file is filled,
/// `durable:rename` before it takes the name.
///
/// # Errors
/// See [`DurableError`].
pub fn write_atomic(path: &Path, bytes: &[u8], mode: u32) -> Result<(), DurableError> {
    write(path, bytes, mode, Sync::Yes)
}

/// Like [`write_atomic`], but syncs nothing: a reader sees the old or the new
/// version, and after a power cut the file can be empty or an old one. For what can
/// be made again.
///
/// # Errors
/// See [`DurableError`].
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), DurableError> {
    write(path, bytes, mode, Sync::No)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sync {
    Yes,
    No,
}

fn write(path: &Path, bytes: &[u8], mode: u32, sync: Sync) -> Result<(), DurableError> {
    let directory =
        |errno: Errno| DurableError::Directory { path: path.into(), source: errno.into() };
    let name = path.file_name().ok_or_else(|| directory(Errno::ISDIR))?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let dir = open_dir(parent).map_err(directory)?;
    write_in(&dir, name, path, bytes, mode, sync)
}

/// Like [`write_atomic`], for `name` in an open directory.
///
/// # Errors
/// See [`DurableError`].
pub fn write_atomic_at(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    bytes: &[u8],
    mode: u32,
) -> Result<(), DurableError> {
    let path = Path::new(name);
    let dir = rustix::fs::openat(
        dir,
        c".",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|errno| DurableError::Directory { path: path.into(), source: errno.into() })?;
    write_in(&dir, name, path, bytes, mode, Sync::Yes)
}

fn open_dir(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn write_in(
    dir: &OwnedFd,
    name: &OsStr,
    path: &Path,
    bytes: &[u8],
    mode: u32,
    sync: Sync,
) -> Result<(), DurableError> {
    let write = |source| DurableError::Write { path: path.into(), source };
    let mut temp = OsString::from(".");
    temp.push(name);
    temp.push(".tmp-");
    temp.push(random::name(12).map_err(write)?);
    let replaced = fill(dir, &temp, bytes, mode, sync).map_err(write).and_then(|()| {
        cofferdam_failpoint::hit("durable:rename")
            .and_then(|()| Ok(rustix::fs::renameat(dir, &*temp, dir, name)?))
            .map_err(|source| DurableError::Rename { path: path.into(), source })
    });
    if replaced.is_err() {
        let _ = rustix::fs::unlinkat(dir, &*temp, AtFlags::empty());
        return replaced;
    }
    if sync == Sync::No {
        return Ok(());
    }
    rustix::fs::fsync(dir)
        .map_err(|errno| DurableError::Sync { path: path.into(), source: errno.into() })
}

fn fill(dir: &OwnedFd, temp: &OsStr, bytes: &[u8], mode: u32, sync: Sync) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(dir, temp, flags, Mode::RUSR | Mode::WUSR)?);
    cofferdam_failpoint::hit("durable:write")?;
    file.write_all(bytes)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o7777))?;
    if sync == Sync::Yes { file.sync_all() } else { Ok(()) }
}

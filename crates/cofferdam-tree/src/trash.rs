//! Deleting in two steps: a rename now, the work later.
//!
//! A rename is atomic and takes no time, so a context is either there or gone,
//! never half deleted. What lies in the trash is removed in slices of time, with
//! pauses: mass deletion makes a journalled file system slow for whoever creates
//! files next. Several processes may empty one trash at once.

use crate::descent::{c_name, read_names};
use crate::random;
use crate::remove::{Removal, RemoveError, remove_while, unlock_dir};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long to work between two pauses, at least.
const SLICE: Duration = Duration::from_millis(20);
/// Longest pause.
const PAUSE: Duration = Duration::from_millis(20);
/// How many remove at once what somebody waits for.
const THREADS: usize = 4;

/// A directory that things are moved into before they are deleted.
#[derive(Clone, Debug)]
pub struct Trash {
    dir: PathBuf,
}

/// What [`Trash::empty`] got done.
#[derive(Debug, Default)]
pub struct EmptyReport {
    /// Entries of the trash that are gone, each the root of what was taken.
    pub removed: u64,
    /// Entries that remain, wholly or in part.
    pub left: u64,
    /// Why some of those left could not be removed.
    pub stuck: Vec<RemoveError>,
}

impl Trash {
    /// The trash at `dir`, made (mode 0700) when missing.
    ///
    /// # Errors
    /// Of making the directory.
    pub fn new(dir: impl Into<PathBuf>) -> io::Result<Self> {
        let dir = dir.into();
        match rustix::fs::mkdir(&dir, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(Self { dir }),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Where it is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Moves `name` out of `parent_dir` into the trash.
    ///
    /// # Errors
    /// `NotFound` when it is not there, `CrossesDevices` when the trash is on
    /// another file system (nothing is ever copied), `InvalidInput` when `name`
    /// is not one component.
    pub fn take(&self, parent_dir: &Path, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = name.as_ref().as_bytes();
        if !crate::path::is_name(name) {
            return Err(Errno::INVAL.into());
        }
        let name = c_name(name)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let from = rustix::fs::open(parent_dir, flags, Mode::empty())?;
        let into = rustix::fs::open(&self.dir, flags, Mode::empty())?;
        let mut unlocked = false;
        loop {
            let fresh = random::name(16)?;
            match rustix::fs::renameat_with(&from, &name, &into, &*fresh, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => {}
                // A directory changes its `..` when it moves, so it must be writable itself (rename(2)).
                Err(Errno::ACCESS) if !unlocked => {
                    unlocked = true;
                    unlock_dir(from.as_fd(), &name).map_err(|errno| match errno {
                        Errno::NOTDIR | Errno::LOOP => Errno::ACCESS,
                        other => other,
                    })?;
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Removes what is in the trash until `budget` is used up.
    ///
    /// # Errors
    /// Only when the trash can't be listed; what can't be removed is in the report.
    pub fn empty(&self, budget: Duration) -> io::Result<EmptyReport> {
        let dir = self.open()?;
        Ok(empty(&dir, &list(&dir)?, &AtomicUsize::new(0), budget))
    }

    /// As [`Trash::empty`], for little that somebody waits for: several threads, as
    /// each removal can wait for the device (where it discards freed blocks at
    /// once, for instance).
    ///
    /// # Errors
    /// As there.
    pub fn empty_fast(&self, budget: Duration) -> io::Result<EmptyReport> {
        let dir = self.open()?;
        let names = list(&dir)?;
        let next = AtomicUsize::new(0);
        let others = THREADS.min(names.len()).saturating_sub(1);
        Ok(std::thread::scope(|scope| {
            let work = || empty(&dir, &names, &next, budget);
            // Where no thread is to be had, fewer do the same.
            let another = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
            let others: Vec<_> = (0..others).map_while(another).collect();
            let mut report = work();
            for other in others {
                let part = other.join().expect("nothing in it panics");
                report.removed += part.removed;
                report.left += part.left;
                report.stuck.extend(part.stuck);
            }
            report
        }))
    }

    fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(&self.dir, flags, Mode::empty())?)
    }
}

fn list(dir: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names: Vec<OsString> = Vec::new();
    read_names(dir.as_fd(), |name| {
        names.push(OsString::from_vec(name.to_bytes().to_vec()));
        ControlFlow::Continue(())
    })?;
    Ok(names)
}

/// Removes the entries that `next` counts up to, one after the other.
fn empty(dir: &OwnedFd, names: &[OsString], next: &AtomicUsize, budget: Duration) -> EmptyReport {
    let deadline = Instant::now().checked_add(budget);
    let in_time = || deadline.is_none_or(|deadline| Instant::now() < deadline);
    let mut report = EmptyReport::default();
    let mut since = Instant::now();
    while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
        let removal = remove_while(dir.as_fd(), name, &mut || {
            let worked = since.elapsed();
            if in_time() && worked >= SLICE {
                std::thread::sleep(worked.min(PAUSE));
                since = Instant::now();
            }
            in_time()
        });
        match removal {
            Ok(Removal::Done) => report.removed += 1,
            Ok(Removal::Stopped) => report.left += 1,
            Err(error) => {
                report.left += 1;
                report.stuck.push(error);
            }
        }
    }
    report
}

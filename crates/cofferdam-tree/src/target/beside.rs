//! What reads while something else is written, each on its own thread.
//!
//! A publication reads two files as a whole: what is there, and what was staged. One after
//! the other, with the copy and its sync between, they take several times as long as the
//! copy. But they only have to be over before the commit.
//!
//! - [`Behind`] reads a file that is being written, behind the writer, and goes on while it
//!   is synced. It reads the file itself, not what the writer has in memory: what it tells
//!   is what will land. Whoever writes does it from the beginning to the end, so what is
//!   before the end of the file will not change any more.
//! - [`FileTarget::look_and_stage`] looks at what is there meanwhile.
//!
//! Below [`PAYS`] a thread costs more than it saves, and where none can be had, it is done
//! without.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use super::file::{Content, FileTarget, GoOn, Seen, TRIES, version};
use super::fingerprint::Reading;
use super::{Fingerprint, Step, TargetError};

/// From what size on, in bytes.
const PAYS: u64 = 64 << 10;

pub(super) fn pays(bytes: u64) -> bool {
    bytes >= PAYS
}

/// A thread that reads a file behind its writer.
pub(super) struct Behind<'scope, 'env> {
    more: Sender<()>,
    /// How many bytes it has read, each time.
    read: Receiver<u64>,
    thread: ScopedJoinHandle<'scope, io::Result<Reading<'env>>>,
}

/// As [`Behind`], when all is written.
pub(super) struct Ending<'scope, 'env> {
    read: Receiver<u64>,
    thread: ScopedJoinHandle<'scope, io::Result<Reading<'env>>>,
}

impl<'scope, 'env> Behind<'scope, 'env> {
    /// `size` is about how large it will be, in bytes. None where no thread can be had.
    pub(super) fn start(
        scope: &'scope Scope<'scope, 'env>,
        file: &'env File,
        size: u64,
    ) -> Option<Behind<'scope, 'env>> {
        let ((more, told), (tell, read)) = (channel(), channel());
        let thread = Builder::new().spawn_scoped(scope, move || follow(file, size, &told, &tell));
        Some(Behind { more, read, thread: thread.ok()? })
    }

    /// Tells it that there is more. Gives how many bytes it has read since it was last asked.
    pub(super) fn more(&self) -> u64 {
        // It fails only when that thread has ended, which is told at the end.
        let _ = self.more.send(());
        self.read.try_iter().sum()
    }

    pub(super) fn written(self) -> Ending<'scope, 'env> {
        Ending { read: self.read, thread: self.thread }
    }
}

impl Ending<'_, '_> {
    /// Waits until all is read.
    pub(super) fn fingerprint(self, go_on: GoOn<'_>) -> io::Result<Fingerprint> {
        for bytes in &self.read {
            if !go_on(bytes) {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        joined(self.thread)?.fingerprint()
    }
}

/// A writer that stops before the end drops both channels: then this ends early.
fn follow<'a>(
    file: &'a File,
    size: u64,
    told: &Receiver<()>,
    tell: &Sender<u64>,
) -> io::Result<Reading<'a>> {
    let mut reading = Reading::of(file, size);
    let mut go_on = |bytes| tell.send(bytes).is_ok();
    while told.recv().is_ok() {
        reading.read_on_in_ours(&mut go_on)?;
    }
    reading.read_on_in_ours(&mut go_on)?;
    Ok(reading)
}

fn joined<T>(thread: ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

impl FileTarget {
    /// As [`FileTarget::look`] and then [`FileTarget::stage`] for what was seen, but both at
    /// once. The caller compares what was seen, and [`FileTarget::unstage`]s when it is not
    /// what it was.
    ///
    /// # Errors
    /// As theirs; `temp` is gone then.
    pub fn look_and_stage(
        &self,
        temp: &OsStr,
        content: Content<'_>,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(Option<Seen>, Fingerprint), TargetError> {
        for _ in 0..TRIES {
            let old = self.file()?;
            let bytes = match &old {
                Some(old) => old.metadata().step("look at", self.path())?.len(),
                None => 0,
            };
            let (Some(old), true) = (old, pays(bytes)) else {
                let seen = self.look(go_on)?;
                let staged = self.stage(temp, content, seen.as_ref(), go_on)?;
                return Ok((seen, staged));
            };
            let before = version(&old).step("look at", self.path())?;
            let Some((seen, staged)) = self.both(&old, temp, content, go_on) else {
                let seen = self.look(go_on)?;
                let staged = self.stage(temp, content, seen.as_ref(), go_on)?;
                return Ok((seen, staged));
            };
            match (seen, staged) {
                (Ok(Some(seen)), Ok(staged)) if seen.version == before => {
                    return Ok((Some(seen), staged));
                }
                (_, Err(error)) => return Err(error),
                (seen, Ok(_)) => {
                    self.unstage(temp)?;
                    seen?;
                }
            }
        }
        Err(self.drifted("is being written to"))
    }

    /// None where no thread can be had.
    #[allow(clippy::type_complexity)]
    fn both(
        &self,
        old: &File,
        temp: &OsStr,
        content: Content<'_>,
        go_on: GoOn<'_>,
    ) -> Option<(Result<Option<Seen>, TargetError>, Result<Fingerprint, TargetError>)> {
        std::thread::scope(|scope| {
            let (tell, read) = channel();
            let look = move || Ok(self.look(&mut |bytes| tell.send(bytes).is_ok()));
            let looking = Builder::new().spawn_scoped(scope, look).ok()?;
            let mut staged = self.stage_as(temp, content, Some(old), &mut |bytes| {
                go_on(bytes + read.try_iter().sum::<u64>())
            });
            if staged.is_ok() && !read.iter().all(&mut *go_on) {
                let _ = self.unstage(temp);
                let stopped: io::Result<Fingerprint> = Err(io::ErrorKind::Interrupted.into());
                staged = stopped.step("read", self.path());
            }
            // Without this it would go on to the end.
            drop(read);
            let seen = joined(looking).step("read", self.path()).flatten();
            Some((seen, staged))
        })
    }
}

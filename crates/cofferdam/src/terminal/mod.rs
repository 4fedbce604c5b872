//! A terminal for a command, and the caller's in front of it.
//!
//! The command never has the caller's own: what it writes into a terminal that it
//! shared could be taken for what the person typed once it has ended. It gets one of
//! ours; keys go in and text comes out by way of this process.

pub mod served;

use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

use cofferdam_core::Error;
use cofferdam_core::supervise::Terminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{
    OptionalActions, Termios, Winsize, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize,
};

/// How often it is looked whether the caller's window has another size.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Both ends.
pub struct Pty {
    ours: OwnedFd,
    theirs: Mutex<Option<OwnedFd>>,
}

impl Pty {
    /// Opens one when the caller sits at a terminal.
    ///
    /// # Errors
    /// When the kernel gives none.
    pub fn open() -> io::Result<Option<Pty>> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(None);
        }
        Pty::new(tcgetwinsize(io::stdin())?).map(Some)
    }

    /// One of this size.
    fn new(size: Winsize) -> io::Result<Pty> {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let name = ptsname(&ours, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let theirs = rustix::fs::open(name, flags, Mode::empty())?;
        tcsetwinsize(&ours, size)?;
        Ok(Pty { ours, theirs: Mutex::new(Some(theirs)) })
    }

    fn carry(&self) -> io::Result<()> {
        let mut ours = std::fs::File::from(self.ours.try_clone()?);
        let mut buffer = vec![0; 16 << 10];
        let mut typing = true;
        loop {
            let stdin = io::stdin();
            let Some(ready) = wait(&self.ours, typing)? else { continue };
            tcsetwinsize(&self.ours, tcgetwinsize(io::stdin())?)?;
            if ready.there {
                // EIO: nobody has the other end any more.
                let read = match ours.read(&mut buffer) {
                    Ok(0) | Err(_) => return Ok(()),
                    Ok(read) => read,
                };
                let mut out = io::stdout().lock();
                out.write_all(&buffer[..read])?;
                out.flush()?;
            }
            if ready.typed {
                match rustix::io::read(&stdin, &mut buffer) {
                    Ok(0) => typing = false,
                    Ok(read) => ours.write_all(&buffer[..read])?,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(_) => typing = false,
                }
            }
        }
    }
}

/// What there is to be read.
struct Ready {
    /// At the other end.
    there: bool,
    /// At the caller's terminal.
    typed: bool,
}

/// Waits until there is something to be read from the other end, or from the caller's
/// terminal where that matters, at most [`LOOK_EVERY`]; `None` when a signal came instead.
fn wait(there: impl AsFd, typing: bool) -> io::Result<Option<Ready>> {
    let stdin = io::stdin();
    let mut watched = vec![PollFd::new(&there, PollFlags::IN)];
    if typing {
        watched.push(PollFd::new(&stdin, PollFlags::IN));
    }
    match poll(&mut watched, Some(&LOOK_EVERY)) {
        Err(rustix::io::Errno::INTR) => return Ok(None),
        other => drop(other?),
    }
    let is_ready = |at: usize| watched.get(at).is_some_and(|fd| !fd.revents().is_empty());
    Ok(Some(Ready { there: is_ready(0), typed: is_ready(1) }))
}

/// One for a caller who has to sit at a terminal.
///
/// # Errors
/// [`Error::Usage`] when they do not.
pub fn of_caller() -> Result<Pty, Error> {
    let failed = |source| Error::Io { step: "open a terminal for", path: ".".into(), source };
    Pty::open().map_err(failed)?.ok_or_else(|| Error::Usage {
        message: "there is no terminal here to sit at".into(),
        hint: Some("without `--interactive` the command has none".into()),
    })
}

impl Terminal for Pty {
    fn other_end(&self) -> io::Result<OwnedFd> {
        let theirs = self.theirs.lock().expect("terminal").take();
        theirs.ok_or_else(|| io::Error::other("it was given already"))
    }

    fn converse(&self) {
        let _raw = Raw::begin();
        // Whatever ends it, the command goes on to its own end.
        let _ = self.carry();
    }
}

/// The caller's terminal passes keys on as they are, until this is dropped.
struct Raw(Option<Termios>);

impl Raw {
    fn begin() -> Raw {
        let Ok(before) = tcgetattr(io::stdin().as_fd()) else { return Raw(None) };
        let mut raw = before.clone();
        raw.make_raw();
        let set = tcsetattr(io::stdin().as_fd(), OptionalActions::Now, &raw);
        Raw(set.ok().map(|()| before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Now, before);
        }
    }
}

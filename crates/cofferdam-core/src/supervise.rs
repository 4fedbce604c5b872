//! Running one command in a context, to its end.
//!
//! The calling thread spawns, waits and reaps: its end would be the task's. Two
//! threads read what the command prints, one waits for the person and the clock.
//!
//! | what | first | then |
//! |---|---|---|
//! | first interrupt | every process is asked (SIGTERM) | killed after the grace |
//! | second interrupt | killed (SIGKILL to pid 1) | |
//! | time is up | asked | killed after the grace |
//!
//! Whoever ends the run, the function returns when the last process is gone.

use std::io::Read;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use cofferdam_sandbox::{Event as SandboxEvent, Spec, Starter};

use crate::control::{Control, Woken};
use crate::error::IoContext;
use crate::limits::InForce;
use crate::log::{LogWriter, Stream};
use crate::report::{Event, Reporter};
use crate::{Error, TaskDir, disk};

/// How long processes have between being asked and being killed.
pub const GRACE: Duration = Duration::from_secs(10);
/// How often it is looked whether the kernel killed for want of memory.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How much of a command's output is kept, in bytes.
pub const LOG_CAP: u64 = 64 << 20;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself.
    Exited {
        /// Its exit code.
        code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
    },
    /// It could not be started: the error number of execve(2).
    NotStarted(i32),
    /// Its time was up.
    TimedOut,
    /// A person ended it.
    Interrupted,
    /// It used more memory than it may.
    OutOfMemory,
    /// It had more on disk than it may.
    OutOfDisk,
    /// Something outside killed it.
    Killed,
}

/// A command that ended.
#[derive(Debug, Clone)]
pub struct Run {
    /// How.
    pub ended: Ended,
    /// Processes that it had left running; they were ended.
    pub left_running: u32,
    /// From the go to the end.
    pub took: Duration,
    /// Why its log is not whole, if it is not: a command can't do anything about that,
    /// and what it does need not be lost with it.
    pub log_lost: Option<String>,
}

/// Who ended it, if not itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Person,
    Clock,
}

/// What is run, and where what comes of it goes.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    /// The command behind its boundary.
    pub spec: &'a Spec,
    /// The context's directory.
    pub context: &'a Path,
    /// The log to be written.
    pub log: &'a Path,
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// How much of its output is kept, in bytes.
    pub output: u64,
    /// Its limits.
    pub limits: &'a InForce,
    /// Ends what a pid 1 that was killed left running.
    pub end_processes: &'a dyn Fn() -> Result<(), Error>,
    /// Where a person sits at it.
    pub terminal: Option<&'a dyn Terminal>,
}

/// A person's terminal, in between them and a command that has one of its own.
pub trait Terminal: Sync {
    /// The end that is the command's; given once.
    ///
    /// # Errors
    /// When it was given already.
    fn other_end(&self) -> std::io::Result<std::os::fd::OwnedFd>;

    /// Carries what is typed and what is printed, until nobody has the other end.
    fn converse(&self);
}

/// Runs a command to its end behind the boundary that `starter` builds.
///
/// # Errors
/// [`Error::Isolation`] when the boundary can't be had; nothing has run then.
pub fn run(
    starter: Starter,
    plan: &Plan<'_>,
    control: &Control,
    reporter: Option<&dyn Reporter>,
) -> Result<Run, Error> {
    let Plan { spec, context: context_dir, log, timeout, output, limits, end_processes, terminal } =
        *plan;
    let log = Mutex::new(LogWriter::create(log, output)?);
    let mut running = starter.build(spec).map_err(Error::Isolation)?;
    cofferdam_failpoint::hit("run:spawned").at("name pid 1 in", context_dir)?;
    TaskDir::write_ns(context_dir, running.name())?;
    cofferdam_failpoint::hit("run:named").at("name pid 1 in", context_dir)?;
    let mut remote = running.remote().at("hold", context_dir)?;
    let (stdout, stderr) = (running.stdout.take(), running.stderr.take());
    let mut begun = Instant::now();
    let wakeups = control.wakeups();
    let cause = Mutex::new(None);
    let hold = || running.remote().at("hold", context_dir);
    let out_of_memory = limits.kernel_kills().then(hold).transpose()?;
    let out_of_disk = match spec.limits.disk {
        Some(most) => Some((most, hold()?)),
        None => None,
    };
    let too_much_disk = AtomicBool::new(false);
    let (memory_over, memory_is_over) = std::sync::mpsc::channel::<()>();
    let (disk_over, disk_is_over) = std::sync::mpsc::channel::<()>();
    // While pid 1 builds the root view.
    let event = std::thread::scope(|scope| {
        let mut beside = Beside { scope, refused: None };
        if let Some(remote) = out_of_memory {
            // The kernel kills one process; what is left of the task is of no use.
            beside.start(move || {
                while memory_is_over.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                    if limits.ran_out_of_memory() {
                        return remote.kill();
                    }
                }
            });
        }
        if let Some((most, remote)) = out_of_disk {
            let (exceeded, ids) = (&too_much_disk, spec.ids);
            beside.start(move || {
                let ended = disk::watch(context_dir, ids, most, &disk_is_over, &remote);
                exceeded.store(ended, Ordering::Release);
            });
        }
        if let Some(terminal) = terminal {
            beside.start(|| terminal.converse());
        }
        if let Some(pipe) = stdout {
            beside.start(|| pump(pipe, Stream::Out, &log, reporter));
        }
        if let Some(pipe) = stderr {
            beside.start(|| pump(pipe, Stream::Err, &log, reporter));
        }
        beside.start(|| {
            let mut deadline = timeout.map(|timeout| Instant::now() + timeout);
            // One that came before the command was started counts as well.
            let mut seen = 0;
            loop {
                let (why, insist) = match control.wait(seen, wakeups, deadline) {
                    Woken::Awoken => return,
                    Woken::Interrupted(count) => {
                        seen = count;
                        (Cause::Person, count > 1)
                    }
                    Woken::Deadline => (Cause::Clock, false),
                };
                let mut cause = cause.lock().expect("cause");
                if cause.is_some() || insist {
                    cause.get_or_insert(why);
                    remote.kill();
                    deadline = None;
                } else {
                    *cause = Some(why);
                    remote.ask_to_end();
                    deadline = Some(Instant::now() + GRACE);
                }
            }
        });
        let event = match beside.refused {
            Some(error) => Err(Error::NoThread(error)),
            None => match running.next_event() {
                Ok(SandboxEvent::Ready) => {
                    begun = Instant::now();
                    match running.go() {
                        Ok(()) => running.next_event(),
                        // pid 1 was ended before it could start the command.
                        Err(_) => Ok(SandboxEvent::Killed),
                    }
                }
                sooner => sooner,
            }
            .map_err(Error::Isolation),
        };
        // Before the pumps are joined: every process has to be gone, or a pipe
        // that one of them holds would never end.
        drop(running);
        drop((memory_over, disk_over));
        control.wake();
        match event {
            Ok(SandboxEvent::Killed) => end_processes().and(event),
            event => event,
        }
    })?;
    let log_lost = log.into_inner().expect("log").finish();
    let cause = cause.into_inner().expect("cause");
    let (ended, left_running) = match (event, cause) {
        (SandboxEvent::OutOfMemory, _) => (Ended::OutOfMemory, 0),
        (_, None) if limits.ran_out_of_memory() => (Ended::OutOfMemory, 0),
        _ if too_much_disk.load(Ordering::Acquire) => (Ended::OutOfDisk, 0),
        (SandboxEvent::NotStarted { errno }, _) => (Ended::NotStarted(errno), 0),
        (SandboxEvent::Exited { left_running, .. }, Some(Cause::Person)) => {
            (Ended::Interrupted, left_running)
        }
        (SandboxEvent::Exited { left_running, .. }, Some(Cause::Clock)) => {
            (Ended::TimedOut, left_running)
        }
        (SandboxEvent::Exited { code, signal, left_running }, None) => {
            (Ended::Exited { code, signal }, left_running)
        }
        (_, Some(Cause::Person)) => (Ended::Interrupted, 0),
        (_, Some(Cause::Clock)) => (Ended::TimedOut, 0),
        (_, None) => (Ended::Killed, 0),
    };
    Ok(Run { ended, left_running, took: begun.elapsed(), log_lost })
}

/// Threads that end before a scope does.
struct Beside<'scope, 'env> {
    scope: &'scope std::thread::Scope<'scope, 'env>,
    /// Why the first that could not be started was not.
    refused: Option<std::io::Error>,
}

impl<'scope> Beside<'scope, '_> {
    fn start(&mut self, work: impl FnOnce() + Send + 'scope) {
        if let Err(error) = std::thread::Builder::new().spawn_scoped(self.scope, work) {
            self.refused.get_or_insert(error);
        }
    }
}

/// Reads a stream to its end, whatever becomes of log and listener: a pipe that
/// nobody reads would stop the command.
fn pump(
    mut pipe: std::fs::File,
    stream: Stream,
    log: &Mutex<LogWriter>,
    reporter: Option<&dyn Reporter>,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = match pipe.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let bytes = &buffer[..read];
        {
            let mut log = log.lock().expect("log");
            log.take(stream, bytes);
        }
        if let Some(reporter) = reporter {
            reporter.report(Event::Output {
                stream: stream.name(),
                text: String::from_utf8_lossy(bytes).into_owned(),
                bytes: bytes.to_vec(),
            });
        }
    }
}

//! The supervisor's end of a task.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, WaitOptions};

use crate::init::{self, Message};
use crate::limits::Group;
use crate::process::ProcessName;
use crate::{SandboxError, Spec};

/// A task behind its boundary. Dropping it ends every process of the task and
/// waits for the last one.
#[derive(Debug)]
pub struct Running {
    name: ProcessName,
    pidfd: OwnedFd,
    control: UnixStream,
    status: BufReader<UnixStream>,
    /// The end of pid 1 is not that of every process: it has to be asked.
    asks: bool,
    /// `Ready` was heard already.
    ready: bool,
    /// What the command prints.
    pub stdout: Option<std::fs::File>,
    /// What the command prints as errors.
    pub stderr: Option<std::fs::File>,
    reaped: bool,
}

/// What happens to a task, in order: `Ready`, then one of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The boundary stands, nothing of the task has run. [`Running::go`] starts it.
    Ready,
    /// The command could not be started, with the error number of execve(2).
    NotStarted {
        /// ENOENT when it was not found.
        errno: i32,
    },
    /// The command ended and so did everything that it left running.
    Exited {
        /// Its exit code.
        code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
        /// How many processes it had left running; they were ended.
        left_running: u32,
    },
    /// It used more memory than it may, by pid 1's count; every process was ended.
    OutOfMemory,
    /// pid 1 ended without a word: killed by [`Running::kill`] or from outside.
    Killed,
}

/// A process that waits to be told what to build: starting one takes as long as
/// writing a context, and can go on beside it. Dropping it ends it.
#[derive(Debug)]
pub struct Starter {
    first: Child,
    /// All that is said in both directions. Taken when it is passed on.
    socket: Option<UnixStream>,
}

impl Starter {
    /// Starts it. The calling thread must live as long as the task: its end ends
    /// the task. What the command prints goes to `terminal`, when there is one, whose
    /// other end is the caller's; else it is in [`Running::stdout`] and
    /// [`Running::stderr`].
    ///
    /// # Errors
    /// [`SandboxError::Supervisor`].
    pub fn start(terminal: Option<OwnedFd>) -> Result<Starter, SandboxError> {
        let (out, err) = match terminal {
            None => (Stdio::piped(), Stdio::piped()),
            Some(terminal) => {
                let second =
                    terminal.try_clone().map_err(|error| ours("hold a terminal", error))?;
                (Stdio::from(terminal), Stdio::from(second))
            }
        };
        let (socket, theirs) = UnixStream::pair().map_err(|error| ours("make a socket", error))?;
        let first = std::process::Command::new("/proc/self/exe")
            .arg0("dam-init")
            .arg(init::ARGUMENT)
            .env_clear()
            // A terminal's Ctrl-C is for the supervisor, which passes it on.
            .process_group(0)
            // One descriptor, in the place of a standard one: with no more to be
            // arranged, no copy of our memory has to be made for the child.
            .stdin(OwnedFd::from(theirs))
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(|error| ours("start the sandbox process", error))?;
        Ok(Starter { first, socket: Some(socket) })
    }

    /// Puts it, and with it the whole task, into control groups.
    ///
    /// # Errors
    /// When the kernel does not let it in.
    pub fn join(&self, group: &Group) -> io::Result<()> {
        group.take(self.first.id())
    }

    /// Builds the boundary of `spec` and returns once the task's pid 1 is known,
    /// before anything of the task runs.
    ///
    /// # Errors
    /// [`SandboxError`] when a boundary can't be had here.
    pub fn build(mut self, spec: &Spec) -> Result<Running, SandboxError> {
        let mut socket = self.socket.take().expect("a starter is used once");
        let text = serde_json::to_vec(spec)
            .map_err(|error| ours("hand over the specification", error.into()))?;
        // One that does not read it says why below.
        let _ = socket.write_all(&[&(text.len() as u64).to_be_bytes(), &*text].concat());
        let stdout = self.first.stdout.take().map(|pipe| std::fs::File::from(OwnedFd::from(pipe)));
        let stderr = self.first.stderr.take().map(|pipe| std::fs::File::from(OwnedFd::from(pipe)));
        let status = socket.try_clone().map_err(|error| ours("hold a socket", error))?;
        let mut status = BufReader::new(status);
        let mut ready = false;
        let pid = loop {
            match receive(&mut status) {
                Ok(Some(Message::Pid(pid))) => break pid,
                // pid 1 can be done before the first process, which tells its pid, goes on.
                Ok(Some(Message::Ready)) if !ready => ready = true,
                Ok(Some(Message::Refused { step, path, errno })) => {
                    return Err(SandboxError::Setup { step, path, errno });
                }
                Ok(other) => return Err(self.early_end(&format!("{other:?}"))),
                Err(error) => return Err(self.early_end(&error.to_string())),
            }
        };
        self.first.wait().map_err(|error| ours("wait for the sandbox process", error))?;
        let name = ProcessName::of(pid)
            .and_then(|name| name.ok_or_else(|| io::Error::other("pid 1 has vanished")))
            .map_err(|error| ours("name the task's pid 1", error))?;
        let pidfd = name
            .open()
            .and_then(|fd| fd.ok_or_else(|| io::Error::other("pid 1 has vanished")))
            .map_err(|error| ours("hold the task's pid 1", error))?;
        let (asks, reaped) = (spec.view.is_hosts(), false);
        Ok(Running { name, pidfd, control: socket, status, asks, ready, stdout, stderr, reaped })
    }

    fn early_end(&mut self, said: &str) -> SandboxError {
        let status = self.first.wait();
        let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        SandboxError::InitDied(format!("{status}, {said}"))
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        // Without a specification there is nothing for it to do.
        drop(self.socket.take());
        let _ = self.first.wait();
    }
}

fn ours(step: &'static str, source: io::Error) -> SandboxError {
    SandboxError::Supervisor { step, source }
}

fn receive(status: &mut BufReader<UnixStream>) -> io::Result<Option<Message>> {
    let mut line = Vec::new();
    match status.read_until(b'\n', &mut line) {
        Ok(0) => return Ok(None),
        Ok(_) => {}
        // What ended with something unread from us resets the connection.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
        Err(error) => return Err(error),
    }
    serde_json::from_slice(&line).map(Some).map_err(io::Error::other)
}

impl Running {
    /// pid 1 of the task.
    #[must_use]
    pub fn name(&self) -> &ProcessName {
        &self.name
    }

    /// Starts the command.
    ///
    /// # Errors
    /// When pid 1 is gone.
    pub fn go(&mut self) -> io::Result<()> {
        self.control.write_all(&[init::GO])
    }

    /// Asks every process of the task to end (SIGTERM).
    pub fn ask_to_end(&mut self) {
        // Gone already is what was asked for.
        let _ = self.control.write_all(&[init::END]);
    }

    /// A handle with which another thread can do what [`Running::kill`] and
    /// [`Running::ask_to_end`] do.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn remote(&self) -> io::Result<Remote> {
        let (pidfd, control) = (self.pidfd.try_clone()?, self.control.try_clone()?);
        Ok(Remote { pidfd, control, asks: self.asks })
    }

    /// Ends every process of the task at once (SIGKILL to its pid 1, or by it).
    pub fn kill(&self) {
        kill(&self.pidfd, &self.control, self.asks);
    }

    /// Waits for the next thing to happen.
    ///
    /// # Errors
    /// [`SandboxError::Setup`] when the boundary can't be had after all; nothing
    /// of the task has run then.
    pub fn next_event(&mut self) -> Result<Event, SandboxError> {
        if std::mem::take(&mut self.ready) {
            return Ok(Event::Ready);
        }
        let message = receive(&mut self.status)
            .map_err(|source| SandboxError::Supervisor { step: "hear from pid 1", source })?;
        match message {
            Some(Message::Ready) => Ok(Event::Ready),
            Some(Message::NotStarted { errno }) => {
                self.reap();
                Ok(Event::NotStarted { errno })
            }
            Some(Message::Exited { code, signal, left_running }) => {
                self.reap();
                Ok(Event::Exited { code, signal, left_running })
            }
            Some(Message::OutOfMemory) => {
                self.reap();
                Ok(Event::OutOfMemory)
            }
            Some(Message::Refused { step, path, errno }) => {
                self.reap();
                Err(SandboxError::Setup { step, path, errno })
            }
            Some(Message::Pid(_)) => Err(SandboxError::InitDied("pid told twice".into())),
            None => {
                self.reap();
                Ok(Event::Killed)
            }
        }
    }

    /// Waits until pid 1, and with it every process of the task, is gone.
    fn reap(&mut self) {
        if !self.reaped {
            let pid = i32::try_from(self.name.pid).ok().and_then(Pid::from_raw);
            let _ =
                rustix::io::retry_on_intr(|| rustix::process::waitpid(pid, WaitOptions::empty()));
            self.reaped = true;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
            self.reap();
        }
    }
}

/// Ends a task from another thread.
#[derive(Debug)]
pub struct Remote {
    pidfd: OwnedFd,
    control: UnixStream,
    asks: bool,
}

fn kill(pidfd: &OwnedFd, mut control: &UnixStream, asks: bool) {
    let asked = asks && control.write_all(&[init::KILL]).is_ok();
    // Somebody may have stopped it.
    let signal = if asked { Signal::CONT } else { Signal::KILL };
    let _ = rustix::process::pidfd_send_signal(pidfd, signal);
}

impl Remote {
    /// Asks every process of the task to end (SIGTERM).
    pub fn ask_to_end(&mut self) {
        let _ = self.control.write_all(&[init::END]);
    }

    /// Ends every process of the task at once.
    pub fn kill(&self) {
        kill(&self.pidfd, &self.control, self.asks);
    }
}

/// For callers that build a [`crate::Command`].
impl crate::Command {
    /// The command as one line, for people.
    #[must_use]
    pub fn display(argv: &[OsString]) -> String {
        argv.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }
}

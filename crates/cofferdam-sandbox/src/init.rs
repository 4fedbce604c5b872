//! The other end: from a fresh process to the task's command.
//!
//! The supervisor starts its own binary again with an empty environment and
//! one end of a socket as standard input; a copy of the supervisor's memory would be readable to
//! the task through `/proc/1`. Then, in this order:
//!
//! 1. Parent-death signal, so that nothing outlives the supervisor from here on.
//! 2. Root opens the host directories and becomes the task's user; everybody
//!    enters the new namespaces.
//! 3. A child is cloned as pid 1 of the task, a child of the *supervisor*
//!    (`CLONE_PARENT`), whose pid is reported; the first process ends.
//! 4. pid 1 asks for its own parent-death signal, builds the root view, drops
//!    every capability and becomes undumpable.
//! 5. It waits for the go byte. The end of that socket means that the supervisor
//!    died before the signal was in place; `getppid` would say 0 either way.
//! 6. It forks the task, which puts Landlock and seccomp on itself and becomes
//!    the command.
//! 7. It reaps, passes on requests to end, and when the command has ended, ends
//!    what is left: first asked, then killed by the kernel, which takes every
//!    process of the namespace when its pid 1 exits.
//!
//! With the host's own view there is no namespace to be entered and none whose end
//! would take the processes along: pid 1 is then a name only. It adopts whoever
//! loses a parent, ends them all before it ends itself, and has no parent-death
//! signal, which would leave them behind; it watches the socket.
//!
//! Watching the socket as well as the parent-death signal costs nothing and does
//! not depend on which thread of the supervisor forked.

use std::ffi::{CString, OsStr};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, set_dumpable_behavior,
    set_parent_process_death_signal,
};
use rustix::thread::UnshareFlags;
use serde::{Deserialize, Serialize};

use crate::mounts::{Sources, assemble};
use crate::userns::{self, setup};
use crate::{Command, Network, SandboxError, Spec, View, descendants, landlock, limits, seccomp};

/// The first argument that makes a binary call [`main`].
pub const ARGUMENT: &str = "__init";

/// Control bytes from the supervisor.
pub(crate) const GO: u8 = b'g';
pub(crate) const END: u8 = b'e';
pub(crate) const KILL: u8 = b'k';

/// How often memory is counted where no control group does.
const COUNT_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// How long processes that a command leaves behind have to end when asked.
const LEFTOVER_GRACE: Duration = Duration::from_millis(500);

/// How long processes that are killed one by one may take to be gone.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// pid 1, in the supervisor's pid namespace.
    Pid(u32),
    /// The root view stands; waiting for the go byte.
    Ready,
    /// The boundary can't be had.
    Refused { step: String, path: Option<std::path::PathBuf>, errno: i32 },
    /// The command could not be started.
    NotStarted { errno: i32 },
    /// More memory is used than the limit allows.
    OutOfMemory,
    /// The command ended.
    Exited { code: Option<i32>, signal: Option<i32>, left_running: u32 },
}

/// Lets a limit on the size of files (`ulimit -f`) be an error of a write instead of
/// the end of this process. Programs that it starts keep that; a task's command does not.
pub fn ignore_size_signal() {
    // SAFETY: a plain call that sets no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Runs the other end and never returns.
pub fn main() -> ! {
    let (socket, mut status) = match take_socket() {
        Ok(both) => both,
        // Nobody to tell it to but whoever reads our exit code.
        Err(_) => std::process::exit(2),
    };
    let code = match first_process(socket, &mut status) {
        Ok(()) => 0,
        Err(error) => {
            status.refused(error);
            1
        }
    };
    std::process::exit(code)
}

/// Takes the socket from the place of the standard input, where no descriptor of
/// the supervisor's caller can be in its way, and closes whatever else is open.
fn take_socket() -> io::Result<(OwnedFd, Status)> {
    const AFTER_STANDARD: i32 = 3;
    // SAFETY: numbers only; nothing in this process has opened a descriptor.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, AFTER_STANDARD, u32::MAX, 0) };
    if closed != 0 {
        return Err(io::Error::last_os_error());
    }
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), AFTER_STANDARD)?;
    rustix::stdio::dup2_stdin(&std::fs::File::open("/dev/null")?)?;
    let status = Status(socket.try_clone()?.into());
    Ok((socket, status))
}

struct Status(std::fs::File);

impl Status {
    /// A supervisor that is gone can't be told; its end takes us with it.
    fn send(&mut self, message: &Message) {
        let mut line = serde_json::to_vec(message).expect("a message serialises");
        line.push(b'\n');
        let _ = self.0.write_all(&line);
    }

    fn refused(&mut self, error: SandboxError) {
        let message = match error {
            SandboxError::Setup { step, path, errno } => Message::Refused { step, path, errno },
            other => Message::Refused { step: other.to_string(), path: None, errno: libc::EIO },
        };
        self.send(&message);
    }
}

fn die_with_parent() -> Result<(), SandboxError> {
    setup(
        "ask for the parent-death signal",
        None,
        set_parent_process_death_signal(Some(Signal::KILL)),
    )
}

/// A crash inside must not reach the host's handler: that runs as the host's
/// root, on the task's bytes, and keeps a file. A limit of 0 does not stop a
/// handler that is a program, 1 does (`fs/coredump.c`), and both stop a file. The
/// filter keeps it. A caller whose own hard limit is 0 can't have 1.
fn no_core_dumps() -> Result<(), SandboxError> {
    let limit = |bytes| rustix::process::Rlimit { current: Some(bytes), maximum: Some(bytes) };
    let set = |bytes| rustix::process::setrlimit(rustix::process::Resource::Core, limit(bytes));
    setup("forbid core dumps", None, set(1).or_else(|_| set(0)))
}

fn first_process(socket: OwnedFd, status: &mut Status) -> Result<(), SandboxError> {
    die_with_parent()?;
    no_core_dumps()?;
    let mut socket = std::fs::File::from(socket);
    let mut length = [0; 8];
    if socket.read_exact(&mut length).is_err() {
        // Started in vain.
        return Ok(());
    }
    let length = usize::try_from(u64::from_be_bytes(length)).unwrap_or_default();
    let mut text = vec![0; length];
    setup("read the specification", None, socket.read_exact(&mut text))?;
    let control = OwnedFd::from(socket);
    let spec: Spec = setup(
        "understand the specification",
        None,
        serde_json::from_slice(&text).map_err(io::Error::other),
    )?;
    setup("enter", Some(&spec.base_dir), rustix::process::chdir(&spec.base_dir))?;

    let sources = enter_namespaces(&spec)?;

    // SAFETY: this process has one thread, and a clone without CLONE_VM is a
    // fork: the child gets a copy of everything, its stack included.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone,
            libc::CLONE_PARENT | libc::SIGCHLD,
            0usize,
            0usize,
            0usize,
            0usize,
        )
    };
    match pid {
        0 => {
            let code = match pid_1(&spec, sources.as_ref(), control, status) {
                Ok(()) => 0,
                Err(error) => {
                    status.refused(error);
                    1
                }
            };
            std::process::exit(code)
        }
        -1 => setup("start pid 1", None, Err(io::Error::last_os_error())),
        pid => {
            status.send(&Message::Pid(u32::try_from(pid).unwrap_or(0)));
            // The end closes all that is open here, and pid 1 may have to wait for this
            // processor.
            // SAFETY: nothing is to be done at the end of this process.
            unsafe { libc::_exit(0) }
        }
    }
}

/// Enters the namespaces of a root view of its own; opened before or after, whatever
/// it is made of.
fn enter_namespaces(spec: &Spec) -> Result<Option<Sources>, SandboxError> {
    let View::Own { mounts, network } = &spec.view else { return Ok(None) };
    let mut flags = UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    if *network == Network::None {
        flags |= UnshareFlags::NEWNET;
    }
    if spec.ids.switch {
        let sources = Sources::open(mounts, spec.ids)?;
        userns::enter(spec.ids, flags)?;
        // Cleared by the change of user.
        die_with_parent()?;
        Ok(Some(sources))
    } else {
        userns::enter(spec.ids, flags)?;
        Sources::open(mounts, spec.ids).map(Some)
    }
}

fn pid_1(
    spec: &Spec,
    sources: Option<&Sources>,
    control: OwnedFd,
    status: &mut Status,
) -> Result<(), SandboxError> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    match (&spec.view, sources) {
        (View::Own { mounts, network }, Some(sources)) => {
            die_with_parent()?;
            setup("name the host", None, rustix::system::sethostname(b"dam"))?;
            if *network == Network::None {
                setup("bring up the loopback", None, loopback_up())?;
            }
            assemble(spec, mounts, sources)?;
            drop_capabilities()?;
        }
        _ => setup("adopt processes", None, descendants::adopt())?,
    }
    setup("forbid new privileges", None, rustix::thread::set_no_new_privs(true))?;
    setup("become undumpable", None, set_dumpable_behavior(DumpableBehavior::NotDumpable))?;
    let signals = setup("watch for ended children", None, child_signals())?;
    status.send(&Message::Ready);

    let mut byte = [0u8];
    match rustix::io::retry_on_intr(|| rustix::io::read(&control, &mut byte)) {
        Ok(1) if byte[0] == GO => {}
        _ => return Ok(()),
    }
    let child = match start(spec)? {
        Ok(child) => child,
        Err(errno) => {
            status.send(&Message::NotStarted { errno });
            return Ok(());
        }
    };
    supervise(child, spec, &control, &signals, status)
}

/// Brings up `lo`, which a new network namespace has, down.
fn loopback_up() -> io::Result<()> {
    // SAFETY: plain calls with a live ifreq whose name is NUL-terminated; the
    // descriptor is closed by its owner.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(socket);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Gives up every capability, for good.
fn drop_capabilities() -> Result<(), SandboxError> {
    const LAST_POSSIBLE: u64 = 63;
    let step = "drop the capabilities";
    for capability in 0..=LAST_POSSIBLE {
        // SAFETY: numbers only; EINVAL says that the kernel knows no more.
        let done = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        if done != 0 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() == Some(libc::EINVAL) {
                break;
            }
            return setup(step, None, Err(error));
        }
    }
    setup(step, None, rustix::thread::clear_ambient_capability_set())?;
    let none = rustix::thread::CapabilitySets {
        effective: rustix::thread::CapabilitySet::empty(),
        permitted: rustix::thread::CapabilitySet::empty(),
        inheritable: rustix::thread::CapabilitySet::empty(),
    };
    setup(step, None, rustix::thread::set_capabilities(None, none))
}

/// A descriptor that becomes readable when a child has ended.
fn child_signals() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before use; the descriptor
    // returned is ours alone.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        if libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Starts the command; the inner error is why it could not be started.
fn start(spec: &Spec) -> Result<Result<Pid, i32>, SandboxError> {
    let program = setup("prepare the command", None, Program::new(&spec.command))?;
    let (reader, writer) =
        setup("make a pipe", None, rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC))?;
    // SAFETY: this process has one thread; the child only runs code that is
    // safe after such a fork, and ends in exec or _exit.
    match unsafe { libc::fork() } {
        -1 => setup("start the command", None, Err(io::Error::last_os_error())),
        0 => {
            let errno = match confine(spec) {
                Ok(()) => program.exec(),
                Err(error) => {
                    // Told apart from a command that can't be started.
                    let _ = rustix::io::write(&writer, b"w");
                    error.raw_os_error().unwrap_or(libc::EIO)
                }
            };
            let _ = rustix::io::write(&writer, &errno.to_ne_bytes());
            // SAFETY: ends the child at once, without running anything of the parent's.
            unsafe { libc::_exit(127) }
        }
        pid => {
            drop(writer);
            let mut answer = Vec::new();
            setup(
                "hear from the command",
                None,
                std::fs::File::from(reader).read_to_end(&mut answer),
            )?;
            let number = |bytes: &[u8]| bytes.try_into().map_or(libc::EIO, i32::from_ne_bytes);
            match answer.as_slice() {
                [] => Ok(Ok(Pid::from_raw(pid).expect("a child's pid is positive"))),
                [b'w', rest @ ..] => Err(SandboxError::Setup {
                    step: "confine the command".into(),
                    path: None,
                    errno: number(rest),
                }),
                rest => Ok(Err(number(rest))),
            }
        }
    }
}

/// What the task puts on itself between fork and exec.
fn confine(spec: &Spec) -> io::Result<()> {
    rustix::process::setsid()?;
    // SAFETY: plain calls; Rust ignores SIGPIPE and pid 1 blocks SIGCHLD, and
    // both would be inherited.
    unsafe {
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
    }
    rustix::process::chdir(&spec.command.cwd)
        .or_else(|_| rustix::process::chdir(&spec.command.else_cwd))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(spec.command.umask));
    if spec.command.terminal {
        let terminal = rustix::stdio::stdout();
        rustix::process::ioctl_tiocsctty(terminal)?;
        rustix::stdio::dup2_stdin(terminal)?;
    } else {
        // The one that pid 1 was started with lies on a mount of the host.
        let nothing = rustix::fs::open(
            "/dev/null",
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        rustix::stdio::dup2_stdin(&nothing)?;
    }
    // SAFETY: closes nothing now; at exec every descriptor but the three
    // standard ones goes, whoever opened it.
    let marked =
        unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if marked != 0 {
        return Err(io::Error::last_os_error());
    }
    limits::confine(&spec.limits)?;
    landlock::restrict(spec)?;
    match spec.view {
        View::Own { .. } => seccomp::restrict(spec.wall),
        View::Host => seccomp::restrict_in_hosts_view(),
    }
}

/// A command in the form that exec takes, made before the fork.
struct Program {
    candidates: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
}

impl Program {
    fn new(command: &Command) -> io::Result<Program> {
        let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::other);
        let name = command.argv.first().ok_or_else(|| io::Error::other("an empty command"))?;
        let path = command.env.iter().find(|(key, _)| key == "PATH");
        let candidates = if name.as_bytes().contains(&b'/') {
            vec![text(name.as_bytes())?]
        } else {
            std::env::split_paths(path.map_or(OsStr::new("/usr/bin:/bin"), |(_, value)| value))
                .map(|dir| text(dir.join(name).as_os_str().as_bytes()))
                .collect::<io::Result<_>>()?
        };
        let argv =
            command.argv.iter().map(|arg| text(arg.as_bytes())).collect::<io::Result<_>>()?;
        let env = command
            .env
            .iter()
            .map(|(key, value)| text(&[key.as_bytes(), b"=", value.as_bytes()].concat()))
            .collect::<io::Result<_>>()?;
        Ok(Program { candidates, argv, env })
    }

    /// Becomes the program; returns only the reason why not, as execvp(3) chooses it.
    fn exec(&self) -> i32 {
        let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
            list.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let (argv, env) = (pointers(&self.argv), pointers(&self.env));
        let mut found_but_denied = false;
        let mut last = libc::ENOENT;
        for candidate in &self.candidates {
            // SAFETY: NULL-terminated arrays of live C strings.
            unsafe { libc::execve(candidate.as_ptr(), argv.as_ptr(), env.as_ptr()) };
            last = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            match last {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => found_but_denied = true,
                libc::ENOEXEC => {
                    let mut script = vec![c"/bin/sh".as_ptr(), candidate.as_ptr()];
                    script.extend(&argv[1..]);
                    // SAFETY: as above.
                    unsafe { libc::execve(c"/bin/sh".as_ptr(), script.as_ptr(), env.as_ptr()) };
                    return libc::ENOEXEC;
                }
                _ => return last,
            }
        }
        if found_but_denied { libc::EACCES } else { last }
    }
}

/// The processes of the task besides pid 1.
struct Others<'a>(&'a View);

impl Others<'_> {
    fn pids(&self) -> Vec<u32> {
        match self.0 {
            View::Own { .. } => {
                // The namespace's own; pid 1 counts for memory, which is next to nothing.
                let rows = crate::process::table();
                rows.iter().map(|row| row.pid).filter(|pid| *pid != 1).collect()
            }
            View::Host => descendants::all().iter().map(|row| row.pid).collect(),
        }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.pids().len()).unwrap_or(u32::MAX)
    }

    fn memory_in_use(&self, limit: u64) -> u64 {
        let files = match self.0 {
            View::Own { .. } => limits::files_in_memory(),
            View::Host => 0,
        };
        limits::memory_in_use(limit, files, &self.pids())
    }

    fn ask_to_end(&self) {
        match self.0 {
            // SAFETY: numbers only. -1 is every process of this namespace but pid 1.
            View::Own { .. } => unsafe {
                libc::kill(-1, libc::SIGTERM);
            },
            View::Host => descendants::signal_all(Signal::TERM),
        }
    }

    /// Ends them where the end of pid 1 does not.
    fn end(&self) {
        if self.0.is_hosts() {
            descendants::end_all(PATIENCE);
        }
    }
}

/// Reaps until the command has ended, then ends the rest.
fn supervise(
    child: Pid,
    spec: &Spec,
    control: &OwnedFd,
    signals: &OwnedFd,
    status: &mut Status,
) -> Result<(), SandboxError> {
    let others = Others(&spec.view);
    let most_memory = spec.limits.memory;
    let mut ended = None;
    let mut left_running = 0;
    let mut deadline: Option<Instant> = None;
    loop {
        if let Some(most) = most_memory
            && others.memory_in_use(most) > most
        {
            // The end of pid 1 is that of everybody.
            others.end();
            status.send(&Message::OutOfMemory);
            return Ok(());
        }
        let mut nobody_left = false;
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, how))) if pid == child => {
                    ended = Some((how.exit_status(), how.terminating_signal()));
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => break,
                Err(_) => {
                    nobody_left = true;
                    break;
                }
            }
        }
        if let Some((code, signal)) = ended {
            let time_is_up = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if nobody_left || time_is_up {
                others.end();
                status.send(&Message::Exited { code, signal, left_running });
                return Ok(());
            }
            if deadline.is_none() {
                deadline = Some(Instant::now() + LEFTOVER_GRACE);
                left_running = others.count();
                others.ask_to_end();
            }
        }
        let timeout = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().max(1_000_000).into() }
        });
        let timeout = match (timeout, most_memory) {
            (Some(timeout), Some(_)) => Some(timeout.min(COUNT_EVERY)),
            (None, Some(_)) => Some(COUNT_EVERY),
            (timeout, None) => timeout,
        };
        let mut watched =
            [PollFd::new(control, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        if let Err(error) = poll(&mut watched, timeout.as_ref())
            && error != rustix::io::Errno::INTR
        {
            return setup("wait", None, Err(error));
        }
        if !watched[1].revents().is_empty() {
            let mut info = [0u8; 128];
            while rustix::io::read(signals.as_fd(), &mut info).is_ok() {}
        }
        if !watched[0].revents().is_empty() {
            let mut byte = [0u8];
            match rustix::io::read(control, &mut byte).map(|read| byte[..read].first()) {
                Ok(Some(&END)) => others.ask_to_end(),
                // The supervisor is gone, or wants everybody to be.
                Ok(None | Some(&KILL)) => {
                    others.end();
                    return Ok(());
                }
                _ => {}
            }
        }
    }
}

//! Naming a process so that it can't be taken for another.
//!
//! A pid alone is reused; pid, start time and boot id together are not.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A process of this or an earlier boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessName {
    /// Process id in the supervisor's pid namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot (`/proc/PID/stat`, field 22).
    pub start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
}

impl ProcessName {
    /// The name of a running process, `None` when there is none with that pid.
    ///
    /// # Errors
    /// When `/proc` can't be read.
    pub fn of(pid: u32) -> io::Result<Option<ProcessName>> {
        let Some(start_ticks) = start_ticks(pid)? else { return Ok(None) };
        Ok(Some(ProcessName { pid, start_ticks, boot_id: boot_id()? }))
    }

    /// A handle on the process if it still exists, zombie or not.
    ///
    /// # Errors
    /// When `/proc` can't be read or no handle can be opened.
    pub fn open(&self) -> io::Result<Option<OwnedFd>> {
        if self.boot_id != boot_id()? {
            return Ok(None);
        }
        handle(self.pid, self.start_ticks)
    }

    /// Ends the process with SIGKILL and waits until it is gone. For a pid 1
    /// that is after the last process of its namespace is gone, which neither a
    /// free lock nor a closed pipe says. `Ok(false)` when it was gone already.
    ///
    /// # Errors
    /// When it can't be signalled, or `patience` passes first
    /// ([`io::ErrorKind::TimedOut`]: a process stuck in the kernel).
    pub fn kill_and_wait(&self, patience: std::time::Duration) -> io::Result<bool> {
        let Some(handle) = self.open()? else { return Ok(false) };
        match pidfd_send_signal(&handle, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
        if wait_gone(&handle, Some(patience))? {
            Ok(true)
        } else {
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("process {} does not end: it is stuck in the kernel", self.pid),
            ))
        }
    }
}

/// Waits until the process behind a pidfd has ended; `false` when `patience`
/// passed first.
///
/// # Errors
/// What poll(2) says, EINTR excepted.
pub fn wait_gone(pidfd: impl AsFd, patience: Option<std::time::Duration>) -> io::Result<bool> {
    let deadline = patience.map(|patience| std::time::Instant::now() + patience);
    loop {
        let left = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], left.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The id of the running boot.
///
/// # Errors
/// When `/proc` is not there.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// A handle on the process with this pid if it is the one that was started then.
fn handle(pid: u32, started: u64) -> io::Result<Option<OwnedFd>> {
    let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
    let handle = match pidfd_open(raw, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Compared after the handle is open: from here on the pid can't be reused
    // for something else without the handle showing it.
    Ok((start_ticks(pid)? == Some(started)).then_some(handle))
}

/// A process as `/proc` showed it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) pid: u32,
    pub(crate) parent: u32,
    pub(crate) start_ticks: u64,
    /// Nobody has waited for it yet.
    pub(crate) ended: bool,
}

/// The processes that `/proc` shows.
pub(crate) fn table() -> Vec<Row> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| {
            let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
            let ended = matches!(field(&stat, STATE)?, "Z" | "X");
            let parent = field(&stat, PARENT)?.parse().ok()?;
            Some(Row { pid, parent, start_ticks: parse_start_ticks(&stat)?, ended })
        })
        .collect()
}

/// Signals a process if it is still the one that was seen.
pub(crate) fn signal(process: &Row, signal: Signal) {
    // Gone, or not ours to signal: whoever asked looks again.
    if let Ok(Some(handle)) = handle(process.pid, process.start_ticks) {
        let _ = pidfd_send_signal(&handle, signal);
    }
}

fn start_ticks(pid: u32) -> io::Result<Option<u64>> {
    let stat = match std::fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        Err(error)
            if error.kind() == io::ErrorKind::NotFound
                || error.raw_os_error() == Some(libc::ESRCH) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    parse_start_ticks(&stat)
        .map(Some)
        .ok_or_else(|| io::Error::other(format!("`/proc/{pid}/stat` has an unknown form")))
}

/// Fields of `/proc/PID/stat` (proc_pid_stat(5)), counted from 1.
const STATE: usize = 3;
const PARENT: usize = 4;
const START_TIME: usize = 22;

fn parse_start_ticks(stat: &[u8]) -> Option<u64> {
    field(stat, START_TIME)?.parse().ok()
}

/// A field from the third on: the command name in field 2 can hold spaces and
/// parentheses.
fn field(stat: &[u8], number: usize) -> Option<&str> {
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(number - STATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_command_names_do_not_shift_the_fields() {
        let line = b"7 (a) 1 2 (x) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1 1";
        assert_eq!(parse_start_ticks(line), Some(4242));
        assert_eq!((field(line, STATE), field(line, PARENT)), (Some("S"), Some("1")));
    }

    #[test]
    fn another_boot_or_start_time_is_another_process() {
        let own = ProcessName::of(std::process::id()).expect("proc").expect("self");
        assert!(own.open().expect("open").is_some());
        let later = ProcessName { start_ticks: own.start_ticks + 1, ..own.clone() };
        assert!(later.open().expect("open").is_none());
        let other = ProcessName { boot_id: "other".into(), ..own };
        assert!(other.open().expect("open").is_none());
    }
}

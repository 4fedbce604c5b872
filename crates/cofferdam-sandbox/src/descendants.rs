//! The processes of a task that has no pid namespace.
//!
//! Its pid 1 adopts who loses a parent (`PR_SET_CHILD_SUBREAPER`, prctl(2)), so all
//! that its command started can be found below it as long as it lives, whatever
//! sessions they made. When somebody killed it, only a mark in their environment is
//! left to know them by, which they can have removed: best effort, and said so.
//!
//! A pid alone is never signalled: it can be another process by then. A handle is
//! opened and the start time compared.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitOptions};

use crate::process::{Row, signal, table};

/// How long it is waited between two looks at who is left.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Makes the calling process the new parent of descendants that lose theirs.
///
/// # Errors
/// What the kernel says.
pub(crate) fn adopt() -> io::Result<()> {
    // SAFETY: numbers only.
    let done = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The processes that descend from the calling one, ended ones left out.
pub(crate) fn all() -> Vec<Row> {
    below(std::process::id(), table())
}

fn below(top: u32, rows: Vec<Row>) -> Vec<Row> {
    let mut children: HashMap<u32, Vec<Row>> = HashMap::new();
    for row in rows {
        children.entry(row.parent).or_default().push(row);
    }
    let (mut found, mut from) = (Vec::new(), vec![top]);
    while let Some(parent) = from.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            from.push(child.pid);
            found.push(child);
        }
    }
    found.retain(|row| !row.ended);
    found
}

/// Signals every descendant once.
pub(crate) fn signal_all(number: Signal) {
    for process in all() {
        signal(&process, number);
    }
}

/// Ends every descendant and reaps. They are stopped first: what stands still starts
/// no other. Gives up after `patience`, with the number of those that are left.
pub(crate) fn end_all(patience: Duration) -> usize {
    let deadline = Instant::now() + patience;
    let mut stopped = HashSet::new();
    loop {
        let mut anybody = false;
        for process in all() {
            if stopped.insert((process.pid, process.start_ticks)) {
                signal(&process, Signal::STOP);
                anybody = true;
            }
        }
        if !anybody || Instant::now() >= deadline {
            break;
        }
    }
    loop {
        signal_all(Signal::KILL);
        while matches!(rustix::process::wait(WaitOptions::NOHANG), Ok(Some(_))) {}
        let left = all().len();
        if left == 0 || Instant::now() >= deadline {
            return left;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Ends the caller's processes that have this variable with this value, but for the
/// calling one and those that it descends from. Gives up after `patience`, with the
/// number of those that are left.
pub fn end_marked(name: &str, value: &str, patience: Duration) -> usize {
    let mark = format!("{name}={value}").into_bytes();
    let deadline = Instant::now() + patience;
    loop {
        let rows = table();
        let own = ancestors(std::process::id(), &rows);
        let marked = |row: &&Row| {
            // Of somebody else's process it can't be read.
            let environ = std::fs::read(format!("/proc/{}/environ", row.pid)).unwrap_or_default();
            !row.ended
                && !own.contains(&row.pid)
                && environ.split(|byte| *byte == 0).any(|variable| variable == mark)
        };
        let left: Vec<&Row> = rows.iter().filter(marked).collect();
        if left.is_empty() || Instant::now() >= deadline {
            return left.len();
        }
        for process in left {
            signal(process, Signal::KILL);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A process and those that it descends from.
fn ancestors(pid: u32, rows: &[Row]) -> HashSet<u32> {
    let parents: HashMap<u32, u32> = rows.iter().map(|row| (row.pid, row.parent)).collect();
    let mut found = HashSet::new();
    let mut at = Some(pid);
    while let Some(pid) = at
        && found.insert(pid)
    {
        at = parents.get(&pid).copied();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pid: u32, parent: u32) -> Row {
        Row { pid, parent, start_ticks: 0, ended: false }
    }

    #[test]
    fn whoever_descends_is_found_and_nobody_else() {
        let mut rows = vec![row(1, 0), row(2, 1), row(3, 2), row(4, 3), row(5, 1)];
        rows[3].ended = true;
        let found: Vec<u32> = below(2, rows.clone()).iter().map(|row| row.pid).collect();
        assert_eq!(found, [3]);
        assert_eq!(ancestors(4, &rows), HashSet::from([4, 3, 2, 1, 0]));
    }

    #[test]
    fn marked_processes_are_ended_and_no_others() {
        let value = format!("{}-{}", std::process::id(), "marked");
        let start = |value: &str| {
            let mut command = std::process::Command::new("sleep");
            command.arg("60").env("DAM_MARK", value).spawn().expect("sleep")
        };
        let (mut marked, mut other) = (start(&value), start("another"));
        assert_eq!(end_marked("DAM_MARK", &value, Duration::from_secs(10)), 0);
        assert!(!marked.wait().expect("wait").success());
        assert!(other.try_wait().expect("wait").is_none());
        other.kill().and_then(|()| other.wait()).expect("end");
    }
}

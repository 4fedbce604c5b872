//! Named places where tests can end or fail the program.
//!
//! A failpoint stands before and after every step whose interruption could
//! lose work: each ledger transition and each system call of a publication.
//! In builds with debug assertions the environment decides what happens there:
//!
//! - `COFFERDAM_FAILPOINT=NAME=kill` ends the process with SIGKILL, as a power
//!   cut or the kernel's memory killer would. `NAME@N=kill` does so on the Nth
//!   visit of that name (counted from 1 within one process).
//! - `NAME=stop` stops the process (SIGSTOP) until it gets SIGCONT, for tests of
//!   what others do meanwhile.
//! - `NAME=enospc`, `=eio`, `=einval`, `=erofs`, `=exdev` makes [`hit`] return that error.
//! - `COFFERDAM_FAILPOINT_LOG=PATH` appends every name as it is visited.
//!
//! In release builds [`hit`] is empty and reads nothing.

#![forbid(unsafe_code)]

use std::io;

/// Visits the failpoint `name`.
///
/// # Errors
/// The error that the environment asks for at this name, never any other.
#[inline]
pub fn hit(name: &str) -> io::Result<()> {
    #[cfg(debug_assertions)]
    return active::hit(name);
    #[cfg(not(debug_assertions))]
    {
        let _ = name;
        Ok(())
    }
}

/// What tests set the clock of records to, by `COFFERDAM_CLOCK_MS`: milliseconds since the
/// epoch. None in release builds.
#[must_use]
pub fn clock_ms() -> Option<i64> {
    #[cfg(debug_assertions)]
    {
        static SET: std::sync::OnceLock<Option<i64>> = std::sync::OnceLock::new();
        *SET.get_or_init(|| std::env::var("COFFERDAM_CLOCK_MS").ok()?.parse().ok())
    }
    #[cfg(not(debug_assertions))]
    None
}

#[cfg(debug_assertions)]
mod active {
    use std::collections::HashMap;
    use std::io::{self, Write};
    use std::sync::{Mutex, OnceLock};

    struct Plan {
        name: String,
        nth: u32,
        action: String,
    }

    fn plan() -> Option<&'static Plan> {
        static PLAN: OnceLock<Option<Plan>> = OnceLock::new();
        PLAN.get_or_init(|| {
            let text = std::env::var("COFFERDAM_FAILPOINT").ok()?;
            let (place, action) = text.rsplit_once('=')?;
            let (name, nth) = match place.split_once('@') {
                Some((name, nth)) => (name, nth.parse().ok()?),
                None => (place, 1),
            };
            Some(Plan { name: name.to_owned(), nth, action: action.to_owned() })
        })
        .as_ref()
    }

    fn log(name: &str) {
        static LOG: OnceLock<Option<std::path::PathBuf>> = OnceLock::new();
        let path = LOG.get_or_init(|| std::env::var_os("COFFERDAM_FAILPOINT_LOG").map(Into::into));
        if let Some(path) = path
            && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path)
        {
            let _ = file.write_all(format!("{name}\n").as_bytes());
        }
    }

    pub(super) fn hit(name: &str) -> io::Result<()> {
        log(name);
        let Some(plan) = plan() else { return Ok(()) };
        if plan.name != name {
            return Ok(());
        }
        static VISITS: OnceLock<Mutex<HashMap<String, u32>>> = OnceLock::new();
        let mut visits = VISITS.get_or_init(Mutex::default).lock().expect("failpoint counter");
        let count = visits.entry(name.to_owned()).or_default();
        *count += 1;
        if *count != plan.nth {
            return Ok(());
        }
        match plan.action.as_str() {
            "kill" => {
                let own = rustix::process::getpid();
                let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
                unreachable!("SIGKILL returned");
            }
            "stop" => {
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, rustix::process::Signal::STOP)?;
                Ok(())
            }
            "enospc" => Err(rustix::io::Errno::NOSPC.into()),
            "eio" => Err(rustix::io::Errno::IO.into()),
            "einval" => Err(rustix::io::Errno::INVAL.into()),
            "exdev" => Err(rustix::io::Errno::XDEV.into()),
            "erofs" => Err(rustix::io::Errno::ROFS.into()),
            other => panic!("unknown failpoint action `{other}`"),
        }
    }
}

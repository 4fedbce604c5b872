//! `dam run --detach` and `dam attach`.
//!
//! In the background is the same supervisor in a session of its own. It tells the one in
//! front when its task has begun, and then lets go of what that one has: until then, what
//! is wrong is told as ever.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cofferdam_core::receipt::Receipt;
use cofferdam_core::report::{Event, Reporter};
use cofferdam_core::{Dam, Error, ExitCode, query};
use serde::{Deserialize, Serialize};

use crate::args::{Format, Log};
use crate::output;
use crate::terminal::served::{self, Left, Served};

/// How long a command may take in the background when nothing is said.
pub const TIMEOUT: Duration = Duration::from_secs(8 * 3600);

/// What the one in front hears.
#[derive(Debug, Serialize, Deserialize)]
struct Begun {
    task: String,
    name: String,
    /// Whether an earlier run for the same key did it.
    replayed: bool,
}

/// Tells the one in front that the task has begun, once.
#[derive(Default)]
pub struct Announcer {
    told: AtomicBool,
}

impl Reporter for Announcer {
    fn report(&self, event: Event) {
        let begun = match event {
            Event::Started { task, name, .. } => Begun { task, name, replayed: false },
            Event::Replayed { task, name, .. } => Begun { task, name, replayed: true },
            _ => return,
        };
        if self.told.swap(true, Ordering::Relaxed) {
            return;
        }
        output::json_line(&begun);
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        if let Ok(null) = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()) {
            let _ = rustix::stdio::dup2_stdin(&null);
            let _ = rustix::stdio::dup2_stdout(&null);
            let _ = rustix::stdio::dup2_stderr(&null);
        }
    }
}

/// Starts the same run in the background, and waits until its task has begun.
pub fn detach(dir: &Path, format: Format) -> Result<ExitCode, Error> {
    let mut args: Vec<_> = std::env::args_os().skip(1).collect();
    let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    if let Some(at) = args[..end].iter().position(|arg| arg == "--detach") {
        args[at] = "--as-detached".into();
    }
    let failed = |source| Error::Io { step: "start", path: "/proc/self/exe".into(), source };
    let mut child = Command::new("/proc/self/exe")
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    let _ = BufReader::new(stdout).read_line(&mut line);
    let Ok(begun) = serde_json::from_str::<Begun>(&line) else {
        // It has ended before its task began, and has said why.
        let done = child.wait_with_output().map_err(failed)?;
        output::bytes(line.as_bytes());
        output::note(&String::from_utf8_lossy(&done.stderr));
        let code = done.status.code().and_then(|code| u8::try_from(code).ok());
        return Ok(code.map_or(ExitCode::Internal, ExitCode::of_number));
    };
    match format {
        Format::Text if begun.replayed => {
            let name = &begun.name;
            output::note(&format!("`{name}` was first with this key: `dam show {name}`\n"));
        }
        Format::Text => {
            let name = &begun.name;
            output::note(&format!(
                "{name} runs in the background: `dam attach {name}` goes to it, `dam wait {name}` \
                 waits for its end, `dam stop {name}` ends it\n"
            ));
        }
        _ => output::json_line(&begun),
    }
    Ok(ExitCode::Done)
}

/// The terminal of a run in the background.
pub fn served(dam: &Dam) -> Result<Served, Error> {
    Served::open(dam.dir()).map_err(|source| Error::Io {
        step: "make a terminal in",
        path: dam.dir().to_owned(),
        source,
    })
}

/// Becomes a session of its own, which no terminal ends.
pub fn leave_session() -> Result<(), Error> {
    rustix::process::setsid().map(drop).map_err(|errno| Error::Io {
        step: "leave",
        path: "the session".into(),
        source: errno.into(),
    })
}

/// Shows what a task prints, from the beginning and as it comes, until its end.
pub fn attach(name: &str, format: Format) -> Result<ExitCode, Error> {
    let mut dam = super::open()?;
    let (task, _) = query::show(&mut dam, name)?;
    let dir = dam.task_dir(&task.id);
    if let (true, Some(supervisor)) = (dir.is_live()?, dir.supervisor()) {
        let failed =
            |source| Error::Io { step: "go to the terminal of", path: name.into(), source };
        match served::go_to(dam.dir(), supervisor.pid).map_err(failed)? {
            Some(Left::They) => {
                output::note(&format!("\r\n`{name}` goes on; `dam attach {name}` comes back\n"));
                return Ok(ExitCode::Done);
            }
            Some(Left::ItEnded) => {
                let task = query::wait(&mut dam, task.id.as_str())?;
                return Ok(super::conclude(&Receipt::of(&task)?, format));
            }
            None => {}
        }
    }
    drop(dam);
    let log = Log { name: name.to_owned(), follow: true, timestamps: false, check: None };
    super::log::log(&log)?;
    // It goes on after the command: checks, landing.
    let task = query::wait(&mut super::open()?, name)?;
    Ok(super::conclude(&Receipt::of(&task)?, format))
}

//! Publishing by a command of the host's: what no rename can reach, such as a sheet or a
//! service.
//!
//! The command runs once, as the caller, with the verified files in its directory and
//! nothing else of the context's. No step of ours is its commit point: that is what its
//! end says. When its `dam` dies before it has written that down, nobody knows, and the
//! task is `in-doubt`: it is never run again by itself, unless the person said that it
//! can be.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Component, Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use cofferdam_ledger::{
    Change as LedgerChange, Durability, NewPublication, Publication, PublicationState, State,
};
use serde::{Deserialize, Serialize};

use super::{Candidate, Files};
use crate::Error;
use crate::error::IoContext;
use crate::job::Job;
use crate::report::{Event, Meter};

/// A command that publishes, as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishCommand {
    /// The program and its arguments. A program with a slash is relative to [`Self::dir`].
    pub argv: Vec<String>,
    /// The caller's directory.
    pub dir: PathBuf,
    /// Whether it may be run again when nobody knows whether it has run.
    #[serde(default)]
    pub again: bool,
}

impl std::fmt::Display for PublishCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "command: {}", self.argv.join(" "))
    }
}

impl PublishCommand {
    /// A command as a person writes it: `command:CMD`, with words as a shell has them. It
    /// is not run by one.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn parse(text: &str, dir: &Path, again: bool) -> Result<PublishCommand, Error> {
        let usage = |why: &str| {
            Error::usage(format!("`--publish {text}`: {why}"), "`--publish 'command:./push FILE'`")
        };
        let Some(command) = text.strip_prefix("command:") else {
            return Err(usage(
                "it has to be `command:CMD`, or `patch` for the directory of `--dir`",
            ));
        };
        let argv = shlex::split(command).ok_or_else(|| usage("a quote is not closed"))?;
        if argv.is_empty() {
            return Err(usage("there is no command"));
        }
        Ok(PublishCommand { argv, dir: dir.to_owned(), again })
    }

    /// The words that can be files of a context: its arguments that lead nowhere else.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = Vec::new();
        for word in self.argv.iter().skip(1) {
            let path = crate::input::clean(Path::new(word));
            let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
            let mut known = files.iter();
            if inside && !path.as_os_str().is_empty() && !known.any(|known| *known == path) {
                files.push(path);
            }
        }
        files
    }

    fn program(&self) -> OsString {
        let program = &self.argv[0];
        if program.contains('/') { self.dir.join(program).into() } else { program.into() }
    }
}

/// What the command prints, in the task's directory.
const LOG: &str = "publish.log";

/// What is kept of a run of the command.
#[derive(Debug, Serialize, Deserialize)]
struct Journal {
    /// Version of this form: 1.
    version: u32,
    command: Vec<String>,
}

/// Runs the command on the verified files.
pub(super) fn publish(job: &mut Job<'_, Files>, publish: &PublishCommand) -> Result<(), Error> {
    let begun = Instant::now();
    Meter::begin(job.reporter, "publishing");
    job.advance(State::Publishing, None)?;
    let mut command = match prepare(job, publish) {
        Ok(command) => command,
        Err(error) => return not_run(job, &error),
    };
    let journal = Journal { version: 1, command: publish.argv.clone() };
    let publication = job.dam.ledger.begin_publication(NewPublication {
        task: job.id.clone(),
        target: publish.to_string(),
        old: None,
        new: Candidate::of(&job.facts).id,
        journal: serde_json::to_value(&journal).expect("a journal serialises"),
    });
    let publication = match publication {
        Ok(publication) => publication,
        Err(error) => return not_run(job, &error.into()),
    };
    // While it runs it holds the task's lock too, also when we are killed: nobody judges
    // before it has ended.
    let held = job.lock.lend().at("hold", job.lock.path())?;
    cofferdam_failpoint::hit("target:command:start").at("publish", job.dir.path())?;
    let ended = command.status();
    drop(held);
    cofferdam_failpoint::hit("target:command:ended").at("publish", job.dir.path())?;
    let why = match ended {
        Ok(status) if status.success() => {
            job.facts.publish_exit = status.code();
            job.took("landed", begun);
            let change =
                LedgerChange { facts: Some(job.facts.to_value()), ..LedgerChange::default() };
            job.dam.ledger.land(&job.id, publication, change)?;
            job.state = State::Landed;
            job.told("landed", begun, format!("`{}` exit 0", publish.argv.join(" ")));
            return Ok(());
        }
        Ok(status) => match status.code() {
            Some(code) => {
                job.facts.publish_exit = Some(code);
                tell_log(job);
                format!("the command that publishes ended with exit code {code}")
            }
            // Whatever it did until then, it did not come to say.
            None => {
                let signal = status.signal().unwrap_or_default();
                let why = format!("`{}` was ended by signal {signal}", publish.argv[0]);
                return in_doubt(job, publish, &why);
            }
        },
        Err(error) => format!("`{}` could not be started: {error}", publish.argv[0]),
    };
    let (from, to) = (PublicationState::Intent, PublicationState::Abandoned);
    job.dam.ledger.advance_publication(publication, from, to, Durability::Normal)?;
    job.end(State::Ready, &why)
}

/// Tells the end of what the command printed.
fn tell_log(job: &Job<'_, Files>) {
    const LINES: usize = 20;
    let path = job.dir.path().join(LOG);
    let text = std::fs::read(&path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let text = lines[lines.len().saturating_sub(LINES)..].join("\n");
    job.reporter.report(Event::CheckLog { name: "publish".into(), text });
    let text = format!("all that it printed is in `{}`", path.display());
    job.reporter.report(Event::Warning { text });
}

/// It has certainly not run.
fn not_run(job: &mut Job<'_, Files>, error: &Error) -> Result<(), Error> {
    job.end(State::Ready, &format!("it could not be published: {}", crate::land::chain(error)))
}

/// The command with its directory, which holds the verified files, and what it is told.
fn prepare(job: &Job<'_, Files>, publish: &PublishCommand) -> Result<std::process::Command, Error> {
    super::results::still_verified(job)?;
    let path = job.dir.path().join(LOG);
    let log = std::fs::File::create(&path).at("make", &path)?;
    let copy = log.try_clone().at("open", &path)?;
    let mut command = std::process::Command::new(publish.program());
    command
        .args(publish.argv.iter().skip(1).map(OsStr::new))
        .current_dir(job.dir.results())
        .env("DAM_TASK", job.id.as_str())
        .env("DAM_DIR", &publish.dir)
        .env_remove("DAM_KEY")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(copy)
        // A terminal's Ctrl-C is for us, who let it finish.
        .process_group(0);
    if let Some(key) = &job.request.key {
        command.env("DAM_KEY", &key.key);
    }
    Ok(command)
}

/// Nobody knows what the command did.
fn in_doubt(job: &mut Job<'_, Files>, publish: &PublishCommand, why: &str) -> Result<(), Error> {
    let text = format!(
        "{why}: whether it has published nobody here knows. Look at what it was to change; \
         `dam drop {}` gives this one up, and it is never run again",
        job.name
    );
    if !publish.again {
        return job.end(State::InDoubt, &text);
    }
    if let Some(publication) = job.dam.ledger.publication_of(&job.id)? {
        let (from, to) = (PublicationState::Intent, PublicationState::Abandoned);
        job.dam.ledger.advance_publication(publication.id, from, to, Durability::Normal)?;
    }
    job.end(State::Ready, &format!("{why}; it can be run again: `dam land {}`", job.name))
}

/// Takes on what a dead supervisor left. The command itself has ended: it held the lock.
pub(super) fn recover(
    job: &mut Job<'_, Files>,
    publish: &PublishCommand,
    publication: Option<&Publication>,
) -> Result<(), Error> {
    match publication {
        None => job.end(State::Ready, "its supervisor died before anything was published"),
        Some(_) => {
            let why = format!("its supervisor died while `{}` ran", publish.argv[0]);
            in_doubt(job, publish, &why)
        }
    }
}

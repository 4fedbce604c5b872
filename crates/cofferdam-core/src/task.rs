//! The line that a task takes.
//!
//! One function an arrow, in this order:
//!
//! ```text
//! prepare ─► run ─► harvest ─► land (verify ─► publish) ─► settle
//! ```
//!
//! Each state is in the ledger before its step begins. The supervisor holds the
//! task's lock for its whole life; a free lock says that it is gone, and no
//! more. Whatever goes wrong on the way ends the task in a state that says so,
//! with its work still there.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Instant;

use cofferdam_git::{Discovery, GitError};
use cofferdam_ledger::{Claim, Durability, State, Task};
use cofferdam_sandbox::Starter;

use crate::admit::{Admitted, admit};
use crate::context::{Context, Told, What};
use crate::control::Control;
use crate::diagnose::Role;
use crate::error::IoContext;
use crate::facts::Facts;
use crate::files::snapshot::BASE;
use crate::job::{Job, relative_inputs, reopen};
use crate::limits::{self, InForce};
use crate::receipt::Receipt;
use crate::report::{Event, Reporter};
use crate::request::{Level, Request};
use crate::source::{Prepared, Source, TakenOut, of_source};
use crate::supervise::{self, Ended, Plan, Terminal};
use crate::{
    Dam, Error, ExitCode, boundary, config, diagnose, files, gate, input, land, once, series,
    settle,
};

/// Begins to look at the repository that `dir` is in, for [`run`]: it goes on while
/// the state directory is opened.
///
/// # Errors
/// [`Error::Git`] when git can't be started or asked.
pub fn look<'a>(dir: &'a Path, base: Option<&'a str>) -> Result<Discovery<'a>, Error> {
    Ok(Discovery::start(dir, base, config::FILE)?)
}

/// Runs one task to its end and gives its receipt.
///
/// # Errors
/// When the request makes no sense here, or something of ours fails; a task
/// that was begun has a record that says so.
pub fn run(
    dam: &mut Dam,
    dir: &Path,
    look: Discovery<'_>,
    mut request: Request,
    (control, terminal): (Control, Option<&dyn Terminal>),
    reporter: &dyn Reporter,
) -> Result<Receipt, Error> {
    settle::housekeeping(dam)?;
    let found = look.finish()?;
    once::complete(&mut request, dir, &found.repo.key());
    once(dam, &request, (&control, terminal), reporter, |dam, reporter| {
        admit(dam, dir, found.clone(), request.clone(), control.clone(), reporter)
    })
}

/// Runs one task that does not work on a repository, but on files; see [`run`].
///
/// # Errors
/// As [`run`].
pub fn run_on_files(
    dam: &mut Dam,
    dir: &Path,
    mut request: Request,
    (control, terminal): (Control, Option<&dyn Terminal>),
    reporter: &dyn Reporter,
) -> Result<Receipt, Error> {
    settle::housekeeping(dam)?;
    once::complete(&mut request, dir, "");
    once(dam, &request, (&control, terminal), reporter, |dam, reporter| {
        files::admit(dam, dir, request.clone(), control.clone(), reporter)
    })
}

/// Runs a task, or tells what came of the one that is first for its key.
fn once<S: Source>(
    dam: &mut Dam,
    request: &Request,
    (control, terminal): (&Control, Option<&dyn Terminal>),
    reporter: &dyn Reporter,
    admit: impl for<'d> Fn(&'d mut Dam, &'d dyn Reporter) -> Result<Admitted<'d, S>, Error>,
) -> Result<Receipt, Error> {
    loop {
        let first = match &request.key {
            Some(key) => dam.ledger.key_holder(key.as_ledger())?,
            None => None,
        };
        let (_turn, admitted) = match first {
            Some(first) => (None, Admitted::Earlier(Box::new(first))),
            None => (series::turn(dam, request, control, reporter)?, admit(dam, reporter)?),
        };
        match admitted {
            Admitted::Own(mut job, begun) => {
                let done = line(&mut job, begun, terminal);
                let done = finish(*job, done);
                let told = series::tell_if_stopped(dam, request, reporter);
                return done.and_then(|receipt| told.map(|()| receipt));
            }
            Admitted::Earlier(first) => {
                if let Some(receipt) = once::outcome(dam, &first, request, control, reporter)? {
                    return Ok(receipt);
                }
            }
        }
    }
}

/// The arrows.
fn line<S: Source>(
    job: &mut Job<'_, S>,
    begun: S::Begun,
    terminal: Option<&dyn Terminal>,
) -> Result<(), Error> {
    // It starts while the context is written.
    let end = terminal.map(|terminal| terminal.other_end()).transpose();
    let started = start(job, end.map_err(no_terminal)?)?;
    let context = prepare(job, begun)?;
    attempts(job, &context, started, Before { feedback: None, terminal })
}

/// First arrow: the inputs and the context.
fn prepare<S: Source>(job: &mut Job<'_, S>, begun: S::Begun) -> Result<Context, Error> {
    let since = Instant::now();
    job.advance(State::Preparing, None)?;
    take_inputs(job)?;
    let Prepared { context, base, warm } = S::prepare(job, begun)?;
    if let Some(isolation) = &mut job.facts.isolation {
        let boundary = boundary::of_level(job.request.level);
        isolation.top = Some(boundary.top(&context, &job.place).display().to_string());
    }
    job.took("prepared", since);
    job.reporter.report(Event::Started {
        task: job.id.to_string(),
        name: job.name.to_string(),
        base,
        target: job.target_text(),
        isolation: Facts::need("isolation", job.facts.isolation.as_ref())?.clone(),
        warm,
    });
    Ok(context)
}

pub(crate) fn no_terminal(error: std::io::Error) -> Error {
    Error::Internal(format!("no terminal: {error}"))
}

/// What an attempt begins with.
#[derive(Default)]
struct Before<'a> {
    /// What a check said about the attempt before.
    feedback: Option<Vec<u8>>,
    /// The terminal that a person sits at, if they do.
    terminal: Option<&'a dyn Terminal>,
}

/// Starts the process that will be the task, within its limits.
pub(crate) fn start<S>(
    job: &mut Job<'_, S>,
    terminal: Option<OwnedFd>,
) -> Result<(Starter, InForce), Error> {
    let starter = boundary::of_level(job.request.level).start(terminal)?;
    let (limits, required) = (&job.request.limits, &job.request.require);
    let limits = limits::apply(&starter, &job.dir, job.id.as_str(), limits, required)?;
    if let Some(isolation) = &mut job.facts.isolation {
        isolation.limits.clone_from(&limits.report);
    }
    Ok((starter, limits))
}

/// The arrows from the second on, again while a check rejects what comes of it and
/// the task has attempts left.
fn attempts<S: Source>(
    job: &mut Job<'_, S>,
    context: &Context,
    (mut starter, mut limits): (Starter, InForce),
    mut before: Before<'_>,
) -> Result<(), Error> {
    let last = job.facts.attempt + job.request.attempts;
    loop {
        job.facts.attempt += 1;
        let ran = run_command(job, context, starter, &limits, before)?;
        // Its groups go before another attempt needs them.
        drop(limits);
        if !ran || !take_out(job, context)? {
            return Ok(());
        }
        let publish = job.request.land;
        S::land(job, publish)?;
        // A check that the target fails as well is one that the task is to mend, perhaps.
        let said_no = job.facts.checks.last().is_some_and(|check| !check.passed());
        let again_helps = job.state == State::Rejected || (job.state == State::Ready && said_no);
        if !again_helps || job.facts.attempt >= last || job.interrupted() {
            return Ok(());
        }
        (starter, limits) = start(job, None)?;
        before = Before { feedback: Some(again(job, context)?), terminal: None };
    }
}

/// Makes a context ready for another attempt. Gives what was wrong with this one.
fn again<S: Source>(job: &mut Job<'_, S>, context: &Context) -> Result<Vec<u8>, Error> {
    let task = job.record()?;
    let why = task.reason.unwrap_or_default();
    let feedback = gate::feedback(job, &why)?;
    let number = job.facts.attempt;
    job.reporter.report(Event::Attempt { number: number + 1, why: why.clone() });
    let homes = boundary::of_level(job.request.level).homes(&job.place);
    context.renew(job.dam, homes)?;
    let kept = job.dir.path().join(format!("attempt-{number}.log"));
    match std::fs::rename(job.dir.log(), &kept) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).at("keep", kept);
        }
        _ => {}
    }
    job.facts.attempts.push(format!("{}: {why}", task.state));
    job.facts.forget_attempt();
    job.dam.ledger.note(&job.id, Facts::forgotten(), Durability::Normal)?;
    Ok(feedback)
}

/// Runs the command of a task again, in its context and with what it left there.
///
/// # Errors
/// [`Error::WrongState`] when there is no context to go on in.
pub fn retry(
    dam: &mut Dam,
    name: &str,
    request: impl FnOnce(&mut Request),
    control: Control,
    reporter: &dyn Reporter,
) -> Result<Receipt, Error> {
    settle::housekeeping(dam)?;
    let task = to_go_on_with(dam, name)?;
    of_source!(&task, retry_of(dam, &task, request, control, reporter))
}

fn retry_of<S: Source>(
    dam: &mut Dam,
    task: &Task,
    request: impl FnOnce(&mut Request),
    control: Control,
    reporter: &dyn Reporter,
) -> Result<Receipt, Error> {
    let asked: Request = serde_json::from_value(task.spec.clone())
        .map_err(|error| Error::Internal(format!("the request is broken: {error}")))?;
    let _turn = series::turn(dam, &asked, &control, reporter)?;
    let mut job = reopen::<S>(dam, task, control, reporter)?;
    job.source.can_land()?;
    claim_again(&mut job)?;
    request(&mut job.request);
    for name in job.request.env_names.clone() {
        if job.request.env.iter().any(|(known, _)| known.to_str() == Some(&name)) {
            continue;
        }
        let Some(value) = std::env::var_os(&name) else {
            let message = format!("the task had a variable `{name}`, whose value was not kept");
            return Err(Error::usage(message, "`--env NAME=VALUE` gives it again"));
        };
        job.request.env.push((name.into(), value));
    }
    let Some(context) = job.context()? else {
        return Err(wrong_state(task, "nothing of its context is left"));
    };
    let started = start(&mut job, None)?;
    let feedback = again(&mut job, &context)?;
    S::renew(&mut job)?;
    let before = Before { feedback: Some(feedback), terminal: None };
    let done = attempts(&mut job, &context, started, before);
    finish(job, done)
}

/// A task in whose context something can be run again.
pub(crate) fn to_go_on_with(dam: &Dam, name: &str) -> Result<Task, Error> {
    let task = dam.ledger.find(name)?.ok_or_else(|| Error::NoSuchTask(name.to_owned()))?;
    if task.settled {
        return Err(wrong_state(&task, "its context is gone"));
    }
    if task.state.is_live() {
        return Err(Error::Live(task.name.to_string()));
    }
    if !task.state.may_become(State::Running) {
        return Err(wrong_state(&task, "nothing that is done in it now could land"));
    }
    Ok(task)
}

/// Claims the key of a task that had one: another can have done the same since.
fn claim_again<S>(job: &mut Job<'_, S>) -> Result<(), Error> {
    let Some(key) = &job.request.key else { return Ok(()) };
    match job.dam.ledger.claim_key(&job.id, key.as_ledger())? {
        Claim::Own(_) => Ok(()),
        Claim::Earlier(other) => {
            let why = format!(
                "its key `{}` is that of `{}` now, which is {}",
                key.key, other.name, other.state
            );
            Err(wrong_state(&job.record()?, &why))
        }
    }
}

pub(crate) fn wrong_state(task: &Task, why: &str) -> Error {
    Error::WrongState { name: task.name.to_string(), state: task.state, why: why.into() }
}

/// Lands a task that waits for a person.
///
/// # Errors
/// [`Error::WrongState`] when there is nothing to land.
pub fn land_again(
    dam: &mut Dam,
    name: &str,
    request: impl FnOnce(&mut Request),
    control: Control,
    reporter: &dyn Reporter,
) -> Result<Receipt, Error> {
    settle::housekeeping(dam)?;
    let task = dam.ledger.find(name)?.ok_or_else(|| Error::NoSuchTask(name.to_owned()))?;
    if task.state == State::Landed || task.state == State::Empty {
        return Receipt::of(&task);
    }
    if task.settled {
        return Err(wrong_state(&task, "its context is gone, dropped or kept for its time"));
    }
    of_source!(&task, land_of(dam, &task, request, control, reporter))
}

fn land_of<S: Source>(
    dam: &mut Dam,
    task: &Task,
    request: impl FnOnce(&mut Request),
    control: Control,
    reporter: &dyn Reporter,
) -> Result<Receipt, Error> {
    if task.state == State::InDoubt {
        let why = "nobody knows whether it was published, so it is never published again";
        return Err(wrong_state(task, why));
    }
    let mut job = reopen::<S>(dam, task, control, reporter)?;
    claim_again(&mut job)?;
    request(&mut job.request);
    let done = match to_take_out(&job)? {
        Some(context) => take_out_again(&mut job, &context),
        None if job.facts.has_result() && job.state.may_become(State::Verifying) => Ok(true),
        None => return Err(wrong_state(&job.record()?, "there is no change set to land")),
    };
    let done = done.and_then(|go_on| if go_on { S::land(&mut job, true) } else { Ok(()) });
    finish(job, done)
}

/// The context of a task whose command did its work, and whose work could not be taken
/// out: on a full disk, because its supervisor died, or because of what a person has
/// mended since.
fn to_take_out<S: Source>(job: &Job<'_, S>) -> Result<Option<Context>, Error> {
    let done = job.facts.exit_code == Some(0) && !job.facts.has_result();
    if !done || job.request.read_only || !job.state.may_become(State::Running) {
        return Ok(None);
    }
    job.context()
}

fn take_out_again<S: Source>(job: &mut Job<'_, S>, context: &Context) -> Result<bool, Error> {
    job.advance(State::Running, None)?;
    take_out(job, context)
}

/// Ends a job: an error is recorded, a success is settled.
fn finish<S: Source>(mut job: Job<'_, S>, done: Result<(), Error>) -> Result<Receipt, Error> {
    let done = still_there(&mut job).and(done);
    if let Err(error) = done {
        // The first error is the one to be told.
        let _ = end_with(&mut job, &error);
        return Err(error.of_task(&job.name));
    }
    // What it came to is in the ledger, and stays so: what is left undone here is done
    // by the next collection.
    let written = job.write_receipt();
    let task = job.record()?;
    let mut left = Vec::new();
    if let Err(error) = settle::after(&mut job, &task) {
        left.push(format!(
            "its context can't be removed now, `dam gc` will: {}",
            land::chain(&error)
        ));
    }
    // The room for it can be what the context had.
    if let Err(error) = written.or_else(|_| job.write_receipt()) {
        let name = &job.name;
        left.push(format!("no receipt, but `dam show {name}` has it all: {}", land::chain(&error)));
    }
    for text in left {
        job.reporter.report(Event::Warning { text });
    }
    let task = job.record()?;
    Receipt::of(&task)
}

/// What everything else that went wrong comes from, when somebody has removed the
/// repository or our own directory meanwhile.
fn still_there<S: Source>(job: &mut Job<'_, S>) -> Result<(), Error> {
    S::still_there(job)?;
    // Of a directory that somebody has removed, what nobody but us can remove stays.
    if job.dir.lock().symlink_metadata().is_ok() {
        return Ok(());
    }
    let why = "it was removed while the task ran, and its record and its work with it".into();
    Err(Error::StateDir { path: job.dir.path().into(), why })
}

/// Records an error. A change set that was harvested is not lost by it: it waits
/// for another try. A context in which nothing has run goes at once.
pub(crate) fn end_with<S: Source>(job: &mut Job<'_, S>, error: &Error) -> Result<(), Error> {
    // An open publication is for recovery to judge: the target may have changed,
    // and then there is only the way on.
    let publication = job.dam.ledger.publication_of(&job.id)?;
    let undecided = publication.is_some_and(|publication| publication.state.is_open());
    if undecided || !job.state.is_live() {
        return Ok(());
    }
    // Later the context has what an earlier attempt or a person left.
    let nothing_ran = job.facts.attempts.is_empty()
        && job.facts.entered == 0
        && (matches!(job.state, State::Queued | State::Preparing)
            || (job.state == State::Running
                && matches!(
                    error,
                    Error::Isolation(_) | Error::ToolHome { .. } | Error::NoThread(_)
                )));
    let state = match error {
        _ if job.facts.has_result() => State::Ready,
        Error::Isolation(_)
        | Error::ToolHome { .. }
        | Error::NoThread(_)
        | Error::LimitNotEnforced { .. }
        | Error::Git(GitError::Refused(_))
        | Error::Usage { .. }
        | Error::Config { .. } => State::Failed,
        Error::Git(GitError::Gone(_)) => State::Failed,
        Error::Git(error) if error.is_denied() => State::Failed,
        _ if error.exit_code() == ExitCode::Usage => State::Failed,
        _ if error.is_for_want_of_room() || error.limit().is_some() => State::Failed,
        _ => State::Broken,
    };
    job.end(state, &land::chain(error))?;
    // The receipt can be made again from the ledger; on a full disk it finds room when
    // the context is gone.
    let written = job.write_receipt();
    if nothing_ran {
        settle::remove(job)?;
    }
    written.or_else(|_| job.write_receipt()).map(drop)
}

/// Copies the files that are inputs, and lets all inputs appear.
fn take_inputs<S>(job: &mut Job<'_, S>) -> Result<(), Error> {
    if job.request.inputs.is_empty() {
        return Ok(());
    }
    let dir = job.dir.inputs();
    std::fs::create_dir(&dir).at("make", &dir)?;
    for (number, input) in job.request.inputs.iter().enumerate() {
        let copy = dir.join(number.to_string());
        let report = input::take(input, &copy)?;
        if report.kind != input::Kind::Directory {
            let mode = std::fs::Permissions::from_mode(0o555);
            std::fs::set_permissions(&copy, mode).at("set the mode of", &copy)?;
        }
        job.facts.inputs.push(report);
    }
    let dir = relative_inputs(job.dam, &job.dir);
    job.place.show_inputs(&job.facts.inputs, &dir);
    Ok(())
}

/// Second arrow: the command, in its context. Whether to go on.
fn run_command<S: Source>(
    job: &mut Job<'_, S>,
    context: &Context,
    starter: Starter,
    limits: &InForce,
    Before { feedback, terminal }: Before<'_>,
) -> Result<bool, Error> {
    let begun = Instant::now();
    if job.interrupted() {
        // From an end that another attempt was to follow there is no way on.
        if job.state.is_live() {
            job.end(State::Cancelled, "interrupted before it started")?;
        }
        return Ok(false);
    }
    let cwd = job.facts.cwd.as_deref().filter(|cwd| cwd_exists(job, cwd));
    let cwd = cwd.unwrap_or(&job.place.top).to_owned();
    let boundary = boundary::of_level(job.request.level);
    let told = told(job, context, "task", feedback);
    let what = What {
        command: job.request.argv.clone(),
        cwd: &cwd,
        env: &job.request.env,
        network: job.request.network,
        wall: job.request.wall,
        limits: limits.rest,
        terminal: terminal.is_some(),
    };
    let spec = boundary.spec(context, &job.place, what, &told)?;
    job.advance(State::Running, None)?;
    let timeout = job.request.timeout;
    let log = job.dir.log();
    let output = job.request.output.unwrap_or(supervise::LOG_CAP);
    let (dir, id) = (job.dir.clone(), job.id.clone());
    let plan = Plan {
        spec: &spec,
        context: &context.dir,
        log: &log,
        timeout,
        output,
        limits,
        end_processes: &|| boundary.end_processes(&dir, id.as_str()),
        terminal,
    };
    let run =
        S::beside(job, |job| supervise::run(starter, &plan, &job.control, Some(job.reporter)))
            .map_err(|error| job.place.tools.blame(error))?;
    job.took("ran", begun);
    if run.left_running > 0 {
        let number = run.left_running;
        let text = format!(
            "{number} process{} left running by the command {} ended",
            if number == 1 { "" } else { "es" },
            if number == 1 { "was" } else { "were" }
        );
        job.reporter.report(Event::Warning { text });
    }
    if let Some(text) = run.log_lost {
        job.reporter.report(Event::Warning { text });
    }
    job.diagnosed(diagnose::failure(job, context, Role::Command, &plan, run.ended));
    let failed = |job: &mut Job<'_, S>, state: State, why: String| {
        job.end(state, &why)?;
        Ok(false)
    };
    match run.ended {
        Ended::Exited { code, signal } => {
            job.facts.exit_code = code;
            job.facts.signal = signal;
            match (code, signal) {
                (Some(0), _) => {
                    job.told("ran", begun, "exit 0".into());
                    Ok(true)
                }
                (Some(code), _) => {
                    failed(job, State::Failed, format!("the command ended with exit code {code}"))
                }
                (None, signal) => {
                    let signal = signal.unwrap_or_default();
                    failed(job, State::Failed, format!("the command was ended by signal {signal}"))
                }
            }
        }
        Ended::NotStarted(errno) => {
            let why = not_started(&job.request, errno);
            failed(job, State::Failed, why)
        }
        Ended::OutOfMemory => {
            let most = limits::size(job.request.limits.memory.unwrap_or_default());
            failed(job, State::Failed, format!("memory limit: it used more than {most}"))
        }
        Ended::OutOfDisk => {
            let most = limits::size(job.request.limits.disk.unwrap_or_default());
            failed(job, State::Failed, format!("disk limit: it had more than {most} on disk"))
        }
        Ended::TimedOut => {
            let limit = humantime::format_duration(timeout.unwrap_or_default()).to_string();
            failed(job, State::TimedOut, format!("the command was not done within {limit}"))
        }
        Ended::Interrupted => failed(job, State::Cancelled, "interrupted".into()),
        Ended::Killed => failed(job, State::Failed, killed(job.request.level)),
    }
}

fn killed(level: Level) -> String {
    match level {
        Level::Sandbox => "the command was killed from outside".into(),
        Level::Worktree => "its first process was killed: what the command started and does not \
                            have `DAM_TASK` in its environment may still run"
            .into(),
    }
}

/// What a command in the task's own context is told.
pub(crate) fn told<S>(
    job: &Job<'_, S>,
    context: &Context,
    role: &str,
    feedback: Option<Vec<u8>>,
) -> Told {
    let carried: Vec<String> =
        job.request.carry.iter().map(|path| path.display().to_string()).collect();
    Told {
        task: job.id.to_string(),
        attempt: job.facts.attempt,
        lessons: job.lessons_inside(),
        feedback,
        context: serde_json::json!({
            "version": 1,
            "task": job.id,
            "name": job.name,
            "role": role,
            "base": job.facts.base,
            "target": job.target_text(),
            "level": job.request.level,
            "top": boundary::of_level(job.request.level)
                .top(context, &job.place)
                .display()
                .to_string(),
            "network": job.request.network,
            "wall": job.request.wall,
            "read_only": job.request.read_only,
            "carried": carried,
            "inputs": job.facts.inputs.iter().map(|input| &input.dest).collect::<Vec<_>>(),
            "timeout_s": job.request.timeout.map(|timeout| timeout.as_secs()),
        }),
    }
}

/// Whether the caller's directory exists in the base.
fn cwd_exists<S>(job: &Job<'_, S>, cwd: &Path) -> bool {
    let Ok(below) = cwd.strip_prefix(&job.place.top) else { return false };
    let layers = job.facts.stack.iter().flat_map(|stack| &stack.ids);
    below.as_os_str().is_empty()
        || job.dir.path().join(BASE).join(below).is_dir()
        || layers.into_iter().any(|id| job.dam.layers.tree(id).join(below).is_dir())
}

fn not_started(request: &Request, errno: i32) -> String {
    let command =
        request.argv.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let error = std::io::Error::from_raw_os_error(errno);
    if error.kind() != std::io::ErrorKind::NotFound {
        return format!("`{command}` could not be started: {error}");
    }
    format!("`{command}` was not found")
}

/// Third arrow: the result. Whether there is one to land.
fn take_out<S: Source>(job: &mut Job<'_, S>, context: &Context) -> Result<bool, Error> {
    let begun = Instant::now();
    job.advance(State::Harvesting, None)?;
    if job.request.read_only {
        job.end(State::Empty, "the task was read-only")?;
        return Ok(false);
    }
    let taken = S::take_out(job, context)?;
    job.took("harvested", begun);
    if let TakenOut::End(state, why) = taken {
        job.end(state, &why)?;
        return Ok(false);
    }
    job.note()?;
    job.told("harvested", begun, S::in_words(job));
    Ok(true)
}

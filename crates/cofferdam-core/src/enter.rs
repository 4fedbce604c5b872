//! A person in a task's context.
//!
//! They find what the task left, with its network and its limits, and what they change
//! is part of the change set. So what checks said before is void, whatever they did,
//! and a task whose change set is another one afterwards waits for `dam land`. One that
//! was looked at and no more is in the state it was in; one that was ready waits to be
//! verified anew.

use std::ffi::OsString;
use std::path::Path;

use cofferdam_ledger::{Durability, State, Task};

use crate::context::{Context, What};
use crate::control::Control;
use crate::facts::Facts;
use crate::job::{Job, reopen};
use crate::receipt::Receipt;
use crate::report::{Event, Reporter};
use crate::source::{Source, of_source};
use crate::supervise::{self, Ended, Plan, Terminal};
use crate::task::{end_with, no_terminal, start, to_go_on_with, told, wrong_state};
use crate::{Dam, Error, boundary, settle};

/// What a person does in a context.
pub struct Visit<'a> {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Further variables.
    pub env: Vec<(OsString, OsString)>,
    /// Where they are, to begin there when it is in the repository.
    pub cwd: &'a Path,
    /// The terminal that they sit at, if they do.
    pub terminal: Option<&'a dyn Terminal>,
}

/// Runs a command in the context of a task that has come to an end. Gives how it ended,
/// and the task.
///
/// # Errors
/// [`Error::WrongState`] when there is no context to enter, [`Error::Live`].
pub fn enter(
    dam: &mut Dam,
    name: &str,
    visit: Visit<'_>,
    control: Control,
    reporter: &dyn Reporter,
) -> Result<(Ended, Receipt), Error> {
    settle::housekeeping(dam)?;
    let task = to_go_on_with(dam, name)?;
    of_source!(&task, enter_of(dam, &task, visit, control, reporter))
}

fn enter_of<S: Source>(
    dam: &mut Dam,
    task: &Task,
    visit: Visit<'_>,
    control: Control,
    reporter: &dyn Reporter,
) -> Result<(Ended, Receipt), Error> {
    let mut job = reopen::<S>(dam, task, control, reporter)?;
    // Below the lock: somebody may have been faster.
    let task = job.record()?;
    let Some(context) = job.context()? else {
        return Err(wrong_state(&task, "nothing of its context is left"));
    };
    if !job.facts.has_result() {
        // To be compared with. What can't be read now can't be read then.
        let _ = S::result(&mut job, &context);
    }
    let before = (task.state, task.reason.unwrap_or_default(), job.facts.clone());
    let done = visited(&mut job, &context, visit, before.clone());
    let ended = match done {
        Ok(ended) => ended,
        Err(error) => {
            // The first error is the one to be told.
            let _ = match error {
                Error::Isolation(_) | Error::ToolHome { .. } => nobody_was_in(&mut job, before),
                _ => end_with(&mut job, &error),
            };
            return Err(error);
        }
    };
    let task = job.write_receipt()?;
    Ok((ended, Receipt::of(&task)?))
}

/// Brings a task to an end whose visitor's supervisor died. Whether it can be: when
/// there is nothing to be verified, it is as any task whose supervisor died.
pub(crate) fn pick_up<S: Source>(job: &mut Job<'_, S>) -> Result<bool, Error> {
    job.facts.visited = false;
    let Some(context) = job.context()? else { return Ok(false) };
    if !S::result(job, &context)? {
        return Ok(false);
    }
    if job.state == State::Running {
        job.advance(State::Harvesting, None)?;
    }
    job.end(
        State::Ready,
        "somebody was in its context when their `dam` died: it has to be verified anew",
    )?;
    Ok(true)
}

/// Nothing has run: the task is what it was.
fn nobody_was_in<S>(
    job: &mut Job<'_, S>,
    (state, reason, facts): (State, String, Facts),
) -> Result<(), Error> {
    if job.state == State::Running {
        job.facts = facts;
        job.advance(State::Harvesting, None)?;
        job.end(state, &reason)?;
        job.write_receipt()?;
    }
    Ok(())
}

fn visited<S: Source>(
    job: &mut Job<'_, S>,
    context: &Context,
    visit: Visit<'_>,
    (state, reason, facts): (State, String, Facts),
) -> Result<Ended, Error> {
    let boundary = boundary::of_level(job.request.level);
    context.renew(job.dam, boundary.homes(&job.place))?;
    let (starter, limits) = {
        let end = visit.terminal.map(|terminal| terminal.other_end()).transpose();
        let end = end.map_err(no_terminal)?;
        start(job, end)?
    };
    job.facts.forget_attempt();
    job.facts.entered += 1;
    job.facts.visited = true;
    job.facts.message.clone_from(&facts.message);
    job.dam.ledger.note(&job.id, Facts::forgotten(), Durability::Normal)?;
    job.advance(State::Running, None)?;
    let cwd = std::fs::canonicalize(visit.cwd).unwrap_or_else(|_| visit.cwd.to_owned());
    let what = What {
        command: visit.command,
        cwd: if cwd.starts_with(&job.place.top) { &cwd } else { &job.place.top },
        env: &visit.env,
        network: job.request.network,
        wall: job.request.wall,
        limits: limits.rest,
        terminal: visit.terminal.is_some(),
    };
    let told = told(job, context, "person", None);
    let spec = boundary.spec(context, &job.place, what, &told)?;
    let plan = Plan {
        spec: &spec,
        context: &context.dir,
        log: &job.dir.path().join("enter.log"),
        timeout: None,
        output: job.request.output.unwrap_or(supervise::LOG_CAP),
        limits: &limits,
        end_processes: &|| boundary.end_processes(&job.dir, job.id.as_str()),
        terminal: visit.terminal,
    };
    let run = supervise::run(starter, &plan, &job.control, Some(job.reporter))
        .map_err(|error| job.place.tools.blame(error))?;
    if let Some(text) = run.log_lost {
        job.reporter.report(Event::Warning { text });
    }
    job.facts.visited = false;
    job.advance(State::Harvesting, None)?;
    let some = !job.request.read_only && S::result(job, context)?;
    job.tell_left_out(job.facts.left_out.clone());
    let as_before = job.facts.same_result(&facts);
    if as_before && state != State::Ready {
        job.facts = Facts { entered: job.facts.entered, ..facts };
        job.end(state, &reason)?;
        return Ok(run.ended);
    }
    if some {
        job.end(State::Ready, "somebody was in its context: it has to be verified anew")?;
    } else {
        job.end(State::Empty, "nothing is changed any more since somebody was in it")?;
    }
    Ok(run.ended)
}

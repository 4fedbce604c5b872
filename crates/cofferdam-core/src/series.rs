//! Series: a loop that starts the same work again and again.
//!
//! Each of its runs is a task that names it. Two things go wrong with loops that nobody
//! watches, and this is against both: a run that begins while the one before is at work
//! ([`Overlap`]), and one that fails every time and goes on for ever (`stop_after`).
//!
//! Whether it has stopped is not written down anywhere: it is read from the ends of its
//! runs, so no crash can make it wrong, and a run whose supervisor was killed counts as
//! the failure that it is.

use cofferdam_ledger::{Filter, State, Task, TaskName};
use cofferdam_tree::Lock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::Control;
use crate::land::lock_name;
use crate::once::patiently;
use crate::reconcile::reconcile;
use crate::report::{Event, Reporter};
use crate::request::Request;
use crate::{Dam, Error};

/// What is done when another run of the series is at work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// This run does not begin.
    #[default]
    Skip,
    /// It waits for the other one's end; those that wait begin in the order of coming.
    Wait,
    /// It begins all the same.
    Allow,
}

/// The series of a run, as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfSeries {
    /// Its name.
    pub name: TaskName,
    /// What is done when another run is at work.
    #[serde(default)]
    pub overlap: Overlap,
    /// How many failures in a row stop it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_after: Option<u32>,
}

/// How a series is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Standing {
    /// Its name.
    pub series: String,
    /// The run that is at work, the last one when there are several.
    pub at_work: Option<String>,
    /// The last run that has ended.
    pub last: Option<String>,
    /// Its state.
    pub last_state: Option<String>,
    /// When that ended, milliseconds since 1970.
    pub last_ms: Option<i64>,
    /// How many runs in a row have failed, up to the last one.
    pub failures: u32,
    /// How many would stop it.
    pub stop_after: Option<u32>,
    /// Why it has stopped, if it has.
    pub stopped: Option<String>,
}

/// How many of the newest runs are looked at, however many there are: as many as a
/// `stop_after` can be, and as many that say nothing.
const LOOKED_AT: usize = 2 * MOST_FAILURES as usize;
/// The greatest `stop_after`.
pub const MOST_FAILURES: u32 = 100;

/// What an end of a run says about its series.
enum Says {
    Failure,
    Success,
    /// Nothing: a person ended it, or has to decide.
    Nothing,
}

fn says(state: State) -> Says {
    match state {
        State::Failed
        | State::Rejected
        | State::TimedOut
        | State::Conflicted
        | State::Broken
        | State::InDoubt => Says::Failure,
        State::Landed | State::Empty | State::Superseded => Says::Success,
        _ => Says::Nothing,
    }
}

/// How a series is. `stop_after` is what the run says that is to begin; without one, what
/// the newest run said that said anything counts.
fn standing(dam: &Dam, series: &str, stop_after: Option<u32>) -> Result<Standing, Error> {
    let resumed = dam.ledger.resumed(series)?;
    let filter = Filter { series: Some(series), limit: Some(LOOKED_AT), ..Filter::default() };
    let tasks = dam.ledger.tasks(filter)?;
    let said = |task: &Task| {
        let request: Result<Request, _> = serde_json::from_value(task.spec.clone());
        request.ok()?.series?.stop_after
    };
    let stop_after = stop_after.or_else(|| tasks.iter().find_map(said));
    let last = tasks.iter().find(|task| task.state.is_end());
    let mut failed = Vec::new();
    for task in tasks.iter().filter(|task| task.seq > resumed) {
        match says(task.state) {
            Says::Failure => failed.push(task),
            Says::Success => break,
            Says::Nothing => {}
        }
    }
    let failures = u32::try_from(failed.len()).unwrap_or(u32::MAX);
    let stopped = match (stop_after, failed.first()) {
        (Some(most), Some(newest)) if failures >= most => Some(format!(
            "{failures} {} in a row; the last, `{}`, is {}{}",
            if failures == 1 { "failure" } else { "failures" },
            newest.name,
            newest.state,
            newest.reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default()
        )),
        _ => None,
    };
    Ok(Standing {
        series: series.to_owned(),
        at_work: tasks.iter().find(|task| task.state.is_live()).map(|task| task.name.to_string()),
        last: last.map(|task| task.name.to_string()),
        last_state: last.map(|task| task.state.to_string()),
        last_ms: last.map(|task| task.updated_ms),
        failures,
        stop_after,
        stopped,
    })
}

/// All series that the record has.
///
/// # Errors
/// When the ledger can't be read.
pub fn all(dam: &mut Dam) -> Result<Vec<Standing>, Error> {
    reconcile(dam)?;
    let names = dam.ledger.series()?;
    names.iter().map(|name| standing(dam, name, None)).collect()
}

/// Lets a series go on that has stopped.
///
/// # Errors
/// [`Error::NoSuchSeries`].
pub fn resume(dam: &mut Dam, series: &str) -> Result<Standing, Error> {
    reconcile(dam)?;
    if dam.ledger.series()?.iter().all(|known| known != series) {
        return Err(Error::NoSuchSeries(series.to_owned()));
    }
    dam.ledger.resume(series)?;
    standing(dam, series, None)
}

/// A run's turn: held until its end.
pub(crate) struct Turn {
    _lock: Option<Lock>,
}

/// Takes the turn of a run that is about to begin; `None` when it is of no series.
///
/// # Errors
/// [`Error::SeriesBusy`], [`Error::SeriesStopped`], [`Error::Interrupted`].
pub(crate) fn turn(
    dam: &mut Dam,
    request: &Request,
    control: &Control,
    reporter: &dyn Reporter,
) -> Result<Option<Turn>, Error> {
    let Some(series) = &request.series else { return Ok(None) };
    let lock = lock(dam, series, control, reporter)?;
    // One that was waited for can have been the last straw, or have been killed.
    reconcile(dam)?;
    if let Some(why) = standing(dam, series.name.as_ref(), series.stop_after)?.stopped {
        return Err(Error::SeriesStopped { series: series.name.clone(), why });
    }
    Ok(Some(Turn { _lock: lock }))
}

fn lock(
    dam: &Dam,
    series: &OfSeries,
    control: &Control,
    reporter: &dyn Reporter,
) -> Result<Option<Lock>, Error> {
    let path = dam.landing_lock(&lock_name("series", series.name.as_ref().as_bytes()));
    if series.overlap == Overlap::Allow {
        // Others that mind see it; beside one that minds it has none.
        return Ok(Lock::try_shared(&path)?);
    }
    if let Some(lock) = Lock::try_exclusive(&path)? {
        return Ok(Some(lock));
    }
    let at_work = standing(dam, series.name.as_ref(), None)?.at_work;
    if series.overlap == Overlap::Skip {
        return Err(Error::SeriesBusy { series: series.name.clone(), at_work });
    }
    reporter.report(Event::Waiting {
        what: format!("the run of the series `{}` that is at work", series.name),
        holder: at_work.unwrap_or_default(),
    });
    match patiently(move || Lock::exclusive(&path, |_| {}), || control.interrupts() > 0)? {
        Some(lock) => Ok(Some(lock)),
        None => Err(Error::Interrupted),
    }
}

/// Tells when a run was the one that stopped its series.
pub(crate) fn tell_if_stopped(
    dam: &Dam,
    request: &Request,
    reporter: &dyn Reporter,
) -> Result<(), Error> {
    let Some(series) = &request.series else { return Ok(()) };
    let name = &series.name;
    if let Some(why) = standing(dam, name.as_ref(), series.stop_after)?.stopped {
        let text =
            format!("the series `{name}` has stopped: {why}; `dam resume {name}` lets it go on");
        reporter.report(Event::Warning { text });
    }
    Ok(())
}

/// A run of the same series that was begun later and has come to its result already.
pub(crate) fn newer(dam: &Dam, task: &Task) -> Result<Option<Task>, Error> {
    let Some(series) = &task.series else { return Ok(None) };
    let filter = Filter { series: Some(series), after_seq: Some(task.seq), ..Filter::default() };
    let newer = dam.ledger.tasks(filter)?;
    Ok(newer.into_iter().find(|task| matches!(task.state, State::Landed | State::Empty)))
}

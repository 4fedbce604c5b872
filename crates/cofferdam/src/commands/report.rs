//! `dam report`.

use cofferdam_core::overview::{self, DiskReport, Overview, ReportedTask};
use cofferdam_core::receipt::Receipt;
use cofferdam_core::{Error, ExitCode, State};
use jiff::civil::{DateTime, Time};
use jiff::{Timestamp, ZonedDateTime};

use crate::args::{Format, Report};
use crate::output::{self, BOLD, DIM};
use crate::slow::Slow;
use crate::table;

/// What is told where nothing is said.
const DAY_MS: i64 = 24 * 3600 * 1000;

/// The order in which a person reads it, and what each part is called.
const PARTS: &[(&str, &[State])] = &[
    ("waits for you", &[State::Ready, State::InDoubt]),
    ("rejected", &[State::Rejected]),
    ("conflicted", &[State::Conflicted, State::Superseded]),
    ("failed", &[State::Failed, State::TimedOut, State::Broken]),
    ("landed", &[State::Landed]),
    ("nothing changed", &[State::Empty]),
    ("cancelled", &[State::Cancelled]),
    (
        "at work",
        &[
            State::Queued,
            State::Preparing,
            State::Running,
            State::Harvesting,
            State::Verifying,
            State::Publishing,
        ],
    ),
];

/// Prints what came of the tasks since a moment.
pub fn report(args: &Report, format: Format) -> Result<ExitCode, Error> {
    let now = ZonedDateTime::now();
    let since = match &args.since {
        Some(text) => moment(text, &now)?,
        None => now.timestamp().as_millisecond() - DAY_MS,
    };
    let mut dam = super::open()?;
    let slow = Slow::begin("measuring");
    let overview = overview::since(&mut dam, since)?;
    drop(slow);
    match format {
        Format::Text => output::text(&page(&overview, &now)),
        Format::Json => output::json(&overview),
        Format::Jsonl => overview.tasks.iter().for_each(output::json_line),
    }
    Ok(ExitCode::Done)
}

/// The moment that a person means, in milliseconds since 1970: how long ago, the last
/// time that it was this late, or a date.
fn moment(text: &str, now: &ZonedDateTime) -> Result<i64, Error> {
    let local = |date: DateTime| {
        let zoned = date.to_zoned_datetime(now.time_zone().clone());
        zoned.ok().map(|zoned| zoned.timestamp().as_millisecond())
    };
    let clock = |time: Time| {
        let today = now.date().to_datetime(time);
        let last = if today > now.datetime() { now.date().yesterday().ok()? } else { now.date() };
        local(last.to_datetime(time))
    };
    if let Ok(ago) = humantime::parse_duration(text) {
        let ago = i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
        return Ok(now.timestamp().as_millisecond().saturating_sub(ago));
    }
    let found = text
        .parse::<Timestamp>()
        .ok()
        .map(Timestamp::as_millisecond)
        .or_else(|| Time::strptime("%H:%M", text).ok().and_then(clock))
        .or_else(|| text.parse::<DateTime>().ok().and_then(local));
    found.ok_or_else(|| Error::Usage {
        message: format!("`--since {text}` is no time"),
        hint: Some("`8h` ago, `18:00` as it was last, or `2026-11-29 18:00`".into()),
    })
}

/// All of it, at most 80 columns wide.
fn page(overview: &Overview, now: &ZonedDateTime) -> String {
    let since = Timestamp::from_millisecond(overview.since_ms).unwrap_or_default();
    let since =
        since.to_zoned_datetime(now.time_zone().clone()).strftime("%Y-%m-%d %H:%M").to_string();
    let ago = table::age(overview.since_ms, overview.until_ms);
    let mut text = format!("since {since} ({ago})\n{}\n", counted(overview));
    for (title, states) in PARTS {
        let of_part = |task: &&ReportedTask| {
            // What was dropped waits for nobody.
            !task.dropped && task.receipt.state().is_some_and(|state| states.contains(&state))
        };
        let tasks: Vec<&ReportedTask> = overview.tasks.iter().filter(of_part).collect();
        if tasks.is_empty() {
            continue;
        }
        let style = super::style_of(states.first().copied());
        text.push_str(&format!("\n{style}{title}{style:#}\n"));
        let width = tasks.iter().map(|task| task.receipt.name.chars().count()).max();
        let width = width.unwrap_or_default().min(28);
        for task in tasks {
            text.push_str(&entry(task, width, overview.until_ms));
        }
    }
    text.push_str(&format!("\n{}\n", on_disk(&overview.disk)));
    text
}

/// One task: what became of it, what failed in its own words, and what can be done.
fn entry(task: &ReportedTask, width: usize, now_ms: i64) -> String {
    const COLUMNS: usize = 80;
    let receipt = &task.receipt;
    let name = table::cut(&receipt.name, width);
    let age = table::age(task.at_ms, now_ms);
    let head = format!("  {BOLD}{name:<width$}{BOLD:#}  {age:>6}  ");
    let indent = width + 12;
    let what = table::cut(&outcome(receipt), COLUMNS.saturating_sub(indent).max(20));
    let mut text = format!("{head}{what}\n");
    let mut below = |line: &str| {
        let line = table::cut(line, COLUMNS.saturating_sub(indent).max(20));
        text.push_str(&format!("{:indent$}{DIM}{line}{DIM:#}\n", ""));
    };
    if let Some(said) = &task.said {
        below(said);
    }
    if let Some(next) = super::next_step(receipt).filter(|_| receipt.state() == Some(State::Ready))
    {
        below(&next);
    }
    text
}

fn outcome(receipt: &Receipt) -> String {
    let state = receipt.state();
    match (&receipt.landed, &receipt.reason) {
        (Some(commit), _) if state == Some(State::Landed) => {
            let target = receipt.target.as_deref().unwrap_or_default();
            let short = &commit[..9.min(commit.len())];
            let files = receipt.changed.map_or(0, |of| of.added + of.modified + of.deleted);
            format!("{target} at {short}, {files} {}", if files == 1 { "file" } else { "files" })
        }
        (_, Some(reason)) => reason.clone(),
        (_, None) => receipt.command.clone(),
    }
}

/// How many tasks came to what.
fn counted(overview: &Overview) -> String {
    if overview.tasks.is_empty() {
        return "no task".into();
    }
    let count = |states: &[State]| {
        let all = states.iter().filter_map(|state| overview.counts.get(state.as_str()));
        let dropped = overview.tasks.iter().filter(|task| task.dropped);
        let dropped = dropped.filter_map(|task| task.receipt.state());
        all.sum::<u64>() - dropped.filter(|state| states.contains(state)).count() as u64
    };
    let mut parts: Vec<String> = PARTS
        .iter()
        .map(|(title, states)| (count(states), title))
        .filter(|(number, _)| *number > 0)
        .map(|(number, title)| match *title {
            "waits for you" if number == 1 => "1 waits for you".to_owned(),
            "waits for you" => format!("{number} wait for you"),
            "nothing changed" => format!("{number} changed nothing"),
            title => format!("{number} {title}"),
        })
        .collect();
    match overview.tasks.iter().filter(|task| task.dropped).count() {
        0 => {}
        dropped => parts.push(format!("{dropped} dropped")),
    }
    parts.join(", ")
}

fn on_disk(disk: &DiskReport) -> String {
    let size = |bytes: u64| indicatif::HumanBytes(bytes).to_string();
    format!(
        "on disk: tasks {}, layers {}, git {}; {} free",
        size(disk.tasks_bytes),
        size(disk.layers_bytes),
        size(disk.stores_bytes),
        size(disk.free_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_what_a_person_means() {
        let now: ZonedDateTime = "2026-11-30T09:30[Europe/Berlin]".parse().expect("a time");
        for (text, wanted) in [
            ("8h", "2026-11-30T01:30"),
            ("2days 1h", "2026-11-28T08:30"),
            ("09:30", "2026-11-30T09:30"),
            ("9:00", "2026-11-30T09:00"),
            ("18:00", "2026-11-29T18:00"),
            ("2026-11-29", "2026-11-29T00:00"),
            ("2026-11-29 18:00", "2026-11-29T18:00"),
            ("2026-11-29T18:00", "2026-11-29T18:00"),
            ("2026-11-29T17:00:00Z", "2026-11-29T18:00"),
        ] {
            let wanted: ZonedDateTime = format!("{wanted}[Europe/Berlin]").parse().expect("a time");
            let found = moment(text, &now).expect(text);
            assert_eq!(found, wanted.timestamp().as_millisecond(), "{text}");
        }
        for text in ["", "soon", "25:00", "18:60", "2026-13-01", "-3h"] {
            let error = moment(text, &now).expect_err(text);
            assert!(error.to_string().contains("is no time"), "{error}");
        }
    }
}

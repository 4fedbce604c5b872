//! One file per command.

mod attempt;
mod demo;
mod detach;
mod doctor;
mod each;
mod enter;
mod gc;
mod land;
mod list;
mod log;
mod meta;
mod report;
mod retry;
mod run;
mod schedule;
mod series;
mod setup;
mod show;
mod stop;
mod trust;
mod undo;

use std::io::IsTerminal;
use std::path::PathBuf;

use cofferdam_core::land::NO_CHECK_GIVEN;
use cofferdam_core::receipt::Receipt;
use cofferdam_core::{Dam, Error, ExitCode, State};

use crate::args::{Args, Command, Format, Schedule};
use crate::output::{self, BAD, BOLD, DIM, GOOD, WARN};
use crate::table;

/// Does what was asked.
pub fn dispatch(args: Args) -> Result<ExitCode, Error> {
    let format = args.format;
    match args.command {
        Command::Run(run) => run::run(*run, &here()?, format),
        Command::Undo(args) => undo::undo(&args, format),
        Command::Try(args) => attempt::attempt(&args, &here()?, format),
        Command::List(list) => list::list(&list, format),
        Command::Report(args) => report::report(&args, format),
        Command::Show(name) => show::show(&name.name, format),
        Command::Diff(diff) => show::diff(&diff),
        Command::Log(log) => log::log(&log),
        Command::Attach(name) => detach::attach(&name.name, format),
        Command::Enter(enter) => enter::enter(enter, format),
        Command::Retry(retry) => retry::retry(retry, format),
        Command::Land(land) => land::land(land, format),
        Command::Resume(args) => series::resume(&args, format),
        Command::Drop(names) => stop::drop(&names.names, format),
        Command::Stop(name) => stop::stop(&name.name, format),
        Command::Wait(name) => stop::wait(&name.name, format),
        Command::Gc(gc) => gc::gc(&gc, format),
        Command::Schedule(Schedule::Print(args)) => schedule::print(&args, &here()?, format),
        Command::Doctor(args) => doctor::doctor(&args.command, format),
        Command::Trust(args) => trust::trust(&args, format),
        Command::Setup(args) => setup::setup(&args, format),
        Command::Demo(demo) => demo::demo(&demo),
        Command::Completion { shell } => meta::completion(shell),
        Command::Man { dir } => meta::man(dir.as_deref()),
        Command::Schema { name } => meta::schema(&name),
    }
}

/// Where the caller is.
fn here() -> Result<PathBuf, Error> {
    std::env::current_dir().map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::Usage {
            message: "the current directory is not there any more".into(),
            hint: Some("change into the repository that the work is for".into()),
        },
        _ => Error::Io { step: "find the current directory", path: ".".into(), source },
    })
}

/// What the person at the terminal answers; nothing when there is none to be asked.
fn agreed(question: &str, format: Format) -> Option<bool> {
    if format != Format::Text || !std::io::stdin().is_terminal() {
        return None;
    }
    output::note(&format!("{BOLD}{question} [y/N]{BOLD:#} "));
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    Some(read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn open() -> Result<Dam, Error> {
    Dam::open(&Dam::default_dir()?)
}

/// The last words of a run or a landing, and its exit code.
fn conclude(receipt: &Receipt, format: Format) -> ExitCode {
    match format {
        Format::Json => output::json(receipt),
        Format::Jsonl => {
            output::json_line(&serde_json::json!({ "event": "ended", "receipt": receipt }))
        }
        Format::Text => {
            let state = receipt.state();
            let style = style_of(state);
            let reason = receipt
                .reason
                .as_deref()
                .map(|why| format!(": {}", table::plain(why)))
                .unwrap_or_default();
            let mut text = format!(
                "{style}{}{style:#} {BOLD}{}{BOLD:#}{reason}\n",
                receipt.state, receipt.name
            );
            for found in &receipt.diagnosis {
                let (why, hint) = (table::plain(&found.message), table::plain(&found.hint));
                text.push_str(&format!("  {DIM}because:{DIM:#} {why}\n"));
                text.push_str(&format!("  {BOLD}hint:{BOLD:#} {hint}\n"));
            }
            if let Some(next) = next_step(receipt) {
                text.push_str(&format!("  {DIM}{next}{DIM:#}\n"));
            }
            output::note(&text);
        }
    }
    state_code(receipt)
}

fn state_code(receipt: &Receipt) -> ExitCode {
    receipt.state().map_or(ExitCode::Internal, ExitCode::of_state)
}

fn style_of(state: Option<State>) -> anstyle::Style {
    match state {
        Some(State::Landed | State::Empty) => GOOD,
        Some(State::Ready | State::Superseded) => WARN,
        Some(state) if state.is_live() => BOLD,
        _ => BAD,
    }
}

/// What a person would do now.
fn next_step(receipt: &Receipt) -> Option<String> {
    let name = &receipt.name;
    if !receipt.context_kept {
        return None;
    }
    Some(match receipt.state()? {
        State::Ready => {
            let broken = receipt.checks.iter().any(|check| check.outcome == "baseline-broken");
            let land = if broken {
                format!("`dam land {name} --no-check` lands it unverified")
            } else if !receipt.check_changes.is_empty() && !receipt.check_changes_allowed {
                format!("`dam land {name} --allow-check-changes` lands it")
            } else if receipt.reason.as_deref() == Some(NO_CHECK_GIVEN) {
                format!("`dam land {name} --check CMD` verifies and lands it")
            } else {
                format!("`dam land {name}` lands it")
            };
            format!("`dam diff {name}` shows it, {land}, `dam drop {name}` throws it away")
        }
        State::Conflicted if receipt.outputs.iter().any(|output| output.from.is_empty()) => {
            format!(
                "`dam diff {name}` shows it, `dam drop {name}` throws it away; the same again \
                 starts from what is there now"
            )
        }
        State::Conflicted if !receipt.outputs.is_empty() => format!(
            "`dam diff {name}` shows it, `dam retry {name}` makes it again on what is there now, \
             `dam drop {name}` throws it away"
        ),
        State::Cancelled if receipt.change.is_some() => {
            format!("`dam land {name}` goes on, `dam drop {name}` throws it away")
        }
        State::Rejected | State::Conflicted => {
            format!(
                "`dam diff {name}` shows it, `dam land {name}` tries again, `dam drop {name}` throws it away"
            )
        }
        State::Failed | State::TimedOut | State::Cancelled if receipt.context_kept => {
            format!(
                "its context is kept: `dam log {name}`, `dam diff {name}`, `dam enter {name}`, `dam drop {name}`"
            )
        }
        _ => return None,
    })
}

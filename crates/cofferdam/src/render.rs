//! What a run tells while it goes on.
//!
//! Ours goes to standard error, what the command prints to where it printed it.
//! A line that the command left unfinished is finished before one of ours.

use std::io::Write;
use std::sync::Mutex;

use cofferdam_core::report::{Event, Reporter};
use cofferdam_core::request::Level;

use crate::args::Format;
use crate::output::{BAD, BOLD, DIM, GOOD, WARN, json_line, note};
use crate::slow::Slow;
use crate::table;

/// Prints events in a format.
pub struct Renderer {
    format: Format,
    state: Mutex<RenderState>,
}

#[derive(Default)]
struct RenderState {
    slow: Option<Slow>,
    open_line: bool,
}

impl RenderState {
    fn goes_on(&mut self, step: &'static str, done: u64, all: u64) {
        if self.slow.as_ref().is_none_or(|slow| slow.step() != step) {
            // The line before goes first.
            self.slow = None;
            self.slow = Slow::begin(step);
        }
        if let Some(slow) = &self.slow {
            slow.at(done, all);
        }
    }
}

impl Renderer {
    /// A renderer for `format`.
    pub fn new(format: Format) -> Renderer {
        Renderer { format, state: Mutex::default() }
    }

    fn line(&self, state: &mut RenderState, text: &str) {
        if state.open_line {
            state.open_line = false;
            note("\n");
        }
        note(&format!("{text}\n"));
    }

    fn text(&self, event: Event) {
        let mut state = self.state.lock().expect("renderer");
        if !matches!(event, Event::Layer { .. } | Event::Progress { .. }) {
            state.slow = None;
        }
        match event {
            Event::Started { name, task, base, target, isolation, .. } => {
                let target = match target.as_str() {
                    "" => String::new(),
                    target => format!(", for {}", table::plain(target)),
                };
                self.line(
                    &mut state,
                    &format!("{BOLD}{name}{BOLD:#} {DIM}({task}) from {base}{target}{DIM:#}"),
                );
                let landlock = match isolation.landlock_abi {
                    0 => "no Landlock on this kernel".to_owned(),
                    _ if isolation.wall == "nested" => "nested sandboxes allowed".to_owned(),
                    abi => format!("Landlock {abi}"),
                };
                let text = match isolation.level {
                    Level::Sandbox => format!(
                        "own files, processes and home; seccomp, {landlock}; network {}; as uid {}",
                        isolation.network, isolation.uid
                    ),
                    Level::Worktree => format!(
                        "own files in {}; your network, processes and home; {}",
                        isolation.top.unwrap_or_default(),
                        match isolation.wall.as_str() {
                            "landlock" => format!("{landlock}: it can write no file elsewhere"),
                            _ => format!("{landlock}: nothing keeps it from writing elsewhere"),
                        }
                    ),
                };
                self.line(&mut state, &format!("  {DIM}{}: {text}{DIM:#}", isolation.level));
                let limits: Vec<String> = isolation
                    .limits
                    .iter()
                    .map(|limit| format!("{} {} ({})", limit.name, limit.value, limit.rung))
                    .collect();
                // Those that everybody has are not worth a line.
                let usual = ["pids 4096 ", "disk 10.0 GiB "];
                if limits.iter().any(|limit| !usual.iter().any(|usual| limit.starts_with(usual))) {
                    self.line(&mut state, &format!("  {DIM}limits: {}{DIM:#}", limits.join(", ")));
                }
                if !isolation.tools.is_empty() {
                    let tools = isolation.tools.join(", ");
                    self.line(
                        &mut state,
                        &format!("  {DIM}tools: {}{DIM:#}", table::plain(&tools)),
                    );
                }
                if isolation.level == Level::Sandbox
                    && isolation.network == "open"
                    && isolation.landlock_abi < 6
                {
                    let text = format!(
                        "  {WARN}note{WARN:#}       on this kernel the host's abstract sockets can be reached with `--net open`"
                    );
                    self.line(&mut state, &text);
                }
            }
            Event::Attempt { number, why } => {
                let text = format!("  {WARN}attempt {number}{WARN:#}  {}", table::plain(&why));
                self.line(&mut state, &text);
            }
            Event::Layer { done, all } => state.goes_on("checking files out", done, all),
            Event::Progress { step, done, all } => state.goes_on(step, done, all),
            Event::NotInBase { changed, untracked } => {
                let text = format!(
                    "  {DIM}not inside: {changed} changed and {untracked} untracked files of your checkout (`--carry-dirty` takes them along){DIM:#}"
                );
                self.line(&mut state, &text);
            }
            Event::Replayed { name, key, .. } => {
                let text = format!(
                    "  {DIM}replayed: `{name}` was first with the key `{}`{DIM:#}",
                    table::plain(&key)
                );
                self.line(&mut state, &text);
            }
            Event::Waiting { what, holder } => {
                let behind =
                    if holder.is_empty() { String::new() } else { format!(", behind `{holder}`") };
                self.line(&mut state, &format!("  {DIM}waiting for {what}{behind}{DIM:#}"));
            }
            Event::Output { stream, bytes, .. } => {
                state.open_line = bytes.last().is_some_and(|last| *last != b'\n');
                let _ = match stream {
                    "out" => {
                        std::io::stdout().write_all(&bytes).and_then(|()| std::io::stdout().flush())
                    }
                    _ => std::io::stderr().write_all(&bytes),
                };
            }
            Event::Step { step, took_ms, text } => {
                let took = table::duration(took_ms);
                self.line(
                    &mut state,
                    &format!("  {GOOD}{step:<10}{GOOD:#} {DIM}{took:>10}{DIM:#}  {text}"),
                );
            }
            Event::Check(report) => {
                let style = if report.passed() { GOOD } else { BAD };
                let took = if report.cached {
                    "cached".to_owned()
                } else {
                    table::duration(report.took_ms)
                };
                let (name, outcome) = (&report.name, &report.outcome);
                self.line(
                    &mut state,
                    &format!(
                        "  {style}check{style:#}      {DIM}{took:>10}{DIM:#}  `{name}` {outcome}"
                    ),
                );
            }
            Event::CheckLog { text, .. } => {
                for line in text.lines() {
                    self.line(&mut state, &format!("  {DIM}│{DIM:#} {}", table::plain(line)));
                }
            }
            // Told with the outcome.
            Event::Diagnosis(_) => {}
            Event::Warning { text } => {
                self.line(
                    &mut state,
                    &format!("  {WARN}note{WARN:#}       {}", table::plain(&text)),
                );
            }
        }
    }
}

impl Reporter for Renderer {
    fn report(&self, event: Event) {
        match self.format {
            Format::Text => self.text(event),
            Format::Json => {}
            // That it begins is for people who wait.
            Format::Jsonl if matches!(event, Event::Layer { all: 0, .. }) => {}
            Format::Jsonl => json_line(&event),
        }
    }
}

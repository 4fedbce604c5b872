//! Printing results and errors. A closed pipe is nobody's error.

use std::io::Write;
use std::sync::OnceLock;

use anstyle::{AnsiColor, Style};
use cofferdam_core::Error;
use serde::Serialize;

use crate::args::Format;

/// Emphasis for names and states.
pub const BOLD: Style = Style::new().bold();
/// For what is beside the point.
pub const DIM: Style = Style::new().dimmed();
/// It went well.
pub const GOOD: Style = AnsiColor::Green.on_default().bold();
/// It did not.
pub const BAD: Style = AnsiColor::Red.on_default().bold();
/// It waits.
pub const WARN: Style = AnsiColor::Yellow.on_default().bold();

/// What could not be written to standard output, but for a closed pipe.
static LOST: OnceLock<String> = OnceLock::new();

/// Why standard output is not complete, if it is not.
pub fn lost() -> Option<&'static str> {
    LOST.get().map(String::as_str)
}

fn write(mut out: impl Write, text: &[u8]) {
    if let Err(error) = out.write_all(text).and_then(|()| out.flush()) {
        lose(&error);
    }
}

fn lose(error: &std::io::Error) {
    if error.kind() != std::io::ErrorKind::BrokenPipe {
        LOST.get_or_init(|| error.to_string());
    }
}

/// Standard output for whoever writes to it at length. What can't be written ends that as
/// a closed pipe does, and is told at the end.
pub struct Output(pub std::io::StdoutLock<'static>);

impl Output {
    fn or_closed<T>(done: std::io::Result<T>) -> std::io::Result<T> {
        done.map_err(|error| {
            if error.kind() == std::io::ErrorKind::Interrupted {
                return error;
            }
            lose(&error);
            std::io::ErrorKind::BrokenPipe.into()
        })
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Output::or_closed(self.0.write(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Output::or_closed(self.0.flush())
    }
}

/// Prints bytes to standard output, as they are.
pub fn bytes(bytes: &[u8]) {
    write(std::io::stdout().lock(), bytes);
}

/// Prints text to standard output.
pub fn text(text: &str) {
    write(anstream::stdout().lock(), text.as_bytes());
}

/// Prints text to standard error.
pub fn note(text: &str) {
    let _ = anstream::stderr().lock().write_all(text.as_bytes());
}

/// Prints a value as one JSON document, indented.
pub fn json(value: &impl Serialize) {
    let mut text = serde_json::to_string_pretty(value).expect("results serialise");
    text.push('\n');
    write(std::io::stdout().lock(), text.as_bytes());
}

/// Prints a value as one line of JSON.
pub fn json_line(value: &impl Serialize) {
    let mut text = serde_json::to_string(value).expect("events serialise");
    text.push('\n');
    write(std::io::stdout().lock(), text.as_bytes());
}

#[derive(Serialize)]
struct ErrorReport<'a> {
    error: &'a str,
    causes: Vec<String>,
    hint: Option<String>,
    exit_code: u8,
}

/// Prints what is wrong with the arguments.
pub fn usage(error: &clap::Error, format: Format) {
    if format == Format::Text || !error.use_stderr() {
        if let Err(lost) = error.print()
            && !error.use_stderr()
        {
            lose(&lost);
        }
        return;
    }
    let text = error.render().to_string();
    let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    let hint = Some("`dam help` lists commands and options".to_owned());
    let exit_code = cofferdam_core::ExitCode::Usage as u8;
    let report = ErrorReport { error: message, causes: Vec::new(), hint, exit_code };
    if format == Format::Json { json(&report) } else { json_line(&report) }
}

/// Prints an error with its causes and what would help.
pub fn error(error: &Error, format: Format) {
    let mut causes = Vec::new();
    let mut source = std::error::Error::source(error);
    let message = error.to_string();
    while let Some(cause) = source {
        let text = cause.to_string();
        // Some say their cause themselves, some give it a number.
        let said = causes.last().unwrap_or(&message);
        if !said.ends_with(&text) && !text.ends_with(said.rsplit(": ").next().unwrap_or(said)) {
            causes.push(text);
        }
        source = cause.source();
    }
    if format != Format::Text {
        let exit_code = error.exit_code() as u8;
        let report = ErrorReport { error: &message, causes, hint: error.hint(), exit_code };
        return if format == Format::Json { json(&report) } else { json_line(&report) };
    }
    let mut text = format!("{BAD}error:{BAD:#} {message}\n");
    for cause in causes {
        text.push_str(&format!("  {DIM}because:{DIM:#} {cause}\n"));
    }
    if let Some(hint) = error.hint() {
        text.push_str(&format!("  {BOLD}hint:{BOLD:#} {hint}\n"));
    }
    note(&text);
}

//! Printing results and errors. A closed pipe is nobody's error.

use std::io::Write;

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

/// Prints text to standard output.
pub fn text(text: &str) {
    let _ = anstream::stdout().lock().write_all(text.as_bytes());
}

/// Prints text to standard error.
pub fn note(text: &str) {
    let _ = anstream::stderr().lock().write_all(text.as_bytes());
}

/// Prints a value as one JSON document, indented.
pub fn json(value: &impl Serialize) {
    let mut text = serde_json::to_string_pretty(value).expect("results serialise");
    text.push('\n');
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Prints a value as one line of JSON.
pub fn json_line(value: &impl Serialize) {
    let mut text = serde_json::to_string(value).expect("events serialise");
    text.push('\n');
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

#[derive(Serialize)]
struct ErrorReport<'a> {
    error: &'a str,
    causes: Vec<String>,
    hint: Option<String>,
    exit_code: u8,
}

/// Prints an error with its causes and what would help.
pub fn error(error: &Error, format: Format) {
    let mut causes = Vec::new();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        causes.push(cause.to_string());
        source = cause.source();
    }
    let message = error.to_string();
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

//! `dam resume`, and the series of `dam list`.

use cofferdam_core::series::{self, Standing};
use cofferdam_core::{Error, ExitCode};

use crate::args::{Format, Resume};
use crate::{output, table};

/// Lets a series go on.
pub fn resume(args: &Resume, format: Format) -> Result<ExitCode, Error> {
    let mut dam = super::open()?;
    let standing = series::resume(&mut dam, &args.series)?;
    match format {
        Format::Text => output::note(&format!("`{}` goes on with its next run\n", args.series)),
        _ => output::json(&standing),
    }
    Ok(ExitCode::Done)
}

/// Prints all series.
pub fn list(all: &[Standing], format: Format) -> ExitCode {
    match format {
        Format::Json => output::json(&all),
        Format::Jsonl => all.iter().for_each(output::json_line),
        Format::Text if all.is_empty() => output::note("no series yet\n"),
        Format::Text => {
            let rows: Vec<Vec<String>> = all.iter().map(row).collect();
            output::text(&table::render(&["SERIES", "STATE", "AGE", "WHAT"], &rows, 80));
        }
    }
    ExitCode::Done
}

fn row(standing: &Standing) -> Vec<String> {
    let last = standing.last.as_ref().zip(standing.last_state.as_ref());
    let (state, what) = match (&standing.stopped, &standing.at_work, last) {
        (Some(why), ..) => ("stopped", why.clone()),
        (None, Some(name), _) => ("at work", name.clone()),
        (None, None, Some((name, state))) => ("waits", format!("`{name}` {state}")),
        (None, None, None) => ("waits", String::new()),
    };
    let age = standing.last_ms.map_or_else(String::new, |at| table::age(at, table::now_ms()));
    vec![table::cut(&standing.series, 28), state.to_owned(), age, what]
}

//! `dam list`.

use cofferdam_core::receipt::Receipt;
use cofferdam_core::{Error, ExitCode, State, query, series};

use crate::args::{Format, List};
use crate::{output, table};

/// Prints the tasks, newest first.
pub fn list(args: &List, format: Format) -> Result<ExitCode, Error> {
    let mut dam = super::open()?;
    if args.series {
        return Ok(super::series::list(&series::all(&mut dam)?, format));
    }
    let tasks = query::list(&mut dam, args.all, None)?;
    let receipts = tasks.iter().map(Receipt::of).collect::<Result<Vec<_>, _>>()?;
    match format {
        Format::Json => output::json(&receipts),
        Format::Jsonl => receipts.iter().for_each(output::json_line),
        Format::Text if receipts.is_empty() => output::note("no tasks yet\n"),
        Format::Text => output::text(&table(&receipts)),
    }
    Ok(ExitCode::Done)
}

/// The table of tasks, at most 80 columns wide.
pub fn table(receipts: &[Receipt]) -> String {
    let now = table::now_ms();
    let rows: Vec<Vec<String>> = receipts
        .iter()
        .map(|receipt| {
            let what = receipt.reason.clone().unwrap_or_else(|| match &receipt.landed {
                Some(commit) => {
                    let target = receipt.target.as_deref().unwrap_or_default();
                    format!("{target} at {}", &commit[..9.min(commit.len())])
                }
                None if receipt.state() == Some(State::Landed) => {
                    receipt.target.clone().unwrap_or_default()
                }
                None => receipt.command.clone(),
            });
            vec![
                table::cut(&receipt.name, 28),
                receipt.state.clone(),
                table::age(receipt.updated_ms, now),
                what,
            ]
        })
        .collect();
    table::render(&["NAME", "STATE", "AGE", "WHAT"], &rows, 80)
}

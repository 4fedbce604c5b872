//! `dam gc`.

use cofferdam_core::{Error, ExitCode, settle};

use crate::args::{Format, Gc};
use crate::output;
use crate::slow::Slow;

/// Collects what is no longer needed.
pub fn gc(args: &Gc, format: Format) -> Result<ExitCode, Error> {
    let mut dam = super::open()?;
    let slow = Slow::begin("collecting");
    let report = settle::gc(&mut dam, args.dry_run)?;
    drop(slow);
    if format != Format::Text {
        output::json(&report);
        return Ok(ExitCode::Done);
    }
    let verb = if report.dry_run { "would remove" } else { "removed" };
    let mut text = format!(
        "{verb} {} contexts, {} layers, {} records\n",
        report.contexts.len(),
        report.layers.len(),
        report.records
    );
    for name in &report.contexts {
        text.push_str(&format!("  context {name}\n"));
    }
    for kept in &report.kept {
        text.push_str(&format!("  kept: {kept}\n"));
    }
    output::text(&text);
    Ok(ExitCode::Done)
}

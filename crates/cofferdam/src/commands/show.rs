//! `dam show` and `dam diff`.

use std::io::IsTerminal;

use cofferdam_core::receipt::Receipt;
use cofferdam_core::request::Level;
use cofferdam_core::{Error, ExitCode, limits, query};

use crate::args::{Diff, Format};
use crate::output::{self, BOLD, DIM};
use crate::table;

/// How many changed paths are shown.
const PATHS_SHOWN: usize = 20;

/// Prints one task.
pub fn show(name: &str, format: Format) -> Result<ExitCode, Error> {
    let mut dam = super::open()?;
    let (task, history) = query::show(&mut dam, name)?;
    let receipt = Receipt::of(&task)?;
    if format != Format::Text {
        output::json(&receipt);
        return Ok(ExitCode::Done);
    }
    let style = super::style_of(receipt.state());
    let mut text = format!(
        "{BOLD}{}{BOLD:#} {DIM}({}){DIM:#} {style}{}{style:#}\n",
        receipt.name, receipt.task, receipt.state
    );
    let mut row = |name: &str, value: String| {
        text.push_str(&format!("  {DIM}{name:<11}{DIM:#} {}\n", table::plain(&value)))
    };
    if let Some(reason) = &receipt.reason {
        row("reason", reason.clone());
    }
    for found in &receipt.diagnosis {
        row("because", found.message.clone());
        row("hint", found.hint.clone());
    }
    row("command", receipt.command.clone());
    let optional = [
        ("key", &receipt.key),
        ("repository", &receipt.repository),
        ("target", if receipt.outputs.is_empty() { &receipt.target } else { &None }),
        ("base", &receipt.base),
        ("landed on", &receipt.landed_on),
        ("landed", &receipt.landed),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            row(name, value.clone());
        }
    }
    if let Some(isolation) = &receipt.isolation {
        row(
            "isolation",
            format!(
                "{}, network {}, walls {}, Landlock {}, uid {}",
                isolation.level,
                isolation.network,
                isolation.wall,
                isolation.landlock_abi,
                isolation.uid
            ),
        );
        if isolation.level == Level::Worktree
            && receipt.context_kept
            && let Some(top) = &isolation.top
        {
            row("checkout", top.clone());
        }
        if !isolation.tools.is_empty() {
            row("tools", isolation.tools.join(", "));
        }
    }
    for input in &receipt.inputs {
        row("input", format!("{} at {}", input.source.display(), input.dest.display()));
    }
    for output in &receipt.outputs {
        let size =
            output.size.map_or_else(String::new, |size| format!(" ({})", limits::size(size)));
        let from = if output.from.is_empty() { "the directory" } else { &output.from };
        row("output", format!("{from} becomes {}{size}", output.to));
    }
    for check in &receipt.checks {
        let how = if check.cached { "cached".into() } else { table::duration(check.took_ms) };
        row("check", format!("`{}` {} ({how})", check.name, check.outcome));
    }
    if let Some(changed) = receipt.changed {
        let (added, modified, deleted) = (changed.added, changed.modified, changed.deleted);
        row("changed", format!("{added} added, {modified} changed, {deleted} deleted"));
    }
    for path in receipt.paths.iter().take(PATHS_SHOWN) {
        row("", format!("{} {}", path.kind, path.path));
    }
    if receipt.paths.len() > PATHS_SHOWN {
        row("", "… (`dam diff --stat` has them all)".into());
    }
    for what in &receipt.left_out {
        row("left out", what.clone());
    }
    for step in &receipt.steps {
        row("step", format!("{} in {}", step.step, table::duration(step.took_ms)));
    }
    let states: Vec<String> = history.iter().map(|step| step.to.to_string()).collect();
    row("states", states.join(" → "));
    row("files", dam.task_dir(&task.id).path().display().to_string());
    output::text(&text);
    Ok(ExitCode::Done)
}

/// Prints what a task changed.
pub fn diff(args: &Diff) -> Result<ExitCode, Error> {
    let mut dam = super::open()?;
    let color = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let mut out = output::Output(std::io::stdout().lock());
    query::diff(&mut dam, &args.name, args.stat, color, &mut out)?;
    Ok(ExitCode::Done)
}

//! `dam trust`.

use cofferdam_core::{Error, ExitCode, trust};

use crate::args::{Format, Trust};
use crate::output::{self, BOLD, DIM};
use crate::table;

/// Shows what the repository asks of the host, and lets it have that.
pub fn trust(args: &Trust, format: Format) -> Result<ExitCode, Error> {
    let dir = super::here()?;
    let dam = super::open()?;
    let (repo, mut report) = trust::look(&dam, &dir, args.into.as_deref())?;
    if format == Format::Text {
        let commit = report.commit.get(..9).unwrap_or(&report.commit);
        let mut text = format!("{BOLD}{}{BOLD:#} {DIM}at {commit}{DIM:#}\n", report.repository);
        for line in report.asks.lines() {
            text.push_str(&format!("  asks for {}\n", table::seen(&line)));
        }
        output::text(&text);
    }
    let say = |text: &str| {
        if format == Format::Text {
            output::text(&format!("{text}\n"));
        }
    };
    if args.revoke {
        trust::record(&repo, None)?;
        report.trusted = report.asks.is_empty();
        say("it gets nothing of that any more; tasks that have it keep it until they are dropped");
    } else if report.asks.is_empty() {
        say("it asks for nothing of yours: there is nothing to trust");
    } else if report.trusted {
        say("it gets that already; `dam trust --revoke` takes it back");
    } else if args.yes || agreed(format)? {
        trust::record(&repo, Some(&report.asks))?;
        report.trusted = true;
        say("its tasks get that from now on, until it asks for something else");
    } else {
        say("nothing was allowed");
        return Ok(ExitCode::Interrupted);
    }
    if format != Format::Text {
        output::json(&report);
    }
    Ok(ExitCode::Done)
}

fn agreed(format: Format) -> Result<bool, Error> {
    super::agreed("Let its tasks have that?", format).ok_or_else(|| Error::Usage {
        message: "nobody can be asked here whether that is allowed".into(),
        hint: Some("`dam trust --yes` allows it".into()),
    })
}

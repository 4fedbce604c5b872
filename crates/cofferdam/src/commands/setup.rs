//! `dam setup`: what an administrator does once, said first and then done.

use std::path::{Path, PathBuf};

use cofferdam_core::apparmor::{self, Action, Plan};
use cofferdam_core::{Error, ExitCode};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{Format, Setup};
use crate::output::{self, BOLD, DIM, GOOD};
use crate::table;

/// What was found, and what became of it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SetupReport {
    /// What was found and is to be done.
    #[serde(flatten)]
    pub plan: Plan,
    /// Whether it was done.
    pub done: bool,
    /// Why it was not.
    pub error: Option<String>,
    /// What would help.
    pub hint: Option<String>,
}

/// Says what would be done, asks, and does it.
pub fn setup(args: &Setup, format: Format) -> Result<ExitCode, Error> {
    let root = Path::new("/");
    let binary = binary()?;
    let plan =
        if args.remove { apparmor::unplan(root, &binary) } else { apparmor::plan(root, &binary) }?;
    if format == Format::Text {
        output::text(&text(&plan));
    }
    let done = go_on(&plan, root, &binary, args, format);
    if format == Format::Text {
        if done? {
            output::text(&format!("{GOOD}done{GOOD:#}: {}\n", next(&plan)));
        }
        return Ok(ExitCode::Done);
    }
    let (done, error) = match done {
        Ok(done) => (done, None),
        Err(error) => (false, Some(error)),
    };
    let report = SetupReport {
        plan,
        done,
        hint: error.as_ref().and_then(Error::hint),
        error: error.as_ref().map(ToString::to_string),
    };
    if format == Format::Json {
        output::json(&report)
    } else {
        output::json_line(&report)
    }
    Ok(error.map_or(ExitCode::Done, |error| error.exit_code()))
}

/// The running program, where it really is.
pub(super) fn binary() -> Result<PathBuf, Error> {
    std::env::current_exe().and_then(std::fs::canonicalize).map_err(|source| Error::Io {
        step: "find the running program",
        path: "/proc/self/exe".into(),
        source,
    })
}

/// Does it if there is something to do, the caller can, and a person agrees.
fn go_on(
    plan: &Plan,
    root: &Path,
    binary: &Path,
    args: &Setup,
    format: Format,
) -> Result<bool, Error> {
    if plan.action == Action::Nothing {
        return Ok(false);
    }
    plan.check(root)?;
    let refused = |message: &str, hint| {
        Err(Error::Usage { message: format!("nothing was done: {message}"), hint: Some(hint) })
    };
    if !rustix::process::geteuid().is_root() {
        let remove = if args.remove { " --remove" } else { "" };
        return refused("only root can", format!("`{}{remove}`", apparmor::call(binary)));
    }
    if !args.yes {
        match super::agreed("Go on?", format) {
            Some(true) => {}
            Some(false) => return Err(Error::Interrupted),
            None => {
                return refused("nobody could be asked", "`--yes` goes on without asking".into());
            }
        }
    }
    plan.perform(root)?;
    Ok(true)
}

fn text(plan: &Plan) -> String {
    let path = &plan.path;
    let mut text = format!("{}\n", plan.why);
    match plan.action {
        Action::Nothing => return text + "nothing to be done\n",
        Action::Write if plan.before.is_some() => {
            text.push_str(&format!("{BOLD}would replace{BOLD:#} `{path}`, which has\n"));
        }
        Action::Remove | Action::Delete => {
            text.push_str(&format!("{BOLD}would delete{BOLD:#} `{path}`, which has\n"));
        }
        Action::Write => {}
        Action::Load => text.push_str(&format!("`{path}` is there, and not in force\n")),
    }
    if let Some(before) = &plan.before {
        text.push_str(&indented(before));
    }
    if let Some(profile) = &plan.profile {
        let verb = if plan.action == Action::Load { "would load" } else { "would write" };
        text.push_str(&format!("{BOLD}{verb}{BOLD:#} `{path}`, with\n{}", indented(profile)));
    }
    if let Some(command) = &plan.command {
        text.push_str(&format!("{BOLD}would run{BOLD:#} `{}`\n", command.join(" ")));
    }
    if let Some(allows) = &plan.allows {
        text.push_str(&format!("{BOLD}it allows:{BOLD:#} {}\n", table::plain(allows)));
        text.push_str(&format!(
            "{DIM}`apparmor_parser` checks the syntax first. That it loads, and does what it \
             should,\nwas not tested on such a kernel by this project.{DIM:#}\n"
        ));
    }
    text
}

fn indented(text: &str) -> String {
    text.lines()
        .map(|line| format!("    {}", table::plain(line)).trim_end().to_owned() + "\n")
        .collect()
}

fn next(plan: &Plan) -> &'static str {
    match plan.action {
        Action::Remove => "unloaded and deleted",
        Action::Delete => "deleted; it was not loaded",
        _ => "loaded; `dam doctor`, as the ordinary user, says whether it works",
    }
}

//! `dam doctor`: what this machine can do, found out by doing it.

use cofferdam_core::boundary::{Boundary, Sandbox, Worktree};
use std::ffi::OsString;

use cofferdam_core::{Dam, Error, ExitCode, lookup};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::Format;
use crate::output::{self, BAD, DIM, GOOD, WARN};

/// One thing that was tried.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Finding {
    /// What was tried.
    pub what: String,
    /// `ok`, `warning` or `missing`.
    pub outcome: String,
    /// What was found.
    pub found: String,
    /// What would mend it.
    pub hint: Option<String>,
}

/// All that was tried.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DoctorReport {
    /// Whether tasks can run here.
    pub usable: bool,
    /// What was tried.
    pub findings: Vec<Finding>,
}

/// Tries everything and prints what was found, also of what `command` would find.
pub fn doctor(command: &[OsString], format: Format) -> Result<ExitCode, Error> {
    let mut findings = vec![git()];
    match Dam::default_dir().and_then(|dir| Dam::open(&dir)) {
        Ok(dam) => {
            findings.push(ok("state directory", dam.dir().display().to_string()));
            sandbox(&dam, &mut findings);
            worktree(&dam, &mut findings);
            if !command.is_empty() {
                programs(&dam, command, &mut findings)?;
            }
        }
        Err(error) => findings.push(missing("state directory", &error)),
    }
    let usable = findings.iter().all(|finding| finding.outcome != "missing");
    let report = DoctorReport { usable, findings };
    if format == Format::Text {
        let mut text = String::new();
        for finding in &report.findings {
            let style = match finding.outcome.as_str() {
                "ok" => GOOD,
                "warning" => WARN,
                _ => BAD,
            };
            let (outcome, what, found) = (&finding.outcome, &finding.what, &finding.found);
            text.push_str(&format!("{style}{outcome:<8}{style:#} {what}: {found}\n"));
            if let Some(hint) = &finding.hint {
                text.push_str(&format!("         {DIM}{hint}{DIM:#}\n"));
            }
        }
        output::text(&text);
    } else {
        output::json(&report);
    }
    Ok(if usable { ExitCode::Done } else { ExitCode::Isolation })
}

fn ok(what: &str, found: String) -> Finding {
    Finding { what: what.into(), outcome: "ok".into(), found, hint: None }
}

fn missing(what: &str, error: &Error) -> Finding {
    let mut found = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        found.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    Finding { what: what.into(), outcome: "missing".into(), found, hint: error.hint() }
}

/// What a command would find in a context of the repository that one stands in.
fn programs(dam: &Dam, command: &[OsString], findings: &mut Vec<Finding>) -> Result<(), Error> {
    let dir = super::here()?;
    let sight = lookup::look_up(dam, &dir, command)?;
    for program in sight.programs {
        let what = format!("`{}`", program.program);
        findings.push(match (program.inside, program.outside) {
            (Some(inside), _) => ok(&what, inside.display().to_string()),
            (None, Some(outside)) => Finding {
                what,
                outcome: "missing".into(),
                found: format!("`{}` is not inside", outside.display()),
                hint: Some(
                    "a task sees system directories, tool homes and what is committed; \
                     `--input` or `--carry` shows it more"
                        .into(),
                ),
            },
            (None, None) => Finding {
                what,
                outcome: "missing".into(),
                found: "there is none, neither inside nor outside".into(),
                hint: None,
            },
        });
    }
    let tools = if sight.tools.is_empty() { "none".into() } else { sight.tools.join(", ") };
    findings.push(ok("tool homes", tools));
    findings.push(ok("network", "none, unless `--net open` is said; a check never has one".into()));
    Ok(())
}

fn git() -> Finding {
    match cofferdam_core::git_version() {
        Ok(text) => ok("git", text),
        Err(error) => missing("git", &error),
    }
}

fn sandbox(dam: &Dam, findings: &mut Vec<Finding>) {
    let probed = cofferdam_core::probe(dam, &Sandbox as &dyn Boundary);
    match probed {
        Ok(ability) => {
            findings.push(ok(
                "sandbox",
                format!(
                    "a program ran in one and wrote through its overlay, as uid {}",
                    ability.ids.uid
                ),
            ));
            findings.push(match ability.landlock_abi {
                0 => Finding {
                    what: "Landlock".into(),
                    outcome: "warning".into(),
                    found: "the kernel has none; mounts, namespaces and seccomp stand without it"
                        .into(),
                    hint: None,
                },
                abi if abi < 6 => Finding {
                    what: "Landlock".into(),
                    outcome: "warning".into(),
                    found: format!(
                        "ABI {abi}; with `--net open`, abstract sockets of the host can be reached"
                    ),
                    hint: Some("ABI 6 came with Linux 6.12".into()),
                },
                abi => ok("Landlock", format!("ABI {abi}")),
            });
        }
        Err(error) => findings.push(missing("sandbox", &error)),
    }
}

/// Level `worktree` is nobody's default: without it the machine is as usable.
fn worktree(dam: &Dam, findings: &mut Vec<Finding>) {
    let what = "level `worktree`";
    findings.push(match cofferdam_core::probe(dam, &Worktree) {
        Ok(ability) if ability.landlock_abi == 0 => Finding {
            what: what.into(),
            outcome: "warning".into(),
            found: "a program ran, and nothing keeps one from writing elsewhere".into(),
            hint: None,
        },
        Ok(_) => ok(what, "a program ran and could write in its own directory alone".into()),
        Err(error) => Finding { outcome: "warning".into(), ..missing(what, &error) },
    });
}

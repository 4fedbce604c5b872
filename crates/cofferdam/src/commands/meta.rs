//! `dam completion`, `dam man` and `dam schema`: all generated.

use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
use std::path::Path;

use clap::CommandFactory;
use cofferdam_core::overview::Overview;
use cofferdam_core::receipt::Receipt;
use cofferdam_core::report::Event;
use cofferdam_core::series::Standing;
use cofferdam_core::settle::GcReport;
use cofferdam_core::trust::TrustReport;
use cofferdam_core::{Error, ExitCode};

use crate::args::Args;
use crate::output;

/// Prints the completion script of a shell.
pub fn completion(shell: clap_complete::Shell) -> Result<ExitCode, Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "dam", &mut script);
    output::text(&String::from_utf8_lossy(&script));
    Ok(ExitCode::Done)
}

/// Prints the manual page, or writes one per command into a directory.
pub fn man(dir: Option<&Path>) -> Result<ExitCode, Error> {
    let failed = |path: &Path, source: std::io::Error| match source.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => {
            Error::Io { step: "write", path: path.into(), source }
        }
        // Which directory that is was the caller's choice.
        _ => Error::Usage {
            message: format!("the pages can't be written to `{}`: {source}", path.display()),
            hint: None,
        },
    };
    match dir {
        Some(dir) => {
            std::fs::create_dir_all(dir).map_err(|source| failed(dir, source))?;
            clap_mangen::generate_to(Args::command(), dir).map_err(|source| failed(dir, source))?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Args::command())
                .render(&mut page)
                .map_err(|source| failed(Path::new("-"), source))?;
            output::text(&String::from_utf8_lossy(&page));
        }
    }
    Ok(ExitCode::Done)
}

/// Prints the JSON schema of an output.
pub fn schema(name: &str) -> Result<ExitCode, Error> {
    let schema = match name {
        "receipt" => schemars::schema_for!(Receipt),
        "tasks" => schemars::schema_for!(Vec<Receipt>),
        "event" => schemars::schema_for!(Event),
        "report" => schemars::schema_for!(Overview),
        "series" => schemars::schema_for!(Vec<Standing>),
        "schedule" => schemars::schema_for!(super::schedule::ScheduleReport),
        "gc" => schemars::schema_for!(GcReport),
        "doctor" => schemars::schema_for!(super::doctor::DoctorReport),
        "trust" => schemars::schema_for!(TrustReport),
        "setup" => schemars::schema_for!(super::setup::SetupReport),
        _ => {
            return Err(Error::Usage {
                message: format!("there is no schema `{name}`"),
                hint: Some(
                    "there are: receipt, tasks, event, report, series, gc, schedule, doctor, trust, setup"
                        .into(),
                ),
            });
        }
    };
    output::json(&schema);
    Ok(ExitCode::Done)
}

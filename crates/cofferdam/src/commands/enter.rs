//! `dam enter`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cofferdam_core::enter::{self, Visit};
use cofferdam_core::supervise::{Ended, Terminal};
use cofferdam_core::{Error, ExitCode};

use super::run::variables;
use crate::args::{self, Format};
use crate::output::{self, DIM};
use crate::render::Renderer;
use crate::signals;
use crate::terminal::Pty;

/// Runs a shell or a command in a task's context.
pub fn enter(args: args::Enter, format: Format) -> Result<ExitCode, Error> {
    let cwd = super::here()?;
    let env = variables(&args.env)?;
    let mut dam = super::open()?;
    let control = signals::control();
    let renderer = Renderer::new(format);
    let pty = match format {
        Format::Text => Pty::open().map_err(|source| Error::Io {
            step: "open a terminal for",
            path: ".".into(),
            source,
        })?,
        _ => None,
    };
    if pty.is_none() && args.command.is_empty() {
        return Err(Error::Usage {
            message: "there is no terminal here for a shell".into(),
            hint: Some(format!("`dam enter {} -- CMD` runs a command", args.name)),
        });
    }
    let command = if args.command.is_empty() { vec![shell()] } else { args.command };
    if pty.is_some() {
        let name = &args.name;
        output::note(&format!(
            "{DIM}in the context of `{name}`: what you change is part of its change set{DIM:#}\n"
        ));
    }
    let terminal = pty.as_ref().map(|pty| pty as &dyn Terminal);
    let visit = Visit { command, env, cwd: &cwd, terminal };
    let (ended, mut receipt) = enter::enter(&mut dam, &args.name, visit, control, &renderer)?;
    if let Ended::Exited { code, signal } = ended {
        (receipt.enter_exit, receipt.enter_signal) = (code, signal);
    }
    super::conclude(&receipt, format);
    Ok(match ended {
        Ended::Exited { code: Some(0), .. } => ExitCode::Done,
        Ended::Interrupted => ExitCode::Interrupted,
        _ => ExitCode::CommandFailed,
    })
}

/// The caller's shell, when it is one that is there inside as well.
fn shell() -> OsString {
    let own = std::env::var_os("SHELL").map(PathBuf::from);
    let system = |shell: &PathBuf| {
        ["/bin", "/usr/bin"].iter().any(|dir| shell.parent() == Some(Path::new(dir)))
    };
    let all = own.into_iter().filter(system).chain(["/bin/bash".into(), "/bin/sh".into()]);
    all.into_iter().find(|shell| shell.is_file()).unwrap_or_else(|| "/bin/sh".into()).into()
}

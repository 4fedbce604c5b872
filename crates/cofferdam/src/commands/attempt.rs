//! `dam try`: a command on a copy of where one stands, its changes shown, kept or not.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Parser;
use cofferdam_core::receipt::Receipt;
use cofferdam_core::{Error, ExitCode, State, query, settle, task};

use crate::args::{Args, Command, Format, Net, Try};
use crate::output::{self, BOLD, DIM};
use crate::render::Renderer;
use crate::signals;

/// Runs it, shows the difference, and asks.
pub fn attempt(args: &Try, here: &Path, format: Format) -> Result<ExitCode, Error> {
    let dir = args.dir.clone().unwrap_or_else(|| top_of(here));
    let mut words: Vec<OsString> = vec!["dam".into(), "run".into(), "--dir".into(), dir.into()];
    words.extend(["--publish=patch", "--no-check", "--no-land"].map(OsString::from));
    match args.net {
        Some(Net::Open) => words.push("--net=open".into()),
        Some(Net::None) => words.push("--net=none".into()),
        None => {}
    }
    words.push("--".into());
    words.extend(args.command.iter().cloned());
    let run = match Args::try_parse_from(words).map(|args| args.command) {
        Ok(Command::Run(run)) => *run,
        Ok(_) => unreachable!("`run` is in the words"),
        Err(error) => return Err(Error::Internal(error.to_string())),
    };
    let receipt = super::run::to_its_end(run, here, format)?;
    if receipt.state() != Some(State::Ready) {
        return Ok(super::conclude(&receipt, format));
    }
    let mut dam = super::open()?;
    if format == Format::Text {
        let color = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let mut out = output::Output(std::io::stdout().lock());
        query::diff(&mut dam, &receipt.task, false, color, &mut out)?;
    }
    drop(dam);
    match args.yes.then_some(true).or_else(|| super::agreed("keep it?", format)) {
        Some(true) => keep(&receipt, format),
        Some(false) => {
            settle::drop_task(&mut super::open()?, &receipt.task)?;
            output::note("thrown away; nothing has changed\n");
            Ok(ExitCode::Done)
        }
        None => {
            let name = &receipt.name;
            if format == Format::Text {
                output::note(&format!(
                    "{BOLD}nothing has changed yet{BOLD:#}\n  {DIM}`dam land {name} --no-check` \
                     keeps it, `dam drop {name}` throws it away{DIM:#}\n"
                ));
                return Ok(ExitCode::Ready);
            }
            Ok(super::conclude(&receipt, format))
        }
    }
}

fn keep(receipt: &Receipt, format: Format) -> Result<ExitCode, Error> {
    let mut dam = super::open()?;
    let (control, renderer) = (signals::control(), Renderer::new(format));
    let unchecked = |request: &mut cofferdam_core::request::Request| request.no_check = true;
    let landed = task::land_again(&mut dam, &receipt.task, unchecked, control, &renderer)?;
    drop(renderer);
    Ok(super::conclude(&landed, format))
}

/// The top of the repository that a directory is in, else the directory.
fn top_of(here: &Path) -> PathBuf {
    here.ancestors().find(|dir| dir.join(".git").exists()).unwrap_or(here).to_owned()
}

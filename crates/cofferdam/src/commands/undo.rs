//! `dam undo`.

use std::ffi::OsString;

use clap::Parser;
use cofferdam_core::receipt::Receipt;
use cofferdam_core::{Error, ExitCode, State, TaskName, query};

use crate::args::{Args, Command, Format, Undo};

/// Lands the reverse of what a task landed: a task like any other, through the same gate.
pub fn undo(args: &Undo, format: Format) -> Result<ExitCode, Error> {
    let receipt = Receipt::of(&query::show(&mut super::open()?, &args.name)?.0)?;
    let refuse = |why: &str| Error::Usage {
        message: format!("`{}` can't be undone: {why}", receipt.name),
        hint: None,
    };
    let (Some(landed), Some(target), Some(dir)) =
        (&receipt.landed, &receipt.target, &receipt.repository)
    else {
        return Err(refuse("it has not landed"));
    };
    if receipt.state() != Some(State::Landed) {
        return Err(refuse("it has not landed"));
    }
    let mut words: Vec<OsString> = vec!["dam".into(), "run".into()];
    let mut option = |name: &str, value: &str| words.push(format!("--{name}={value}").into());
    option("into", target);
    option("key", &format!("undo {landed}"));
    option("message", &format!("Undo {}\n\nThis reverts commit {landed}.", receipt.name));
    let name = format!("undo-{}", receipt.name);
    // Where it is too long, the command gives one.
    if TaskName::parse(&name).is_ok() {
        option("name", &name);
    }
    args.checks.iter().for_each(|check| option("check", check));
    if args.no_check {
        words.push("--no-check".into());
    }
    words.extend(["--", "git", "revert", "--no-edit", landed].map(OsString::from));
    match Args::try_parse_from(words).map(|args| args.command) {
        Ok(Command::Run(run)) => super::run::run(*run, dir.as_ref(), format),
        Ok(_) => unreachable!("`run` is in the words"),
        Err(error) => Err(Error::Internal(error.to_string())),
    }
}

//! `dam undo`.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::Parser;
use cofferdam_core::files::{self, Replaced};
use cofferdam_core::receipt::Receipt;
use cofferdam_core::{Error, ExitCode, State, TaskName, query};

use crate::args::{Args, Command, Format, Undo};

/// Lands the reverse of what a task landed: a task like any other, through the same gate.
pub fn undo(args: &Undo, format: Format) -> Result<ExitCode, Error> {
    let mut dam = super::open()?;
    let (task, _) = query::show(&mut dam, &args.name)?;
    let receipt = Receipt::of(&task)?;
    if !receipt.outputs.is_empty() {
        return of_files(args, &receipt, &files::replaced(&dam, &task)?, format);
    }
    drop(dam);
    if receipt.target.as_ref().is_some_and(|target| target.starts_with("command: ")) {
        return Err(Error::Usage {
            message: format!("`{}` can't be undone: a command published it", receipt.name),
            hint: Some("what it did is known to that command alone".into()),
        });
    }
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
    let mut words = words(args, &receipt, landed);
    let mut option = |name: &str, value: &str| words.push(format!("--{name}={value}").into());
    option("into", target);
    option("message", &format!("Undo {}\n\nThis reverts commit {landed}.", receipt.name));
    words.extend(["--", "git", "revert", "--no-edit", landed].map(OsString::from));
    run(words, dir.as_ref(), format)
}

/// Where a version of a directory is in the context that lets it come back.
const COPIED: &str = ".replaced";

/// Lets what was replaced replace what it was replaced with.
fn of_files(
    args: &Undo,
    receipt: &Receipt,
    replaced: &[Replaced],
    format: Format,
) -> Result<ExitCode, Error> {
    let mut words = words(args, receipt, &receipt.task);
    words.push("--scratch".into());
    let joined = |option: &str, parts: [&OsStr; 3]| {
        let mut word = OsString::from(option);
        parts.iter().for_each(|part| word.push(part));
        word
    };
    for one in replaced {
        let (from, place) = (one.from.as_os_str(), one.place.as_os_str());
        if one.is_dir {
            // It is the only one. What `--dir` landed has no place in a context of its own.
            let from = if from.is_empty() { OsStr::new("restored") } else { from };
            words
                .push(joined("--input=", [one.version.as_os_str(), ":".as_ref(), COPIED.as_ref()]));
            words.push(joined("--output=", [from, "/=".as_ref(), place]));
            words.extend(["--", "cp", "-a", COPIED].map(OsString::from));
            words.push(from.to_owned());
            return run(words, &super::here()?, format);
        }
        words.push(joined("--input=", [one.version.as_os_str(), ":".as_ref(), from]));
        words.push(joined("--output=", [from, "=".as_ref(), place]));
    }
    words.extend(["--", "true"].map(OsString::from));
    run(words, &super::here()?, format)
}

/// What each of these runs has: a key, a name, and checks.
fn words(args: &Undo, receipt: &Receipt, landed: &str) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["dam".into(), "run".into()];
    let mut option = |name: &str, value: &str| words.push(format!("--{name}={value}").into());
    option("key", &format!("undo {landed}"));
    let name = format!("undo-{}", receipt.name);
    // Where it is too long, the command gives one.
    if TaskName::parse(&name).is_ok() {
        option("name", &name);
    }
    args.checks.iter().for_each(|check| option("check", check));
    if args.no_check {
        words.push("--no-check".into());
    }
    words
}

fn run(words: Vec<OsString>, dir: &Path, format: Format) -> Result<ExitCode, Error> {
    match Args::try_parse_from(words).map(|args| args.command) {
        Ok(Command::Run(run)) => super::run::run(*run, dir, format),
        Ok(_) => unreachable!("`run` is in the words"),
        Err(error) => Err(Error::Internal(error.to_string())),
    }
}

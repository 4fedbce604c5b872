//! `dam`: isolated write contexts for unattended work.

mod args;
mod commands;
mod output;
mod quote;
mod render;
mod signals;
mod slow;
mod table;
mod terminal;

use std::process::ExitCode;

use clap::Parser;
use cofferdam_core::{ExitCode as Code, disk, files, harvest, init, settle};

/// The exit code, unless what was asked for could not be printed.
fn ended(code: Code, is_task: bool) -> ExitCode {
    let Some(why) = output::lost() else { return ExitCode::from(code as u8) };
    output::note(&format!("error: standard output is not complete: {why}\n"));
    ExitCode::from(if is_task { code } else { Code::NoRoom } as u8)
}

fn main() -> ExitCode {
    init::ignore_size_signal();
    // This binary is also what runs inside and beside a context: first thing,
    // before anything of an ordinary process is set up.
    match std::env::args_os().nth(1).as_deref().and_then(std::ffi::OsStr::to_str) {
        Some(init::ARGUMENT) => init::main(),
        Some(harvest::ARGUMENT) => harvest::main(),
        Some(disk::ARGUMENT) => disk::main(),
        Some(files::ARGUMENT) => files::main(),
        Some(settle::ARGUMENT) => settle::sweep_main(),
        _ => {}
    }
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            output::usage(&error, args::Format::asked_for(std::env::args_os()));
            let code = if error.use_stderr() { Code::Usage } else { Code::Done };
            return ended(code, false);
        }
    };
    let format = args.format;
    // What a task came to is said by the exit code, whoever hears the rest.
    use args::Command::{Land, Retry, Run, Try, Undo, Wait};
    let is_task = matches!(args.command, Run(_) | Try(_) | Undo(_) | Retry(_) | Land(_) | Wait(_));
    match commands::dispatch(args) {
        Ok(code) => ended(code, is_task),
        Err(error) => {
            output::error(&error, format);
            ExitCode::from(error.exit_code() as u8)
        }
    }
}

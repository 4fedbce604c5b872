//! `dam`: isolated write contexts for unattended work.

mod args;
mod commands;
mod output;
mod render;
mod signals;
mod slow;
mod table;
mod terminal;

use std::process::ExitCode;

use clap::Parser;
use cofferdam_core::{disk, harvest, init, settle};

fn main() -> ExitCode {
    init::ignore_size_signal();
    // This binary is also what runs inside and beside a context: first thing,
    // before anything of an ordinary process is set up.
    match std::env::args_os().nth(1).as_deref().and_then(std::ffi::OsStr::to_str) {
        Some(init::ARGUMENT) => init::main(),
        Some(harvest::ARGUMENT) => harvest::main(),
        Some(disk::ARGUMENT) => disk::main(),
        Some(settle::ARGUMENT) => settle::sweep_main(),
        _ => {}
    }
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            output::usage(&error, args::Format::asked_for(std::env::args_os()));
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let format = args.format;
    // What a task came to is said by the exit code, whoever hears the rest.
    let is_task = matches!(args.command, args::Command::Run(_) | args::Command::Land(_));
    match commands::dispatch(args) {
        Ok(code) => {
            if let Some(why) = output::lost() {
                output::note(&format!("error: standard output is not complete: {why}\n"));
                if !is_task {
                    return ExitCode::from(cofferdam_core::ExitCode::Internal as u8);
                }
            }
            ExitCode::from(code as u8)
        }
        Err(error) => {
            output::error(&error, format);
            ExitCode::from(error.exit_code() as u8)
        }
    }
}

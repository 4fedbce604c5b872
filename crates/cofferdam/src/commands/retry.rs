//! `dam retry`.

use cofferdam_core::request::Request;
use cofferdam_core::{Error, ExitCode, task};

use super::run::variables;
use crate::args::{Format, Retry};
use crate::render::Renderer;
use crate::signals;

/// Runs the command of a task again, in its context.
pub fn retry(args: Retry, format: Format) -> Result<ExitCode, Error> {
    let given = variables(&args.env)?;
    let mut dam = super::open()?;
    let control = signals::control();
    let renderer = Renderer::new(format);
    let change = |request: &mut Request| {
        request.attempts = args.attempts;
        request.timeout = args.timeout.or(request.timeout);
        for (name, value) in given {
            let known = name.to_string_lossy().into_owned();
            if !request.env_names.contains(&known) {
                request.env_names.push(known);
            }
            request.env.push((name, value));
        }
    };
    let receipt = task::retry(&mut dam, &args.name, change, control, &renderer)?;
    drop(renderer);
    Ok(super::conclude(&receipt, format))
}

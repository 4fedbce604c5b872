//! `dam land`.

use cofferdam_core::{Error, ExitCode, task};

use super::run::checks;
use crate::args::{Format, Land};
use crate::render::Renderer;
use crate::signals;

/// Lands a task that waits.
pub fn land(args: Land, format: Format) -> Result<ExitCode, Error> {
    let more = checks(&args.checks)?;
    let mut dam = super::open()?;
    let control = signals::control();
    let renderer = Renderer::new(format);
    let change = |request: &mut cofferdam_core::request::Request| {
        request.checks.extend(more);
        request.allow_check_changes |= args.allow_check_changes;
        request.no_check = args.no_check || (request.no_check && args.checks.is_empty());
    };
    let receipt = task::land_again(&mut dam, &args.name, change, control, &renderer)?;
    drop(renderer);
    Ok(super::conclude(&receipt, format))
}

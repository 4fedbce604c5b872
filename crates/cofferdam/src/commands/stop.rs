//! `dam stop`, `dam wait` and `dam drop`.

use std::time::Duration;

use cofferdam_core::receipt::Receipt;
use cofferdam_core::{Error, ExitCode, query, settle, supervise};

use crate::args::Format;
use crate::output;
use crate::slow::Slow;

/// Ends a running task.
pub fn stop(name: &str, format: Format) -> Result<ExitCode, Error> {
    let mut dam = super::open()?;
    // Asked, then killed after the grace, then some time to write it down.
    let patience = supervise::GRACE + Duration::from_secs(20);
    let task = query::stop(&mut dam, name, Some(patience))?;
    super::conclude(&Receipt::of(&task)?, format);
    Ok(ExitCode::Done)
}

/// Waits for a task and exits as it did.
pub fn wait(name: &str, format: Format) -> Result<ExitCode, Error> {
    let mut dam = super::open()?;
    let task = query::wait(&mut dam, name)?;
    Ok(super::conclude(&Receipt::of(&task)?, format))
}

/// Deletes contexts.
pub fn drop(names: &[String], format: Format) -> Result<ExitCode, Error> {
    let mut dam = super::open()?;
    for name in names {
        let slow = Slow::begin("removing");
        let task = settle::drop_task(&mut dam, name)?;
        std::mem::drop(slow);
        match format {
            Format::Text => output::note(&format!("dropped {} ({})\n", task.name, task.id)),
            _ => output::json_line(&Receipt::of(&task)?),
        }
    }
    Ok(ExitCode::Done)
}

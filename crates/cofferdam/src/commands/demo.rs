//! `dam demo`.

use cofferdam_core::{Error, ExitCode};

use crate::args::Demo;

/// Shows it all in a throw-away repository.
pub fn demo(_args: &Demo) -> Result<ExitCode, Error> {
    Err(Error::Internal("not there yet".into()))
}

//! Tests of the binary: wiring, output, exit codes, and the promises that only
//! show from outside.

mod cli;
mod docs;
mod isolation;
mod line;
mod support;

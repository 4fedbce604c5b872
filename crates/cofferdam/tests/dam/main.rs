//! Tests of the binary: wiring, output, exit codes, and the promises that only
//! show from outside.

mod agents;
mod attempts;
mod bed;
mod cli;
mod collect;
mod config;
mod crash;
mod diagnosis;
mod docs;
mod enter;
mod files;
mod follow;
mod harvest;
mod inputs;
mod isolation;
mod judge;
mod limits;
mod line;
mod locks;
mod moments;
mod once;
mod overview;
mod parallel;
mod places;
mod projects;
mod repositories;
mod runners;
mod scale;
mod signals;
mod support;
mod tools;
mod trace;
mod undo;
mod worktree;

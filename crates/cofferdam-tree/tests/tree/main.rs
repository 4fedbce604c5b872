//! Hostile trees, locks and layers, as root and as an ordinary user.

mod delta;
mod durable;
mod layer;
mod lock;
mod overlay;
mod remove;
mod support;
mod trash;
mod usage;
mod walk;

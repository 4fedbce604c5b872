//! Ctrl-C and its kin become calls of one handle.
//!
//! See `docs/design/signals.md` for the table.

use cofferdam_core::control::Control;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// A handle that SIGINT, SIGTERM and SIGHUP interrupt from now on.
pub fn control() -> Control {
    let control = Control::default();
    let handle = control.clone();
    match Signals::new([SIGINT, SIGTERM, SIGHUP]) {
        Ok(mut signals) => {
            std::thread::spawn(move || signals.forever().for_each(|_| handle.interrupt()));
        }
        // The default action ends us, and the parent-death signal the task.
        Err(error) => eprintln!("warning: signals can't be caught: {error}"),
    }
    control
}

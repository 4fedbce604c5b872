//! Ctrl-C and its kin become calls of one handle.
//!
//! See `docs/design/signals.md` for the table.

use cofferdam_core::control::Control;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// A handle that SIGINT, SIGTERM and SIGHUP interrupt from now on, but for those
/// that the caller had us ignore (`nohup`, a shell's background job).
pub fn control() -> Control {
    let control = Control::default();
    let handle = control.clone();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored(&status);
    let (give, take) = std::sync::mpsc::channel::<Signals>();
    let count = move || {
        if let Ok(mut signals) = take.recv() {
            signals.forever().for_each(|_| handle.interrupt());
        }
    };
    // The default action ends us, and the parent-death signal the task. So it stays when
    // nobody could obey.
    let uncaught = |error| eprintln!("warning: signals can't be caught: {error}");
    if let Err(error) = std::thread::Builder::new().spawn(count) {
        uncaught(error);
        return control;
    }
    let wanted: Vec<i32> = [SIGINT, SIGTERM, SIGHUP]
        .into_iter()
        .filter(|signal| ignored >> (signal - 1) & 1 == 0)
        .collect();
    for signal in &wanted {
        // Where it can't be had, the thread below still counts.
        let _ = signal_hook::flag::register(*signal, control.flag());
    }
    match Signals::new(&wanted) {
        Ok(signals) => drop(give.send(signals)),
        Err(error) => uncaught(error),
    }
    control
}

/// The signals that a process ignores, as the bit mask of `proc_pid_status(5)`.
fn ignored(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_come_from_the_status_file() {
        let status = "Name:\tdam\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert_eq!(ignored(status) >> (SIGHUP - 1) & 1, 1);
        assert_eq!(ignored(status) >> (SIGINT - 1) & 1, 0);
        assert_eq!(ignored(""), 0);
    }
}

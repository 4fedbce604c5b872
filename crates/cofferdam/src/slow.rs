//! Says on a terminal what goes on, once it goes on for more than a second.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// What nobody has to be told about.
const SHORT: Duration = Duration::from_secs(1);
/// How often the line is drawn anew.
const DRAW_EVERY: Duration = Duration::from_millis(200);

/// A line that goes when this is dropped.
pub struct Slow {
    step: &'static str,
    counts: Arc<(AtomicU64, AtomicU64)>,
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Slow {
    /// Begins to wait; none where nobody looks.
    pub fn begin(step: &'static str) -> Option<Slow> {
        if !std::io::stderr().is_terminal() {
            return None;
        }
        let counts = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let (over, is_over) = channel::<()>();
        let shown = Arc::clone(&counts);
        let draw = move || {
            if is_over.recv_timeout(SHORT) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let style = ProgressStyle::with_template("  {spinner} {msg} {elapsed}");
            let bar = ProgressBar::new_spinner()
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            loop {
                bar.set_message(words(step, &shown));
                bar.tick();
                if is_over.recv_timeout(DRAW_EVERY) != Err(RecvTimeoutError::Timeout) {
                    return bar.finish_and_clear();
                }
            }
        };
        let thread = std::thread::Builder::new().spawn(draw).ok()?;
        Some(Slow { step, counts, over: Some(over), thread: Some(thread) })
    }

    /// What it says.
    pub fn step(&self) -> &'static str {
        self.step
    }

    /// How far it is; 0 in all where nobody knows.
    pub fn at(&self, done: u64, all: u64) {
        self.counts.0.store(done, Ordering::Relaxed);
        self.counts.1.store(all, Ordering::Relaxed);
    }
}

fn words(step: &str, counts: &(AtomicU64, AtomicU64)) -> String {
    match (counts.0.load(Ordering::Relaxed), counts.1.load(Ordering::Relaxed)) {
        (0, _) => step.to_owned(),
        (done, 0) => format!("{step}: {done} files"),
        (done, all) => format!("{step}: {done}/{all} files"),
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

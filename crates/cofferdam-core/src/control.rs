//! How a person ends a run.
//!
//! One handle, shared by the signal handler and the supervisor. The first
//! interrupt asks, the second insists. Once a publication has passed its commit
//! point nobody asks the handle any more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// See the module. Clones are the same handle.
#[derive(Debug, Clone, Default)]
pub struct Control {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Set in the signal handler itself: the thread that counts may come later.
    asked: Arc<AtomicBool>,
    state: Mutex<ControlState>,
    changed: Condvar,
}

#[derive(Debug, Default, Clone, Copy)]
struct ControlState {
    interrupts: u32,
    wakeups: u64,
}

/// What a wait ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    /// There are that many interrupts now.
    Interrupted(u32),
    /// The deadline passed.
    Deadline,
    /// Somebody called [`Control::wake`].
    Awoken,
}

impl Control {
    /// A person wants the run to end.
    pub fn interrupt(&self) {
        let mut state = self.inner.state.lock().expect("control");
        state.interrupts += 1;
        self.inner.changed.notify_all();
    }

    /// What a signal handler sets at once, before [`Control::interrupt`] is called
    /// from a thread: whoever looks next must know.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.inner.asked)
    }

    /// How often.
    #[must_use]
    pub fn interrupts(&self) -> u32 {
        let counted = self.inner.state.lock().expect("control").interrupts;
        counted.max(u32::from(self.inner.asked.load(Ordering::SeqCst)))
    }

    /// Ends all waits.
    pub(crate) fn wake(&self) {
        let mut state = self.inner.state.lock().expect("control");
        state.wakeups += 1;
        self.inner.changed.notify_all();
    }

    /// How often it was woken, to be given to [`Control::wait`].
    pub(crate) fn wakeups(&self) -> u64 {
        self.inner.state.lock().expect("control").wakeups
    }

    /// Waits until there are more than `seen` interrupts, the deadline has
    /// passed, or it was woken more than `wakeups` times.
    pub(crate) fn wait(&self, seen: u32, wakeups: u64, deadline: Option<Instant>) -> Woken {
        let mut state = self.inner.state.lock().expect("control");
        loop {
            if state.wakeups > wakeups {
                return Woken::Awoken;
            }
            if state.interrupts > seen {
                return Woken::Interrupted(state.interrupts);
            }
            let left = match deadline {
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Woken::Deadline;
                    }
                    left
                }
                None => Duration::from_secs(3600),
            };
            state = self.inner.changed.wait_timeout(state, left).expect("control").0;
        }
    }
}

//! What of the checkout a task does not see, found out beside the task; and what else
//! has time until then.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout};
use std::sync::Mutex;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use cofferdam_git::Repository;
use cofferdam_git::publish::Pin;

use crate::job::Job;
use crate::report::Event;

/// How long a command runs before the checkout is looked at beside it.
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// So many packs of the store become one beside a task.
const PACKS: usize = 16;

/// Runs `run` and meanwhile looks what of the checkout the task does not see. On
/// a large repository that takes longer than many a task: it ends with `run`, and
/// is not begun for one that is over at once. For any other, the git that waits to
/// remove the pin is let go (it would wait all night), and packs are gathered.
pub(crate) fn beside_a_look<T>(
    job: &Job<'_>,
    pin: &Mutex<Option<Pin>>,
    run: impl FnOnce() -> T,
) -> T {
    let (repo, store, reporter) = (&job.source.repo, &job.source.store, job.reporter);
    let nothing_to_see = repo.worktree.is_none() || job.request.carry_dirty;
    let look = &Mutex::new(Look::default());
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let beside = move || {
            if is_over.recv_timeout(LOOK_AFTER) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            drop(pin.lock().expect("pin").take());
            // Whoever can't will be told when it has to write there itself.
            let _ = store.gather_packs(PACKS);
            if nothing_to_see {
                return;
            }
            let Some(out) = begin_look(repo, look) else { return };
            let (mut changed, mut untracked) = (0, 0);
            for entry in BufReader::new(out).split(0) {
                match entry.as_deref() {
                    Ok([b'?', b'?', ..]) => untracked += 1,
                    Ok([_, _, _, _, ..]) => changed += 1,
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
            if look.lock().expect("look").over {
                return;
            }
            if changed + untracked > 0 {
                reporter.report(Event::NotInBase { changed, untracked });
            }
        };
        // Without a thread nobody looks; the task goes on all the same.
        let _ = std::thread::Builder::new().spawn_scoped(scope, beside);
        let done = run();
        let mut look = look.lock().expect("look");
        look.over = true;
        if let Some(child) = &mut look.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        drop(over);
        done
    })
}

/// What the two threads of [`beside_a_look`] share.
#[derive(Default)]
struct Look {
    over: bool,
    child: Option<Child>,
}

fn begin_look(repo: &Repository, look: &Mutex<Look>) -> Option<ChildStdout> {
    let mut look = look.lock().expect("look");
    if look.over {
        return None;
    }
    let git = repo.git().args(["status", "--porcelain", "-z", "--ignore-submodules"]);
    let child = look.child.insert(git.converse().ok()?.child);
    child.stdout.take()
}

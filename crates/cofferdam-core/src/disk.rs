//! The disk limit: what a context has on disk is counted while its command runs.
//!
//! No file system here can be asked to limit a directory, so this is accounting.
//! Counting a whole tree takes long; how much is free on its file system does not.
//! So that is looked at often, and the tree is counted when so much has gone that
//! the task could be near its limit, and now and then in any case, since others give
//! space back meanwhile. A file that is open and has no name any more is not counted.

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use cofferdam_sandbox::{Ids, Remote, enter_user_namespace};
use cofferdam_tree::TextOrBytes;
use rustix::fs::{CWD, Mode, OFlags, openat};
use serde::{Deserialize, Serialize};
use serde_with::As;

/// The first argument that makes a binary call [`main`].
pub const ARGUMENT: &str = "__usage";

/// How much a context may have on disk that does not say, in bytes.
pub const DISK: u64 = 10 << 30;

/// How often the free space is looked at, for a small and a large limit.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));
/// From where on a limit is large, in bytes.
const LARGE: u64 = 1 << 30;
/// How long the tree is not counted at most, and in multiples of what it takes.
const COUNT_EVERY: (Duration, u32) = (Duration::from_secs(5), 50);
/// A smaller change of the free space is nobody's in particular, in bytes.
const NOISE: u64 = 1 << 20;

/// Ends a task that has more on disk than it may. Returns when `is_over` is closed,
/// or with `true` when it has ended it.
pub(crate) fn watch(
    context: &Path,
    ids: Ids,
    most: u64,
    is_over: &Receiver<()>,
    remote: &Remote,
) -> bool {
    let look_every = if most < LARGE { LOOK_EVERY.0 } else { LOOK_EVERY.1 };
    let (mut free, mut counted, mut took) = (free_on(context), Instant::now(), Duration::ZERO);
    let mut room = most / 4;
    while is_over.recv_timeout(look_every) == Err(RecvTimeoutError::Timeout) {
        let now = free_on(context);
        let due = counted.elapsed() >= COUNT_EVERY.0.max(took * COUNT_EVERY.1);
        if free.saturating_sub(now) < room.max(NOISE) && !due {
            continue;
        }
        let begun = Instant::now();
        let used = used_by(context, ids);
        (free, counted, took) = (now, Instant::now(), begun.elapsed());
        if used > most {
            remote.kill();
            return true;
        }
        room = (most - used) / 4;
    }
    false
}

/// Whether next to nothing can be written any more where `dir` is.
pub(crate) fn is_full(dir: &Path) -> bool {
    rustix::fs::statvfs(dir).is_ok_and(|fs| {
        fs.f_bavail.saturating_mul(fs.f_frsize) < NOISE || (fs.f_files > 0 && fs.f_favail < 16)
    })
}

fn free_on(dir: &Path) -> u64 {
    rustix::fs::statvfs(dir).map_or(0, |fs| fs.f_bfree.saturating_mul(fs.f_frsize))
}

/// What a context has on disk, in bytes.
fn used_by(context: &Path, ids: Ids) -> u64 {
    let dirs = dirs_of(context);
    let (bytes, unreadable) = count(&dirs);
    if !unreadable || ids.switch {
        return bytes;
    }
    // Directories that their own owner can't list.
    counted_by_helper(&dirs, ids).unwrap_or(bytes).max(bytes)
}

/// What a task can write in: not the work directories, which are the kernel's.
fn dirs_of(context: &Path) -> Vec<PathBuf> {
    let homes = std::fs::read_dir(context.join("homes")).into_iter().flatten();
    let homes = homes.filter_map(Result::ok).map(|home| home.path().join("upper"));
    ["upper", "home", "tmp", "out"]
        .map(|name| context.join(name))
        .into_iter()
        .chain(homes)
        .collect()
}

/// The bytes below these directories, and whether some could not be read.
fn count(dirs: &[PathBuf]) -> (u64, bool) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let (mut bytes, mut unreadable) = (0u64, false);
    for dir in dirs {
        let usage = openat(CWD, dir, flags, Mode::empty())
            .ok()
            .and_then(|dir| cofferdam_tree::disk_usage(dir.as_fd()).ok());
        match usage {
            Some(usage) => {
                bytes = bytes.saturating_add(usage.bytes);
                unreadable |= usage.unreadable > 0;
            }
            None => unreadable = true,
        }
    }
    (bytes, unreadable)
}

#[derive(Serialize, Deserialize)]
struct Counting {
    ids: Ids,
    #[serde(with = "As::<Vec<TextOrBytes>>")]
    dirs: Vec<PathBuf>,
}

/// Asks this binary again, in a user namespace in which it may read everything.
fn counted_by_helper(dirs: &[PathBuf], ids: Ids) -> Option<u64> {
    let job = serde_json::to_string(&Counting { ids, dirs: dirs.to_vec() }).ok()?;
    let output = std::process::Command::new("/proc/self/exe")
        .arg0("dam-usage")
        .args([ARGUMENT, &job])
        .env_clear()
        .process_group(0)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// Is the helper; never returns.
pub fn main() -> ! {
    let answer = || -> Option<u64> {
        let job = std::env::args_os().nth(2)?.into_string().ok()?;
        let Counting { ids, dirs } = serde_json::from_str(&job).ok()?;
        enter_user_namespace(ids, rustix::thread::UnshareFlags::empty()).ok()?;
        Some(count(&dirs).0)
    };
    match answer() {
        Some(bytes) => println!("{bytes}"),
        None => std::process::exit(1),
    }
    std::process::exit(0)
}

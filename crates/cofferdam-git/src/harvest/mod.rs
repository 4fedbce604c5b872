//! Reading the result out of a context, every byte of it hostile.
//!
//! Two halves with a pipe between them, because they need different powers:
//!
//! 1. [`scan`] runs in a helper inside the task's own kind of user namespace,
//!    after the task's last process is gone. It may read everything the task
//!    left (mode-000 files too) and can write nothing but the pipe. It walks the
//!    upper directory only, decides what is ignored, and runs no git at all.
//! 2. [`collect`] runs in the supervisor. It turns the frames into objects in
//!    our store and one commit on the base, by editing the base's trees along
//!    the changed paths: nothing in it is proportional to the repository.
//!
//! What counts as tracked is what the lower layers hold: they are the base tree
//! and nothing else. So a file below an ignored directory that was committed
//! once is still seen, as git itself sees it. What the task's index says otherwise (an
//! ignored file that was added by force, one that is tracked no more, one that a sparse
//! checkout leaves out) is read by our own parser; what it put aside in its git (a
//! stash, another branch) is told of.
//!
//! | found in upper | becomes |
//! |---|---|
//! | file, hard link | a blob, by the base tree's attributes; mode 755 when executable |
//! | symlink | a link; refused when it points outside of the repository and is not the base's own |
//! | whiteout | a deletion |
//! | opaque directory | a deletion of what the base has there, then its content |
//! | directory | walked |
//! | another mode of a file | the executable bit; with `core.fileMode=false` that of the task's index |
//! | another commit of a submodule in the task's index | refused by name |
//! | fifo, socket, device | left out when untracked, as git leaves them out; refused by name in place of a tracked path |
//! | setuid, setgid file | refused by name |
//! | a file that attributes in the same change would convert | refused by name |
//! | a name that git must not check out (`.git` in any spelling) | refused by name |
//! | below a submodule | refused by name |

mod aside;
mod collect;
mod commit;
mod frame;
mod names;
mod new_rules;
mod scan;
mod tracked;

pub use collect::{
    ChangeCounts, ChangeSet, ChangedPath, Collected, CommitText, NAMED, Onto, collect,
};
pub use commit::SCRATCH;
pub use scan::{Rules, scan, scan_copy};

use cofferdam_tree::BytePath;

/// Why a result can't be taken out of its context as it is.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Something at this path can't be landed.
    #[error("`{path}` {why}")]
    Path {
        /// The path.
        path: BytePath,
        /// What is wrong, as a fragment: `is a fifo`.
        why: String,
    },
    /// The helper ended early or its words make no sense.
    #[error("the helper that reads the context failed: {0}")]
    Helper(String),
}

impl Refusal {
    fn path(path: &[u8], why: impl Into<String>) -> Refusal {
        Refusal::Path { path: path.into(), why: why.into() }
    }
}

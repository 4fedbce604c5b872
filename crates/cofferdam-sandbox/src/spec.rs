//! What a task gets: handed to pid 1 once.

use std::ffi::OsString;
use std::path::PathBuf;

use cofferdam_tree::TextOrBytes;
use serde::{Deserialize, Serialize};
use serde_with::As;

use crate::{Ids, Limits};

/// Everything that pid 1 needs to build a task's view and start its command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// As whom the task runs, inside and outside.
    pub ids: Ids,
    /// Host directory against which relative sources in [`Mount::Overlay`] and
    /// [`Mount::Bind`] are resolved. Short relative names keep the host's paths
    /// out of the task's `/proc/self/mountinfo` and within the length that the
    /// kernel takes (256 bytes a value).
    #[serde(with = "As::<TextOrBytes>")]
    pub base_dir: PathBuf,
    /// What of the host the command sees.
    pub view: View,
    /// How the second wall stands.
    pub wall: Wall,
    /// Directories in which the command may write, as it sees them (for Landlock).
    #[serde(with = "As::<Vec<TextOrBytes>>")]
    pub writable: Vec<PathBuf>,
    /// What pid 1 has to see to: the limits that no control group holds.
    pub limits: Limits,
    /// What is run.
    pub command: Command,
}

/// What of the host a command sees.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum View {
    /// Namespaces and a root view of its own.
    Own {
        /// What appears in the root view, in this order.
        mounts: Vec<Mount>,
        /// Network scope.
        network: Network,
    },
    /// The host's files, processes and network, as whoever started it. Landlock, where
    /// the kernel has it, lets it write in [`Spec::writable`] alone. Its processes are
    /// found by descent, so the end of pid 1 is not the end of them by itself.
    Host,
}

impl View {
    /// Whether it is the host's.
    #[must_use]
    pub const fn is_hosts(&self) -> bool {
        matches!(self, View::Host)
    }
}

/// One thing in the root view. Destinations are absolute paths inside; missing
/// parent directories are made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Mount {
    /// A host file or directory, with everything mounted below it.
    Bind {
        /// Host path, absolute or relative to [`Spec::base_dir`].
        #[serde(with = "As::<TextOrBytes>")]
        source: PathBuf,
        /// Path inside.
        #[serde(with = "As::<TextOrBytes>")]
        dest: PathBuf,
        /// Whether the task can write there.
        writable: bool,
        /// Whether programs can be started from there.
        executable: bool,
    },
    /// A file of the host's at its own path, read-only, as it is when the task
    /// starts. A small one that everybody may read is copied: a mount costs more.
    Copy {
        /// Absolute path.
        #[serde(with = "As::<TextOrBytes>")]
        path: PathBuf,
    },
    /// A host directory through an overlay of the task's own: reads come from there,
    /// writes and locks stay here. What is mounted below it is not seen.
    Private {
        /// Host path, absolute.
        #[serde(with = "As::<TextOrBytes>")]
        source: PathBuf,
        /// Paths in it, relative, that are not there inside, whether they exist
        /// outside or not.
        #[serde(with = "As::<Vec<TextOrBytes>>")]
        hidden: Vec<PathBuf>,
        /// Upper directory, relative to [`Spec::base_dir`].
        upper: String,
        /// Work directory on the same file system as `upper`.
        work: String,
        /// Path inside.
        #[serde(with = "As::<TextOrBytes>")]
        dest: PathBuf,
    },
    /// A private overlay.
    Overlay {
        /// Lower directories, topmost first, relative to [`Spec::base_dir`].
        lower: Vec<String>,
        /// Upper directory, relative to [`Spec::base_dir`]; `None` makes the
        /// overlay read-only.
        upper: Option<String>,
        /// Work directory on the same file system as `upper`.
        work: Option<String>,
        /// Path inside.
        #[serde(with = "As::<TextOrBytes>")]
        dest: PathBuf,
    },
    /// An empty file system in memory.
    Tmpfs {
        /// Path inside.
        #[serde(with = "As::<TextOrBytes>")]
        dest: PathBuf,
        /// Permission bits of its root.
        mode: u32,
        /// Size limit in bytes.
        size: u64,
    },
    /// A small read-only file with this content.
    File {
        /// Path inside.
        #[serde(with = "As::<TextOrBytes>")]
        dest: PathBuf,
        /// Its content.
        content: Vec<u8>,
    },
    /// A symbolic link.
    Symlink {
        /// Path inside.
        #[serde(with = "As::<TextOrBytes>")]
        dest: PathBuf,
        /// What it says.
        #[serde(with = "As::<TextOrBytes>")]
        target: PathBuf,
    },
    /// An empty directory.
    Dir {
        /// Path inside.
        #[serde(with = "As::<TextOrBytes>")]
        dest: PathBuf,
    },
    /// A private `/dev`: null, zero, full, random, urandom, tty, own pts, shm.
    Dev,
    /// The `/proc` of the task's own pid namespace.
    Proc,
    /// The control groups (version 2) of the task's own cgroup namespace, read-only.
    Cgroup,
}

/// The network that a task can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// A private loopback, nothing else.
    None,
    /// The host's own network.
    Open,
}

/// How the second wall (Landlock, seccomp, masked `/proc`) stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wall {
    /// All of it.
    Full,
    /// For programs that bring their own sandbox: no Landlock rules on files,
    /// namespaces and mounts allowed inside, `/proc` masked only for a task that
    /// root started. The mount wall does not depend on any of these.
    Nested,
}

/// A command, its directory and its whole environment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments. A program without `/` is looked up in `PATH`.
    #[serde(with = "As::<Vec<TextOrBytes>>")]
    pub argv: Vec<OsString>,
    /// The whole environment; nothing is inherited.
    #[serde(with = "As::<Vec<(TextOrBytes, TextOrBytes)>>")]
    pub env: Vec<(OsString, OsString)>,
    /// Working directory, a path inside.
    #[serde(with = "As::<TextOrBytes>")]
    pub cwd: PathBuf,
    /// The working directory when that one can't be entered: an earlier attempt may have
    /// moved it.
    #[serde(with = "As::<TextOrBytes>")]
    pub else_cwd: PathBuf,
    /// File mode creation mask.
    pub umask: u32,
    /// What it prints to is a terminal, which it gets as its controlling one and as
    /// its input. Else its input is empty.
    pub terminal: bool,
}

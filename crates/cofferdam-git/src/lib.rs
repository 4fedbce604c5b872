//! The only code that runs git.
//!
//! - [`GitCommand`] is the one way to start it: explicit repository, cleared
//!   environment, hooks off, everything that lands synced.
//! - [`Repository`] is the person's repository, [`Store`] our own bare one that
//!   borrows its objects: harvest, merge and layers write there, so the
//!   person's repository is untouched until something lands. [`Objects`] reads it.
//! - [`difference`] is what differs between two trees, [`layer`] checks trees out into the layer store, [`gitdir`] generates a
//!   context's private `.git`.
//! - [`harvest`] reads a result out of a context; [`merge`] puts it on a tip.
//! - [`publish`] moves a branch, [`follow`] lets a checked-out worktree follow,
//!   [`remote`] pushes.
//!
//! The host never runs git with a gitdir, configuration, hook or attribute file
//! that a context could have written.

#![forbid(unsafe_code)]

pub mod alternates;
mod attributes;
mod command;
mod config;
pub mod difference;
pub mod follow;
pub mod gitdir;
pub mod harvest;
mod index;
pub mod layer;
pub mod lfs;
pub mod merge;
pub mod mode;
pub mod modules;
mod objects;
mod oid;
mod packs;
pub mod pattern;
pub mod publish;
pub mod remote;
mod replace;
mod repo;
mod store;
mod symbolic;
mod told;
mod trees;
pub mod version;

pub use command::{Conversation, GitCommand, RunAs, Started};
pub use config::PersonConfig;
pub use index::copy_index;
pub use objects::Objects;
pub use oid::{CommitId, ObjectFormat, Oid, TreeId};
pub use repo::{AtHead, Discovered, Discovery, FoundIn, Repository};
pub use store::Store;
pub use told::Told;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// git's exit code for an option that it does not know.
const USAGE: i32 = 129;

/// Why a step with git failed.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// git is not there or can't be started.
    #[error("`git` can't be started")]
    NotStarted(#[source] std::io::Error),
    /// git said no.
    #[error("`git {command}` failed{}: {}", code.map(|code| format!(" with {code}")).unwrap_or_default(), stderr.trim())]
    Failed {
        /// The subcommand with its arguments.
        command: String,
        /// Its exit code, none when a signal ended it.
        code: Option<i32>,
        /// What it printed.
        stderr: String,
    },
    /// An object that a commit needs is not in the repository.
    #[error("object {0} is missing in the repository")]
    MissingObject(Oid),
    /// An object that can't be read.
    #[error("object {oid} (stored in `{}`) is corrupt", file.display())]
    CorruptObject {
        /// Its name.
        oid: Oid,
        /// Where it is.
        file: PathBuf,
    },
    /// git answered in a form not known here.
    #[error("`git {command}` gave an answer of an unknown form: {answer}")]
    Unexpected {
        /// The subcommand.
        command: String,
        /// The answer, shortened.
        answer: String,
    },
    /// Not inside a repository.
    #[error("`{0}` is not inside a git repository")]
    NotARepository(PathBuf),
    /// A repository that was there.
    #[error("the repository `{0}` is not there any more")]
    Gone(PathBuf),
    /// git refuses to work on what belongs to somebody else.
    #[error("git does not trust the repository at `{}`: it belongs to somebody else", dir.display())]
    NotTrusted {
        /// The directory that was looked at.
        dir: PathBuf,
    },
    /// A branch without a commit.
    #[error("`{0}` has no commit yet")]
    Unborn(PathBuf),
    /// A revision that names no commit.
    #[error("`{0}` is not a commit of this repository")]
    NoSuchRevision(String),
    /// A repository or index of a kind that is not supported.
    #[error("{0}")]
    Unsupported(String),
    /// A file that Git LFS keeps can't be had.
    #[error("`{path}` is kept by Git LFS, and {why}")]
    Lfs {
        /// The file.
        path: cofferdam_tree::BytePath,
        /// Why.
        why: String,
    },
    /// A submodule that is initialised and not up to date.
    #[error("the submodule `{path}` does not have {}, which is wanted of it", commit.0.short())]
    Submodule {
        /// Where it is.
        path: cofferdam_tree::BytePath,
        /// The commit that a tree names.
        commit: CommitId,
    },
    /// A file of ours or of the repository.
    #[error("failed to {step} `{path}`")]
    Io {
        /// What was being done, as a verb: `write`.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A tree reading or removal failed.
    #[error(transparent)]
    Walk(#[from] cofferdam_tree::walk::WalkError),
    /// The layer store.
    #[error(transparent)]
    Layer(#[from] cofferdam_tree::layer::LayerError),
    /// A lock file of git's is there.
    #[error(transparent)]
    Locked(#[from] publish::Locked),
    /// The result can't be taken out of its context as it is.
    #[error(transparent)]
    Refused(#[from] harvest::Refusal),
}

impl GitError {
    /// The error of a call that failed and said this.
    fn of_failed(command: String, code: Option<i32>, stderr: String) -> GitError {
        if let Some((oid, file)) = corrupt_object(&stderr) {
            return GitError::CorruptObject { oid, file: file.into() };
        }
        if let Some(path) = quoted(&stderr, "failed to encode '", "' from ") {
            let encoding = quoted(&stderr, "' from ", " to ").unwrap_or("its encoding");
            let why = format!("can't be read as {encoding}, its `working-tree-encoding`");
            return harvest::Refusal::Path { path: path.as_bytes().into(), why }.into();
        }
        if let Some(path) = quoted(&stderr, "error: '", "/' does not have a commit checked out") {
            return GitError::Unsupported(format!(
                "`{path}` is a repository without a commit, and can't be carried along: make a \
                 commit in it, or remove or ignore it"
            ));
        }
        match missing_object(&stderr) {
            Some(oid) => GitError::MissingObject(oid),
            None if code == Some(USAGE) => {
                version::or_too_old(GitError::Failed { command, code, stderr })
            }
            None => GitError::Failed { command, code, stderr },
        }
    }

    /// Whether git was stopped by what this machine lacks.
    #[must_use]
    pub fn is_of_this_machine(&self) -> bool {
        self.is_for_want_of_room() || self.is_too_large() || self.is_at_process_limit()
    }

    /// What git said, in one line and without how it was called.
    #[must_use]
    pub fn in_words(&self) -> String {
        match self {
            GitError::Failed { stderr, .. } if !stderr.trim().is_empty() => in_one_line(stderr),
            other => other.to_string(),
        }
    }

    /// Whether git says that it may not write.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        const WORDS: [&str; 2] = ["Read-only file system", "Permission denied"];
        match self {
            GitError::Failed { stderr, .. } => WORDS.iter().any(|words| stderr.contains(words)),
            _ => false,
        }
    }

    /// Whether git says that a file may not become so large (`EFBIG`).
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        matches!(self, GitError::Failed { stderr, .. } if stderr.contains("File too large"))
    }

    /// Whether git says that it can have no more processes or threads.
    #[must_use]
    pub fn is_at_process_limit(&self) -> bool {
        matches!(self, GitError::Failed { stderr, .. }
            if stderr.contains("Resource temporarily unavailable"))
    }

    /// Whether git says that a disk is full: in the C library's words, or its own.
    #[must_use]
    pub fn is_for_want_of_room(&self) -> bool {
        const WORDS: [&str; 3] =
            ["No space left on device", "Disk quota exceeded", "Out of diskspace"];
        match self {
            GitError::Failed { stderr, .. } => WORDS.iter().any(|words| stderr.contains(words)),
            _ => false,
        }
    }
}

/// What git printed, in one line: its first lines, without what is said of any failure.
pub(crate) fn in_one_line(said: &str) -> String {
    const ALWAYS: [&str; 3] = [
        "failed to push some refs to",
        "Please make sure you have the correct access rights",
        "and the repository exists.",
    ];
    const MOST: usize = 12;
    let lines = said.lines().map(|line| {
        let line = line.trim();
        ["fatal: ", "error: "].iter().find_map(|word| line.strip_prefix(word)).unwrap_or(line)
    });
    let told = |line: &&str| !line.is_empty() && !ALWAYS.iter().any(|any| line.starts_with(any));
    // A list follows what ends so.
    lines.filter(told).take(MOST).collect::<Vec<_>>().join("; ").replace(":; ", ": ")
}

/// What stands between the first `before` and the next `after`.
fn quoted<'a>(said: &'a str, before: &str, after: &str) -> Option<&'a str> {
    Some(said.split_once(before)?.1.split_once(after)?.0)
}

/// The object that git found to be corrupt, and where it is.
fn corrupt_object(stderr: &str) -> Option<(Oid, &str)> {
    let line = stderr.lines().find(|line| line.ends_with(") is corrupt"))?;
    let oid = line.split_once(" object ")?.1.split(' ').next()?;
    Some((Oid::parse(oid)?, quoted(line, "(stored in ", ") is corrupt")?))
}

/// The object that git could not read, from what it says in each of its parts about one
/// that is not there.
fn missing_object(stderr: &str) -> Option<Oid> {
    const SAYS: [&str; 5] =
        ["cannot read ", "unable to read ", "Could not read ", "bad object ", "missing "];
    let line = stderr.lines().find(|line| SAYS.iter().any(|said| line.contains(said)))?;
    line.split(|c: char| !c.is_ascii_hexdigit()).find_map(Oid::parse)
}

/// A path of a tree in a directory.
fn below(top: &Path, path: &[u8]) -> PathBuf {
    top.join(OsStr::from_bytes(path))
}

/// The directories above a path of a tree, outermost first.
fn dirs_above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at])
}

pub(crate) trait IoContext<T> {
    fn at(self, step: &'static str, path: impl Into<PathBuf>) -> Result<T, GitError>;
}

impl<T, E: Into<std::io::Error>> IoContext<T> for Result<T, E> {
    fn at(self, step: &'static str, path: impl Into<PathBuf>) -> Result<T, GitError> {
        self.map_err(|source| GitError::Io { step, path: path.into(), source: source.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_object_is_told_from_other_failures() {
        let oid = "1e8b314962144c26d5e0e50fd29d2ca327864913";
        for said in [
            format!("error: cannot read object {oid} 'a'\nerror: more"),
            format!("fatal: unable to read blob object {oid}"),
            format!("hint: x\nfatal: unable to read tree ({oid})"),
            format!("error: unable to read sha1 file of a b ({oid})"),
            format!("fatal: bad object {oid}"),
        ] {
            assert_eq!(missing_object(&said), Oid::parse(oid), "{said}");
        }
        let said = format!(
            "error: inflate: data stream error\nfatal: loose object {oid} (stored in /r/.git/objects/1e/8b) is corrupt"
        );
        let of = |said: &str| GitError::of_failed("git".into(), Some(128), said.into());
        assert!(
            matches!(of(&said), GitError::CorruptObject { file, .. } if file.ends_with("1e/8b"))
        );
        for said in ["fatal: unable to read config file", &format!("fatal: {oid} is locked")] {
            assert_eq!(missing_object(said), None, "{said}");
        }
    }
}

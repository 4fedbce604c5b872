//! What a command changed in the directory that it started from.
//!
//! Both trees are copies of ours, so nothing changes while they are compared. Content is
//! compared byte by byte: a command can set sizes and times as it likes.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;

use std::path::{Path, PathBuf};

use cofferdam_git::harvest::ChangedPath;
use cofferdam_tree::Fingerprint;
use cofferdam_tree::target::patch::{Change, Op, State};

use super::Files;
use super::snapshot::{BASE, TREE};
use crate::admit::is_git_dir;
use crate::error::IoContext;
use crate::facts::ChangeCounts;
use crate::job::Job;
use crate::{Error, TaskDir};

/// How many paths are kept by name.
const NAMED: usize = 100;

/// The steps from the base to the result, directories before what is in them, and what is
/// removed last.
pub(super) fn ops(job: &Job<'_, Files>) -> Result<Vec<Op>, Error> {
    ops_in(&job.dir)
}

/// Whether a path is git's own: a hook or a setting there would be obeyed by the person's
/// git.
pub(super) fn is_of_git(path: &Path) -> bool {
    path.components().any(is_git_dir)
}

/// The paths that were changed and are git's own.
pub(super) fn of_git(job: &Job<'_, Files>) -> Result<Vec<Op>, Error> {
    let all = all_in(&job.dir)?;
    Ok(all.into_iter().filter(|op| is_of_git(&op.path)).collect())
}

/// A path below a directory that is git's own, if there is one.
pub(super) fn git_in(dir: &Path) -> Result<Option<PathBuf>, Error> {
    let mut found = None;
    below(dir, Path::new(""), &mut |path| {
        if found.is_none() && is_of_git(path) {
            found = Some(path.to_owned());
        }
        Ok(())
    })?;
    Ok(found)
}

/// As [`ops`], by the directory of the task.
pub(crate) fn ops_in(dir: &TaskDir) -> Result<Vec<Op>, Error> {
    let all = all_in(dir)?;
    Ok(all.into_iter().filter(|op| !is_of_git(&op.path)).collect())
}

fn all_in(dir: &TaskDir) -> Result<Vec<Op>, Error> {
    let base = dir.path().join(BASE);
    let tree = dir.results().join(TREE);
    let mut ops = Vec::new();
    below(&tree, Path::new(""), &mut |path| {
        let (old, new) = (state(&base.join(path))?, state(&tree.join(path))?);
        let change = match (&old, &new) {
            (old, new) if old == new => return Ok(()),
            (State::File(before), State::File(after)) if same(before, after) => return Ok(()),
            (_, State::File(file)) => Change::Write { executable: file.mode & 0o100 != 0 },
            (_, State::Link(target)) => Change::Link(target.clone()),
            (_, State::Dir) => Change::MakeDir,
            (_, State::Nothing) => return Ok(()),
        };
        ops.push(Op { path: path.to_owned(), old, change });
        Ok(())
    })?;
    let mut removed = Vec::new();
    below(&base, Path::new(""), &mut |path| {
        if tree.join(path).symlink_metadata().is_err() {
            let old = state(&base.join(path))?;
            removed.push(Op { path: path.to_owned(), old, change: Change::Remove });
        }
        Ok(())
    })?;
    ops.extend(removed.into_iter().rev());
    Ok(ops)
}

/// Of a file that is there already, a patch changes the content and whether it is a program.
fn same(before: &Fingerprint, after: &Fingerprint) -> bool {
    (&before.sha256, before.size, before.mode & 0o100)
        == (&after.sha256, after.size, after.mode & 0o100)
}

/// Calls `each` with every path below `dir`, sorted, a directory before what is in it.
fn below(
    dir: &Path,
    path: &Path,
    each: &mut dyn FnMut(&Path) -> Result<(), Error>,
) -> Result<(), Error> {
    let at = dir.join(path);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&at).at("read", &at)? {
        names.push(entry.at("read", &at)?.file_name());
    }
    names.sort_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
    for name in names {
        let path = path.join(name);
        each(&path)?;
        if dir.join(&path).symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            below(dir, &path, each)?;
        }
    }
    Ok(())
}

fn state(path: &Path) -> Result<State, Error> {
    let meta = match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(State::Nothing),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            return Ok(State::Nothing);
        }
        meta => meta.at("look at", path)?,
    };
    if meta.is_dir() {
        return Ok(State::Dir);
    }
    if meta.is_symlink() {
        return Ok(State::Link(std::fs::read_link(path).at("read", path)?));
    }
    let file = File::open(path).at("open", path)?;
    Ok(State::File(Fingerprint::of(&file, &mut |_| true).at("read", path)?))
}

/// Whether a directory takes the place of something else, or the reverse.
pub(super) fn is_another_kind(op: &Op) -> bool {
    matches!(
        (&op.old, &op.change),
        (State::File(_) | State::Link(_), Change::MakeDir)
            | (State::Dir, Change::Write { .. } | Change::Link(_))
    )
}

/// How much was changed, and the first paths.
pub(super) fn summary(ops: &[Op]) -> (ChangeCounts, Vec<ChangedPath>) {
    let mut counts = ChangeCounts::default();
    let mut paths = Vec::new();
    for op in ops {
        let kind = match (&op.old, &op.change) {
            (_, Change::MakeDir) => continue,
            (State::Dir, Change::Remove) => continue,
            (State::Nothing, _) => {
                counts.added += 1;
                'A'
            }
            (_, Change::Remove) => {
                counts.deleted += 1;
                'D'
            }
            _ => {
                counts.modified += 1;
                'M'
            }
        };
        if paths.len() < NAMED {
            paths.push(ChangedPath { kind, path: op.path.display().to_string() });
        }
    }
    (counts, paths)
}

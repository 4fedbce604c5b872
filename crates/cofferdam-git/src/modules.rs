//! Submodules that a person has initialised: a task sees their files, each at the
//! commit that its tree names.
//!
//! They are part of the layer of the tree that holds them, and have a private git
//! directory below the context's own, where git itself would have put it. What a task
//! changes inside one is refused by name.

use std::path::{Path, PathBuf};

use crate::mode::GITLINK;
use crate::{CommitId, GitError, Objects, PersonConfig, Repository, Store, TreeId, below};

/// A submodule that is initialised in the person's worktree.
#[derive(Debug, Clone)]
pub struct Module {
    /// Where it is, from the top of the outermost repository.
    pub path: Vec<u8>,
    /// The commit that the tree names.
    pub commit: CommitId,
    /// The person's repository of it.
    pub repo: Repository,
    /// The person's configuration there.
    pub config: PersonConfig,
    /// Our store of it.
    pub store: Store,
}

impl Module {
    /// Its git directory, from the top of a context.
    #[must_use]
    pub fn git_dir(&self) -> PathBuf {
        let mut name = Vec::new();
        for byte in &self.path {
            match byte {
                b'%' => name.extend(b"%25"),
                b'/' => name.extend(b"%2f"),
                other => name.push(*other),
            }
        }
        below(Path::new(".git/modules"), &name)
    }

    /// The way from its directory to the top.
    #[must_use]
    pub fn up(&self) -> String {
        "../".repeat(1 + self.path.iter().filter(|byte| **byte == b'/').count())
    }
}

/// The submodules of `tree` that `repo` has initialised, and theirs in turn; those
/// that hold others first. Stores are below `stores`.
///
/// # Errors
/// [`GitError::Submodule`] when one lacks the commit that the tree names.
pub fn initialised(
    stores: &Path,
    repo: &Repository,
    store: &Store,
    tree: &TreeId,
) -> Result<Vec<Module>, GitError> {
    let mut found = Vec::new();
    look(stores, (repo, store, tree), b"", &mut found)?;
    Ok(found)
}

fn look(
    stores: &Path,
    (repo, store, tree): (&Repository, &Store, &TreeId),
    above: &[u8],
    found: &mut Vec<Module>,
) -> Result<(), GitError> {
    let Some(top) = &repo.worktree else { return Ok(()) };
    // Where the checkout has none, none can be initialised; and most have none.
    if !top.join(".gitmodules").is_file() {
        return Ok(());
    }
    for (path, commit) in named(store, tree)? {
        let dir = below(top, &path);
        if dir.join(".git").symlink_metadata().is_err() {
            continue;
        }
        let repo = Repository::find(&dir)?;
        if repo.worktree != std::fs::canonicalize(&dir).ok() {
            continue;
        }
        let config = PersonConfig::read(&repo)?;
        let store = Store::open(stores, &repo, &config)?;
        let path = [above, &path].concat();
        let Ok(tree) = store.tree_of(&commit) else {
            return Err(GitError::Submodule { path: path.as_slice().into(), commit });
        };
        let below = [&path, b"/".as_slice()].concat();
        let module = Module { path, commit, repo, config, store };
        found.push(module.clone());
        look(stores, (&module.repo, &module.store, &tree), &below, found)?;
    }
    Ok(())
}

/// Whether a path that somebody wrote down leads to something below.
fn is_below(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}

/// The submodules that a tree has and its `.gitmodules` names.
fn named(store: &Store, tree: &TreeId) -> Result<Vec<(Vec<u8>, CommitId)>, GitError> {
    let listed = store
        .git()
        .args(["config", "-z", &format!("--blob={tree}:.gitmodules")])
        .args(["--get-regexp", r"^submodule\..*\.path$"])
        .finish()?;
    // No such file in this tree, or nothing in it.
    let paths: Vec<Vec<u8>> = listed
        .stdout
        .split(|byte| *byte == 0)
        .filter_map(|entry| Some(entry.splitn(2, |byte| *byte == b'\n').nth(1)?.to_vec()))
        .filter(|path| is_below(path))
        .collect();
    if !listed.status.success() || paths.is_empty() {
        return Ok(Vec::new());
    }
    let entries = Objects::start(store)?.entries(tree, &paths)?.into_iter();
    Ok(entries
        .filter(|(_, mode, _)| *mode == GITLINK)
        .map(|(path, _, oid)| (path, CommitId(oid)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_are_asked_for() {
        for good in [b"a".as_slice(), b"a/..b/c d", b"\xff"] {
            assert!(is_below(good));
        }
        for bad in [b"".as_slice(), b"/a", b"a/", b"a//b", b"..", b"a/../b", b"./a"] {
            assert!(!is_below(bad), "{}", String::from_utf8_lossy(bad));
        }
    }
}

//! Which worktrees have a branch checked out.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cofferdam_tree::TextOrBytes;
use serde_with::As;

use super::{FollowError, InTheWay};
use crate::{GitCommand, GitError, Repository};

/// A worktree of the repository that has a branch checked out.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Worktree {
    /// Its top directory.
    #[serde(with = "As::<TextOrBytes>")]
    pub dir: PathBuf,
    /// Its git directory.
    #[serde(with = "As::<TextOrBytes>")]
    pub git_dir: PathBuf,
}

/// The worktrees that have `branch` (a full ref name, of no symbolic ref) checked out, by
/// whatever name, or are in the middle of a rebase or bisect of it.
///
/// # Errors
/// [`InTheWay::Missing`] when one of them is not there: it can come back.
pub fn worktrees_on(repo: &Repository, branch: &str) -> Result<Vec<Worktree>, FollowError> {
    let mut found = Vec::new();
    for git_dir in git_dirs(repo) {
        let head = head_of(repo, &git_dir)?;
        let named = |file: &str| {
            let Ok(name) = std::fs::read_to_string(git_dir.join(file)) else { return Ok(false) };
            let name = name.trim();
            let full = match name.strip_prefix("refs/") {
                Some(_) => name.to_owned(),
                None => format!("refs/heads/{name}"),
            };
            Ok::<_, GitError>(full == branch || repo.ref_behind(&full)? == branch)
        };
        let checked_out = head.as_deref() == Some(branch);
        if !checked_out
            && !named("rebase-merge/head-name")?
            && !named("rebase-apply/head-name")?
            && !named("BISECT_START")?
        {
            continue;
        }
        if let Some(dir) = top_of(repo, &git_dir)? {
            // A mount point stays when what was mounted there has gone.
            let linked = git_dir != repo.git_dir && git_dir != repo.common_dir;
            if linked && dir.join(".git").symlink_metadata().is_err() {
                let locked = git_dir.join("locked").exists();
                return Err(InTheWay::Missing { worktree: dir, locked }.into());
            }
            found.push(Worktree { dir, git_dir });
        }
    }
    Ok(found)
}

/// The branch that a worktree's HEAD stands for.
fn head_of(repo: &Repository, git_dir: &Path) -> Result<Option<String>, GitError> {
    let file = git_dir.join("HEAD");
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let named = text.trim().strip_prefix("ref:").map(str::trim);
    // A file that stands for something else: with reftables it is a dummy, very
    // old repositories have a link there.
    if named != Some("refs/heads/.invalid") && !file.is_symlink() {
        return named.map(|name| repo.ref_behind(name)).transpose();
    }
    let done = GitCommand::persons(git_dir, repo.owner.as_ref())
        .args(["symbolic-ref", "--quiet", "HEAD"])
        .finish()?;
    let name = String::from_utf8_lossy(&done.stdout).trim().to_owned();
    Ok((!name.is_empty()).then_some(name))
}

/// The git directories of a repository's worktrees, the main one first.
pub(super) fn git_dirs(repo: &Repository) -> Vec<PathBuf> {
    let mut git_dirs = vec![repo.common_dir.clone()];
    if let Ok(entries) = std::fs::read_dir(repo.common_dir.join("worktrees")) {
        git_dirs.extend(entries.filter_map(Result::ok).map(|entry| entry.path()));
    }
    git_dirs
}

/// The path that a line holds.
fn a_path(line: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(line.strip_suffix(b"\n").unwrap_or(line)))
}

/// The top directory that belongs to a git directory; none for a bare repository.
fn top_of(repo: &Repository, git_dir: &Path) -> Result<Option<PathBuf>, FollowError> {
    if git_dir == repo.git_dir {
        return Ok(repo.worktree.clone());
    }
    if git_dir != repo.common_dir {
        let link = std::fs::read(git_dir.join("gitdir")).unwrap_or_default();
        // From git 2.48 on it may be relative.
        let top = git_dir.join(a_path(&link)).parent().map(Path::to_owned);
        // To git as well, one without a place is none.
        return Ok(top.filter(|_| !link.is_empty()));
    }
    let done = GitCommand::persons(git_dir, repo.owner.as_ref())
        .args(["config", "--get", "core.bare"])
        .finish()?;
    if String::from_utf8_lossy(&done.stdout).trim() == "true" {
        return Ok(None);
    }
    let done = GitCommand::persons(git_dir, repo.owner.as_ref())
        .args(["config", "--get", "core.worktree"])
        .finish()?;
    let not_found = |why: String| {
        Err(FollowError::InTheWay(InTheWay::NotFound { git_dir: git_dir.to_owned(), why }))
    };
    // 1: it is not set. Anything else is that git can't go to what is set.
    if !matches!(done.status.code(), Some(0 | 1)) {
        return not_found(format!("git can't go to its worktree: {}", done.stderr.trim()));
    }
    let configured = a_path(&done.stdout);
    if !configured.as_os_str().is_empty() {
        return Ok(Some(git_dir.join(configured)));
    }
    // A worktree can name a git directory elsewhere, which does not name it.
    if !git_dir.ends_with(".git") {
        let why = "does not say where; `git config core.worktree PATH` there says it";
        return not_found(why.to_owned());
    }
    Ok(git_dir.parent().map(Path::to_owned))
}

//! Putting a change set on the tip of a target, in memory.
//!
//! `git merge-tree` needs no work tree and no index. The attributes that choose
//! merge drivers are the target tip's: with those of the change, a
//! `* merge=union` that a task wrote would turn a conflict into a clean merge.

use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::attributes::{self, AttributesDir};
use crate::difference::{Changes, Difference, diff};
use crate::harvest::CommitText;
use crate::mode::{FILE, TYPE};
use crate::trees::{self, Changed};
use crate::{CommitId, GitCommand, GitError, Objects, Oid, Store, TreeId};

/// How many paths of a conflict are kept.
const KEPT: usize = 1000;

/// What merging gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Merged {
    /// One tree.
    Clean(TreeId),
    /// Both sides changed the same places of these paths.
    Conflict(Conflict),
}

/// Paths that both sides changed in the same places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The first of them, in order.
    pub paths: Vec<Vec<u8>>,
    /// How many there are besides.
    pub more: u64,
}

/// Merges what `change` did since `base` onto `tip`. `scratch` is an existing
/// directory of ours for the attributes of the tip.
///
/// # Errors
/// [`GitError`]; a conflict is not an error.
pub fn onto(
    store: &Store,
    base: (&CommitId, &TreeId),
    change: &TreeId,
    tip: (&CommitId, &TreeId),
    base_attributes: &Path,
    scratch: &Path,
) -> Result<Merged, GitError> {
    if base.1 == tip.1 {
        return Ok(Merged::Clean(change.clone()));
    }
    let dir = scratch.join("merge-attributes");
    tip_attributes(store, base.1, tip.1, base_attributes, &dir)?;
    // Side commits with `base` as their only parent: the merge base is then
    // exactly that, also after the branch was rewound, and on every git.
    let ours = bare_commit(store, tip.1, base.0)?;
    let theirs = bare_commit(store, change, base.0)?;
    let mut git = store
        .git()
        .work_tree(&dir)
        .args(["merge-tree", "--write-tree", "-z", "--name-only", "--no-messages"])
        .args([ours.as_str(), theirs.as_str()])
        .converse()?;
    drop(git.child.stdin.take());
    let mut fields = BufReader::new(git.child.stdout.take().expect("piped")).split(0);
    let tree = fields.next().and_then(Result::ok);
    let (mut conflict, mut last) = (Conflict { paths: Vec::new(), more: 0 }, Vec::new());
    for path in fields.map_while(Result::ok) {
        if path != last && !path.is_empty() {
            last.clone_from(&path);
            if conflict.paths.len() < KEPT {
                conflict.paths.push(path);
            } else {
                conflict.more += 1;
            }
        }
    }
    let done = git.finish()?;
    let clean = match done.status.code() {
        Some(0) => true,
        Some(1) => false,
        _ => return Err(done.failed()),
    };
    let tree = tree.and_then(|tree| Oid::parse(std::str::from_utf8(&tree).ok()?));
    let Some(tree) = tree else { return Err(done.unexpected()) };
    Ok(if clean { Merged::Clean(TreeId(tree)) } else { Merged::Conflict(conflict) })
}

/// Puts the attributes files of the tree `tip` into the directory `dir`: those of `base`,
/// which are in another, with what differs.
///
/// # Errors
/// [`GitError`].
pub(crate) fn tip_attributes(
    store: &Store,
    base: &TreeId,
    tip: &TreeId,
    base_attributes: &Path,
    dir: &Path,
) -> Result<(), GitError> {
    let attributes = AttributesDir(dir);
    attributes.copy_from(base_attributes)?;
    let mut objects = None;
    for difference in diff(store, base, tip, false)? {
        let difference = difference?;
        if !attributes::is_attributes(&difference.path) {
            continue;
        }
        if difference.new_mode & TYPE == FILE {
            let objects = match &mut objects {
                Some(objects) => objects,
                none => none.insert(Objects::start(store)?),
            };
            let blob = objects.read(&difference.new, &difference.path)?;
            attributes.put(&difference.path, &blob)?;
        } else {
            attributes.remove(&difference.path)?;
        }
    }
    Ok(())
}

/// `tree`, but with each path that `goes_back` says so of as it was before the change.
/// `scratch` is an existing directory of ours.
///
/// # Errors
/// [`GitError`].
pub fn undone(
    store: &Store,
    tree: &TreeId,
    changes: &Changes<'_>,
    goes_back: impl Fn(&Difference) -> bool,
    scratch: &Path,
) -> Result<TreeId, GitError> {
    let mut changed = Changed::new(scratch);
    changes.each(|difference| match difference.old_mode {
        _ if !goes_back(difference) => Ok(()),
        0 => changed.delete(&difference.path, store),
        mode => changed.put(&difference.path, mode, &difference.old),
    })?;
    trees::apply(store, store.git(), tree, changed)
}

/// `tree`, but with a file of this content and mode at a path. `scratch` is an existing
/// directory of ours.
///
/// # Errors
/// [`GitError`].
pub fn with_file(
    store: &Store,
    tree: &TreeId,
    (path, mode): (&str, u32),
    content: Vec<u8>,
    scratch: &Path,
) -> Result<TreeId, GitError> {
    let hash = ["hash-object", "-w", "--stdin", "--no-filters"];
    let blob = store.git().args(hash).input(content).oid()?;
    let mut changed = Changed::new(scratch);
    changed.put(path.as_bytes(), mode, &blob)?;
    trees::apply(store, store.git(), tree, changed)
}

/// A commit that only gives a merge its base: by nobody, at no time.
fn bare_commit(store: &Store, tree: &TreeId, parent: &CommitId) -> Result<Oid, GitError> {
    let text =
        CommitText { name: "dam".into(), mail: "dam@localhost".into(), message: String::new() };
    write_commit(
        store.git().env("GIT_AUTHOR_DATE", "@0 +0000").env("GIT_COMMITTER_DATE", "@0 +0000"),
        tree,
        parent,
        &text,
    )
}

/// Writes a commit into the store.
///
/// # Errors
/// [`GitError`].
pub fn commit(
    store: &Store,
    tree: &TreeId,
    parent: &CommitId,
    text: &CommitText,
) -> Result<CommitId, GitError> {
    write_commit(store.git(), tree, parent, text).map(CommitId)
}

fn write_commit(
    git: GitCommand,
    tree: &TreeId,
    parent: &CommitId,
    text: &CommitText,
) -> Result<Oid, GitError> {
    git.env("GIT_AUTHOR_NAME", &text.name)
        .env("GIT_AUTHOR_EMAIL", &text.mail)
        .env("GIT_COMMITTER_NAME", &text.name)
        .env("GIT_COMMITTER_EMAIL", &text.mail)
        .args(["commit-tree", tree.as_str(), "-p", parent.as_str(), "-F", "-"])
        .input(text.message.as_bytes())
        .oid()
}

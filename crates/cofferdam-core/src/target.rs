//! The seam to what a landing changes.
//!
//! A target tells where it is, takes what is needed beside it, and then changes
//! in one step. What has to be known to finish or undo that after a crash is in
//! the journal *before* the step.
//!
//! | target | commit point | after it |
//! |---|---|---|
//! | [`Branch`] | the ref transaction with the old value | worktrees that have it checked out follow |
//! | [`NewBranch`] | the ref transaction that creates it | |
//! | [`Remote`] | the remote's own update, with the old value as lease | |

use std::time::Duration;

use cofferdam_git::follow::{self, Follow, FollowError, InTheWay, LockDraft, LockRecord};
use cofferdam_git::publish::{self, RefError};
use cofferdam_git::remote::RemoteBranch;
use cofferdam_git::{CommitId, GitError, Repository, Store};
use serde::{Deserialize, Serialize};

use crate::Error;

/// How long a busy index is waited for.
const INDEX_PATIENCE: Duration = Duration::from_secs(2);

/// What is to be changed, as the ledger keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum TargetRef {
    /// A branch that exists.
    Branch {
        /// Full ref name.
        name: String,
    },
    /// A branch that must not exist.
    NewBranch {
        /// Full ref name.
        name: String,
    },
    /// A branch of a remote.
    Remote(RemoteBranch),
}

impl std::fmt::Display for TargetRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TargetRef::Branch { name } | TargetRef::NewBranch { name } => {
                f.write_str(name.strip_prefix("refs/heads/").unwrap_or(name))
            }
            TargetRef::Remote(remote) => write!(f, "{}/{}", remote.remote, remote.branch),
        }
    }
}

impl TargetRef {
    /// The target behind the reference.
    #[must_use]
    pub fn open<'a>(&'a self, repo: &'a Repository, store: &'a Store) -> Box<dyn Target + 'a> {
        match self {
            TargetRef::Branch { name } => Box::new(Branch { repo, store, name }),
            TargetRef::NewBranch { name } => Box::new(NewBranch { repo, store, name }),
            TargetRef::Remote(branch) => Box::new(Remote { repo, store, branch }),
        }
    }
}

/// What recovery needs, as the ledger keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Journal {
    /// Version of this form: 1.
    pub version: u32,
    /// Locks in the person's worktrees.
    pub locks: Vec<LockRecord>,
}

impl Journal {
    fn new(locks: Vec<LockRecord>) -> Journal {
        Journal { version: 1, locks }
    }
}

/// What was put beside the target.
#[derive(Debug, Default)]
pub struct Staged {
    locks: Vec<LockDraft>,
}

impl Staged {
    /// What has to be in the ledger before the commit.
    #[must_use]
    pub fn journal(&self) -> Journal {
        Journal::new(self.locks.iter().map(LockDraft::record).collect())
    }
}

/// A change of a target.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    /// Where it has to be; `None`: it must not exist.
    pub old: Option<&'a CommitId>,
    /// Where it goes.
    pub new: &'a CommitId,
    /// The task, for the reflog and for names of our files.
    pub task: &'a str,
}

/// Why a target did not change, or not wholly.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Something of the person's is in the way. Nothing has changed.
    #[error("{0}")]
    InTheWay(String),
    /// It is somewhere else by now. Nothing has changed.
    #[error("{0}")]
    Drifted(String),
    /// Anything else. Nothing has changed when it came before the commit point.
    #[error(transparent)]
    Error(#[from] Error),
}

impl From<GitError> for PublishError {
    fn from(error: GitError) -> Self {
        PublishError::Error(error.into())
    }
}

impl From<RefError> for PublishError {
    fn from(error: RefError) -> Self {
        match error {
            RefError::Moved { .. } => PublishError::Drifted(error.to_string()),
            RefError::Refused { .. } => PublishError::InTheWay(error.to_string()),
            RefError::Locked(locked) => PublishError::InTheWay(locked.to_string()),
            RefError::Git(error) => error.into(),
        }
    }
}

impl From<FollowError> for PublishError {
    fn from(error: FollowError) -> Self {
        match error {
            FollowError::InTheWay(why) => PublishError::InTheWay(why.to_string()),
            FollowError::LeftAlone { .. } => PublishError::InTheWay(error.to_string()),
            FollowError::Git(error) => error.into(),
        }
    }
}

/// On which side of the commit point a crash was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovery {
    /// It has changed, and everything that follows from it is done now; with a
    /// word on what was left alone.
    Committed(Option<String>),
    /// It has not.
    NotCommitted,
}

/// See the module.
pub trait Target {
    /// Where it is now; `None` when it does not exist.
    ///
    /// # Errors
    /// When it can't be read.
    fn fingerprint(&self) -> Result<Option<CommitId>, Error>;

    /// Puts what is needed beside it. Changes nothing that anybody sees.
    ///
    /// # Errors
    /// [`PublishError`].
    fn stage(&self, change: Change<'_>) -> Result<Staged, PublishError>;

    /// Changes it; `committed` is called right after the commit point. The words
    /// returned are about what was left alone after it.
    ///
    /// # Errors
    /// [`PublishError`]; after `committed` was called, the change stands.
    fn commit(
        &self,
        staged: Staged,
        change: Change<'_>,
        committed: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Option<String>, PublishError>;

    /// Removes what a process put beside it and died before that was in the ledger.
    ///
    /// # Errors
    /// When it can't be removed now; it can be tried again.
    fn unstage(&self, task: &str) -> Result<(), Error>;

    /// Finishes or undoes what a dead process left. `note` writes a journal anew.
    ///
    /// # Errors
    /// When neither can be done now; it can be tried again.
    fn recover(
        &self,
        journal: &Journal,
        change: Change<'_>,
        note: &mut dyn FnMut(&Journal) -> Result<(), Error>,
    ) -> Result<Recovery, PublishError>;
}

/// A local branch.
pub struct Branch<'a> {
    repo: &'a Repository,
    store: &'a Store,
    name: &'a str,
}

impl Branch<'_> {
    /// Whether git, as whom it works on the repository, can read our store.
    fn can_borrow(&self) -> bool {
        self.repo.owner.is_none()
    }

    fn move_objects(&self, change: Change<'_>) -> Result<(), GitError> {
        let have: Vec<&CommitId> = change.old.into_iter().collect();
        publish::move_objects(self.store, self.repo, change.new, &have)
    }
}

impl Target for Branch<'_> {
    fn fingerprint(&self) -> Result<Option<CommitId>, Error> {
        Ok(self.repo.resolve(self.name)?)
    }

    fn stage(&self, change: Change<'_>) -> Result<Staged, PublishError> {
        let worktrees = follow::worktrees_on(self.repo, self.name)?;
        if !self.can_borrow() {
            self.move_objects(change)?;
        }
        let mut locks = Vec::new();
        for worktree in worktrees {
            locks.push(LockDraft::new(self.repo, worktree, change.task)?);
        }
        Ok(Staged { locks })
    }

    fn commit(
        &self,
        staged: Staged,
        change: Change<'_>,
        committed: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Option<String>, PublishError> {
        let Some(old) = change.old else {
            return Err(PublishError::Drifted(format!("`{}` is gone", self.name)));
        };
        let objects = self.store.dir().join("objects");
        let lender = self.can_borrow().then_some(objects.as_path());
        let mut follows = Vec::new();
        for lock in staged.locks {
            match Follow::begin(self.repo, lender, lock, old, change.new, INDEX_PATIENCE) {
                Ok(follow) => follows.push(follow),
                // What is in the way may be a commit of the person's.
                Err(FollowError::InTheWay(_)) if self.fingerprint()?.as_ref() != Some(old) => {
                    return Err(PublishError::Drifted(format!("`{}` has moved", self.name)));
                }
                Err(error) => return Err(error.into()),
            }
        }
        // Only now: what can't land leaves nothing in the repository.
        if lender.is_some() {
            self.move_objects(change)?;
            for follow in &follows {
                follow.still_fits()?;
            }
        }
        move_ref(self.repo, self.name, change)?;
        committed()?;
        let mut left_alone = Vec::new();
        for follow in follows {
            match follow.apply() {
                Ok(()) => {}
                Err(FollowError::Git(error)) => return Err(error.into()),
                Err(other) => left_alone.push(other.to_string()),
            }
        }
        Ok((!left_alone.is_empty()).then(|| left_alone.join("; ")))
    }

    fn unstage(&self, task: &str) -> Result<(), Error> {
        Ok(follow::forget_drafts(self.repo, task)?)
    }

    fn recover(
        &self,
        journal: &Journal,
        change: Change<'_>,
        note: &mut dyn FnMut(&Journal) -> Result<(), Error>,
    ) -> Result<Recovery, PublishError> {
        for lock in &journal.locks {
            follow::clean_up(lock)?;
        }
        let Some(tip) = self.repo.resolve(self.name)? else { return Ok(Recovery::NotCommitted) };
        if !publish::is_ancestor(self.repo, change.new, &tip)? {
            return Ok(Recovery::NotCommitted);
        }
        let Some(old) = change.old else { return Ok(Recovery::Committed(None)) };
        if tip != *change.new {
            return Ok(Recovery::Committed(Some(format!(
                "`{}` has moved on since, its worktree was not touched",
                self.name
            ))));
        }
        let mut left_alone = Vec::new();
        // The journal names all of them until the last has followed.
        let mut journal = journal.clone();
        for at in 0..journal.locks.len() {
            let worktree = journal.locks[at].worktree.clone();
            let draft = LockDraft::new(self.repo, worktree, change.task)?;
            journal.locks[at] = draft.record();
            note(&journal)?;
            match follow::resume(self.repo, draft, old, change.new) {
                Ok(()) => {}
                Err(FollowError::InTheWay(InTheWay::IndexLocked(path))) => {
                    let why = InTheWay::IndexLocked(path).to_string();
                    return Err(PublishError::InTheWay(why));
                }
                Err(FollowError::Git(error)) => return Err(error.into()),
                Err(other) => left_alone.push(other.to_string()),
            }
        }
        Ok(Recovery::Committed((!left_alone.is_empty()).then(|| left_alone.join("; "))))
    }
}

fn move_ref(repo: &Repository, name: &str, change: Change<'_>) -> Result<(), PublishError> {
    failpoint("publish:ref:before")?;
    let reason = format!("dam: land {}", change.task);
    let old = change.old.map(|commit| &commit.0);
    publish::move_ref(repo, name, old, Some(&change.new.0), &reason)?;
    failpoint("publish:ref:after")?;
    Ok(())
}

fn failpoint(name: &str) -> Result<(), Error> {
    cofferdam_failpoint::hit(name).map_err(|source| Error::Io {
        step: "publish",
        path: name.into(),
        source,
    })
}

/// A branch to be made.
pub struct NewBranch<'a> {
    repo: &'a Repository,
    store: &'a Store,
    name: &'a str,
}

impl Target for NewBranch<'_> {
    fn fingerprint(&self) -> Result<Option<CommitId>, Error> {
        Ok(self.repo.resolve(self.name)?)
    }

    fn stage(&self, change: Change<'_>) -> Result<Staged, PublishError> {
        publish::move_objects(self.store, self.repo, change.new, &[])?;
        Ok(Staged::default())
    }

    fn commit(
        &self,
        _staged: Staged,
        change: Change<'_>,
        committed: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Option<String>, PublishError> {
        move_ref(self.repo, self.name, Change { old: None, ..change })?;
        committed()?;
        Ok(None)
    }

    fn unstage(&self, _task: &str) -> Result<(), Error> {
        Ok(())
    }

    fn recover(
        &self,
        _journal: &Journal,
        change: Change<'_>,
        _note: &mut dyn FnMut(&Journal) -> Result<(), Error>,
    ) -> Result<Recovery, PublishError> {
        match self.repo.resolve(self.name)? {
            Some(tip) if publish::is_ancestor(self.repo, change.new, &tip)? => {
                Ok(Recovery::Committed(None))
            }
            _ => Ok(Recovery::NotCommitted),
        }
    }
}

/// A branch of a remote.
pub struct Remote<'a> {
    repo: &'a Repository,
    store: &'a Store,
    branch: &'a RemoteBranch,
}

impl Target for Remote<'_> {
    fn fingerprint(&self) -> Result<Option<CommitId>, Error> {
        Ok(self.branch.fetch(self.store, self.repo)?)
    }

    fn stage(&self, _change: Change<'_>) -> Result<Staged, PublishError> {
        Ok(Staged::default())
    }

    fn commit(
        &self,
        _staged: Staged,
        change: Change<'_>,
        committed: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Option<String>, PublishError> {
        failpoint("publish:push:before")?;
        self.branch.push(self.store, self.repo, change.old, change.new)?;
        failpoint("publish:push:after")?;
        committed()?;
        Ok(None)
    }

    fn unstage(&self, _task: &str) -> Result<(), Error> {
        Ok(())
    }

    fn recover(
        &self,
        _journal: &Journal,
        change: Change<'_>,
        _note: &mut dyn FnMut(&Journal) -> Result<(), Error>,
    ) -> Result<Recovery, PublishError> {
        let tip = self.branch.fetch(self.store, self.repo)?;
        match tip {
            Some(tip) if tip == *change.new => Ok(Recovery::Committed(None)),
            Some(tip) if in_store_history(self.store, change.new, &tip)? => {
                Ok(Recovery::Committed(None))
            }
            _ => Ok(Recovery::NotCommitted),
        }
    }
}

fn in_store_history(store: &Store, ancestor: &CommitId, tip: &CommitId) -> Result<bool, Error> {
    let done = store
        .git()
        .args(["merge-base", "--is-ancestor", ancestor.as_str(), tip.as_str()])
        .finish()?;
    match done.status.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => Err(done.failed().into()),
    }
}

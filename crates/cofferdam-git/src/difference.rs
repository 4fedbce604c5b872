//! What differs between two trees, read as git tells it.
//!
//! A change set can have a million paths, so nobody holds them all: they come one by
//! one, in the order of their bytes. What is gone through more than once is kept when
//! it is little, and asked for again each time when it is not ([`Changes`]).

use std::io::{BufRead, BufReader};
use std::process::ChildStdout;

use crate::command::Conversation;
use crate::{GitCommand, GitError, Oid, Store, TreeId};

/// How many differences are kept rather than asked for again.
const KEPT: usize = 1000;

/// A path that differs between two trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Mode before; 0 when it was not there.
    pub old_mode: u32,
    /// Mode after; 0 when it is not there.
    pub new_mode: u32,
    /// Object before.
    pub old: Oid,
    /// Object after.
    pub new: Oid,
    /// The path.
    pub path: Vec<u8>,
}

/// What differs between two trees, renames not looked for. `with_trees` lists
/// directories as well.
///
/// # Errors
/// [`GitError::NotStarted`]; others come in place of a difference, among others when
/// a tree is missing.
pub fn diff(
    store: &Store,
    old: &TreeId,
    new: &TreeId,
    with_trees: bool,
) -> Result<Differences, GitError> {
    let with_trees: &[&str] = if with_trees { &["-t"] } else { &[] };
    Differences::of(store.git(), with_trees, [old.as_str(), new.as_str()])
}

/// A running `git diff-tree`, ended when this is dropped.
#[derive(Debug)]
pub struct Differences {
    git: Option<Conversation>,
    out: BufReader<ChildStdout>,
}

impl Differences {
    /// Lets this git compare two trees or commits.
    pub(crate) fn of(
        git: GitCommand,
        options: &[&str],
        trees: [&str; 2],
    ) -> Result<Differences, GitError> {
        let git = git
            .args(["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev"])
            .args(options)
            .args(trees);
        let mut git = git.converse()?;
        drop(git.child.stdin.take());
        let out = BufReader::with_capacity(1 << 16, git.child.stdout.take().expect("piped"));
        Ok(Differences { git: Some(git), out })
    }

    fn stop(&mut self) {
        if let Some(git) = self.git.take() {
            git.stop();
        }
    }

    fn unknown(&self, answer: &str) -> GitError {
        let command = self.git.as_ref().map(|git| git.command.clone()).unwrap_or_default();
        GitError::Unexpected { command, answer: answer.to_owned() }
    }

    fn field(&mut self) -> Result<Option<Vec<u8>>, GitError> {
        let mut field = Vec::new();
        match self.out.read_until(0, &mut field) {
            Ok(_) => Ok((field.pop() == Some(0)).then_some(field)),
            Err(error) => Err(self.unknown(&error.to_string())),
        }
    }

    fn read(&mut self) -> Result<Option<Difference>, GitError> {
        if self.git.is_none() {
            return Ok(None);
        }
        let Some(meta) = self.field()? else {
            // Also when it ended early: then it says why.
            return self.git.take().map_or(Ok(()), Conversation::end).map(|()| None);
        };
        let path = self.field()?.unwrap_or_default();
        let found = parse(&meta, path).filter(|found| !found.path.is_empty());
        let found = found.ok_or_else(|| self.unknown(&String::from_utf8_lossy(&meta)))?;
        Ok(Some(found))
    }
}

fn parse(meta: &[u8], path: Vec<u8>) -> Option<Difference> {
    let meta = std::str::from_utf8(meta.strip_prefix(b":")?).ok()?;
    let mut parts = meta.split(' ');
    let old_mode = u32::from_str_radix(parts.next()?, 8).ok()?;
    let new_mode = u32::from_str_radix(parts.next()?, 8).ok()?;
    let old = Oid::parse(parts.next()?)?;
    let new = Oid::parse(parts.next()?)?;
    Some(Difference { old_mode, new_mode, old, new, path })
}

impl Iterator for Differences {
    type Item = Result<Difference, GitError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.read().transpose();
        if matches!(next, Some(Err(_))) {
            self.stop();
        }
        next
    }
}

impl Drop for Differences {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Differences that are gone through more than once.
pub struct Changes<'a> {
    ask: Box<dyn Fn() -> Result<Differences, GitError> + 'a>,
    few: Option<Vec<Difference>>,
}

impl std::fmt::Debug for Changes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Changes").field("few", &self.few).finish_non_exhaustive()
    }
}

impl<'a> Changes<'a> {
    /// Those that `ask` gives, the same each time.
    ///
    /// # Errors
    /// Those of asking.
    pub fn new(
        ask: impl Fn() -> Result<Differences, GitError> + 'a,
    ) -> Result<Changes<'a>, GitError> {
        let mut few = Some(Vec::new());
        for (number, difference) in ask()?.enumerate() {
            if number == KEPT {
                few = None;
                break;
            }
            few.get_or_insert_default().push(difference?);
        }
        Ok(Changes { ask: Box::new(ask), few })
    }

    /// None at all.
    #[must_use]
    pub fn none() -> Changes<'a> {
        let ask = || Err(GitError::Unsupported("nothing was compared".into()));
        Changes { ask: Box::new(ask), few: Some(Vec::new()) }
    }

    /// Whether nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.few.as_ref().is_some_and(Vec::is_empty)
    }

    /// Goes through all of them, in order.
    ///
    /// # Errors
    /// Those of asking, and the first that `visit` gives.
    pub fn each<E: From<GitError>>(
        &self,
        mut visit: impl FnMut(&Difference) -> Result<(), E>,
    ) -> Result<(), E> {
        match &self.few {
            Some(few) => few.iter().try_for_each(visit),
            None => {
                for difference in (self.ask)()? {
                    visit(&difference?)?;
                }
                Ok(())
            }
        }
    }
}

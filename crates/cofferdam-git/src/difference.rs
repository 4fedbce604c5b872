//! What differs between two trees.
//!
//! A change set can have a million paths, so nobody holds them all: they come one by
//! one, in the order of their bytes, from trees that are read one directory at a time.
//! (`git diff-tree -r` keeps all of them until it has the last: 290 MB for a million.)
//! What is gone through more than once is kept when it is little, and asked for again
//! each time when it is not ([`Changes`]).

use std::cmp::Ordering;

use crate::mode::{DIR, TYPE};
use crate::objects::Listing;
use crate::{GitError, Objects, Oid, Store, TreeId};

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
/// directories as well, each before what is in it.
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
    Ok(Differences::of(Objects::start(store)?, [old, new], with_trees))
}

/// Two trees that are being compared.
#[derive(Debug)]
pub struct Differences {
    objects: Objects,
    with_trees: bool,
    /// To be gone into next.
    ahead: Option<(Vec<u8>, [Option<Oid>; 2])>,
    /// The directories that are being compared, each in the one before.
    open: Vec<Pair>,
}

/// A directory as it was and is.
#[derive(Debug)]
struct Pair {
    /// Its path, with a slash behind it; empty at the top.
    path: Vec<u8>,
    sides: [Listing; 2],
}

impl Differences {
    /// Compares what these objects have.
    pub(crate) fn of(objects: Objects, [old, new]: [&TreeId; 2], with_trees: bool) -> Differences {
        let ahead = (old != new).then(|| (Vec::new(), [Some(old.0.clone()), Some(new.0.clone())]));
        Differences { objects, with_trees, ahead, open: Vec::new() }
    }

    fn enter(&mut self, path: Vec<u8>, sides: [Option<Oid>; 2]) -> Result<(), GitError> {
        let mut list = |tree: Option<Oid>| match tree {
            Some(tree) => self.objects.listing(&tree),
            None => Ok(Listing::default()),
        };
        let [old, new] = sides;
        let sides = [list(old)?, list(new)?];
        self.open.push(Pair { path, sides });
        Ok(())
    }

    fn read(&mut self) -> Result<Option<Difference>, GitError> {
        loop {
            if let Some((path, sides)) = self.ahead.take() {
                self.enter(path, sides)?;
            }
            let Some(Pair { path, sides: [old, new] }) = self.open.last_mut() else {
                return Ok(None);
            };
            let order = match (old.peek(), new.peek()) {
                (None, None) => {
                    self.open.pop();
                    continue;
                }
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(old), Some(new)) => old.order(&new),
            };
            let (old, new) = match order {
                Ordering::Less => (old.next(), None),
                Ordering::Equal => (old.next(), new.next()),
                Ordering::Greater => (None, new.next()),
            };
            if old == new {
                continue;
            }
            let Some(entry) = old.or(new) else { continue };
            let path = [path.as_slice(), entry.name].concat();
            let zero = self.objects.format().zero();
            let [old_mode, new_mode] = [old, new].map(|side| side.map_or(0, |side| side.mode));
            let oids = [old, new].map(|side| side.map(|side| Oid::of_raw(side.raw)));
            if entry.mode & TYPE == DIR {
                let below = [path.as_slice(), b"/"].concat();
                self.ahead = Some((below, oids.clone()));
                if !self.with_trees {
                    continue;
                }
            }
            let [old, new] = oids.map(|oid| oid.unwrap_or_else(|| zero.clone()));
            return Ok(Some(Difference { old_mode, new_mode, old, new, path }));
        }
    }
}

impl Iterator for Differences {
    type Item = Result<Difference, GitError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.read().transpose();
        if matches!(next, Some(Err(_))) {
            self.open.clear();
            self.ahead = None;
        }
        next
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

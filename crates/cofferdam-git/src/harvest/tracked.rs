//! What the task's own index says beside its files.
//!
//! What a change set has is what is on disk. But some of what a task decides is in its
//! index alone: an ignored file that it tracks all the same (`git add --force`), one that
//! it tracks no more (`git rm --cached`), one that is not on disk because a sparse
//! checkout leaves it out, the commit of a submodule, the executable bit where the disk
//! does not have it. The index is bytes like any others, read by our own parser, and
//! compared with that of the base.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::BuildHasher;
use std::io::{self, BufReader};
use std::os::fd::OwnedFd;

use super::scan::open_plain_file;
use crate::index::{Entry, Index};
use crate::mode::{DIR, EXECUTABLE, GITLINK};
use crate::{ObjectFormat, dirs_above};

const INDEX: &[u8] = b".git/index";
/// How many paths of a kind are told of.
const TOLD: usize = 100;

/// Paths, and where it is asked for the directories above them, each as a keyed hash:
/// there can be a million.
#[derive(Default)]
pub(super) struct Paths {
    hashes: HashSet<u64>,
    key: RandomState,
}

impl Paths {
    fn insert(&mut self, path: &[u8]) {
        self.hashes.insert(self.key.hash_one(path));
    }

    fn insert_with_dirs(&mut self, path: &[u8]) {
        dirs_above(path).chain([path]).for_each(|path| self.insert(path));
    }

    pub(super) fn contains(&self, path: &[u8]) -> bool {
        !self.hashes.is_empty() && self.hashes.contains(&self.key.hash_one(path))
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Tracked {
    /// In its index and not in the base's; and the directories above.
    pub(super) added: Paths,
    /// In the base's index and not in its own.
    pub(super) dropped: Paths,
    /// Left out by a sparse checkout, as they were; and the directories above.
    pub(super) left_out: Paths,
    /// What can be executed, where the disk does not say.
    pub(super) executable: Paths,
    /// Whether the files that were not written have to be gone through as well.
    pub(super) second_look: bool,
    /// What can't be taken, and why: the first of them.
    pub(super) refused: Option<(Vec<u8>, &'static str)>,
    /// What is in conflict: the first of them.
    pub(super) in_conflict: Vec<Vec<u8>>,
}

/// An entry of an index, or none at its end.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    pub(super) path: Vec<u8>,
    pub(super) mode: u32,
    oid: Vec<u8>,
    /// Whether a sparse checkout leaves it out.
    pub(super) skips: bool,
    stage: u8,
}

impl Known {
    fn set(&mut self, entry: &Entry<'_>) {
        self.path.clear();
        self.path.extend(entry.path);
        self.oid.clear();
        self.oid.extend(entry.raw_oid());
        (self.mode, self.skips, self.stage) = (entry.mode, entry.skips_worktree(), entry.stage());
    }

    /// Whether one of two files can be executed and the other can't.
    pub(super) fn has_other_bit(&self, other: &Known) -> bool {
        self.mode != other.mode && (self.mode | other.mode) == EXECUTABLE
    }

    fn is_same(&self, other: &Known) -> bool {
        self.mode == other.mode && self.oid == other.oid
    }
}

/// The task's index and the base's, side by side.
pub(super) struct Both {
    own: Side,
    base: Side,
}

struct Side {
    /// Until its end.
    index: Option<Index<BufReader<File>>>,
    now: Known,
    is_there: bool,
}

impl Side {
    fn open(dir: &OwnedFd, format: ObjectFormat) -> io::Result<Side> {
        let file = open_plain_file(dir, INDEX)?;
        let index = match file {
            Some((file, size @ 1..)) => {
                let file = BufReader::with_capacity(1 << 16, file);
                Some(Index::open_sized(file, format, size).map_err(io::Error::other)?)
            }
            _ => None,
        };
        let is_there = index.is_some();
        let mut side = Side { index, now: Known::default(), is_there };
        side.step()?;
        Ok(side)
    }

    fn step(&mut self) -> io::Result<()> {
        let Some(index) = &mut self.index else { return Ok(()) };
        match index.next().map_err(io::Error::other)? {
            // More than once, where a merge left a conflict.
            Some(entry) if entry.path < self.now.path.as_slice() => {
                Err(io::Error::other("its entries are in no order"))
            }
            Some(entry) => {
                self.now.set(&entry);
                Ok(())
            }
            None => {
                index.has_all().map_err(io::Error::other)?;
                self.index = None;
                Ok(())
            }
        }
    }

    /// The next path: in a conflict one has up to three entries.
    fn step_over(&mut self) -> io::Result<()> {
        if self.now.stage == 0 {
            return self.step();
        }
        let path = self.now.path.clone();
        while self.index.is_some() && self.now.path == path {
            self.step()?;
        }
        Ok(())
    }
}

impl Both {
    /// Without an index of its own in `upper`, the task has the base's.
    pub(super) fn open(upper: &OwnedFd, lower: &OwnedFd, format: ObjectFormat) -> io::Result<Both> {
        let mut own = Side::open(upper, format)?;
        if !own.is_there {
            own = Side::open(lower, format)?;
        }
        Ok(Both { own, base: Side::open(lower, format)? })
    }

    /// Goes through the paths of both, each once: its own entry, and the base's.
    pub(super) fn each<E: From<io::Error>>(
        mut self,
        mut visit: impl FnMut(Option<&Known>, Option<&Known>) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            let own = self.own.index.is_some().then_some(&self.own.now);
            let base = self.base.index.is_some().then_some(&self.base.now);
            let (take_own, take_base) = match (own, base) {
                (None, None) => return Ok(()),
                (Some(_), None) => (true, false),
                (None, Some(_)) => (false, true),
                (Some(own), Some(base)) => (own.path <= base.path, base.path <= own.path),
            };
            visit(own.filter(|_| take_own), base.filter(|_| take_base))?;
            if take_own {
                self.own.step_over()?;
            }
            if take_base {
                self.base.step()?;
            }
        }
    }
}

impl Tracked {
    /// Compares the two.
    pub(super) fn of(
        upper: &OwnedFd,
        lower: &OwnedFd,
        format: ObjectFormat,
        ignore_modes: bool,
    ) -> io::Result<Tracked> {
        let mut tracked = Tracked::default();
        if !ignore_modes && open_plain_file(upper, INDEX)?.is_none() {
            return Ok(tracked);
        }
        Both::open(upper, lower, format)?.each(|own, base| {
            tracked.note(own, base, ignore_modes);
            Ok::<_, io::Error>(())
        })?;
        Ok(tracked)
    }

    fn note(&mut self, own: Option<&Known>, base: Option<&Known>, ignore_modes: bool) {
        let Some(own) = own else {
            if let Some(base) = base {
                self.dropped.insert(&base.path);
                self.second_look = true;
            }
            return;
        };
        if ignore_modes && own.mode == EXECUTABLE {
            self.executable.insert(&own.path);
        }
        if own.stage > 0 {
            if self.in_conflict.len() < TOLD {
                self.in_conflict.push(own.path.clone());
            }
        } else if own.mode == DIR {
            self.refuse(own, "is left out by a sparse index, which can't be read here: `git sparse-checkout reapply --no-sparse-index` makes one that can");
        } else if own.mode == GITLINK && base.is_none_or(|base| !own.is_same(base)) {
            self.refuse(own, "is a submodule, and another commit of it can't land");
        } else if own.skips {
            self.second_look = true;
            if base.is_some_and(|base| own.is_same(base)) {
                self.left_out.insert_with_dirs(&own.path);
            }
        }
        match base {
            None => self.added.insert_with_dirs(&own.path),
            Some(base) => self.second_look |= ignore_modes && own.mode != base.mode,
        }
    }

    fn refuse(&mut self, own: &Known, why: &'static str) {
        self.refused.get_or_insert_with(|| (own.path.clone(), why));
    }
}

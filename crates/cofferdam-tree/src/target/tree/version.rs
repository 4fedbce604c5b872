//! What was replaced, and what is removed.
//!
//! Both lie beside the target, not in a directory of their own: there a rename needs the
//! right to write to the parent only, but one into another directory needs the right to
//! write to what is renamed too, which can be somebody else's.
//!
//! What has to go is first renamed to `.NAME.dam-gone-RANDOM`: so a version, or what was
//! staged, is whole or not there, also when the removal is interrupted.

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use cofferdam_failpoint::hit;
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;

use super::{Step, TargetError, TreeTarget, suffixed};
use crate::descent::{open_dir, read_names};
use crate::random;
use crate::remove::remove_tree;

/// How many versions stay.
pub const KEPT: usize = 3;

/// A tree that was the target once: the directory `.NAME.dam-version-N` beside it, whole.
///
/// [`TreeTarget::commit`] can put one in the target's place again, as if it was staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Which one: later ones have higher numbers.
    pub number: u64,
    /// Its name beside the target.
    pub name: OsString,
    /// Where it is.
    pub path: PathBuf,
}

/// Part of the name of every version.
const KIND: &str = "version";

/// Whether a directory of this name is a [`Version`] of something.
#[must_use]
pub fn is_version_name(name: &OsStr) -> bool {
    let kind = format!(".dam-{KIND}-");
    let name = name.as_bytes();
    name.starts_with(b".") && name.windows(kind.len()).any(|part| part == kind.as_bytes())
}

impl TreeTarget {
    /// What was replaced here and is still there, the oldest first; not one that a link in
    /// the target's place leads to, or into.
    ///
    /// # Errors
    /// [`TargetError::Io`].
    pub fn versions(&self) -> Result<Vec<Version>, TargetError> {
        let live = match std::fs::canonicalize(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            live => Some(live.step("find where it leads:", &self.path)?),
        };
        let mut versions = self.all_versions()?;
        versions.retain(|version| !live.as_ref().is_some_and(|at| at.starts_with(&version.path)));
        Ok(versions)
    }

    fn all_versions(&self) -> Result<Vec<Version>, TargetError> {
        let found = self.derived_names(KIND).step("list the versions of", &self.path)?;
        let mut versions: Vec<Version> = found
            .into_iter()
            .filter_map(|(id, name)| {
                let number: u64 = std::str::from_utf8(&id).ok()?.parse().ok()?;
                // There is always a next one, whatever somebody puts there.
                let number = (number < 1 << 62).then_some(number)?;
                // So that `+7` and `07` are somebody else's.
                (self.version_name(number) == name).then(|| {
                    let path = self.path.with_file_name(&name);
                    Version { number, name, path }
                })
            })
            .collect();
        versions.sort_by_key(|version| version.number);
        Ok(versions)
    }

    /// What lies beside the target as `.NAME.dam-KIND-ID`: the ids, and the whole names.
    fn derived_names(&self, kind: &str) -> io::Result<Vec<(Vec<u8>, OsString)>> {
        let prefix = self.derived(kind, "");
        let mut found = Vec::new();
        let dir = open_dir(&self.dir, c".")?;
        read_names(dir.as_fd(), |name| {
            let name = name.to_bytes();
            if let Some(id) = name.strip_prefix(prefix.as_bytes()) {
                found.push((id.to_vec(), OsString::from_vec(name.to_vec())));
            }
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    pub(super) fn version_name(&self, number: u64) -> OsString {
        self.derived(KIND, &number.to_string())
    }

    pub(super) fn next_version(&self) -> Result<u64, TargetError> {
        Ok(self.all_versions()?.last().map_or(1, |version| version.number + 1))
    }

    /// Makes a version of the directory `name` beside the target.
    pub(super) fn keep(&self, name: &OsStr) -> Result<(), TargetError> {
        let mut number = self.next_version()?;
        loop {
            match self.rename_new(name, &self.version_name(number)) {
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => number += 1,
                kept => {
                    kept.step("keep what was replaced at", &self.path)?;
                    return self.sync();
                }
            }
        }
    }

    /// Removes all but the last [`KEPT`] versions, and what an earlier removal left. Can take
    /// as long as there are entries in them; what can't be removed does not keep the rest.
    ///
    /// # Errors
    /// [`TargetError::Io`], the first. A landing that is done is not undone by it.
    pub fn prune(&self) -> Result<(), TargetError> {
        let left = self.derived_names("gone").step("list what is left beside", &self.path)?;
        let left = left.into_iter().map(|(_, name)| self.remove(&name)).collect::<Vec<_>>();
        let mut versions = self.versions()?;
        versions.truncate(versions.len().saturating_sub(KEPT));
        let pruned = versions.iter().map(|version| self.discard(&version.name));
        left.into_iter().chain(pruned.collect::<Vec<_>>()).collect()
    }

    /// Removes what was staged, if it is there.
    ///
    /// # Errors
    /// [`TargetError::Io`].
    pub fn unstage(&self, temp: &OsStr) -> Result<(), TargetError> {
        self.discard(temp)?;
        for link in [".link", ".back"] {
            self.unlink(&suffixed(temp, link))?;
        }
        self.sync()
    }

    pub(super) fn unlink(&self, name: &OsStr) -> Result<(), TargetError> {
        match unlinkat(&self.dir, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed.step("remove the link beside", &self.path),
        }
    }

    /// Removes the directory `name` beside the target, if it is there.
    pub(super) fn discard(&self, name: &OsStr) -> Result<(), TargetError> {
        hit("target:tree:discard").step("remove a directory beside", &self.path)?;
        let gone = random::name(12).step("remove a directory beside", &self.path)?;
        let gone = self.derived("gone", &gone);
        match self.rename_new(name, &gone) {
            Err(Errno::NOENT) => Ok(()),
            renamed => {
                renamed.step("remove a directory beside", &self.path)?;
                self.sync()?;
                self.remove(&gone)
            }
        }
    }

    fn remove(&self, name: &OsStr) -> Result<(), TargetError> {
        hit("target:tree:remove").step("remove a directory beside", &self.path)?;
        remove_tree(self.dir.as_fd(), name)
            .map_err(io::Error::other)
            .step("remove a directory beside", &self.path)
    }
}

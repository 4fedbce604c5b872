//! On which side of its commit point a landing is that did not end.
//!
//! What is found of an exchange, `temp` being what was staged:
//!
//! | at `temp` | at the target | it | what is done |
//! |---|---|---|---|
//! | what was to be | anything | did not happen | `temp` is removed |
//! | what was there | what was to be | happened | `temp` becomes a version |
//! | what was there | anything else | happened, and was changed since | likewise |
//! | anything else | what was to be | drifted, which was not noticed | exchanged back |
//! | anything else | anything else | happened, and both were changed | `temp` becomes a version |
//! | nothing | what was to be | happened | the sync is repeated |
//! | nothing | what was there | did not happen: a power cut took it back | |
//! | nothing | anything else | happened, and was changed since | |
//!
//! Of a link: while `temp` is there, or the link that was to be renamed, it did not happen.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use cofferdam_failpoint::hit;
use rustix::io::Errno;

use super::{Step, TargetError, TreeFingerprint, TreeTarget, Way, suffixed};
use crate::target::Recovered;

/// What is found under a name.
#[derive(PartialEq, Eq)]
enum Found {
    Nothing,
    Tree(TreeFingerprint),
    /// Something that can't be what was there, nor what was to be, or is being written to.
    Other,
}

impl Found {
    fn is(&self, tree: &TreeFingerprint) -> bool {
        matches!(self, Found::Tree(found) if found == tree)
    }
}

impl TreeTarget {
    /// Tells what a process did that died, or failed, after it wrote down that it would
    /// replace `old` with `new`, staged as `temp`; and finishes it. Can be repeated.
    ///
    /// # Errors
    /// When that can't be told now; nothing is lost.
    pub fn recover(
        &self,
        temp: &OsStr,
        old: Option<&TreeFingerprint>,
        new: &TreeFingerprint,
    ) -> Result<Recovered, TargetError> {
        hit("target:tree:recover").step("look at", &self.path)?;
        if self.way == Way::Link && self.is_unlinked(temp)? {
            return Ok(Recovered::NotCommitted);
        }
        let staged = self.found(self.read(&|| self.beside(temp), &mut |_| true))?;
        let now = self.found(self.look(&mut |_| true))?;
        let side = if now.is(new) { Recovered::Committed } else { Recovered::ChangedSince };
        match (&staged, old) {
            (Found::Nothing, _) if now.is(new) => {
                self.sync()?;
                Ok(Recovered::Committed)
            }
            (Found::Nothing, Some(old)) if now.is(old) => Ok(Recovered::NotCommitted),
            (Found::Nothing, None) if now == Found::Nothing => Ok(Recovered::NotCommitted),
            (Found::Nothing, _) => Ok(Recovered::ChangedSince),
            // A creation leaves nothing there.
            (_, None) => self.undone(temp),
            // The same content was published again: either answer is right, and this one
            // loses nothing.
            (staged, Some(old)) if old == new && staged.is(new) && now.is(new) => {
                self.keep(temp)?;
                Ok(Recovered::Committed)
            }
            (staged, _) if staged.is(new) => self.undone(temp),
            (staged, Some(old)) if !staged.is(old) && now.is(new) => {
                self.exchange_back(temp, new)?;
                self.undone(temp)
            }
            _ => {
                self.keep(temp)?;
                Ok(side)
            }
        }
    }

    fn undone(&self, temp: &OsStr) -> Result<Recovered, TargetError> {
        self.unstage(temp)?;
        Ok(Recovered::NotCommitted)
    }

    fn found(&self, seen: Result<Option<super::Seen>, TargetError>) -> Result<Found, TargetError> {
        match seen {
            Ok(None) => Ok(Found::Nothing),
            Ok(Some(seen)) => Ok(Found::Tree(seen.fingerprint)),
            Err(error @ TargetError::Io { .. }) => Err(error),
            Err(_) => Ok(Found::Other),
        }
    }

    /// Whether a link's target was not renamed; then what was made for it is removed.
    fn is_unlinked(&self, temp: &OsStr) -> Result<bool, TargetError> {
        if self.stat(temp)?.is_some() {
            self.unstage(temp)?;
            return Ok(true);
        }
        // Left when putting the old link back was interrupted.
        self.unlink(&suffixed(temp, ".back"))?;
        let link = suffixed(temp, ".link");
        let fresh = match rustix::fs::readlinkat(&self.dir, &link, Vec::new()) {
            Err(Errno::NOENT) => return Ok(false),
            fresh => fresh.step("look at the link beside", &self.path)?,
        };
        let fresh = OsStr::from_bytes(fresh.as_bytes());
        // A version is never removed that is in use, nor a name that is not ours.
        if self.versions()?.iter().any(|version| version.name == fresh) {
            self.discard(fresh)?;
        }
        self.unlink(&link)?;
        self.sync()?;
        Ok(true)
    }
}

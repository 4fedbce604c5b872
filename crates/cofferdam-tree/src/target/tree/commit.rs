//! The commit point.

use std::ffi::OsStr;

use cofferdam_failpoint::hit;
use rustix::io::Errno;

use super::{EXCHANGE, Link, Seen, Step, TargetError, TreeFingerprint, TreeTarget, suffixed};

impl TreeTarget {
    /// Puts `temp` in the target's place, if what is there is still `old`, and keeps that as
    /// a version. `new` is what [`TreeTarget::stage`] gave.
    ///
    /// # Errors
    /// [`TargetError::Drifted`] when it is not, and what is there is what somebody else
    /// wrote; `temp` is still there, unless somebody wrote into it in the moment in which it
    /// was the target: then it is a version. After any other error only
    /// [`TreeTarget::recover`] can tell on which side of the commit point it is.
    pub fn commit(
        &self,
        temp: &OsStr,
        old: Option<&TreeFingerprint>,
        new: &TreeFingerprint,
    ) -> Result<(), TargetError> {
        hit("target:tree:compare").step("look at", &self.path)?;
        let link = self.link()?;
        let now = self.look(&mut |_| true)?;
        match (now, old) {
            (None, None) => self.create(temp)?,
            (Some(now), Some(old)) if now.fingerprint == *old => match link {
                None => self.exchange(temp, old, new)?,
                Some(link) => self.relink(temp, &link, &now, new)?,
            },
            (None, Some(_)) => return Err(self.drifted("has gone since the task began")),
            (Some(_), None) => return Err(self.drifted("has appeared since the task began")),
            (Some(_), Some(_)) => return Err(self.has_changed()),
        }
        hit("target:tree:done").step("replace", &self.path)
    }

    pub(super) fn create(&self, temp: &OsStr) -> Result<(), TargetError> {
        hit("target:tree:rename").step("make", &self.path)?;
        match self.rename_new(temp, &self.name) {
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {
                Err(self.drifted("has appeared since the task began"))
            }
            renamed => {
                renamed.map_err(|errno| self.refused("make", errno.into()))?;
                self.sync()
            }
        }
    }

    pub(super) fn exchange(
        &self,
        temp: &OsStr,
        old: &TreeFingerprint,
        new: &TreeFingerprint,
    ) -> Result<(), TargetError> {
        hit("target:tree:exchange").step(EXCHANGE, &self.path)?;
        self.swap(temp, &self.name)?;
        self.sync()?;
        hit("target:tree:verify").step("read what was replaced at", &self.path)?;
        let came_out = self.read(&|| self.beside(temp), &mut |_| true);
        if is(&came_out, old) {
            hit("target:tree:keep").step("keep what was replaced at", &self.path)?;
            return self.keep(temp);
        }
        self.exchange_back(temp, new)?;
        Err(self.why(came_out))
    }

    /// Undoes an exchange. Whoever wrote into the new tree while it was there has that kept
    /// as a version.
    pub(super) fn exchange_back(
        &self,
        temp: &OsStr,
        new: &TreeFingerprint,
    ) -> Result<(), TargetError> {
        hit("target:tree:exchange-back").step("put back", &self.path)?;
        self.swap(temp, &self.name)?;
        self.sync()?;
        let staged = self.read(&|| self.beside(temp), &mut |_| true);
        if is(&staged, new) { Ok(()) } else { self.keep(temp) }
    }

    /// Each step is durable before the next, so that [`TreeTarget::recover`] can tell from
    /// what is there how far it went: the new link is made, then `temp` gets the name that
    /// it leads to, then the link gets the target's name.
    pub(super) fn relink(
        &self,
        temp: &OsStr,
        old_link: &Link,
        old: &Seen,
        new: &TreeFingerprint,
    ) -> Result<(), TargetError> {
        let link = suffixed(temp, ".link");
        let fresh = self.version_name(self.next_version()?);
        hit("target:tree:link").step("make a link beside", &self.path)?;
        rustix::fs::symlinkat(&fresh, &self.dir, &link).step("make a link beside", &self.path)?;
        self.sync()?;
        hit("target:tree:name").step("name the new directory of", &self.path)?;
        self.rename_new(temp, &fresh).step("name the new directory of", &self.path)?;
        self.sync()?;
        hit("target:tree:rename").step("replace", &self.path)?;
        if !self.link_version().is_ok_and(|still| still == old_link.version) {
            self.rename_new(&fresh, temp).step("put back", &self.path)?;
            self.unlink(&link)?;
            return Err(self.has_changed());
        }
        let renamed = rustix::fs::renameat(&self.dir, &link, &self.dir, &self.name);
        renamed.step("replace", &self.path)?;
        self.sync()?;
        hit("target:tree:verify").step("read what was replaced at", &self.path)?;
        let open = || Ok(Some(old.dir.try_clone().step("open", &self.path)?));
        let replaced = self.read(&open, &mut |_| true);
        if is(&replaced, &old.fingerprint) {
            return Ok(());
        }
        self.link_back(temp, &fresh, old_link, new)?;
        Err(self.why(replaced))
    }

    /// Undoes the rename of a link. Whoever wrote into the new tree while it was there has
    /// that kept as a version.
    fn link_back(
        &self,
        temp: &OsStr,
        fresh: &OsStr,
        old_link: &Link,
        new: &TreeFingerprint,
    ) -> Result<(), TargetError> {
        hit("target:tree:link-back").step("put back", &self.path)?;
        let back = suffixed(temp, ".back");
        rustix::fs::symlinkat(&old_link.text, &self.dir, &back).step("put back", &self.path)?;
        let renamed = rustix::fs::renameat(&self.dir, &back, &self.dir, &self.name);
        renamed.step("put back", &self.path)?;
        self.sync()?;
        if is(&self.read(&|| self.beside(fresh), &mut |_| true), new) {
            self.rename_new(fresh, temp).step("put back", &self.path)?;
            self.sync()?;
        }
        Ok(())
    }

    /// Why what was replaced is not what it was.
    fn why(&self, replaced: Result<Option<Seen>, TargetError>) -> TargetError {
        match replaced {
            Err(error @ TargetError::Io { .. }) => error,
            _ => self.has_changed(),
        }
    }
}

fn is(seen: &Result<Option<Seen>, TargetError>, tree: &TreeFingerprint) -> bool {
    matches!(seen, Ok(Some(seen)) if seen.fingerprint == *tree)
}

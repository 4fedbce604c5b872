//! A patch that is decided: what each path was, what it is to be, and where that waits.
//!
//! See [`super::patch`] for the steps, and for what a reader can see meanwhile.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cofferdam_failpoint::hit;
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, Mode, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_with::As;
use sha2::{Digest, Sha256};

use super::patch::{Now, PatchTarget, State, now_at};
use super::{FileTarget, Step, TargetError, hex};
use crate::descent::read_names;
use crate::durable;
use crate::path::{TextOrBytes, components, is_name};

/// All that is needed to apply a patch, also after a crash.
///
/// On disk, by [`Redo::write`]: a line with the SHA-256 of the rest in hexadecimal digits,
/// and the record as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redo {
    /// Version of this form: [`Redo::VERSION`].
    pub version: u32,
    /// The directory, absolute.
    #[serde(with = "As::<TextOrBytes>")]
    pub dir: PathBuf,
    /// Permission bits that new directories don't get, besides those that the umask of the
    /// process takes away which applies it.
    pub umask: u32,
    /// Each path once, in their order: a directory before what is in it.
    pub changes: Vec<Planned>,
}

/// What becomes of one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Planned {
    /// Relative to the directory.
    #[serde(with = "As::<TextOrBytes>")]
    pub path: PathBuf,
    /// What was there.
    pub old: State,
    /// What is to be there.
    pub new: State,
    /// The new file or link.
    pub temp: Option<Temp>,
}

/// Where something staged waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Temp {
    /// Relative to the directory; empty for itself.
    #[serde(with = "As::<TextOrBytes>")]
    pub dir: PathBuf,
    /// Begins with `.dam-`.
    pub name: String,
}

impl Redo {
    /// The only version so far.
    pub const VERSION: u32 = 1;

    /// Looks at all paths once more, for immediately before the commit point. `go_on` is
    /// told how many bytes were read.
    ///
    /// # Errors
    /// [`TargetError::Drifted`] when one is not as it was, [`TargetError::Unsuitable`]
    /// when a directory that goes holds something that stays. Nothing has changed.
    pub fn compare(&self, go_on: &mut dyn FnMut(u64) -> bool) -> Result<(), TargetError> {
        let target = PatchTarget::at(&self.dir)?;
        let goes = |planned: &&Planned| planned.new == State::Nothing;
        let going: BTreeSet<&Path> =
            self.changes.iter().filter(goes).map(|planned| planned.path.as_path()).collect();
        for planned in &self.changes {
            let path = self.dir.join(&planned.path);
            hit("target:patch:compare").step("look at", &path)?;
            planned.compare(&target.look(&planned.path, go_on)?, &target)?;
            if (&planned.old, &planned.new) == (&State::Dir, &State::Nothing)
                && let Some(dir) = target.dir(&planned.path)?
            {
                let mut stays = false;
                let read = read_names(dir.as_fd(), |name| {
                    let name = OsStr::from_bytes(name.to_bytes());
                    stays |= !going.contains(planned.path.join(name).as_path());
                    ControlFlow::Continue(())
                });
                read.step("read", &path)?;
                if stays {
                    return Err(target.unsuitable(&planned.path, NOT_EMPTY));
                }
            }
        }
        Ok(())
    }

    /// Does what is not done yet. Gives, as errors, the paths that were left alone because
    /// somebody else has changed them, and why; all others are as they were to be, durably.
    /// Can be repeated.
    ///
    /// # Errors
    /// When a step can't be done now. Some paths may have changed; try again.
    pub fn apply(&self) -> Result<Vec<TargetError>, TargetError> {
        self.check(&self.dir)?;
        let mut left_alone = Vec::new();
        let Some(target) = self.target()? else {
            return Ok(self.changes.iter().map(|planned| self.drifted(planned, NO_DIR)).collect());
        };
        // First what is made, from above; then what goes, from below.
        let goes = |planned: &&Planned| planned.new == State::Nothing;
        let made = self.changes.iter().filter(|planned| !goes(planned));
        let mut touched = BTreeSet::new();
        for planned in made.chain(self.changes.iter().rev().filter(goes)) {
            hit("target:patch:apply").step("change", &self.dir.join(&planned.path))?;
            match self.apply_one(&target, planned) {
                Ok(()) => {}
                Err(error @ (TargetError::Drifted { .. } | TargetError::Unsuitable { .. })) => {
                    left_alone.push(error);
                }
                Err(error) => return Err(error),
            }
            // It is there still when the path was left alone, or was new already.
            if let Some(temp) = &planned.temp {
                target.remove(temp)?;
                touched.insert(temp.dir.clone());
            }
            touched.extend(planned.path.parent().map(Path::to_path_buf));
        }
        target.sync(&touched, false)?;
        hit("target:patch:done").step("sync", &self.dir)?;
        Ok(left_alone)
    }

    /// The directory; none when it is gone, and with it all that was in there.
    fn target(&self) -> Result<Option<PatchTarget>, TargetError> {
        match PatchTarget::at(&self.dir) {
            Err(TargetError::Unsuitable { .. }) => Ok(None),
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(None),
            target => target.map(Some),
        }
    }

    fn drifted(&self, planned: &Planned, how: &'static str) -> TargetError {
        TargetError::Drifted { path: self.dir.join(&planned.path), how }
    }

    fn apply_one(&self, target: &PatchTarget, planned: &Planned) -> Result<(), TargetError> {
        let Some(place) = target.place(&planned.path)? else {
            return match planned.new {
                State::Nothing => Ok(()),
                _ => Err(self.drifted(planned, NO_DIR)),
            };
        };
        let now = now_at(&place, &mut |_| true)?;
        if now.state == planned.new {
            return Ok(());
        }
        planned.compare(&now.state, target)?;
        match (&planned.new, &planned.temp) {
            (State::Nothing, _) => remove(&place, &now),
            (State::Dir, _) => {
                let mode = Mode::from_raw_mode(0o777 & !self.umask);
                match rustix::fs::mkdirat(&place.dir, &place.name, mode) {
                    Err(Errno::EXIST) => Err(place.drifted("has appeared since the task began")),
                    made => made.step("make", place.path()),
                }
            }
            (State::File(_) | State::Link(_), temp) => {
                let gone = || self.drifted(planned, "is as it was: what was to replace it is gone");
                let temp = temp.as_ref().ok_or_else(gone)?;
                let from = target.dir(&temp.dir)?.ok_or_else(gone)?;
                let staged = FileTarget::of(from, temp.name.as_ref(), place.path().into());
                let there = now_at(&staged, &mut |_| true)?.state;
                if there == State::Nothing {
                    return Err(gone());
                }
                // A disk that lost what was synced, or somebody else: the old stays.
                if there != planned.new {
                    let how = "is as it was: what was to replace it has changed";
                    return Err(self.drifted(planned, how));
                }
                match place.swap(&staged.dir, temp.name.as_ref(), now.version) {
                    // Somebody has put a subvolume there.
                    Err(error) if error.raw_os_error() == Some(Errno::XDEV.raw_os_error()) => {
                        Err(target.unsuitable(&planned.path, "on another file system"))
                    }
                    swapped => swapped,
                }
            }
        }
    }

    /// Removes what was staged; for before the commit point. Can be repeated.
    ///
    /// # Errors
    /// [`TargetError::Io`].
    pub fn abandon(&self) -> Result<(), TargetError> {
        self.check(&self.dir)?;
        let Some(target) = self.target()? else { return Ok(()) };
        let mut touched = BTreeSet::new();
        for temp in self.changes.iter().filter_map(|planned| planned.temp.as_ref()) {
            if target.remove(temp)? {
                touched.insert(temp.dir.clone());
            }
        }
        target.sync(&touched, false)
    }

    /// Writes the record to `name` in `dir`, durably and as a whole.
    ///
    /// # Errors
    /// [`TargetError::Io`]. It may be there nevertheless when only its directory could not
    /// be synced.
    pub fn write(&self, dir: &Path, name: &str) -> Result<(), TargetError> {
        let body = serde_json::to_vec(self).expect("a redo record serialises");
        let mut bytes = hex(&Sha256::digest(&body)).into_bytes();
        bytes.push(b'\n');
        bytes.extend(body);
        let path = dir.join(name);
        durable::write_atomic(&path, &bytes, 0o600).step("write the redo record", &path)
    }

    /// Reads the record that [`Redo::write`] wrote.
    ///
    /// # Errors
    /// [`TargetError::Redo`] when it is torn, altered or of another version.
    pub fn read(dir: &Path, name: &str) -> Result<Redo, TargetError> {
        let path = dir.join(name);
        let bytes = std::fs::read(&path).step("read the redo record", &path)?;
        let refused = |how: String| TargetError::Redo { path: path.clone(), how };
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
        let (sum, body) = (&bytes[..end], bytes.get(end + 1..).unwrap_or_default());
        if sum != hex(&Sha256::digest(body)).as_bytes() {
            return Err(refused(
                "is torn or altered: its checksum is not that of its content".into(),
            ));
        }
        let redo: Redo = serde_json::from_slice(body)
            .map_err(|error| refused(format!("can't be read: {error}")))?;
        redo.check(&path)?;
        Ok(redo)
    }

    /// Refuses what [`PatchTarget::stage`] does not make: nothing of it may lead out of the
    /// directory, or remove what is not ours.
    fn check(&self, path: &Path) -> Result<(), TargetError> {
        let refused = |how: String| Err(TargetError::Redo { path: path.into(), how });
        if self.version != Redo::VERSION {
            return refused(format!("has version {}, not {}", self.version, Redo::VERSION));
        }
        let is_below = |path: &Path| components(path.as_os_str().as_bytes()).is_some();
        for planned in &self.changes {
            let temp_fits = planned.temp.as_ref().is_none_or(|temp| {
                (temp.dir.as_os_str().is_empty() || is_below(&temp.dir))
                    && temp.name.starts_with(".dam-")
                    && is_name(temp.name.as_bytes())
            });
            if !is_below(&planned.path) || !temp_fits {
                return refused(format!("names what can't be: `{}`", planned.path.display()));
            }
        }
        if !self.changes.is_sorted_by(|one, next| one.path < next.path) {
            return refused("has paths out of order".into());
        }
        Ok(())
    }
}

impl Planned {
    /// Refuses to go on when what is there now is not what was there. A directory that was
    /// to be made may be there.
    pub(super) fn compare(&self, now: &State, target: &PatchTarget) -> Result<(), TargetError> {
        let how = match (&self.old, now) {
            (old, now) if old == now => return Ok(()),
            (State::Nothing, State::Dir) if self.new == State::Dir => return Ok(()),
            (_, State::Nothing) => "has gone since the task began",
            (State::Nothing, _) => "has appeared since the task began",
            _ => "has changed since the task began",
        };
        Err(TargetError::Drifted { path: target.path().join(&self.path), how })
    }
}

const NO_DIR: &str = "has lost its directory";
const NOT_EMPTY: &str = "a directory that holds more than what the patch removes";

/// Removes what is at a place, if that is still of the version that was looked at.
pub(super) fn remove(place: &FileTarget, now: &Now) -> Result<(), TargetError> {
    if place.version()? != now.version {
        return Err(place.has_changed());
    }
    let flags = if now.state == State::Dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    match unlinkat(&place.dir, &place.name, flags) {
        Err(Errno::NOENT) => Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {
            Err(TargetError::Unsuitable { path: place.path().into(), found: NOT_EMPTY })
        }
        removed => removed.step("remove", place.path()),
    }
}

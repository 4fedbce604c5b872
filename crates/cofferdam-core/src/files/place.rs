//! The seam to what an output becomes: one call a step, whatever is at the place.
//!
//! | mode | at the place | drift |
//! |---|---|---|
//! | [`Mode::File`] | a file, or nothing | any change since the task began |
//! | [`Mode::Append`] | a file of records, or nothing | none: what others added stays |
//! | [`Mode::Tree`] | a directory, a link to one, or nothing | any change since the task began |
//!
//! [`Mode::Patch`] has a commit point of its own and takes other steps: see
//! [`super::patch`].

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use cofferdam_tree::target::append::Records;
use cofferdam_tree::target::file::{Content as FileContent, Seen};
use cofferdam_tree::target::tree::{Keep, Owners, SetId, Tree, Way};
use cofferdam_tree::target::{Recovered, Stamp, TargetError};
use cofferdam_tree::{
    FileTarget, Fingerprint, TextOrBytes, Totals, TreeFingerprint, TreeTarget, random_name,
};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use serde::{Deserialize, Serialize};
use serde_with::As;

use super::{Output, OutputFact};
use crate::Error;
use crate::error::IoContext;
use crate::input::SQLITE;

/// How an output becomes what it becomes.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// A file is replaced.
    #[default]
    File,
    /// Records are added to a file of them.
    Append,
    /// A directory is replaced as one step.
    Tree,
    /// What was changed of a directory is changed in it, path by path.
    Patch,
}

impl Mode {
    pub(crate) fn is_file(&self) -> bool {
        *self == Mode::File
    }
}

/// What is at a place, or was made for one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// A file.
    File(Fingerprint),
    /// A directory.
    Tree(TreeFingerprint),
}

impl Content {
    /// A hash of what a reader gets, 64 hexadecimal digits.
    pub(crate) fn hash(&self) -> &str {
        match self {
            Content::File(file) => &file.sha256,
            Content::Tree(tree) => &tree.content,
        }
    }

    /// In bytes.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Content::File(file) => file.size,
            Content::Tree(tree) => tree.bytes,
        }
    }

    /// Whether it is a program.
    pub(crate) fn is_program(&self) -> bool {
        matches!(self, Content::File(file) if file.mode & 0o100 != 0)
    }

    /// Whether a reader gets the same from both.
    pub(crate) fn reads_as(&self, other: &Content) -> bool {
        (self.hash(), self.size(), self.is_program())
            == (other.hash(), other.size(), other.is_program())
    }
}

/// Is told what was read or copied since it was last asked.
pub(super) type GoOn<'a> = &'a mut dyn FnMut(Totals) -> bool;

/// A place, opened.
pub(super) enum Place {
    File(FileTarget),
    Tree(TreeTarget),
}

/// What was put beside a place, as the journal has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Staged {
    #[serde(with = "As::<TextOrBytes>")]
    pub(super) place: PathBuf,
    /// How a directory is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    way: Option<Way>,
    /// Its name, in the same directory.
    temp: String,
    pub(super) old: Option<Content>,
    pub(super) new: Content,
    /// Saves the process that staged it from reading a file again.
    #[serde(skip)]
    stamp: Option<Stamp>,
}

/// A result that is to be put beside a place.
pub(super) struct Made<'a> {
    /// Where it is.
    pub(super) path: &'a Path,
    pub(super) content: &'a Content,
    /// What a place that was not there does not get.
    pub(super) umask: u32,
    /// Whether it was made from what is there.
    pub(super) like_old: bool,
}

fn of_bytes(go_on: GoOn<'_>) -> impl FnMut(u64) -> bool + '_ {
    |bytes| go_on(Totals { entries: 0, bytes })
}

impl Place {
    /// The place of an output that was just asked for.
    pub(super) fn open(output: &Output) -> Result<Place, TargetError> {
        Ok(match output.mode {
            Mode::File | Mode::Append => {
                let file = FileTarget::open(&output.to)?;
                probe(file.path())?;
                Place::File(file)
            }
            Mode::Tree | Mode::Patch => Place::Tree(TreeTarget::open(&output.to)?),
        })
    }

    /// The place of an output that is known; none when its directory is gone, and with it
    /// all that was in there.
    pub(super) fn at(place: &Path, way: Option<Way>) -> Result<Option<Place>, TargetError> {
        let opened = match way {
            None => FileTarget::at(place).map(Place::File),
            Some(way) => TreeTarget::at(place, way).map(Place::Tree),
        };
        match opened {
            Err(TargetError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                Ok(None)
            }
            place => place.map(Some),
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Place::File(file) => file.path(),
            Place::Tree(tree) => tree.path(),
        }
    }

    pub(super) fn way(&self) -> Option<Way> {
        match self {
            Place::File(_) => None,
            Place::Tree(tree) => Some(tree.way()),
        }
    }

    /// Refuses a database of SQLite's that is in use, or was left so: what is in its log
    /// would be applied to whatever replaces it.
    fn refuse_open_database(&self) -> Result<(), TargetError> {
        let Place::File(file) = self else { return Ok(()) };
        let has_log = ["-wal", "-journal"].iter().any(|ending| {
            let mut name = file.path().as_os_str().to_owned();
            name.push(ending);
            std::fs::metadata(name).is_ok_and(|meta| meta.len() > 0)
        });
        if has_log && is_database(file.path()).unwrap_or(true) {
            let found = "a database in use: its log lies beside it, and nothing can replace it \
                         until whoever has it open has closed it";
            return Err(TargetError::Unsuitable { path: file.path().to_owned(), found });
        }
        Ok(())
    }

    /// What is there now.
    pub(super) fn look(&self, go_on: GoOn<'_>) -> Result<Option<Content>, TargetError> {
        self.refuse_open_database()?;
        Ok(match self {
            Place::File(file) => {
                let seen = file.look(&mut of_bytes(go_on))?;
                seen.map(|seen| Content::File(seen.fingerprint))
            }
            Place::Tree(tree) => {
                let seen = tree.look(go_on)?;
                seen.map(|seen| Content::Tree(seen.fingerprint))
            }
        })
    }

    /// Puts a result beside what is there, which has to be what it was when the task began,
    /// and syncs it. `keep` is given a file that will be replaced. None when there is
    /// nothing to be done: all records are there.
    ///
    /// # Errors
    /// [`Error::Target`]; nothing is there then.
    pub(super) fn stage(
        &self,
        output: &OutputFact,
        made: &Made<'_>,
        temp: &str,
        keep: &mut dyn FnMut(&Seen),
        go_on: GoOn<'_>,
    ) -> Result<Option<Staged>, Error> {
        let name = OsStr::new(temp);
        self.unstage(temp)?;
        self.refuse_open_database()?;
        let mut stamp = None;
        let (old, new) = match (self, output.mode) {
            (Place::File(file), Mode::Append) => {
                let records = open(made.path)?;
                let records = Records::read(&records, self.path(), &mut of_bytes(go_on))?;
                let staged = records.stage(file, name, made.umask, &mut of_bytes(go_on))?;
                let Some(new) = staged.new else { return Ok(None) };
                return Ok(Some(self.staged(
                    temp,
                    staged.old.map(Content::File),
                    Content::File(new),
                    None,
                )));
            }
            (Place::File(file), _) => {
                let result = open(made.path)?;
                let (executable, umask) = (made.content.is_program(), made.umask);
                let content = FileContent { file: &result, executable, umask };
                let (old, new) = file.look_and_stage(name, content, &mut of_bytes(go_on))?;
                let now = old.as_ref().map(|old| Content::File(old.fingerprint.clone()));
                if now != output.before {
                    self.unstage(temp)?;
                    return Err(file.has_changed().into());
                }
                if let Some(old) = &old {
                    stamp = old.stamp();
                    keep(old);
                }
                (now, Content::File(new))
            }
            (Place::Tree(tree), _) => {
                let old = tree.look(go_on)?;
                let now = old.as_ref().map(|old| Content::Tree(old.fingerprint.clone()));
                if now != output.before {
                    return Err(tree.has_changed().into());
                }
                let result = open(made.path)?;
                let keep = Keep { owners: Owners::Ours, set_id: SetId::Dropped, sync: true };
                let content =
                    Tree { dir: result.as_fd(), keep, like_old: made.like_old, umask: made.umask };
                let new = tree.stage(name, content, old.as_ref(), go_on)?;
                (now, Content::Tree(new))
            }
        };
        // The promise itself: whatever became of the results on the disk since.
        if (new.hash(), new.size()) != (made.content.hash(), made.content.size()) {
            self.unstage(temp)?;
            return Err(Error::Internal("what would land is not what was verified".into()));
        }
        Ok(Some(self.staged(temp, old, new, stamp)))
    }

    fn staged(
        &self,
        temp: &str,
        old: Option<Content>,
        new: Content,
        stamp: Option<Stamp>,
    ) -> Staged {
        let (place, temp) = (self.path().to_owned(), temp.to_owned());
        Staged { place, way: self.way(), temp, old, new, stamp }
    }

    /// Removes what was staged, if it is there.
    pub(super) fn unstage(&self, temp: &str) -> Result<(), TargetError> {
        match self {
            Place::File(file) => file.unstage(OsStr::new(temp)),
            Place::Tree(tree) => tree.unstage(OsStr::new(temp)),
        }
    }
}

/// Makes a file beside a place and removes it: what a landing will have to do, hours later.
fn probe(place: &Path) -> Result<(), TargetError> {
    const STEP: &str = "make a file beside";
    let failed = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            TargetError::NotHere {
                step: STEP,
                path: place.to_owned(),
                why: "its directory can't be written by you, and a file is replaced from there",
                instead: "a directory that you can write, or `--publish command:CMD`, can have it",
            }
        }
        _ => TargetError::Io { step: STEP, path: place.to_owned(), source },
    };
    let flags = (AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS);
    if rustix::fs::statx(CWD, place, flags.0, flags.1)
        .is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    {
        return Err(TargetError::NotHere {
            step: "replace",
            path: place.to_owned(),
            why: "it is a mount point, and nothing can take its name",
            instead: "a mount of the directory that it lies in can have it replaced",
        });
    }
    let name = random_name(12).map_err(failed)?;
    let beside = place.with_file_name(format!(".dam-probe-{name}"));
    std::fs::File::create_new(&beside).map_err(failed)?;
    std::fs::remove_file(&beside).map_err(failed)
}

fn is_database(path: &Path) -> std::io::Result<bool> {
    let mut begin = [0; SQLITE.len()];
    std::fs::File::open(path)?.read_exact(&mut begin)?;
    Ok(begin == *SQLITE)
}

fn open(path: &Path) -> Result<std::fs::File, Error> {
    std::fs::File::open(path).at("open the result", path)
}

impl Staged {
    fn place(&self) -> Result<Option<Place>, TargetError> {
        Place::at(&self.place, self.way)
    }

    /// As [`Staged::place`], where it has to be.
    fn is_there(&self) -> Result<Place, TargetError> {
        let gone = TargetError::Drifted { path: self.place.clone(), how: "has gone" };
        self.place()?.ok_or(gone)
    }

    /// Gives what was staged the place's name, if what is there is still what it was. That
    /// is the commit point.
    pub(super) fn commit(&self) -> Result<(), TargetError> {
        let temp = OsStr::new(&self.temp);
        let place = self.is_there()?;
        place.refuse_open_database()?;
        match (place, &self.old, &self.new) {
            (Place::File(file), old, _) => {
                file.commit_seen(temp, old.as_ref().and_then(Content::file), self.stamp)
            }
            (Place::Tree(tree), old, Content::Tree(new)) => {
                tree.commit(temp, old.as_ref().and_then(Content::tree), new)
            }
            (Place::Tree(tree), ..) => Err(tree.has_changed()),
        }
    }

    /// Compares the place with what it was once more, and makes the name of what was staged
    /// durable: for one of several, before their common commit point.
    pub(super) fn compare(&self) -> Result<(), TargetError> {
        let place = self.is_there()?;
        let now = place.look(&mut |_| true)?;
        if now != self.old {
            return Err(match place {
                Place::File(file) => file.has_changed(),
                Place::Tree(tree) => tree.has_changed(),
            });
        }
        match place {
            Place::File(file) => file.sync(),
            Place::Tree(_) => Ok(()),
        }
    }

    /// Goes on past the common commit point of several.
    pub(super) fn complete(&self) -> Result<Recovered, TargetError> {
        match (self.place()?, self.new.file()) {
            (Some(Place::File(file)), Some(new)) => {
                let old = self.old.as_ref().and_then(Content::file);
                file.complete(OsStr::new(&self.temp), old, new)
            }
            _ => Ok(Recovered::ChangedSince),
        }
    }

    /// Removes versions of a directory that are more than are kept.
    pub(super) fn prune(&self) -> Result<(), TargetError> {
        match self.place()? {
            Some(Place::Tree(tree)) => tree.prune(),
            _ => Ok(()),
        }
    }

    /// On which side of its commit point a single one is.
    pub(super) fn recover(&self) -> Result<Recovered, TargetError> {
        let temp = OsStr::new(&self.temp);
        let old = self.old.as_ref();
        match (self.place()?, &self.new) {
            (Some(Place::File(file)), Content::File(new)) => {
                file.recover(temp, old.and_then(Content::file), new)
            }
            (Some(Place::Tree(tree)), Content::Tree(new)) => {
                tree.recover(temp, old.and_then(Content::tree), new)
            }
            _ => Ok(Recovered::NotCommitted),
        }
    }
}

impl Content {
    fn file(&self) -> Option<&Fingerprint> {
        match self {
            Content::File(file) => Some(file),
            Content::Tree(_) => None,
        }
    }

    fn tree(&self) -> Option<&TreeFingerprint> {
        match self {
            Content::File(_) => None,
            Content::Tree(tree) => Some(tree),
        }
    }
}

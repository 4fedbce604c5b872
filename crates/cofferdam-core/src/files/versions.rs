//! What was replaced, kept so that a person can take a landing back.
//!
//! The last three versions of each place, in the state directory: beside the place they
//! would be seen by whoever lists it. A version that can't be kept is told, and keeps
//! nothing from landing.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use cofferdam_ledger::{State, Task, now_ms};
use cofferdam_tree::target::{TargetError, copy_content};
use cofferdam_tree::{TreeFingerprint, TreeTarget};

use super::OutputFact;
use super::place::{Content, Mode, Place};

use crate::error::IoContext;
use crate::facts::Facts;
use crate::land::lock_name;
use crate::{Dam, Error};

/// How many of each place.
const KEPT: usize = 3;

fn dir_of(dam: &Dam, place: &Path) -> PathBuf {
    dam.versions_dir().join(lock_name("file", place.as_os_str().as_encoded_bytes()))
}

/// Keeps what is about to be replaced at a place by a task.
pub(super) fn keep(dam: &Dam, place: &Path, task: &str, old: &File) -> Result<(), Error> {
    let dir = dir_of(dam, place);
    std::fs::create_dir_all(&dir).at("make", &dir)?;
    // Of equal length, so that their order is that of time.
    let path = dir.join(format!("{:015}-{task}", now_ms()));
    let copy = File::create_new(&path).at("make", &path)?;
    let copied = copy_content(old, &copy, &mut |_| true);
    let copied = copied.and_then(|()| copy.set_permissions(old.metadata()?.permissions()));
    if let Err(error) = copied {
        let _ = std::fs::remove_file(&path);
        return Err(error).at("keep what was there as", path);
    }
    let mut all = list(&dir)?;
    let over = all.len().saturating_sub(KEPT);
    for old in all.drain(..over) {
        std::fs::remove_file(&old).at("remove", old)?;
    }
    Ok(())
}

/// Removes versions that were made before a moment, in milliseconds since 1970: nobody
/// knows any more what they were replaced with.
pub(crate) fn forget_versions(dam: &Dam, before_ms: i64) -> Result<(), Error> {
    for place in list(&dam.versions_dir())? {
        for version in list(&place)? {
            let name = version.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let made = name.split_once('-').and_then(|(at, _)| at.parse::<i64>().ok());
            if made.is_some_and(|at| at < before_ms) {
                std::fs::remove_file(&version).at("remove", &version)?;
            }
        }
        // Not while there are others.
        let _ = std::fs::remove_dir(&place);
    }
    Ok(())
}

/// The versions of a place, oldest first.
fn list(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at("read", dir)?,
    };
    let mut all: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    all.sort();
    Ok(all)
}

/// What a landing replaced: for each output, where it was made in the context, the place,
/// and the version that was there.
pub struct Replaced {
    /// As `Output::from`.
    pub from: PathBuf,
    /// The place.
    pub place: PathBuf,
    /// The version.
    pub version: PathBuf,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// The version of a directory that was what it was when the task began.
fn tree_version(output: &OutputFact) -> Result<Option<PathBuf>, Error> {
    let (Some(Content::Tree(before)), Some(way)) = (&output.before, output.way) else {
        return Ok(None);
    };
    for version in TreeTarget::at(&output.place, way)?.versions()?.into_iter().rev() {
        let dir = File::open(&version.path).at("open", &version.path)?;
        let found = TreeFingerprint::of(dir.as_fd(), &mut |_| true)
            .map_err(std::io::Error::from)
            .at("read", &version.path)?;
        if found.content == before.content {
            return Ok(Some(version.path));
        }
    }
    Ok(None)
}

/// What the landing of a task replaced, when all of it can be put back.
///
/// # Errors
/// [`Error::WrongState`] with the reason when not.
pub fn replaced(dam: &Dam, task: &Task) -> Result<Vec<Replaced>, Error> {
    let wrong =
        |why: String| Error::WrongState { name: task.name.to_string(), state: task.state, why };
    if task.state != State::Landed {
        return Err(wrong("nothing of it is there to be taken back".into()));
    }
    let mut all = Vec::new();
    for output in Facts::of(task)?.outputs {
        match output.mode {
            Mode::Append => {
                let why = format!("records in `{}` stay what they are", output.place.display());
                return Err(wrong(why));
            }
            Mode::Patch => {
                let why =
                    "what a patch replaced is not kept: `dam diff` shows it only before it lands";
                return Err(wrong(why.into()));
            }
            Mode::File | Mode::Tree => {}
        }
        let Some(result) = output.differing() else { continue };
        let place = output.place.display();
        if output.before.is_none() {
            return Err(wrong(format!("`{place}` was not there before; to undo that, remove it")));
        }
        let now = Place::at(&output.place, output.way)?;
        let now = now.map(|place| place.look(&mut |_| true)).transpose()?.flatten();
        let same = |now: &Content| now.reads_as(result);
        if now
            .as_ref()
            .zip(output.before.as_ref())
            .is_some_and(|(now, before)| now.reads_as(before))
        {
            return Err(wrong(format!("`{place}` is what it was before already")));
        }
        if !now.as_ref().is_some_and(same) {
            let (path, how) = (output.place.clone(), "has changed since it landed");
            return Err(TargetError::Drifted { path, how }.into());
        }
        let missing = || wrong(format!("what was at `{place}` before is not kept any more"));
        let (from, is_dir) = (output.from.clone(), output.mode == Mode::Tree);
        if is_dir {
            let version = tree_version(&output)?.ok_or_else(missing)?;
            all.push(Replaced { from, place: output.place.clone(), version, is_dir });
            continue;
        }
        let versions = list(&dir_of(dam, &output.place))?;
        let own = |path: &PathBuf| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().ends_with(&format!("-{}", task.id)))
        };
        let version = versions.into_iter().rev().find(own).ok_or_else(missing)?;
        all.push(Replaced { from, place: output.place.clone(), version, is_dir });
    }
    Ok(all)
}

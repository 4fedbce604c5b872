//! Inputs: outside data that a task may read.
//!
//! A file is copied once, when the task starts: its command and its checks see that
//! copy, whatever becomes of the file. A database of SQLite's is copied with its
//! write-ahead log, and only the copy is opened: to open the original would leave
//! files beside it or keep its writers waiting. A directory is seen as it is, through
//! an overlay of each context's own; when it has changed by the time of a verdict,
//! the verdict would be about something else, and the task waits for a person.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use cofferdam_tree::{Fingerprint, hex};

use crate::Error;
use crate::error::IoContext;

/// What begins a database of SQLite's (fileformat2.html, section 1.3).
pub(crate) const SQLITE: &[u8; 16] = b"SQLite format 3\0";
/// How often a database that is written meanwhile is copied again.
const TRIES: u32 = 20;
/// A directory with more entries is no input: its fingerprint would take too long.
const MOST_ENTRIES: u64 = 1_000_000;

/// An input as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Where it is, an absolute path.
    pub source: PathBuf,
    /// Where it appears inside, an absolute path.
    pub dest: PathBuf,
}

impl Input {
    /// An input as a person writes it: `PATH` or `PATH:DEST`, a path relative to `dir`.
    /// `said` is where it was written. With a `top`, what is relative outside is relative
    /// to that inside; without, it is at its own path.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn parse(text: &Path, dir: &Path, said: &str, top: Option<&Path>) -> Result<Input, Error> {
        let usage = |why: &str| Error::usage(format!("`{said} {}`: {why}", text.display()), None);
        let whole = dir.join(text);
        let bytes = text.as_os_str().as_bytes();
        let colon = bytes.iter().rposition(|byte| *byte == b':');
        let (source, dest) = match colon {
            // A name can hold a colon.
            Some(at) if whole.symlink_metadata().is_err() => {
                let part = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
                (dir.join(part(&bytes[..at])), Some(part(&bytes[at + 1..])))
            }
            _ => (whole, None),
        };
        let source = std::fs::canonicalize(&source).map_err(|error| usage(&error.to_string()))?;
        let leads_up = |path: &Path| path.components().any(|part| part == Component::ParentDir);
        let dest = match (dest, top) {
            (None, Some(_)) if text.is_relative() && leads_up(text) => {
                return Err(usage("where is it to be inside? `PATH:DEST` says so"));
            }
            (None, Some(top)) if text.is_relative() => clean(&top.join(text)),
            (Some(dest), Some(top)) => clean(&top.join(dest)),
            (Some(dest), None) => dest,
            (None, _) => source.clone(),
        };
        if !dest.is_absolute() || leads_up(&dest) {
            return Err(usage("the place inside has to be an absolute path without `..`"));
        }
        Ok(Input { source, dest })
    }
}

/// A path without `.` and doubled slashes.
pub(crate) fn clean(path: &Path) -> PathBuf {
    path.components().collect()
}

/// An input as a task has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InputReport {
    /// Where it is.
    pub source: PathBuf,
    /// Where it appears inside.
    pub dest: PathBuf,
    /// `file`, `database` or `directory`.
    pub kind: Kind,
    /// Hash of its content; of a directory, of the names, types, modes, sizes and times
    /// of all that is in it.
    pub fingerprint: String,
}

impl InputReport {
    /// Whether it is a copy of a file.
    pub(crate) fn is_file(&self) -> bool {
        self.kind != Kind::Directory
    }
}

/// What kind of input it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Copied.
    File,
    /// Copied with its log, and made one file.
    Database,
    /// Seen through an overlay.
    Directory,
}

/// Takes an input for a task: a file is copied to `copy`.
///
/// # Errors
/// [`Error::Usage`] for what can't be an input, [`Error::Io`].
pub(crate) fn take(input: &Input, copy: &Path) -> Result<InputReport, Error> {
    let source = &input.source;
    let meta = std::fs::metadata(source).at("look at the input", source)?;
    let report = |kind, fingerprint| InputReport {
        source: source.clone(),
        dest: input.dest.clone(),
        kind,
        fingerprint,
    };
    if meta.is_dir() {
        return Ok(report(Kind::Directory, fingerprint_of_dir(source)?));
    }
    if !meta.is_file() {
        let message = format!("`{}` is neither a file nor a directory", source.display());
        return Err(Error::usage(message, None));
    }
    if begins_with(source, SQLITE)? {
        copy_database(source, copy)?;
        return Ok(report(Kind::Database, fingerprint_of_file(copy)?));
    }
    std::fs::copy(source, copy).at("copy the input", source)?;
    Ok(report(Kind::File, fingerprint_of_file(copy)?))
}

/// Whether an input is no longer what a task was given: only a directory can change.
pub(crate) fn has_changed(input: &InputReport) -> Result<bool, Error> {
    Ok(match input.kind {
        Kind::Directory => fingerprint_of_dir(&input.source)? != input.fingerprint,
        Kind::File | Kind::Database => false,
    })
}

fn begins_with(path: &Path, wanted: &[u8]) -> Result<bool, Error> {
    let mut begin = vec![0; wanted.len()];
    let mut file = std::fs::File::open(path).at("read the input", path)?;
    Ok(file.read_exact(&mut begin).is_ok() && begin == wanted)
}

/// The files beside a database that belong to it.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Copies a database in a committed state, and makes one file of the copy.
fn copy_database(source: &Path, copy: &Path) -> Result<(), Error> {
    let parts =
        ["", "-wal", "-journal"].map(|ending| (beside(source, ending), beside(copy, ending)));
    for _ in 0..TRIES {
        for (from, to) in &parts {
            match std::fs::copy(from, to) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    let _ = std::fs::remove_file(to);
                }
                Err(error) => return Err(error).at("copy the input", from),
            }
        }
        // Each part is still what was copied, read in the same order: then there was a
        // moment at which all of them were.
        let mut same = true;
        for (from, to) in &parts {
            same = same && hash(from)? == hash(to)?;
        }
        if same {
            return one_file(copy).map_err(|why| {
                Error::usage(
                    format!("the database `{}` can't be read: {why}", source.display()),
                    None,
                )
            });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let message = format!("the database `{}` is written all the time", source.display());
    Err(Error::usage(message, "try again when its writer rests, or make a copy with `.backup`"))
}

/// Moves the log of a copied database into it.
fn one_file(copy: &Path) -> Result<(), String> {
    let open = || -> rusqlite::Result<String> {
        let database = rusqlite::Connection::open(copy)?;
        database.query_row("PRAGMA journal_mode = DELETE", [], |row| row.get(0))
    };
    match open() {
        Ok(mode) if mode == "delete" => {}
        Ok(mode) => return Err(format!("its journal mode stays `{mode}`")),
        Err(error) => return Err(error.to_string()),
    }
    for ending in ["-wal", "-shm", "-journal"] {
        let _ = std::fs::remove_file(beside(copy, ending));
    }
    Ok(())
}

fn fingerprint_of_file(path: &Path) -> Result<String, Error> {
    hash(path)?.ok_or_else(|| Error::Internal(format!("`{}` is gone", path.display())))
}

/// The hash of a file's content; none when there is no such file.
fn hash(path: &Path) -> Result<Option<String>, Error> {
    let file = match std::fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.at("read the input", path)?,
    };
    let fingerprint = Fingerprint::of(&file, &mut |_| true).at("read the input", path)?;
    Ok(Some(fingerprint.sha256))
}

/// Names, types, modes, sizes, and the times of changes, which nobody can set.
fn fingerprint_of_dir(dir: &Path) -> Result<String, Error> {
    let mut hash = Sha256::new();
    let mut entries = 0;
    let mut ask = vec![dir.to_owned()];
    while let Some(dir) = ask.pop() {
        let list = std::fs::read_dir(&dir).at("read the input", &dir)?;
        let mut names: Vec<_> =
            list.filter_map(Result::ok).map(|entry| entry.file_name()).collect();
        names.sort();
        entries += names.len() as u64;
        if entries > MOST_ENTRIES {
            let message = format!("`{}` has more than a million entries", dir.display());
            return Err(Error::usage(message, "name the part of it that is needed"));
        }
        for name in names {
            let path = dir.join(&name);
            let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
            hash.update((path.as_os_str().len() as u64).to_le_bytes());
            hash.update(path.as_os_str().as_encoded_bytes());
            for number in [meta.ino(), u64::from(meta.mode()), meta.size()] {
                hash.update(number.to_le_bytes());
            }
            // Of a directory they change with its entries, which are in.
            if !meta.is_dir() {
                hash.update(meta.ctime().to_le_bytes());
                hash.update(meta.ctime_nsec().to_le_bytes());
            } else {
                ask.push(path);
            }
        }
    }
    Ok(hex(&hash.finalize()))
}

//! What repositories may ask of the host, because a person said so.
//!
//! A repository's `cofferdam.toml` can ask for inputs, copies, variables and the
//! network. Whoever can commit to it could ask for anything, so none of it counts
//! before the person has seen it and said `dam trust`. What is kept is a hash of the
//! repository's place and of all that it asked for: when that changes, it is asked for
//! anew. The record lies beside the person's configuration, where no task can write.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cofferdam_git::{Objects, Repository, Store};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use cofferdam_tree::hex;

use crate::admit::refuse_another;
use crate::config::{Asks, Config, own_dir};
use crate::error::IoContext;
use crate::{Dam, Error};

/// The version of the record.
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    version: u32,
    #[serde(rename = "trusted")]
    entries: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    /// For people.
    repository: String,
    /// Of its place, and of what it asked for.
    hash: String,
}

/// What a repository asks for, and whether it gets it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct TrustReport {
    /// Its directory.
    pub repository: String,
    /// The commit whose `cofferdam.toml` was read.
    pub commit: String,
    /// What it asks for.
    pub asks: Asks,
    /// Whether it gets that.
    pub trusted: bool,
}

/// What the repository that `dir` is in asks for, as a run there would read it: at the
/// tip of `into`, else of the one that `[task] into` names, else HEAD.
///
/// # Errors
/// [`Error::Git`], [`Error::Config`].
pub fn look(dam: &Dam, dir: &Path, into: Option<&str>) -> Result<(Repository, TrustReport), Error> {
    let repo = Repository::find(dir)?;
    refuse_another(&repo, dir)?;
    let config = cofferdam_git::PersonConfig::read(&repo)?;
    let store: Store = dam.store(&repo, &config)?;
    let head = repo
        .resolve("HEAD")?
        .ok_or_else(|| cofferdam_git::GitError::Unborn(repo.common_dir.clone()))?;
    let mut objects = Objects::start(&store)?;
    let mut config = Config::at(&mut objects, &head)?.joined(&dam.own);
    let mut commit = head;
    if let Some(into) = into.map(str::to_owned).or(config.into) {
        let tip = match repo.resolve(&format!("refs/heads/{into}"))? {
            Some(tip) => Some(tip),
            // As it was fetched last: a run asks the remote.
            None => repo.resolve(&format!("refs/remotes/{into}"))?,
        };
        commit = tip.ok_or_else(|| Error::usage(format!("there is no branch `{into}`"), None))?;
        config = Config::at(&mut objects, &commit)?;
    }
    let asks = config.asks;
    let report = TrustReport {
        repository: place(&repo).display().to_string(),
        commit: commit.to_string(),
        trusted: is_trusted(&repo, &asks)?,
        asks,
    };
    Ok((repo, report))
}

/// Whether a repository gets what it asks for; one that asks for nothing does.
///
/// # Errors
/// When the record can't be read.
pub fn is_trusted(repo: &Repository, asks: &Asks) -> Result<bool, Error> {
    if asks.is_empty() {
        return Ok(true);
    }
    let hash = hash(repo, asks);
    Ok(read()?.entries.iter().any(|entry| entry.hash == hash))
}

/// Lets a repository have what it asks for, in the place of anything that it was let
/// have before; with nothing, nothing.
///
/// # Errors
/// When the record can't be read or written.
pub fn record(repo: &Repository, asks: Option<&Asks>) -> Result<(), Error> {
    let mut record = read()?;
    let repository = place(repo).display().to_string();
    record.entries.retain(|entry| entry.repository != repository);
    if let Some(asks) = asks {
        record.entries.push(Entry { repository, hash: hash(repo, asks) });
    }
    let path = file()?;
    let text = serde_json::to_vec_pretty(&record).expect("a record serialises");
    let dir = path.parent().unwrap_or(&path);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).at("make", dir)?;
    cofferdam_tree::write_atomic(&path, &text, 0o600).at("write", path)
}

fn place(repo: &Repository) -> &Path {
    repo.worktree.as_deref().filter(|_| repo.common_dir == repo.git_dir).unwrap_or(&repo.common_dir)
}

fn hash(repo: &Repository, asks: &Asks) -> String {
    let mut hash = Sha256::new();
    let place = repo.common_dir.as_os_str().as_bytes();
    hash.update((place.len() as u64).to_le_bytes());
    hash.update(place);
    hash.update(serde_json::to_vec(asks).expect("lists of text serialise"));
    hex(hash.finalize().as_slice())
}

fn file() -> Result<PathBuf, Error> {
    own_dir().map(|dir| dir.join("trust.json")).ok_or_else(|| {
        Error::usage("there is no place for your configuration", "set HOME to an absolute path")
    })
}

fn read() -> Result<Record, Error> {
    let empty = Record { version: VERSION, entries: Vec::new() };
    let path = file()?;
    let wrong = |message: String| Error::Config { file: format!("`{}`", path.display()), message };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(empty),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let record: Record = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if record.version != VERSION {
        return Err(wrong(format!("version {} is not known", record.version)));
    }
    Ok(record)
}

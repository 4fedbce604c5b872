//! Files that Git LFS keeps outside of the objects: in the tree stands a *pointer*,
//! a small text with the SHA-256 and size of the content.
//!
//! No program of the host reads what a task wrote, so `git-lfs` is not asked to: a
//! pointer is made here from the bytes (*clean*), and replaced here by the content
//! (*smudge*) where a layer is made. What a task wrote is kept in our store until it
//! lands; then `git-lfs` puts it into the person's storage, before any ref moves.
//! Nothing is fetched from a server, and nothing is sent to one.
//!
//! The format of pointers is that of the Git LFS specification, version 1.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use cofferdam_failpoint::hit;
use cofferdam_tree::fsync_dir;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{GitError, IoContext, PersonConfig, Repository};

/// The value of the attribute `filter`.
pub(crate) const FILTER: &str = "lfs";
/// A larger file is no pointer, whatever it begins with.
pub(crate) const MOST: u64 = 1024;
const VERSION: &str = "version https://git-lfs.github.com/spec/v1";

/// What a pointer says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pointer {
    /// SHA-256 of the content, in hexadecimal digits.
    pub oid: String,
    /// Length of the content in bytes.
    pub size: u64,
}

impl Pointer {
    /// Reads a pointer; `None` for any other text, and for one with extensions.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Pointer> {
        let text = std::str::from_utf8(bytes).ok()?;
        if text.len() as u64 > MOST {
            return None;
        }
        let mut lines = text.trim_end().lines();
        if lines.next()? != VERSION {
            return None;
        }
        let oid = lines.next()?.strip_prefix("oid sha256:")?;
        let size = lines.next()?.strip_prefix("size ")?.parse().ok()?;
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let whole = oid.len() == 64 && oid.bytes().all(digit) && lines.next().is_none();
        whole.then(|| Pointer { oid: oid.to_owned(), size })
    }

    fn text(&self) -> String {
        format!("{VERSION}\noid sha256:{}\nsize {}\n", self.oid, self.size)
    }

    /// Where its content is below a storage directory.
    fn place(&self, storage: &Path) -> PathBuf {
        storage.join("objects").join(&self.oid[..2]).join(&self.oid[2..4]).join(&self.oid)
    }
}

/// How a repository stands to Git LFS.
#[derive(Debug, Clone)]
pub struct Lfs {
    /// Why it can't be used here.
    missing: Option<String>,
    /// Pointers stay what they are (`GIT_LFS_SKIP_SMUDGE`, as `git-lfs` has it).
    skip: bool,
    /// The person's storage.
    storage: PathBuf,
    /// Ours.
    own: PathBuf,
}

/// What became of a file's content.
pub(crate) enum Cleaned {
    /// The content of the blob: a pointer that stood there as such, or nothing.
    AsItIs(Vec<u8>),
    /// The content is kept, and this stands for it.
    Kept(Pointer, Vec<u8>),
}

impl Lfs {
    pub(crate) fn of(repo: &Repository, config: &PersonConfig, store: &Path) -> Lfs {
        let storage = config.get("lfs.storage").unwrap_or("lfs");
        let skip = std::env::var("GIT_LFS_SKIP_SMUDGE").unwrap_or_default();
        Lfs {
            missing: missing(config),
            skip: matches!(skip.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on" | "t"),
            storage: repo.common_dir.join(storage),
            own: own_of(store),
        }
    }

    /// Where `git-lfs` keeps the person's content.
    #[must_use]
    pub fn storage(&self) -> &Path {
        &self.storage
    }

    /// Where content is kept that has not landed.
    #[must_use]
    pub fn own(&self) -> &Path {
        &self.own
    }

    /// Whether what `git-lfs` does to files is to be done.
    #[must_use]
    pub fn is_set_up(&self) -> bool {
        self.missing.is_none()
    }

    /// Why a file can't be taken that is under this filter.
    pub(crate) fn why_not(&self) -> Option<String> {
        self.missing.as_ref().map(|why| format!("is kept by Git LFS, and {why}"))
    }

    /// What distinguishes layers whose pointers stay what they are.
    pub(crate) fn key(&self) -> &'static str {
        if self.skip { "pointers" } else { "" }
    }

    pub(crate) fn leaves_pointers(&self) -> bool {
        self.skip
    }

    /// The file with the content of a pointer that is at `path`.
    pub(crate) fn content(&self, path: &[u8], pointer: &Pointer) -> Result<PathBuf, GitError> {
        let lfs = |why: String| GitError::Lfs { path: path.into(), why };
        if let Some(why) = &self.missing {
            return Err(lfs(why.clone()));
        }
        self.find(pointer)
            .ok_or_else(|| lfs(format!("its content ({}) was not fetched", &pointer.oid[..12])))
    }

    pub(crate) fn find(&self, pointer: &Pointer) -> Option<PathBuf> {
        [&self.own, &self.storage].into_iter().map(|dir| pointer.place(dir)).find(|file| {
            std::fs::symlink_metadata(file)
                .is_ok_and(|meta| meta.is_file() && meta.len() == pointer.size)
        })
    }

    /// Reads a file of `size` bytes as `git-lfs` cleans it.
    pub(crate) fn clean(&self, content: &mut impl Read, size: u64) -> Result<Cleaned, GitError> {
        let mut start = Vec::new();
        content.take(MOST).read_to_end(&mut start).at("read", "a file of the task")?;
        if size <= MOST && (start.is_empty() || Pointer::parse(&start).is_some()) {
            return Ok(Cleaned::AsItIs(start));
        }
        let incoming = self.own.join("incoming");
        std::fs::create_dir_all(&incoming).at("make", &incoming)?;
        let draft = incoming.join(cofferdam_tree::random_name(16).at("make", &incoming)?);
        let kept = self.keep(&draft, &mut start.as_slice().chain(content));
        if kept.is_err() {
            let _ = std::fs::remove_file(&draft);
        }
        let pointer = kept?;
        let text = pointer.text().into_bytes();
        Ok(Cleaned::Kept(pointer, text))
    }

    fn keep(&self, draft: &Path, content: &mut impl Read) -> Result<Pointer, GitError> {
        let file = std::fs::File::create_new(draft).at("make", draft)?;
        let mut hashing = Hashing { file, hash: Sha256::new(), size: 0 };
        io::copy(content, &mut hashing).at("write", draft)?;
        hashing.file.sync_all().at("sync", draft)?;
        let oid = hashing.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let pointer = Pointer { oid, size: hashing.size };
        let place = pointer.place(&self.own);
        let dir = place.parent().unwrap_or(&self.own);
        std::fs::create_dir_all(dir).at("make", dir)?;
        std::fs::rename(draft, &place).at("make", &place)?;
        fsync_dir(dir).at("sync", dir)?;
        Ok(pointer)
    }
}

/// Forgets content in a store of ours but for that of `used`, and drafts of who died.
/// Nobody may be writing there.
///
/// # Errors
/// [`GitError::Io`].
pub fn forget_but(store: &Path, used: &dyn Fn(&str) -> bool) -> Result<(), GitError> {
    for dir in ["objects", "incoming"] {
        forget_below(&own_of(store).join(dir), used)?;
    }
    Ok(())
}

fn own_of(store: &Path) -> PathBuf {
    store.join("lfs")
}

fn forget_below(dir: &Path, used: &dyn Fn(&str) -> bool) -> Result<(), GitError> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.at("read", dir)?,
    };
    for entry in entries {
        let entry = entry.at("read", dir)?;
        let path = entry.path();
        if entry.file_type().at("look at", &path)?.is_dir() {
            forget_below(&path, used)?;
            // It may hold what is used.
            let _ = std::fs::remove_dir(&path);
        } else if !entry.file_name().to_str().is_some_and(used) {
            std::fs::remove_file(&path).at("remove", &path)?;
        }
    }
    Ok(())
}

/// Why `git-lfs` does not work on this repository.
fn missing(config: &PersonConfig) -> Option<String> {
    let command = config.get("filter.lfs.process").or_else(|| config.get("filter.lfs.clean"));
    let Some(command) = command else {
        return Some("`git lfs install` was not run for you".into());
    };
    let program = command.split_whitespace().next().unwrap_or(command);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = if program.contains('/') {
        Path::new(program).is_file()
    } else {
        std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
    };
    (!found).then(|| format!("the program `{program}` is not installed"))
}

struct Hashing {
    file: std::fs::File,
    hash: Sha256,
    size: u64,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Puts content that landing commits point to into the person's storage, durably:
/// `git-lfs` does it, as the repository's owner.
///
/// # Errors
/// [`GitError`]; content that nothing points to changes nothing.
pub fn publish(lfs: &Lfs, repo: &Repository, pointers: &[Pointer]) -> Result<(), GitError> {
    for pointer in pointers {
        let place = pointer.place(&lfs.storage);
        if std::fs::metadata(&place).is_ok_and(|meta| meta.len() == pointer.size) {
            continue;
        }
        hit("publish:lfs:before").at("write", &place)?;
        let own = pointer.place(&lfs.own);
        let file = std::fs::File::open(&own).at("read", &own)?;
        let done = repo.git().args(["lfs", "clean"]).reading(file).finish()?;
        if !done.status.success() {
            return Err(done.failed());
        }
        if Pointer::parse(&done.stdout).as_ref() != Some(pointer) {
            return Err(done.unexpected());
        }
        hit("publish:lfs:written").at("write", &place)?;
        let file = std::fs::File::open(&place).at("read", &place)?;
        file.sync_all().at("sync", &place)?;
        // Directories may be new up to the storage itself.
        for dir in place.ancestors().skip(1).take(4) {
            fsync_dir(dir).at("sync", dir)?;
        }
        hit("publish:lfs:after").at("write", &place)?;
    }
    Ok(())
}

/// Whether an attributes file below `dir` names the filter.
pub(crate) fn is_named_below(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    entries.filter_map(Result::ok).any(|entry| {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            is_named_below(&path)
        } else {
            is_named_in(path)
        }
    })
}

/// Whether an attributes file names the filter.
pub(crate) fn is_named_in(file: PathBuf) -> bool {
    std::fs::read(file).is_ok_and(|text| text.windows(10).any(|bytes| bytes == b"filter=lfs"))
}

/// The pointer that a file is.
pub(crate) fn pointer_in(file: &Path) -> io::Result<Option<Pointer>> {
    let size = std::fs::symlink_metadata(file)?.len();
    if size > MOST || size < VERSION.len() as u64 {
        return Ok(None);
    }
    Ok(Pointer::parse(&std::fs::read(file)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OID: &str = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393";

    #[test]
    fn pointers_are_read_and_written() {
        let pointer = Pointer { oid: OID.into(), size: 12345 };
        let text = pointer.text();
        assert_eq!(Pointer::parse(text.as_bytes()), Some(pointer));
        for no in [
            text.replace("v1", "v2"),
            text.replace("sha256", "sha1"),
            text.replace("4d7a", "4D7A"),
            text.replace("size 12345", "size -1"),
            text.replace("oid", "ext-0-x sha256:0\noid"),
            text.clone() + "more\n",
            text[..60].to_owned(),
            String::new(),
        ] {
            assert_eq!(Pointer::parse(no.as_bytes()), None, "{no}");
        }
    }
}

//! What tells whether a directory is still what it was.

use rustix::fd::{AsFd, BorrowedFd};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::TreeError;
use crate::stat::probe_fd;
use crate::target::copy::{BUFFER, persons_attributes};
use crate::target::file::version;
use crate::target::fingerprint;
use crate::target::hex;
use crate::walk::{Caps, DeviceKind, Entry, Found, Totals, Visit, WalkError, Walker};

/// A person's own tree may be of any size; who has no patience says so.
pub(super) const CAPS: Caps =
    Caps { entries: u64::MAX, bytes: u64::MAX, depth: 1024, name_len: 255 };

/// Set-uid and set-gid.
pub(super) const SET_ID: u32 = 0o6000;

/// A directory by all that it holds. Never by times: they can be set; nor by which names
/// are links to one file.
///
/// Two hashes, because a copy can be made with other owners: then [`content`] is still
/// that of what was verified.
///
/// [`content`]: TreeFingerprint::content
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeFingerprint {
    /// SHA-256 over every entry's path, type, permission bits (without set-uid and
    /// set-gid) and content, 64 hexadecimal digits. Of the directory itself nothing.
    pub content: String,
    /// SHA-256 over the owner, group, set-id bits, `user.*` attributes and access lists of
    /// every entry and of the directory itself, and its permission bits.
    pub attributes: String,
    /// How many entries are below it.
    pub entries: u64,
    /// Length of all its files, in bytes; each name of a file counts.
    pub bytes: u64,
}

impl TreeFingerprint {
    /// That of an open directory. Nothing is followed, and no mount is entered. `go_on` is
    /// told what was read since it was last asked; `false` ends it with
    /// [`std::io::ErrorKind::Interrupted`].
    ///
    /// # Errors
    /// [`TreeError`]: [`WalkError::Changed`] in it when it was written to meanwhile.
    pub fn of(
        dir: BorrowedFd<'_>,
        go_on: &mut dyn FnMut(Totals) -> bool,
    ) -> Result<TreeFingerprint, TreeError> {
        let top = dir.try_clone_to_owned().map_err(|error| TreeError::io("open", b"", error))?;
        let stat = probe_fd(&top).map_err(|errno| TreeError::io("look at", b"", errno))?.stat;
        let mut hashes = Hashes::default();
        hashes.attributes(b"", (stat.uid, stat.gid), stat.mode & 0o7777, Some(top.as_fd()))?;
        let mut buffer = vec![0; BUFFER];
        let totals = Walker::new(top, CAPS).walk::<TreeError>(&mut |entry| {
            hashes.entry(entry, &mut buffer, go_on)?;
            Ok(Visit::Descend)
        })?;
        Ok(TreeFingerprint {
            content: hex(&hashes.content.finalize()),
            attributes: hex(&hashes.attributes.finalize()),
            entries: totals.entries,
            bytes: totals.bytes,
        })
    }
}

/// Both are fed with records that can't be mistaken for others: what has no fixed length
/// has it written before.
#[derive(Default)]
struct Hashes {
    content: Sha256,
    attributes: Sha256,
}

impl Hashes {
    fn entry(
        &mut self,
        entry: &Entry<'_>,
        buffer: &mut [u8],
        go_on: &mut dyn FnMut(Totals) -> bool,
    ) -> Result<(), TreeError> {
        let set_id = entry.mode & SET_ID;
        let owner = (entry.uid, entry.gid);
        put(&mut self.content, entry.path);
        let (kind, mode) = match &entry.found {
            Found::File { .. } | Found::HardLink { .. } => (b'f', entry.mode & !SET_ID),
            Found::Dir { .. } => (b'd', entry.mode & !SET_ID),
            // They have no permissions.
            Found::Symlink { .. } => (b'l', 0),
            Found::Fifo => (b'p', entry.mode),
            Found::Socket => (b's', entry.mode),
            Found::Whiteout | Found::Device { kind: DeviceKind::Character, .. } => {
                (b'c', entry.mode)
            }
            Found::Device { kind: DeviceKind::Block, .. } => (b'b', entry.mode),
        };
        self.content.update([kind]);
        self.content.update(mode.to_be_bytes());
        let mut ask = |done: Totals| match go_on(done) {
            true => Ok(()),
            false => Err(std::io::ErrorKind::Interrupted.into()),
        };
        ask(Totals { entries: 1, bytes: 0 })
            .map_err(|error: std::io::Error| TreeError::io("read", entry.path, error))?;
        match &entry.found {
            Found::File { .. } | Found::HardLink { .. } => {
                let file = entry.open_file()?;
                let fail = |error| TreeError::io("read", entry.path, error);
                let before = version(&file).map_err(fail)?;
                let mut told = |bytes| ask(Totals { entries: 0, bytes }).is_ok();
                let (hash, size) = fingerprint::content(&file, buffer, &mut told).map_err(fail)?;
                if version(&file).map_err(fail)? != before {
                    return Err(WalkError::Changed { path: entry.path.into() }.into());
                }
                self.content.update(size.to_be_bytes());
                self.content.update(hash);
                self.attributes(entry.path, owner, set_id, Some(file.as_fd()))
            }
            Found::Dir { .. } => {
                self.attributes(entry.path, owner, set_id, Some(entry.open_dir()?.as_fd()))
            }
            Found::Symlink { target } => {
                put(&mut self.content, target);
                self.attributes(entry.path, owner, 0, None)
            }
            Found::Device { major, minor, .. } => {
                self.content.update(major.to_be_bytes());
                self.content.update(minor.to_be_bytes());
                self.attributes(entry.path, owner, 0, None)
            }
            Found::Whiteout => {
                self.content.update([0; 8]);
                self.attributes(entry.path, owner, 0, None)
            }
            Found::Fifo | Found::Socket => self.attributes(entry.path, owner, 0, None),
        }
    }

    /// What is not a file or a directory can have no attribute of a person's (xattr(7)).
    fn attributes(
        &mut self,
        path: &[u8],
        (uid, gid): (u32, u32),
        mode: u32,
        open: Option<BorrowedFd<'_>>,
    ) -> Result<(), TreeError> {
        put(&mut self.attributes, path);
        for number in [uid, gid, mode] {
            self.attributes.update(number.to_be_bytes());
        }
        let extended = match open {
            Some(fd) => persons_attributes(fd)
                .map_err(|errno| TreeError::io("read the attributes of", path, errno))?,
            None => Vec::new(),
        };
        self.attributes.update((extended.len() as u64).to_be_bytes());
        for (name, value) in extended {
            put(&mut self.attributes, name.as_encoded_bytes());
            put(&mut self.attributes, &value);
        }
        Ok(())
    }
}

fn put(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_be_bytes());
    hash.update(bytes);
}

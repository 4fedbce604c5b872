//! git's index file, versions 2 and 3, read and written without git.
//!
//! Why by hand: a layer's index must carry stat data that is valid and never
//! racy, so that the first `git status` in a context re-hashes and writes
//! nothing. git can only get there by reading every file again.
//! Format: `gitformat-index(5)`.
//!
//! What is written has no extensions and a null checksum, which git takes as
//! "not computed" (`index.skipHash`); readers before 2.40 do not look at it.

use cofferdam_tree::stat::FileStat;

use std::path::Path;

use crate::{GitError, IoContext, ObjectFormat, Oid};

/// Copies an index of the person's, if there is one, with its mtime. To git a
/// file is unchanged only when it is older than the index: below a copy that is
/// newer, an edit of the same size in the second of the index would not be seen,
/// and be overwritten.
///
/// # Errors
/// [`GitError::Io`].
pub fn copy_index(from: &Path, to: &Path) -> Result<(), GitError> {
    let mut source = match std::fs::File::open(from) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.at("read", from)?,
    };
    let time = source.metadata().and_then(|meta| meta.modified()).at("look at", from)?;
    let mut copy = std::fs::File::create(to).at("make", to)?;
    std::io::copy(&mut source, &mut copy).at("copy", from)?;
    copy.set_modified(time).at("set the time of", to)
}

const HEADER: usize = 12;
const STAT: usize = 40;
const EXTENDED: u16 = 0x4000;
const NAME_MASK: u16 = 0x0fff;

/// One entry, borrowed from the file's bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a> {
    /// Offset of the entry in the file.
    pub(crate) at: usize,
    pub(crate) mode: u32,
    pub(crate) path: &'a [u8],
    /// The object's name, as bytes.
    oid: &'a [u8],
    bytes: &'a [u8],
}

impl Entry<'_> {
    pub(crate) fn oid(&self) -> Option<Oid> {
        Oid::parse(&self.oid.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }
}

/// An index in memory.
pub(crate) struct Index {
    bytes: Vec<u8>,
    hash_len: usize,
}

fn broken(what: &str) -> GitError {
    GitError::Unsupported(format!("the index of a layer is broken: {what}"))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl Index {
    pub(crate) fn parse(bytes: Vec<u8>, format: ObjectFormat) -> Result<Index, GitError> {
        let version = word(&bytes, 4);
        if bytes.get(..4) != Some(b"DIRC") || !matches!(version, Some(2 | 3)) {
            return Err(broken("not version 2 or 3"));
        }
        Ok(Index { bytes, hash_len: format.raw_len() })
    }

    /// Calls `visit` with each entry in order.
    pub(crate) fn each<E: From<GitError>>(
        &self,
        mut visit: impl FnMut(Entry<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let count = word(&self.bytes, 8).ok_or_else(|| broken("no header"))?;
        let mut at = HEADER;
        for _ in 0..count {
            let entry = self.entry(at).ok_or_else(|| broken("an entry is cut off"))?;
            at += entry.bytes.len();
            visit(entry)?;
        }
        Ok(())
    }

    fn entry(&self, at: usize) -> Option<Entry<'_>> {
        let mode = word(&self.bytes, at + 24)?;
        let flags_at = at + STAT + self.hash_len;
        let flags = u16::from_be_bytes(self.bytes.get(flags_at..flags_at + 2)?.try_into().ok()?);
        let name_at = flags_at + if flags & EXTENDED != 0 { 4 } else { 2 };
        let rest = self.bytes.get(name_at..)?;
        let len = match flags & NAME_MASK {
            NAME_MASK => rest.iter().position(|byte| *byte == 0)?,
            short => usize::from(short),
        };
        let end = at + padded(name_at - at + len);
        let oid = self.bytes.get(at + STAT..flags_at)?;
        Some(Entry { at, mode, path: rest.get(..len)?, oid, bytes: self.bytes.get(at..end)? })
    }

    /// Replaces the stat data of the entry at this offset.
    pub(crate) fn set_stat(&mut self, at: usize, stat: &FileStat) {
        let mode = word(&self.bytes, at + 24).expect("an entry was read here");
        self.bytes[at..at + STAT].copy_from_slice(&stat_bytes(mode, stat));
    }

    /// The file as it is written: without extensions, checksum not computed.
    pub(crate) fn into_bytes(mut self) -> Result<Vec<u8>, GitError> {
        let mut end = HEADER;
        self.each(|entry| {
            end = entry.at + entry.bytes.len();
            Ok::<_, GitError>(())
        })?;
        self.bytes.truncate(end);
        self.bytes.resize(end + self.hash_len, 0);
        Ok(self.bytes)
    }

    /// The file with some entries replaced, added or (`None`) taken out.
    /// `changes` are sorted by path.
    pub(crate) fn edited(
        &self,
        changes: &[(Vec<u8>, Option<NewEntry>)],
    ) -> Result<Vec<u8>, GitError> {
        let mut out = Vec::with_capacity(self.bytes.len() + 128 * changes.len());
        out.extend(b"DIRC");
        out.extend(2u32.to_be_bytes());
        out.extend(0u32.to_be_bytes());
        let mut count = 0u32;
        let mut changes = changes.iter().peekable();
        let mut version = 2u32;
        let mut put = |out: &mut Vec<u8>, path: &[u8], entry: &Option<NewEntry>| {
            if let Some(entry) = entry {
                entry.write(path, out);
                count += 1;
            }
        };
        let mut kept = 0u32;
        self.each(|entry| {
            while let Some((path, change)) =
                changes.next_if(|(path, _)| path.as_slice() < entry.path)
            {
                put(&mut out, path, change);
            }
            if let Some((path, change)) = changes.next_if(|(path, _)| path == entry.path) {
                put(&mut out, path, change);
            } else {
                let flags_at = STAT + self.hash_len;
                if entry.bytes[flags_at] & (EXTENDED >> 8) as u8 != 0 {
                    version = 3;
                }
                out.extend(entry.bytes);
                kept += 1;
            }
            Ok::<_, GitError>(())
        })?;
        for (path, change) in changes {
            put(&mut out, path, change);
        }
        out[4..8].copy_from_slice(&version.to_be_bytes());
        out[8..12].copy_from_slice(&(count + kept).to_be_bytes());
        out.resize(out.len() + self.hash_len, 0);
        Ok(out)
    }
}

/// An entry to be written.
#[derive(Debug, Clone)]
pub(crate) struct NewEntry {
    pub(crate) mode: u32,
    pub(crate) oid: Oid,
    pub(crate) stat: Option<FileStat>,
}

impl NewEntry {
    fn write(&self, path: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        match &self.stat {
            Some(stat) => out.extend(stat_bytes(self.mode, stat)),
            None => {
                let mut empty = [0; STAT];
                empty[24..28].copy_from_slice(&self.mode.to_be_bytes());
                out.extend(empty);
            }
        }
        out.extend(self.oid.raw());
        let len = u16::try_from(path.len()).unwrap_or(NAME_MASK).min(NAME_MASK);
        out.extend(len.to_be_bytes());
        out.extend(path);
        let length = out.len() - start;
        out.resize(start + padded(length), 0);
    }
}

/// Entries are padded with 1 to 8 zero bytes to a multiple of 8.
fn padded(len: usize) -> usize {
    (len + 8) & !7
}

/// The low 32 bits of everything, as git stores them.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "that is the format")]
fn stat_bytes(mode: u32, stat: &FileStat) -> [u8; STAT] {
    let words = [
        stat.ctime.sec as u32,
        stat.ctime.nsec,
        stat.mtime.sec as u32,
        stat.mtime.nsec,
        stat.dev as u32,
        stat.ino as u32,
        mode,
        stat.uid,
        stat.gid,
        stat.size as u32,
    ];
    let mut bytes = [0; STAT];
    for (slot, word) in bytes.chunks_exact_mut(4).zip(words) {
        slot.copy_from_slice(&word.to_be_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(digit: &str) -> Option<NewEntry> {
        let oid = Oid::parse(&digit.repeat(40)).expect("hex");
        Some(NewEntry { mode: 0o100_644, oid, stat: None })
    }

    fn paths(bytes: Vec<u8>) -> Vec<(Vec<u8>, u8)> {
        let index = Index::parse(bytes, ObjectFormat::Sha1).expect("parse");
        let mut paths = Vec::new();
        index
            .each(|entry| {
                paths.push((entry.path.to_vec(), entry.bytes[STAT]));
                Ok::<_, GitError>(())
            })
            .expect("walk");
        paths
    }

    #[test]
    fn edits_keep_the_order() {
        let empty =
            Index::parse(b"DIRC\0\0\0\x02\0\0\0\0".to_vec(), ObjectFormat::Sha1).expect("parse");
        let long = vec![b'x'; 5000];
        let first = empty
            .edited(&[
                (b"a".to_vec(), entry("1")),
                (b"c".to_vec(), entry("2")),
                (long.clone(), entry("3")),
            ])
            .expect("edit");
        let index = Index::parse(first, ObjectFormat::Sha1).expect("parse");
        let second = index
            .edited(&[
                (b"a".to_vec(), None),
                (b"b".to_vec(), entry("4")),
                (b"c".to_vec(), entry("5")),
            ])
            .expect("edit");
        assert_eq!(paths(second), [(b"b".to_vec(), 0x44), (b"c".to_vec(), 0x55), (long, 0x33)]);
    }

    #[test]
    fn a_torn_index_is_an_error() {
        let bytes = b"DIRC\0\0\0\x02\0\0\0\x01short".to_vec();
        let index = Index::parse(bytes, ObjectFormat::Sha1).expect("header");
        assert!(index.each(|_| Ok::<_, GitError>(())).is_err());
        assert!(Index::parse(b"DIRC\0\0\0\x04\0\0\0\0".to_vec(), ObjectFormat::Sha1).is_err());
    }
}

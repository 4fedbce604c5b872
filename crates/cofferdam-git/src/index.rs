//! git's index file, versions 2 and 3 (to read, 4 as well), without git.
//!
//! Why by hand: a layer's index must carry stat data that is valid and never
//! racy, so that the first `git status` in a context re-hashes and writes
//! nothing. git can only get there by reading every file again.
//! Format: `gitformat-index(5)`.
//!
//! An index is read entry by entry and written the same way: that of a large
//! repository has a hundred megabytes.
//!
//! What is written has no extensions and a null checksum, which git takes as
//! "not computed" (`index.skipHash`); readers before 2.40 do not look at it.

use cofferdam_tree::stat::FileStat;

use std::io::{BufRead, BufWriter, Read, Seek, Write};
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
/// In the second flags of an extended entry.
const SKIP_WORKTREE: u16 = 0x4000;
const NAME_MASK: u16 = 0x0fff;
/// No path of any system is longer, in bytes.
const LONGEST_NAME: u64 = 1 << 16;

/// One entry, valid until the next one is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) mode: u32,
    pub(crate) path: &'a [u8],
    bytes: &'a [u8],
    hash_len: usize,
}

impl Entry<'_> {
    /// The object's name.
    pub(crate) fn oid(&self) -> Option<Oid> {
        self.bytes.get(STAT..STAT + self.hash_len).map(Oid::of_raw)
    }

    /// The object's name, as it is in the file.
    pub(crate) fn raw_oid(&self) -> &[u8] {
        self.bytes.get(STAT..STAT + self.hash_len).unwrap_or_default()
    }

    fn flags(&self) -> u16 {
        let at = STAT + self.hash_len;
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn is_extended(&self) -> bool {
        self.flags() & EXTENDED != 0
    }

    /// 0, or which side of a conflict it is.
    pub(crate) fn stage(&self) -> u8 {
        (self.flags() >> 12 & 3) as u8
    }

    /// Whether a sparse checkout leaves it out.
    pub(crate) fn skips_worktree(&self) -> bool {
        let at = STAT + self.hash_len + 2;
        self.is_extended()
            && u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]) & SKIP_WORKTREE != 0
    }
}

/// An index that is being read.
pub(crate) struct Index<R> {
    from: R,
    left: u32,
    version: u32,
    hash_len: usize,
    bytes: Vec<u8>,
    /// Of version 4, where each path begins as the one before it does.
    path: Vec<u8>,
    /// How many bytes have been read of how many.
    read: u64,
    size: u64,
}

fn broken(what: &str) -> GitError {
    GitError::Unsupported(format!("an index is not as it has to be: {what}"))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl<R: BufRead> Index<R> {
    pub(crate) fn open(from: R, format: ObjectFormat) -> Result<Index<R>, GitError> {
        let index = Index::open_sized(from, format, 0)?;
        match index.version {
            // Entries are written as they are.
            2 | 3 => Ok(index),
            _ => Err(broken("not version 2 or 3")),
        }
    }

    /// Any index, of this many bytes.
    pub(crate) fn open_sized(
        mut from: R,
        format: ObjectFormat,
        size: u64,
    ) -> Result<Index<R>, GitError> {
        let mut header = [0; HEADER];
        let read = from.read_exact(&mut header);
        let version = word(&header, 4);
        if read.is_err() || &header[..4] != b"DIRC" || !matches!(version, 2..=4) {
            return Err(broken("not version 2, 3 or 4"));
        }
        let (left, hash_len) = (word(&header, 8), format.raw_len());
        let (bytes, path) = (Vec::new(), Vec::new());
        Ok(Index { from, left, version, hash_len, bytes, path, read: HEADER as u64, size })
    }

    /// Whether the entries were all that there is: behind them, an index can say that
    /// most of it is in another file.
    pub(crate) fn has_all(&mut self) -> Result<(), GitError> {
        let cut_off = |_| broken("an extension is cut off");
        while self.read + (self.hash_len as u64) < self.size {
            let mut head = [0; 8];
            self.from.read_exact(&mut head).map_err(cut_off)?;
            if &head[..4] == b"link" {
                return Err(broken("it is split"));
            }
            let length = u64::from(word(&head, 4));
            let skipped = std::io::copy(&mut (&mut self.from).take(length), &mut std::io::sink());
            if skipped.map_err(cut_off)? != length {
                return Err(broken("an extension is cut off"));
            }
            self.read += 8 + length;
        }
        Ok(())
    }

    /// The next entry, in order of the file.
    pub(crate) fn next(&mut self) -> Result<Option<Entry<'_>>, GitError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let cut_off = |_| broken("an entry is cut off");
        let flags_at = STAT + self.hash_len;
        self.bytes.resize(flags_at + 2, 0);
        self.from.read_exact(&mut self.bytes).map_err(cut_off)?;
        let flags = u16::from_be_bytes([self.bytes[flags_at], self.bytes[flags_at + 1]]);
        let name_at = flags_at + if flags & EXTENDED != 0 { 4 } else { 2 };
        if self.version == 4 {
            return self.next_of_4(name_at).map(Some);
        }
        let end = if flags & NAME_MASK == NAME_MASK {
            self.bytes.resize(name_at, 0);
            self.from.read_exact(&mut self.bytes[flags_at + 2..]).map_err(cut_off)?;
            self.name_to_its_end(name_at)?
        } else {
            name_at + usize::from(flags & NAME_MASK)
        };
        let known = self.bytes.len();
        self.bytes.resize(padded(end), 0);
        self.from.read_exact(&mut self.bytes[known..]).map_err(cut_off)?;
        self.read += self.bytes.len() as u64;
        let (path, bytes) = (&self.bytes[name_at..end], self.bytes.as_slice());
        Ok(Some(Entry { mode: word(bytes, 24), path, bytes, hash_len: self.hash_len }))
    }

    /// The rest of an entry of version 4: how much of the path before goes, as a number
    /// of variable length, and what comes in its place.
    fn next_of_4(&mut self, name_at: usize) -> Result<Entry<'_>, GitError> {
        let cut_off = |_| broken("an entry is cut off");
        let known = self.bytes.len();
        self.bytes.resize(name_at, 0);
        self.from.read_exact(&mut self.bytes[known..]).map_err(cut_off)?;
        self.read += name_at as u64;
        let mut strip = 0_usize;
        for number in 0.. {
            let mut byte = [0];
            self.from.read_exact(&mut byte).map_err(cut_off)?;
            self.read += 1;
            strip = (strip << 7) + usize::from(byte[0] & 0x7f);
            if byte[0] & 0x80 == 0 {
                break;
            }
            if number == 2 {
                return Err(broken("a path is too long"));
            }
            strip += 1;
        }
        let kept = self.path.len().checked_sub(strip).ok_or_else(|| broken("a path is cut off"))?;
        self.path.truncate(kept);
        let mut name = self.from.by_ref().take(LONGEST_NAME);
        self.read += name.read_until(0, &mut self.path).map_err(cut_off)? as u64;
        if self.path.pop() != Some(0) || self.path.len() as u64 > LONGEST_NAME {
            return Err(broken("a path is cut off"));
        }
        let (path, bytes) = (self.path.as_slice(), self.bytes.as_slice());
        Ok(Entry { mode: word(bytes, 24), path, bytes, hash_len: self.hash_len })
    }

    /// Reads a name that is longer than its length can say; gives where it ends.
    fn name_to_its_end(&mut self, name_at: usize) -> Result<usize, GitError> {
        let cut_off = || broken("an entry is cut off");
        let mut name = self.from.by_ref().take(LONGEST_NAME);
        name.read_until(0, &mut self.bytes).map_err(|_| cut_off())?;
        let end = self.bytes.len() - 1;
        if end < name_at || self.bytes[end] != 0 {
            return Err(cut_off());
        }
        Ok(end)
    }
}

/// An index that is being written.
pub(crate) struct IndexWriter<W: Write + Seek> {
    to: BufWriter<W>,
    version: u32,
    count: u32,
    hash_len: usize,
    bytes: Vec<u8>,
}

impl<W: Write + Seek> IndexWriter<W> {
    pub(crate) fn new(to: W, format: ObjectFormat) -> std::io::Result<IndexWriter<W>> {
        let mut to = BufWriter::with_capacity(1 << 16, to);
        // Filled in at the end.
        to.write_all(&[0; HEADER])?;
        Ok(IndexWriter { to, version: 2, count: 0, hash_len: format.raw_len(), bytes: Vec::new() })
    }

    /// Writes an entry as it is, with other stat data where some are given.
    pub(crate) fn keep(
        &mut self,
        entry: Entry<'_>,
        stat: Option<&FileStat>,
    ) -> std::io::Result<()> {
        if entry.is_extended() {
            self.version = 3;
        }
        self.count += 1;
        match stat {
            Some(stat) => {
                self.to.write_all(&stat_bytes(entry.mode, stat))?;
                self.to.write_all(&entry.bytes[STAT..])
            }
            None => self.to.write_all(entry.bytes),
        }
    }

    /// Writes a new entry.
    pub(crate) fn put(&mut self, path: &[u8], entry: &NewEntry) -> std::io::Result<()> {
        self.count += 1;
        self.bytes.clear();
        entry.write(path, &mut self.bytes);
        self.to.write_all(&self.bytes)
    }

    /// Ends the file: no extensions, checksum not computed.
    pub(crate) fn end(mut self) -> std::io::Result<W> {
        self.to.write_all(&vec![0; self.hash_len])?;
        let mut to = self.to.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        to.rewind()?;
        let mut header = b"DIRC".to_vec();
        header.extend(self.version.to_be_bytes());
        header.extend(self.count.to_be_bytes());
        to.write_all(&header)?;
        Ok(to)
    }
}

/// Copies an index with some entries replaced, added or (`None`) taken out.
/// `changes` are sorted by path.
pub(crate) fn edit<R: BufRead, W: Write + Seek>(
    from: &mut Index<R>,
    changes: impl IntoIterator<Item = (Vec<u8>, Option<NewEntry>)>,
    to: &mut IndexWriter<W>,
) -> Result<(), GitError> {
    let failed = |error: std::io::Error| broken(&format!("it can't be written: {error}"));
    let mut changes = changes.into_iter().peekable();
    let put = |to: &mut IndexWriter<W>, path: &[u8], entry: Option<NewEntry>| match entry {
        Some(entry) => to.put(path, &entry).map_err(failed),
        None => Ok(()),
    };
    while let Some(entry) = from.next()? {
        while let Some((path, change)) = changes.next_if(|(path, _)| path.as_slice() < entry.path) {
            put(to, &path, change)?;
        }
        match changes.next_if(|(path, _)| path == entry.path) {
            Some((path, change)) => put(to, &path, change)?,
            None => to.keep(entry, None).map_err(failed)?,
        }
    }
    changes.try_for_each(|(path, change)| put(to, &path, change))
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

    fn edited(from: &[u8], changes: Vec<(Vec<u8>, Option<NewEntry>)>) -> Vec<u8> {
        let mut index = Index::open(from, ObjectFormat::Sha1).expect("open");
        let mut to =
            IndexWriter::new(std::io::Cursor::new(Vec::new()), ObjectFormat::Sha1).expect("begin");
        edit(&mut index, changes, &mut to).expect("edit");
        to.end().expect("end").into_inner()
    }

    fn paths(bytes: &[u8]) -> Vec<(Vec<u8>, u8)> {
        let mut index = Index::open(bytes, ObjectFormat::Sha1).expect("open");
        let mut paths = Vec::new();
        while let Some(entry) = index.next().expect("read") {
            paths.push((entry.path.to_vec(), entry.bytes[STAT]));
        }
        paths
    }

    #[test]
    fn edits_keep_the_order() {
        let long = vec![b'x'; 5000];
        let first = edited(
            b"DIRC\0\0\0\x02\0\0\0\0",
            vec![
                (b"a".to_vec(), entry("1")),
                (b"c".to_vec(), entry("2")),
                (long.clone(), entry("3")),
            ],
        );
        let second = edited(
            &first,
            vec![(b"a".to_vec(), None), (b"b".to_vec(), entry("4")), (b"c".to_vec(), entry("5"))],
        );
        assert_eq!(paths(&second), [(b"b".to_vec(), 0x44), (b"c".to_vec(), 0x55), (long, 0x33)]);
    }

    #[test]
    fn a_torn_index_is_an_error() {
        let open = |bytes: &'static [u8]| Index::open(bytes, ObjectFormat::Sha1);
        let mut index = open(b"DIRC\0\0\0\x02\0\0\0\x01short").expect("header");
        assert!(index.next().is_err());
        assert!(open(b"DIRC\0\0\0\x04\0\0\0\0").is_err());
        assert!(open(b"DIRC").is_err());
    }
}

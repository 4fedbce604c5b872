//! What tells whether something at a path is still what it was.

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::copy::BUFFER;

/// A regular file by its content and its permissions. Never by times: they can be set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// SHA-256 of the content, 64 hexadecimal digits.
    pub sha256: String,
    /// Length of the content, in bytes.
    pub size: u64,
    /// Permission bits, those for set-uid, set-gid and sticky included.
    pub mode: u32,
}

impl Fingerprint {
    /// That of an open regular file, read from its beginning. `false` from `go_on`,
    /// which is told of each buffer's length in bytes, ends it with
    /// [`io::ErrorKind::Interrupted`].
    ///
    /// # Errors
    /// Of reading it.
    pub fn of(file: &File, go_on: &mut dyn FnMut(u64) -> bool) -> io::Result<Fingerprint> {
        let mut reading = Reading::of(file, file.metadata()?.len());
        reading.read_on(go_on)?;
        reading.fingerprint()
    }
}

/// A file that is read from its beginning, as far as it is there.
pub(super) struct Reading<'a> {
    file: &'a File,
    buffer: Vec<u8>,
    hash: Sha256,
    at: u64,
}

/// Holes from this size on are not read: that would fill the kernel's memory with zeros.
const HOLE: u64 = 4 << 20;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl Reading<'_> {
    /// `size` is about how large it will be, in bytes.
    pub(super) fn of(file: &File, size: u64) -> Reading<'_> {
        let size = usize::try_from(size).unwrap_or(BUFFER).min(BUFFER);
        // A small file and its end are then read with one page.
        let buffer = vec![0; (size + 1).next_multiple_of(4096).min(BUFFER)];
        Reading { file, buffer, hash: Sha256::new(), at: 0 }
    }

    /// Reads what is there by now. `false` from `go_on` ends it with
    /// [`io::ErrorKind::Interrupted`].
    pub(super) fn read_on(&mut self, go_on: &mut dyn FnMut(u64) -> bool) -> io::Result<()> {
        let (hash, at) = (&mut self.hash, &mut self.at);
        hash_from(self.file, at, hash, &mut self.buffer, u64::MAX, go_on)
    }

    /// As [`Reading::read_on`], for a file that we wrote ourselves: where its file system
    /// says that there is a large hole, there are zeros. Of anybody else's file that is not
    /// believed: this is what would tell that a copy, which does believe it, lost something.
    pub(super) fn read_on_in_ours(&mut self, go_on: &mut dyn FnMut(u64) -> bool) -> io::Result<()> {
        loop {
            let meta = self.file.metadata()?;
            if meta.blocks() * 512 + HOLE > meta.len() {
                return self.read_on(go_on);
            }
            let data = match rustix::fs::seek(self.file, SeekFrom::Data(self.at)) {
                Err(Errno::NXIO) => meta.len(),
                Ok(data) => data,
                // No such question to this file system.
                Err(_) => return self.read_on(go_on),
            };
            while self.at < data {
                let end = data.min(self.at + HOLE);
                let before = self.at;
                while self.at < end {
                    let most = usize::try_from(end - self.at).unwrap_or(usize::MAX);
                    let zeros = &ZEROS[..most.min(ZEROS.len())];
                    self.hash.update(zeros);
                    self.at += zeros.len() as u64;
                }
                if !go_on(end - before) {
                    return Err(io::ErrorKind::Interrupted.into());
                }
            }
            if data >= meta.len() {
                return Ok(());
            }
            let end = rustix::fs::seek(self.file, SeekFrom::Hole(data)).unwrap_or(meta.len());
            let (hash, at) = (&mut self.hash, &mut self.at);
            hash_from(self.file, at, hash, &mut self.buffer, end, go_on)?;
        }
    }

    /// Of all that was read, with the permissions that the file has now.
    pub(super) fn fingerprint(self) -> io::Result<Fingerprint> {
        let mode = self.file.metadata()?.mode() & 0o7777;
        Ok(Fingerprint { sha256: hex(&self.hash.finalize()), size: self.at, mode })
    }
}

/// SHA-256 and length in bytes of a file's content.
pub(super) fn content(
    file: &File,
    buffer: &mut [u8],
    go_on: &mut dyn FnMut(u64) -> bool,
) -> io::Result<([u8; 32], u64)> {
    let (mut hash, mut at) = (Sha256::new(), 0);
    hash_from(file, &mut at, &mut hash, buffer, u64::MAX, go_on)?;
    Ok((hash.finalize().into(), at))
}

fn hash_from(
    file: &File,
    at: &mut u64,
    hash: &mut Sha256,
    buffer: &mut [u8],
    end: u64,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> io::Result<()> {
    while *at < end {
        let most = usize::try_from(end - *at).unwrap_or(usize::MAX).min(buffer.len());
        let read = match rustix::io::pread(file, &mut buffer[..most], *at) {
            Ok(0) => break,
            Ok(read) => read,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        hash.update(&buffer[..read]);
        *at += read as u64;
        if !go_on(read as u64) {
            return Err(io::ErrorKind::Interrupted.into());
        }
    }
    Ok(())
}

/// Bytes in hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

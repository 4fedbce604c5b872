//! What tells whether something at a path is still what it was.

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

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
        let (sha256, size) = content(file, &mut vec![0; BUFFER], go_on)?;
        let mode = file.metadata()?.mode() & 0o7777;
        Ok(Fingerprint { sha256: hex(&sha256), size, mode })
    }
}

/// SHA-256 and length in bytes of a file's content.
pub(super) fn content(
    file: &File,
    buffer: &mut [u8],
    go_on: &mut dyn FnMut(u64) -> bool,
) -> io::Result<([u8; 32], u64)> {
    let mut hash = Sha256::new();
    let mut at = 0;
    loop {
        let read = match rustix::io::pread(file, &mut *buffer, at) {
            Ok(0) => return Ok((hash.finalize().into(), at)),
            Ok(read) => read,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        hash.update(&buffer[..read]);
        at += read as u64;
        if !go_on(read as u64) {
            return Err(io::ErrorKind::Interrupted.into());
        }
    }
}

/// Bytes in hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

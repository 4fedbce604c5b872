//! Random names for temporary files, trash entries and layers.

use std::io;

const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// `len` characters of `[a-z0-9]`, uniformly distributed.
///
/// # Errors
/// When the kernel has no random numbers.
pub fn name(len: usize) -> io::Result<String> {
    let mut out = String::with_capacity(len);
    let mut pool = [0u8; 32];
    while out.len() < len {
        getrandom::fill(&mut pool).map_err(io::Error::other)?;
        // 252 is the largest multiple of 36 in a byte; above it the first letters would be likelier.
        for byte in pool.iter().filter(|byte| **byte < 252).take(len - out.len()) {
            out.push(char::from(ALPHABET[usize::from(byte % 36)]));
        }
    }
    Ok(out)
}

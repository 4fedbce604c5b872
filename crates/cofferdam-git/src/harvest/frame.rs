//! The frames between the two halves of a harvest.
//!
//! A frame is a tag, then fields; a byte string is its length (u32, big-endian)
//! and its bytes. The content of a file follows its frame. Both halves are the
//! same binary: there is no version.

use std::io::{self, Read, Write};

const LONGEST: u32 = 1 << 20;

/// What the scan found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    /// The base's path is gone, and what is below it if it is a directory.
    Delete { path: Vec<u8>, is_dir: bool },
    /// What the base has here, and below it if it is a directory, is gone; there is
    /// something else now.
    Clear { path: Vec<u8>, is_dir: bool },
    /// A file; `size` bytes follow.
    File { path: Vec<u8>, executable: bool, size: u64, attributes: bool },
    /// The base's file, with another executable bit.
    Mode { path: Vec<u8>, executable: bool },
    /// A symbolic link; `same` says that the base has the very same one.
    Symlink { path: Vec<u8>, target: Vec<u8>, same: bool },
    /// The directory of a submodule is there.
    Submodule { path: Vec<u8> },
    /// Something that can't land.
    Refused { path: Vec<u8>, why: Vec<u8> },
    /// Something that was left out, worth a word.
    LeftOut { path: Vec<u8>, what: Vec<u8> },
    /// Work in the task's git that is not on disk.
    Aside { path: Vec<u8>, what: Vec<u8> },
    /// The scan itself failed.
    Broken { why: Vec<u8> },
    /// All said.
    End,
}

fn put(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    out.write_all(&len.to_be_bytes())?;
    out.write_all(bytes)
}

fn get(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    input.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len);
    if len > LONGEST {
        return Err(io::Error::other("a field is too long"));
    }
    let mut bytes = vec![0; len as usize];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn flag(input: &mut impl Read) -> io::Result<bool> {
    let mut byte = [0];
    input.read_exact(&mut byte)?;
    Ok(byte[0] != 0)
}

impl Frame {
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Frame::Delete { path, is_dir } => {
                out.write_all(b"D")?;
                put(out, path)?;
                out.write_all(&[u8::from(*is_dir)])
            }
            Frame::Clear { path, is_dir } => {
                out.write_all(b"C")?;
                put(out, path)?;
                out.write_all(&[u8::from(*is_dir)])
            }
            Frame::File { path, executable, size, attributes } => {
                out.write_all(b"F")?;
                put(out, path)?;
                out.write_all(&[u8::from(*executable), u8::from(*attributes)])?;
                out.write_all(&size.to_be_bytes())
            }
            Frame::Mode { path, executable } => {
                out.write_all(b"M")?;
                put(out, path)?;
                out.write_all(&[u8::from(*executable)])
            }
            Frame::Symlink { path, target, same } => {
                out.write_all(b"L")?;
                put(out, path)?;
                put(out, target)?;
                out.write_all(&[u8::from(*same)])
            }
            Frame::Submodule { path } => {
                out.write_all(b"S")?;
                put(out, path)
            }
            Frame::Refused { path, why } => {
                out.write_all(b"R")?;
                put(out, path)?;
                put(out, why)
            }
            Frame::LeftOut { path, what } => {
                out.write_all(b"O")?;
                put(out, path)?;
                put(out, what)
            }
            Frame::Aside { path, what } => {
                out.write_all(b"A")?;
                put(out, path)?;
                put(out, what)
            }
            Frame::Broken { why } => {
                out.write_all(b"X")?;
                put(out, why)
            }
            Frame::End => out.write_all(b"E"),
        }
    }

    pub(super) fn read(input: &mut impl Read) -> io::Result<Frame> {
        let mut tag = [0];
        input.read_exact(&mut tag)?;
        Ok(match tag[0] {
            b'D' => Frame::Delete { path: get(input)?, is_dir: flag(input)? },
            b'C' => Frame::Clear { path: get(input)?, is_dir: flag(input)? },
            b'F' => {
                let path = get(input)?;
                let (executable, attributes) = (flag(input)?, flag(input)?);
                let mut size = [0; 8];
                input.read_exact(&mut size)?;
                Frame::File { path, executable, size: u64::from_be_bytes(size), attributes }
            }
            b'M' => Frame::Mode { path: get(input)?, executable: flag(input)? },
            b'L' => Frame::Symlink { path: get(input)?, target: get(input)?, same: flag(input)? },
            b'S' => Frame::Submodule { path: get(input)? },
            b'R' => Frame::Refused { path: get(input)?, why: get(input)? },
            b'O' => Frame::LeftOut { path: get(input)?, what: get(input)? },
            b'A' => Frame::Aside { path: get(input)?, what: get(input)? },
            b'X' => Frame::Broken { why: get(input)? },
            b'E' => Frame::End,
            other => return Err(io::Error::other(format!("unknown frame {other:#04x}"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let (path, text) = (b"a\nb\xff".to_vec(), b"words".to_vec());
        let frames = [
            Frame::Delete { path: path.clone(), is_dir: false },
            Frame::Clear { path: path.clone(), is_dir: true },
            Frame::File { path: path.clone(), executable: true, size: 1 << 40, attributes: false },
            Frame::Mode { path: path.clone(), executable: true },
            Frame::Symlink { path: path.clone(), target: text.clone(), same: true },
            Frame::Submodule { path: path.clone() },
            Frame::Refused { path: path.clone(), why: text.clone() },
            Frame::LeftOut { path: path.clone(), what: text.clone() },
            Frame::Aside { path, what: text.clone() },
            Frame::Broken { why: text },
            Frame::End,
        ];
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.write(&mut bytes).expect("write"));
        let mut input = bytes.as_slice();
        for frame in frames {
            assert_eq!(Frame::read(&mut input).expect("read"), frame);
        }
        assert!(Frame::read(&mut input).is_err());
        assert!(Frame::read(&mut [b'D', 0xff, 0xff, 0xff, 0xff].as_slice()).is_err());
    }
}

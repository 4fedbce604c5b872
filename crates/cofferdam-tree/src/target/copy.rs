//! Copies of files: content with its holes, owner and extended attributes.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fd::AsFd;
use rustix::fs::{SeekFrom, XattrFlags};
use rustix::io::Errno;

/// How much is copied at once, in bytes.
pub(super) const BUFFER: usize = 256 << 10;

/// Copies a file's content: shares its blocks where that can be had, else copies what is
/// not a hole. `go_on` is told how many bytes were copied.
///
/// # Errors
/// Of reading and writing; [`io::ErrorKind::Interrupted`] when `go_on` said no.
pub fn content(from: &File, to: &File, go_on: &mut dyn FnMut(u64) -> bool) -> io::Result<()> {
    let length = usize::try_from(from.metadata()?.len()).unwrap_or(BUFFER);
    content_by(&mut vec![0; length.clamp(1, BUFFER)], from, to, go_on)
}

/// As [`content`], for many files with one buffer.
pub(super) fn content_by(
    buffer: &mut [u8],
    from: &File,
    to: &File,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let size = from.metadata()?.len();
    let mut at = 0;
    while at < size {
        let (begin, end) = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            // A hole up to the end.
            Err(Errno::NXIO) => break,
            Ok(begin) => (begin, rustix::fs::seek(from, SeekFrom::Hole(begin)).unwrap_or(size)),
            // No such question to this file system.
            Err(_) => (at, size),
        };
        copy_range(from, to, begin..end, buffer, go_on)?;
        at = end;
    }
    to.set_len(size)
}

fn copy_range(
    from: &File,
    to: &File,
    range: std::ops::Range<u64>,
    buffer: &mut [u8],
    go_on: &mut dyn FnMut(u64) -> bool,
) -> io::Result<()> {
    let mut at = range.start;
    while at < range.end {
        let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
        let most = left.min(buffer.len());
        let read = match from.read_at(&mut buffer[..most], at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        to.write_all_at(&buffer[..read], at)?;
        at += read as u64;
        if !go_on(read as u64) {
            return Err(io::ErrorKind::Interrupted.into());
        }
    }
    Ok(())
}

/// Gives `to` the owner and the extended attributes of `from`, access lists among them.
/// Gives what else `from` has.
pub(super) fn attributes(from: &File, to: &File) -> io::Result<Metadata> {
    let (old, new) = (from.metadata()?, to.metadata()?);
    if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
        std::os::unix::fs::fchown(to, Some(old.uid()), Some(old.gid()))?;
    }
    for name in attribute_names(from)? {
        let value = match attribute(from, &name) {
            Err(Errno::NODATA) => continue,
            value => value?,
        };
        match rustix::fs::fsetxattr(to.as_fd(), &name, &value, XattrFlags::empty()) {
            // What only the system sets, such as labels, it has set by its own rules.
            Err(Errno::PERM | Errno::OPNOTSUPP) if !is_persons(&name) => {}
            set => set?,
        }
    }
    Ok(old)
}

/// The extended attributes that a person sets, access lists among them, by name.
pub(super) fn persons_attributes(of: impl AsFd) -> Result<Vec<(OsString, Vec<u8>)>, Errno> {
    let mut names = attribute_names(&of)?;
    names.retain(|name| is_persons(name));
    names.sort();
    let mut found = Vec::new();
    for name in names {
        match attribute(&of, &name) {
            Err(Errno::NODATA) => {}
            value => found.push((name, value?)),
        }
    }
    Ok(found)
}

fn is_persons(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_")
}

fn attribute_names(file: impl AsFd) -> Result<Vec<OsString>, Errno> {
    let mut list = vec![0; 4096];
    loop {
        match rustix::fs::flistxattr(&file, &mut list) {
            // More than 64 KiB there can't be (listxattr(2)).
            Err(Errno::RANGE) if list.len() < 64 << 10 => list.resize(64 << 10, 0),
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            length => {
                list.truncate(length?);
                let names = list.split(|byte| *byte == 0).filter(|name| !name.is_empty());
                return Ok(names.map(|name| OsString::from_vec(name.to_vec())).collect());
            }
        }
    }
}

fn attribute(file: impl AsFd, name: &OsStr) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 64 << 10];
    let length = rustix::fs::fgetxattr(file, name, &mut value)?;
    value.truncate(length);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_stay_holes() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = |name: &str| dir.path().join(name);
        let file = File::create(path("large")).expect("make");
        file.set_len(1 << 32).expect("extend");
        file.write_all_at(b"middle", 1 << 31).expect("write");
        let file = File::open(path("large")).expect("open");
        let to = File::create(path("copy")).expect("make");
        content(&file, &to, &mut |_| true).expect("copy");
        let meta = path("copy").metadata().expect("stat");
        assert_eq!(meta.len(), 1 << 32);
        assert!(meta.blocks() < 2048, "{} blocks", meta.blocks());
        let mut read = [0; 8];
        let copied = File::open(path("copy")).expect("open");
        copied.read_exact_at(&mut read, (1 << 31) - 1).expect("read");
        assert_eq!(&read, b"\0middle\0");
    }
}

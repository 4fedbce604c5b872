//! What `statx` says about a file, in the fields that git's index and the
//! walker need.

use rustix::fd::AsFd;
use rustix::fs::{AtFlags, FileType, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::time::{Duration, SystemTime};

/// A file time: seconds since 1970 (negative before) and nanoseconds. Not a
/// `SystemTime`, because a hostile tree can hold times that one can't.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileTime {
    /// Seconds since 1970-01-01 UTC.
    pub sec: i64,
    /// Nanoseconds, below 1 000 000 000.
    pub nsec: u32,
}

impl From<SystemTime> for FileTime {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => Self {
                sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
                nsec: after.subsec_nanos(),
            },
            Err(before) => {
                let before = before.duration();
                let sec = -i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
                match before.subsec_nanos() {
                    0 => Self { sec, nsec: 0 },
                    nanos => Self { sec: sec.saturating_sub(1), nsec: 1_000_000_000 - nanos },
                }
            }
        }
    }
}

impl FileTime {
    /// The same moment as a `SystemTime`, or `None` when that can't hold it.
    #[must_use]
    pub fn to_system_time(self) -> Option<SystemTime> {
        let whole = Duration::from_secs(self.sec.unsigned_abs());
        let base = if self.sec >= 0 {
            SystemTime::UNIX_EPOCH.checked_add(whole)
        } else {
            SystemTime::UNIX_EPOCH.checked_sub(whole)
        };
        base?.checked_add(Duration::from_nanos(u64::from(self.nsec)))
    }
}

/// The stat data that git's index records for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// Device, as in `st_dev`.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Type and permission bits, as in `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Last change of the content.
    pub mtime: FileTime,
    /// Last change of the inode.
    pub ctime: FileTime,
}

/// Everything that one `statx` gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    pub stat: FileStat,
    pub links: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub rdev: (u32, u32),
    /// The root of a mount: what lies here is not part of the tree.
    pub mount_root: bool,
}

impl Probe {
    pub(crate) fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.stat.mode)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    pub(crate) fn is_whiteout(&self) -> bool {
        self.file_type() == FileType::CharacterDevice && self.rdev == (0, 0)
    }

    /// What stays the same for as long as the file lives.
    pub(crate) fn identity(&self) -> Identity {
        Identity { dev: self.stat.dev, ino: self.stat.ino }
    }
}

/// Device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub dev: u64,
    pub ino: u64,
}

/// Stats `name` in `dir`, following nothing.
pub(crate) fn probe_at(dir: impl AsFd, name: &CStr) -> Result<Probe, Errno> {
    probe(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// Stats an open file, `O_PATH` too.
pub(crate) fn probe_fd(fd: impl AsFd) -> Result<Probe, Errno> {
    probe(fd, c"", AtFlags::EMPTY_PATH)
}

fn probe(fd: impl AsFd, path: &CStr, flags: AtFlags) -> Result<Probe, Errno> {
    let x = rustix::fs::statx(fd, path, flags | AtFlags::NO_AUTOMOUNT, StatxFlags::BASIC_STATS)?;
    let time = |t: rustix::fs::StatxTimestamp| FileTime { sec: t.tv_sec, nsec: t.tv_nsec };
    Ok(Probe {
        stat: FileStat {
            dev: rustix::fs::makedev(x.stx_dev_major, x.stx_dev_minor),
            ino: x.stx_ino,
            mode: u32::from(x.stx_mode),
            uid: x.stx_uid,
            gid: x.stx_gid,
            size: x.stx_size,
            mtime: time(x.stx_mtime),
            ctime: time(x.stx_ctime),
        },
        links: u64::from(x.stx_nlink),
        blocks: x.stx_blocks,
        rdev: (x.stx_rdev_major, x.stx_rdev_minor),
        mount_root: x.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_out_of_range_survive() {
        let early = SystemTime::UNIX_EPOCH - Duration::from_millis(1500);
        let time = FileTime::from(early);
        assert_eq!(time, FileTime { sec: -2, nsec: 500_000_000 });
        assert_eq!(time.to_system_time(), Some(early));
        let whole = SystemTime::UNIX_EPOCH - Duration::from_secs(3);
        assert_eq!(FileTime::from(whole), FileTime { sec: -3, nsec: 0 });
        let _ = FileTime { sec: i64::MIN, nsec: 0 }.to_system_time();
        let _ = FileTime { sec: i64::MAX, nsec: 999_999_999 }.to_system_time();
    }
}

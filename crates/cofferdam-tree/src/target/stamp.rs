//! Whether a file can have changed since it was read, told without reading it again.
//!
//! The kernel writes the time of a change into the inode (ctime), and nobody can set that.
//! So a file whose ctime is still what it was has not changed since, with one exception:
//! the clock has ticks, and two changes in one tick have the same time. A [`Stamp`]
//! therefore counts only when the ctime was *clearly* over, by [`MARGIN`], at the moment of
//! the look: whatever changes the file from then on gives it another one. (The index of git
//! calls entries "racily clean" for the same reason.) In this order:
//!
//! 1. The inode is looked at, and the clock after it.
//! 2. The file is synced. A page that somebody wrote to through a shared mapping can be
//!    written to again without a new ctime, until it is written back; after that the first
//!    write stops in the kernel again, which stamps the inode.
//! 3. The content is read. So what was written before is in it.
//!
//! Where that does not hold:
//!
//! - On file systems with another machine's clock, or whose server changes files by itself
//!   (NFS, CIFS, 9p, FUSE), on an overlay, which shows another file system's inodes, and on
//!   tmpfs, which does not stamp what is written through mappings. Hence a list of those
//!   that are known to do it; on any other there is no stamp.
//! - One `write` can take longer than the margin: it stamps the inode when it begins. One
//!   that is at work all the time from before the look to after the last look at the inode
//!   is not seen. A second reading could see it, or see half of it.
//! - For the superuser: who sets the clock back to exactly that nanosecond, writes to the
//!   block device, or opens a file of XFS by its handle, which changes no times.

use std::fs::File;

use rustix::fs::Stat;
use rustix::time::{ClockId, clock_gettime};

/// Seconds. A tick is at most 10 ms; whole seconds are what old on-disk formats keep.
const MARGIN: i64 = 2;

/// From what size on, in bytes. A smaller file is read in less time than it is synced.
const PAYS: u64 = 256 << 10;

/// ext2 to ext4, XFS, Btrfs, F2FS (linux/magic.h).
const STAMPED: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// Which inode was read, by what a change of it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: i64,
    changed: (i64, i64),
}

impl Stamp {
    /// That of an open regular file which is read after this; none where it would prove
    /// nothing.
    pub(super) fn before_reading(file: &File) -> Option<Stamp> {
        let stat = rustix::fs::fstat(file).ok()?;
        // The clock that inodes are stamped by.
        let now = clock_gettime(ClockId::RealtimeCoarse).tv_sec;
        Stamp::at(now, file, &stat)
    }

    /// As if the clock had been this late, in seconds.
    pub(super) fn at(now: i64, file: &File, stat: &Stat) -> Option<Stamp> {
        let stamp = Stamp::of(stat);
        let is_over = stamp.changed.0.checked_add(MARGIN).is_some_and(|over| over < now);
        let pays = u64::try_from(stamp.size).is_ok_and(|size| size >= PAYS);
        (is_over && pays && is_stamped(file) && rustix::fs::fdatasync(file).is_ok())
            .then_some(stamp)
    }

    /// Whether this is still the same inode, unchanged.
    pub(super) fn is_that_of(&self, stat: &Stat) -> bool {
        *self == Stamp::of(stat)
    }

    #[allow(clippy::unnecessary_cast, clippy::cast_possible_wrap)]
    fn of(stat: &Stat) -> Stamp {
        // The fields have other types on other machines.
        Stamp {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            size: stat.st_size as i64,
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }
}

fn is_stamped(file: &File) -> bool {
    // The field is as wide as a register, and signed on some machines.
    rustix::fs::fstatfs(file)
        .is_ok_and(|stat| STAMPED.contains(&(stat.f_type as u64 & 0xffff_ffff)))
}

//! Copies of whole trees.
//!
//! 1. The new directory is made with mode 0700, and without the access lists that its
//!    parent would hand down: until the copy is complete nobody else looks into it.
//! 2. The source is walked. Directories are made as they are entered, likewise with mode
//!    0700; a file is copied, then gets its owner, attributes, mode and time, in this
//!    order: a change of owner takes set-id bits away, a written file has a new time.
//! 3. When the walk has left a directory, it gets the same. So one that nobody may write
//!    to is filled before.
//! 4. With [`Keep::sync`] all of it is durable, see [`Syncs`].
//!
//! In memory are one path for each level, and one for each file of which not all names
//! have been seen.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;

use cofferdam_failpoint::hit;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::TreeError;
use super::fingerprint::{CAPS, SET_ID};
use crate::descent::{Descent, c_name, open_beneath, open_dir};
use crate::path::BytePath;
use crate::remove::remove_tree;
use crate::stat::{FileTime, Identity, probe_fd};
use crate::target::copy::{BUFFER, content_by, persons_attributes};
use crate::target::file::version;
use crate::walk::{Entry, Found, Totals, Visit, WalkError, Walker};

/// Who owns what is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owners {
    /// Whoever owns the original; where that is not permitted, copying fails.
    Kept,
    /// The process that copies.
    Ours,
    /// This user and group, for everything; where that is not permitted, copying fails.
    All {
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
    },
}

/// What becomes of the set-uid and set-gid bits of what is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetId {
    /// They stay.
    Kept,
    /// They go.
    Dropped,
    /// Those of directories go; a file that has one is refused.
    Refused,
}

/// What a copy keeps of the original besides content, permissions, `user.*` attributes,
/// access lists and modification times.
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    /// Who owns it.
    pub owners: Owners,
    /// What becomes of set-uid and set-gid bits.
    pub set_id: SetId,
    /// Whether it is durable when copying ends; the name of the new directory is not.
    pub sync: bool,
}

/// Copies the tree below the directory `from` into the new directory `name` in `parent`.
/// Symbolic links are copied as they are, names of one file stay names of one file, holes
/// stay holes. `go_on` is told what was copied since it was last asked.
///
/// # Errors
/// [`TreeError`], [`TreeError::Refused`] for pipes, sockets and devices among it; what was
/// made is gone then. [`io::ErrorKind::Interrupted`] when `go_on` said no, and
/// [`io::ErrorKind::AlreadyExists`] when there is a `name`, which stays.
pub fn copy_tree(
    from: BorrowedFd<'_>,
    parent: BorrowedFd<'_>,
    name: &OsStr,
    keep: Keep,
    go_on: &mut dyn FnMut(Totals) -> bool,
) -> Result<Totals, TreeError> {
    let top = Attributes::of(from, b"")?.filtered(keep);
    copy_with_top(from, parent, name, (keep, None), top, go_on)
}

/// As [`copy_tree`], with these attributes for the new directory itself.
pub(super) fn copy_with_top(
    from: BorrowedFd<'_>,
    parent: BorrowedFd<'_>,
    name: &OsStr,
    (keep, like): (Keep, Option<BorrowedFd<'_>>),
    top: Attributes,
    go_on: &mut dyn FnMut(Totals) -> bool,
) -> Result<Totals, TreeError> {
    let fail = |step| move |error: Errno| TreeError::io(step, b"", error);
    let c_name = c_name(name.as_bytes()).map_err(fail("make"))?;
    rustix::fs::mkdirat(parent, &c_name, Mode::RWXU).map_err(fail("make"))?;
    let copied = open_dir(parent, &c_name)
        .map_err(fail("open"))
        .and_then(|made| copy_into(from, made, (keep, like), top, go_on));
    if copied.is_err() {
        let _ = remove_tree(parent, name);
    }
    copied
}

fn copy_into(
    from: BorrowedFd<'_>,
    made: OwnedFd,
    (keep, like): (Keep, Option<BorrowedFd<'_>>),
    top: Attributes,
    go_on: &mut dyn FnMut(Totals) -> bool,
) -> Result<Totals, TreeError> {
    let fail = |step| move |error: io::Error| TreeError::io(step, b"", error);
    for inherited in [c"system.posix_acl_default", c"system.posix_acl_access"] {
        match rustix::fs::fremovexattr(&made, inherited) {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            removed => removed.map_err(|errno| fail("clear the access list of")(errno.into()))?,
        }
    }
    let root = made.try_clone().map_err(fail("open"))?;
    let like = like.map(|like| like.try_clone_to_owned()).transpose().map_err(fail("open"))?;
    let mut copier = Copier {
        keep,
        like,
        identity: probe_fd(&made).map_err(|errno| fail("look at")(errno.into()))?.identity(),
        syncs: Syncs::new(keep.sync, &made),
        descent: Descent::new(made, top).map_err(|errno| fail("open")(errno.into()))?,
        root,
        links: HashMap::new(),
        buffer: vec![0; BUFFER],
        go_on,
    };
    let from = from.try_clone_to_owned().map_err(fail("open"))?;
    let totals = Walker::new(from, CAPS).walk(&mut |entry| copier.entry(entry))?;
    while copier.leave()? {}
    copier.syncs.end(&copier.root).map_err(fail("sync"))?;
    Ok(totals)
}

struct Copier<'a> {
    keep: Keep,
    /// A tree whose entries have the owners that their namesakes are to have.
    like: Option<OwnedFd>,
    root: OwnedFd,
    identity: Identity,
    /// Where the copy is, and what its directories get when they are left.
    descent: Descent<Attributes>,
    /// Files of which not all names have been seen: the first of them, and how many were.
    links: HashMap<(u64, u64), (Vec<u8>, u64)>,
    buffer: Vec<u8>,
    syncs: Syncs,
    go_on: &'a mut dyn FnMut(Totals) -> bool,
}

impl Copier<'_> {
    fn entry(&mut self, entry: &Entry<'_>) -> Result<Visit, TreeError> {
        let parent = &entry.path[..entry.path.len() - entry.name.len()];
        while self.descent.path() != parent.strip_suffix(b"/").unwrap_or(parent) {
            self.leave()?;
        }
        if !(self.go_on)(Totals { entries: 1, bytes: 0 }) {
            return Err(TreeError::io("copy", entry.path, io::ErrorKind::Interrupted));
        }
        let refused = |found| Err(TreeError::Refused { path: entry.path.into(), found });
        match &entry.found {
            Found::File { .. } => self.file(entry)?,
            Found::HardLink { links, file, .. } => self.link(entry, *file, *links)?,
            Found::Dir { .. } if entry.identity == self.identity => {
                return refused("the place it is copied to");
            }
            Found::Dir { .. } => self.enter(entry)?,
            Found::Symlink { target } => self.symlink(entry, target)?,
            Found::Fifo => return refused("a named pipe"),
            Found::Socket => return refused("a socket"),
            Found::Device { .. } | Found::Whiteout => return refused("a device"),
        }
        Ok(Visit::Descend)
    }

    /// Who is to own an entry's copy, unless it is who makes it; and which set-id bits a
    /// directory is to have.
    fn owner(&self, entry: &Entry<'_>) -> Result<(Option<(u32, u32)>, u32), TreeError> {
        let given = owner(self.keep, (entry.uid, entry.gid));
        let Some(like) = &self.like else { return Ok((given, 0)) };
        let fail = |errno: Errno| TreeError::io("look at", entry.path, errno);
        let path = c_name(entry.path).map_err(fail)?;
        match open_beneath(like, &path, OFlags::PATH, Mode::empty()) {
            Ok(namesake) => {
                let namesake = probe_fd(&namesake).map_err(fail)?;
                let is_dir = namesake.file_type() == FileType::Directory;
                let set_id = if is_dir { namesake.stat.mode & SET_ID } else { 0 };
                Ok((Some((namesake.stat.uid, namesake.stat.gid)), set_id))
            }
            // Nothing, or behind what is a link there.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok((given, 0)),
            Err(errno) => Err(fail(errno)),
        }
    }

    fn enter(&mut self, entry: &Entry<'_>) -> Result<(), TreeError> {
        let fail = |errno: Errno| TreeError::io("make", entry.path, errno);
        let mut attributes = Attributes::of_entry(entry, entry.open_dir()?)?.filtered(self.keep);
        let (owner, set_id) = self.owner(entry)?;
        (attributes.owner, attributes.mode) = (owner, attributes.mode | set_id);
        let name = c_name(entry.name).map_err(fail)?;
        let (dir, _) = self.descent.top();
        rustix::fs::mkdirat(dir, &name, Mode::RWXU).map_err(fail)?;
        let made = open_dir(dir, &name).map_err(fail)?;
        let identity = probe_fd(&made).map_err(fail)?.identity();
        self.descent.push(entry.name, made, identity, attributes);
        Ok(())
    }

    /// Finishes the innermost directory. `false` when it was the outermost.
    fn leave(&mut self) -> Result<bool, TreeError> {
        let path = self.descent.path().to_vec();
        let (dir, attributes) = self.descent.top();
        attributes.give(dir, &path)?;
        self.syncs.sync(dir).map_err(|error| TreeError::io("sync", &path, error))?;
        let left = self.descent.pop().map_err(|errno| TreeError::io("leave", &path, errno))?;
        Ok(left.is_some())
    }

    fn file(&mut self, entry: &Entry<'_>) -> Result<(), TreeError> {
        let fail = |error: io::Error| TreeError::io("copy", entry.path, error);
        if self.keep.set_id == SetId::Refused && entry.mode & SET_ID != 0 {
            let found = "a set-uid or set-gid program";
            return Err(TreeError::Refused { path: entry.path.into(), found });
        }
        let from = entry.open_file()?;
        let before = version(&from).map_err(fail)?;
        let attributes = Attributes::of_entry(entry, &from)?.filtered(self.keep);
        let attributes = Attributes { owner: self.owner(entry)?.0, ..attributes };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let (dir, _) = self.descent.top();
        let name = c_name(entry.name).map_err(|errno| fail(errno.into()))?;
        let made = open_beneath(dir, &name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| fail(errno.into()))?;
        let made = File::from(made);
        let go_on = &mut |bytes| (self.go_on)(Totals { entries: 0, bytes });
        content_by(&mut self.buffer, &from, &made, go_on).map_err(fail)?;
        if version(&from).map_err(fail)? != before {
            return Err(WalkError::Changed { path: entry.path.into() }.into());
        }
        attributes.give(made.as_fd(), entry.path)?;
        self.syncs.sync(made.as_fd()).map_err(|error| TreeError::io("sync", entry.path, error))
    }

    fn link(&mut self, entry: &Entry<'_>, file: (u64, u64), links: u64) -> Result<(), TreeError> {
        let mut seen = match self.links.entry(file) {
            Slot::Occupied(seen) => seen,
            Slot::Vacant(free) => {
                free.insert((entry.path.to_vec(), 1));
                return self.file(entry);
            }
        };
        let (first, names) = seen.get_mut();
        let (dir, _) = self.descent.top();
        let (first, name) = (OsStr::from_bytes(first), OsStr::from_bytes(entry.name));
        rustix::fs::linkat(&self.root, first, dir, name, AtFlags::empty())
            .map_err(|errno| TreeError::io("link", entry.path, errno))?;
        *names += 1;
        if *names == links {
            seen.remove();
        }
        Ok(())
    }

    fn symlink(&mut self, entry: &Entry<'_>, target: &[u8]) -> Result<(), TreeError> {
        let name = OsStr::from_bytes(entry.name);
        let (owner, _) = self.owner(entry)?;
        let (dir, _) = self.descent.top();
        let fail = |errno: Errno| TreeError::io("link", entry.path, errno);
        rustix::fs::symlinkat(OsStr::from_bytes(target), dir, name).map_err(fail)?;
        if let Some((uid, gid)) = owner {
            let made = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(fail)?;
            if (made.st_uid, made.st_gid) != (uid, gid) {
                let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
                let follow = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(dir, name, Some(user), Some(group), follow).map_err(
                    |errno| TreeError::Owner {
                        path: entry.path.into(),
                        uid,
                        gid,
                        source: errno.into(),
                    },
                )?;
            }
        }
        let times = times(entry.mtime);
        rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(fail)
    }
}

/// What a file or directory has besides its content.
#[derive(Debug)]
pub(super) struct Attributes {
    pub mode: u32,
    /// None: whoever makes it.
    pub owner: Option<(u32, u32)>,
    pub mtime: FileTime,
    pub extended: Vec<(OsString, Vec<u8>)>,
}

impl Attributes {
    /// Those of what is open.
    pub(super) fn of(open: BorrowedFd<'_>, path: &[u8]) -> Result<Attributes, TreeError> {
        let stat = probe_fd(open).map_err(|errno| TreeError::io("look at", path, errno))?.stat;
        Ok(Attributes {
            mode: stat.mode & 0o7777,
            owner: Some((stat.uid, stat.gid)),
            mtime: stat.mtime,
            extended: extended(open, path)?,
        })
    }

    fn of_entry(entry: &Entry<'_>, open: impl AsFd) -> Result<Attributes, TreeError> {
        Ok(Attributes {
            mode: entry.mode,
            owner: Some((entry.uid, entry.gid)),
            mtime: entry.mtime,
            extended: extended(open, entry.path)?,
        })
    }

    fn filtered(mut self, keep: Keep) -> Attributes {
        self.owner = self.owner.and_then(|of| owner(keep, of));
        if keep.set_id != SetId::Kept {
            self.mode &= !SET_ID;
        }
        self
    }

    fn give(&self, to: BorrowedFd<'_>, path: &[u8]) -> Result<(), TreeError> {
        let fail = |errno: Errno| TreeError::io("set the attributes of", path, errno);
        let now = probe_fd(to).map_err(fail)?.stat;
        if let Some((uid, gid)) = self.owner
            && (now.uid, now.gid) != (uid, gid)
        {
            rustix::fs::fchown(to, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))).map_err(
                |errno| TreeError::Owner {
                    path: BytePath::from(path),
                    uid,
                    gid,
                    source: errno.into(),
                },
            )?;
        }
        for (name, value) in &self.extended {
            rustix::fs::fsetxattr(to, name, value, XattrFlags::empty()).map_err(fail)?;
        }
        rustix::fs::fchmod(to, Mode::from_raw_mode(self.mode)).map_err(fail)?;
        rustix::fs::futimens(to, &times(self.mtime)).map_err(fail)
    }
}

fn extended(open: impl AsFd, path: &[u8]) -> Result<Vec<(OsString, Vec<u8>)>, TreeError> {
    persons_attributes(open).map_err(|errno| TreeError::io("read the attributes of", path, errno))
}

fn owner(keep: Keep, original: (u32, u32)) -> Option<(u32, u32)> {
    match keep.owners {
        Owners::Kept => Some(original),
        Owners::Ours => None,
        Owners::All { uid, gid } => Some((uid, gid)),
    }
}

fn times(mtime: FileTime) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.sec, tv_nsec: mtime.nsec.into() },
    }
}

/// How many are synced one by one, where the whole file system can be synced instead.
const FEW: u64 = 64;

/// File systems whose `syncfs` leaves all of them durable: ext2 to ext4, XFS, Btrfs, F2FS,
/// and tmpfs, which never is (linux/magic.h). Others may do nothing: FUSE passes it on to
/// few servers only, an overlay can be told not to.
const SYNCED_AS_A_WHOLE: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];

pub(super) fn is_synced_as_a_whole(on: impl AsFd) -> bool {
    // The field is as wide as a register, and signed on some machines.
    rustix::fs::fstatfs(on)
        .is_ok_and(|stat| SYNCED_AS_A_WHOLE.contains(&(stat.f_type as u64 & 0xffff_ffff)))
}

/// Makes a copy durable. A few files are synced one by one, and so are directories, each
/// after what it holds: what others are writing to that file system need not be waited for.
/// Of many each would wait for a commit of the journal of its own, so the rest of them is
/// left to one `syncfs` at the end, which reports their failures as well (since Linux 5.8,
/// syncfs(2)).
struct Syncs {
    wanted: bool,
    as_a_whole: bool,
    count: u64,
}

impl Syncs {
    fn new(wanted: bool, on: impl AsFd) -> Syncs {
        Syncs { wanted, as_a_whole: is_synced_as_a_whole(on), count: 0 }
    }

    fn sync(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        if !self.wanted {
            return Ok(());
        }
        self.count += 1;
        if self.as_a_whole && self.count > FEW {
            return Ok(());
        }
        hit("target:tree:sync")?;
        Ok(rustix::fs::fsync(fd)?)
    }

    fn end(&self, on: &OwnedFd) -> io::Result<()> {
        if !self.wanted || !self.as_a_whole || self.count <= FEW {
            return Ok(());
        }
        hit("target:tree:sync-all")?;
        Ok(rustix::fs::syncfs(on)?)
    }
}

//! The one reader of untrusted directories.
//!
//! Every byte below the root is taken as hostile: names, targets, times, kinds.
//! How a walk goes:
//!
//! 1. The root is a descriptor. Everything is opened below it with `openat2`
//!    and `RESOLVE_BENEATH | NO_SYMLINKS | NO_MAGICLINKS | NO_XDEV`; no path is
//!    ever resolved by the kernel from a string that contains a symlink.
//! 2. A directory is visited in the order of bytes, so the same tree gives the same
//!    walk. Of many names only the first are kept, and it is listed again for the
//!    next. The caps count while it is listed, not afterwards.
//! 3. An entry is stat'ed, then given to the visitor, a directory before its
//!    content. A directory is opened *before* the visitor sees it and compared
//!    with what was stat'ed, so `opaque` and what is descended into are one
//!    thing.
//! 4. Nothing is opened for reading unless the visitor calls
//!    [`Entry::open_file`], which never waits (a fifo named `main.rs` would
//!    block a plain `open` for ever) and proves that it got the file that was
//!    stat'ed.
//! 5. Nothing is changed, but for modes where [`Walker::opening_up`] was asked for.
//!
//! Depth is bounded by a cap alone: see `descent` for why neither descriptors
//! nor the stack are. The tree should be quiet; when it is not, the walk ends
//! with [`WalkError::Changed`] instead of reporting a mixture.
//!
//! ```
//! use cofferdam_tree::{Caps, Found, Visit, WalkError, Walker};
//! let root = std::fs::File::open(std::env!("CARGO_MANIFEST_DIR")).unwrap();
//! let mut files = 0;
//! Walker::new(root.into(), Caps::default()).walk::<WalkError>(&mut |entry| {
//!     files += u32::from(matches!(entry.found, Found::File { .. }));
//!     Ok(Visit::Descend)
//! }).unwrap();
//! assert!(files > 0);
//! ```

use crate::descent::{Descent, c_name, open_beneath, open_dir, read_names};
use crate::path::BytePath;
use crate::stat::{FileTime, Identity, Probe, probe_at, probe_fd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BinaryHeap;
use std::ffi::{CStr, CString};
use std::fmt;
use std::fs::File;
use std::ops::ControlFlow;

/// Limits of one walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Entries of all listed directories together.
    pub entries: u64,
    /// Apparent size of all regular files together, in bytes; hard links count each time.
    pub bytes: u64,
    /// Levels below the root; its own entries are at 1.
    pub depth: u32,
    /// Length of one name in bytes.
    pub name_len: u32,
}

impl Default for Caps {
    /// A million entries, 64 GiB, 1024 levels, names of 255 bytes.
    fn default() -> Self {
        Self { entries: 1_000_000, bytes: 64 << 30, depth: 1024, name_len: 255 }
    }
}

/// Which of the [`Caps`] was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cap {
    /// [`Caps::entries`]
    Entries,
    /// [`Caps::bytes`]
    Bytes,
    /// [`Caps::depth`]
    Depth,
    /// [`Caps::name_len`]
    NameLen,
}

impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Entries => "entries",
            Self::Bytes => "bytes",
            Self::Depth => "levels of directories",
            Self::NameLen => "bytes in a name",
        })
    }
}

/// Why a walk ended early.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// A cap was passed at this path.
    #[error("more than {limit} {cap} at `{path}`")]
    TooMany {
        /// The cap.
        cap: Cap,
        /// Its value.
        limit: u64,
        /// The entry that was one too many, or the directory that holds it.
        path: BytePath,
    },
    /// Permission denied. Run the walk with `CAP_DAC_OVERRIDE` in a user
    /// namespace of the owner to read it.
    #[error("`{path}` can't be read: permission denied")]
    Unreadable {
        /// The directory or file.
        path: BytePath,
    },
    /// Something is mounted here; what is behind it is not part of the tree.
    #[error("`{path}` is a mount point")]
    MountPoint {
        /// Where.
        path: BytePath,
    },
    /// The tree changed during the walk.
    #[error("`{path}` changed while it was read")]
    Changed {
        /// Where it was noticed.
        path: BytePath,
    },
    /// [`Entry::open_file`] on something that is not a regular file.
    #[error("`{path}` is not a regular file")]
    NotAFile {
        /// The entry.
        path: BytePath,
    },
    /// [`open_dir_below`] on something that is not a directory.
    #[error("`{path}` is not a directory")]
    NotADirectory {
        /// The entry.
        path: BytePath,
    },
    /// Anything else the kernel said, `ENOSYS` for a missing `openat2` among it.
    #[error("`{path}` can't be read: {source}")]
    Io {
        /// The entry.
        path: BytePath,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

impl WalkError {
    fn new(path: &[u8], errno: Errno) -> Self {
        let path = BytePath::from(path);
        match errno {
            Errno::ACCESS | Errno::PERM => Self::Unreadable { path },
            Errno::XDEV => Self::MountPoint { path },
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE => Self::Changed { path },
            other => Self::Io { path, source: other.into() },
        }
    }
}

/// Character or block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// `S_IFCHR`
    Character,
    /// `S_IFBLK`
    Block,
}

/// All that can be found in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A regular file with one name.
    File {
        /// The owner may execute it (git's idea of executable).
        executable: bool,
        /// Bytes.
        size: u64,
    },
    /// A regular file that has other names, in this tree or outside of it.
    HardLink {
        /// The owner may execute it.
        executable: bool,
        /// Bytes.
        size: u64,
        /// How many names it has.
        links: u64,
        /// Device and inode: equal for the names of one file.
        file: (u64, u64),
    },
    /// A directory.
    Dir {
        /// The extended attribute `user.overlay.opaque` is exactly `y`: the
        /// lower directory's content does not show through.
        opaque: bool,
    },
    /// A symbolic link.
    Symlink {
        /// Where it points, byte for byte.
        target: Vec<u8>,
    },
    /// An overlay's deletion mark: character device 0:0.
    Whiteout,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A device other than a whiteout.
    Device {
        /// Character or block.
        kind: DeviceKind,
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
}

/// One entry, valid during the visitor's call.
pub struct Entry<'a> {
    /// Path below the root.
    pub path: &'a [u8],
    /// Last component of `path`.
    pub name: &'a [u8],
    /// What it is.
    pub found: Found,
    /// The twelve permission bits, setuid (0o4000), setgid (0o2000) and sticky (0o1000) among them.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the content.
    pub mtime: FileTime,
    /// The directory that holds it.
    pub dir: BorrowedFd<'a>,
    pub(crate) identity: Identity,
}

impl Entry<'_> {
    /// Opens the file for reading. Never waits, never follows.
    ///
    /// # Errors
    /// `NotAFile` unless this is a file or hard link; `Changed` when something
    /// else has taken its place; `Unreadable` without permission.
    pub fn open_file(&self) -> Result<File, WalkError> {
        if !matches!(self.found, Found::File { .. } | Found::HardLink { .. }) {
            return Err(WalkError::NotAFile { path: self.path.into() });
        }
        let fail = |errno| WalkError::new(self.path, errno);
        let name = c_name(self.name).map_err(fail)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        // ENXIO: a socket has taken the file's place.
        let fd = open_beneath(self.dir, &name, flags, Mode::empty())
            .map_err(|errno| fail(if errno == Errno::NXIO { Errno::STALE } else { errno }))?;
        let now = probe_fd(&fd).map_err(fail)?;
        if now.file_type() != FileType::RegularFile || now.identity() != self.identity {
            return Err(fail(Errno::STALE));
        }
        Ok(File::from(fd))
    }

    /// Opens the directory for reading. Never follows.
    ///
    /// # Errors
    /// `Changed` when something else has taken its place, or it never was one;
    /// `Unreadable` without permission.
    pub fn open_dir(&self) -> Result<OwnedFd, WalkError> {
        let fail = |errno| WalkError::new(self.path, errno);
        let fd = open_dir(self.dir, &c_name(self.name).map_err(fail)?).map_err(fail)?;
        if probe_fd(&fd).map_err(fail)?.identity() != self.identity {
            return Err(fail(Errno::STALE));
        }
        Ok(fd)
    }
}

/// What to do after an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// Go into it, when it is a directory.
    Descend,
    /// Leave out what it holds.
    Skip,
}

/// What a whole walk counted, in the units of [`Caps`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Entries listed.
    pub entries: u64,
    /// Apparent bytes of regular files seen.
    pub bytes: u64,
}

/// See the module.
pub struct Walker {
    root: OwnedFd,
    caps: Caps,
    /// Whether what the owner may not read is made readable.
    opens_up: bool,
}

/// Most bytes of names that one directory holds in memory, and all of them together.
const HELD: (usize, usize) = (8 << 20, 16 << 20);
/// What a name takes besides its bytes.
const NAME: usize = size_of::<CString>() + 16;

/// Names still to visit.
#[derive(Default)]
struct Pending {
    /// The next ones, last first.
    names: Vec<CString>,
    /// What they take.
    held: usize,
    /// The last one that was visited.
    after: Option<CString>,
    /// Whether there are others behind those in `names`.
    more: bool,
}

impl Pending {
    fn next(&mut self) -> Option<CString> {
        let name = self.names.pop()?;
        self.held -= name.as_bytes().len() + NAME;
        self.after = Some(name.clone());
        Some(name)
    }
}

impl Walker {
    /// A walker below `root`, a directory opened in any way (`O_PATH` too).
    #[must_use]
    pub fn new(root: OwnedFd, caps: Caps) -> Self {
        Self { root, caps, opens_up: false }
    }

    /// Gives the caller the right to read each directory and file of its own that it comes
    /// to, when `wanted`: for a tree that is the caller's to change. An entry has the mode
    /// that was found, of files with one name.
    #[must_use]
    pub fn opening_up(mut self, wanted: bool) -> Self {
        self.opens_up = wanted;
        self
    }

    /// Visits everything below the root.
    ///
    /// # Errors
    /// The visitor's error, or a [`WalkError`]; the walk ends at the first.
    pub fn walk<E: From<WalkError>>(
        &mut self,
        visit: &mut dyn FnMut(&Entry<'_>) -> Result<Visit, E>,
    ) -> Result<Totals, E> {
        let mut totals = Totals::default();
        let at_root = |errno| WalkError::new(b"", errno);
        let root = open_dir(&self.root, c".").map_err(at_root)?;
        let pending = self.first(root.as_fd(), b"", &mut totals)?;
        let mut descent = Descent::new(root, pending).map_err(at_root)?;
        loop {
            let (dir, pending) = descent.top();
            let mut next = pending.next();
            if next.is_none() && pending.more {
                let again = self.list(dir, pending, |_| Ok(()));
                again.map_err(|error| error.at(descent.path()))?;
                next = descent.top().1.next();
            }
            let Some(name) = next else {
                let left = descent.path().to_vec();
                match descent.pop().map_err(|errno| WalkError::new(&left, errno))? {
                    Some(_) => continue,
                    None => return Ok(totals),
                }
            };
            let path = descent.path_of(name.as_bytes());
            let depth = descent.depth();
            self.check(Cap::Depth, depth as u64, &path)?;
            let (dir, _) = descent.top();
            let (found, probe, opened) = self.look(dir, &name, &path, &mut totals)?;
            let entry = Entry {
                path: &path,
                name: name.as_bytes(),
                found,
                mode: probe.stat.mode & 0o7777,
                uid: probe.stat.uid,
                gid: probe.stat.gid,
                mtime: probe.stat.mtime,
                dir,
                identity: probe.identity(),
            };
            if let (Visit::Descend, Some(fd)) = (visit(&entry)?, opened) {
                let pending = self.first(fd.as_fd(), &path, &mut totals)?;
                descent.push(name.as_bytes(), fd, probe.identity(), pending);
                forget_some(&mut descent);
            }
        }
    }

    fn check(&self, cap: Cap, value: u64, path: &[u8]) -> Result<(), WalkError> {
        let limit = match cap {
            Cap::Entries => self.caps.entries,
            Cap::Bytes => self.caps.bytes,
            Cap::Depth => u64::from(self.caps.depth),
            Cap::NameLen => u64::from(self.caps.name_len),
        };
        if value > limit {
            return Err(WalkError::TooMany { cap, limit, path: path.into() });
        }
        Ok(())
    }

    /// Lists a directory for the first time.
    fn first(
        &self,
        dir: BorrowedFd<'_>,
        path: &[u8],
        totals: &mut Totals,
    ) -> Result<Pending, WalkError> {
        let mut pending = Pending::default();
        self.list(dir, &mut pending, |name| {
            totals.entries += 1;
            self.check(Cap::Entries, totals.entries, path)?;
            self.check(Cap::NameLen, name.to_bytes().len() as u64, path)
        })
        .map_err(|error| error.at(path))?;
        Ok(pending)
    }

    /// Takes in the next names of a directory: the first of those behind `after`, as
    /// many as may be held.
    fn list(
        &self,
        dir: BorrowedFd<'_>,
        pending: &mut Pending,
        mut each: impl FnMut(&CStr) -> Result<(), WalkError>,
    ) -> Result<(), ListError> {
        rustix::fs::seek(dir, rustix::fs::SeekFrom::Start(0))?;
        let mut names: BinaryHeap<CString> = BinaryHeap::new();
        let mut over = Ok(());
        (pending.held, pending.more) = (0, false);
        read_names(dir, |name| {
            over = each(name);
            if over.is_err() {
                return ControlFlow::Break(());
            }
            if pending.after.as_deref().is_some_and(|after| name <= after) {
                return ControlFlow::Continue(());
            }
            if pending.more && names.peek().is_some_and(|last| name >= last.as_c_str()) {
                return ControlFlow::Continue(());
            }
            pending.held += name.to_bytes().len() + NAME;
            names.push(name.to_owned());
            while pending.held > HELD.0
                && let Some(last) = names.pop()
            {
                pending.held -= last.as_bytes().len() + NAME;
                pending.more = true;
            }
            ControlFlow::Continue(())
        })?;
        over?;
        pending.names = names.into_sorted_vec();
        pending.names.reverse();
        Ok(())
    }

    fn look(
        &self,
        dir: BorrowedFd<'_>,
        name: &CString,
        path: &[u8],
        totals: &mut Totals,
    ) -> Result<(Found, Probe, Option<OwnedFd>), WalkError> {
        let fail = |errno| WalkError::new(path, errno);
        let probe = probe_at(dir, name).map_err(fail)?;
        if probe.mount_root {
            return Err(fail(Errno::XDEV));
        }
        if self.opens_up && is_closed(&probe) {
            let_owner_read(dir, name).map_err(fail)?;
        }
        let size = probe.stat.size;
        let executable = probe.stat.mode & 0o100 != 0;
        let device = |kind| Found::Device { kind, major: probe.rdev.0, minor: probe.rdev.1 };
        let found = match probe.file_type() {
            FileType::RegularFile => {
                totals.bytes = totals.bytes.saturating_add(size);
                self.check(Cap::Bytes, totals.bytes, path)?;
                if probe.links > 1 {
                    let file = (probe.stat.dev, probe.stat.ino);
                    Found::HardLink { executable, size, links: probe.links, file }
                } else {
                    Found::File { executable, size }
                }
            }
            FileType::Directory => {
                let fd = open_dir(dir, name).map_err(fail)?;
                let now = probe_fd(&fd).map_err(fail)?;
                if now.identity() != probe.identity() {
                    return Err(fail(Errno::STALE));
                }
                let opaque = is_opaque(&fd).map_err(fail)?;
                return Ok((Found::Dir { opaque }, now, Some(fd)));
            }
            FileType::Symlink => {
                // EINVAL: it is no longer a symlink.
                let target = rustix::fs::readlinkat(dir, name, Vec::new()).map_err(|errno| {
                    fail(if errno == Errno::INVAL { Errno::STALE } else { errno })
                })?;
                Found::Symlink { target: target.into_bytes() }
            }
            FileType::Fifo => Found::Fifo,
            FileType::Socket => Found::Socket,
            FileType::CharacterDevice if probe.is_whiteout() => Found::Whiteout,
            FileType::CharacterDevice => device(DeviceKind::Character),
            FileType::BlockDevice => device(DeviceKind::Block),
            FileType::Unknown => return Err(fail(Errno::INVAL)),
        };
        Ok((found, probe, None))
    }
}

/// Opens the regular file at `path` below `top` for reading; its owner is given the right to
/// read it, when that is the caller. None when nothing is there. Nothing is followed, and
/// nothing is waited for.
///
/// # Errors
/// [`WalkError::NotAFile`] for anything else, or when a link leads there.
pub fn open_file_below(top: impl AsFd, path: &[u8]) -> Result<Option<File>, WalkError> {
    let fail = |errno| WalkError::new(path, errno);
    let name = c_name(path).map_err(fail)?;
    match let_owner_read(top.as_fd(), &name) {
        // Somebody else's can be readable as it is.
        Ok(()) | Err(Errno::PERM | Errno::LOOP) => {}
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(errno) => return Err(fail(errno)),
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let not_a_file = || WalkError::NotAFile { path: path.into() };
    let fd = match open_beneath(&top, &name, flags, Mode::empty()) {
        // A socket, and a link.
        Err(Errno::NXIO | Errno::LOOP) => return Err(not_a_file()),
        fd => fd.map_err(fail)?,
    };
    if probe_fd(&fd).map_err(fail)?.file_type() != FileType::RegularFile {
        return Err(not_a_file());
    }
    Ok(Some(File::from(fd)))
}

/// Opens the directory at `path` below `top`. None when nothing is there. Nothing is followed.
///
/// # Errors
/// [`WalkError::NotADirectory`] for anything else, or when a link leads there.
pub fn open_dir_below(top: impl AsFd, path: &[u8]) -> Result<Option<OwnedFd>, WalkError> {
    let name = c_name(path).map_err(|errno| WalkError::new(path, errno))?;
    match open_dir(&top, &name) {
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::NOTDIR | Errno::LOOP) => Err(WalkError::NotADirectory { path: path.into() }),
        dir => dir.map(Some).map_err(|errno| WalkError::new(path, errno)),
    }
}

/// Lets the owner read the file or directory at `path` below `top`, also when it has mode
/// 000. Other names of a file may lie elsewhere: one that has any stays as it is.
///
/// # Errors
/// The kernel's answer; that it is somebody else's.
pub fn open_up(top: impl AsFd, path: &[u8]) -> std::io::Result<()> {
    Ok(let_owner_read(top.as_fd(), &c_name(path)?)?)
}

fn let_owner_read(dir: BorrowedFd<'_>, path: &CStr) -> Result<(), Errno> {
    let fd = open_beneath(dir, path, OFlags::PATH, Mode::empty())?;
    let probe = probe_fd(&fd)?;
    if !is_closed(&probe) {
        return Ok(());
    }
    // An O_PATH descriptor refuses fchmod; its /proc link leads to this very inode (open(2)).
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let mode = Mode::from_raw_mode(probe.stat.mode & 0o7777 | needed(&probe));
    rustix::fs::chmodat(CWD, &*link, mode, AtFlags::empty())
}

/// What the owner has to be allowed to have it read.
fn needed(probe: &Probe) -> u32 {
    match probe.file_type() {
        FileType::Directory => 0o500,
        FileType::RegularFile if probe.links == 1 => 0o400,
        _ => 0,
    }
}

fn is_closed(probe: &Probe) -> bool {
    probe.stat.mode & needed(probe) != needed(probe)
}

/// What listing a directory ended with.
enum ListError {
    Kernel(Errno),
    Walk(WalkError),
}

impl From<Errno> for ListError {
    fn from(errno: Errno) -> Self {
        ListError::Kernel(errno)
    }
}

impl From<WalkError> for ListError {
    fn from(error: WalkError) -> Self {
        ListError::Walk(error)
    }
}

impl ListError {
    fn at(self, path: &[u8]) -> WalkError {
        match self {
            ListError::Kernel(errno) => WalkError::new(path, errno),
            ListError::Walk(error) => error,
        }
    }
}

/// Lets the outermost directories forget names that are listed again when it is their
/// turn, while all together hold too many.
fn forget_some(descent: &mut Descent<Pending>) {
    let mut held: usize = descent.states().map(|pending| pending.held).sum();
    for pending in descent.states() {
        if held <= HELD.1 {
            return;
        }
        held -= pending.held;
        if !pending.names.is_empty() {
            (pending.names, pending.held, pending.more) = (Vec::new(), 0, true);
        }
    }
}

/// The name of the attribute that makes an unprivileged overlay's directory opaque
/// (`userxattr`, Documentation/filesystems/overlayfs.rst).
pub(crate) const OPAQUE: &std::ffi::CStr = c"user.overlay.opaque";

fn is_opaque(dir: &OwnedFd) -> Result<bool, Errno> {
    // One byte more than `y`, to tell `y` from `yes`; a longer value is ERANGE.
    let mut value = [0u8; 2];
    match rustix::fs::fgetxattr(dir, OPAQUE, &mut value[..]) {
        Ok(len) => Ok(value[..len] == *b"y"),
        Err(Errno::NODATA | Errno::NOTSUP | Errno::RANGE) => Ok(false),
        Err(errno) => Err(errno),
    }
}

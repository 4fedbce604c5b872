//! A position in a directory tree of any depth, with few open files.
//!
//! Walker, remover and usage go down one directory at a time and back up. A
//! tree can be deeper than the limit of open files, longer than `PATH_MAX` and
//! deeper than a thread's stack, so [`Descent`] keeps a list of frames, of
//! which only the root and the innermost [`WINDOW`] hold a descriptor.
//!
//! Going back up past the window, directories are opened again *from the root
//! downwards* and compared with the device and inode seen before: `..` would
//! lead out of the tree when a directory was moved meanwhile.

use crate::stat::{Identity, probe_fd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, RawDir, ResolveFlags};
use rustix::io::Errno;
use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::ops::ControlFlow;

/// Open directories besides the root. Many systems allow 1024 files per process.
const WINDOW: usize = 48;
/// How many frames are opened again at once: makes going up linear in practice.
const REOPEN: usize = 24;
/// Below `PATH_MAX` (4096, with the NUL).
const CHUNK: usize = 4000;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Opens `path` below `dir` following nothing and crossing no mount.
pub(crate) fn open_beneath(
    dir: impl AsFd,
    path: &CStr,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // EAGAIN: the kernel saw a rename meanwhile and could not prove the path stays below (openat2(2)).
    let mut tries = 0;
    loop {
        match rustix::fs::openat2(&dir, path, flags, mode, RESOLVE) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if tries < 1000 => tries += 1,
            other => return other,
        }
    }
}

/// Opens a directory below `dir` for reading.
pub(crate) fn open_dir(dir: impl AsFd, path: &CStr) -> Result<OwnedFd, Errno> {
    open_beneath(dir, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

/// Calls `each` with the names in `dir` from its current position on, without
/// `.` and `..`, until it breaks.
pub(crate) fn read_names(
    dir: BorrowedFd<'_>,
    mut each: impl FnMut(&CStr) -> ControlFlow<()>,
) -> Result<(), Errno> {
    let broken = Cell::new(false);
    let mut until_break = |name: &CStr| {
        let flow = each(name);
        broken.set(flow.is_break());
        flow
    };
    while read_buffer(dir, &mut until_break)? && !broken.get() {}
    Ok(())
}

/// Like [`read_names`] for the names that one system call returns. `false` at the end.
pub(crate) fn read_buffer(
    dir: BorrowedFd<'_>,
    mut each: impl FnMut(&CStr) -> ControlFlow<()>,
) -> Result<bool, Errno> {
    let mut buffer = [MaybeUninit::<u8>::uninit(); 32 * 1024];
    let mut names = RawDir::new(dir, &mut buffer);
    loop {
        match names.next() {
            None => return Ok(false),
            Some(Err(Errno::INTR)) => continue,
            Some(Err(errno)) => return Err(errno),
            Some(Ok(entry)) => {
                let name = entry.file_name();
                if name != c"." && name != c".." && each(name).is_break() {
                    return Ok(true);
                }
            }
        }
        if names.is_buffer_empty() {
            return Ok(true);
        }
    }
}

/// A name as the kernel takes it. `None` when it holds a NUL.
pub(crate) fn c_name(name: &[u8]) -> Result<CString, Errno> {
    CString::new(name).map_err(|_| Errno::INVAL)
}

struct Frame<T> {
    /// `None` once the window has moved past it.
    fd: Option<OwnedFd>,
    identity: Identity,
    path_len: usize,
    state: T,
}

/// See the module.
pub(crate) struct Descent<T> {
    path: Vec<u8>,
    frames: Vec<Frame<T>>,
    /// Frames from here on are open, and frame 0.
    first_open: usize,
}

impl<T> Descent<T> {
    pub(crate) fn new(root: OwnedFd, state: T) -> Result<Self, Errno> {
        let identity = probe_fd(&root)?.identity();
        let frame = Frame { fd: Some(root), identity, path_len: 0, state };
        Ok(Self { path: Vec::new(), frames: vec![frame], first_open: 1 })
    }

    /// How deep an entry of the innermost directory lies; entries of the root are at 1.
    pub(crate) fn depth(&self) -> usize {
        self.frames.len()
    }

    /// The innermost directory, relative to the root; empty for the root.
    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    /// The path of an entry of the innermost directory.
    pub(crate) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = Vec::with_capacity(self.path.len() + 1 + name.len());
        path.extend_from_slice(&self.path);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    /// The innermost directory and its state.
    pub(crate) fn top(&mut self) -> (BorrowedFd<'_>, &mut T) {
        let frame = self.frames.last_mut().expect("the root frame stays until the end");
        (frame.fd.as_ref().expect("the innermost frame is open").as_fd(), &mut frame.state)
    }

    /// The states of all directories, outermost first.
    pub(crate) fn states(&mut self) -> impl Iterator<Item = &mut T> {
        self.frames.iter_mut().map(|frame| &mut frame.state)
    }

    /// Goes into `name`, which `fd` is open on. Returns the state of the frame
    /// that lost its descriptor, if one did.
    pub(crate) fn push(
        &mut self,
        name: &[u8],
        fd: OwnedFd,
        identity: Identity,
        state: T,
    ) -> Option<&mut T> {
        self.path = self.path_of(name);
        let path_len = self.path.len();
        self.frames.push(Frame { fd: Some(fd), identity, path_len, state });
        if self.frames.len() - self.first_open <= WINDOW {
            return None;
        }
        let closed = &mut self.frames[self.first_open];
        closed.fd = None;
        self.first_open += 1;
        Some(&mut closed.state)
    }

    /// Leaves the innermost directory and returns its name, or `None` when it
    /// was the root.
    ///
    /// # Errors
    /// `ESTALE` when a directory above is no longer the one that was entered,
    /// and what opening it again gives.
    pub(crate) fn pop(&mut self) -> Result<Option<Vec<u8>>, Errno> {
        if self.frames.len() == 1 {
            return Ok(None);
        }
        self.frames.pop();
        let parent_len = self.frames.last().map_or(0, |frame| frame.path_len);
        let name_start = if parent_len == 0 { 0 } else { parent_len + 1 };
        let name = self.path.split_off(name_start);
        self.path.truncate(parent_len);
        let top = self.frames.len() - 1;
        if top == 0 {
            self.first_open = 1;
        } else if top < self.first_open {
            self.reopen(top)?;
        }
        Ok(Some(name))
    }

    fn reopen(&mut self, top: usize) -> Result<(), Errno> {
        let start = (top + 1).saturating_sub(REOPEN).max(1);
        let fd = self.open_from_root(self.frames[start].path_len)?;
        self.restore(start, fd)?;
        for index in start + 1..=top {
            let above = &self.frames[index - 1];
            let name = &self.path[above.path_len + 1..self.frames[index].path_len];
            let fd = open_dir(above.fd.as_ref().ok_or(Errno::STALE)?, &c_name(name)?)?;
            self.restore(index, fd)?;
        }
        self.first_open = start;
        Ok(())
    }

    fn restore(&mut self, index: usize, fd: OwnedFd) -> Result<(), Errno> {
        let frame = &mut self.frames[index];
        if probe_fd(&fd)?.identity() != frame.identity {
            return Err(Errno::STALE);
        }
        frame.fd = Some(fd);
        Ok(())
    }

    fn open_from_root(&self, path_len: usize) -> Result<OwnedFd, Errno> {
        let root = self.frames[0].fd.as_ref().ok_or(Errno::STALE)?;
        let mut rest = &self.path[..path_len];
        let mut open: Option<OwnedFd> = None;
        loop {
            let end = if rest.len() <= CHUNK {
                rest.len()
            } else {
                rest[..CHUNK].iter().rposition(|b| *b == b'/').ok_or(Errno::NAMETOOLONG)?
            };
            let from = open.as_ref().unwrap_or(root);
            let fd = open_dir(from, &c_name(&rest[..end])?)?;
            if end == rest.len() {
                return Ok(fd);
            }
            rest = &rest[end + 1..];
            open = Some(fd);
        }
    }
}

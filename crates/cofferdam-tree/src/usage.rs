//! What a tree costs on disk, for reports and for the disk limit.

use crate::descent::{Descent, open_dir, read_names};
use crate::path::BytePath;
use crate::stat::probe_at;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::ops::ControlFlow;

/// What [`disk_usage`] counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes allocated (`st_blocks` × 512), each hard-linked file once. The root itself is not in it.
    pub bytes: u64,
    /// Names below the root.
    pub entries: u64,
    /// Directories whose content could not be read and is not in the sums
    /// (an overlay's `work/work` has mode 000).
    pub unreadable: u64,
}

/// The tree can't be measured.
#[derive(Debug, thiserror::Error)]
#[error("disk usage of `{path}` can't be read: {source}")]
pub struct UsageError {
    /// Below the root.
    pub path: BytePath,
    /// The kernel's answer.
    pub source: std::io::Error,
}

/// Measures everything below `dir`. Follows nothing and stops at mount points.
/// The tree may be in use: what vanishes meanwhile is left out.
///
/// # Errors
/// What the kernel says except `EACCES`, which is counted.
pub fn disk_usage(dir: BorrowedFd<'_>) -> Result<Usage, UsageError> {
    let fail = |path: &[u8], errno: Errno| UsageError { path: path.into(), source: errno.into() };
    let mut usage = Usage::default();
    let mut seen: HashSet<(u64, u64)> = HashSet::new();
    let root = open_dir(dir, c".").map_err(|errno| fail(b"", errno))?;
    let mut descent =
        Descent::<Vec<CString>>::new(root, Vec::new()).map_err(|errno| fail(b"", errno))?;
    list(&mut descent, &mut usage, &mut seen).map_err(|errno| fail(b"", errno))?;
    loop {
        let (dir, pending) = descent.top();
        let Some(name) = pending.pop() else {
            let left = descent.path().to_vec();
            match descent.pop() {
                Ok(Some(_)) => continue,
                Ok(None) => return Ok(usage),
                // The directories above were moved or removed: whatever is left is no longer here.
                Err(Errno::NOENT | Errno::STALE) => return Ok(usage),
                Err(errno) => return Err(fail(&left, errno)),
            }
        };
        match enter(dir, &name) {
            Ok((fd, identity)) => {
                descent.push(name.to_bytes(), fd, identity, Vec::new());
                match list(&mut descent, &mut usage, &mut seen) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(fail(descent.path(), errno)),
                }
            }
            Err(Errno::ACCESS) => usage.unreadable += 1,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {}
            Err(errno) => return Err(fail(&descent.path_of(name.to_bytes()), errno)),
        }
    }
}

fn enter(dir: BorrowedFd<'_>, name: &CStr) -> Result<(OwnedFd, crate::stat::Identity), Errno> {
    let fd = open_dir(dir, name)?;
    let identity = crate::stat::probe_fd(&fd)?.identity();
    Ok((fd, identity))
}

/// Counts the entries of the innermost directory and notes its directories.
fn list(
    descent: &mut Descent<Vec<CString>>,
    usage: &mut Usage,
    seen: &mut HashSet<(u64, u64)>,
) -> Result<(), Errno> {
    let (dir, pending) = descent.top();
    let mut failed = Ok(());
    let mut count = |name: &CStr| {
        let probe = match probe_at(dir, name) {
            Ok(probe) => probe,
            Err(Errno::NOENT) => return ControlFlow::Continue(()),
            // Listable but not searchable: the names are all there is.
            Err(Errno::ACCESS) => {
                usage.entries += 1;
                return ControlFlow::Continue(());
            }
            Err(errno) => {
                failed = Err(errno);
                return ControlFlow::Break(());
            }
        };
        if probe.mount_root {
            return ControlFlow::Continue(());
        }
        usage.entries += 1;
        if probe.is_dir() {
            pending.push(name.to_owned());
        }
        if probe.is_dir() || probe.links < 2 || seen.insert((probe.stat.dev, probe.stat.ino)) {
            usage.bytes = usage.bytes.saturating_add(probe.blocks * 512);
        }
        ControlFlow::Continue(())
    };
    read_names(dir, &mut count)?;
    failed
}

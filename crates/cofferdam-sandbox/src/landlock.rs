//! Landlock, the second wall: even a mount that went wrong is not writable.
//!
//! Source of the constants and of what each ABI brought:
//! `Documentation/userspace-api/landlock.rst`.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use crate::{Spec, View, Wall};

const EXECUTE: u64 = 1 << 0;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
/// Everything of ABI 1: execute … make symlink.
const ABI_1: u64 = (1 << 13) - 1;
const READ_ONLY: u64 = EXECUTE | READ_FILE | READ_DIR;

const SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1 << 0;
const SCOPE_SIGNAL: u64 = 1 << 1;

#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

/// The Landlock ABI of the running kernel; 0 when it has none.
#[must_use]
pub fn abi() -> u32 {
    const CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: with this flag the call takes a null pointer and size 0 and
    // returns a number (landlock_create_ruleset(2)).
    let abi = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<RulesetAttr>(),
            0usize,
            CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(abi).unwrap_or(0)
}

/// Restricts the calling thread and what it starts: reading everywhere in the
/// view, writing in `spec.writable` and to device nodes only, signals and
/// abstract sockets only among themselves. To be called where paths are what the
/// command sees, with `no_new_privs` set. Does nothing where the kernel has no
/// Landlock.
///
/// # Errors
/// What the kernel says; the task must not start then.
pub(crate) fn restrict(spec: &Spec) -> io::Result<()> {
    let abi = abi();
    if abi == 0 {
        return Ok(());
    }
    let mut handled = ABI_1;
    if abi >= 2 {
        handled |= REFER;
    }
    if abi >= 3 {
        handled |= TRUNCATE;
    }
    if abi >= 5 {
        handled |= IOCTL_DEV;
    }
    if spec.wall == Wall::Nested {
        // A domain that handles files forbids every mount inside it.
        handled = 0;
    }
    let scoped = if abi >= 6 { SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL } else { 0 };
    if handled == 0 && scoped == 0 {
        return Ok(());
    }
    let ruleset =
        create(&RulesetAttr { handled_access_fs: handled, handled_access_net: 0, scoped })?;
    if handled != 0 {
        allow(&ruleset, Path::new("/"), READ_ONLY & handled)?;
        for path in &spec.writable {
            allow(&ruleset, path, handled)?;
        }
        let device = (READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV) & handled;
        for node in [
            "/dev/null",
            "/dev/zero",
            "/dev/full",
            "/dev/random",
            "/dev/urandom",
            "/dev/tty",
            "/dev/ptmx",
        ] {
            allow(&ruleset, Path::new(node), device)?;
        }
        allow(&ruleset, Path::new("/dev/pts"), device | READ_DIR)?;
        // The host's is everybody's.
        if matches!(spec.view, View::Own { .. }) {
            allow(&ruleset, Path::new("/dev/shm"), handled)?;
        }
    }
    // SAFETY: a file descriptor and a flag word; no memory is passed.
    let done =
        unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn create(attr: &RulesetAttr) -> io::Result<OwnedFd> {
    // Older kernels know a shorter structure and take a longer one only when
    // the rest is zero, which it is for what they do not know.
    // SAFETY: the pointer and the size describe one live RulesetAttr.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::from_ref(attr),
            size_of::<RulesetAttr>(),
            0u32,
        )
    };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just returned this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn allow(ruleset: &OwnedFd, path: &Path, access: u64) -> io::Result<()> {
    const RULE_PATH_BENEATH: u32 = 1;
    let parent = match rustix::fs::open(
        path,
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    ) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let attr = PathBeneathAttr { allowed_access: access, parent_fd: parent.as_raw_fd() };
    // SAFETY: the pointer describes one live PathBeneathAttr, as the rule type says.
    let done = unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            RULE_PATH_BENEATH,
            std::ptr::from_ref(&attr),
            0u32,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

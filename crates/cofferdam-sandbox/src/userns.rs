//! Entering a user namespace in which the caller's own id stands for itself.

use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    Gid, Uid, UnshareFlags, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::{Ids, SandboxError};

pub(crate) fn setup<T>(
    step: &str,
    path: Option<&std::path::Path>,
    result: Result<T, impl Into<std::io::Error>>,
) -> Result<T, SandboxError> {
    result.map_err(|error| {
        let error: std::io::Error = error.into();
        SandboxError::Setup {
            step: step.to_owned(),
            path: path.map(Into::into),
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        }
    })
}

/// A user namespace in which the host's root is the task's user, for a mount whose
/// owners are to appear so. Only root can make one.
pub(crate) fn mapping_root_to(ids: Ids) -> Result<OwnedFd, SandboxError> {
    let step = "make a user namespace for a mount";
    let pipe = || setup(step, None, pipe_with(PipeFlags::CLOEXEC));
    let ((ready, tell_ready), (go_on, let_go)) = (pipe()?, pipe()?);
    // SAFETY: this process has one thread; the child makes plain system calls only.
    match unsafe { libc::fork() } {
        -1 => setup(step, None, Err(std::io::Error::last_os_error())),
        0 => {
            drop(let_go);
            // SAFETY: as above; `_exit` runs nothing of the parent's.
            unsafe {
                if libc::unshare(libc::CLONE_NEWUSER) == 0 {
                    let _ = rustix::io::write(&tell_ready, b"r");
                    let _ = rustix::io::read(&go_on, &mut [0u8]);
                }
                libc::_exit(0)
            }
        }
        child => {
            drop((tell_ready, go_on));
            let made = setup(step, None, rustix::io::read(&ready, &mut [0u8])).and_then(|read| {
                if read == 1 {
                    map_root_in(child, ids)
                } else {
                    setup(step, None, Err(rustix::io::Errno::PERM))
                }
            });
            drop(let_go);
            // SAFETY: numbers only; the child ends when the pipe does.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            made
        }
    }
}

fn map_root_in(child: i32, ids: Ids) -> Result<OwnedFd, SandboxError> {
    let step = "make a user namespace for a mount";
    let file = |name: &str| format!("/proc/{child}/{name}");
    setup(step, None, std::fs::write(file("uid_map"), format!("0 {} 1", ids.uid)))?;
    setup(step, None, std::fs::write(file("gid_map"), format!("0 {} 1", ids.gid)))?;
    Ok(setup(step, None, std::fs::File::open(file("ns/user")))?.into())
}

/// Becomes `ids` (when root has to), then enters a new user namespace with the
/// id mapped to itself, together with the other namespaces in `also`. The
/// caller must have one thread; it ends with every capability inside.
///
/// # Errors
/// [`SandboxError::Setup`] that names the step refused.
pub fn enter(ids: Ids, also: UnshareFlags) -> Result<(), SandboxError> {
    let (uid, gid) = (Uid::from_raw(ids.uid), Gid::from_raw(ids.gid));
    if ids.switch {
        setup("drop root's groups", None, set_thread_groups(&[]))?;
        setup("become the task's group", None, set_thread_res_gid(gid, gid, gid))?;
        setup("become the task's user", None, set_thread_res_uid(uid, uid, uid))?;
    }
    // A change of user makes a process undumpable and its /proc/self files
    // root's; the maps below are written there. Undone before the task starts.
    setup("own /proc/self", None, set_dumpable_behavior(DumpableBehavior::Dumpable))?;
    // SAFETY: unshare_unsafe is unsafe for CLONE_FILES only, which is not among
    // these flags.
    let unshared = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) };
    setup("create a user namespace", None, unshared)?;
    let map = |file: &str, text: String| {
        setup(
            "map the user id",
            Some(file.as_ref()),
            std::fs::OpenOptions::new()
                .write(true)
                .open(file)
                .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes())),
        )
    };
    map("/proc/self/setgroups", "deny".into())?;
    map("/proc/self/gid_map", format!("{0} {0} 1", ids.gid))?;
    map("/proc/self/uid_map", format!("{0} {0} 1", ids.uid))?;
    // SAFETY: as above.
    let unshared = unsafe { rustix::thread::unshare_unsafe(also) };
    setup("create the task's namespaces", None, unshared)
}

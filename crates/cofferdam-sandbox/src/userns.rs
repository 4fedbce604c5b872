//! Entering a user namespace in which the caller's own id stands for itself.

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

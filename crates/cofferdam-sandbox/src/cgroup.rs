//! Whether a nested sandbox could reach its supervisor's control group.
//!
//! A task that may make namespaces can mount the cgroup v2 hierarchy from where it
//! stands. When that group is delegated to the task's user, it can then kill or
//! freeze everything in it, its supervisor included. systemd mounts the hierarchy
//! with `nsdelegate`, which makes a cgroup namespace a boundary of delegation
//! (cgroup-v2.rst, "Delegation"); where it is not, such a task is refused.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::{Ids, SandboxError};

/// What is mounted, as the kernel tells it. Names of mount points are in whatever
/// encoding.
pub(crate) fn mountinfo() -> std::io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read("/proc/self/mountinfo")?).into_owned())
}

/// Refuses when a task of `ids` that can make namespaces could control the group
/// that it starts in.
///
/// # Errors
/// [`SandboxError::Setup`] that names the group.
pub fn refuse_delegated(ids: Ids) -> Result<(), SandboxError> {
    let failed = |source| SandboxError::Supervisor { step: "look at the control groups", source };
    let mounts = mountinfo().map_err(failed)?;
    let own = std::fs::read_to_string("/proc/self/cgroup").map_err(failed)?;
    let Some(group) = undelegated_group(&mounts, &own) else { return Ok(()) };
    if is_controlled_by(&group, ids).map_err(failed)? {
        return Err(SandboxError::Setup {
            step: "keep a nested sandbox out of the control group it is started in".into(),
            path: Some(group),
            errno: libc::EPERM,
        });
    }
    Ok(())
}

/// The caller's group in a cgroup v2 hierarchy that is mounted without
/// `nsdelegate`; none when there is no such hierarchy.
fn undelegated_group(mounts: &str, own: &str) -> Option<PathBuf> {
    let below = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    mounts.lines().find_map(|line| {
        let (mount, fs) = line.split_once(" - ")?;
        let mut fs = fs.split(' ');
        let (kind, options) = (fs.next()?, fs.nth(1)?);
        let point = mount.split(' ').nth(4)?;
        let bounded = options.split(',').any(|option| option == "nsdelegate");
        (kind == "cgroup2" && !bounded).then(|| Path::new(point).join(below))
    })
}

fn is_controlled_by(group: &Path, ids: Ids) -> io::Result<bool> {
    for file in ["cgroup.procs", "cgroup.kill", "cgroup.freeze"] {
        let path = group.join(file);
        let meta = match std::fs::metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let mode = meta.mode();
        let writable = (meta.uid() == ids.uid && mode & 0o200 != 0)
            || (meta.gid() == ids.gid && mode & 0o020 != 0)
            || mode & 0o002 != 0;
        if writable {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: &str = "92 82 0:38 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
    const BOUND: &str =
        "92 82 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";

    #[test]
    fn only_a_hierarchy_without_a_boundary_counts() {
        let own = "3:cpu:/x\n0::/user/ann\n";
        assert_eq!(undelegated_group(BARE, own), Some("/sys/fs/cgroup/user/ann".into()));
        assert_eq!(undelegated_group(BOUND, own), None);
        assert_eq!(undelegated_group(BARE, "3:cpu:/x\n"), None);
    }

    #[test]
    fn whoever_can_write_its_files_controls_a_group() {
        let dir = tempfile::tempdir().expect("dir");
        let meta = std::fs::metadata(dir.path()).expect("meta");
        let own = Ids { uid: meta.uid(), gid: meta.gid(), switch: false };
        let other = Ids { uid: meta.uid() + 1, gid: meta.gid() + 1, switch: false };
        assert!(!is_controlled_by(dir.path(), own).expect("no files"));
        std::fs::write(dir.path().join("cgroup.kill"), "").expect("write");
        assert!(is_controlled_by(dir.path(), own).expect("own"));
        assert!(!is_controlled_by(dir.path(), other).expect("other"));
    }
}

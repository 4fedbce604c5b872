//! As whom a task runs.
//!
//! An ordinary user's task runs as that user, mapped to itself: mapped to 0,
//! git would find its index stale and re-hash every file. A task that root
//! started never runs as the host's uid 0: sysctl checks compare the effective
//! uid with the *global* root and not capabilities, so it could write
//! `/proc/sys/kernel/core_pattern` with no capability at all.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The id used when root starts a task for a repository of its own and has no
/// subordinate ids: above what systemd hands out, below the 32-bit sign.
pub const FALLBACK_ID: u32 = 0x7E00_0000;

/// A host user and group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    /// User id on the host; never 0.
    pub uid: u32,
    /// Group id on the host; never 0.
    pub gid: u32,
    /// Whether the caller is somebody else (root) and has to become this user.
    pub switch: bool,
}

impl Ids {
    /// The ids for a task that the calling user starts on `owner_of`
    /// (a repository): the caller's own, or, for root, the owner's, else the
    /// first of root's subordinate ids in `/etc/subuid`, else [`FALLBACK_ID`].
    ///
    /// # Errors
    /// When `owner_of` can't be read.
    pub fn for_task(owner_of: &Path) -> std::io::Result<Ids> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        if uid != 0 {
            return Ok(Ids { uid, gid, switch: false });
        }
        let owner = std::fs::metadata(owner_of)?;
        let first = |file| std::fs::read_to_string(file).ok().and_then(|text| first_subid(&text));
        let (uid, gid) = match (owner.uid(), owner.gid()) {
            (0, _) => (
                first("/etc/subuid").unwrap_or(FALLBACK_ID),
                first("/etc/subgid").unwrap_or(FALLBACK_ID),
            ),
            (uid, 0) => (uid, uid),
            (uid, gid) => (uid, gid),
        };
        Ok(Ids { uid, gid, switch: true })
    }
}

/// The first id that a `subuid(5)` or `subgid(5)` file gives to root.
fn first_subid(text: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let owner = fields.next()?;
        let start: u32 = fields.next()?.parse().ok()?;
        ((owner == "root" || owner == "0") && start != 0).then_some(start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_ids_of_root_only() {
        assert_eq!(first_subid("dam:100000:65536\nroot:200000:65536\n"), Some(200_000));
        assert_eq!(first_subid("dam:100000:65536\n"), None);
        assert_eq!(first_subid("root:0:65536\n"), None);
        assert_eq!(first_subid("broken"), None);
    }

    #[test]
    fn never_the_hosts_root() {
        let ids = Ids::for_task(Path::new("/")).expect("ids");
        assert_ne!(ids.uid, 0);
        assert_ne!(ids.gid, 0);
        assert_eq!(ids.switch, rustix::process::geteuid().is_root());
    }
}

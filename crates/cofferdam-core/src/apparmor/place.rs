//! Who could put another program where this one is.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;

use super::under;
use crate::Error;
use crate::error::IoContext;

/// Says who can replace the program at `binary`, an absolute path without links: root
/// and its owner, and nobody else.
///
/// A group may write where it is the owner's own, as homes on Ubuntu have it (umask 002):
/// nobody else is in it, as far as `/etc/passwd` and `/etc/group` know.
///
/// # Errors
/// [`Error::Usage`] that names the file or directory that somebody else can write.
pub(super) fn owner_alone(root: &Path, binary: &Path) -> Result<String, Error> {
    let owner = std::fs::symlink_metadata(under(root, binary)).at("look at", binary)?.uid();
    let users = table(root, "/etc/passwd");
    let name = |uid: u32| {
        let user = users.iter().find(|user| user.get(2) == Some(&uid.to_string()));
        user.map_or_else(|| format!("uid {uid}"), |user| format!("`{}`", user[0]))
    };
    for path in binary.ancestors() {
        let refused = |who: String| Error::Usage {
            message: format!(
                "{who} can write `{}`, and so put another program in the place of `{}`, which \
                 would have the profile's right",
                path.display(),
                binary.display()
            ),
            hint: Some("take that right away, or install `dam` in another directory".into()),
        };
        let real = under(root, path);
        let found = std::fs::symlink_metadata(&real).at("look at", path)?;
        if found.uid() != 0 && found.uid() != owner {
            return Err(refused(name(found.uid())));
        }
        if found.mode() & 0o002 != 0 {
            return Err(refused("every user".into()));
        }
        // With an access control list these bits are the most that anybody in it has.
        if found.mode() & 0o020 != 0 {
            if has_list(&real).at("look at", path)? {
                return Err(refused("somebody in an access control list".into()));
            }
            if !is_own_group(root, &users, found.gid(), owner) {
                return Err(refused(format!("the group {}", found.gid())));
            }
        }
    }
    Ok(if owner == 0 { "root".into() } else { format!("root and {}", name(owner)) })
}

fn is_own_group(root: &Path, users: &[Vec<String>], gid: u32, owner: u32) -> bool {
    let gid = gid.to_string();
    let may = |uid: &str| uid == "0" || uid == owner.to_string();
    let names: BTreeSet<&str> = users
        .iter()
        .filter(|user| user.get(2).is_some_and(|uid| may(uid)))
        .map(|user| user[0].as_str())
        .collect();
    let has_other_user = users
        .iter()
        .any(|user| user.get(3) == Some(&gid) && !user.get(2).is_some_and(|uid| may(uid)));
    let groups = table(root, "/etc/group");
    let mut groups = groups.iter().filter(|group| group.get(2) == Some(&gid)).peekable();
    groups.peek().is_some()
        && !has_other_user
        && groups.all(|group| {
            let members = group.get(3).map_or("", String::as_str).split(',');
            members.filter(|member| !member.is_empty()).all(|member| names.contains(member))
        })
}

/// Lines of a table of users or groups; none when it can't be read.
fn table(root: &Path, path: &str) -> Vec<Vec<String>> {
    // The names of people are in whatever encoding.
    let text = std::fs::read(under(root, path)).unwrap_or_default();
    String::from_utf8_lossy(&text)
        .lines()
        .map(|line| line.trim().split(':').map(str::to_owned).collect())
        .collect()
}

fn has_list(path: &Path) -> std::io::Result<bool> {
    match rustix::fs::lgetxattr(path, "system.posix_acl_access", &mut [0u8; 0][..]) {
        Ok(_) => Ok(true),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

//! Whether what a checkout is to become fits on its disk, asked before the branch moves.
//!
//! Somebody else can use the room up between the answer and the update: then recovery
//! goes on when there is some again. What this spares is a branch that has moved without
//! its checkout on a disk that was full all along.

use rustix::fs::statvfs;

use super::{Follow, FollowError, InTheWay};
use crate::mode::GITLINK;
use crate::{GitError, IoContext, Started};

/// With so much left, nothing that a task may leave by default does not fit.
const PLENTY: u64 = 10 << 30;
/// For the index that is written beside the old one, and for directories.
const SLACK: u64 = 64 << 10;
/// What a file takes at least.
const BLOCK: u64 = 4096;

/// Sizes that were asked for.
pub(super) struct Sizes(Option<Started>);

/// What there is, or what is needed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Room {
    bytes: u64,
    files: u64,
}

fn room(follow: &Follow<'_>) -> Result<Room, GitError> {
    let dir = &follow.worktree.dir;
    let fs = statvfs(dir).at("look at the disk of", dir)?;
    // Some file systems make inodes as they are needed, and say that there are none.
    let files = if fs.f_files == 0 { u64::MAX } else { fs.f_favail };
    Ok(Room { bytes: fs.f_bavail.saturating_mul(fs.f_frsize), files })
}

/// Begins to ask for the sizes of the new files, where the answer can matter.
pub(super) fn ask(follow: &Follow<'_>) -> Result<Sizes, GitError> {
    let is_written = |mode: u32| mode != 0 && mode != GITLINK;
    let mut files = 0;
    follow.changes.each(|change| {
        files += u64::from(is_written(change.new_mode));
        Ok::<_, GitError>(())
    })?;
    let room = room(follow)?;
    if files == 0 || (room.bytes > PLENTY && room.files > files + 16) {
        return Ok(Sizes(None));
    }
    let mut names = Vec::new();
    follow.changes.each(|change| {
        if is_written(change.new_mode) {
            names.extend(change.new.as_str().as_bytes());
            names.push(b'\n');
        }
        Ok::<_, GitError>(())
    })?;
    let git = follow.git().args(["cat-file", "--batch-check=%(objectsize)"]);
    Ok(Sizes(Some(git.input(names).start()?)))
}

/// What they take.
pub(super) fn needed(sizes: Sizes) -> Result<Room, GitError> {
    let Some(asked) = sizes.0 else { return Ok(Room::default()) };
    let answer = asked.run()?;
    let (mut bytes, mut files) = (0u64, 0);
    for line in String::from_utf8_lossy(&answer).lines() {
        let size: u64 = line.parse().unwrap_or(0);
        bytes = bytes.saturating_add(size.div_ceil(BLOCK).max(1) * BLOCK);
        files += 1;
    }
    Ok(Room { bytes, files })
}

/// Looks whether that fits.
pub(super) fn look(follow: &Follow<'_>, Room { bytes, files }: Room) -> Result<(), FollowError> {
    if files == 0 {
        return Ok(());
    }
    let index = follow.worktree.git_dir.join("index");
    let index = std::fs::metadata(index).map_or(0, |meta| meta.len());
    let room = room(follow)?;
    if room.bytes >= bytes.saturating_add(2 * index + SLACK) && room.files > files + 2 {
        return Ok(());
    }
    let worktree = follow.worktree.dir.clone();
    Err(InTheWay::NoRoom { worktree, bytes, files }.into())
}

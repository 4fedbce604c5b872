//! What a task put aside in its own git: work that is not on disk when it ends.

use std::os::fd::OwnedFd;

use cofferdam_tree::walk::{Caps, Found, Visit, WalkError, Walker};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use super::scan::read_plain_file;
use crate::CommitId;

const HEADS: &[u8] = b".git/refs/heads";
const STASH: &[u8] = b".git/refs/stash";
/// What is there while git is in the middle of something.
const UNFINISHED: [(&[u8], &str); 6] = [
    (b".git/MERGE_HEAD", "a merge that was not finished: what is on disk is taken"),
    (b".git/rebase-merge", "a rebase that was not finished: what is on disk is taken"),
    (b".git/rebase-apply", "a rebase or `git am` that was not finished: what is on disk is taken"),
    (b".git/CHERRY_PICK_HEAD", "a cherry-pick that was not finished: what is on disk is taken"),
    (b".git/REVERT_HEAD", "a revert that was not finished: what is on disk is taken"),
    (b".git/BISECT_LOG", "a `git bisect` that was not finished: what is on disk is taken"),
];
/// A path that nothing on the way leads away from.
const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// More branches than this are not looked at.
const BRANCHES: u64 = 1000;

/// What git was in the middle of, and what it is.
pub(super) fn unfinished(upper: &OwnedFd) -> impl Iterator<Item = (&'static [u8], &'static str)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let is_there = move |path| openat2(upper, path, flags, Mode::empty(), BENEATH).is_ok();
    UNFINISHED.into_iter().filter(move |(path, _)| is_there(*path))
}

/// The refs with such work, and what they are.
pub(super) fn of(upper: &OwnedFd, began_at: &[CommitId]) -> Vec<(Vec<u8>, &'static str)> {
    let mut found = Vec::new();
    let read = |dir, path: &[u8]| read_plain_file(dir, path).unwrap_or_default();
    if !read(upper, STASH).is_empty() {
        found.push((STASH.to_vec(), "a stash, which is not on disk and not taken"));
    }
    let head = read(upper, b".git/HEAD");
    let head = head.trim_ascii();
    let checked_out = head.strip_prefix(b"ref: ").unwrap_or_default();
    let refs = read(upper, b".git/packed-refs");
    let known = |oid: &[u8]| {
        oid.is_empty()
            || oid == head
            || began_at.iter().any(|commit| commit.as_str().as_bytes() == oid)
            || refs.windows(oid.len()).any(|words| words == oid)
    };
    let checked_out = [b".git/", checked_out].concat();
    let tip = read(upper, &checked_out);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(heads) = openat2(upper, HEADS, flags, Mode::empty(), BENEATH) else { return found };
    let caps = Caps { entries: BRANCHES, ..Caps::default() };
    let walked = Walker::new(heads, caps).walk::<WalkError>(&mut |entry| {
        let path = [HEADS, b"/", entry.path].concat();
        if matches!(entry.found, Found::File { .. }) && path != checked_out {
            let oid = read(upper, &path);
            let is_tip = oid == tip;
            if !is_tip && !known(oid.trim_ascii()) {
                found.push((path, "a branch with commits of its own, which are not taken"));
            }
        }
        Ok(Visit::Descend)
    });
    // What can't be read is not known.
    drop(walked);
    found
}

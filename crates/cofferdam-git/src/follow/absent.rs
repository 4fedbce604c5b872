//! Paths that are not to be in a worktree: those outside of a sparse checkout.

use std::io::{BufRead, BufReader};
use std::process::ChildStdout;

use super::Follow;
use crate::GitError;
use crate::command::Conversation;

/// Asked in the order of paths, as git lists them: nobody holds the whole list.
pub(super) struct Absent<'a> {
    follow: &'a Follow<'a>,
    listing: Option<(Conversation, BufReader<ChildStdout>)>,
    /// The first that is listed and not before what was asked for last.
    next: Vec<u8>,
}

impl<'a> Absent<'a> {
    pub(super) fn new(follow: &'a Follow<'a>) -> Absent<'a> {
        Absent { follow, listing: None, next: Vec::new() }
    }

    /// Whether a path of the copied index is not to be in the worktree. It must not come
    /// before the one that was asked for last.
    pub(super) fn has(&mut self, path: &[u8]) -> Result<bool, GitError> {
        if self.listing.is_none() {
            let mut git = self.follow.git().args(["ls-files", "-t", "-z"]).converse()?;
            drop(git.child.stdin.take());
            let out = git.child.stdout.take().expect("piped");
            self.listing = Some((git, BufReader::with_capacity(1 << 16, out)));
        }
        let Some((git, out)) = &mut self.listing else { return Ok(false) };
        let mut line = Vec::new();
        while self.next.as_slice() < path {
            line.clear();
            let read = out.read_until(0, &mut line).map_err(|error| GitError::Unexpected {
                command: git.command.clone(),
                answer: error.to_string(),
            })?;
            if read == 0 {
                // Nothing is behind it.
                return Ok(false);
            }
            if let Some(name) = line.strip_prefix(b"S ") {
                self.next = name.strip_suffix(b"\0").unwrap_or(name).to_vec();
            }
        }
        Ok(self.next == path)
    }
}

impl Drop for Absent<'_> {
    fn drop(&mut self) {
        if let Some((git, _)) = &mut self.listing {
            let _ = git.child.kill();
            let _ = git.child.wait();
        }
    }
}

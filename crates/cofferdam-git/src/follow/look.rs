//! The look at every path that will change, before anything does.
//!
//! Paths come in the order of their bytes, so all that begin with the same bytes come
//! one after the other. What has to be known of others is therefore known with little
//! in memory: of those before, the ones that the path of now begins with; of those to
//! come, how many there are in a directory.

use std::collections::HashSet;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cofferdam_tree::BytePath;

use super::{Follow, FollowError, TOLD};
use crate::difference::Difference;
use crate::{GitError, IoContext, Told, dirs_above};

pub(super) struct Look<'a> {
    follow: &'a Follow<'a>,
    /// Directories around the path of now that were looked at.
    seen: Vec<Vec<u8>>,
    /// Paths which the path of now begins with and which were there before the update.
    before: Vec<Vec<u8>>,
    /// The same, where a directory of the worktree is in their place.
    dirs: Vec<InPlace>,
    pub(super) in_the_way: Told,
}

/// A directory in the place of something that is to appear. An empty one, or one whose
/// whole content goes, is no loss.
struct InPlace {
    path: Vec<u8>,
    /// Files in it.
    holds: u64,
    /// Those that go.
    goes: u64,
}

impl<'a> Look<'a> {
    pub(super) fn new(follow: &'a Follow<'a>) -> Look<'a> {
        let (seen, before, dirs) = (Vec::new(), Vec::new(), Vec::new());
        Look { follow, seen, before, dirs, in_the_way: Told::new(TOLD) }
    }

    pub(super) fn at(&mut self, change: &Difference) -> Result<(), FollowError> {
        let path = change.path.as_slice();
        self.seen.retain(|dir| dir.is_empty() || is_below(path, dir));
        self.before.retain(|before| path.starts_with(before));
        while let Some(dir) = self.dirs.pop_if(|dir| !path.starts_with(&dir.path)) {
            self.leave(&dir)?;
        }
        if let Some(dir) = self.not_writable(path) {
            let shown = if dir.is_empty() { b"." } else { dir };
            self.in_the_way.push(|| format!("`{}` (not writable)", BytePath::from(shown)));
        }
        if change.old_mode != 0 && self.dirs.iter().any(|dir| is_below(path, &dir.path)) {
            let is_file =
                std::fs::symlink_metadata(self.follow.place(path)).is_ok_and(|meta| !meta.is_dir());
            for dir in self.dirs.iter_mut().filter(|dir| is_file && is_below(path, &dir.path)) {
                dir.goes += 1;
            }
        }
        if change.new_mode != 0 {
            self.obstacle(path, change.old_mode != 0)?;
        }
        if change.old_mode != 0 {
            self.before.push(path.to_vec());
        }
        Ok(())
    }

    pub(super) fn at_the_end(&mut self) -> Result<(), FollowError> {
        while let Some(dir) = self.dirs.pop() {
            self.leave(&dir)?;
        }
        Ok(())
    }

    /// The directory that a path lies in or would be made in, when nothing can be
    /// changed there: git would report success and leave its files behind. Each is
    /// told once.
    fn not_writable<'p>(&mut self, path: &'p [u8]) -> Option<&'p [u8]> {
        use rustix::fs::{Access, AtFlags, CWD, accessat};
        let above = |path: &'p [u8]| path.iter().rposition(|byte| *byte == b'/');
        let mut dir = path;
        let meta = loop {
            dir = above(dir).map_or(&b""[..], |at| &dir[..at]);
            if self.seen.iter().any(|seen| seen == dir) {
                return None;
            }
            self.seen.push(dir.to_vec());
            match std::fs::symlink_metadata(self.follow.place(dir)) {
                Ok(meta) => break meta,
                Err(_) if dir.is_empty() => return None,
                Err(_) => {}
            }
        };
        if !meta.is_dir() {
            return None;
        }
        let place = self.follow.place(dir);
        let writable = match &self.follow.repo.owner {
            // git works as the owner, not as us.
            Some(owner) => owner.uid != meta.uid() || meta.mode() & 0o300 == 0o300,
            None => {
                let wanted = Access::WRITE_OK | Access::EXEC_OK;
                accessat(CWD, &place, wanted, AtFlags::EACCESS).is_ok()
            }
        };
        (!writable).then_some(dir)
    }

    fn obstacle(&mut self, path: &[u8], tracked: bool) -> Result<(), GitError> {
        for parent in dirs_above(path) {
            match std::fs::symlink_metadata(self.follow.place(parent)) {
                Ok(meta) if meta.is_dir() => {}
                Ok(_) => {
                    if !self.before.iter().any(|before| before == parent) {
                        self.in_the_way.push(|| shown(parent, "not a directory"));
                    }
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error).at("look at", self.follow.place(parent)),
            }
        }
        let place = self.follow.place(path);
        match std::fs::symlink_metadata(&place) {
            Ok(meta) if meta.is_dir() => {
                let holds = files_in(&place).at("look into", &place)?;
                self.dirs.push(InPlace { path: path.to_vec(), holds, goes: 0 });
            }
            Ok(_) if tracked => {}
            Ok(_) => self.in_the_way.push(|| shown(path, "not tracked")),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) => {}
            Err(error) => return Err(error).at("look at", place),
        }
        Ok(())
    }

    /// All that goes from a directory has been seen.
    fn leave(&mut self, dir: &InPlace) -> Result<(), GitError> {
        if dir.goes >= dir.holds {
            return Ok(());
        }
        let mut goes = HashSet::new();
        self.follow.changes.each(|change| {
            if change.old_mode != 0 && is_below(&change.path, &dir.path) {
                goes.insert(change.path.clone());
            }
            Ok::<_, GitError>(())
        })?;
        let place = self.follow.place(&dir.path);
        if let Some(kept) = first_kept(&place, &dir.path, &goes).at("look into", &place)? {
            self.in_the_way.push(|| shown(&kept, "not tracked"));
        }
        Ok(())
    }
}

fn shown(path: &[u8], what: &str) -> String {
    format!("`{}` ({what})", BytePath::from(path))
}

fn is_below(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// How many files are in a directory and those below it.
fn files_in(dir: &Path) -> io::Result<u64> {
    let mut files = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        files += if entry.file_type()?.is_dir() { files_in(&entry.path())? } else { 1 };
    }
    Ok(files)
}

/// The first thing below `dir` that does not go with the update.
fn first_kept(dir: &Path, path: &[u8], goes: &HashSet<Vec<u8>>) -> io::Result<Option<Vec<u8>>> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let inner = [path, b"/", entry.file_name().as_bytes()].concat();
        let kept = if entry.file_type()?.is_dir() {
            first_kept(&entry.path(), &inner, goes)?
        } else {
            (!goes.contains(&inner)).then_some(inner)
        };
        if kept.is_some() {
            return Ok(kept);
        }
    }
    Ok(None)
}

//! The first half: what is in the upper directory, in frames.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cofferdam_tree::walk::{Caps, Entry, Found, Visit, WalkError, Walker, open_up};
use gix_ignore::glob::pattern::Case;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, openat2};

use super::frame::Frame;
use super::tracked::{Both, Known, Tracked};
use super::{aside, names};
use crate::mode::GITLINK;
use crate::{CommitId, ObjectFormat, dirs_above};

const IGNORE_FILE: &[u8] = b".gitignore";
/// As git: a longer ignore file is not read.
const IGNORE_FILE_MOST: u64 = 100 << 20;
/// The kernel's PATH_MAX without its NUL: no git can check out more.
const LONGEST_PATH: usize = 4095;

/// What decides about what is taken.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Rules {
    /// Patterns from outside of the tree, in the form of an ignore file.
    pub excludes: Vec<u8>,
    /// Whether patterns match in any case (`core.ignoreCase`).
    pub ignore_case: bool,
    /// Whether the disk does not say what can be executed (`core.fileMode=false`).
    pub ignore_modes: bool,
    /// The commits that it began at.
    pub began_at: Vec<CommitId>,
    /// Paths that were carried in: never part of the result.
    pub carried: Vec<Vec<u8>>,
    /// Submodules whose files are there.
    pub modules: Vec<Vec<u8>>,
    /// The hash function that indexes are written with.
    pub format: ObjectFormat,
    /// Most entries in the upper directory.
    pub most_entries: u64,
    /// Most bytes in the upper directory.
    pub most_bytes: u64,
}

struct Scan<'a, W> {
    rules: &'a Rules,
    merged: OwnedFd,
    lower: OwnedFd,
    out: W,
    carried: HashSet<&'a [u8]>,
    tracked: Tracked,
    /// Directories of which a sparse checkout has left out a part, and the rest is gone.
    in_part: HashSet<Vec<u8>>,
    ignore: gix_ignore::Search,
    /// Directories whose ignore file is in `ignore`, innermost last.
    inside: Vec<Inside>,
    own_lists: usize,
    /// What is walked is the whole view: most of it is as it was.
    whole: bool,
}

struct Inside {
    path: Vec<u8>,
    /// Ignored itself: it is walked for what is tracked in it, and no pattern can
    /// take anything else back in.
    ignored: bool,
}

enum ScanError {
    Walk(WalkError),
    Io(io::Error),
}

impl From<WalkError> for ScanError {
    fn from(error: WalkError) -> Self {
        ScanError::Walk(error)
    }
}

impl From<io::Error> for ScanError {
    fn from(error: io::Error) -> Self {
        ScanError::Io(error)
    }
}

/// Walks `upper` and writes what changed as frames. `merged` is the whole view
/// and `lower` the view without the upper, both read-only.
///
/// # Errors
/// Only of writing the frames; what else goes wrong is a frame itself.
pub fn scan(
    upper: OwnedFd,
    merged: OwnedFd,
    lower: OwnedFd,
    rules: &Rules,
    out: impl Write,
) -> io::Result<()> {
    scan_from(upper, merged, lower, rules, false, out)
}

/// As [`scan`] of a directory `tree` that began as a copy of `base`, a directory that
/// nobody has written to since.
///
/// # Errors
/// As [`scan`].
pub fn scan_copy(tree: OwnedFd, base: OwnedFd, rules: &Rules, out: impl Write) -> io::Result<()> {
    scan_from(tree.try_clone()?, tree, base, rules, true, out)
}

fn scan_from(
    upper: OwnedFd,
    merged: OwnedFd,
    lower: OwnedFd,
    rules: &Rules,
    whole: bool,
    out: impl Write,
) -> io::Result<()> {
    let caps = Caps { entries: rules.most_entries, bytes: rules.most_bytes, ..Caps::default() };
    let mut ignore = gix_ignore::Search::default();
    ignore.add_patterns_buffer(&rules.excludes, "exclude", None, parse())?;
    let carried = rules.carried.iter().map(Vec::as_slice).collect();
    let compare = |own| Tracked::of(own, &lower, rules.format, rules.ignore_modes);
    let (tracked, unread) = match compare(&upper) {
        Ok(tracked) => (tracked, None),
        // Then the base's is what is known.
        Err(why) => (compare(&lower).unwrap_or_default(), Some(why)),
    };
    let mut scan = Scan {
        carried,
        tracked,
        in_part: HashSet::new(),
        rules,
        merged,
        lower,
        out,
        ignore,
        inside: Vec::new(),
        own_lists: 1,
        whole,
    };
    if let Some(why) = &unread {
        let what = format!("unreadable ({why}): what it tracks or tracks no more does not count");
        scan.leave_out(b".git/index", &what)?;
    }
    scan.tell_of_git(&upper)?;
    scan.enter(b"", false)?;
    let own = upper.try_clone()?;
    let mut walker = Walker::new(upper, caps).opening_up(whole);
    let mut result = walker.walk::<ScanError>(&mut |entry| scan.visit(entry));
    if whole && result.is_ok() {
        let base = scan.lower.try_clone()?;
        result = Walker::new(base, caps).walk::<ScanError>(&mut |entry| scan.was_there(entry));
    }
    if scan.tracked.second_look && unread.is_none() {
        result = result.and_then(|walked| scan.look_again(&own).map(|()| walked));
    }
    let last = match result {
        Ok(_) => Frame::End,
        Err(ScanError::Walk(error)) => Frame::Broken { why: error.to_string().into_bytes() },
        Err(ScanError::Io(error)) => return Err(error),
    };
    last.write(&mut scan.out)?;
    scan.out.flush()
}

fn parse() -> gix_ignore::search::Ignore {
    gix_ignore::search::Ignore { support_precious: false }
}

impl<W: Write> Scan<'_, W> {
    fn visit(&mut self, entry: &Entry<'_>) -> Result<Visit, ScanError> {
        let path = entry.path;
        if self.is_git_dir(path) || self.carried.contains(path) {
            return Ok(Visit::Skip);
        }
        if let Some(module) = self.module_of(path) {
            return self.visit_in_module(entry, &module);
        }
        let below = self.type_in_lower(path)?;
        if matches!(entry.found, Found::Whiteout) && !self.whole {
            let is_dir = below == Some(FileType::Directory);
            if !self.is_left_out(path, is_dir) {
                Frame::Delete { path: path.to_vec(), is_dir }.write(&mut self.out)?;
            }
            return Ok(Visit::Skip);
        }
        let is_dir = matches!(entry.found, Found::Dir { .. });
        self.leave(path);
        let special = matches!(
            entry.found,
            Found::Fifo | Found::Socket | Found::Device { .. } | Found::Whiteout
        );
        // As git's index has it: a path is tracked as what it was.
        let tracked = below.is_some_and(|kind| (kind == FileType::Directory) == is_dir)
            && !self.tracked.dropped.contains(path);
        let ignored =
            self.inside.last().is_some_and(|dir| dir.ignored) || self.is_ignored(path, is_dir);
        let wanted = tracked || self.tracked.added.contains(path) || (special && below.is_some());
        if ignored && !wanted {
            let symlink = matches!(entry.found, Found::Symlink { .. });
            if symlink && below == Some(FileType::Directory) && self.is_behind_a_loop(path)? {
                self.refuse(path, "is an ignored link in a loop, in place of a tracked directory")?;
            } else if below.is_some() {
                let is_dir = below == Some(FileType::Directory);
                Frame::Clear { path: path.to_vec(), is_dir }.write(&mut self.out)?;
            }
            return Ok(Visit::Skip);
        }
        if path.len() > LONGEST_PATH {
            self.refuse(path, "is a path longer than 4095 bytes")?;
            return Ok(Visit::Skip);
        }
        let symlink = matches!(entry.found, Found::Symlink { .. });
        if let Some(why) = names::forbidden(entry.name, symlink) {
            self.refuse(path, why)?;
            return Ok(Visit::Skip);
        }
        match &entry.found {
            Found::Dir { opaque } => {
                let is_dir = below == Some(FileType::Directory);
                let cleared = *opaque && !self.whole && !(is_dir && self.is_left_out(path, true));
                if cleared || (below.is_some() && !is_dir) {
                    Frame::Clear { path: path.to_vec(), is_dir }.write(&mut self.out)?;
                }
                let was_empty = below == Some(FileType::Directory)
                    && is_empty(&self.lower, path)?
                    // In a copy there is one for each submodule, touched or not.
                    && !(self.whole && is_empty(&self.merged, path)?);
                if was_empty || self.rules.modules.iter().any(|module| module == path) {
                    Frame::Submodule { path: path.to_vec() }.write(&mut self.out)?;
                }
                self.enter(path, ignored)?;
                return Ok(Visit::Descend);
            }
            Found::File { executable, size } | Found::HardLink { executable, size, .. } => {
                let executable = match self.rules.ignore_modes {
                    true => self.tracked.executable.contains(path),
                    false => *executable,
                };
                if entry.mode & 0o6000 != 0 {
                    self.refuse(path, "has the setuid or setgid bit")?;
                } else if !(self.whole
                    && below == Some(FileType::RegularFile)
                    && self.is_as_in_base(entry, executable)?)
                {
                    self.file(entry, executable, *size)?;
                }
            }
            Found::Symlink { target } => {
                let same = below == Some(FileType::Symlink)
                    && rustix::fs::readlinkat(&self.lower, path, Vec::new())
                        .is_ok_and(|theirs| theirs.as_bytes() == target.as_slice());
                if !(self.whole && same) {
                    Frame::Symlink { path: path.to_vec(), target: target.clone(), same }
                        .write(&mut self.out)?;
                }
            }
            Found::Fifo => self.special(path, below, "a fifo")?,
            Found::Socket => self.special(path, below, "a socket")?,
            Found::Device { .. } | Found::Whiteout => self.special(path, below, "a device")?,
        }
        Ok(Visit::Skip)
    }

    /// The `.git` of the context, or of a submodule.
    fn is_git_dir(&self, path: &[u8]) -> bool {
        let Some(above) = path.strip_suffix(b".git") else { return false };
        match above.strip_suffix(b"/") {
            Some(above) => self.rules.modules.iter().any(|module| module == above),
            None => above.is_empty(),
        }
    }

    /// The submodule that a path is inside of.
    fn module_of(&self, path: &[u8]) -> Option<Vec<u8>> {
        let is_inside = |module: &&Vec<u8>| {
            path.strip_prefix(module.as_slice()).is_some_and(|rest| rest.starts_with(b"/"))
        };
        self.rules.modules.iter().find(is_inside).cloned()
    }

    fn refuse_module(&mut self, module: &[u8]) -> io::Result<()> {
        self.refuse(module, "is a submodule, and changes inside one can't land")
    }

    /// What lies inside of a submodule may be ignored there or be as it was: nothing
    /// of it is taken.
    fn visit_in_module(&mut self, entry: &Entry<'_>, module: &[u8]) -> Result<Visit, ScanError> {
        let path = entry.path;
        let below = self.type_in_lower(path)?;
        let is_dir = matches!(entry.found, Found::Dir { .. });
        self.leave(path);
        let ignored =
            self.inside.last().is_some_and(|dir| dir.ignored) || self.is_ignored(path, is_dir);
        let same = match &entry.found {
            Found::Dir { opaque } => {
                let cleared = *opaque && !self.whole && below.is_some();
                if !cleared && below.is_none_or(|kind| kind == FileType::Directory) {
                    self.enter(path, ignored)?;
                    return Ok(Visit::Descend);
                }
                false
            }
            Found::File { executable, .. } | Found::HardLink { executable, .. } => {
                below == Some(FileType::RegularFile) && self.is_as_in_base(entry, *executable)?
            }
            Found::Symlink { target } => {
                below == Some(FileType::Symlink)
                    && rustix::fs::readlinkat(&self.lower, path, Vec::new())
                        .is_ok_and(|theirs| theirs.as_bytes() == target.as_slice())
            }
            Found::Whiteout => self.whole,
            Found::Fifo | Found::Socket | Found::Device { .. } => below.is_none(),
        };
        if !same && (below.is_some() || !ignored) {
            self.refuse_module(module)?;
        }
        Ok(Visit::Skip)
    }

    /// Where deletions leave no mark: an entry of the base.
    fn was_there(&mut self, entry: &Entry<'_>) -> Result<Visit, ScanError> {
        if self.is_git_dir(entry.path) || self.carried.contains(entry.path) {
            return Ok(Visit::Skip);
        }
        let is_dir = matches!(entry.found, Found::Dir { .. });
        match (self.type_in(&self.merged, entry.path)?, self.module_of(entry.path)) {
            (None, Some(module)) => {
                self.refuse_module(&module)?;
                Ok(Visit::Skip)
            }
            (None, None) if self.tracked.left_out.contains(entry.path) => {
                Ok(if is_dir { Visit::Descend } else { Visit::Skip })
            }
            (None, None) => {
                Frame::Delete { path: entry.path.to_vec(), is_dir }.write(&mut self.out)?;
                Ok(Visit::Skip)
            }
            (Some(FileType::Directory), _) if is_dir => Ok(Visit::Descend),
            // What is there instead was told of.
            (Some(_), _) => Ok(Visit::Skip),
        }
    }

    /// Whether a sparse checkout left a path out, or a part of what is in a directory:
    /// the rest is looked for later.
    fn is_left_out(&mut self, path: &[u8], is_dir: bool) -> bool {
        let left_out = self.tracked.left_out.contains(path);
        if left_out && is_dir {
            self.in_part.insert(path.to_vec());
        }
        left_out
    }

    /// Goes through what the base has for what no walk sees: a file that is as it was and
    /// that the task tracks no more, or with another mode; one that is gone from a
    /// directory of which a sparse checkout has left out the rest.
    fn look_again(&mut self, upper: &OwnedFd) -> Result<(), ScanError> {
        let both = Both::open(upper, &self.lower, self.rules.format)?;
        both.each(|own, base| {
            if let Some(own) = own.filter(|own| own.skips)
                && !self.tracked.left_out.contains(&own.path)
                && self.type_in(&self.merged, &own.path)?.is_none()
            {
                self.refuse(&own.path, "is left out by a sparse checkout and not as it was")?;
            }
            match base {
                Some(base) if !self.carried.contains(base.path.as_slice()) => {
                    self.look_at(upper, own, base)
                }
                _ => Ok(()),
            }
        })
    }

    fn look_at(
        &mut self,
        upper: &OwnedFd,
        own: Option<&Known>,
        base: &Known,
    ) -> Result<(), ScanError> {
        let path = base.path.as_slice();
        let Some(there) = self.type_in(&self.merged, path)? else {
            if dirs_above(path).any(|dir| self.in_part.contains(dir))
                && !self.tracked.left_out.contains(path)
            {
                let is_dir = base.mode == GITLINK;
                Frame::Delete { path: path.to_vec(), is_dir }.write(&mut self.out)?;
            }
            return Ok(());
        };
        if self.whole || there == FileType::Directory || self.type_in(upper, path)?.is_some() {
            return Ok(());
        }
        match own {
            None if self.is_ignored_there(path)? => {
                Frame::Delete { path: path.to_vec(), is_dir: false }.write(&mut self.out)?;
            }
            Some(own) if self.rules.ignore_modes && own.has_other_bit(base) => {
                let executable = self.tracked.executable.contains(path);
                Frame::Mode { path: path.to_vec(), executable }.write(&mut self.out)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// As [`Scan::is_ignored`] of a file anywhere: its directories need not have been
    /// walked.
    fn is_ignored_there(&mut self, path: &[u8]) -> io::Result<bool> {
        self.leave(path);
        let known = self.inside.last().map_or(0, |dir| dir.path.len());
        for dir in dirs_above(path).skip_while(|dir| dir.len() <= known) {
            let above = self.inside.last().is_some_and(|dir| dir.ignored);
            let ignored = above || self.is_ignored(dir, true);
            self.enter(dir, ignored)?;
        }
        Ok(self.inside.last().is_some_and(|dir| dir.ignored) || self.is_ignored(path, false))
    }

    /// Tells what the task did in its git that can't be taken or is not.
    fn tell_of_git(&mut self, upper: &OwnedFd) -> io::Result<()> {
        if let Some((path, why)) = self.tracked.refused.take() {
            self.refuse(&path, why)?;
        }
        for path in std::mem::take(&mut self.tracked.in_conflict) {
            self.leave_out(&path, "in conflict in the task's git, and taken as it is on disk")?;
        }
        for (path, what) in aside::unfinished(upper) {
            self.leave_out(path, what)?;
        }
        for (path, what) in aside::of(upper, &self.rules.began_at) {
            Frame::Aside { path, what: what.into() }.write(&mut self.out)?;
        }
        Ok(())
    }

    fn leave_out(&mut self, path: &[u8], what: &str) -> io::Result<()> {
        Frame::LeftOut { path: path.to_vec(), what: what.into() }.write(&mut self.out)
    }

    /// Whether a file's content and mode are those that the base has.
    fn is_as_in_base(&self, entry: &Entry<'_>, executable: bool) -> Result<bool, ScanError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let theirs = openat2(&self.lower, entry.path, flags, Mode::empty(), resolve)
            .map_err(io::Error::from)?;
        let mode =
            Mode::from_raw_mode(rustix::fs::fstat(&theirs).map_err(io::Error::from)?.st_mode);
        if mode.contains(Mode::XUSR) != executable {
            return Ok(false);
        }
        let ours = entry.open_file()?;
        let (ours, theirs) = (io::BufReader::new(ours), io::BufReader::new(File::from(theirs)));
        Ok(is_equal(ours, theirs)?)
    }

    fn refuse(&mut self, path: &[u8], why: &str) -> io::Result<()> {
        Frame::Refused { path: path.to_vec(), why: why.into() }.write(&mut self.out)
    }

    /// git does not track these; in place of something tracked they would be a
    /// silent deletion.
    fn special(&mut self, path: &[u8], below: Option<FileType>, what: &str) -> io::Result<()> {
        if below.is_some() {
            self.refuse(path, &format!("is {what} in place of a tracked file"))
        } else {
            self.leave_out(path, what)
        }
    }

    fn file(&mut self, entry: &Entry<'_>, executable: bool, size: u64) -> Result<(), ScanError> {
        let attributes = self.base_has_attributes_for(entry.path)?;
        let file = entry.open_file()?;
        let path = entry.path.to_vec();
        Frame::File { path, executable, size, attributes }.write(&mut self.out)?;
        let copied = io::copy(&mut file.take(size), &mut self.out)?;
        if copied != size {
            // The frame's promise can't be kept any more: end the conversation.
            return Err(io::Error::other("a file became shorter while it was read").into());
        }
        Ok(())
    }

    /// Whether the base has an attributes file on the way to `path`.
    fn base_has_attributes_for(&self, path: &[u8]) -> io::Result<bool> {
        let dirs = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at + 1);
        for end in std::iter::once(0).chain(dirs) {
            let file = [&path[..end], b".gitattributes"].concat();
            if self.type_in_lower(&file)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn type_in_lower(&self, path: &[u8]) -> io::Result<Option<FileType>> {
        self.type_in(&self.lower, path)
    }

    fn type_in(&self, dir: &OwnedFd, path: &[u8]) -> io::Result<Option<FileType>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match openat2(dir, path, flags, Mode::empty(), resolve) {
            Ok(fd) => Ok(Some(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode))),
            Err(
                rustix::io::Errno::NOENT
                | rustix::io::Errno::NOTDIR
                | rustix::io::Errno::LOOP
                | rustix::io::Errno::NAMETOOLONG
                | rustix::io::Errno::XDEV,
            ) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a tracked path below `dir` can't be looked up any more because the
    /// links on the way go round. git then keeps the path as it was and prints an
    /// error: it can't tell what became of it, and neither can we.
    fn is_behind_a_loop(&self, dir: &[u8]) -> io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let open = openat2(&self.lower, dir, flags, Mode::empty(), beneath)?;
        for entry in rustix::fs::Dir::new(open)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let path = [dir, b"/", name].concat();
            let look = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
            let found = openat2(&self.merged, path.as_slice(), look, Mode::empty(), resolve);
            let is_dir = entry.file_type() == FileType::Directory;
            if found.is_err_and(|error| error == rustix::io::Errno::LOOP)
                || (is_dir && self.is_behind_a_loop(&path)?)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Forgets ignore files of directories that `path` is not in.
    fn leave(&mut self, path: &[u8]) {
        while let Some(dir) = self.inside.last() {
            let dir = dir.path.as_slice();
            let within = path.starts_with(dir) && path.get(dir.len()) == Some(&b'/');
            if dir.is_empty() || within {
                break;
            }
            self.inside.pop();
        }
        self.ignore.patterns.truncate(self.own_lists + self.inside.len());
    }

    /// Takes in the ignore file of a directory, as the task sees it.
    fn enter(&mut self, dir: &[u8], ignored: bool) -> io::Result<()> {
        let mut file = dir.to_vec();
        if !dir.is_empty() {
            file.push(b'/');
        }
        file.extend(IGNORE_FILE);
        if self.whole {
            // Read before its turn comes. What it says is not known when it can't be read.
            let _ = open_up(&self.merged, &file);
        }
        let bytes = read_plain_file(&self.merged, &file)?;
        let source = Path::new(std::ffi::OsStr::from_bytes(&file)).to_owned();
        self.ignore.add_patterns_buffer(&bytes, source, Some(Path::new("")), parse())?;
        self.inside.push(Inside { path: dir.to_vec(), ignored });
        Ok(())
    }

    fn is_ignored(&self, path: &[u8], is_dir: bool) -> bool {
        let case = if self.rules.ignore_case { Case::Fold } else { Case::Sensitive };
        self.ignore
            .pattern_matching_relative_path(path.into(), Some(is_dir), case)
            .is_some_and(|hit| !hit.pattern.is_negative())
    }
}

/// A tree has no empty directories: one in the lower layers is a submodule.
fn is_empty(top: &OwnedFd, path: &[u8]) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let dir = openat2(top, path, flags, Mode::empty(), resolve)?;
    for entry in rustix::fs::Dir::new(dir)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether two readers give the same bytes.
fn is_equal(mut one: impl BufRead, mut other: impl BufRead) -> io::Result<bool> {
    loop {
        let (left, right) = (one.fill_buf()?, other.fill_buf()?);
        let count = left.len().min(right.len());
        if count == 0 {
            return Ok(left.len() == right.len());
        }
        if left[..count] != right[..count] {
            return Ok(false);
        }
        one.consume(count);
        other.consume(count);
    }
}

/// A regular file's content; nothing when it is missing or anything else (git
/// does not follow a link there either).
pub(super) fn read_plain_file(dir: &impl AsFd, path: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some((file, 0..=IGNORE_FILE_MOST)) = open_plain_file(dir, path)? {
        file.take(IGNORE_FILE_MOST).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// A regular file and its size; none when it is missing or anything else.
pub(super) fn open_plain_file(dir: &impl AsFd, path: &[u8]) -> io::Result<Option<(File, u64)>> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let Ok(fd) = openat2(dir, path, flags, Mode::empty(), resolve) else { return Ok(None) };
    let stat = rustix::fs::fstat(&fd)?;
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    let is_file = FileType::from_raw_mode(stat.st_mode).is_file();
    Ok(is_file.then(|| (File::from(fd), size)))
}

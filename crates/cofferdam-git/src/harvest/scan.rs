//! The first half: what is in the upper directory, in frames.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::BuildHasher;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cofferdam_tree::walk::{Caps, Entry, Found, Visit, WalkError, Walker};
use gix_ignore::glob::pattern::Case;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, openat2};

use super::frame::Frame;
use super::names;
use crate::ObjectFormat;
use crate::index::Index;

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
    forced: Forced,
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
    let (forced, unread) = match tracked_by_force(&upper, &lower, rules.format) {
        Ok(forced) => (forced, None),
        Err(why) => (Forced::default(), Some(why)),
    };
    let inside = Vec::new();
    let mut scan =
        Scan { carried, forced, rules, merged, lower, out, ignore, inside, own_lists: 1, whole };
    if let Some(why) = unread {
        let what = format!("unreadable ({why}): ignored files that it tracks are not taken");
        Frame::LeftOut { path: b".git/index".to_vec(), what: what.into_bytes() }
            .write(&mut scan.out)?;
    }
    scan.enter(b"", false)?;
    let mut result = Walker::new(upper, caps).walk::<ScanError>(&mut |entry| scan.visit(entry));
    if whole && result.is_ok() {
        let base = scan.lower.try_clone()?;
        result = Walker::new(base, caps).walk::<ScanError>(&mut |entry| scan.was_there(entry));
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
            Frame::Delete { path: path.to_vec(), is_dir }.write(&mut self.out)?;
            return Ok(Visit::Skip);
        }
        let is_dir = matches!(entry.found, Found::Dir { .. });
        self.leave(path);
        let special = matches!(
            entry.found,
            Found::Fifo | Found::Socket | Found::Device { .. } | Found::Whiteout
        );
        // As git's index has it: a path is tracked as what it was.
        let tracked = below.is_some_and(|kind| (kind == FileType::Directory) == is_dir);
        let ignored =
            self.inside.last().is_some_and(|dir| dir.ignored) || self.is_ignored(path, is_dir);
        let wanted = tracked || self.forced.contains(path) || (special && below.is_some());
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
                if (*opaque && !self.whole) || below.is_some_and(|kind| kind != FileType::Directory)
                {
                    let is_dir = below == Some(FileType::Directory);
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
                if entry.mode & 0o6000 != 0 {
                    self.refuse(path, "has the setuid or setgid bit")?;
                } else if !(self.whole
                    && below == Some(FileType::RegularFile)
                    && self.is_as_in_base(entry, *executable)?)
                {
                    self.file(entry, *executable, *size)?;
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
            (None, None) => {
                Frame::Delete { path: entry.path.to_vec(), is_dir }.write(&mut self.out)?;
                Ok(Visit::Skip)
            }
            (Some(FileType::Directory), _) if is_dir => Ok(Visit::Descend),
            // What is there instead was told of.
            (Some(_), _) => Ok(Visit::Skip),
        }
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
            Frame::LeftOut { path: path.to_vec(), what: what.into() }.write(&mut self.out)
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

/// Paths that only the task's own index tracks, and the directories above them, each
/// as a keyed hash: there can be a million.
#[derive(Default)]
struct Forced {
    hashes: HashSet<u64>,
    key: RandomState,
}

impl Forced {
    fn insert(&mut self, path: &[u8]) {
        self.hashes.insert(self.key.hash_one(path));
    }

    fn contains(&self, path: &[u8]) -> bool {
        !self.hashes.is_empty() && self.hashes.contains(&self.key.hash_one(path))
    }
}

/// What the task's index tracks and the base's does not, with the directories above:
/// `git add -f` of something ignored is a decision of the task's. Its index is
/// bytes like any others, read by our own parser.
fn tracked_by_force(
    upper: &OwnedFd,
    lower: &OwnedFd,
    format: ObjectFormat,
) -> Result<Forced, String> {
    let open = |dir| -> Result<Option<Index<io::BufReader<File>>>, String> {
        let file = open_plain_file(dir, b".git/index").map_err(|error| error.to_string())?;
        let Some((file, 1..)) = file else { return Ok(None) };
        let index = Index::open(io::BufReader::with_capacity(1 << 16, file), format);
        index.map(Some).map_err(|error| error.to_string())
    };
    let mut forced = Forced::default();
    let Some(mut own) = open(upper)? else { return Ok(forced) };
    let mut base = open(lower)?;
    let mut known = Vec::new();
    let mut last = Vec::new();
    loop {
        let Some(entry) = own.next().map_err(|error| error.to_string())? else {
            return Ok(forced);
        };
        // More than once, where a merge left a conflict.
        if entry.path < last.as_slice() {
            return Err("its entries are in no order".into());
        }
        last.clear();
        last.extend(entry.path);
        while base.is_some() && known < last {
            match base.as_mut().map(Index::next).transpose().map_err(|error| error.to_string())? {
                Some(Some(entry)) => {
                    known.clear();
                    known.extend(entry.path);
                }
                _ => base = None,
            }
        }
        if known == last {
            continue;
        }
        for (at, _) in last.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            forced.insert(&last[..at]);
        }
        forced.insert(&last);
    }
}

/// A regular file's content; nothing when it is missing or anything else (git
/// does not follow a link there either).
fn read_plain_file(dir: &impl AsFd, path: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some((file, 0..=IGNORE_FILE_MOST)) = open_plain_file(dir, path)? {
        file.take(IGNORE_FILE_MOST).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// A regular file and its size; none when it is missing or anything else.
fn open_plain_file(dir: &impl AsFd, path: &[u8]) -> io::Result<Option<(File, u64)>> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let Ok(fd) = openat2(dir, path, flags, Mode::empty(), resolve) else { return Ok(None) };
    let stat = rustix::fs::fstat(&fd)?;
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    let is_file = FileType::from_raw_mode(stat.st_mode).is_file();
    Ok(is_file.then(|| (File::from(fd), size)))
}

//! One file, replaced as a whole.
//!
//! A reader that opens it sees the old content or the new one, never a part of either,
//! and one that has it open goes on reading the old one. Steps, each of them durable
//! before the next:
//!
//! 1. [`FileTarget::stage`] makes a file beside it, in the same directory, copies the
//!    content there (as a reflink where the file system has them, with its holes
//!    elsewhere), gives it the owner, permissions and extended attributes of what it
//!    replaces, and syncs it.
//! 2. [`FileTarget::commit`] reads what is there once more and compares it with what was
//!    there when the task began; [`FileTarget::commit_seen`] does so unless it can't have
//!    changed. Then the staged file takes the name, by a rename, or
//!    where nothing was, by one that fails when there is something by now.
//! 3. The directory is synced: without that the old content can be back after a power
//!    cut.
//!
//! Between the comparison and the rename somebody who takes no lock can still write; no
//! system call compares and renames. The window is that of two system calls, in which
//! what is there has to have kept its inode and the time of its last change.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cofferdam_failpoint::hit;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, openat, unlinkat};
use rustix::io::Errno;

use super::beside::{self, Behind};
use super::{Fingerprint, Recovered, Stamp, Step, TargetError, copy};

/// How often a file that is written meanwhile is read again.
pub(super) const TRIES: u32 = 5;

/// What is being done, in messages.
const READ: &str = "read the file beside";

/// A file that is to be replaced, or made, by its place.
#[derive(Debug)]
pub struct FileTarget {
    pub(super) dir: OwnedFd,
    pub(super) name: OsString,
    path: PathBuf,
}

/// What is at a target's place.
#[derive(Debug)]
pub struct Seen {
    /// Its content and permissions.
    pub fingerprint: Fingerprint,
    pub(super) file: File,
    pub(super) version: Version,
    stamp: Option<Stamp>,
}

/// Inode, and the time of the last change of anything: nobody can set that.
pub(super) type Version = (u64, i64, i64);

/// How a file is made beside the target.
pub(super) struct Making<'a> {
    pub(super) temp: &'a OsStr,
    /// What it replaces, whose attributes it gets.
    pub(super) old: Option<&'a File>,
    /// About how large it will be, in bytes.
    pub(super) size: u64,
    /// As in [`Content`].
    pub(super) executable: bool,
    /// As in [`Content`].
    pub(super) umask: u32,
    /// Whether it is synced here, and not later with others.
    pub(super) sync: bool,
}

/// What is told how many bytes were copied or read, and says whether to go on.
pub(super) type GoOn<'a> = &'a mut dyn FnMut(u64) -> bool;

/// A verified result that is to become the target's content.
#[derive(Debug, Clone, Copy)]
pub struct Content<'a> {
    /// What is copied, from its beginning.
    pub file: &'a File,
    /// Whether it is a program. Other permissions are those of what is replaced.
    pub executable: bool,
    /// Permission bits that a file which replaces nothing does not get.
    pub umask: u32,
}

impl Seen {
    /// The file itself, open for reading.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What tells [`FileTarget::commit_seen`] that it need not be read again, where there
    /// can be such a thing.
    #[must_use]
    pub fn stamp(&self) -> Option<Stamp> {
        self.stamp
    }
}

impl FileTarget {
    /// The target at an absolute path, whose directory must exist. A symbolic link stands
    /// for what it leads to, which must exist as well.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn open(path: &Path) -> Result<FileTarget, TargetError> {
        let unsuitable = |found| TargetError::Unsuitable { path: path.into(), found };
        let (parent, name) = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if path.is_absolute() => (parent, name),
            _ => return Err(unsuitable("not the absolute path of a file")),
        };
        let is_link = path.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
        let place = if is_link {
            match std::fs::canonicalize(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(unsuitable("a symbolic link to nothing"));
                }
                place => place.step("find", path)?,
            }
        } else {
            std::fs::canonicalize(parent).step("find the directory of", path)?.join(name)
        };
        let target = FileTarget::at(&place)?;
        target.file()?;
        Ok(target)
    }

    /// The target at a path that [`FileTarget::path`] gave. Whatever is there now, it is not
    /// followed: [`FileTarget::look`] tells.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn at(place: &Path) -> Result<FileTarget, TargetError> {
        let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
            return Err(TargetError::Unsuitable { path: place.into(), found: "a directory" });
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(parent, flags, Mode::empty());
        let dir = dir.step("open the directory of", place)?;
        Ok(FileTarget::of(dir, name, place.to_owned()))
    }

    /// The target `name` in an open directory, called `path` in messages.
    pub(super) fn of(dir: OwnedFd, name: &OsStr, path: PathBuf) -> FileTarget {
        FileTarget { dir, name: name.to_owned(), path }
    }

    /// Where it is, absolute, without symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens what is there now.
    pub(super) fn file(&self) -> Result<Option<File>, TargetError> {
        let unsuitable = |found| Err(TargetError::Unsuitable { path: self.path.clone(), found });
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match openat(&self.dir, &self.name, flags | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return unsuitable("a symbolic link"),
            // A socket can't be opened at all, nor a device without a driver.
            Err(Errno::NXIO | Errno::NODEV) => return unsuitable("not a regular file"),
            file => File::from(file.step("open", &self.path)?),
        };
        let stat = rustix::fs::fstat(&file).step("look at", &self.path)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(Some(file)),
            FileType::Directory => unsuitable("a directory"),
            _ => unsuitable("not a regular file"),
        }
    }

    /// Reads what is there now; none when nothing is. `go_on` is told how many bytes were
    /// read.
    ///
    /// # Errors
    /// [`TargetError::Io`] with [`io::ErrorKind::Interrupted`] when `go_on` said no;
    /// [`TargetError::Drifted`] when it is written all the time.
    pub fn look(&self, go_on: &mut dyn FnMut(u64) -> bool) -> Result<Option<Seen>, TargetError> {
        for _ in 0..TRIES {
            let Some(file) = self.file()? else { return Ok(None) };
            let before = version(&file).step("look at", &self.path)?;
            let stamp = Stamp::before_reading(&file);
            let fingerprint = Fingerprint::of(&file, go_on).step("read", &self.path)?;
            if version(&file).step("look at", &self.path)? == before {
                return Ok(Some(Seen { fingerprint, file, version: before, stamp }));
            }
        }
        Err(self.drifted("is being written to"))
    }

    /// That it is not what it was when the task began.
    #[must_use]
    pub fn has_changed(&self) -> TargetError {
        self.drifted("has changed since the task began")
    }

    pub(super) fn drifted(&self, how: &'static str) -> TargetError {
        TargetError::Drifted { path: self.path.clone(), how }
    }

    /// Makes `temp` beside it, with this content and all else as in `old`, and syncs it.
    /// Gives what the target will be. `go_on` is told how many bytes were copied or read.
    ///
    /// # Errors
    /// [`TargetError::Io`]; `temp` is gone then.
    pub fn stage(
        &self,
        temp: &OsStr,
        content: Content<'_>,
        old: Option<&Seen>,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Fingerprint, TargetError> {
        self.stage_as(temp, content, old.map(|old| &old.file), go_on)
    }

    pub(super) fn stage_as(
        &self,
        temp: &OsStr,
        content: Content<'_>,
        old: Option<&File>,
        go_on: GoOn<'_>,
    ) -> Result<Fingerprint, TargetError> {
        let Content { file, executable, umask } = content;
        let size = file.metadata().step("copy the result beside", &self.path)?.len();
        self.make(
            Making { temp, old, size, executable, umask, sync: true },
            &mut |made, go_on| {
                hit("target:file:copy").step("copy the result beside", &self.path)?;
                copy::content(file, made, go_on).step("copy the result beside", &self.path)
            },
            go_on,
        )
    }

    /// As [`FileTarget::stage`], with what `write` gives it, from the beginning to the end.
    pub(super) fn make(
        &self,
        making: Making<'_>,
        write: &mut dyn FnMut(&File, GoOn<'_>) -> Result<(), TargetError>,
        go_on: GoOn<'_>,
    ) -> Result<Fingerprint, TargetError> {
        hit("target:file:create").step("make a file beside", &self.path)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let flags = flags | OFlags::CLOEXEC;
        let made = openat(&self.dir, making.temp, flags, Mode::RUSR | Mode::WUSR);
        let made = File::from(made.step("make a file beside", &self.path)?);
        let finished = std::thread::scope(|scope| {
            let behind = beside::pays(making.size)
                .then(|| Behind::start(scope, &made, making.size))
                .flatten();
            let Some(behind) = behind else {
                write(&made, go_on)?;
                self.finish(&made, &making)?;
                return Fingerprint::of(&made, go_on).step(READ, &self.path);
            };
            write(&made, &mut |bytes| go_on(bytes + behind.more()))?;
            let behind = behind.written();
            self.finish(&made, &making)?;
            behind.fingerprint(go_on).step(READ, &self.path)
        });
        if finished.is_err() {
            let _ = unlinkat(&self.dir, making.temp, AtFlags::empty());
        }
        finished
    }

    fn finish(&self, made: &File, making: &Making<'_>) -> Result<(), TargetError> {
        hit("target:file:attributes").step("keep the attributes of", &self.path)?;
        let mode = match making.old {
            Some(old) => {
                let old = copy::attributes(old, made).step("keep the attributes of", &self.path)?;
                // Who trusted the old content with set-id bits did not see this one.
                let kept = old.mode() & 0o666;
                if making.executable { kept | (kept & 0o444) >> 2 } else { kept }
            }
            None if making.executable => 0o777 & !making.umask,
            None => 0o666 & !making.umask,
        };
        let set = rustix::fs::fchmod(made, Mode::from_raw_mode(mode));
        set.step("set the permissions of", &self.path)?;
        if making.sync {
            hit("target:file:sync").step("sync the file beside", &self.path)?;
            made.sync_all().step("sync the file beside", &self.path)?;
        }
        Ok(())
    }

    /// Gives `temp` the target's name, if what is there is still `old`.
    ///
    /// # Errors
    /// [`TargetError::Drifted`] when it is not, and nothing has changed; `temp` is still
    /// there. After [`TargetError::Io`] only [`FileTarget::recover`] can tell on which
    /// side of the commit point it is.
    pub fn commit(&self, temp: &OsStr, old: Option<&Fingerprint>) -> Result<(), TargetError> {
        self.commit_seen(temp, old, None)
    }

    /// As [`FileTarget::commit`], for who still has the [`Seen::stamp`] of the look that
    /// `old` is from. What is there is read again unless that proves it unchanged; the
    /// module `stamp` says when it can, and what that relies on.
    ///
    /// # Errors
    /// As there.
    pub fn commit_seen(
        &self,
        temp: &OsStr,
        old: Option<&Fingerprint>,
        stamp: Option<Stamp>,
    ) -> Result<(), TargetError> {
        hit("target:file:compare").step("look at", &self.path)?;
        if let (Some(_), Some(stamp)) = (old, stamp)
            && let Some(stat) = self.stat()?
            && stamp.is_that_of(&stat)
        {
            self.swap(&self.dir, temp, Some(of_stat(&stat)))?;
            return self.sync();
        }
        let now = self.look(&mut |_| true)?;
        match (&now, old) {
            (None, None) => {}
            (Some(now), Some(old)) if now.fingerprint == *old => {}
            (None, Some(_)) => return Err(self.drifted("has gone since the task began")),
            (Some(_), None) => return Err(self.drifted("has appeared since the task began")),
            (Some(_), Some(_)) => return Err(self.drifted("has changed since the task began")),
        }
        self.swap(&self.dir, temp, now.as_ref().map(|seen| seen.version))?;
        self.sync()
    }

    /// Gives `temp`, in the directory `from`, the target's name, if what is there is of this
    /// version. The directories are not synced.
    pub(super) fn swap(
        &self,
        from: impl AsFd,
        temp: &OsStr,
        old: Option<Version>,
    ) -> Result<(), TargetError> {
        hit("target:file:rename").step("replace", &self.path)?;
        if let Some(old) = old {
            if self.version()? != Some(old) {
                return Err(self.has_changed());
            }
            let renamed = rustix::fs::renameat(from, temp, &self.dir, &self.name);
            return renamed.step("replace", &self.path);
        }
        match self.create(from, temp) {
            Err(Errno::EXIST) => Err(self.drifted("has appeared since the task began")),
            created => created.step("make", &self.path),
        }
    }

    /// That of what has the target's name now, whatever it is.
    pub(super) fn version(&self) -> Result<Option<Version>, TargetError> {
        Ok(self.stat()?.as_ref().map(of_stat))
    }

    fn stat(&self) -> Result<Option<rustix::fs::Stat>, TargetError> {
        match rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            stat => Ok(Some(stat.step("look at", &self.path)?)),
        }
    }

    /// As a rename that replaces nothing. File systems that don't know one say so in
    /// several ways; a hard link does as well.
    fn create(&self, from: impl AsFd, temp: &OsStr) -> Result<(), Errno> {
        let (dir, name) = (&self.dir, &self.name);
        match rustix::fs::renameat_with(&from, temp, dir, name, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                rustix::fs::linkat(&from, temp, dir, name, AtFlags::empty())?;
                unlinkat(&from, temp, AtFlags::empty())
            }
            renamed => renamed,
        }
    }

    /// Makes the names in its directory durable.
    ///
    /// # Errors
    /// [`TargetError::Io`].
    pub fn sync(&self) -> Result<(), TargetError> {
        hit("target:file:sync-dir").step("sync the directory of", &self.path)?;
        rustix::fs::fsync(&self.dir).step("sync the directory of", &self.path)?;
        hit("target:file:done").step("sync the directory of", &self.path)
    }

    /// Tells what a process did that died, or failed, after it wrote down that it would
    /// replace `old` with `new`, staged as `temp`. Can be repeated.
    ///
    /// # Errors
    /// When that can't be told now; nothing has changed.
    pub fn recover(
        &self,
        temp: &OsStr,
        old: Option<&Fingerprint>,
        new: &Fingerprint,
    ) -> Result<Recovered, TargetError> {
        if let Some(linked) = self.staged(temp)? {
            self.unstage(temp)?;
            return Ok(if linked { Recovered::Committed } else { Recovered::NotCommitted });
        }
        let now = match self.look(&mut |_| true) {
            Err(TargetError::Unsuitable { .. }) => return Ok(Recovered::ChangedSince),
            now => now?.map(|seen| seen.fingerprint),
        };
        if now.as_ref() == Some(new) {
            self.sync()?;
            Ok(Recovered::Committed)
        } else if now.as_ref() == old {
            // A power cut took the name of what was staged, or the rename.
            Ok(Recovered::NotCommitted)
        } else {
            Ok(Recovered::ChangedSince)
        }
    }

    /// Whether what was staged is there, and then, whether it has the target's name too:
    /// which it has only between the link and the unlink of a creation.
    fn staged(&self, temp: &OsStr) -> Result<Option<bool>, TargetError> {
        let inode =
            |name: &OsStr| match rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => Ok(None),
                stat => Ok(Some(stat.step("look at", &self.path)?.st_ino)),
            };
        let staged = inode(temp)?;
        Ok(match staged {
            None => None,
            Some(_) => Some(staged == inode(&self.name)?),
        })
    }

    /// As [`FileTarget::recover`], but only forward: what is staged still takes its name, if
    /// what is there is still `old`. For one of several whose commit point was before. Can
    /// be repeated.
    ///
    /// # Errors
    /// When that can't be done now.
    pub fn complete(
        &self,
        temp: &OsStr,
        old: Option<&Fingerprint>,
        new: &Fingerprint,
    ) -> Result<Recovered, TargetError> {
        if self.staged(temp)? != Some(false) {
            return self.recover(temp, old, new);
        }
        match self.commit(temp, old) {
            Ok(()) => Ok(Recovered::Committed),
            Err(TargetError::Drifted { .. } | TargetError::Unsuitable { .. }) => {
                self.unstage(temp)?;
                Ok(Recovered::ChangedSince)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes what was staged, if it is there.
    ///
    /// # Errors
    /// [`TargetError::Io`].
    pub fn unstage(&self, temp: &OsStr) -> Result<(), TargetError> {
        hit("target:file:unstage").step("remove the file beside", &self.path)?;
        match unlinkat(&self.dir, temp, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => {
                removed.step("remove the file beside", &self.path)?;
                self.sync()
            }
        }
    }
}

/// Inode, and the time of the last change of anything: nobody can set that.
pub(super) fn version(file: &File) -> io::Result<Version> {
    let meta = file.metadata()?;
    Ok((meta.ino(), meta.ctime(), meta.ctime_nsec()))
}

pub(super) fn of_stat(stat: &rustix::fs::Stat) -> Version {
    (stat.st_ino, stat.st_ctime, i64::try_from(stat.st_ctime_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::XattrFlags;

    use super::copy::BUFFER;
    use super::*;

    struct Bed {
        dir: tempfile::TempDir,
    }

    impl Bed {
        fn new() -> Bed {
            Bed { dir: tempfile::tempdir().expect("temporary directory") }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
            std::fs::write(self.path(name), content).expect("write");
            self.path(name)
        }

        fn target(&self, name: &str) -> FileTarget {
            FileTarget::open(&self.path(name)).expect("target")
        }

        /// The result of a task, staged as `.staged`.
        fn stage(&self, target: &FileTarget, content: &str, executable: bool) -> Fingerprint {
            let old = target.look(&mut |_| true).expect("look");
            let file = File::open(self.put("result", content)).expect("open");
            let content = Content { file: &file, executable, umask: 0o027 };
            target.stage(STAGED.as_ref(), content, old.as_ref(), &mut |_| true).expect("stage")
        }

        fn names(&self) -> Vec<String> {
            let list = std::fs::read_dir(self.dir.path()).expect("list");
            let mut names: Vec<String> = list
                .map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8"))
                .collect();
            names.sort();
            names
        }
    }

    const STAGED: &str = ".staged";

    fn fingerprint(target: &FileTarget) -> Option<Fingerprint> {
        target.look(&mut |_| true).expect("look").map(|seen| seen.fingerprint)
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().expect("stat").permissions().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    }

    #[test]
    fn a_file_is_replaced_and_keeps_its_attributes() {
        let bed = Bed::new();
        let path = bed.put("report", "old");
        set_mode(&path, 0o4640);
        let on_tmpfs = rustix::fs::setxattr(&path, "user.note", b"kept", XattrFlags::empty());
        let target = bed.target("report");
        let old = fingerprint(&target);
        let new = bed.stage(&target, "new", false);
        assert_eq!(std::fs::read(&path).expect("read"), b"old");
        target.commit(STAGED.as_ref(), old.as_ref()).expect("commit");
        assert_eq!(std::fs::read(&path).expect("read"), b"new");
        assert_eq!((fingerprint(&target), mode(&path)), (Some(new), 0o640));
        if on_tmpfs.is_ok() {
            let mut value = [0; 8];
            let length = rustix::fs::getxattr(&path, "user.note", &mut value).expect("get");
            assert_eq!(&value[..length], b"kept");
        }
        assert_eq!(bed.names(), ["report", "result"]);
        let old = fingerprint(&target);
        bed.stage(&target, "program", true);
        target.commit(STAGED.as_ref(), old.as_ref()).expect("commit");
        assert_eq!(mode(&path), 0o750);
    }

    #[test]
    fn a_file_is_made_where_nothing_was() {
        let bed = Bed::new();
        for (name, executable, wanted) in [("plain", false, 0o640), ("program", true, 0o750)] {
            let target = bed.target(name);
            assert_eq!(fingerprint(&target), None);
            let new = bed.stage(&target, "new", executable);
            target.commit(STAGED.as_ref(), None).expect("commit");
            assert_eq!(fingerprint(&target), Some(new));
            assert_eq!(mode(&bed.path(name)), wanted);
        }
    }

    #[test]
    fn what_changed_meanwhile_is_not_replaced() {
        let bed = Bed::new();
        let path = bed.put("report", "old");
        let target = bed.target("report");
        let old = fingerprint(&target);
        bed.stage(&target, "new", false);
        let refused = |how: &str, then: &dyn Fn()| {
            then();
            let before = fingerprint(&target);
            let error = target.commit(STAGED.as_ref(), old.as_ref()).expect_err("drift");
            assert!(matches!(&error, TargetError::Drifted { .. }), "{error:?}");
            assert!(error.to_string().ends_with(how), "{error}");
            assert_eq!(fingerprint(&target), before);
            assert!(bed.path(STAGED).exists());
        };
        // Of the same size, with the same time.
        refused("has changed since the task began", &|| {
            let time = path.metadata().and_then(|meta| meta.modified()).expect("time");
            bed.put("report", "odd");
            let file = File::options().write(true).open(&path).expect("open");
            file.set_modified(time).expect("touch");
        });
        refused("has changed since the task began", &|| {
            bed.put("report", "old");
            set_mode(&path, 0o600);
        });
        refused("has gone since the task began", &|| {
            std::fs::remove_file(&path).expect("remove");
        });
        let new = bed.target("new");
        bed.put("new", "somebody else's");
        let error = new.commit(STAGED.as_ref(), None).expect_err("drift");
        assert!(error.to_string().ends_with("has appeared since the task began"), "{error}");
        assert_eq!(std::fs::read(bed.path("new")).expect("read"), b"somebody else's");
    }

    /// Other bytes of the same length, and the modification time as it was.
    fn forge(path: &Path, content: &[u8]) {
        let time = path.metadata().and_then(|meta| meta.modified()).expect("time");
        let file = File::options().write(true).open(path).expect("open");
        std::os::unix::fs::FileExt::write_all_at(&file, content, 0).expect("write");
        file.set_modified(time).expect("touch");
    }

    /// A stamp as if the look had been long after the last change; none where the file
    /// system is not one that is relied on.
    fn late_stamp(seen: &Seen) -> Option<Stamp> {
        let stat = rustix::fs::fstat(&seen.file).expect("stat");
        Stamp::at(i64::from(u32::MAX), &seen.file, &stat)
    }

    #[test]
    fn what_changes_right_after_the_look_is_seen() {
        let bed = Bed::new();
        let path = bed.put("report", vec![b'a'; 1 << 20]);
        let target = bed.target("report");
        bed.stage(&target, "new", false);
        for round in 0_u8..50 {
            let seen = target.look(&mut |_| true).expect("look").expect("a file");
            forge(&path, &vec![round; 1 << 20]);
            let old = Some(&seen.fingerprint);
            let error = target.commit_seen(STAGED.as_ref(), old, seen.stamp()).expect_err("drift");
            assert!(matches!(&error, TargetError::Drifted { .. }), "{error:?}");
        }
    }

    #[test]
    fn a_file_that_did_not_change_is_not_read_again() {
        let bed = Bed::new();
        let path = bed.put("report", vec![b'a'; 1 << 20]);
        let target = bed.target("report");
        let seen = target.look(&mut |_| true).expect("look").expect("a file");
        let Some(stamp) = late_stamp(&seen) else {
            let fs = rustix::fs::statfs(&path).expect("statfs").f_type;
            eprintln!("not tested: the times of a file system of type {fs:#x} prove nothing");
            return;
        };
        // In the same tick it could change once more without another time.
        let stat = rustix::fs::fstat(&seen.file).expect("stat");
        let changed = version(&seen.file).expect("stat").1;
        for (now, is_clear) in [(-1, false), (0, false), (2, false), (3, true)] {
            let at = Stamp::at(changed + now, &seen.file, &stat);
            assert_eq!(at, is_clear.then_some(stamp), "{now} s later");
        }
        // So much for what is relied on: the stamp alone decides.
        let wrong = Fingerprint { sha256: String::new(), ..seen.fingerprint.clone() };
        bed.stage(&target, "new", false);
        target.commit_seen(STAGED.as_ref(), Some(&wrong), Some(stamp)).expect("commit");
        assert_eq!(std::fs::read(&path).expect("read"), b"new");
        // It is the stamp of what is gone.
        bed.stage(&target, "newer", false);
        let old = Some(&seen.fingerprint);
        let error = target.commit_seen(STAGED.as_ref(), old, Some(stamp)).expect_err("drift");
        assert!(error.to_string().ends_with("has changed since the task began"), "{error}");
        std::fs::remove_file(&path).expect("remove");
        let error = target.commit_seen(STAGED.as_ref(), old, Some(stamp)).expect_err("drift");
        assert!(error.to_string().ends_with("has gone since the task began"), "{error}");
        let error = target.commit_seen(STAGED.as_ref(), None, Some(stamp));
        error.expect("nothing was there, nothing is there");
    }

    #[test]
    fn no_change_is_hidden_by_a_stamp() {
        type Then<'a> = &'a dyn Fn(&Path);
        let bed = Bed::new();
        let content = vec![b'a'; 1 << 20];
        let changes: [(&str, Then<'_>); 4] = [
            ("other bytes, same times", &|path| forge(path, b"b")),
            ("mode", &|path| set_mode(path, 0o600)),
            ("size", &|path| {
                let file = File::options().write(true).open(path).expect("open");
                file.set_len(300 << 10).expect("truncate");
            }),
            ("another file of the same name", &|path| {
                let other = bed.put("other", vec![b'b'; 1 << 20]);
                std::fs::rename(other, path).expect("rename");
            }),
        ];
        for (what, then) in changes {
            let path = bed.put("report", &content);
            set_mode(&path, 0o644);
            let target = bed.target("report");
            let _ = std::fs::remove_file(bed.path(STAGED));
            bed.stage(&target, "new", false);
            let seen = target.look(&mut |_| true).expect("look").expect("a file");
            let stamp = late_stamp(&seen);
            let since = version(&seen.file).expect("stat");
            // The clock has ticks, and really it was written just now.
            while target.version().expect("stat") == Some(since) {
                then(&path);
            }
            let old = Some(&seen.fingerprint);
            let error = target.commit_seen(STAGED.as_ref(), old, stamp).expect_err(what);
            assert!(matches!(&error, TargetError::Drifted { .. }), "{what}: {error:?}");
        }
    }

    #[test]
    fn what_is_looked_at_while_staging_is_what_is_there() {
        let bed = Bed::new();
        for (old, new) in [(0, 0), (10, 10), (3, 1 << 20), (1 << 20, 3), (5 << 20, 7 << 20)] {
            let path = bed.put("report", vec![b'a'; old]);
            let target = bed.target("report");
            let before = fingerprint(&target);
            let file = File::open(bed.put("result", vec![b'n'; new])).expect("open");
            let content = Content { file: &file, executable: false, umask: 0 };
            let mut told = 0;
            let (seen, staged) = target
                .look_and_stage(STAGED.as_ref(), content, &mut |bytes| {
                    told += bytes;
                    true
                })
                .expect("stage");
            assert_eq!(seen.as_ref().map(|seen| seen.fingerprint.clone()), before);
            assert_eq!(told, (old + 2 * new) as u64);
            assert_eq!(std::fs::read(&path).expect("read").len(), old);
            let stamp = seen.and_then(|seen| seen.stamp());
            target.commit_seen(STAGED.as_ref(), before.as_ref(), stamp).expect("commit");
            assert_eq!(fingerprint(&target), Some(staged.clone()));
            assert_eq!(staged.sha256, Fingerprint::of(&file, &mut |_| true).expect("read").sha256);
        }
        let none = bed.target("nothing");
        let file = File::open(bed.path("result")).expect("open");
        let content = Content { file: &file, executable: false, umask: 0 };
        let seen = none.look_and_stage(STAGED.as_ref(), content, &mut |_| true).expect("stage").0;
        assert!(seen.is_none() && bed.path(STAGED).exists());
    }

    #[test]
    fn staging_beside_a_look_can_be_stopped_at_any_time() {
        let bed = Bed::new();
        bed.put("report", vec![b'a'; 9 * BUFFER]);
        let target = bed.target("report");
        let file = File::open(bed.put("result", vec![b'n'; 6 * BUFFER])).expect("open");
        let content = Content { file: &file, executable: false, umask: 0 };
        let whole = (9 + 2 * 6) * BUFFER as u64;
        for at in (1..=whole).step_by(BUFFER) {
            let mut told = 0;
            let stopped = target.look_and_stage(STAGED.as_ref(), content, &mut |bytes| {
                told += bytes;
                told < at
            });
            let error = stopped.expect_err("stopped");
            assert!(matches!(&error, TargetError::Io { source, .. }
                if source.kind() == io::ErrorKind::Interrupted));
            assert_eq!(bed.names(), ["report", "result"]);
        }
    }

    #[test]
    fn five_gigabytes_of_holes_are_published_with_a_few_blocks() {
        use std::os::unix::fs::FileExt;
        let bed = Bed::new();
        let result = bed.put("result", "");
        let file = File::options().read(true).write(true).open(result).expect("open");
        file.set_len(5_000_000_000).expect("extend");
        file.write_all_at(b"middle", 3_000_000_000).expect("write");
        let target = bed.target("report");
        let content = Content { file: &file, executable: false, umask: 0o027 };
        let new = target.stage(STAGED.as_ref(), content, None, &mut |_| true).expect("stage");
        target.commit(STAGED.as_ref(), None).expect("commit");
        let meta = bed.path("report").metadata().expect("stat");
        assert_eq!((meta.len(), new.size), (5_000_000_000, 5_000_000_000));
        assert!(meta.blocks() < 2048, "{} blocks", meta.blocks());
        // `truncate -s 5000000000 f; printf middle | dd of=f bs=1 seek=3000000000 conv=notrunc`
        assert_eq!(new.sha256, "53b74dedc0fffb53454ebdbaedf55f8bd8aa4941605e89d8521e8d3251012508");
    }

    #[test]
    fn a_creation_replaces_nothing_whatever_comes_in_between() {
        let bed = Bed::new();
        let target = bed.target("report");
        bed.stage(&target, "new", false);
        bed.put("report", "in between");
        assert_eq!(target.create(&target.dir, STAGED.as_ref()), Err(Errno::EXIST));
        assert_eq!(std::fs::read(bed.path("report")).expect("read"), b"in between");
    }

    #[test]
    fn a_link_stands_for_what_it_leads_to() {
        let bed = Bed::new();
        std::fs::create_dir(bed.path("real")).expect("mkdir");
        let real = bed.put("real/report", "old");
        symlink("real/report", bed.path("latest")).expect("link");
        symlink("real", bed.path("dir")).expect("link");
        for name in ["latest", "dir/report"] {
            let target = bed.target(name);
            assert_eq!(target.path(), std::fs::canonicalize(&real).expect("canonical"));
        }
        let target = bed.target("latest");
        std::fs::remove_file(&real).expect("remove");
        symlink("../other", &real).expect("link");
        let error = target.look(&mut |_| true).expect_err("a link");
        assert!(error.to_string().ends_with("is a symbolic link"), "{error}");
    }

    #[test]
    fn what_is_no_file_is_refused_by_name() {
        let bed = Bed::new();
        std::fs::create_dir(bed.path("dir")).expect("mkdir");
        symlink("nowhere", bed.path("dangling")).expect("link");
        let kind = FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, bed.path("pipe"), kind, Mode::RUSR, 0).expect("mknod");
        let _socket = std::os::unix::net::UnixListener::bind(bed.path("socket")).expect("bind");
        for (name, wanted) in [
            ("dir", "is a directory"),
            ("dangling", "is a symbolic link to nothing"),
            ("pipe", "is not a regular file"),
            ("socket", "is not a regular file"),
        ] {
            let error = FileTarget::open(&bed.path(name)).expect_err(name).to_string();
            assert!(error.ends_with(wanted) && error.contains(name), "{error}");
        }
        let error = FileTarget::open(&bed.path("missing/report")).expect_err("no directory");
        assert_eq!(error.raw_os_error(), Some(libc_enoent()));
        assert!(error.to_string().contains("find the directory of `"), "{error}");
        assert!(FileTarget::open(Path::new("relative")).is_err());
        assert!(FileTarget::open(Path::new("/")).is_err());
    }

    fn libc_enoent() -> i32 {
        Errno::NOENT.raw_os_error()
    }

    #[test]
    fn a_person_who_loses_patience_leaves_nothing() {
        let bed = Bed::new();
        let target = bed.target("report");
        let file = File::open(bed.put("result", vec![b'x'; 3 * BUFFER])).expect("open");
        let content = Content { file: &file, executable: false, umask: 0 };
        let mut told = 0;
        let stopped = target.stage(STAGED.as_ref(), content, None, &mut |bytes| {
            told += bytes;
            told < 2 * BUFFER as u64
        });
        let error = stopped.expect_err("stopped");
        assert!(matches!(&error, TargetError::Io { source, .. }
            if source.kind() == io::ErrorKind::Interrupted));
        assert_eq!(bed.names(), ["result"]);
    }

    #[test]
    fn readers_see_whole_contents_only() {
        let bed = Bed::new();
        let path = bed.put("report", "0".repeat(5000));
        let done = AtomicBool::new(false);
        let reads = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut reads = 0;
                while !done.load(Ordering::Relaxed) {
                    let text = std::fs::read_to_string(&path).expect("it is always there");
                    let number: usize =
                        text[..text.len().min(4)].trim_start_matches('0').parse().unwrap_or(0);
                    assert_eq!(text.len(), 5000 + number, "{number}");
                    reads += 1;
                }
                reads
            });
            let target = bed.target("report");
            for number in 1..=1000_usize {
                let old = fingerprint(&target);
                let text = format!("{number:04}{}", "x".repeat(5000 + number - 4));
                bed.stage(&target, &text, false);
                target.commit(STAGED.as_ref(), old.as_ref()).expect("commit");
            }
            done.store(true, Ordering::Relaxed);
            reader.join().expect("reader")
        });
        assert!(reads > 0);
    }

    #[test]
    fn after_a_crash_it_is_told_on_which_side_it_was() {
        let bed = Bed::new();
        for old in [None, Some("old")] {
            let lay = |content: Option<&str>| {
                let _ = std::fs::remove_file(bed.path("report"));
                content.map(|content| bed.put("report", content));
            };
            lay(old);
            let target = bed.target("report");
            let before = fingerprint(&target);
            let stage = || bed.stage(&target, "new", false);
            let recover = |new| {
                let told = target.recover(STAGED.as_ref(), before.as_ref(), new).expect("recover");
                assert!(!bed.path(STAGED).exists());
                let again = target.recover(STAGED.as_ref(), before.as_ref(), new);
                (told, again.expect("recover"))
            };
            // Before the rename; somebody may have changed it since.
            let new = stage();
            assert_eq!(recover(&new), (Recovered::NotCommitted, Recovered::NotCommitted));
            assert_eq!(fingerprint(&target), before);
            stage();
            lay(Some("theirs"));
            assert_eq!(recover(&new).0, Recovered::NotCommitted);
            assert_eq!(std::fs::read(bed.path("report")).expect("read"), b"theirs");
            // After it.
            lay(old);
            stage();
            target.commit(STAGED.as_ref(), before.as_ref()).expect("commit");
            assert_eq!(recover(&new), (Recovered::Committed, Recovered::Committed));
            // And then somebody changed it, or took it away.
            lay(Some("theirs"));
            assert_eq!(recover(&new), (Recovered::ChangedSince, Recovered::ChangedSince));
            lay(None);
            let gone =
                if old.is_none() { Recovered::NotCommitted } else { Recovered::ChangedSince };
            assert_eq!(recover(&new).0, gone);
        }
        // Between the link and the unlink of a creation.
        let target = bed.target("made");
        let new = bed.stage(&target, "new", false);
        std::fs::hard_link(bed.path(STAGED), bed.path("made")).expect("link");
        let told = target.recover(STAGED.as_ref(), None, &new).expect("recover");
        assert_eq!(told, Recovered::Committed);
        assert_eq!(fingerprint(&target), Some(new));
    }
}

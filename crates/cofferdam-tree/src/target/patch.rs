//! Several files of a directory that is in use, changed by one commit.
//!
//! A reader sees each file whole, the old one or the new one. It does **not** see all of
//! them change at one moment: one that takes no lock can find some paths changed and
//! others not yet, while a patch is applied, and after a crash until it is applied again.
//! Where that matters the target has to be a whole tree.
//!
//! 1. [`PatchTarget::look`] tells, when the task begins, what is at each path.
//! 2. [`PatchTarget::stage`] makes the new files and links beside the places that they
//!    will have, and syncs them and their directories. Where a directory is missing they
//!    wait in the nearest one above it that exists. It gives a [`Redo`].
//! 3. [`Redo::compare`] looks at each path once more.
//! 4. The caller writes the redo record where it stays, [`Redo::write`] or a ledger with
//!    a sync. That is the commit point: before it [`Redo::abandon`] takes back what was
//!    staged, after it the only way is forward.
//! 5. [`Redo::apply`] goes through the paths: one that is new already is skipped, one
//!    that is still old is changed, and anything else is left alone and told, because it
//!    is somebody else's. Then the directories are synced. It can be repeated after any
//!    number of crashes and ends the same.
//!
//! What is staged is made durable before the record is: a record whose files are gone
//! after a power cut could not be applied.
//!
//! Nothing below the directory is followed, whoever plants links there meanwhile, and no
//! mount is crossed. So a staged file and its place are on one file system: it waits in
//! the same directory, or in one whose missing descendants are made by the patch.
//!
//! A path can change between a file, a link and nothing, or between a directory and
//! nothing. That a file becomes a directory, or the reverse, is refused: between the two
//! steps which that takes, a crash leaves what is neither old nor new.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cofferdam_failpoint::hit;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_with::As;

use super::file::{GoOn, Making, Seen, TRIES, Version};
use super::redo::{Planned, Redo, Temp};
use super::{FileTarget, Fingerprint, Step, TargetError, copy};
use crate::descent::{c_name, open_dir};
use crate::path::{TextOrBytes, components};
use crate::stat::probe_at;

/// From how many on, one `syncfs` takes the place of an `fsync` for each file or directory.
/// It waits for what others have written to the file system as well, but each `fsync`
/// waits for a commit of the file system's journal, and of a thousand that is seconds.
const MANY: usize = 32;

const NO_DIR: &str = "not a directory, or behind a symbolic link";
const NO_PATH: &str = "no path below the directory";

/// A directory some paths of which are to be changed.
#[derive(Debug)]
pub struct PatchTarget {
    dir: OwnedFd,
    path: PathBuf,
}

/// What is at a path, or is to be there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Nothing, or a directory above it is missing.
    Nothing,
    /// A regular file.
    File(Fingerprint),
    /// A symbolic link, by what it holds.
    Link(#[serde(with = "As::<TextOrBytes>")] PathBuf),
    /// A directory, whatever is in it.
    Dir,
}

/// One change of a patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    /// Relative to the directory, of any bytes, without `.`, `..` and empty components.
    pub path: PathBuf,
    /// What was there when the task began.
    pub old: State,
    /// What becomes of it.
    pub change: Change,
}

/// What becomes of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A file, made or replaced. It keeps the owner, permissions and extended attributes of
    /// a file that it replaces.
    Write {
        /// Whether it is a program.
        executable: bool,
    },
    /// A symbolic link that holds this, made or replaced.
    Link(PathBuf),
    /// A directory, where nothing is. Those above a new path need not be named.
    MakeDir,
    /// Nothing: a file or link is removed, or a directory of which the patch removes
    /// all that it holds.
    Remove,
}

/// What is at a place now.
pub(super) struct Now {
    pub(super) state: State,
    /// None for nothing.
    pub(super) version: Option<Version>,
    seen: Option<Seen>,
}

impl Now {
    const NOTHING: Now = Now { state: State::Nothing, version: None, seen: None };
}

impl PatchTarget {
    /// The directory at an absolute path; symbolic links on the way stand for what they
    /// lead to.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn open(path: &Path) -> Result<PatchTarget, TargetError> {
        if !path.is_absolute() {
            let found = "not the absolute path of a directory";
            return Err(TargetError::Unsuitable { path: path.into(), found });
        }
        PatchTarget::at(&std::fs::canonicalize(path).step("find", path)?)
    }

    /// The directory at a path that [`PatchTarget::path`] gave. A link there is not followed.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn at(path: &Path) -> Result<PatchTarget, TargetError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            // A link, too, is no directory (open(2)).
            Err(Errno::NOTDIR | Errno::LOOP) => {
                Err(TargetError::Unsuitable { path: path.into(), found: "not a directory" })
            }
            dir => Ok(PatchTarget { dir: dir.step("open", path)?, path: path.into() }),
        }
    }

    /// Where it is, absolute, without symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is at a path now. `go_on` is told how many bytes were read.
    ///
    /// # Errors
    /// [`TargetError::Unsuitable`] when a link or a mount is on the way, or when something
    /// else than a file, link or directory is there; else as [`FileTarget::look`].
    pub fn look(
        &self,
        path: &Path,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<State, TargetError> {
        Ok(self.now(path, go_on)?.state)
    }

    fn now(&self, path: &Path, go_on: GoOn<'_>) -> Result<Now, TargetError> {
        self.place(path)?.map_or(Ok(Now::NOTHING), |place| now_at(&place, go_on))
    }

    /// The place of a path; none when a directory above it is missing.
    pub(super) fn place(&self, path: &Path) -> Result<Option<FileTarget>, TargetError> {
        let (Some(_), Some(parent), Some(name)) =
            (components(path.as_os_str().as_bytes()), path.parent(), path.file_name())
        else {
            return Err(self.unsuitable(path, NO_PATH));
        };
        let dir = self.dir(parent)?;
        Ok(dir.map(|dir| FileTarget::of(dir, name, self.path.join(path))))
    }

    /// A directory below, or this one for an empty path; none when it is missing.
    pub(super) fn dir(&self, path: &Path) -> Result<Option<OwnedFd>, TargetError> {
        let name = match path.as_os_str().as_bytes() {
            b"" => c_name(b"."),
            path => c_name(path),
        };
        match name.and_then(|name| open_dir(&self.dir, &name)) {
            Err(Errno::NOENT) => Ok(None),
            // A link is no directory when it is last, and a loop before that (openat2(2)).
            Err(Errno::NOTDIR | Errno::LOOP) => Err(self.unsuitable(path, NO_DIR)),
            Err(Errno::XDEV) => Err(self.unsuitable(path, "on another file system")),
            dir => dir.map(Some).step("open", &self.path.join(path)),
        }
    }

    pub(super) fn unsuitable(&self, path: &Path, found: &'static str) -> TargetError {
        TargetError::Unsuitable { path: self.path.join(path), found }
    }

    /// Makes what is to come beside its places, and syncs it: nothing that is there
    /// changes. Names begin with `.dam-TASK-`, which must be nobody else's; what an earlier
    /// attempt left under them goes. `open` gives the content of a file that is to be
    /// written. New files and directories have the permissions that `umask` leaves.
    /// `go_on` is told how many bytes were copied or read.
    ///
    /// # Errors
    /// [`TargetError::Unsuitable`] for changes that contradict each other or can't be made,
    /// [`TargetError::Drifted`] where a path is no longer as its [`Op::old`]; nothing is
    /// staged then, unless removing it failed too.
    pub fn stage(
        &self,
        ops: &[Op],
        task: &str,
        umask: u32,
        open: &mut dyn FnMut(&Op) -> io::Result<File>,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Redo, TargetError> {
        let staged = self.stage_all(ops, task, umask, open, go_on);
        if staged.is_err() {
            let _ = self.unstage(ops, task);
        }
        staged
    }

    fn stage_all(
        &self,
        ops: &[Op],
        task: &str,
        umask: u32,
        open: &mut dyn FnMut(&Op) -> io::Result<File>,
        go_on: GoOn<'_>,
    ) -> Result<Redo, TargetError> {
        let dir = |path| Planned { path, old: State::Nothing, new: State::Dir, temp: None };
        let mut changes: Vec<Planned> = self.plan(ops)?.into_iter().map(dir).collect();
        let is_write = |op: &&Op| matches!(op.change, Change::Write { .. });
        // A link can't be synced by itself.
        let whole = ops.iter().any(|op| matches!(op.change, Change::Link(_)))
            || ops.iter().filter(is_write).count() > MANY;
        let mut touched = BTreeSet::new();
        for (number, op) in ops.iter().enumerate() {
            hit("target:patch:stage").step("stage", &self.path.join(&op.path))?;
            let now = self.now(&op.path, go_on)?;
            let mut planned = Planned {
                path: op.path.clone(),
                old: op.old.clone(),
                new: if op.change == Change::MakeDir { State::Dir } else { State::Nothing },
                temp: None,
            };
            planned.compare(&now.state, self)?;
            if matches!(op.change, Change::Write { .. } | Change::Link(_)) {
                let (dir, beside) = self.nearest(&op.path)?;
                let temp = Temp { dir, name: temp_name(task, number) };
                self.remove(&temp)?;
                let name = temp.name.as_ref();
                planned.new = match &op.change {
                    Change::Link(target) => make_link(&beside, name, target, &op.old)?,
                    _ => {
                        let file = open(op).step("open what is to become", beside.path())?;
                        let executable = op.change == Change::Write { executable: true };
                        let old = now.seen.as_ref();
                        let making = Making { temp: name, old, executable, umask, sync: !whole };
                        let write = &mut |made: &File, go_on: GoOn<'_>| {
                            copy::content(&file, made, go_on).step("copy", beside.path())
                        };
                        State::File(beside.make(making, write, go_on)?)
                    }
                };
                touched.insert(temp.dir.clone());
                planned.temp = Some(temp);
            }
            changes.push(planned);
        }
        changes.sort_by(|one, other| one.path.cmp(&other.path));
        self.sync(&touched, whole)?;
        Ok(Redo { version: Redo::VERSION, dir: self.path.clone(), umask, changes })
    }

    /// Checks that the changes can all be made, and gives the directories above them that
    /// are missing and not among them.
    fn plan(&self, ops: &[Op]) -> Result<BTreeSet<PathBuf>, TargetError> {
        let mut by_path = BTreeMap::new();
        for op in ops {
            let refused = match (&op.old, &op.change) {
                _ if components(op.path.as_os_str().as_bytes()).is_none() => Some(NO_PATH),
                // A task knows its own id, and so what the staged files are called.
                _ if op.path.iter().any(|name| name.as_bytes().starts_with(b".dam-")) => {
                    Some("called like what is staged")
                }
                _ if by_path.insert(op.path.as_path(), &op.change).is_some() => {
                    Some("changed twice by one patch")
                }
                (State::Nothing, Change::Remove) => Some("not there to be removed"),
                (State::Dir, Change::Write { .. } | Change::Link(_)) => Some("a directory"),
                (State::File(_) | State::Link(_) | State::Dir, Change::MakeDir) => {
                    Some("not free for a directory")
                }
                _ => None,
            };
            if let Some(found) = refused {
                return Err(self.unsuitable(&op.path, found));
            }
        }
        let mut missing = BTreeSet::new();
        for op in ops {
            let goes = op.change == Change::Remove;
            for above in above(&op.path) {
                match by_path.get(above) {
                    None if goes => {}
                    None if self.dir(above)?.is_some() => {}
                    None => {
                        missing.insert(above.to_path_buf());
                    }
                    Some(Change::MakeDir) if !goes => {}
                    Some(Change::Remove) if goes => {}
                    Some(_) => {
                        let found = "below what the same patch makes or removes";
                        return Err(self.unsuitable(&op.path, found));
                    }
                }
            }
        }
        Ok(missing)
    }

    /// The nearest directory above a path that exists, and a target of that path in it.
    fn nearest(&self, path: &Path) -> Result<(PathBuf, FileTarget), TargetError> {
        for above in path.ancestors().skip(1) {
            if let (Some(dir), Some(name)) = (self.dir(above)?, path.file_name()) {
                let target = FileTarget::of(dir, name, self.path.join(path));
                return Ok((above.to_path_buf(), target));
            }
        }
        Err(self.unsuitable(path, NO_PATH))
    }

    /// Removes what [`PatchTarget::stage`] with these arguments has staged, of which there is
    /// no redo record: it failed, or its process died. Can be repeated.
    ///
    /// # Errors
    /// [`TargetError::Io`].
    pub fn unstage(&self, ops: &[Op], task: &str) -> Result<(), TargetError> {
        let mut touched = BTreeSet::new();
        for (number, op) in ops.iter().enumerate() {
            // It is in the one that was the nearest then.
            for above in op.path.ancestors().skip(1) {
                let temp = Temp { dir: above.to_path_buf(), name: temp_name(task, number) };
                if self.remove(&temp)? {
                    touched.insert(temp.dir);
                }
            }
        }
        self.sync(&touched, false)
    }

    /// Removes something staged. Gives whether it was there.
    pub(super) fn remove(&self, temp: &Temp) -> Result<bool, TargetError> {
        let dir = match self.dir(&temp.dir) {
            // What was in the directory went with it.
            Ok(None) | Err(TargetError::Unsuitable { .. }) => return Ok(false),
            Ok(Some(dir)) => dir,
            Err(error) => return Err(error),
        };
        let path = self.path.join(&temp.dir).join(&temp.name);
        hit("target:patch:unstage").step("remove", &path)?;
        match rustix::fs::unlinkat(dir, &temp.name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(false),
            removed => removed.step("remove", &path).map(|()| true),
        }
    }

    /// Makes the names in these directories durable, with `whole` all that is on the file
    /// system. That was opened before anything was written to it: so `syncfs` tells of each
    /// write that failed (syncfs(2), since Linux 5.8).
    pub(super) fn sync(&self, dirs: &BTreeSet<PathBuf>, whole: bool) -> Result<(), TargetError> {
        hit("target:patch:sync").step("sync", &self.path)?;
        if whole || dirs.len() > MANY {
            return rustix::fs::syncfs(&self.dir).step("sync", &self.path);
        }
        for path in dirs {
            match self.dir(path) {
                // Somebody else has removed it, or the patch.
                Ok(None) | Err(TargetError::Unsuitable { .. }) => {}
                dir => {
                    if let Some(dir) = dir? {
                        rustix::fs::fsync(&dir).step("sync", &self.path.join(path))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The directories above a path, without the target itself.
fn above(path: &Path) -> impl Iterator<Item = &Path> {
    path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty())
}

fn temp_name(task: &str, number: usize) -> String {
    format!(".dam-{task}-{number}")
}

/// What is at a place now, of whatever kind.
pub(super) fn now_at(place: &FileTarget, go_on: GoOn<'_>) -> Result<Now, TargetError> {
    let path = place.path();
    let unsuitable = |found| Err(TargetError::Unsuitable { path: path.into(), found });
    let name = c_name(place.name.as_bytes()).step("look at", path)?;
    for _ in 0..TRIES {
        let probe = match probe_at(&place.dir, &name) {
            Err(Errno::NOENT) => return Ok(Now::NOTHING),
            probe => probe.step("look at", path)?,
        };
        if probe.mount_root {
            return unsuitable("a mount point");
        }
        let version = place.version()?;
        let state = match probe.file_type() {
            FileType::RegularFile => match place.look(go_on)? {
                None => continue,
                Some(seen) => {
                    let state = State::File(seen.fingerprint.clone());
                    return Ok(Now { state, version: Some(seen.version), seen: Some(seen) });
                }
            },
            FileType::Symlink => match rustix::fs::readlinkat(&place.dir, &name, Vec::new()) {
                Err(Errno::NOENT | Errno::INVAL) => continue,
                target => {
                    let target = target.step("read", path)?;
                    State::Link(OsStr::from_bytes(target.as_bytes()).into())
                }
            },
            FileType::Directory => State::Dir,
            _ => return unsuitable("neither a file, a link nor a directory"),
        };
        if version.is_some_and(|version| version.0 == probe.stat.ino)
            && version == place.version()?
        {
            return Ok(Now { state, version, seen: None });
        }
    }
    Err(place.drifted("is being written to"))
}

/// Makes a symbolic link beside a place, with the owner of the one that it replaces.
fn make_link(
    beside: &FileTarget,
    temp: &OsStr,
    target: &Path,
    old: &State,
) -> Result<State, TargetError> {
    const STEP: &str = "make a link beside";
    hit("target:patch:link").step(STEP, beside.path())?;
    rustix::fs::symlinkat(target, &beside.dir, temp).step(STEP, beside.path())?;
    if matches!(old, State::Link(_)) {
        let stat = |name: &OsStr| rustix::fs::statat(&beside.dir, name, AtFlags::SYMLINK_NOFOLLOW);
        let (old, new) = (stat(&beside.name), stat(temp));
        let (old, new) = (old.step(STEP, beside.path())?, new.step(STEP, beside.path())?);
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid) {
            let (uid, gid) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let kept = rustix::fs::chownat(&beside.dir, temp, Some(uid), Some(gid), flags);
            kept.step("keep the owner of", beside.path())?;
        }
    }
    Ok(State::Link(target.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::*;

    struct Bed {
        root: PathBuf,
        _dir: Option<tempfile::TempDir>,
    }

    impl Bed {
        /// The directory `live`, with a bit of everything.
        fn new() -> Bed {
            let dir = tempfile::tempdir().expect("temporary directory");
            let bed = Bed { root: dir.path().into(), _dir: Some(dir) };
            for dir in ["sub/inner", "going/deep", "kept"] {
                std::fs::create_dir_all(bed.live(dir)).expect("mkdir");
            }
            for file in ["top", "sub/a", "sub/inner/b", "going/c", "going/deep/d", "kept/e"] {
                bed.put(file, &format!("old {file}"));
            }
            symlink("top", bed.live("latest")).expect("link");
            symlink("nowhere", bed.live("going/link")).expect("link");
            bed
        }

        fn live(&self, path: &str) -> PathBuf {
            self.root.join("live").join(path)
        }

        fn put(&self, path: &str, content: &str) {
            std::fs::write(self.live(path), content).expect("write");
        }

        fn target(&self) -> PatchTarget {
            PatchTarget::open(&self.live("")).expect("target")
        }

        fn op(&self, path: &str, change: Change) -> Op {
            let old = self.target().look(path.as_ref(), &mut |_| true).expect("look");
            Op { path: path.into(), old, change }
        }

        /// A patch that does everything that one can do.
        fn ops(&self) -> Vec<Op> {
            let write = || Change::Write { executable: false };
            vec![
                self.op("going", Change::Remove),
                self.op("going/c", Change::Remove),
                self.op("going/deep", Change::Remove),
                self.op("going/deep/d", Change::Remove),
                self.op("going/link", Change::Remove),
                self.op("latest", Change::Link("sub/a".into())),
                self.op("sub/a", Change::Write { executable: true }),
                self.op("sub/inner/b", Change::Link("../a".into())),
                self.op("made/of/nothing", write()),
                self.op("made/of/link", Change::Link("nothing".into())),
                self.op("empty/dir", Change::MakeDir),
                self.op("top", write()),
            ]
        }

        fn stage(&self, ops: &[Op]) -> Result<Redo, TargetError> {
            self.target().stage(ops, TASK, 0o027, &mut |op| self.result(op), &mut |_| true)
        }

        /// What a task has made of a path.
        fn result(&self, op: &Op) -> io::Result<File> {
            let path = self.root.join("result");
            std::fs::write(&path, format!("new {}", op.path.display()))?;
            File::open(path)
        }

        /// All that is in `live`: paths, with content.
        fn tree(&self) -> Vec<String> {
            let mut found = Vec::new();
            let mut dirs = vec![PathBuf::new()];
            while let Some(dir) = dirs.pop() {
                for entry in std::fs::read_dir(self.live("").join(&dir)).expect("list") {
                    let entry = entry.expect("entry");
                    let (path, kind) = (dir.join(entry.file_name()), entry.file_type());
                    let name = path.display();
                    let kind = kind.expect("type");
                    found.push(if kind.is_dir() {
                        format!("{name}/")
                    } else if kind.is_symlink() {
                        format!("{name} -> {}", entry.path().read_link().expect("link").display())
                    } else {
                        let text = std::fs::read_to_string(entry.path()).expect("read");
                        format!("{name}: {text}")
                    });
                    if kind.is_dir() {
                        dirs.push(path);
                    }
                }
            }
            found.sort();
            found
        }

        fn staged(&self) -> bool {
            self.tree().iter().any(|entry| entry.contains(".dam-"))
        }
    }

    const TASK: &str = "t1";

    /// What [`Bed::ops`] make of it.
    const NEW: [&str; 14] = [
        "empty/",
        "empty/dir/",
        "kept/",
        "kept/e: old kept/e",
        "latest -> sub/a",
        "made/",
        "made/of/",
        "made/of/link -> nothing",
        "made/of/nothing: new made/of/nothing",
        "sub/",
        "sub/a: new sub/a",
        "sub/inner/",
        "sub/inner/b -> ../a",
        "top: new top",
    ];

    #[track_caller]
    fn says(error: &TargetError, wanted: &str) {
        let text = error.to_string();
        assert!(text.contains(wanted), "{text}");
    }

    #[track_caller]
    fn apply_all(redo: &Redo) {
        let left_alone = redo.apply().expect("apply");
        assert!(left_alone.is_empty(), "{left_alone:?}");
    }

    #[test]
    fn all_kinds_of_changes_are_made_and_what_is_replaced_keeps_its_attributes() {
        let bed = Bed::new();
        let before = bed.tree();
        let set = |path, mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(bed.live(path), mode).expect("chmod");
        };
        set("top", 0o4604);
        let root = rustix::process::geteuid().is_root();
        if root {
            std::os::unix::fs::lchown(bed.live("top"), Some(77), Some(78)).expect("chown");
            std::os::unix::fs::lchown(bed.live("latest"), Some(77), Some(78)).expect("chown");
            set("top", 0o4604);
        }
        let redo = bed.stage(&bed.ops()).expect("stage");
        assert_eq!(
            bed.tree().into_iter().filter(|e| !e.contains(".dam-")).collect::<Vec<_>>(),
            before
        );
        // What has a directory waits there, the rest in the nearest.
        assert!(bed.live("sub/.dam-t1-6").exists() && bed.live(".dam-t1-8").exists());
        redo.compare(&mut |_| true).expect("compare");
        apply_all(&redo);
        assert_eq!(bed.tree(), NEW);
        for (path, mode) in [("top", 0o604), ("sub/a", 0o755), ("made/of/nothing", 0o640)] {
            let meta = bed.live(path).metadata().expect("stat");
            assert_eq!(meta.mode() & 0o7777, mode, "{path}");
        }
        for path in ["top", "latest"] {
            let meta = bed.live(path).symlink_metadata().expect("stat");
            assert!(!root || (meta.uid(), meta.gid()) == (77, 78), "{path}");
        }
        assert_eq!(bed.live("made/of").metadata().expect("stat").mode() & 0o027, 0);
        // What was done is not done again.
        let inode = bed.live("top").metadata().expect("stat").ino();
        apply_all(&redo);
        assert_eq!(bed.live("top").metadata().expect("stat").ino(), inode);
    }

    #[test]
    fn a_thousand_files() {
        let bed = Bed::new();
        let mut ops = Vec::new();
        for number in 0..1000 {
            let path = format!("kept/{}/{number}", number % 50);
            std::fs::create_dir_all(bed.live(&path).parent().expect("parent")).expect("mkdir");
            if number % 4 != 0 {
                bed.put(&path, "old");
            }
            let change = match number % 4 {
                3 => Change::Remove,
                _ => Change::Write { executable: false },
            };
            ops.push(bed.op(&path, change));
        }
        let redo = bed.stage(&ops).expect("stage");
        redo.compare(&mut |_| true).expect("compare");
        apply_all(&redo);
        let tree = bed.tree();
        assert_eq!(tree.iter().filter(|entry| entry.contains(": new kept/")).count(), 750);
        assert!(!tree.iter().any(|entry| entry.ends_with(": old")) && !bed.staged());
    }

    #[test]
    fn a_drift_before_the_commit_point_is_refused_and_nothing_changes() {
        type Drift = (&'static str, fn(&Bed));
        let drifts: [Drift; 6] = [
            ("top` has changed", |bed| bed.put("top", "theirs")),
            ("top` has gone", |bed| std::fs::remove_file(bed.live("top")).expect("remove")),
            ("made/of/nothing` has appeared", |bed| {
                std::fs::create_dir_all(bed.live("made/of")).expect("mkdir");
                bed.put("made/of/nothing", "theirs");
            }),
            ("latest` has changed", |bed| {
                std::fs::remove_file(bed.live("latest")).expect("remove");
                symlink("kept", bed.live("latest")).expect("link");
            }),
            ("deep` is a directory that holds more", |bed| bed.put("going/deep/theirs", "")),
            ("empty/dir` has appeared", |bed| {
                std::fs::create_dir(bed.live("empty")).expect("mkdir");
                bed.put("empty/dir", "");
            }),
        ];
        for (how, drift) in drifts {
            // Since the task began.
            let bed = Bed::new();
            let ops = bed.ops();
            drift(&bed);
            let theirs = bed.tree();
            if !how.contains("holds more") {
                says(&bed.stage(&ops).expect_err(how), how);
                assert_eq!(bed.tree(), theirs, "{how}");
            }
            // Since it was staged.
            let bed = Bed::new();
            let redo = bed.stage(&bed.ops()).expect("stage");
            drift(&bed);
            says(&redo.compare(&mut |_| true).expect_err(how), how);
            redo.abandon().expect("abandon");
            redo.abandon().expect("abandon twice");
            assert_eq!(bed.tree(), theirs, "{how}");
        }
        // A directory that somebody made meanwhile is what is wanted.
        let bed = Bed::new();
        let redo = bed.stage(&bed.ops()).expect("stage");
        std::fs::create_dir(bed.live("made")).expect("mkdir");
        redo.compare(&mut |_| true).expect("compare");
        apply_all(&redo);
        assert_eq!(bed.tree(), NEW);
    }

    #[test]
    fn what_somebody_else_changed_is_left_alone_and_all_else_is_done() {
        let bed = Bed::new();
        let redo = bed.stage(&bed.ops()).expect("stage");
        bed.put("top", "theirs");
        bed.put("going/deep/theirs", "theirs");
        std::fs::remove_file(bed.live("latest")).expect("remove");
        bed.put("made", "theirs");
        for _ in 0..2 {
            let mut told: Vec<String> =
                redo.apply().expect("apply").iter().map(ToString::to_string).collect();
            told.sort();
            let live = bed.target().path().display().to_string();
            let emptied = "is a directory that holds more than what the patch removes";
            let changed = "has changed since the task began";
            let wanted = [
                format!("`{live}/going/deep` {emptied}"),
                format!("`{live}/going` {emptied}"),
                format!("`{live}/latest` has gone since the task began"),
                format!("`{live}/made/of` is {NO_DIR}"),
                format!("`{live}/made` has appeared since the task began"),
                format!("`{live}/made` is {NO_DIR}"),
                format!("`{live}/top` {changed}"),
            ];
            for wanted in &wanted {
                assert!(told.contains(wanted), "{wanted} in {told:#?}");
            }
            let wanted = [
                "empty/",
                "empty/dir/",
                "going/",
                "going/deep/",
                "going/deep/theirs: theirs",
                "kept/",
                "kept/e: old kept/e",
                "made: theirs",
                "sub/",
                "sub/a: new sub/a",
                "sub/inner/",
                "sub/inner/b -> ../a",
                "top: theirs",
            ];
            assert_eq!(bed.tree(), wanted);
        }
        // A staged file that is gone, and then the whole directory.
        let bed = Bed::new();
        let redo = bed.stage(&bed.ops()).expect("stage");
        std::fs::remove_file(bed.live(".dam-t1-11")).expect("remove");
        let told = redo.apply().expect("apply");
        assert_eq!(told.len(), 1);
        says(&told[0], "top` is as it was: what was to replace it is gone");
        std::fs::rename(bed.live(""), bed.root.join("away")).expect("rename");
        assert_eq!(redo.apply().expect("apply").len(), redo.changes.len());
        redo.abandon().expect("abandon");
    }

    #[test]
    fn a_link_in_place_of_a_directory_is_not_followed() {
        let bed = Bed::new();
        let outside = bed.root.join("outside");
        let redo = bed.stage(&bed.ops()).expect("stage");
        std::fs::rename(bed.live("sub"), &outside).expect("rename");
        symlink(&outside, bed.live("sub")).expect("link");
        says(&redo.compare(&mut |_| true).expect_err("link"), "sub` is not a directory, or behind");
        says(
            &bed.stage(&[Op {
                path: "sub/a".into(),
                old: State::Nothing,
                change: Change::Write { executable: false },
            }])
            .expect_err("link"),
            "sub` is not a directory, or behind",
        );
        let told = redo.apply().expect("apply");
        assert_eq!(told.len(), 2);
        assert!(told.iter().all(|error| error.to_string().contains("a symbolic link")), "{told:?}");
        assert_eq!(std::fs::read_to_string(outside.join("a")).expect("read"), "old sub/a");
        assert!(outside.join(".dam-t1-6").exists());
        // Nor in place of the target itself.
        std::fs::rename(bed.live(""), bed.root.join("away")).expect("rename");
        symlink("away", bed.root.join("live")).expect("link");
        assert_eq!(redo.apply().expect("apply").len(), redo.changes.len());
        assert!(PatchTarget::at(&bed.root.join("live")).is_err());
        assert!(PatchTarget::open(&bed.root.join("live")).is_ok());
    }

    #[test]
    fn a_mount_is_neither_crossed_nor_replaced() {
        let root = PatchTarget::open(Path::new("/")).expect("root");
        let look = |path: &str| root.look(path.as_ref(), &mut |_| true).expect_err("a mount");
        says(&look("proc"), "`/proc` is a mount point");
        says(&look("proc/version"), "`/proc` is on another file system");
    }

    #[test]
    fn what_changes_between_the_last_look_and_the_step_is_left_alone() {
        let bed = Bed::new();
        for path in ["top", "latest"] {
            let place = bed.target().place(path.as_ref()).expect("place").expect("directory");
            let now = now_at(&place, &mut |_| true).expect("look");
            bed.put("theirs", "theirs");
            std::fs::rename(bed.live("theirs"), bed.live(path)).expect("rename");
            bed.put("staged", "new");
            let error = place.swap(&place.dir, "staged".as_ref(), now.version);
            says(&error.expect_err("drift"), "has changed since the task began");
            let error = crate::target::redo::remove(&place, &now).expect_err("drift");
            says(&error, "has changed since the task began");
            assert_eq!(std::fs::read_to_string(bed.live(path)).expect("read"), "theirs");
        }
    }

    #[test]
    fn contradictions_are_refused_by_name() {
        let bed = Bed::new();
        let old = |path: &str| bed.target().look(path.as_ref(), &mut |_| true).expect("look");
        let op = |path: &str, old: State, change: &Change| Op {
            path: path.into(),
            old,
            change: change.clone(),
        };
        let write = Change::Write { executable: false };
        let (nothing, remove, make_dir) = (State::Nothing, Change::Remove, Change::MakeDir);
        let top = || op("top", old("top"), &write);
        let before = bed.tree();
        for (ops, how) in [
            (vec![top(), top()], "top` is changed twice by one patch"),
            (vec![op("x", nothing.clone(), &remove)], "x` is not there to be removed"),
            (vec![op("sub", State::Dir, &write)], "sub` is a directory"),
            (vec![op("top", old("top"), &make_dir)], "top` is not free for a directory"),
            (vec![op("top/x", nothing.clone(), &write)], "top` is not a directory"),
            (
                vec![op("latest/x", nothing.clone(), &write)],
                "latest` is not a directory, or behind",
            ),
            (
                vec![op("going", State::Dir, &remove), op("going/x", nothing.clone(), &write)],
                "going/x` is below what the same patch makes or removes",
            ),
            (
                vec![op("x", nothing.clone(), &write), op("x/y", nothing.clone(), &write)],
                "x/y` is below what the same patch makes or removes",
            ),
            (vec![op("../x", nothing.clone(), &write)], "../x` is no path below the directory"),
            (vec![op("/etc/x", nothing.clone(), &write)], "/etc/x` is no path below"),
            (vec![op("sub/./x", nothing.clone(), &write)], "is no path below the directory"),
            (vec![op("", nothing.clone(), &write)], "is no path below the directory"),
            (vec![op("x/.dam-t1-0", nothing.clone(), &write)], "is called like what is staged"),
        ] {
            says(&bed.stage(&ops).expect_err(how), how);
            assert_eq!(bed.tree(), before, "{how}");
        }
        let kind = FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, bed.live("pipe"), kind, Mode::RUSR, 0).expect("mknod");
        let error = bed.target().look("pipe".as_ref(), &mut |_| true).expect_err("pipe");
        says(&error, "pipe` is neither a file, a link nor a directory");
    }

    #[test]
    fn a_redo_record_that_is_torn_or_altered_is_refused() {
        let bed = Bed::new();
        let redo = bed.stage(&bed.ops()).expect("stage");
        let journal = bed.root.as_path();
        redo.write(journal, "redo").expect("write");
        assert_eq!(Redo::read(journal, "redo").expect("read"), redo);
        let path = journal.join("redo");
        let whole = std::fs::read(&path).expect("read");
        for length in (0..whole.len()).step_by(7) {
            std::fs::write(&path, &whole[..length]).expect("write");
            says(&Redo::read(journal, "redo").expect_err("torn"), "redo` is torn or altered");
        }
        for at in (0..whole.len()).step_by(7) {
            let mut altered = whole.clone();
            altered[at] ^= 1;
            std::fs::write(&path, altered).expect("write");
            says(&Redo::read(journal, "redo").expect_err("altered"), "redo` is torn or altered");
        }
        // With a checksum that fits.
        let refused = |how: &str, alter: &dyn Fn(&mut Redo)| {
            let mut altered = redo.clone();
            alter(&mut altered);
            altered.write(journal, "redo").expect("write");
            says(&Redo::read(journal, "redo").expect_err(how), how);
            says(&altered.apply().expect_err(how), how);
        };
        let before = bed.tree();
        refused("has version 2, not 1", &|redo| redo.version = 2);
        refused("names what can't be: `../x`", &|redo| redo.changes[0].path = "../x".into());
        refused("names what can't be", &|redo| {
            redo.changes[0].temp = Some(Temp { dir: PathBuf::new(), name: "top".into() });
        });
        refused("names what can't be", &|redo| {
            redo.changes[0].temp = Some(Temp { dir: "..".into(), name: ".dam-x".into() });
        });
        refused("has paths out of order", &|redo| redo.changes.swap(0, 1));
        assert_eq!(bed.tree(), before);
        says(&Redo::read(journal, "none").expect_err("none"), "read the redo record `");
    }

    #[test]
    fn names_that_are_not_text_are_kept() {
        let bed = Bed::new();
        let name = OsStr::from_bytes(b"n\xff\nme");
        let op = Op {
            path: Path::new("sub").join(name),
            old: State::Nothing,
            change: Change::Link(name.into()),
        };
        bed.stage(&[op]).expect("stage").write(&bed.root, "redo").expect("write");
        let redo = Redo::read(&bed.root, "redo").expect("read");
        apply_all(&redo);
        let link = std::fs::read_link(bed.live("sub").join(name)).expect("link");
        assert_eq!(link.as_os_str(), name);
    }

    #[test]
    #[ignore = "the process that the next tests kill"]
    fn stage_or_apply() {
        let dir = std::env::var_os("TREE_TEST_PATCH").expect("run by another test");
        match Redo::read(Path::new(&dir), "redo") {
            Ok(redo) => apply_all(&redo),
            Err(_) => {
                let bed = Bed { root: dir.clone().into(), _dir: None };
                bed.stage(&bed.ops()).expect("stage");
            }
        }
    }

    /// Whether it ended by itself.
    fn run_with(bed: &Bed, failpoint: &str) -> bool {
        let ended = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "target::patch::tests::stage_or_apply", "--ignored"])
            .env("TREE_TEST_PATCH", &bed.root)
            .env("COFFERDAM_FAILPOINT", failpoint)
            .stdout(Stdio::null())
            .status();
        let ended = ended.expect("run");
        assert!(ended.success() || ended.signal() == Some(9), "{failpoint}: {ended}");
        ended.success()
    }

    #[test]
    fn killed_at_any_step_it_is_applied_again_to_the_same_end() {
        for (step, least) in [
            ("target:patch:apply", 15),
            ("target:file:rename", 6),
            ("target:patch:unstage", 6),
            ("target:patch:sync", 1),
            ("target:patch:done", 1),
        ] {
            for nth in 1.. {
                let bed = Bed::new();
                let redo = bed.stage(&bed.ops()).expect("stage");
                redo.write(&bed.root, "redo").expect("write");
                let ended = run_with(&bed, &format!("{step}@{nth}=kill"));
                for _ in 0..2 {
                    apply_all(&redo);
                    assert_eq!(bed.tree(), NEW, "{step}@{nth}");
                }
                if ended {
                    assert!(nth > least, "{step} is visited {} times", nth - 1);
                    break;
                }
            }
        }
    }

    #[test]
    fn killed_while_staging_nothing_has_changed_and_nothing_stays() {
        for (step, least) in [
            ("target:patch:stage", 12),
            ("target:file:create", 3),
            ("target:file:attributes", 3),
            ("target:patch:link", 3),
            ("target:patch:sync", 1),
        ] {
            for nth in 1.. {
                let bed = Bed::new();
                let (before, ops) = (bed.tree(), bed.ops());
                let ended = run_with(&bed, &format!("{step}@{nth}=kill"));
                bed.target().unstage(&ops, TASK).expect("unstage");
                assert_eq!(bed.tree(), before, "{step}@{nth}");
                if ended {
                    assert!(nth > least, "{step} is visited {} times", nth - 1);
                    break;
                }
            }
        }
        // And one that fails cleans up by itself, also after an earlier attempt.
        let bed = Bed::new();
        let (before, ops) = (bed.tree(), bed.ops());
        bed.stage(&ops).expect("stage");
        let mut open = |op: &Op| match op.path.to_str() {
            Some("top") => Err(io::ErrorKind::PermissionDenied.into()),
            _ => bed.result(op),
        };
        let staged = bed.target().stage(&ops, TASK, 0, &mut open, &mut |_| true);
        says(&staged.expect_err("no content"), "top`");
        assert_eq!(bed.tree(), before);
    }
}

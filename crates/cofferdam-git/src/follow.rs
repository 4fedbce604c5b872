//! Letting a checked-out worktree follow its branch.
//!
//! A ref that moves under a checked-out worktree without it is a trap: the
//! person's next `git commit -a` reverts the whole landing. And git's own
//! two-tree update loses work in three ways on its own: it overwrites ignored
//! files without a word, reports success when it could not remove something,
//! and leaves the worktree behind when the index is locked. So, in this order:
//!
//! 0. [`LockDraft`] makes the lock file under another name; the caller writes its
//!    identity into the journal. A lock that a crash leaves behind is then known
//!    to be ours, whenever the crash came.
//! 1. [`Follow::begin`] renames it to `index.lock` (waiting a little when that is
//!    taken) and refuses where an operation of the person's is unfinished.
//! 2. Every path that will change is looked at: a path that is to appear must
//!    not exist in any form, ignored or not; a directory that is to become a
//!    file must hold nothing but what goes.
//! 3. A dry run on a *copy* of the index lets git judge what is tracked: dirty
//!    where it overlaps is refused, dirty elsewhere is none of our business.
//! 4. The caller moves the ref: the commit point.
//! 5. [`Follow::apply`] does the update on the copy, checks every changed path,
//!    writes the copy into the lock file and renames it to be the index.
//!
//! Until 4 nothing of the person's has changed; dropping a [`Follow`] only
//! removes the lock. After 4 the only way is forward: [`resume`] goes on after a
//! crash, path by path: already new, still old, or neither, which is the
//! person's and stays.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cofferdam_failpoint::hit;
use cofferdam_tree::{BytePath, fsync_dir};

use crate::layer::{Difference, parse_raw};
use crate::{CommitId, GitCommand, GitError, IoContext, Repository, RunAs};

const GITLINK: u32 = 0o160_000;

/// Why a worktree can't follow now. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum InTheWay {
    /// An unfinished merge, rebase, cherry-pick, revert or bisect.
    #[error("a {what} is in progress in `{worktree}`")]
    Operation {
        /// Which.
        what: &'static str,
        /// Where.
        worktree: PathBuf,
    },
    /// Somebody holds the index.
    #[error("`{0}` is held by another git process (or left by one that died)")]
    IndexLocked(PathBuf),
    /// Paths of the person's.
    #[error("{} in `{worktree}`: {}", if paths.len() == 1 { "a path is in the way" } else { "paths are in the way" }, list(paths))]
    Paths {
        /// Where.
        worktree: PathBuf,
        /// Each with what it is.
        paths: Vec<String>,
    },
    /// git's own judgement in the dry run.
    #[error("uncommitted changes are in the way in `{worktree}`: {said}")]
    Dirty {
        /// Where.
        worktree: PathBuf,
        /// What git said.
        said: String,
    },
}

fn list(paths: &[String]) -> String {
    const SHOWN: usize = 3;
    let mut text = paths.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if paths.len() > SHOWN {
        text.push_str(&format!(" and {} more", paths.len() - SHOWN));
    }
    text
}

/// Why following failed.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The person's work is in the way.
    #[error(transparent)]
    InTheWay(#[from] InTheWay),
    /// After the commit point: some paths are neither old nor new. They were
    /// left as they are.
    #[error(
        "the branch has moved, but these paths of `{worktree}` were left alone: {}",
        list(paths)
    )]
    LeftAlone {
        /// Where.
        worktree: PathBuf,
        /// Which.
        paths: Vec<String>,
    },
    /// Anything else.
    #[error(transparent)]
    Git(#[from] GitError),
}

/// A worktree of the repository that has a branch checked out.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Worktree {
    /// Its top directory.
    pub dir: PathBuf,
    /// Its git directory.
    pub git_dir: PathBuf,
}

/// The worktrees that have `branch` (a full ref name) checked out, or are in the
/// middle of a rebase or bisect of it.
///
/// # Errors
/// [`GitError`].
pub fn worktrees_on(repo: &Repository, branch: &str) -> Result<Vec<Worktree>, GitError> {
    let mut found = Vec::new();
    for git_dir in git_dirs(repo) {
        let head = head_of(repo, &git_dir)?;
        let named = |file: &str| {
            std::fs::read_to_string(git_dir.join(file)).is_ok_and(|name| {
                let name = name.trim();
                name == branch || branch.strip_prefix("refs/heads/") == Some(name)
            })
        };
        let checked_out = head.as_deref() == Some(branch);
        if !checked_out
            && !named("rebase-merge/head-name")
            && !named("rebase-apply/head-name")
            && !named("BISECT_START")
        {
            continue;
        }
        if let Some(dir) = top_of(repo, &git_dir)? {
            found.push(Worktree { dir, git_dir });
        }
    }
    Ok(found)
}

/// The branch that a worktree's HEAD names.
fn head_of(repo: &Repository, git_dir: &Path) -> Result<Option<String>, GitError> {
    let file = git_dir.join("HEAD");
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let named = text.trim().strip_prefix("ref:").map(str::trim);
    // A file that stands for something else: with reftables it is a dummy, very
    // old repositories have a link there.
    if named != Some("refs/heads/.invalid") && !file.is_symlink() {
        return Ok(named.map(str::to_owned));
    }
    let done = GitCommand::persons(git_dir, repo.owner.as_ref())
        .args(["symbolic-ref", "--quiet", "HEAD"])
        .finish()?;
    let name = String::from_utf8_lossy(&done.stdout).trim().to_owned();
    Ok((!name.is_empty()).then_some(name))
}

/// The git directories of a repository's worktrees, the main one first.
fn git_dirs(repo: &Repository) -> Vec<PathBuf> {
    let mut git_dirs = vec![repo.common_dir.clone()];
    if let Ok(entries) = std::fs::read_dir(repo.common_dir.join("worktrees")) {
        git_dirs.extend(entries.filter_map(Result::ok).map(|entry| entry.path()));
    }
    git_dirs
}

/// The top directory that belongs to a git directory; none for a bare repository
/// and for a linked worktree whose directory is gone.
fn top_of(repo: &Repository, git_dir: &Path) -> Result<Option<PathBuf>, GitError> {
    if git_dir == repo.git_dir {
        return Ok(repo.worktree.clone());
    }
    if git_dir != repo.common_dir {
        let link = std::fs::read_to_string(git_dir.join("gitdir")).unwrap_or_default();
        // From git 2.48 on it may be relative.
        let top = git_dir.join(link.trim()).parent().map(Path::to_owned);
        return Ok(top.filter(|top| !link.is_empty() && top.is_dir()));
    }
    let done = GitCommand::persons(git_dir, repo.owner.as_ref())
        .args(["config", "--get", "core.bare"])
        .finish()?;
    if String::from_utf8_lossy(&done.stdout).trim() == "true" {
        return Ok(None);
    }
    let done = GitCommand::persons(git_dir, repo.owner.as_ref())
        .args(["config", "--get", "core.worktree"])
        .finish()?;
    let configured = String::from_utf8_lossy(&done.stdout).trim().to_owned();
    let top = if configured.is_empty() {
        git_dir.parent().map(Path::to_owned)
    } else {
        Some(git_dir.join(configured))
    };
    Ok(top.filter(|top| top.is_dir()))
}

/// A worktree that is about to follow: its index is locked.
#[derive(Debug)]
pub struct Follow<'a> {
    repo: &'a Repository,
    lender: Option<PathBuf>,
    worktree: Worktree,
    lock: Option<IndexLock>,
    old: CommitId,
    new: CommitId,
    changes: Vec<Difference>,
}

impl<'a> Follow<'a> {
    /// Steps 1 to 3 of the module's opening. Until the objects of `new` are in the
    /// repository, they are read from `lender`, an object directory.
    ///
    /// # Errors
    /// [`FollowError::InTheWay`]; nothing has changed then.
    pub fn begin(
        repo: &'a Repository,
        lender: Option<&Path>,
        draft: LockDraft,
        old: &CommitId,
        new: &CommitId,
        patience: Duration,
    ) -> Result<Follow<'a>, FollowError> {
        no_operation(&draft.worktree)?;
        let worktree = draft.worktree.clone();
        let lock = draft.take(patience)?;
        let changes = differences(repo, lender, old, new)?;
        let follow = Follow {
            repo,
            lender: lender.map(Path::to_owned),
            worktree,
            lock: Some(lock),
            old: old.clone(),
            new: new.clone(),
            changes,
        };
        follow.look_at_paths()?;
        follow.copy_index()?;
        let mut judged = follow.read_tree(&["-n"])?;
        if judged.is_err() {
            // To git a file that was only touched is changed until somebody looks
            // into it. Its exit code says that something else is changed.
            follow.git().args(["update-index", "-q", "--refresh"]).finish()?;
            judged = follow.read_tree(&["-n"])?;
        }
        if let Err(said) = judged {
            let worktree = follow.worktree.dir.clone();
            return Err(InTheWay::Dirty { worktree, said: said.trim().replace('\n', " ") }.into());
        }
        Ok(follow)
    }

    /// Step 5, after the commit point.
    ///
    /// # Errors
    /// [`FollowError::LeftAlone`] when a path became something else meanwhile.
    pub fn apply(mut self) -> Result<(), FollowError> {
        hit("follow:update:before").at("update", &self.worktree.dir)?;
        // Looked at again: what appeared since the first look is the person's.
        let clear = match self.look_at_paths() {
            Ok(()) => self.read_tree(&[])?.is_ok(),
            Err(FollowError::InTheWay(_)) => false,
            Err(error) => return Err(error),
        };
        if !clear {
            return self.path_by_path();
        }
        hit("follow:update:after").at("update", &self.worktree.dir)?;
        let paths = self.verify()?;
        self.commit_index()?;
        if paths.is_empty() {
            Ok(())
        } else {
            Err(FollowError::LeftAlone { worktree: self.worktree.dir.clone(), paths })
        }
    }

    fn index_copy(&self) -> PathBuf {
        self.worktree.git_dir.join("dam-index")
    }

    fn copy_index(&self) -> Result<(), GitError> {
        let (index, copy) = (self.worktree.git_dir.join("index"), self.index_copy());
        hit("follow:copy:before").at("copy", &index)?;
        crate::copy_index(&index, &copy)?;
        if let Some(owner) = &self.repo.owner
            && copy.exists()
        {
            std::os::unix::fs::chown(&copy, Some(owner.uid), Some(owner.gid))
                .at("hand over", &copy)?;
        }
        hit("follow:copy:after").at("copy", &copy)
    }

    /// The two-tree update on the copied index; the inner error is what git said.
    fn read_tree(&self, more: &[&str]) -> Result<Result<(), String>, GitError> {
        let done = self
            .git()
            .args(["read-tree", "-m", "-u"])
            .args(more)
            .args([self.old.as_str(), self.new.as_str()])
            .finish()?;
        Ok(if done.status.success() { Ok(()) } else { Err(done.stderr) })
    }

    fn git(&self) -> GitCommand {
        let git = GitCommand::persons(&self.worktree.git_dir, self.repo.owner.as_ref());
        borrowing(git, self.lender.as_deref())
            .work_tree(&self.worktree.dir)
            .env("GIT_INDEX_FILE", self.index_copy())
            .setting("core.splitIndex=false")
    }

    fn place(&self, path: &[u8]) -> PathBuf {
        self.worktree.dir.join(OsStr::from_bytes(path))
    }

    /// Step 2.
    fn look_at_paths(&self) -> Result<(), FollowError> {
        let goes: HashSet<&[u8]> = self
            .changes
            .iter()
            .filter(|change| change.old_mode != 0)
            .map(|change| change.path.as_slice())
            .collect();
        let mut in_the_way = Vec::new();
        let mut dirs = HashSet::new();
        for change in &self.changes {
            if let Some(dir) = self.not_writable(&change.path, &mut dirs) {
                let shown = if dir.is_empty() { b"." } else { dir };
                in_the_way.push(format!("`{}` (not writable)", BytePath::from(shown)));
            }
            if change.new_mode == 0 {
                continue;
            }
            if let Some(what) = self.obstacle(&change.path, change.old_mode != 0, &goes)? {
                in_the_way.push(what);
            }
        }
        if in_the_way.is_empty() {
            return Ok(());
        }
        Err(InTheWay::Paths { worktree: self.worktree.dir.clone(), paths: in_the_way }.into())
    }

    /// The directory that a path lies in or would be made in, when nothing can be
    /// changed there: git would report success and leave its files behind. Each is
    /// told once.
    fn not_writable<'p>(&self, path: &'p [u8], seen: &mut HashSet<&'p [u8]>) -> Option<&'p [u8]> {
        use rustix::fs::{Access, AtFlags, CWD, accessat};
        let above = |path: &'p [u8]| path.iter().rposition(|byte| *byte == b'/');
        let mut dir = path;
        let meta = loop {
            dir = above(dir).map_or(&b""[..], |at| &dir[..at]);
            if !seen.insert(dir) {
                return None;
            }
            match std::fs::symlink_metadata(self.place(dir)) {
                Ok(meta) => break meta,
                Err(_) if dir.is_empty() => return None,
                Err(_) => {}
            }
        };
        if !meta.is_dir() {
            return None;
        }
        let place = self.place(dir);
        let writable = match &self.repo.owner {
            // git works as the owner, not as us.
            Some(owner) => owner.uid != meta.uid() || meta.mode() & 0o300 == 0o300,
            None => {
                let wanted = Access::WRITE_OK | Access::EXEC_OK;
                accessat(CWD, &place, wanted, AtFlags::EACCESS).is_ok()
            }
        };
        (!writable).then_some(dir)
    }

    fn obstacle(
        &self,
        path: &[u8],
        tracked: bool,
        goes: &HashSet<&[u8]>,
    ) -> Result<Option<String>, GitError> {
        let shown = |path: &[u8], what: &str| format!("`{}` ({what})", BytePath::from(path));
        for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            let parent = &path[..at];
            match std::fs::symlink_metadata(self.place(parent)) {
                Ok(meta) if meta.is_dir() => {}
                Ok(_) if goes.contains(parent) => return Ok(None),
                Ok(_) => return Ok(Some(shown(parent, "not a directory"))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error).at("look at", self.place(parent)),
            }
        }
        let place = self.place(path);
        match std::fs::symlink_metadata(&place) {
            Ok(meta) if meta.is_dir() => {
                // An empty directory or one whose whole content goes is no loss.
                let mut kept = None;
                first_kept(&place, path, goes, &mut kept).at("look into", &place)?;
                Ok(kept.map(|kept| shown(&kept, "not tracked")))
            }
            Ok(_) if tracked => Ok(None),
            Ok(_) => Ok(Some(shown(path, "not tracked"))),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error).at("look at", place),
        }
    }

    /// Paths that are not what they should be now.
    fn verify(&self) -> Result<Vec<String>, GitError> {
        let mut wrong = Vec::new();
        for change in &self.changes {
            let meta = std::fs::symlink_metadata(self.place(&change.path)).ok();
            let right = match change.new_mode {
                0 => meta.is_none_or(|meta| meta.is_dir()),
                GITLINK => true,
                mode => meta.is_some_and(|meta| {
                    let symlink = mode == 0o120_000;
                    meta.is_symlink() == symlink && !meta.is_dir()
                }),
            };
            if !right {
                wrong.push(change.path.as_slice());
            }
        }
        if !wrong.is_empty() {
            // Outside of a sparse checkout nothing is to be there.
            let absent = self.absent_by_intent()?;
            wrong.retain(|path| !absent.contains(*path));
        }
        Ok(wrong.into_iter().map(|path| format!("`{}`", BytePath::from(path))).collect())
    }

    /// Paths of the copied index that are not to be in the worktree.
    fn absent_by_intent(&self) -> Result<HashSet<Vec<u8>>, GitError> {
        let listed = self.git().args(["ls-files", "-t", "-z"]).run()?;
        let paths = listed.split(|byte| *byte == 0);
        Ok(paths.filter_map(|line| line.strip_prefix(b"S ")).map(<[u8]>::to_vec).collect())
    }

    /// The copy becomes the index.
    fn commit_index(&mut self) -> Result<(), FollowError> {
        let copy = self.index_copy();
        let Some(lock) = self.lock.take() else { return Ok(()) };
        lock.replace_index(&copy)?;
        hit("follow:copy:remove").at("remove", &copy)?;
        std::fs::remove_file(&copy).at("remove", &copy)?;
        hit("follow:copy:removed").at("remove", &copy)?;
        Ok(())
    }
}

impl Drop for Follow<'_> {
    fn drop(&mut self) {
        let copy = self.index_copy();
        let _ = std::fs::remove_file(&copy);
        let _ = std::fs::remove_file(copy.with_extension("lock"));
    }
}

/// The first thing below `dir` that does not go with the update.
fn first_kept(
    dir: &Path,
    path: &[u8],
    goes: &HashSet<&[u8]>,
    kept: &mut Option<Vec<u8>>,
) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let inner = [path, b"/", entry.file_name().as_bytes()].concat();
        if entry.file_type()?.is_dir() {
            first_kept(&entry.path(), &inner, goes, kept)?;
        } else if !goes.contains(inner.as_slice()) {
            *kept = Some(inner);
        }
        if kept.is_some() {
            break;
        }
    }
    Ok(())
}

fn borrowing(git: GitCommand, lender: Option<&Path>) -> GitCommand {
    match lender {
        Some(objects) => git.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", objects),
        None => git,
    }
}

fn differences(
    repo: &Repository,
    lender: Option<&Path>,
    old: &CommitId,
    new: &CommitId,
) -> Result<Vec<Difference>, GitError> {
    let done = borrowing(repo.git(), lender)
        .args(["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev"])
        .args([old.as_str(), new.as_str()])
        .finish()?;
    if !done.status.success() {
        return Err(done.failed());
    }
    parse_raw(&done.stdout).ok_or_else(|| done.unexpected())
}

fn no_operation(worktree: &Worktree) -> Result<(), InTheWay> {
    let in_progress = [
        ("MERGE_HEAD", "merge"),
        ("rebase-merge", "rebase"),
        ("rebase-apply", "rebase"),
        ("CHERRY_PICK_HEAD", "cherry-pick"),
        ("REVERT_HEAD", "revert"),
        ("BISECT_START", "bisect"),
        // Of several commits, between two of them.
        ("sequencer", "cherry-pick or revert"),
    ];
    for (file, what) in in_progress {
        if worktree.git_dir.join(file).symlink_metadata().is_ok() {
            return Err(InTheWay::Operation { what, worktree: worktree.dir.clone() });
        }
    }
    Ok(())
}

/// A lock file under another name, with an identity that a journal can hold.
/// Dropping it removes the file.
#[derive(Debug)]
pub struct LockDraft {
    worktree: Worktree,
    lock: IndexLock,
}

/// What a journal says about the lock of one worktree.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockRecord {
    /// The worktree.
    pub worktree: Worktree,
    /// The lock file's name before it was taken.
    pub draft: PathBuf,
    /// Device and inode of the lock file.
    pub identity: (u64, u64),
}

impl LockDraft {
    /// Makes the file `dam-lock-NAME` in the worktree's git directory.
    ///
    /// # Errors
    /// [`GitError::Io`].
    pub fn new(repo: &Repository, worktree: Worktree, name: &str) -> Result<LockDraft, GitError> {
        let path = draft_path(&worktree.git_dir, name);
        let index = worktree.git_dir.join("index");
        hit("follow:draft:before").at("make", &path)?;
        let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).open(&path);
        let meta = match file.at("make", &path)?.metadata().at("look at", &path) {
            Ok(meta) => meta,
            Err(error) => {
                let _ = remove_ours(&path);
                return Err(error);
            }
        };
        let lock = IndexLock {
            path,
            identity: (meta.dev(), meta.ino()),
            mode: std::fs::metadata(index).map_or(0o644, |meta| meta.mode() & 0o777),
            owner: repo.owner.clone(),
            held: true,
        };
        hit("follow:draft:after").at("make", &lock.path)?;
        Ok(LockDraft { worktree, lock })
    }

    /// What has to be in the journal before the lock is taken.
    #[must_use]
    pub fn record(&self) -> LockRecord {
        LockRecord {
            worktree: self.worktree.clone(),
            draft: self.lock.path.clone(),
            identity: self.lock.identity,
        }
    }

    fn take(mut self, patience: Duration) -> Result<IndexLock, FollowError> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        let path = self.worktree.git_dir.join("index.lock");
        let deadline = Instant::now() + patience;
        loop {
            hit("follow:lock:before").at("lock", &path)?;
            match renameat_with(CWD, &self.lock.path, CWD, &path, RenameFlags::NOREPLACE) {
                Ok(()) => break,
                Err(rustix::io::Errno::EXIST) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(rustix::io::Errno::EXIST) => return Err(InTheWay::IndexLocked(path).into()),
                Err(error) => return Err(error).at("lock", path)?,
            }
        }
        self.lock.path = path;
        hit("follow:lock:after").at("lock", &self.lock.path)?;
        Ok(self.lock)
    }
}

fn draft_path(git_dir: &Path, name: &str) -> PathBuf {
    git_dir.join(format!("dam-lock-{name}"))
}

/// Removes the drafts of this name that a dead process made and did not come to
/// write down, in whichever worktree.
///
/// # Errors
/// [`GitError::Io`].
pub fn forget_drafts(repo: &Repository, name: &str) -> Result<(), GitError> {
    git_dirs(repo).iter().try_for_each(|git_dir| remove_ours(&draft_path(git_dir, name)))
}

/// Removes a file whose name nobody but us uses, if it is there.
fn remove_ours(path: &Path) -> Result<(), GitError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).at("remove", path),
        _ => Ok(()),
    }
}

/// Our hold on a worktree's index. Dropping it removes the lock file.
#[derive(Debug)]
struct IndexLock {
    path: PathBuf,
    identity: (u64, u64),
    mode: u32,
    owner: Option<RunAs>,
    held: bool,
}

impl IndexLock {
    /// Writes `from` into the lock file and makes that the index.
    fn replace_index(mut self, from: &Path) -> Result<(), GitError> {
        let bytes = std::fs::read(from).at("read", from)?;
        // The second in which git wrote it, not ours: see `copy_index`.
        let time = std::fs::metadata(from).and_then(|meta| meta.modified()).at("look at", from)?;
        let dir = self.path.parent().expect("in a git directory").to_owned();
        let write = || -> io::Result<()> {
            hit("follow:index:write")?;
            std::fs::write(&self.path, &bytes)?;
            let file = std::fs::File::open(&self.path)?;
            file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(self.mode))?;
            if let Some(owner) = &self.owner {
                std::os::unix::fs::fchown(&file, Some(owner.uid), Some(owner.gid))?;
            }
            file.set_modified(time)?;
            file.sync_all()?;
            hit("follow:index:rename")?;
            std::fs::rename(&self.path, dir.join("index"))?;
            hit("follow:index:renamed")?;
            fsync_dir(&dir)
        };
        write().at("write", &self.path)?;
        self.held = false;
        Ok(())
    }
}

impl Drop for IndexLock {
    fn drop(&mut self) {
        // Only what is still ours: after a rename the name can be somebody else's.
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == self.identity);
        if self.held && ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes what a follow that died left behind: its lock, recognised by device
/// and inode, its draft and its copies of the index, which nobody else makes.
///
/// # Errors
/// [`GitError::Io`].
pub fn clean_up(record: &LockRecord) -> Result<(), GitError> {
    let git_dir = &record.worktree.git_dir;
    let lock = git_dir.join("index.lock");
    if std::fs::symlink_metadata(&lock)
        .is_ok_and(|meta| (meta.dev(), meta.ino()) == record.identity)
    {
        hit("follow:unlock").at("remove", &lock)?;
        std::fs::remove_file(&lock).at("remove", &lock)?;
    }
    // The identity does not matter here: recovery makes drafts anew.
    remove_ours(&record.draft)?;
    for name in ["dam-index", "dam-index.lock", "dam-index-one", "dam-index-one.lock"] {
        remove_ours(&git_dir.join(name))?;
    }
    Ok(())
}

/// Goes on after a crash between the ref and the index: the branch is at `new`,
/// the worktree somewhere between `old` and `new`. `draft` is a new lock whose
/// record is in the journal; what the dead one left was removed by [`clean_up`].
///
/// # Errors
/// [`FollowError::LeftAlone`] names paths that are neither; everything else has
/// been brought to `new`.
pub fn resume(
    repo: &Repository,
    draft: LockDraft,
    old: &CommitId,
    new: &CommitId,
) -> Result<(), FollowError> {
    let worktree = draft.worktree.clone();
    let lock = draft.take(Duration::from_secs(5))?;
    let changes = differences(repo, None, old, new)?;
    let (old, new) = (old.clone(), new.clone());
    Follow { repo, lender: None, worktree, lock: Some(lock), old, new, changes }.path_by_path()
}

impl Follow<'_> {
    /// Brings each path from old to new on its own; what is neither stays.
    fn path_by_path(mut self) -> Result<(), FollowError> {
        self.copy_index()?;
        let absent = self.absent_by_intent()?;
        let mut still_absent = Vec::new();
        let mut left_alone = Vec::new();
        // Deletions first, so that a file can become a directory and the other way.
        let mut order: Vec<&Difference> = self.changes.iter().collect();
        order.sort_by_key(|change| change.new_mode != 0);
        let mut info = Vec::new();
        for change in order {
            if absent.contains(&change.path) && self.object_at(&change.path)?.is_none() {
                if change.new_mode != 0 {
                    still_absent.extend(&change.path);
                    still_absent.push(0);
                }
            } else if !self.bring_forward(change)? {
                left_alone.push(format!("`{}`", BytePath::from(change.path.as_slice())));
            }
            // Also a path that was left alone is recorded as landed: what the
            // person has there shows as a change of theirs, and committing it
            // reverts nothing else.
            let line = match change.new_mode {
                0 => format!("0 {}\t", self.repo.format.zero()),
                mode => format!("{mode:o} {}\t", change.new),
            };
            info.extend(line.into_bytes());
            info.extend(&change.path);
            info.push(0);
        }
        hit("follow:paths:after").at("update", &self.worktree.dir)?;
        self.git().args(["update-index", "-z", "--index-info"]).input(info).run()?;
        if !still_absent.is_empty() {
            let git = self.git().args(["update-index", "-z", "--skip-worktree", "--stdin"]);
            git.input(still_absent).run()?;
        }
        // Its exit code only says that something of the person's differs.
        self.git().args(["update-index", "-q", "--refresh"]).finish()?;
        self.commit_index()?;
        if left_alone.is_empty() {
            Ok(())
        } else {
            Err(FollowError::LeftAlone { worktree: self.worktree.dir.clone(), paths: left_alone })
        }
    }

    /// Brings one path from old to new; `false` when it is neither or can't be.
    fn bring_forward(&self, change: &Difference) -> Result<bool, GitError> {
        let now = self.object_at(&change.path)?;
        let is = |mode: u32, oid: &crate::Oid| match &now {
            None => mode == 0,
            Some((found_mode, found)) => *found_mode == mode && found == oid.as_str(),
        };
        if is(change.new_mode, &change.new) {
            return Ok(true);
        }
        if !is(change.old_mode, &change.old) {
            return Ok(false);
        }
        hit("follow:path").at("update", &self.worktree.dir)?;
        let place = self.place(&change.path);
        if change.new_mode == 0 {
            // One that can't be changed is left alone like one that was.
            if std::fs::remove_file(&place).is_err() {
                return Ok(false);
            }
            hit("follow:path:removed").at("update", &self.worktree.dir)?;
            let mut dir = place;
            while dir.pop() && dir != self.worktree.dir && std::fs::remove_dir(&dir).is_ok() {
                hit("follow:path:dir").at("update", &self.worktree.dir)?;
            }
            return Ok(true);
        }
        // git writes the file by its own rules, through an index that holds it alone.
        let index = self.worktree.git_dir.join("dam-index-one");
        let _ = std::fs::remove_file(&index);
        let git = || self.git().env("GIT_INDEX_FILE", &index);
        let mut line = format!("{:o} {}\t", change.new_mode, change.new).into_bytes();
        line.extend(&change.path);
        line.push(0);
        git().args(["update-index", "-z", "--index-info"]).input(line).run()?;
        hit("follow:path:write").at("update", &self.worktree.dir)?;
        let done = git().args(["checkout-index", "--force", "--all"]).finish()?;
        hit("follow:path:written").at("update", &self.worktree.dir)?;
        let _ = std::fs::remove_file(&index);
        Ok(done.status.success())
    }

    /// Mode and object name of what lies at a path, by git's own conversions.
    fn object_at(&self, path: &[u8]) -> Result<Option<(u32, String)>, GitError> {
        let place = self.place(path);
        let meta = match std::fs::symlink_metadata(&place) {
            Ok(meta) if meta.is_dir() => return Ok(None),
            Ok(meta) => meta,
            Err(_) => return Ok(None),
        };
        let (mode, content) = if meta.is_symlink() {
            let target = std::fs::read_link(&place).at("read", &place)?;
            (0o120_000, target.into_os_string().into_encoded_bytes())
        } else {
            let mode = if meta.mode() & 0o100 != 0 { 0o100_755 } else { 0o100_644 };
            (mode, std::fs::read(&place).at("read", &place)?)
        };
        let git = self.git().args(["hash-object", "--stdin"]);
        let git = if mode == 0o120_000 {
            git.args(["--no-filters"])
        } else {
            let mut option = b"--path=".to_vec();
            option.extend(path);
            git.args([OsStr::from_bytes(&option)])
        };
        Ok(Some((mode, git.input(content).oid()?.to_string())))
    }
}

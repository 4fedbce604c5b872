//! The person's repository.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::command::Finished;
use crate::store::{ask_top_file, top_file_in};
use crate::{
    CommitId, GitCommand, GitError, IoContext, ObjectFormat, Oid, PersonConfig, RunAs, Started,
    TreeId, alternates,
};

/// git's exit code for what it can't work on.
const FATAL: i32 = 128;

/// A repository of the person's, found from a directory inside it.
#[derive(Debug, Clone)]
pub struct Repository {
    /// Top directory of the worktree; none for a bare repository, or outside of it.
    pub worktree: Option<PathBuf>,
    /// Where the repository was looked for.
    pub found_in: FoundIn,
    /// This worktree's git directory.
    pub git_dir: PathBuf,
    /// The git directory that all worktrees share.
    pub common_dir: PathBuf,
    /// Where the objects are.
    pub objects: PathBuf,
    /// Hash function.
    pub format: ObjectFormat,
    /// As whom git works on it, when root started us and does not own it.
    pub owner: Option<RunAs>,
}

/// Where in a repository a directory is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundIn {
    /// In its worktree.
    Worktree,
    /// In one that has none.
    Bare,
    /// In its git directory.
    GitDir,
    /// Elsewhere: the configuration names this directory as the worktree.
    Outside(PathBuf),
}

/// What one look at a repository gives.
#[derive(Debug, Clone)]
pub struct Discovered {
    /// The repository.
    pub repo: Repository,
    /// The branch that is checked out, as a full ref name; none when detached.
    pub branch: Option<String>,
    /// The commit that was asked for.
    pub commit: CommitId,
    /// Its tree.
    pub tree: TreeId,
    /// The person's configuration.
    pub config: PersonConfig,
    /// The file that was asked for, of HEAD's tree. None when git could not say or a base
    /// was given; whoever needs it asks again and hears why.
    pub at_head: Option<AtHead>,
}

/// A file at the top of HEAD's tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtHead {
    /// The tree.
    pub tree: TreeId,
    /// Its content; none when the tree has no such file.
    pub file: Option<Vec<u8>>,
    /// That the file is not there was said of HEAD a moment after what its tree is: it is
    /// true of that tree if HEAD has not moved since.
    pub unconfirmed: bool,
}

/// A look at a repository that goes on by itself: calls of git, side by side.
#[derive(Debug)]
pub struct Discovery<'a> {
    dir: &'a Path,
    base: Option<&'a str>,
    file: &'a str,
    owner: Option<RunAs>,
    config: Started,
    at_head: Option<Started>,
    place: Asked,
}

impl<'a> Discovery<'a> {
    /// Begins to look for the repository that `dir` is in, its configuration, the
    /// commit `base` in it (`HEAD` when none is given) and, without a base, the file
    /// `file` at the top of HEAD.
    ///
    /// To start git takes longer than what it is asked, and most repositories have no
    /// such file: only where the checkout seems to have it, a git of its own reads it.
    /// The one that says where the repository is can say that it is not there.
    ///
    /// # Errors
    /// [`GitError::NotStarted`]; [`GitError::NoSuchRevision`] and
    /// [`GitError::Unsupported`] for what can't be asked for.
    pub fn start(
        dir: &'a Path,
        base: Option<&'a str>,
        file: &'a str,
    ) -> Result<Discovery<'a>, GitError> {
        let revision = base.unwrap_or("HEAD");
        if revision.starts_with('-') {
            return Err(GitError::NoSuchRevision(revision.to_owned()));
        }
        let owner = RunAs::owner_of(dir).at("look at", dir)?;
        let git = || GitCommand::discovering(owner.as_ref()).current_dir(dir);
        let asked = [format!("{revision}^{{commit}}"), format!("{revision}^{{tree}}")];
        let more = ["--symbolic-full-name", "HEAD"].map(str::to_owned);
        let last = base.is_none().then(|| format!("HEAD:{file}"));
        let place = ask(git(), asked.iter().chain(&more), last)?;
        let config = PersonConfig::start(git())?;
        let read = base.is_none() && dir.ancestors().any(|dir| dir.join(file).exists());
        let at_head = if read { Some(ask_top_file(git(), "HEAD", file).start()?) } else { None };
        Ok(Discovery { dir, base, file, owner, config, at_head, place })
    }

    /// What was found.
    ///
    /// # Errors
    /// [`GitError::NotARepository`], [`GitError::Unborn`],
    /// [`GitError::NoSuchRevision`]; [`GitError::Failed`] when the configuration
    /// is broken; [`GitError::Unsupported`] when it is of a kind that this git is too old for.
    pub fn finish(self) -> Result<Discovered, GitError> {
        let at_head = self.at_head.map(Started::finish).transpose()?;
        let (repo, Said { lines, last_is_missing }) = answered(self.dir, self.owner, self.place)?;
        let oid = |at: usize| lines.get(at).and_then(|line| Oid::parse(line));
        let (Some(commit), Some(tree)) = (oid(0), oid(1)) else {
            return Err(match self.base {
                None => repo.without_head(self.dir)?,
                Some(base) => GitError::NoSuchRevision(base.to_owned()),
            });
        };
        let head = match lines.get(2) {
            Some(head) => Some(head.clone()),
            // Beside a tag or branch of the name `HEAD`, it is said to be ambiguous.
            None => repo.head()?,
        };
        let branch = head.filter(|head| head.starts_with("refs/heads/"));
        let config = PersonConfig::finish(self.config)?;
        let (commit, tree) = (CommitId(commit), TreeId(tree));
        let at_head =
            match at_head {
                Some(read) => top_file_in(&read.stdout, "HEAD", self.file)
                    .map(|(tree, file)| AtHead { tree, file, unconfirmed: false }),
                // Only of a branch can be found out whether it moved.
                None if last_is_missing && branch.is_some() => {
                    Some(AtHead { tree: tree.clone(), file: None, unconfirmed: true })
                }
                None => None,
            };
        Ok(Discovered { repo, branch, commit, tree, config, at_head })
    }
}

impl Repository {
    /// Finds the repository that `dir` is in, whatever it has checked out.
    ///
    /// # Errors
    /// [`GitError::NotARepository`]; [`GitError::Gone`] when there is no such directory.
    pub fn find(dir: &Path) -> Result<Repository, GitError> {
        if !dir.exists() {
            return Err(GitError::Gone(dir.into()));
        }
        let owner = RunAs::owner_of(dir).at("look at", dir)?;
        let asked = ask(GitCommand::discovering(owner.as_ref()).current_dir(dir), &[], None)?;
        Ok(answered(dir, owner, asked)?.0)
    }

    /// The variable of the caller's that names another repository than this one, for a
    /// git that would be started in `dir`, with what it names. A hook is started with
    /// ones that name this one.
    #[must_use]
    pub fn named_otherwise(&self, dir: &Path) -> Option<(&'static str, PathBuf)> {
        let own = [
            ("GIT_DIR", Some(&self.git_dir)),
            ("GIT_COMMON_DIR", Some(&self.common_dir)),
            ("GIT_WORK_TREE", self.worktree.as_ref()),
        ];
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        own.into_iter().find_map(|(name, own)| {
            let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
            let named = real(&dir.join(value));
            let same = own.is_some_and(|own| real(own) == named);
            (!same).then_some((name, named))
        })
    }

    /// A call of git on this repository, with the person's configuration.
    #[must_use]
    pub fn git(&self) -> GitCommand {
        let git = GitCommand::persons(&self.git_dir, self.owner.as_ref());
        match &self.worktree {
            Some(worktree) => git.work_tree(worktree),
            None => git,
        }
    }

    /// A short name for this repository that is the same from each of its
    /// worktrees: readable part and hash of its path. One of another object format that
    /// was made in its place is another.
    #[must_use]
    pub fn key(&self) -> String {
        use std::fmt::Write;
        let mut hash = Sha256::new_with_prefix(self.common_dir.as_os_str().as_bytes());
        if self.format != ObjectFormat::Sha1 {
            hash.update([0]);
            hash.update(self.format.as_str());
        }
        let hash = hash.finalize();
        let named = if self.common_dir.ends_with(".git") {
            self.common_dir.parent().unwrap_or(&self.common_dir)
        } else {
            &self.common_dir
        };
        let mut key: String = named
            .file_name()
            .map(|name| name.to_string_lossy().to_lowercase())
            .unwrap_or_default()
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(24)
            .collect();
        key.push('-');
        for byte in &hash[..6] {
            let _ = write!(key, "{byte:02x}");
        }
        key
    }

    /// Why HEAD has no commit and tree.
    fn without_head(&self, dir: &Path) -> Result<GitError, GitError> {
        let done = self.git().args(["rev-parse", "--verify", "--quiet", "HEAD"]).finish()?;
        let text = String::from_utf8_lossy(&done.stdout).trim().to_owned();
        let Some(oid) = Oid::parse(&text).filter(|_| done.status.success()) else {
            return Ok(GitError::Unborn(dir.into()));
        };
        let done = self.git().args(["ls-tree", "-r", oid.as_str()]).finish()?;
        Ok(match done.failed() {
            GitError::Failed { .. } => GitError::MissingObject(oid),
            other => other,
        })
    }

    /// The ref that HEAD names; none when it is detached.
    fn head(&self) -> Result<Option<String>, GitError> {
        let done = self.git().args(["symbolic-ref", "--quiet", "HEAD"]).finish()?;
        match done.status.code() {
            Some(0) => Ok(Some(String::from_utf8_lossy(&done.stdout).trim_end().to_owned())),
            Some(1) => Ok(None),
            _ => Err(done.failed()),
        }
    }

    /// The branch because of which git can't make `branch`, a full ref name: one name
    /// can't begin with another and a slash.
    ///
    /// # Errors
    /// [`GitError`] when git can't say.
    pub fn in_the_way_of(&self, branch: &str) -> Result<Option<String>, GitError> {
        let heads = "refs/heads/";
        let shorter = branch.match_indices('/').map(|(at, _)| &branch[..at]);
        // As a glob it is that ref alone, and not what is below it.
        let alone = shorter.filter(|name| name.len() > heads.len()).map(|name| {
            let (start, last) = name.split_at(name.len() - 1);
            format!("{start}[{last}]")
        });
        let out = self
            .git()
            .args(["for-each-ref", "--count=1", "--format=%(refname)"])
            .args(alone.chain([format!("{branch}/")]))
            .run()?;
        let name = String::from_utf8_lossy(&out).trim_end().to_owned();
        Ok(name.strip_prefix(heads).map(str::to_owned))
    }

    /// What a ref points at; none when it does not exist.
    ///
    /// # Errors
    /// [`GitError`] when git can't say.
    pub fn resolve(&self, name: &str) -> Result<Option<CommitId>, GitError> {
        let done = self
            .git()
            .args(["rev-parse", "--verify", "--quiet", "--end-of-options"])
            .args([format!("{name}^{{commit}}")])
            .finish()?;
        if !done.status.success() {
            // A warning is that of a symbolic ref to nothing.
            let only_warns = done.stderr.lines().all(|line| line.starts_with("warning: "));
            return if only_warns { Ok(None) } else { Err(done.failed()) };
        }
        let text = String::from_utf8_lossy(&done.stdout).trim().to_owned();
        match Oid::parse(&text) {
            Some(oid) => Ok(Some(CommitId(oid))),
            None => Err(done.unexpected()),
        }
    }

    /// Directories of objects that this repository borrows, itself first.
    ///
    /// # Errors
    /// When an alternates file can't be read.
    pub fn object_dirs(&self) -> Result<Vec<PathBuf>, GitError> {
        const MOST: usize = 32;
        let mut dirs = vec![self.objects.clone()];
        let mut at = 0;
        while let Some(dir) = dirs.get(at).cloned() {
            at += 1;
            for path in alternates::of(&dir)? {
                let path = std::fs::canonicalize(&path).unwrap_or(path);
                if !dirs.contains(&path) && path.is_dir() && dirs.len() < MOST {
                    dirs.push(path);
                }
            }
        }
        Ok(dirs)
    }
}

/// What `git rev-parse` was asked.
#[derive(Debug)]
struct Asked {
    git: Started,
    /// Echoed between the answers that are paths: one may have a line break in it.
    mark: String,
}

/// Asks `git rev-parse` where the repository is, `questions`, and, in a worktree, for the
/// object `last`. It stops at the first that it can't answer, echoing it perhaps.
fn ask<'a>(
    git: GitCommand,
    questions: impl IntoIterator<Item = &'a String>,
    last: Option<String>,
) -> Result<Asked, GitError> {
    let random = cofferdam_tree::random_name(16).map_err(|error| GitError::Io {
        step: "ask",
        path: "getrandom".into(),
        source: error,
    })?;
    let mark = format!("--end-{random}");
    let git = git
        .args(["rev-parse", "--path-format=absolute"])
        .args(["--is-bare-repository", "--show-object-format", "--git-dir", &mark])
        .args(["--git-common-dir", &mark, "--git-path", "objects", &mark])
        .args(["--is-inside-work-tree"])
        .args(questions)
        // Without a worktree it is an error, or no answer.
        .args([&mark, "--show-cdup", &mark])
        .args(last)
        .start()?;
    Ok(Asked { git, mark })
}

/// What [`ask`] was told beside where the repository is.
struct Said {
    /// To its questions, as far as they were answered.
    lines: Vec<String>,
    /// That the tree in which the last object was looked for has none of that name.
    last_is_missing: bool,
}

/// The answers to [`ask`].
fn answered(
    dir: &Path,
    owner: Option<RunAs>,
    asked: Asked,
) -> Result<(Repository, Said), GitError> {
    let done = asked.git.finish()?;
    let Some((found, rest)) = parse(&done.stdout, &asked.mark) else {
        return Err(if done.stderr.contains("not a git repository") {
            GitError::NotARepository(dir.into())
        } else if done.stderr.contains("detected dubious ownership") {
            GitError::NotTrusted { dir: dir.into() }
        } else {
            unusable(dir, done)
        });
    };
    let format = match found.format.as_str() {
        "sha1" => ObjectFormat::Sha1,
        "sha256" => ObjectFormat::Sha256,
        other => {
            return Err(GitError::Unsupported(format!("object format `{other}` is not known")));
        }
    };
    let mut answers = rest.lines().map(str::to_owned);
    let inside = answers.next();
    let lines: Vec<String> = answers.by_ref().take_while(|line| *line != asked.mark).collect();
    let up = answers.next().filter(|line| *line != asked.mark);
    let (worktree, found_in) = match (found.bare.as_str(), inside.as_deref(), up) {
        ("false", Some("true"), Some(up)) => {
            let top = dir.join(up);
            (Some(std::fs::canonicalize(&top).at("find", top)?), FoundIn::Worktree)
        }
        ("false", _, Some(other)) if !other.is_empty() => (None, FoundIn::Outside(other.into())),
        ("false", ..) => (None, FoundIn::GitDir),
        _ => (None, FoundIn::Bare),
    };
    let [git_dir, common_dir, objects] = found.paths;
    let repo = Repository { worktree, found_in, git_dir, common_dir, objects, format, owner };
    // `path 'x' does not exist in 'HEAD'`, or, if the checkout has one, `exists on disk, but
    // not in 'HEAD'`; of an object that can't be had, something else.
    let missing = [" does not exist in 'HEAD'", " exists on disk, but not in 'HEAD'"];
    let last_is_missing = missing.iter().any(|what| done.stderr.contains(what));
    Ok((repo, Said { lines, last_is_missing }))
}

/// Why git can't say where the repository is: its configuration is broken, or of a
/// kind that this git does not know.
fn unusable(dir: &Path, done: Finished) -> GitError {
    match done.failed() {
        error if error.is_of_this_machine() || error.is_denied() => error,
        error @ GitError::Failed { code: Some(FATAL), .. } => GitError::Unsupported(format!(
            "git can't work on the repository at `{}`: {}",
            dir.display(),
            error.in_words()
        )),
        error => error,
    }
}

/// The first answers to [`ask`], which are those about the repository.
struct Found {
    bare: String,
    format: String,
    /// Git directory, common directory, objects.
    paths: [PathBuf; 3],
}

/// Parts what git answered; gives the lines behind [`Found`] as well.
fn parse(answer: &[u8], mark: &str) -> Option<(Found, String)> {
    let mark = format!("\n{mark}\n").into_bytes();
    let mut rest = answer;
    let mut paths = Vec::new();
    for _ in 0..3 {
        let end = rest.windows(mark.len()).position(|bytes| bytes == mark)?;
        paths.push(&rest[..end]);
        rest = &rest[end + mark.len()..];
    }
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let mut first = paths[0].splitn(3, |byte| *byte == b'\n');
    let (bare, format) = (text(first.next()?)?, text(first.next()?)?);
    let paths = [first.next()?, paths[1], paths[2]];
    let paths = paths.map(|path| PathBuf::from(OsStr::from_bytes(path)));
    Some((Found { bare, format, paths }, text(rest)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_parted_whatever_the_paths_are() {
        let answer = b"false\nsha1\n/a\nb\xff/.git\n--end-1\n/c\n--end-1\n/d\n--end-1\ntrue\n../\n";
        let (found, rest) = parse(answer, "--end-1").unwrap();
        assert_eq!((found.bare.as_str(), found.format.as_str()), ("false", "sha1"));
        let [git_dir, common_dir, objects] = found.paths;
        assert_eq!(git_dir.as_os_str().as_bytes(), b"/a\nb\xff/.git");
        assert_eq!((common_dir, objects), ("/c".into(), "/d".into()));
        assert_eq!(rest, "true\n../\n");
        assert!(parse(b"false\nsha1\n/a\n", "--end-1").is_none());
    }
}

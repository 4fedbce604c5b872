//! The person's repository.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::store::{ask_top_file, top_file_in};
use crate::{
    CommitId, GitCommand, GitError, IoContext, ObjectFormat, Oid, PersonConfig, RunAs, Started,
    TreeId, version,
};

/// git's exit code for an option that it does not know.
const USAGE: i32 = 129;

/// A repository of the person's, found from a directory inside it.
#[derive(Debug, Clone)]
pub struct Repository {
    /// Top directory of the worktree; none for a bare repository.
    pub worktree: Option<PathBuf>,
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
    /// The tree of HEAD and the file that was asked for in it. None when git could
    /// not say; whoever needs it asks again and hears why.
    pub at_head: Option<(TreeId, Option<Vec<u8>>)>,
}

/// A look at a repository that goes on by itself: calls of git, side by side.
#[derive(Debug)]
pub struct Discovery<'a> {
    dir: &'a Path,
    base: Option<&'a str>,
    file: &'a str,
    owner: Option<RunAs>,
    config: Started,
    at_head: Started,
    place: Started,
}

impl<'a> Discovery<'a> {
    /// Begins to look for the repository that `dir` is in, its configuration, the
    /// commit `base` in it (`HEAD` when none is given) and the file `file` at the
    /// top of HEAD.
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
        let place = ask(dir, git(), asked.iter().chain(&more))?;
        let config = PersonConfig::start(git())?;
        let at_head = ask_top_file(git(), "HEAD", file).start()?;
        Ok(Discovery { dir, base, file, owner, config, at_head, place })
    }

    /// What was found.
    ///
    /// # Errors
    /// [`GitError::NotARepository`], [`GitError::Unborn`],
    /// [`GitError::NoSuchRevision`]; [`GitError::Failed`] when the configuration
    /// is broken; [`GitError::Unsupported`] when this git is too old.
    pub fn finish(self) -> Result<Discovered, GitError> {
        let at_head = self.at_head.finish()?;
        if at_head.status.code() == Some(USAGE) {
            version::query()?;
        }
        let (repo, lines) = answered(self.dir, self.owner, self.place, 3)?;
        let oid = |at: usize| lines.get(at).and_then(|line| Oid::parse(line));
        let (Some(commit), Some(tree), Some(head)) = (oid(0), oid(1), lines.get(2)) else {
            return Err(match self.base {
                None => GitError::Unborn(self.dir.into()),
                Some(base) => GitError::NoSuchRevision(base.to_owned()),
            });
        };
        let branch = head.starts_with("refs/heads/").then(|| head.clone());
        let config = PersonConfig::finish(self.config)?;
        let at_head = top_file_in(&at_head.stdout, "HEAD", self.file);
        let (commit, tree) = (CommitId(commit), TreeId(tree));
        Ok(Discovered { repo, branch, commit, tree, config, at_head })
    }
}

impl Repository {
    /// Finds the repository that `dir` is in, whatever it has checked out.
    ///
    /// # Errors
    /// [`GitError::NotARepository`].
    pub fn find(dir: &Path) -> Result<Repository, GitError> {
        let owner = RunAs::owner_of(dir).at("look at", dir)?;
        let asked = ask(dir, GitCommand::discovering(owner.as_ref()).current_dir(dir), &[])?;
        Ok(answered(dir, owner, asked, 0)?.0)
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
    /// worktrees: readable part and hash of its path.
    #[must_use]
    pub fn key(&self) -> String {
        use std::fmt::Write;
        use std::os::unix::ffi::OsStrExt;
        let hash = Sha256::digest(self.common_dir.as_os_str().as_bytes());
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
            return if done.stderr.trim().is_empty() { Ok(None) } else { Err(done.failed()) };
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
            let file = dir.join("info/alternates");
            let text = match std::fs::read_to_string(&file) {
                Ok(text) => text,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error).at("read", &file),
            };
            for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
                let path = dir.join(line);
                let path = std::fs::canonicalize(&path).unwrap_or(path);
                if !dirs.contains(&path) && path.is_dir() && dirs.len() < MOST {
                    dirs.push(path);
                }
            }
        }
        Ok(dirs)
    }
}

/// Asks `git rev-parse` where the repository is, and `questions`. It stops at the
/// first that it can't answer, echoing it perhaps.
fn ask<'a>(
    dir: &Path,
    git: GitCommand,
    questions: impl IntoIterator<Item = &'a String>,
) -> Result<Started, GitError> {
    // Its answers are lines.
    let here = std::fs::canonicalize(dir).at("find", dir)?;
    if here.as_os_str().as_encoded_bytes().contains(&b'\n') {
        let why = "a path with a line break in it is not supported yet";
        return Err(GitError::Unsupported(
            format!("`{}`: {why}", here.display()).replace('\n', "\\n"),
        ));
    }
    git.args(["rev-parse", "--path-format=absolute", "--is-bare-repository"])
        .args(["--git-dir", "--git-common-dir", "--git-path", "objects"])
        .args(["--show-object-format", "--is-inside-work-tree"])
        .args(questions)
        // Last: without a worktree it is an error.
        .args(["--show-cdup"])
        .start()
}

/// The answers to [`ask`]: the repository, and what was said to its questions, to
/// which `expected` answers are expected.
fn answered(
    dir: &Path,
    owner: Option<RunAs>,
    asked: Started,
    expected: usize,
) -> Result<(Repository, Vec<String>), GitError> {
    let done = asked.finish()?;
    let text = String::from_utf8(done.stdout.clone())
        .map_err(|_| GitError::Unsupported("the repository's path is not UTF-8".into()))?;
    let lines: Vec<&str> = text.lines().collect();
    let [bare, git_dir, common_dir, objects, format, inside, answers @ ..] = lines.as_slice()
    else {
        return Err(if done.stderr.contains("not a git repository") {
            GitError::NotARepository(dir.into())
        } else if done.stderr.contains("detected dubious ownership") {
            GitError::NotTrusted { dir: dir.into() }
        } else {
            done.failed()
        });
    };
    let format = match *format {
        "sha1" => ObjectFormat::Sha1,
        "sha256" => ObjectFormat::Sha256,
        other => {
            return Err(GitError::Unsupported(format!("object format `{other}` is not known")));
        }
    };
    let worktree = match (*bare, *inside, answers.get(expected)) {
        ("false", "true", Some(up)) => {
            let top = dir.join(up);
            Some(std::fs::canonicalize(&top).at("find", top)?)
        }
        _ => None,
    };
    let repo = Repository {
        worktree,
        git_dir: git_dir.into(),
        common_dir: common_dir.into(),
        objects: objects.into(),
        format,
        owner,
    };
    Ok((repo, answers.iter().take(expected).map(|line| (*line).to_owned()).collect()))
}

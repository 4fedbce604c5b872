//! A branch of a remote repository as target.
//!
//! The remote is asked for its tip, the tip is fetched into our store, and the
//! verified commit is pushed with the exact expected old value, never forced.
//! The person's repository is only read: for the remote's address and what it
//! takes to log in there.

use crate::publish::RefError;
use crate::{CommitId, GitCommand, GitError, Oid, PersonConfig, Repository, Store, in_one_line};

/// A branch of a remote.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RemoteBranch {
    /// Name of the remote.
    pub remote: String,
    /// Branch without `refs/heads/`.
    pub branch: String,
}

impl RemoteBranch {
    /// Reads `REMOTE/BRANCH` when the repository has a remote of that name.
    #[must_use]
    pub fn parse(text: &str, config: &PersonConfig) -> Option<RemoteBranch> {
        config.remotes().into_iter().find_map(|(remote, _)| {
            let branch = text.strip_prefix(&remote)?.strip_prefix('/')?;
            (!branch.is_empty())
                .then(|| RemoteBranch { remote: remote.clone(), branch: branch.into() })
        })
    }

    fn refname(&self) -> String {
        format!("refs/heads/{}", self.branch)
    }

    fn url(&self, repo: &Repository, push: bool) -> Result<String, GitError> {
        let mut git = repo.git().args(["remote", "get-url"]);
        if push {
            git = git.args(["--push"]);
        }
        let out = git.args(["--", &self.remote]).run()?;
        Ok(String::from_utf8_lossy(&out).lines().next().unwrap_or_default().to_owned())
    }

    /// The branch's tip at the remote now, with its objects in our store; `None`
    /// when the remote has no such branch.
    ///
    /// # Errors
    /// [`GitError`], for example when the remote can't be reached.
    pub fn fetch(&self, store: &Store, repo: &Repository) -> Result<Option<CommitId>, GitError> {
        let url = self.url(repo, false)?;
        let out = repo.git().args(["ls-remote", "--", &url, &self.refname()]).run()?;
        let text = String::from_utf8_lossy(&out);
        let Some(oid) = text.lines().find_map(|line| {
            let (oid, name) = line.split_once('\t')?;
            (name == self.refname()).then(|| Oid::parse(oid))?
        }) else {
            return Ok(None);
        };
        if !store.has(oid.as_str())? {
            through_store(store, repo)
                .args(["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--", &url])
                .args([self.refname()])
                .run()?;
        }
        Ok(Some(CommitId(oid)))
    }

    /// Moves the branch from `old` to `new` at the remote.
    ///
    /// # Errors
    /// [`RefError::Moved`] when it is not at `old` any more; [`RefError::Refused`] when
    /// the remote does not take it, or can't be reached.
    pub fn push(
        &self,
        store: &Store,
        repo: &Repository,
        old: Option<&CommitId>,
        new: &CommitId,
    ) -> Result<(), RefError> {
        let url = self.url(repo, true)?;
        let name = self.refname();
        let expected = old.map_or(String::new(), ToString::to_string);
        let done = through_store(store, repo)
            .args(["push", "--porcelain", "--no-verify", "--no-follow-tags"])
            .args([
                "--recurse-submodules=no".to_owned(),
                format!("--force-with-lease={name}:{expected}"),
            ])
            .args(["--", &url, &format!("{new}:{name}")])
            .finish()?;
        if done.status.success() {
            return Ok(());
        }
        let answer = String::from_utf8_lossy(&done.stdout);
        let name = format!("{}/{}", self.remote, self.branch);
        match verdict(&answer) {
            Some(no) if no.starts_with("[rejected]") => {
                let expected = old.map_or("absent".into(), |old| old.0.short().to_owned());
                Err(RefError::Moved { name, expected })
            }
            Some(no) => {
                let said = relayed(&done.stderr);
                let why = format!("was refused by the remote: {no}{said}");
                Err(RefError::Refused { name, why })
            }
            None if is_unreached(&done.stderr) => {
                let why = format!("can't be reached: {}", in_one_line(&done.stderr));
                Err(RefError::Refused { name, why })
            }
            // On which side of the change it broke off, nobody knows.
            None => Err(done.failed().into()),
        }
    }
}

/// What became of the one ref that was pushed, when it was not taken: the third field of
/// its line (git-push(1), `--porcelain`).
fn verdict(answer: &str) -> Option<&str> {
    answer.lines().find_map(|line| line.strip_prefix("!\t")?.split('\t').nth(1))
}

/// What the other end said, hooks included.
fn relayed(stderr: &str) -> String {
    let lines = stderr.lines().filter_map(|line| line.strip_prefix("remote:"));
    let said = in_one_line(&lines.collect::<Vec<_>>().join("\n"));
    if said.is_empty() { said } else { format!(": {said}") }
}

/// Whether git never heard where the remote's refs are, so that nothing was sent
/// (`connect.c`, `remote-curl.c`).
fn is_unreached(stderr: &str) -> bool {
    const SAYS: [&str; 3] = [
        "Could not read from remote repository",
        "the remote end hung up upon initial contact",
        "unable to access '",
    ];
    SAYS.iter().any(|said| stderr.contains(said))
}

/// The person's configuration, credentials helper included, on our objects.
fn through_store(store: &Store, repo: &Repository) -> GitCommand {
    GitCommand::persons(store.dir(), repo.owner.as_ref()).setting("credential.interactive=false")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_remote_says_is_no_verdict() {
        let answer = "To r.git\n!\tabc:refs/heads/main\t[remote rejected] (hook declined)\nDone\n";
        assert_eq!(verdict(answer), Some("[remote rejected] (hook declined)"));
        assert_eq!(verdict("To r.git\n=\tabc:refs/heads/main\t[up to date]\n"), None);
        let said =
            "remote: no: fetch first        \nremote:  \nerror: failed to push some refs to 'r'\n";
        assert_eq!(relayed(said), ": no: fetch first");
        assert_eq!(relayed("error: failed to push some refs to 'r'\n"), "");
    }
}

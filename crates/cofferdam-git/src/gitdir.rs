//! A context's private `.git`: generated, never copied.
//!
//! The index and the empty directories are part of a layer and shared; what
//! names the task is written per context. Refs come by value, objects are
//! borrowed from places inside the context that are mounted read-only.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::{CommitId, GitError, IoContext, PersonConfig, Repository, Started, alternates};

/// Where the borrowed object directories appear inside a context, numbered from 0.
pub const OBJECTS_INSIDE: &str = "/run/dam/objects";

/// Where content that Git LFS keeps appears: beside the object directories, where
/// `git-lfs` looks for what it can borrow.
pub const LFS_INSIDE: &str = "/run/dam/objects/lfs/objects";

/// What is borrowed inside by most: the objects of a repository that borrows none.
fn one_inside() -> PathBuf {
    Path::new(OBJECTS_INSIDE).join("0")
}

/// Makes the part of `.git` that is the same for every context of a layer.
pub(crate) fn write_skeleton(git: &Path) -> Result<(), GitError> {
    for dir in ["objects/info", "objects/pack", "refs/heads", "refs/tags", "hooks", "info"] {
        let path = git.join(dir);
        std::fs::create_dir_all(&path).at("make", &path)?;
    }
    let borrowed = git.join("objects/info/alternates");
    std::fs::write(&borrowed, alternates::file_of([one_inside().as_path()]))
        .at("write", borrowed)?;
    let path = git.join("description");
    std::fs::write(&path, "A context of Cofferdam. Its repository is elsewhere.\n")
        .at("write", path)
}

/// A ref by value: object, name, and what an annotated tag points at.
#[derive(Debug, Clone)]
pub struct RefValue {
    /// Full name.
    pub name: String,
    /// Object name in hex.
    pub oid: String,
    /// For a tag object, what it stands for.
    pub peeled: Option<String>,
}

/// Starts to list the branches, tags, remote-tracking refs and notes of the
/// repository, for [`listed_refs`].
///
/// # Errors
/// [`GitError::NotStarted`].
pub fn list_refs(repo: &Repository) -> Result<Started, GitError> {
    repo.git()
        .args(["for-each-ref", "--format=%(objectname) %(*objectname) %(refname)"])
        .args(["refs/heads/", "refs/tags/", "refs/remotes/", "refs/notes/"])
        .start()
}

/// The refs.
///
/// # Errors
/// [`GitError`] when git can't list them.
pub fn listed_refs(started: Started) -> Result<Vec<RefValue>, GitError> {
    let out = started.run()?;
    let text = String::from_utf8_lossy(&out);
    Ok(text
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ' ');
            let (oid, peeled, name) = (parts.next()?, parts.next()?, parts.next()?);
            let peeled = (!peeled.is_empty()).then(|| peeled.to_owned());
            Some(RefValue { name: name.to_owned(), oid: oid.to_owned(), peeled })
        })
        .collect())
}

/// What a context's `.git` says.
#[derive(Debug, Clone, Copy)]
pub struct TaskGit<'a> {
    /// The repository it borrows from.
    pub repo: &'a Repository,
    /// The person's configuration.
    pub config: &'a PersonConfig,
    /// Its branch without `refs/heads/`; none in a submodule, where HEAD is detached.
    pub branch: Option<&'a str>,
    /// Where HEAD stands.
    pub commit: &'a CommitId,
    /// The other refs.
    pub refs: &'a [RefValue],
    /// The object directories that are borrowed, as the task finds them.
    pub object_dirs: &'a [PathBuf],
    /// Extra patterns of what is ignored.
    pub excludes: &'a [u8],
}

impl TaskGit<'_> {
    /// Writes it into `git`, a directory of the context's upper that exists and
    /// holds no more than an index and empty directories.
    ///
    /// # Errors
    /// [`GitError::Io`].
    pub fn write(&self, git: &Path) -> Result<(), GitError> {
        let put = |name: &str, text: &[u8]| {
            let path = git.join(name);
            std::fs::write(&path, text).at("write", path)
        };
        let make = |dir: &str| {
            let path = git.join(dir);
            std::fs::create_dir_all(&path).at("make", path)
        };
        make("")?;
        let head = match self.branch {
            Some(branch) => format!("ref: refs/heads/{branch}\n"),
            None => format!("{}\n", self.commit),
        };
        put("HEAD", head.as_bytes())?;
        put("packed-refs", self.packed_refs().as_bytes())?;
        put("config", self.config_text().as_bytes())?;
        if !self.excludes.is_empty() {
            make("info")?;
            put("info/exclude", self.excludes)?;
        }
        // What a layer says shows through an upper that says nothing else.
        if self.object_dirs != [one_inside()] || git.join("objects").exists() {
            make("objects/info")?;
            let borrowed = alternates::file_of(self.object_dirs.iter().map(PathBuf::as_path));
            put("objects/info/alternates", &borrowed)?;
        }
        let shallow = self.repo.common_dir.join("shallow");
        match std::fs::read(&shallow) {
            Ok(bytes) => put("shallow", &bytes),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error).at("read", shallow),
        }
    }

    fn packed_refs(&self) -> String {
        let own = self.branch.map(|branch| RefValue {
            name: format!("refs/heads/{branch}"),
            oid: self.commit.to_string(),
            peeled: None,
        });
        let is_own = |value: &RefValue| own.as_ref().is_some_and(|own| own.name == value.name);
        let mut refs: Vec<&RefValue> = self.refs.iter().filter(|value| !is_own(value)).collect();
        refs.extend(&own);
        refs.sort_by(|a, b| a.name.cmp(&b.name));
        let mut text = "# pack-refs with: peeled fully-peeled sorted \n".to_owned();
        for value in refs {
            let _ = writeln!(text, "{} {}", value.oid, value.name);
            if let Some(peeled) = &value.peeled {
                let _ = writeln!(text, "^{peeled}");
            }
        }
        text
    }

    fn config_text(&self) -> String {
        let mut text = "[core]\n".to_owned();
        let sha256 = self.repo.format == crate::ObjectFormat::Sha256;
        let _ = writeln!(text, "\trepositoryformatversion = {}", u8::from(sha256));
        text.push_str("\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n");
        for key in ["autocrlf", "eol", "ignorecase"] {
            if let Some(value) = self.config.get(&format!("core.{key}")) {
                let _ = writeln!(text, "\t{key} = {}", quoted(value));
            }
        }
        if sha256 {
            text.push_str("[extensions]\n\tobjectformat = sha256\n");
        }
        if let Some((name, mail)) = self.config.identity() {
            let _ =
                writeln!(text, "[user]\n\tname = {}\n\temail = {}", quoted(&name), quoted(&mail));
        }
        for (name, url) in self.config.remotes() {
            let _ = writeln!(
                text,
                "[remote {}]\n\turl = {}\n\tfetch = {}",
                quoted(&name),
                quoted(&url),
                quoted(&format!("+refs/heads/*:refs/remotes/{name}/*"))
            );
        }
        // Not required: where the program can't be seen, a task has the content still.
        for what in ["clean", "smudge", "process"] {
            if let Some(value) = self.config.get(&format!("filter.lfs.{what}")) {
                let _ = writeln!(text, "[filter \"lfs\"]\n\t{what} = {}", quoted(value));
            }
        }
        // The objects are borrowed; packing them here would copy them all.
        text.push_str("[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n");
        text
    }
}

/// A configuration file that says who commits.
#[must_use]
pub fn identity_config(name: &str, mail: &str) -> String {
    format!("[user]\n\tname = {}\n\temail = {}\n", quoted(name), quoted(mail))
}

/// A value as the configuration's syntax wants it, whatever it holds.
fn quoted(value: &str) -> String {
    let mut text = String::with_capacity(value.len() + 2);
    text.push('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            '\0' => {}
            other => text.push(other),
        }
    }
    text.push('"');
    text
}

/// What is ignored by rules outside of the tree, as one list: the person's
/// global excludes, then the repository's `info/exclude`, which decides when
/// both match.
///
/// # Errors
/// [`GitError::Io`] when a file that exists can't be read.
pub fn excludes(repo: &Repository, config: &PersonConfig) -> Result<Vec<u8>, GitError> {
    let mut text = Vec::new();
    let global = config.file("core.excludesfile", "ignore");
    for path in global.into_iter().chain([repo.common_dir.join("info/exclude")]) {
        match std::fs::read(&path) {
            Ok(bytes) => {
                // Most have nothing but the comments that git puts there.
                for line in bytes.split(|byte| *byte == b'\n') {
                    if !line.is_empty() && !line.starts_with(b"#") {
                        text.extend(line);
                        text.push(b'\n');
                    }
                }
            }
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) => {}
            Err(error) => return Err(error).at("read", path),
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_values_can_hold_anything() {
        assert_eq!(quoted("a\"b\\c\nd"), "\"a\\\"b\\\\c\\nd\"");
    }
}

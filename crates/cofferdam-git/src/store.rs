//! Our own bare repository beside each of the person's.
//!
//! It borrows the person's objects and has a configuration of its own, written
//! here and nowhere else. Everything that is not yet landed is written there.

use std::path::{Path, PathBuf};

use cofferdam_tree::durable::write_atomic;

use crate::lfs::Lfs;
use crate::{
    CommitId, GitCommand, GitError, IoContext, ObjectFormat, Objects, Oid, PersonConfig,
    Repository, TreeId, alternates, version,
};

/// See the module.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
    /// Hash function, the person's repository's.
    pub format: ObjectFormat,
    conversions: Vec<String>,
    attributes_file: Option<PathBuf>,
    /// How Git LFS stands.
    pub lfs: Lfs,
}

impl Store {
    /// Opens the store of `repo` below `stores`, made when it is missing.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn open(
        stores: &Path,
        repo: &Repository,
        config: &PersonConfig,
    ) -> Result<Store, GitError> {
        let dir = stores.join(format!("{}.git", repo.key()));
        if !dir.is_dir() {
            version::query()?;
            create(&dir, repo)?;
        }
        let store = Store {
            lfs: Lfs::of(repo, config, &dir),
            dir,
            format: repo.format,
            conversions: config.conversion_settings(),
            attributes_file: config
                .file("core.attributesfile", "attributes")
                .filter(|file| file.is_file()),
        };
        for name in ["shallow", "info/attributes"] {
            mirror(&repo.common_dir.join(name), &store.dir.join(name))?;
        }
        Ok(store)
    }

    /// Where it is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A call of git on it, with the person's rules for line endings.
    #[must_use]
    pub fn git(&self) -> GitCommand {
        let mut git = GitCommand::ours(&self.dir);
        for setting in &self.conversions {
            git = git.setting(setting);
        }
        if let Some(file) = &self.attributes_file {
            let mut setting = std::ffi::OsString::from("core.attributesFile=");
            setting.push(file);
            git = git.setting(setting);
        }
        git
    }

    /// Whether attributes outside of the tree or settings can change what a file becomes.
    #[must_use]
    pub fn converts_by_itself(&self) -> bool {
        !self.conversions.is_empty() || self.outer_attributes().next().is_some()
    }

    /// The attributes files outside of the tree that count.
    pub(crate) fn outer_attributes(&self) -> impl Iterator<Item = PathBuf> {
        let own = self.dir.join("info/attributes");
        self.attributes_file.iter().cloned().chain([own]).filter(|file| file.is_file())
    }

    /// What of the person's settings a checked-out tree depends on, as a word.
    #[must_use]
    pub fn conversion_key(&self) -> String {
        let key = self.conversions.join("-").replace("core.", "").replace(['=', '.'], "");
        key.to_ascii_lowercase() + self.lfs.key()
    }

    /// The tree of a commit.
    ///
    /// # Errors
    /// [`GitError::MissingObject`] when the store has no such commit.
    pub fn tree_of(&self, commit: &CommitId) -> Result<TreeId, GitError> {
        Objects::start(self)?.tree_of(commit)
    }

    /// Whether objects can be read in the store alone or borrowed.
    ///
    /// # Errors
    /// [`GitError`] when git can't say.
    pub fn has(&self, object: &str) -> Result<bool, GitError> {
        Ok(self.git().args(["cat-file", "-e", object]).finish()?.status.success())
    }
}

/// A call that prints the tree of `commit` and the file `name` at its top. git says
/// "missing" to a name that is not in the tree and to an object that is not in the
/// store alike: the tree tells which.
pub(crate) fn ask_top_file(git: GitCommand, commit: &str, name: &str) -> GitCommand {
    let ask = format!("{commit}^{{tree}}\0{commit}:{name}\0");
    git.args(["cat-file", "--batch", "-z"]).input(ask)
}

/// The tree and the file, if there is one, in the answer to [`ask_top_file`]; none
/// when the answer is another.
pub(crate) fn top_file_in(
    answer: &[u8],
    commit: &str,
    name: &str,
) -> Option<(TreeId, Option<Vec<u8>>)> {
    let (id, tree, rest) = object(answer, "tree")?;
    if let Some((_, content, _)) = object(rest, "blob") {
        return Some((TreeId(id), Some(content.to_vec())));
    }
    let entry = format!(" {name}\0");
    let listed = tree.windows(entry.len()).any(|bytes| bytes == entry.as_bytes());
    let missing = rest == format!("{commit}:{name} missing\n").as_bytes();
    (missing && !listed).then_some((TreeId(id), None))
}

/// The first object in what `cat-file --batch` printed (`NAME TYPE SIZE`, content,
/// line end), and what follows it.
fn object<'a>(answers: &'a [u8], wanted: &str) -> Option<(Oid, &'a [u8], &'a [u8])> {
    let end = answers.iter().position(|byte| *byte == b'\n')?;
    let head = std::str::from_utf8(&answers[..end]).ok()?;
    let (id, kind_and_size) = head.split_once(' ')?;
    let size: usize = kind_and_size.strip_prefix(wanted)?.strip_prefix(' ')?.parse().ok()?;
    let (content, rest) = answers[end + 1..].split_at_checked(size)?;
    Some((Oid::parse(id)?, content, rest.strip_prefix(b"\n")?))
}

fn create(dir: &Path, repo: &Repository) -> Result<(), GitError> {
    let parent = dir.parent().expect("a store has a parent");
    let draft = parent.join(format!(".tmp-{}-{}", std::process::id(), repo.key()));
    for sub in ["objects/info", "objects/pack", "refs/heads", "info"] {
        let path = draft.join(sub);
        std::fs::create_dir_all(&path).at("make", &path)?;
    }
    let extension = match repo.format {
        ObjectFormat::Sha1 => ("0", String::new()),
        other => ("1", format!("[extensions]\n\tobjectFormat = {}\n", other.as_str())),
    };
    let config = format!(
        "[core]\n\trepositoryformatversion = {}\n\tbare = true\n\tlogAllRefUpdates = false\n{}\
         [index]\n\tversion = 2\n[checkout]\n\tworkers = 0\n[fastimport]\n\tunpackLimit = 1\n\
         [pack]\n\twriteReverseIndex = false\n[core]\n\tbigFileThreshold = 8m\n",
        extension.0, extension.1
    );
    let write = |name: &str, bytes: &[u8]| {
        let path = draft.join(name);
        std::fs::write(&path, bytes).at("write", &path)
    };
    write("HEAD", b"ref: refs/heads/none\n")?;
    write("config", config.as_bytes())?;
    write("objects/info/alternates", &alternates::file_of([repo.objects.as_path()]))?;
    match std::fs::rename(&draft, dir) {
        Ok(()) => Ok(()),
        // Somebody else made it meanwhile: theirs is as good.
        Err(_) if dir.is_dir() => std::fs::remove_dir_all(&draft).at("remove", &draft),
        Err(error) => Err(error).at("make", dir),
    }
}

/// Keeps a copy of a small file of the repository up to date.
fn mirror(from: &Path, to: &Path) -> Result<(), GitError> {
    let wanted = match std::fs::read(from) {
        Ok(bytes) => Some(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).at("read", from),
    };
    match (wanted, std::fs::read(to).ok()) {
        (None, Some(_)) => std::fs::remove_file(to).at("remove", to),
        (Some(wanted), current) if current.as_ref() != Some(&wanted) => {
            write_atomic(to, &wanted, 0o644).map_err(std::io::Error::other).at("write", to)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_at_the_top_is_there_or_is_not_or_nobody_knows() {
        let (tree, blob) = ("1".repeat(40), "2".repeat(40));
        let read = |answer: &str| top_file_in(answer.as_bytes(), "HEAD", "f");
        let id = TreeId(Oid::parse(&tree).expect("id"));
        let there = read(&format!("{tree} tree 3\nx\ny\n{blob} blob 0\n\n"));
        assert_eq!(there, Some((id.clone(), Some(Vec::new()))));
        assert_eq!(read(&format!("{tree} tree 3\nx\ny\nHEAD:f missing\n")), Some((id, None)));
        // In the tree, but its object is not in the store.
        assert_eq!(read(&format!("{tree} tree 4\n1 f\0\nHEAD:f missing\n")), None);
        assert_eq!(read(&format!("{tree} tree 9\nshort\n")), None);
        assert_eq!(read("HEAD^{tree} missing\nHEAD:f missing\n"), None);
    }
}

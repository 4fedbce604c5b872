//! Refs that stand for other refs.

use std::io::ErrorKind;
use std::path::Path;

use crate::{GitError, IoContext, Repository};

/// How many symbolic refs git follows, one after the other.
const DEEPEST: usize = 5;

impl Repository {
    /// The ref that moves when `name` is moved (full names): what a symbolic ref stands
    /// for in the end, which need not exist. Where refs are files they are read here,
    /// which spares the start of a git.
    ///
    /// # Errors
    /// [`GitError`].
    pub fn ref_behind(&self, name: &str) -> Result<String, GitError> {
        if self.has_reftables() {
            let done = self.git().args(["symbolic-ref", "--quiet", name]).finish()?;
            let behind = String::from_utf8_lossy(&done.stdout).trim().to_owned();
            return Ok(if behind.is_empty() { name.to_owned() } else { behind });
        }
        let mut name = name.to_owned();
        for _ in 0..DEEPEST {
            match stands_for(&self.common_dir.join(&name))? {
                Some(behind) => name = behind,
                None => break,
            }
        }
        Ok(name)
    }

    /// Whether refs are in tables that only git reads.
    pub(crate) fn has_reftables(&self) -> bool {
        self.common_dir.join("reftable").is_dir()
    }
}

/// What the file of a ref says that it stands for; none for one with a value of its own
/// and for one that is not there, which can be packed.
fn stands_for(file: &Path) -> Result<Option<String>, GitError> {
    // Very old symbolic refs are links.
    if let Ok(link) = std::fs::read_link(file)
        && let Some(name) = link.to_str().filter(|name| name.starts_with("refs/"))
    {
        return Ok(Some(name.to_owned()));
    }
    match std::fs::read(file) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            Ok(text.strip_prefix("ref:").map(|name| name.trim().to_owned()))
        }
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound
                    | ErrorKind::NotADirectory
                    | ErrorKind::IsADirectory
                    | ErrorKind::InvalidFilename
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error).at("read", file),
    }
}

//! The `.gitattributes` files of a tree, alone in a directory.
//!
//! What line endings a file gets is decided by the attributes of the *base*
//! tree (of the target's tip, for a merge), not by what a task wrote. Newer
//! gits take a tree as the source of attributes; with the files in a directory
//! that serves as the work tree of a call, every git since 2.38 does.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::{GitError, IoContext};

const NAME: &[u8] = b".gitattributes";

/// Whether a path names an attributes file.
pub(crate) fn is_attributes(path: &[u8]) -> bool {
    path.strip_suffix(NAME).is_some_and(|dir| dir.is_empty() || dir.ends_with(b"/"))
}

/// Where the attributes of a layer are kept.
pub(crate) fn dir_of_layer(layer: &Path) -> PathBuf {
    layer.join("attributes")
}

/// A directory of attributes files being written.
pub(crate) struct AttributesDir<'a>(pub &'a Path);

impl AttributesDir<'_> {
    fn place(&self, path: &[u8]) -> PathBuf {
        self.0.join(std::ffi::OsStr::from_bytes(path))
    }

    pub(crate) fn put(&self, path: &[u8], content: &[u8]) -> Result<(), GitError> {
        let file = self.place(path);
        let parent = file.parent().unwrap_or(self.0);
        std::fs::create_dir_all(parent).at("make", parent)?;
        std::fs::write(&file, content).at("write", &file)
    }

    pub(crate) fn remove(&self, path: &[u8]) -> Result<(), GitError> {
        let file = self.place(path);
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).at("remove", file)
            }
            _ => Ok(()),
        }
    }

    /// Copies another such directory in.
    pub(crate) fn copy_from(&self, other: &Path) -> Result<(), GitError> {
        std::fs::create_dir_all(self.0).at("make", self.0)?;
        copy_tree(other, self.0)
    }
}

fn copy_tree(from: &Path, to: &Path) -> Result<(), GitError> {
    for entry in std::fs::read_dir(from).at("read", from)? {
        let entry = entry.at("read", from)?;
        let (source, dest) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().at("read", &source)?.is_dir() {
            std::fs::create_dir_all(&dest).at("make", &dest)?;
            copy_tree(&source, &dest)?;
        } else {
            std::fs::copy(&source, &dest).at("copy", &source)?;
        }
    }
    Ok(())
}

/// Whether a directory of attributes holds any.
pub(crate) fn any(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_files_by_name_only() {
        assert!(is_attributes(b".gitattributes"));
        assert!(is_attributes(b"a/b/.gitattributes"));
        assert!(!is_attributes(b"a/x.gitattributes"));
        assert!(!is_attributes(b".gitattributes/x"));
    }
}

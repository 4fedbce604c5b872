//! The `.gitattributes` files of a tree, alone in a directory.
//!
//! What line endings a file gets is decided by the attributes of the *base*
//! tree (of the target's tip, for a merge), not by what a task wrote. Newer
//! gits take a tree as the source of attributes; with the files in a directory
//! that serves as the work tree of a call, every git since 2.38 does.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use crate::command::Conversation;
use crate::{GitError, IoContext, Store, below};

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
        below(self.0, path)
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

/// Whether line endings are converted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Text {
    Yes,
    No,
    Auto,
    Unset,
}

/// What the attributes of a path say.
#[derive(PartialEq, Eq)]
pub(crate) struct OfPath {
    pub(crate) text: Text,
    /// Must be converted whatever it holds.
    pub(crate) always: bool,
    pub(crate) filter: Option<String>,
}

/// A running `git check-attr`.
pub(crate) struct AttributeReader {
    talk: Conversation,
    out: BufReader<std::process::ChildStdout>,
}

impl AttributeReader {
    const NAMES: [&'static str; 6] =
        ["text", "crlf", "eol", "ident", "filter", "working-tree-encoding"];

    /// With the attributes files in `dir`.
    pub(crate) fn start(store: &Store, dir: &Path) -> Result<AttributeReader, GitError> {
        let git = store.git().work_tree(dir);
        let mut talk =
            git.args(["check-attr", "--stdin", "-z"]).args(AttributeReader::NAMES).converse()?;
        let out = BufReader::new(talk.child.stdout.take().expect("piped"));
        Ok(AttributeReader { talk, out })
    }

    pub(crate) fn of(&mut self, path: &[u8]) -> Result<OfPath, GitError> {
        let failed = |answer: String| GitError::Unexpected { command: "check-attr".into(), answer };
        let stdin = self.talk.child.stdin.as_mut().expect("piped");
        let asked = stdin.write_all(&[path, b"\0"].concat()).and_then(|()| stdin.flush());
        asked.map_err(|error| failed(error.to_string()))?;
        let mut of_path = OfPath { text: Text::Unset, always: false, filter: None };
        for name in AttributeReader::NAMES {
            let mut fields = [Vec::new(), Vec::new(), Vec::new()];
            for field in &mut fields {
                self.out.read_until(0, field).map_err(|error| failed(error.to_string()))?;
                if field.pop() != Some(0) {
                    return Err(failed("cut off".into()));
                }
            }
            let value = String::from_utf8_lossy(&fields[2]).into_owned();
            match (name, value.as_str()) {
                (_, "unspecified") => {}
                // The old name counts where the new one says nothing.
                ("crlf", _) if of_path.text != Text::Unset => {}
                ("text" | "crlf", "set" | "input") => of_path.text = Text::Yes,
                ("text" | "crlf", "unset") => of_path.text = Text::No,
                ("text" | "crlf", "auto") => of_path.text = Text::Auto,
                ("eol", "lf" | "crlf") if of_path.text == Text::Unset => of_path.text = Text::Yes,
                ("ident", "set") => of_path.always = true,
                ("working-tree-encoding", value) if value != "unset" => of_path.always = true,
                ("filter", value) if value != "unset" && value != "set" => {
                    of_path.filter = Some(value.to_owned());
                }
                _ => {}
            }
        }
        Ok(of_path)
    }

    pub(crate) fn end(self) -> Result<(), GitError> {
        drop(self.out);
        self.talk.end()
    }
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

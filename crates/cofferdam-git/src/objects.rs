//! Objects of a store, one after the other, through one process.
//!
//! To start git takes longer than most of what it is asked. `git cat-file --batch`
//! answers any number of questions; what is asked of trees is looked up here, in the
//! trees themselves, so that a path that is not there can be told from an object that
//! is missing.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::path::Path;
use std::process::ChildStdout;

use crate::command::Conversation;
use crate::mode::{DIR, GITLINK, TYPE};
use crate::{CommitId, GitError, ObjectFormat, Oid, Store, TreeId, version};

/// The longest entry of a tree, in bytes: longer paths can't be checked out.
const LONGEST: u64 = 1 << 16;

/// See the module.
///
/// With conversions, the size that git announces is that of the blob and not of
/// what follows. So each question has a second one behind it, for an object
/// that nobody can name in advance: its answer is where the first one ends.
#[derive(Debug)]
pub struct Objects {
    /// Taken at the end.
    talk: Option<Conversation>,
    out: BufReader<ChildStdout>,
    format: ObjectFormat,
    /// `\nNAME missing\n`, with conversions only.
    end: Option<Vec<u8>>,
    /// Read from git and not given out yet.
    pending: Vec<u8>,
    /// What is left of an object, without conversions.
    left: u64,
    done: bool,
}

pub(crate) fn broken(answer: impl ToString) -> GitError {
    version::or_too_old(GitError::Unexpected {
        command: "cat-file --batch".into(),
        answer: answer.to_string(),
    })
}

/// What is wanted of a directory.
#[derive(Default)]
struct Wanted<'a> {
    /// Whether an entry of this name is wanted, in the directory above.
    itself: bool,
    /// Whether everything in it is.
    all: bool,
    /// What is wanted of or below entries of it.
    names: BTreeMap<&'a [u8], Wanted<'a>>,
}

impl<'a> Wanted<'a> {
    fn of(paths: &'a [Vec<u8>]) -> Wanted<'a> {
        let mut wanted = Wanted::default();
        for path in paths {
            let (names, all) = match path.strip_suffix(b"/") {
                Some(dir) => (dir, true),
                None => (path.as_slice(), false),
            };
            let mut at = &mut wanted;
            for name in names.split(|byte| *byte == b'/') {
                at = at.names.entry(name).or_default();
            }
            at.all |= all;
            at.itself |= !all;
        }
        wanted
    }
}

impl Objects {
    /// Begins to read objects as they are.
    ///
    /// # Errors
    /// [`GitError::NotStarted`].
    pub fn start(store: &Store) -> Result<Objects, GitError> {
        Objects::begin(store, None)
    }

    /// Begins to read blobs as a checkout would write them by the attributes files in a
    /// directory, filter programs aside.
    ///
    /// # Errors
    /// [`GitError::NotStarted`].
    pub(crate) fn checked_out(store: &Store, attributes: &Path) -> Result<Objects, GitError> {
        Objects::begin(store, Some(attributes))
    }

    fn begin(store: &Store, attributes: Option<&Path>) -> Result<Objects, GitError> {
        let mut git = store.git();
        if let Some(dir) = attributes {
            git = git.work_tree(dir);
        }
        git = git.args(["cat-file", "--batch"]);
        if attributes.is_some() {
            git = git.args(["--filters"]);
        }
        let mut talk = git.args(["-z"]).converse()?;
        let out = BufReader::new(talk.child.stdout.take().expect("piped"));
        let end = match attributes {
            Some(_) => {
                let name = cofferdam_tree::random_name(32).map_err(broken)?;
                Some(format!("\nend-{name} missing\n").into_bytes())
            }
            None => None,
        };
        let format = store.format;
        Ok(Objects { talk: Some(talk), out, format, end, pending: Vec::new(), left: 0, done: true })
    }

    /// Opens an object of this kind; `path` decides about conversions.
    fn ask(&mut self, kind: &str, oid: &Oid, path: &[u8]) -> Result<Object<'_>, GitError> {
        let mut ask = oid.as_str().as_bytes().to_vec();
        if let Some(end) = &self.end {
            ask.push(b' ');
            ask.extend(path);
            ask.push(0);
            ask.extend(&end[1..end.len() - b" missing\n".len()]);
            ask.extend(b" -");
        }
        ask.push(0);
        // Of an object that nobody read to its end.
        self.skip()?;
        let stdin = self.talk.as_mut().and_then(|talk| talk.child.stdin.as_mut());
        let stdin = stdin.expect("piped, and not at the end");
        stdin.write_all(&ask).and_then(|()| stdin.flush()).map_err(broken)?;
        let mut header = String::new();
        self.out.read_line(&mut header).map_err(broken)?;
        let header = header.trim_end();
        if header.ends_with(" missing") {
            return Err(GitError::MissingObject(oid.clone()));
        }
        let size = match header.split(' ').collect::<Vec<_>>().as_slice() {
            [_, found, size] if *found == kind => size.parse().ok(),
            _ => None,
        };
        self.left = size.ok_or_else(|| broken(header))?;
        self.done = false;
        Ok(Object { objects: self })
    }

    fn skip(&mut self) -> Result<(), GitError> {
        if !self.done {
            io::copy(&mut Object { objects: self }, &mut io::sink()).map_err(broken)?;
        }
        Ok(())
    }

    /// Opens a blob.
    ///
    /// # Errors
    /// [`GitError::MissingObject`]; [`GitError::Unexpected`] when it is no blob.
    pub(crate) fn open(&mut self, oid: &Oid, path: &[u8]) -> Result<Object<'_>, GitError> {
        self.ask("blob", oid, path)
    }

    /// Reads a blob.
    ///
    /// # Errors
    /// [`GitError::MissingObject`]; [`GitError::Unexpected`] when it is no blob.
    pub(crate) fn read(&mut self, oid: &Oid, path: &[u8]) -> Result<Vec<u8>, GitError> {
        let mut bytes = Vec::new();
        self.open(oid, path)?.read_to_end(&mut bytes).map_err(broken)?;
        Ok(bytes)
    }

    /// A blob of at most `most` bytes; none when it is larger.
    ///
    /// # Errors
    /// [`GitError::MissingObject`]; [`GitError::Unexpected`] when it is no blob.
    pub fn blob(&mut self, oid: &Oid, most: u64) -> Result<Option<Vec<u8>>, GitError> {
        let mut blob = self.open(oid, b"")?;
        if blob.objects.left > most {
            return blob.close().map(|()| None);
        }
        let mut bytes = Vec::new();
        blob.read_to_end(&mut bytes).map_err(broken)?;
        Ok(Some(bytes))
    }

    /// The tree of a commit.
    ///
    /// # Errors
    /// [`GitError::MissingObject`]; [`GitError::Unexpected`] when it is no commit.
    pub fn tree_of(&mut self, commit: &CommitId) -> Result<TreeId, GitError> {
        let mut line = String::new();
        BufReader::new(self.ask("commit", &commit.0, b"")?.take(LONGEST))
            .read_line(&mut line)
            .map_err(broken)?;
        self.skip()?;
        let tree = line.strip_prefix("tree ").and_then(|tree| Oid::parse(tree.trim_end()));
        tree.map(TreeId).ok_or_else(|| broken(line))
    }

    /// The file or link at each of these paths in a tree: mode and object. A path that
    /// ends in `/` stands for what is in that directory.
    ///
    /// # Errors
    /// [`GitError::MissingObject`]; [`GitError::Unexpected`] when it is no tree.
    pub fn entries(
        &mut self,
        tree: &TreeId,
        paths: &[Vec<u8>],
    ) -> Result<Vec<(Vec<u8>, u32, Oid)>, GitError> {
        let mut entries = Vec::new();
        self.each_entry(tree, paths, |path, mode, oid| entries.push((path.to_vec(), mode, oid)))?;
        Ok(entries)
    }

    /// As [`Objects::entries`], one after the other: a directory can have a million.
    ///
    /// # Errors
    /// [`GitError::MissingObject`]; [`GitError::Unexpected`] when it is no tree.
    pub fn each_entry(
        &mut self,
        tree: &TreeId,
        paths: &[Vec<u8>],
        mut each: impl FnMut(&[u8], u32, Oid),
    ) -> Result<(), GitError> {
        let wanted = Wanted::of(paths);
        let mut ahead = vec![(Vec::new(), tree.0.clone(), &wanted)];
        while let Some((dir, oid, wanted)) = ahead.pop() {
            self.each_of(&oid, |name, mode, raw| {
                let of_name = wanted.names.get(name);
                let below = of_name.filter(|of_name| of_name.all || !of_name.names.is_empty());
                let told = wanted.all || of_name.is_some_and(|of_name| of_name.itself);
                let below = below.filter(|_| mode & TYPE == DIR);
                if !told && below.is_none() {
                    return;
                }
                let path = [&dir, name].concat();
                let oid = Oid::of_raw(raw);
                if told {
                    each(&path, mode, oid.clone());
                }
                if let Some(below) = below {
                    ahead.push(([&path, b"/".as_slice()].concat(), oid, below));
                }
            })?;
        }
        Ok(())
    }

    /// Goes through the entries of one tree: name, mode, raw name of the object.
    fn each_of(
        &mut self,
        tree: &Oid,
        mut each: impl FnMut(&[u8], u32, &[u8]),
    ) -> Result<(), GitError> {
        let mut raw = vec![0; self.format.raw_len()];
        let mut entries = BufReader::new(self.ask("tree", tree, b"")?);
        let mut entry = Vec::new();
        loop {
            entry.clear();
            if (&mut entries).take(LONGEST).read_until(0, &mut entry).map_err(broken)? == 0 {
                return Ok(());
            }
            entries.read_exact(&mut raw).map_err(broken)?;
            let cut = || broken(format!("tree {tree} is cut off"));
            let text = entry.strip_suffix(b"\0").ok_or_else(cut)?;
            let space = text.iter().position(|byte| *byte == b' ').ok_or_else(cut)?;
            let mode = std::str::from_utf8(&text[..space]).ok();
            let mode = mode.and_then(|mode| u32::from_str_radix(mode, 8).ok()).ok_or_else(cut)?;
            each(&text[space + 1..], mode, &raw);
        }
    }

    /// The content of a file at the top of a tree; none when it has no such entry.
    ///
    /// # Errors
    /// [`GitError::MissingObject`]; [`GitError::Unsupported`] when it is no file.
    pub fn top_file(&mut self, tree: &TreeId, name: &str) -> Result<Option<Vec<u8>>, GitError> {
        match self.entries(tree, &[name.into()])?.as_slice() {
            [] => Ok(None),
            [(path, mode, oid)] if !matches!(mode & TYPE, DIR | GITLINK) => {
                self.read(oid, path).map(Some)
            }
            _ => Err(GitError::Unsupported(format!(
                "`{name}` is a directory in this repository, and has to be a file"
            ))),
        }
    }

    /// Waits for git to end.
    ///
    /// # Errors
    /// [`GitError::Failed`] with what it complained about.
    pub(crate) fn end(mut self) -> Result<(), GitError> {
        self.skip()?;
        self.talk.take().map_or(Ok(()), Conversation::end)
    }

    /// The next bytes of an object of known size.
    fn read_sized(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            let mut newline = [0];
            self.out.read_exact(&mut newline)?;
            self.done = true;
            return Ok(0);
        }
        let read = (&mut self.out).take(self.left).read(buffer)?;
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.left -= read as u64;
        Ok(read)
    }

    /// The next bytes of a blob that ends where `end` comes.
    fn read_to_mark(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let end = self.end.as_deref().unwrap_or_default();
        loop {
            let found = self.pending.windows(end.len()).position(|bytes| bytes == end);
            let sure = found.unwrap_or((self.pending.len() + 1).saturating_sub(end.len()));
            if sure > 0 {
                let count = sure.min(buffer.len());
                buffer[..count].copy_from_slice(&self.pending[..count]);
                self.pending.drain(..count);
                return Ok(count);
            }
            if found.is_some() {
                self.pending.clear();
                self.done = true;
                return Ok(0);
            }
            let more = self.out.fill_buf()?;
            if more.is_empty() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let count = more.len();
            self.pending.extend(more);
            self.out.consume(count);
        }
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        if let Some(talk) = self.talk.take() {
            talk.stop();
        }
    }
}

/// An object that is being read.
pub(crate) struct Object<'a> {
    objects: &'a mut Objects,
}

impl Object<'_> {
    /// Reads what is left of it.
    ///
    /// # Errors
    /// When git does not give it.
    pub(crate) fn close(self) -> Result<(), GitError> {
        self.objects.skip()
    }
}

impl Read for Object<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.objects.done || buffer.is_empty() {
            Ok(0)
        } else if self.objects.end.is_some() {
            self.objects.read_to_mark(buffer)
        } else {
            self.objects.read_sized(buffer)
        }
    }
}

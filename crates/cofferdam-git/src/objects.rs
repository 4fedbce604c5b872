//! Objects of a store, one after the other, through one process.
//!
//! To start git takes longer than most of what it is asked. `git cat-file --batch`
//! answers any number of questions; what is asked of trees is looked up here, in the
//! trees themselves, so that a path that is not there can be told from an object that
//! is missing.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::path::Path;
use std::process::ChildStdout;

use crate::command::Conversation;
use crate::mode::{DIR, GITLINK, TYPE};
use crate::{CommitId, GitCommand, GitError, ObjectFormat, Oid, Store, TreeId, version};

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
        Objects::begin(store.git(), store.format, None)
    }

    /// Begins to read objects as they are, of what this git works on.
    ///
    /// # Errors
    /// [`GitError::NotStarted`].
    pub(crate) fn of(git: GitCommand, format: ObjectFormat) -> Result<Objects, GitError> {
        Objects::begin(git, format, None)
    }

    /// Begins to read blobs as a checkout would write them by the attributes files in a
    /// directory, filter programs aside.
    ///
    /// # Errors
    /// [`GitError::NotStarted`].
    pub(crate) fn checked_out(store: &Store, attributes: &Path) -> Result<Objects, GitError> {
        Objects::begin(store.git(), store.format, Some(attributes))
    }

    fn begin(
        mut git: GitCommand,
        format: ObjectFormat,
        attributes: Option<&Path>,
    ) -> Result<Objects, GitError> {
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
            let mut entries = self.listing(&oid)?;
            while let Some(Entry { name, mode, raw }) = entries.next() {
                let of_name = wanted.names.get(name);
                let below = of_name.filter(|of_name| of_name.all || !of_name.names.is_empty());
                let told = wanted.all || of_name.is_some_and(|of_name| of_name.itself);
                let below = below.filter(|_| mode & TYPE == DIR);
                if !told && below.is_none() {
                    continue;
                }
                let path = [&dir, name].concat();
                let oid = Oid::of_raw(raw);
                if told {
                    each(&path, mode, oid.clone());
                }
                if let Some(below) = below {
                    ahead.push(([&path, b"/".as_slice()].concat(), oid, below));
                }
            }
        }
        Ok(())
    }

    /// The hash function.
    pub(crate) fn format(&self) -> ObjectFormat {
        self.format
    }

    /// What is in one tree.
    ///
    /// # Errors
    /// [`GitError::MissingObject`]; [`GitError::Unexpected`] when it is no tree.
    pub(crate) fn listing(&mut self, tree: &Oid) -> Result<Listing, GitError> {
        let mut content = Vec::new();
        self.ask("tree", tree, b"")?.read_to_end(&mut content).map_err(broken)?;
        Listing::parse(content, self.format.raw_len())
            .ok_or_else(|| broken(format!("tree {tree} is cut off")))
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

/// The entries of a tree, in git's order: a directory is where its name with a slash is.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// As git keeps it: mode, space, name, NUL, raw name of the object.
    content: Vec<u8>,
    raw_len: usize,
    at: usize,
}

/// An entry of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its mode.
    pub mode: u32,
    /// The raw name of its object.
    pub raw: &'a [u8],
}

impl Entry<'_> {
    /// Where it comes, compared with another one.
    pub(crate) fn order(&self, other: &Entry<'_>) -> Ordering {
        self.key().cmp(other.key())
    }

    /// What the order of a tree is by.
    pub(crate) fn key(&self) -> impl Iterator<Item = &u8> {
        key(self.name, self.mode & TYPE == DIR)
    }
}

/// What the order of a tree is by, for the name of a directory or of something else.
pub(crate) fn key(name: &[u8], is_dir: bool) -> impl Iterator<Item = &u8> {
    name.iter().chain(is_dir.then_some(&b'/'))
}

impl Listing {
    fn parse(content: Vec<u8>, raw_len: usize) -> Option<Listing> {
        let listing = Listing { content, raw_len, at: 0 };
        let mut at = 0;
        while at < listing.content.len() {
            at = listing.entry(at)?.1;
        }
        Some(listing)
    }

    fn entry(&self, at: usize) -> Option<(Entry<'_>, usize)> {
        entry(&self.content, self.raw_len, at)
    }

    /// Where each entry begins.
    pub(crate) fn starts(&self) -> Vec<usize> {
        let next = |at: &usize| self.entry(*at).map(|(_, next)| next);
        let starts = std::iter::successors(Some(0), next);
        starts.take_while(|at| *at < self.content.len()).collect()
    }

    /// The entry that begins there.
    pub(crate) fn at(&self, start: usize) -> Entry<'_> {
        self.entry(start).expect("an entry begins there").0
    }

    /// The next entry, again.
    pub(crate) fn peek(&self) -> Option<Entry<'_>> {
        self.entry(self.at).map(|(entry, _)| entry)
    }

    /// The next entry.
    pub(crate) fn next(&mut self) -> Option<Entry<'_>> {
        let (entry, next) = entry(&self.content, self.raw_len, self.at)?;
        self.at = next;
        Some(entry)
    }
}

/// The entry of a tree that begins at `at`, and where the next one does.
fn entry(content: &[u8], raw_len: usize, at: usize) -> Option<(Entry<'_>, usize)> {
    let rest = &content[at..];
    let space = rest.iter().position(|byte| *byte == b' ')?;
    let mode = u32::from_str_radix(std::str::from_utf8(&rest[..space]).ok()?, 8).ok()?;
    let end = space + 1 + rest[space + 1..].iter().position(|byte| *byte == 0)?;
    let raw = rest.get(end + 1..end + 1 + raw_len)?;
    Some((Entry { name: &rest[space + 1..end], mode, raw }, at + end + 1 + raw_len))
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

//! The commit that a change set becomes.
//!
//! git's `fast-import` edits the base's trees along the changed paths: nothing in it is
//! proportional to the repository. But it looks through a whole directory for each path
//! in it, so a directory with a hundred thousand changes would take minutes. After some
//! changes it is therefore given only content (and directories that are gone), and the
//! trees are made another way ([`crate::trees`]).

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout};

use super::Refusal;
use super::collect::CommitText;
use crate::alternates::quoted;
use crate::command::Conversation;
use crate::trees::{self, Changed};
use crate::{CommitId, GitError, IoContext, Oid, Store, TreeId, merge};

/// So many changes become part of trees one by one. Few where it is tested, so that both
/// ways are.
const ONE_BY_ONE: u32 = if cfg!(debug_assertions) { 6 } else { 1000 };
/// How many objects are asked for at once: their names fit into a pipe.
const ASKED: usize = 256;

/// A running `git fast-import`.
pub(super) struct Importer<'a> {
    talk: Option<Conversation>,
    input: BufWriter<ChildStdin>,
    out: BufReader<ChildStdout>,
    store: &'a Store,
    base: &'a CommitId,
    text: &'a CommitText,
    reference: &'a str,
    /// How many changes there were.
    changes: u32,
    /// The last mark that was given.
    mark: u64,
    many: Option<Many>,
}

/// The changes behind the first ones. The files have no names: nothing is left behind.
struct Many {
    scratch: Scratch,
    /// What is new, and files that are gone.
    changed: Changed,
    /// Directories that are gone, as commands for `fast-import`.
    gone: BufWriter<File>,
    any_gone: bool,
    /// Files whose content was sent, with modes: they have the last marks.
    sent: Vec<(Vec<u8>, u32)>,
}

/// A directory in a store that goes away.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new(store: &Path) -> Result<Scratch, GitError> {
        let name = cofferdam_tree::random_name(16).at("make", store)?;
        let scratch = Scratch(store.join(format!("{SCRATCH}{name}")));
        std::fs::create_dir(&scratch.0).at("make", &scratch.0)?;
        Ok(scratch)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What the directories of [`Scratch`] in a store are called.
pub const SCRATCH: &str = "harvest-";

impl<'a> Importer<'a> {
    pub(super) fn start(
        store: &'a Store,
        reference: &'a str,
        base: &'a CommitId,
        text: &'a CommitText,
    ) -> Result<Importer<'a>, GitError> {
        let git = store.git().args([
            "fast-import",
            "--quiet",
            "--done",
            "--force",
            "--depth=0",
            "--date-format=now",
        ]);
        let mut talk = git.converse()?;
        let input = BufWriter::with_capacity(1 << 16, talk.child.stdin.take().expect("piped"));
        let out = BufReader::new(talk.child.stdout.take().expect("piped"));
        let mut importer = Importer {
            talk: Some(talk),
            input,
            out,
            store,
            base,
            text,
            reference,
            changes: 0,
            mark: 0,
            many: None,
        };
        importer.begin_commit(&base.to_string())?;
        Ok(importer)
    }

    fn begin_commit(&mut self, from: &str) -> Result<(), GitError> {
        self.mark += 1;
        let (signature, message) = (self.text.signature(), self.text.message.as_bytes());
        let head = format!(
            "commit {}\nmark :{}\nauthor {signature} now\ncommitter {signature} now\ndata {}\n",
            self.reference,
            self.mark,
            message.len()
        );
        self.send(head.as_bytes())?;
        self.send(message)?;
        self.send(format!("\nfrom {from}\n").as_bytes())
    }

    /// The error that explains a broken pipe: what git said.
    fn failed(&mut self, error: &io::Error) -> GitError {
        let mut stderr = String::new();
        let ended = matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof);
        if let Some(mut pipe) = self.talk.as_mut().and_then(|talk| talk.child.stderr.take())
            && ended
        {
            let _ = pipe.read_to_string(&mut stderr);
        }
        if stderr.is_empty() {
            stderr = error.to_string();
        }
        GitError::of_failed("fast-import".into(), None, stderr)
    }

    fn send(&mut self, text: &[u8]) -> Result<(), GitError> {
        self.input.write_all(text).map_err(|error| self.failed(&error))
    }

    fn line(&mut self) -> Result<String, GitError> {
        let mut line = String::new();
        let read = self.input.flush().and_then(|()| self.out.read_line(&mut line));
        match read {
            Ok(0) => Err(self.failed(&ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Counts a change. Gives what it is to become part of when there were many.
    fn next(&mut self) -> Result<Option<&mut Many>, GitError> {
        self.changes = self.changes.saturating_add(1);
        if self.changes == ONE_BY_ONE {
            self.send(b"\n")?;
            self.many = Some(Many::new(self.store.dir())?);
        }
        Ok(self.many.as_mut())
    }

    /// A path is gone, and what the base has below it if it is a directory there.
    pub(super) fn delete(&mut self, path: &[u8], is_dir: bool) -> Result<(), GitError> {
        let mut line = b"D ".to_vec();
        line.extend(quoted(path));
        line.push(b'\n');
        let store = self.store;
        match self.next()? {
            None => self.send(&line),
            Some(many) if is_dir => many.dir_is_gone(&line),
            Some(many) => many.changed.delete(path, store),
        }
    }

    pub(super) fn put(&mut self, path: &[u8], mode: u32, object: &Oid) -> Result<(), GitError> {
        if let Some(many) = self.next()? {
            return many.changed.put(path, mode, object);
        }
        let mut line = format!("M {mode:o} {object} ").into_bytes();
        line.extend(quoted(path));
        line.push(b'\n');
        self.send(&line)
    }

    pub(super) fn put_inline(
        &mut self,
        path: &[u8],
        mode: u32,
        content: &mut impl Read,
        size: u64,
    ) -> Result<(), GitError> {
        let many = match self.next()? {
            None => false,
            Some(many) => {
                many.sent.push((path.to_vec(), mode));
                true
            }
        };
        let mut head = Vec::new();
        if many {
            self.mark += 1;
            head.extend(format!("blob\nmark :{}", self.mark).into_bytes());
        } else {
            head.extend(format!("M {mode:o} inline ").into_bytes());
            head.extend(quoted(path));
        }
        head.extend(format!("\ndata {size}\n").into_bytes());
        self.send(&head)?;
        let copied = io::copy(&mut content.take(size), &mut self.input)
            .map_err(|error| self.failed(&error))?;
        if copied != size {
            return Err(Refusal::Helper("a file is cut off".into()).into());
        }
        self.send(b"\n")?;
        if self.many.as_ref().is_some_and(|many| many.sent.len() == ASKED) {
            self.name_what_was_sent()?;
        }
        Ok(())
    }

    /// Asks for the names of the objects that were sent, and notes them.
    fn name_what_was_sent(&mut self) -> Result<(), GitError> {
        let Some(many) = &mut self.many else { return Ok(()) };
        let sent = std::mem::take(&mut many.sent);
        let first = self.mark + 1 - sent.len() as u64;
        for mark in first..=self.mark {
            self.send(format!("get-mark :{mark}\n").as_bytes())?;
        }
        for (path, mode) in sent {
            let answer = self.line()?;
            let object = Oid::parse(&answer).ok_or_else(|| unexpected(&answer))?;
            if let Some(many) = &mut self.many {
                many.changed.put(&path, mode, &object)?;
            }
        }
        Ok(())
    }

    /// Ends it; gives the commit and its tree.
    pub(super) fn commit(mut self) -> Result<(CommitId, TreeId), GitError> {
        self.name_what_was_sent()?;
        let mut many = self.many.take();
        let mut mark = 1;
        // A commit ends with an empty line, and nothing else may be one.
        let mut end = if many.is_some() { "" } else { "\n" };
        if let Some(many) = many.as_mut().filter(|many| many.any_gone) {
            self.begin_commit(":1")?;
            end = "\n";
            mark = self.mark;
            let mut gone = rewound(&mut many.gone).at("read", &many.scratch.0)?;
            io::copy(&mut gone, &mut self.input).map_err(|error| self.failed(&error))?;
        }
        self.send(format!("{end}get-mark :{mark}\nls :{mark} \"\"\n").as_bytes())?;
        let (commit, tree) = (self.line()?, self.line()?);
        self.send(b"done\n")?;
        if let Err(error) = self.input.flush() {
            return Err(self.failed(&error));
        }
        if let Some(talk) = self.talk.take() {
            talk.end()?;
        }
        let commit = Oid::parse(&commit).ok_or_else(|| unexpected(&commit))?;
        let tree = tree
            .strip_prefix("040000 tree ")
            .and_then(|rest| Oid::parse(rest.split('\t').next()?))
            .ok_or_else(|| unexpected(&tree))?;
        match many {
            None => Ok((CommitId(commit), TreeId(tree))),
            Some(many) => self.commit_many(TreeId(tree), many),
        }
    }

    /// The commit of the changes in `many` to `tree`.
    fn commit_many(&self, tree: TreeId, many: Many) -> Result<(CommitId, TreeId), GitError> {
        let dir = self.store.dir();
        // All of it is synced at once: there can be a tree for each of many directories.
        let git = self.store.git().setting("core.fsync=none");
        let tree = trees::apply(self.store, git, &tree, many.changed)?;
        let store = File::open(dir).at("open", dir)?;
        rustix::fs::syncfs(&store).at("sync", dir)?;
        let commit = merge::commit(self.store, &tree, self.base, self.text)?;
        self.store.git().args(["update-ref", self.reference, commit.as_str()]).run()?;
        Ok((commit, tree))
    }
}

impl Many {
    fn new(store: &Path) -> Result<Many, GitError> {
        let scratch = Scratch::new(store)?;
        let gone = trees::nameless(&scratch.0).at("make a file in", &scratch.0)?;
        let gone = BufWriter::with_capacity(1 << 16, gone);
        let changed = Changed::new(&scratch.0);
        Ok(Many { scratch, changed, gone, any_gone: false, sent: Vec::new() })
    }

    fn dir_is_gone(&mut self, command: &[u8]) -> Result<(), GitError> {
        self.any_gone = true;
        self.gone.write_all(command).at("write", &self.scratch.0)
    }
}

/// A file that was written, to be read from its start.
fn rewound(written: &mut BufWriter<File>) -> io::Result<File> {
    written.flush()?;
    let mut file = written.get_ref().try_clone()?;
    file.rewind()?;
    Ok(file)
}

fn unexpected(answer: &str) -> GitError {
    GitError::Unexpected { command: "fast-import".into(), answer: answer.into() }
}

impl Drop for Importer<'_> {
    /// One that is given up in the middle would end by writing a report about it, and
    /// keep all that it has read so far as a pack.
    fn drop(&mut self) {
        let Some(mut talk) = self.talk.take() else { return };
        let fds = PathBuf::from(format!("/proc/{}/fd", talk.child.id()));
        let open = std::fs::read_dir(fds).into_iter().flatten().filter_map(Result::ok);
        let open: Vec<PathBuf> =
            open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
        let _ = talk.child.kill();
        let _ = talk.child.wait();
        let packs = self.store.dir().join("objects/pack");
        let is_draft = |path: &&PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
            path.parent() == Some(&packs) && name.starts_with("tmp_pack_")
        };
        for draft in open.iter().filter(is_draft) {
            let _ = std::fs::remove_file(draft);
        }
    }
}

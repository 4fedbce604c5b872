//! Trees made from others and changes to them.
//!
//! What it costs is by the changes and the directories that they are in, not by the
//! repository, and what it holds is by the largest of those: through an index, a million
//! paths take git 200 MB. Changes come in any order and are sorted in files
//! ([`Changed`]); then each directory that has some is gone through once ([`apply`]), and
//! `git mktree` writes it.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout};

use crate::command::Conversation;
use crate::mode::{DIR, GITLINK, TYPE};
use crate::objects::{Listing, key};
use crate::{GitCommand, GitError, IoContext, Objects, Oid, Store, TreeId, dirs_above};

/// So many bytes of changes are sorted at a time. Few where it is tested that what is held
/// does not grow with them.
const CHUNK: usize = if cfg!(debug_assertions) { 64 << 10 } else { 8 << 20 };

/// So many bytes of what comes to one directory are held.
const HELD: usize = 64 << 10;

/// A new file in a directory of ours, which has no name any more.
pub(crate) fn nameless(dir: &Path) -> std::io::Result<File> {
    let path = dir.join("nameless");
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// What becomes of a path; the last word on it counts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Change {
    path: Vec<u8>,
    /// 0 for what is gone: a file, and not what is below a directory of that name.
    mode: u32,
    object: Oid,
}

/// Changes to a tree.
#[derive(Debug)]
pub(crate) struct Changed {
    /// Where what does not fit into memory is kept, in files without names.
    scratch: PathBuf,
    chunk: Vec<Change>,
    bytes: usize,
    /// When that many have come, they are sorted.
    most: usize,
    runs: Vec<File>,
}

impl Changed {
    /// None yet. `scratch` is an existing directory of ours.
    pub(crate) fn new(scratch: &Path) -> Changed {
        let (chunk, runs) = (Vec::new(), Vec::new());
        Changed { scratch: scratch.to_owned(), chunk, bytes: 0, most: CHUNK, runs }
    }

    /// A path becomes this object with this mode. What is in its way is gone.
    pub(crate) fn put(&mut self, path: &[u8], mode: u32, object: &Oid) -> Result<(), GitError> {
        self.bytes += path.len() + size_of::<Change>() + object.as_str().len();
        self.chunk.push(Change { path: path.to_owned(), mode, object: object.clone() });
        if self.bytes < self.most {
            return Ok(());
        }
        self.sort();
        self.bytes = 0;
        let run = self.write();
        self.runs.push(run.at("sort changes in", &self.scratch)?);
        self.chunk.clear();
        Ok(())
    }

    /// Of changes to one path the last stays the last.
    fn sort(&mut self) {
        self.chunk.sort_by(|one, other| one.path.cmp(&other.path));
    }

    /// A path is gone, if it is not a directory.
    pub(crate) fn delete(&mut self, path: &[u8], store: &Store) -> Result<(), GitError> {
        self.put(path, 0, &store.format.zero())
    }

    fn write(&self) -> std::io::Result<File> {
        let mut out = BufWriter::with_capacity(1 << 16, nameless(&self.scratch)?);
        for Change { path, mode, object } in &self.chunk {
            write!(out, "{mode:o} {object}\t")?;
            out.write_all(path)?;
            out.write_all(b"\0")?;
        }
        let mut file = out.into_inner()?;
        file.rewind()?;
        Ok(file)
    }

    /// All of them, one for each path, in the order of their bytes.
    fn sorted(mut self) -> Result<Sorted, GitError> {
        self.sort();
        let runs = self.runs.into_iter().map(|run| Run::File(BufReader::new(run)));
        let mut runs: Vec<Run> = runs.collect();
        runs.push(Run::Memory(self.chunk.into_iter()));
        let mut heads = BinaryHeap::new();
        for (number, run) in runs.iter_mut().enumerate() {
            if let Some(change) = run.next().at("read", &self.scratch)? {
                heads.push(Reverse(Head { change, number }));
            }
        }
        Ok(Sorted { scratch: self.scratch, runs, heads })
    }
}

/// Changes that are sorted already.
enum Run {
    File(BufReader<File>),
    Memory(std::vec::IntoIter<Change>),
}

impl Run {
    fn next(&mut self) -> std::io::Result<Option<Change>> {
        let file = match self {
            Run::Memory(changes) => return Ok(changes.next()),
            Run::File(file) => file,
        };
        let (mut meta, mut path) = (Vec::new(), Vec::new());
        if file.read_until(b'\t', &mut meta)? == 0 {
            return Ok(None);
        }
        file.read_until(0, &mut path)?;
        path.pop();
        let meta = std::str::from_utf8(&meta).ok().and_then(|meta| meta.trim_end().split_once(' '));
        let change = meta.and_then(|(mode, object)| {
            let mode = u32::from_str_radix(mode, 8).ok()?;
            Some(Change { path, mode, object: Oid::parse(object)? })
        });
        change.map(Some).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
    }
}

/// The next change of a run. Of those to one path, that of the later run is the later.
#[derive(PartialEq, Eq)]
struct Head {
    change: Change,
    number: usize,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        (&self.change.path, self.number).cmp(&(&other.change.path, other.number))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct Sorted {
    scratch: PathBuf,
    runs: Vec<Run>,
    heads: BinaryHeap<Reverse<Head>>,
}

impl Sorted {
    fn next(&mut self) -> Result<Option<Change>, GitError> {
        loop {
            let Some(Reverse(Head { change, number })) = self.heads.pop() else { return Ok(None) };
            if let Some(next) = self.runs[number].next().at("read", &self.scratch)? {
                self.heads.push(Reverse(Head { change: next, number }));
            }
            let same = |Reverse(head): &Reverse<Head>| head.change.path == change.path;
            if !self.heads.peek().is_some_and(same) {
                return Ok(Some(change));
            }
        }
    }
}

/// The tree that `base` becomes. `git` is to write it, into the store.
///
/// # Errors
/// [`GitError`].
pub(crate) fn apply(
    store: &Store,
    git: GitCommand,
    base: &TreeId,
    changed: Changed,
) -> Result<TreeId, GitError> {
    let mut objects = Objects::start(store)?;
    let mut maker = Maker::start(git)?;
    let mut changes = changed.sorted()?;
    let mut open = vec![Dir::open(Vec::new(), objects.listing(&base.0)?)];
    while let Some(change) = changes.next()? {
        let above: Vec<&[u8]> = dirs_above(&change.path).collect();
        let same = open[1..].iter().zip(&above).take_while(|(dir, path)| dir.path == **path);
        let same = same.count();
        maker.close(&mut open, same + 1, &changes.scratch)?;
        for path in &above[same..] {
            let dir = open.last().expect("the top stays open");
            let listing = match dir.find(name_in(path), true) {
                Some(at) if !dir.gone[at] => objects.listing(&Oid::of_raw(dir.entry(at).raw))?,
                _ => Listing::default(),
            };
            open.push(Dir::open(path.to_vec(), listing));
        }
        let dir = open.last_mut().expect("the top stays open");
        match change.mode {
            0 => dir.remove(name_in(&change.path), false),
            mode => dir.put(name_in(&change.path), mode, &change.object, &changes.scratch)?,
        }
    }
    maker.close(&mut open, 1, &changes.scratch)?;
    let mut top = open.pop().expect("the top stays open");
    let tree = maker.make(&mut top)?;
    maker.end()?;
    objects.end()?;
    Ok(TreeId(tree))
}

/// The last part of a path.
fn name_in(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// A directory that is being changed.
struct Dir {
    path: Vec<u8>,
    base: Listing,
    /// Where each entry of `base` begins, in its order.
    entries: Vec<usize>,
    /// Which of those do not stay.
    gone: Vec<bool>,
    /// What comes to it, as `mktree` is told: the last of it.
    new: Vec<u8>,
    /// What was before that, when it is much.
    before: Option<File>,
}

impl Dir {
    fn open(path: Vec<u8>, base: Listing) -> Dir {
        let entries = base.starts();
        let gone = vec![false; entries.len()];
        Dir { path, base, entries, gone, new: Vec::new(), before: None }
    }

    fn entry(&self, at: usize) -> crate::objects::Entry<'_> {
        self.base.at(self.entries[at])
    }

    fn find(&self, name: &[u8], is_dir: bool) -> Option<usize> {
        let order = |at: &usize| self.base.at(*at).key().cmp(key(name, is_dir));
        self.entries.binary_search_by(order).ok()
    }

    /// This comes, in the place of whatever has the name.
    fn put(
        &mut self,
        name: &[u8],
        mode: u32,
        object: &Oid,
        scratch: &Path,
    ) -> Result<(), GitError> {
        self.remove(name, false);
        self.remove(name, true);
        line(&mut self.new, mode, object.as_str(), name);
        if self.new.len() < HELD {
            return Ok(());
        }
        let before = match &mut self.before {
            Some(before) => before,
            none => none.insert(nameless(scratch).at("make a file in", scratch)?),
        };
        before.write_all(&self.new).at("write", scratch)?;
        self.new.clear();
        Ok(())
    }

    /// Whether nothing is left in it.
    fn is_empty(&self) -> bool {
        self.new.is_empty() && self.before.is_none() && self.gone.iter().all(|gone| *gone)
    }

    /// A directory of that name goes, or something else.
    fn remove(&mut self, name: &[u8], is_dir: bool) {
        if let Some(at) = self.find(name, is_dir) {
            self.gone[at] = true;
        }
    }
}

fn line(to: &mut Vec<u8>, mode: u32, object: &str, name: &[u8]) {
    let kind = match mode & TYPE {
        DIR => "tree",
        GITLINK => "commit",
        _ => "blob",
    };
    to.extend(format!("{mode:o} {kind} {object}\t").as_bytes());
    to.extend(name);
    to.push(0);
}

/// A running `git mktree`, ended when this is dropped.
struct Maker {
    /// Taken at the end.
    talk: Option<Conversation>,
    input: BufWriter<ChildStdin>,
    out: BufReader<ChildStdout>,
}

impl Maker {
    fn start(git: GitCommand) -> Result<Maker, GitError> {
        // What is named was read from a tree or written a moment ago.
        let mut talk = git.args(["mktree", "-z", "--batch", "--missing"]).converse()?;
        let input = BufWriter::with_capacity(1 << 16, talk.child.stdin.take().expect("piped"));
        let out = BufReader::new(talk.child.stdout.take().expect("piped"));
        Ok(Maker { talk: Some(talk), input, out })
    }

    /// Makes the directories that are open behind the first `keep`.
    fn close(&mut self, open: &mut Vec<Dir>, keep: usize, scratch: &Path) -> Result<(), GitError> {
        while open.len() > keep {
            let Some(mut dir) = open.pop() else { break };
            let above = open.last_mut().expect("the top stays open");
            if dir.is_empty() {
                above.remove(name_in(&dir.path), true);
            } else {
                let tree = self.make(&mut dir)?;
                above.put(name_in(&dir.path), DIR, &tree, scratch)?;
            }
        }
        Ok(())
    }

    fn make(&mut self, dir: &mut Dir) -> Result<Oid, GitError> {
        let mut kept = Vec::new();
        let mut tell = || {
            for at in (0..dir.entries.len()).filter(|at| !dir.gone[*at]) {
                let entry = dir.entry(at);
                kept.clear();
                line(&mut kept, entry.mode, Oid::of_raw(entry.raw).as_str(), entry.name);
                self.input.write_all(&kept)?;
            }
            if let Some(before) = &mut dir.before {
                before.rewind()?;
                std::io::copy(before, &mut self.input)?;
            }
            self.input.write_all(&dir.new)?;
            self.input.write_all(b"\0")?;
            self.input.flush()
        };
        let told = tell();
        let mut answer = String::new();
        let heard = told.and_then(|()| self.out.read_line(&mut answer));
        match (heard, Oid::parse(answer.trim_end())) {
            (Ok(_), Some(tree)) => Ok(tree),
            (heard, _) => {
                let mut said = heard.err().map(|error| error.to_string()).unwrap_or(answer);
                if let Some(talk) = &mut self.talk {
                    // Then what it complains about, a line or two, has an end.
                    let _ = talk.child.kill();
                    if let Some(pipe) = &mut talk.child.stderr {
                        let _ = pipe.read_to_string(&mut said);
                    }
                }
                Err(GitError::of_failed("mktree".into(), None, said))
            }
        }
    }

    fn end(mut self) -> Result<(), GitError> {
        let talk = self.talk.take();
        // Its input ends.
        drop(self);
        talk.map_or(Ok(()), Conversation::end)
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        if let Some(talk) = self.talk.take() {
            talk.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::difference::{Difference, diff};
    use crate::{PersonConfig, Repository};
    use std::process::Command;

    fn sh(dir: &Path, script: &str) -> String {
        let names = ["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "EMAIL"];
        let mut command = Command::new("sh");
        command.args(["-ec", script]).current_dir(dir).envs(names.map(|name| (name, "a@b")));
        let done = command.output().expect("sh");
        assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).expect("utf-8").trim().to_owned()
    }

    fn store(dir: &Path) -> Store {
        sh(
            dir,
            "git init -q -b main r; cd r; git commit -q --allow-empty -m none; mkdir ../stores",
        );
        let repo = Repository::find(&dir.join("r")).expect("repository");
        Store::open(&dir.join("stores"), &repo, &PersonConfig::default()).expect("store")
    }

    /// Pseudo-random numbers below a limit, the same each time.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) % limit
        }
    }

    /// Histories of random changes: each tree is the one that git's index makes of them, and
    /// each difference the one that `git diff-tree` tells. Few names, of which many begin
    /// with others, so that files and directories take each other's places all the time.
    #[test]
    fn trees_and_differences_are_those_of_git() {
        let temp = tempfile::tempdir().expect("tempdir");
        let store = store(temp.path());
        let git = |rest: &str| {
            let dir = store.dir().display();
            sh(
                temp.path(),
                &format!("export GIT_INDEX_FILE=$PWD/index; git --git-dir='{dir}' {rest}"),
            )
        };
        let blobs: Vec<Oid> = (0..3)
            .map(|number| git(&format!("hash-object -w --stdin <<.\n{number}\n.")))
            .map(|oid| Oid::parse(&oid).expect("oid"))
            .collect();
        let zero = store.format.zero();
        let module = Oid::parse(&"1".repeat(40)).expect("oid");
        let names = ["a", "a-b", "a.c", "a0", "b", "ab", "a\u{e9}"];
        let mut dice = Dice(7);
        let mut tree = TreeId(Oid::parse(&git("mktree </dev/null")).expect("empty tree"));
        for _ in 0..60 {
            let mut changed = Changed { most: 256, ..Changed::new(temp.path()) };
            let mut lines = String::new();
            let mut paths: Vec<String> = Vec::new();
            for _ in 0..=dice.below(12) {
                let depth = 1 + dice.below(3);
                let parts =
                    (0..depth).map(|_| names[usize::try_from(dice.below(7)).expect("small")]);
                let path = parts.collect::<Vec<_>>().join("/");
                let below = |one: &str, other: &str| one.starts_with(&format!("{other}/"));
                // In one change a name is a file or a directory, and has one change.
                if paths
                    .iter()
                    .any(|other| below(other, &path) || below(&path, other) || *other == path)
                {
                    continue;
                }
                let (mode, object) = match dice.below(6) {
                    0 | 1 => (0, &zero),
                    2 => (0o100_755, &blobs[0]),
                    3 => (0o120_000, &blobs[1]),
                    4 => (0o160_000, &module),
                    _ => (0o100_644, &blobs[2]),
                };
                changed.put(path.as_bytes(), mode, object).expect("change");
                lines.push_str(&format!("{mode:o} {object}\t{path}\n"));
                paths.push(path);
            }
            git(&format!("read-tree {tree}"));
            git(&format!("-c core.quotePath=false update-index --index-info <<.\n{lines}."));
            let wanted = git("write-tree --missing-ok");
            let made = apply(&store, store.git(), &tree, changed).expect("tree");
            assert_eq!(made.as_str(), wanted, "{lines}");
            for with_trees in [false, true] {
                let told: String = diff(&store, &tree, &made, with_trees)
                    .expect("diff")
                    .map(|difference| {
                        let Difference { old_mode, new_mode, old, new, path } =
                            difference.expect("difference");
                        let path = String::from_utf8(path).expect("utf-8");
                        format!(":{old_mode:06o} {new_mode:06o} {old} {new} {path}\n")
                    })
                    .collect();
                let t = if with_trees { "-t" } else { "" };
                let said = git(&format!(
                    "-c core.quotePath=false diff-tree -r {t} --no-renames --no-abbrev {tree} {made} \
                     | sed 's/ [ADMT]\t/ /'"
                ));
                assert_eq!(told.trim_end(), said, "{lines}");
            }
            tree = made;
        }
    }

    /// The last word on a path counts, also when it is in another run.
    #[test]
    fn the_last_change_of_a_path_counts() {
        let temp = tempfile::tempdir().expect("tempdir");
        let mut changed = Changed { most: 256, ..Changed::new(temp.path()) };
        let object = |digit: &str| Oid::parse(&digit.repeat(40)).expect("oid");
        for (number, digit) in ["1", "2", "3", "4", "5", "6"].into_iter().enumerate() {
            let filler = format!("filler/{number}");
            changed.put(filler.as_bytes(), 0o100_644, &object("0")).expect("put");
            changed.put(b"a", 0o100_644, &object(digit)).expect("put");
        }
        assert!(changed.runs.len() > 1);
        let mut sorted = changed.sorted().expect("sorted");
        let mut found = Vec::new();
        while let Some(change) = sorted.next().expect("next") {
            found.push((String::from_utf8(change.path).expect("utf-8"), change.object));
        }
        assert_eq!(found[0], ("a".into(), object("6")));
        assert_eq!(found.len(), 7);
        assert!(found.is_sorted());
    }
}

//! The second half: frames become objects in our store and one commit.
//!
//! git's `fast-import` does the editing: it loads the base's trees along the
//! changed paths and writes what is new as one synced pack. Each frame is passed
//! on as it comes, files as a part of the commit that is being made: nobody keeps
//! a list. A file that may need a conversion goes through `hash-object` with the
//! base's attributes; a file without a carriage return needs none, whatever its
//! attributes say about line endings.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{BufReader, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use super::commit::Importer;
use super::frame::Frame;
use super::{Refusal, names, new_rules};
use crate::attributes::{AttributeReader, OfPath, Text, is_attributes};
use crate::difference::diff;
use crate::lfs::{self, Cleaned, Pointer};
use crate::mode::{EXECUTABLE, GITLINK, LINK, PLAIN, TYPE};
use crate::{CommitId, GitError, Objects, Oid, PersonConfig, Store, TreeId, dirs_above, publish};

/// How many changed paths and things left out are told by name.
pub const NAMED: usize = 100;
/// How many converted files are remembered.
const CONVERTED: usize = 1000;
/// Larger files are streamed without looking for carriage returns first.
const LOOK_AT_MOST: u64 = 8 << 20;

/// What a task changed.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct ChangeSet {
    /// The commit on the base that holds it.
    pub commit: CommitId,
    /// Its tree.
    pub tree: TreeId,
    /// How many paths changed.
    pub counts: ChangeCounts,
    /// The first of them, in order: there can be a million.
    pub paths: Vec<ChangedPath>,
    /// Content that Git LFS has to keep for it.
    pub lfs: Vec<Pointer>,
}

/// What was read out of a context.
#[derive(Debug, Clone)]
pub struct Collected {
    /// The change set; none when nothing changed.
    pub change: Option<ChangeSet>,
    /// What was left out, in words; of much, how much more.
    pub left_out: Vec<String>,
    /// Whether the task's git holds work that is not on disk: that is left out, too.
    pub aside: bool,
}

/// How many paths changed, by how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ChangeCounts {
    /// New paths.
    pub added: u64,
    /// Paths with other content, mode or type.
    pub modified: u64,
    /// Paths that are gone.
    pub deleted: u64,
}

/// One changed path.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ChangedPath {
    /// `A`dded, `M`odified, `D`eleted, `T`ype changed.
    pub kind: char,
    /// The path, lossy where it is not UTF-8.
    pub path: String,
}

/// Who made a commit and what it says.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct CommitText {
    /// Name of author and committer.
    pub name: String,
    /// Mail address.
    pub mail: String,
    /// The whole message.
    pub message: String,
}

impl CommitText {
    /// Name and address as an author or committer line has them.
    #[must_use]
    pub fn signature(&self) -> String {
        let clean = |text: &str| text.replace(['<', '>', '\n', '\0'], "").trim().to_owned();
        format!("{} <{}>", clean(&self.name), clean(&self.mail))
    }
}

/// What a change set becomes a commit on, and with which words.
#[derive(Debug, Clone, Copy)]
pub struct Onto<'a> {
    /// The base and its tree.
    pub base: (&'a CommitId, &'a TreeId),
    /// The base's attributes files, alone in a directory.
    pub attributes: &'a Path,
    /// Who commits, and what the commit says.
    pub text: &'a CommitText,
    /// The task's id.
    pub task: &'a str,
}

/// Reads the frames of a scan and commits what they say on the base, as
/// `refs/dam/<task>` of the store. `progress` is told how many there were so far.
///
/// # Errors
/// [`Refusal`] for what can't land, [`GitError`] otherwise.
pub fn collect(
    store: &Store,
    config: &PersonConfig,
    onto: Onto<'_>,
    frames: impl Read,
    progress: &mut dyn FnMut(u64),
) -> Result<Collected, GitError> {
    let Onto { base, attributes: attributes_dir, text, task } = onto;
    let mut frames = BufReader::with_capacity(1 << 16, frames);
    let reference = format!("refs/dam/{task}");
    let mut blobs = Blobs {
        store,
        config,
        attributes_dir,
        base,
        text,
        reference: &reference,
        converts: store.converts_by_itself(),
        importer: None,
        attributes: None,
        objects: None,
        lfs: Vec::new(),
        was_converted: Vec::new(),
    };
    let (mut left_out, mut aside) = (LeftOut::default(), false);
    // Directories around the path of now whose content in the base is gone: a walk
    // has what is below a directory right after it.
    let mut cleared: Vec<Vec<u8>> = Vec::new();
    for number in 0.. {
        progress(number);
        let frame = Frame::read(&mut frames)
            .map_err(|error| Refusal::Helper(format!("its answer is cut off: {error}")))?;
        match frame {
            Frame::End => break,
            Frame::Broken { why } => {
                return Err(Refusal::Helper(String::from_utf8_lossy(&why).into_owned()).into());
            }
            Frame::Refused { path, why } => {
                return Err(Refusal::path(&path, String::from_utf8_lossy(&why)).into());
            }
            Frame::LeftOut { path, what } => left_out.note(&path, &what),
            Frame::Aside { path, what } => {
                left_out.note(&path, &what);
                aside = true;
            }
            Frame::Delete { path, is_dir } => blobs.importer()?.delete(&path, is_dir)?,
            Frame::Clear { path, is_dir } => {
                blobs.importer()?.delete(&path, is_dir)?;
                cleared.retain(|dir| is_below(&path, dir));
                cleared.push(path);
            }
            // A directory that was made again takes its submodules with it, unless
            // they were made again as well.
            Frame::Submodule { path } => {
                if cleared.iter().any(|dir| is_below(&path, dir)) {
                    let commit = blobs.in_base(&path)?;
                    blobs.importer()?.put(&path, GITLINK, &commit)?;
                }
            }
            Frame::Mode { path, executable } => {
                let object = blobs.in_base(&path)?;
                blobs.importer()?.put(&path, mode_of(executable), &object)?;
            }
            Frame::Symlink { path, target, same } => {
                if !same && !names::stays_inside(&path, &target) {
                    let target = cofferdam_tree::BytePath::from(target.as_slice());
                    let why = format!(
                        "is a symlink that points outside of the repository, to `{target}`"
                    );
                    return Err(Refusal::path(&path, why).into());
                }
                let (size, mut target) = (target.len() as u64, target.as_slice());
                blobs.importer()?.put_inline(&path, LINK, &mut target, size)?;
            }
            Frame::File { path, executable, size, attributes } => {
                let mut content = (&mut frames).take(size);
                blobs.file(&path, mode_of(executable), size, attributes, &mut content)?;
                if content.limit() != 0 {
                    return Err(Refusal::Helper("a file is cut off".into()).into());
                }
            }
        }
    }
    let left_out = left_out.into_words();
    let lfs = std::mem::take(&mut blobs.lfs);
    let was_converted = std::mem::take(&mut blobs.was_converted);
    let Some((commit, tree)) = blobs.commit()? else {
        return Ok(Collected { change: None, left_out, aside });
    };
    if tree == *base.1 {
        return Ok(Collected { change: None, left_out, aside });
    }
    let mut changes =
        ChangeSet { commit, tree, counts: ChangeCounts::default(), paths: Vec::new(), lfs };
    if count(store, base, &mut changes)? {
        let trees = (base.1, &changes.tree);
        new_rules::look(store, config, trees, attributes_dir, &was_converted)?;
    }
    Ok(Collected { change: Some(changes), left_out, aside })
}

fn mode_of(executable: bool) -> u32 {
    if executable { EXECUTABLE } else { PLAIN }
}

/// Counts what a change set changes, and looks for what can't land. Whether attributes
/// are among it.
fn count(
    store: &Store,
    base: (&CommitId, &TreeId),
    changes: &mut ChangeSet,
) -> Result<bool, GitError> {
    let (mut gits_own, mut attributes) = (None, false);
    let mut submodules: HashSet<Vec<u8>> = HashSet::new();
    for difference in diff(store, base.1, &changes.tree, false)? {
        let difference = difference?;
        let kind = match (difference.old_mode, difference.new_mode) {
            (0, _) => 'A',
            (_, 0) => 'D',
            (old, new) if old & TYPE != new & TYPE => 'T',
            _ => 'M',
        };
        match kind {
            'A' => changes.counts.added += 1,
            'D' => changes.counts.deleted += 1,
            _ => changes.counts.modified += 1,
        }
        let path = difference.path.as_slice();
        if changes.paths.len() < NAMED {
            let path = String::from_utf8_lossy(path).into_owned();
            changes.paths.push(ChangedPath { kind, path });
        }
        attributes |= is_attributes(path);
        if gits_own.is_none() && difference.new_mode != 0 && is_gits_own(path) {
            gits_own = Some(path.to_vec());
        }
        // What is below a path comes after it.
        if !submodules.is_empty()
            && let Some(above) = dirs_above(path).find(|above| submodules.contains(*above))
        {
            let why = "is a submodule, and changes inside one can't land";
            return Err(Refusal::path(above, why).into());
        }
        if difference.old_mode == GITLINK {
            submodules.insert(difference.path);
        }
    }
    if let Some(path) = gits_own {
        check_gits_own_files(store, base.0, &changes.commit, &path)?;
    }
    Ok(attributes)
}

/// Things that were left out: the first by name.
#[derive(Default)]
struct LeftOut {
    named: Vec<String>,
    more: u64,
}

impl LeftOut {
    fn note(&mut self, path: &[u8], what: &[u8]) {
        if self.named.len() == NAMED {
            self.more += 1;
            return;
        }
        let (path, what) =
            (cofferdam_tree::BytePath::from(path), String::from_utf8_lossy(what).into_owned());
        self.named.push(format!("`{path}` is {what}"));
    }

    fn into_words(mut self) -> Vec<String> {
        if self.more > 0 {
            self.named.push(format!("{} more of such", self.more));
        }
        self.named
    }
}

/// Whether a path is `dir` or lies below it.
fn is_below(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

fn is_gits_own(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    matches!(name.to_ascii_lowercase().as_slice(), b".gitmodules" | b".gitattributes")
}

/// git checks the content of its own files when objects arrive, and would refuse the
/// whole pack at the landing: that is found out here, by name.
fn check_gits_own_files(
    store: &Store,
    base: &CommitId,
    commit: &CommitId,
    path: &[u8],
) -> Result<(), GitError> {
    let done = publish::pack_into(store, commit, &[base], store.git())?;
    if done.status.success() {
        return Ok(());
    }
    let said = done.stderr.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(Refusal::path(path, format!("is refused by git: {said}")).into())
}

struct Blobs<'a> {
    store: &'a Store,
    config: &'a PersonConfig,
    attributes_dir: &'a Path,
    base: (&'a CommitId, &'a TreeId),
    text: &'a CommitText,
    reference: &'a str,
    converts: bool,
    /// Started by the first change.
    importer: Option<Importer<'a>>,
    attributes: Option<AttributeReader>,
    /// Of the base, when they were asked for.
    objects: Option<Objects>,
    /// Content that was kept beside the objects.
    lfs: Vec<Pointer>,
    /// What has become another blob than it is on disk: the first of it.
    was_converted: Vec<Vec<u8>>,
}

impl<'a> Blobs<'a> {
    fn importer(&mut self) -> Result<&mut Importer<'a>, GitError> {
        if self.importer.is_none() {
            let importer = Importer::start(self.store, self.reference, self.base.0, self.text)?;
            self.importer = Some(importer);
        }
        Ok(self.importer.as_mut().expect("just started"))
    }

    fn file(
        &mut self,
        path: &[u8],
        mode: u32,
        size: u64,
        attributes: bool,
        content: &mut impl Read,
    ) -> Result<(), GitError> {
        if !attributes && !self.converts {
            return self.importer()?.put_inline(path, mode, content, size);
        }
        let of_path = self.attributes(path)?;
        if of_path.filter.as_deref() == Some(lfs::FILTER) {
            return self.kept_by_lfs(path, mode, size, content);
        }
        if let Some(filter) = of_path.filter.as_ref().filter(|name| self.config.has_filter(name)) {
            let why =
                format!("would have to pass through the filter `{filter}`, which runs outside");
            return Err(Refusal::path(path, why).into());
        }
        let line_endings =
            of_path.text != Text::No && (of_path.text != Text::Unset || self.converts);
        if !of_path.always && !line_endings {
            return self.importer()?.put_inline(path, mode, content, size);
        }
        // git leaves the line endings of a file alone that is in the repository with
        // CRLF already, where it has to guess whether it is text.
        let guessed = line_endings && of_path.text != Text::Yes;
        if size > LOOK_AT_MOST {
            let keeps_crlf = guessed && self.base_has_crlf(path)?;
            return self.converted(path, mode, &of_path, keeps_crlf, content, size);
        }
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes).map_err(|error| Refusal::Helper(error.to_string()))?;
        let has_cr = bytes.contains(&b'\r');
        let keeps_crlf = has_cr && guessed && self.base_has_crlf(path)?;
        let as_it_is = !of_path.always && !has_cr;
        let (content, size) = (&mut bytes.as_slice(), bytes.len() as u64);
        if as_it_is {
            self.importer()?.put_inline(path, mode, content, size)
        } else {
            self.converted(path, mode, &of_path, keeps_crlf, content, size)
        }
    }

    /// A pointer stands in the tree; what it points to is kept until the landing.
    fn kept_by_lfs(
        &mut self,
        path: &[u8],
        mode: u32,
        size: u64,
        content: &mut impl Read,
    ) -> Result<(), GitError> {
        let lfs = &self.store.lfs;
        let blob = match lfs.clean(content, size)? {
            Cleaned::AsItIs(bytes) => {
                let pointer = Pointer::parse(&bytes).filter(|_| !lfs.leaves_pointers());
                if let Some(pointer) = pointer.filter(|pointer| lfs.find(pointer).is_none()) {
                    let why = format!(
                        "is a Git LFS pointer to content that is not here ({})",
                        &pointer.oid[..12]
                    );
                    return Err(Refusal::path(path, why).into());
                }
                bytes
            }
            Cleaned::Kept(pointer, text) => {
                if let Some(why) = lfs.why_not() {
                    return Err(Refusal::path(path, why).into());
                }
                self.lfs.push(pointer);
                text
            }
        };
        self.importer()?.put_inline(path, mode, &mut blob.as_slice(), blob.len() as u64)
    }

    fn converted(
        &mut self,
        path: &[u8],
        mode: u32,
        of_path: &OfPath,
        keeps_crlf: bool,
        content: &mut impl Read,
        size: u64,
    ) -> Result<(), GitError> {
        match (keeps_crlf, of_path.always) {
            (true, false) => self.importer()?.put_inline(path, mode, content, size),
            // `hash-object` can't be told to do the one and not the other.
            (true, true) => Err(Refusal::path(
                path,
                "is in the repository with CRLF and under `ident` or `working-tree-encoding`",
            )
            .into()),
            (false, _) => {
                let blob = self.hash_object(path, content)?;
                if self.was_converted.len() < CONVERTED {
                    self.was_converted.push(path.to_vec());
                }
                self.importer()?.put(path, mode, &blob)
            }
        }
    }

    /// `has_crlf_in_index` in git's convert.c.
    fn base_has_crlf(&self, path: &[u8]) -> Result<bool, GitError> {
        let mut talk =
            self.store.git().args(["cat-file", "blob"]).args([self.spec(path)]).converse()?;
        let mut stats = TextStats::default();
        let copied = std::io::copy(&mut talk.child.stdout.take().expect("piped"), &mut stats);
        // Not in the base is no error.
        Ok(talk.end().is_ok() && copied.is_ok() && stats.is_text_with_crlf())
    }

    /// The object at a path of the base.
    fn in_base(&mut self, path: &[u8]) -> Result<Oid, GitError> {
        let objects = match &mut self.objects {
            Some(objects) => objects,
            none => none.insert(Objects::start(self.store)?),
        };
        let found = objects.entries(self.base.1, &[path.to_vec()])?.into_iter().next();
        found.map(|(.., oid)| oid).ok_or_else(|| {
            let path = cofferdam_tree::BytePath::from(path);
            Refusal::Helper(format!("`{path}` is not in the base")).into()
        })
    }

    fn spec(&self, path: &[u8]) -> OsString {
        let mut spec = self.base.1.as_str().as_bytes().to_vec();
        spec.push(b':');
        spec.extend(path);
        OsString::from_vec(spec)
    }

    fn hash_object(&self, path: &[u8], content: &mut impl Read) -> Result<Oid, GitError> {
        let mut option = b"--path=".to_vec();
        option.extend(path);
        let option: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(&option);
        let git = self.store.git().work_tree(self.attributes_dir);
        let mut talk = git.args(["hash-object", "-w", "--stdin"]).args([option]).converse()?;
        let mut stdin = talk.child.stdin.take().expect("piped");
        let copied = std::io::copy(content, &mut stdin);
        drop(stdin);
        let mut answer = String::new();
        let _ = talk.child.stdout.take().expect("piped").read_to_string(&mut answer);
        talk.end()?;
        copied.map_err(|error| Refusal::Helper(error.to_string()))?;
        Oid::parse(answer.trim())
            .ok_or_else(|| GitError::Unexpected { command: "hash-object".into(), answer })
    }

    fn attributes(&mut self, path: &[u8]) -> Result<OfPath, GitError> {
        if self.attributes.is_none() {
            self.attributes = Some(AttributeReader::start(self.store, self.attributes_dir)?);
        }
        self.attributes.as_mut().expect("just started").of(path)
    }

    /// Ends the commit; none when there was no change.
    fn commit(mut self) -> Result<Option<(CommitId, TreeId)>, GitError> {
        if let Some(attributes) = self.attributes.take() {
            attributes.end()?;
        }
        self.importer.take().map(Importer::commit).transpose()
    }
}

/// git's guess whether bytes are text (`gather_stats` in convert.c).
#[derive(Debug, Default)]
struct TextStats {
    after_cr: bool,
    last: u8,
    crlf: u64,
    lone_cr: u64,
    nul: u64,
    printable: u64,
    nonprintable: u64,
}

impl Write for TextStats {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        for byte in bytes {
            match (self.after_cr, byte) {
                (true, b'\n') => self.crlf += 1,
                (true, _) => self.lone_cr += 1,
                _ => {}
            }
            self.after_cr = *byte == b'\r';
            match byte {
                b'\r' | b'\n' => {}
                0 => {
                    self.nul += 1;
                    self.nonprintable += 1;
                }
                0x08 | b'\t' | 0x0c | 0x1b => self.printable += 1,
                1..32 | 127 => self.nonprintable += 1,
                _ => self.printable += 1,
            }
            self.last = *byte;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl TextStats {
    fn is_text_with_crlf(&self) -> bool {
        let lone_cr = self.lone_cr + u64::from(self.after_cr);
        let end_of_file = u64::from(self.last == 0x1a);
        let binary = lone_cr > 0
            || self.nul > 0
            || (self.printable >> 7) < self.nonprintable.saturating_sub(end_of_file);
        self.crlf > 0 && !binary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_told_from_binary_as_git_does() {
        let of = |bytes: &[u8]| {
            let mut stats = TextStats::default();
            bytes.chunks(3).for_each(|chunk| stats.write_all(chunk).expect("counts"));
            stats.is_text_with_crlf()
        };
        assert!(of(b"a\r\nb\r\n"));
        assert!(of(b"a\r\n\x1a"));
        assert!(!of(b"a\nb\n"));
        assert!(!of(b"a\r\nb\r"));
        assert!(!of(b"a\rb\r\n"));
        assert!(!of(b"a\0\r\n"));
        assert!(!of(b"a\x01\r\n"));
        assert!(of(&[b"\x01\r\n".as_slice(), &[b'x'; 128]].concat()));
    }

    #[test]
    fn names_in_signatures_cannot_end_the_line() {
        let text = CommitText {
            name: "A <x>\ncommitter Evil".into(),
            mail: "a@b>".into(),
            message: String::new(),
        };
        assert_eq!(text.signature(), "A xcommitter Evil <a@b>");
    }
}

//! Trees of commits in the layer store.
//!
//! A *base* layer is a whole tree, checked out once by git. A *delta* layer is
//! what differs from a base: files, whiteouts, opaque directories. Both carry
//! the index of their tree below `.git`, with stat data that is valid and never
//! racy, and beside the tree its attributes files.
//!
//! Order of a base layer, and why:
//!
//! 1. git checks out into the draft; the index it writes is only a list to us.
//! 2. Root hands every entry to the task's user: this changes their ctime, so
//!    it comes before the stat data are read.
//! 3. Every file gets an mtime two seconds before the checkout began: files of
//!    the same second as their index are racy, and git would read them again.
//! 4. The index is written with what lstat says now.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use cofferdam_tree::stat::{FileStat, FileTime};
use cofferdam_tree::walk::{Caps, Visit, WalkError, Walker};
use cofferdam_tree::{LayerDraft, LayerId, LayerKind, LayerMeta, LayerStore};

use crate::attributes::{self, AttributeReader, AttributesDir};
use crate::command::Conversation;
use crate::difference::{Difference, diff};
use crate::index::{self, Index, IndexWriter, NewEntry};
use crate::lfs::{self, Pointer};
use crate::mode::{DIR, EXECUTABLE, GITLINK, LINK};
use crate::modules::Module;
use crate::objects::{self, Objects};
use crate::{CommitId, GitError, IoContext, Oid, Store, TreeId, below, gitdir};

/// What a layer is made of by this version: an older one is not used.
const FORM: &str = "f2";
/// Beyond this many changed paths a whole checkout is made instead of a delta.
const MOST_CHANGES: usize = 20_000;
const AGE: Duration = Duration::from_secs(2);

/// Where layers of one repository and one task user are made.
#[derive(Debug, Clone, Copy)]
pub struct LayerMaker<'a> {
    /// Our store of the repository.
    pub store: &'a Store,
    /// The layer store.
    pub layers: &'a LayerStore,
    /// Whom the files are to belong to, when it is not the caller.
    pub owner: Option<(u32, u32)>,
    /// Submodules whose files are part of what a tree shows.
    pub modules: &'a [Module],
}

/// Submodules: path and commit.
type Links = Vec<(Vec<u8>, Oid)>;

/// Files that were written, and their bytes.
struct Sum {
    files: u64,
    bytes: u64,
}

/// Where a tree is checked out.
#[derive(Clone, Copy)]
struct Places<'a> {
    top: &'a Path,
    /// Where its index goes.
    git_dir: &'a Path,
    /// A directory for what is needed on the way.
    beside: &'a Path,
    /// Where its attributes files go besides.
    attributes: Option<&'a Path>,
}

/// Layers that together show one tree, topmost first.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LayerStack {
    /// The tree they show.
    pub tree: TreeId,
    /// Ids, topmost first.
    pub ids: Vec<LayerId>,
    /// Whether it was there already.
    #[serde(skip)]
    pub warm: bool,
}

impl LayerStack {
    /// Names relative to the directory that holds the layer store, topmost first.
    #[must_use]
    pub fn lower(&self) -> Vec<String> {
        self.ids.iter().map(|id| format!("layers/{id}/tree")).collect()
    }

    /// The directory with the attributes of the tree.
    #[must_use]
    pub fn attributes(&self, layers: &LayerStore) -> PathBuf {
        attributes::dir_of_layer(&layers.dir().join(self.ids[0].as_str()))
    }
}

impl LayerMaker<'_> {
    fn key(&self, tree: &TreeId) -> String {
        let store = self.store.dir().file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let owner = self.owner.map_or(rustix::process::geteuid().as_raw(), |(uid, _)| uid);
        let mut key = format!("{tree}-u{owner}-{store}-{FORM}");
        let conversions = self.store.conversion_key();
        if !conversions.is_empty() {
            key = format!("{key}-{conversions}");
        }
        if !self.modules.is_empty() {
            let mut hash = Sha256::new();
            for module in self.modules {
                hash.update((module.path.len() as u64).to_le_bytes());
                hash.update(&module.path);
                hash.update(module.store.dir().as_os_str().as_bytes());
            }
            let hash = hash.finalize();
            key.push_str(&format!(
                "-m{:02x}{:02x}{:02x}{:02x}",
                hash[0], hash[1], hash[2], hash[3]
            ));
        }
        key
    }

    /// The layers that show `tree`, made when they are missing: as a delta on
    /// `near` (else on the newest base of this repository) when little differs.
    /// `progress` is told files done and files in all; `waiting` when somebody
    /// else is making the same layer.
    ///
    /// # Errors
    /// [`GitError`].
    pub fn stack(
        &self,
        tree: &TreeId,
        near: Option<&LayerStack>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<LayerStack, GitError> {
        let key = self.key(tree);
        if let Some(stack) = self.existing(&key, tree)? {
            return Ok(stack);
        }
        let _lock = self.layers.lock_key(&key, |_| {})?;
        if let Some(stack) = self.existing(&key, tree)? {
            return Ok(stack);
        }
        if let Some(stack) = self.delta(&key, tree, near)? {
            return Ok(stack);
        }
        let id = self.layers.build(|draft| self.base(draft, &key, tree, progress))?;
        Ok(LayerStack { tree: tree.clone(), ids: vec![id], warm: false })
    }

    /// One layer that shows `tree` by itself, for who can't lay one over another.
    ///
    /// # Errors
    /// [`GitError`].
    pub fn whole(
        &self,
        tree: &TreeId,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<LayerStack, GitError> {
        // The other key can lead to a delta.
        let [key, own_key] = [self.key(tree), format!("{}-whole", self.key(tree))];
        let existing = || -> Result<Option<LayerStack>, GitError> {
            for key in [&key, &own_key] {
                if let Some(stack) = self.existing(key, tree)?.filter(|stack| stack.ids.len() == 1)
                {
                    return Ok(Some(stack));
                }
            }
            Ok(None)
        };
        if let Some(stack) = existing()? {
            return Ok(stack);
        }
        let _lock = self.layers.lock_key(&own_key, |_| {})?;
        if let Some(stack) = existing()? {
            return Ok(stack);
        }
        let id = self.layers.build(|draft| self.base(draft, &own_key, tree, progress))?;
        Ok(LayerStack { tree: tree.clone(), ids: vec![id], warm: false })
    }

    fn existing(&self, key: &str, tree: &TreeId) -> Result<Option<LayerStack>, GitError> {
        let Some((id, meta)) = self.layers.find(key)? else { return Ok(None) };
        let mut ids = vec![id];
        if let Some(base) = meta.base {
            if !self.layers.tree(&base).is_dir() {
                return Ok(None);
            }
            ids.push(base);
        }
        Ok(Some(LayerStack { tree: tree.clone(), ids, warm: true }))
    }

    /// Whether it is one layer, made as this maker would make it: with the same
    /// conversions, and the same submodules.
    fn is_base(&self, stack: &LayerStack) -> Result<bool, GitError> {
        let [id] = stack.ids.as_slice() else { return Ok(false) };
        let known = self.layers.find(&self.key(&stack.tree))?;
        Ok(known.is_some_and(|(known, _)| known == *id))
    }

    /// The newest whole layer of this repository and user, with its tree.
    fn newest_base(&self) -> Result<Option<(LayerId, TreeId)>, GitError> {
        let mut newest: Option<(u64, LayerId, TreeId)> = None;
        for (id, meta) in self.layers.list()? {
            if meta.kind != LayerKind::Base {
                continue;
            }
            let Some(tree) = meta.key.split('-').next().and_then(Oid::parse).map(TreeId) else {
                continue;
            };
            if meta.key == self.key(&tree)
                && newest.as_ref().is_none_or(|(created, ..)| *created < meta.created_ms)
            {
                newest = Some((meta.created_ms, id, tree));
            }
        }
        Ok(newest.map(|(_, id, tree)| (id, tree)))
    }

    fn delta(
        &self,
        key: &str,
        tree: &TreeId,
        near: Option<&LayerStack>,
    ) -> Result<Option<LayerStack>, GitError> {
        let base = match near {
            Some(stack) if self.is_base(stack)? => Some((stack.ids[0].clone(), stack.tree.clone())),
            _ => self.newest_base()?,
        };
        let Some((base, base_tree)) = base else { return Ok(None) };
        // A base of a history that is gone has no objects left to compare.
        let few = diff(self.store, &base_tree, tree, true)?.take(MOST_CHANGES + 1);
        let Ok(changes) = few.collect::<Result<Vec<Difference>, _>>() else { return Ok(None) };
        if changes.len() > MOST_CHANGES {
            return Ok(None);
        }
        let id = self.layers.build(|draft| self.write_delta(draft, key, &base, &changes))?;
        Ok(Some(LayerStack { tree: tree.clone(), ids: vec![id, base], warm: false }))
    }

    fn meta(&self, key: &str, base: Option<LayerId>, files: u64, bytes: u64) -> LayerMeta {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        LayerMeta {
            version: 1,
            kind: if base.is_some() { LayerKind::Delta } else { LayerKind::Base },
            key: key.to_owned(),
            base,
            files,
            bytes,
            created_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            owner_uid: self.owner.map_or(rustix::process::geteuid().as_raw(), |(uid, _)| uid),
            boot: None,
        }
    }

    fn base(
        &self,
        draft: &LayerDraft,
        key: &str,
        tree: &TreeId,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<LayerMeta, GitError> {
        progress(0, 0);
        let top = draft.tree();
        let attributes = attributes::dir_of_layer(top.parent().unwrap_or(top));
        let (files, size) = self.check_out(top, tree, Some(&attributes), progress)?;
        Ok(self.meta(key, None, files, size))
    }

    /// Checks a tree out into `top`, an empty directory, and puts its index below
    /// `.git` there; its attributes files go to another directory besides. Gives the
    /// number of files and their size.
    ///
    /// # Errors
    /// [`GitError`].
    pub fn check_out(
        &self,
        top: &Path,
        tree: &TreeId,
        attributes: Option<&Path>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(u64, u64), GitError> {
        let beside = top.parent().unwrap_or(top);
        let places = Places { top, git_dir: &top.join(".git"), beside, attributes };
        let (mut sum, links) = self.check_out_files(&places, tree, progress)?;
        self.check_out_modules(top, b"", &links, &mut sum)?;
        Ok((sum.files, sum.bytes))
    }

    /// Checks out the submodules that there are of those at `links`, paths below `above`.
    fn check_out_modules(
        &self,
        top: &Path,
        above: &[u8],
        links: &Links,
        sum: &mut Sum,
    ) -> Result<(), GitError> {
        for (path, commit) in links {
            let path = [above, path].concat();
            if let Some(module) = self.modules.iter().find(|module| module.path == path) {
                self.check_out_module(top, module, &CommitId(commit.clone()), sum)?;
            }
        }
        Ok(())
    }

    /// Checks out a submodule in the tree that begins at `top`, where its directory is
    /// empty.
    fn check_out_module(
        &self,
        top: &Path,
        module: &Module,
        commit: &CommitId,
        sum: &mut Sum,
    ) -> Result<(), GitError> {
        let Ok(tree) = module.store.tree_of(commit) else {
            let path = module.path.as_slice().into();
            return Err(GitError::Submodule { path, commit: commit.clone() });
        };
        let maker = LayerMaker { store: &module.store, ..*self };
        let place = below(top, &module.path);
        let git_dir = top.join(module.git_dir());
        let beside = top.parent().unwrap_or(top);
        let places = Places { top: &place, git_dir: &git_dir, beside, attributes: None };
        let (own, links) = maker.check_out_files(&places, &tree, &mut |_, _| {})?;
        sum.files += own.files;
        sum.bytes += own.bytes;
        let link = place.join(".git");
        let to = [module.up().as_bytes(), module.git_dir().as_os_str().as_bytes()].concat();
        std::fs::write(&link, [b"gitdir: ", to.as_slice(), b"\n"].concat()).at("write", &link)?;
        if let Some((uid, gid)) = self.owner {
            for path in [link.as_path(), &top.join(".git"), &top.join(".git/modules")] {
                std::os::unix::fs::chown(path, Some(uid), Some(gid)).at("hand over", path)?;
            }
        }
        let above = [&module.path, b"/".as_slice()].concat();
        self.check_out_modules(top, &above, &links, sum)
    }

    /// Gives the number of files, their size, and the submodules.
    fn check_out_files(
        &self,
        places: &Places<'_>,
        tree: &TreeId,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Sum, Links), GitError> {
        let Places { top, git_dir, beside, attributes } = *places;
        let index_file = beside.join("index");
        let own_attributes = attributes.is_none().then(|| beside.join("own-attributes"));
        let attributes = attributes.or(own_attributes.as_deref()).unwrap_or(beside);
        std::fs::create_dir_all(attributes).at("make", attributes)?;
        let old = SystemTime::now() - AGE;
        let git = self
            .store
            .git()
            .work_tree(top)
            .env("GIT_INDEX_FILE", &index_file)
            .env("GIT_PROGRESS_DELAY", "1")
            .args(["read-tree", "-v", "--reset", "-u", tree.as_str()]);
        watch_progress(git.converse()?, progress)?;
        gitdir::write_skeleton(git_dir)?;
        if let Some(owner) = self.owner {
            give_away(top, owner)?;
            if !git_dir.starts_with(top) {
                give_away(git_dir, owner)?;
            }
        }
        let mut index = self.read_index(&index_file)?;
        while let Some(entry) = index.next()? {
            if attributes::is_attributes(entry.path) && entry.mode != LINK {
                let path = below(top, entry.path);
                let content = std::fs::read(&path).at("read", &path)?;
                AttributesDir(attributes).put(entry.path, &content)?;
            }
        }
        let mut index = self.read_index(&index_file)?;
        let (own, mut to) = self.write_index(git_dir)?;
        let (mut files, mut size) = (0, 0);
        let mut links = Vec::new();
        let mut pointers = self.pointers(attributes)?;
        while let Some(entry) = index.next()? {
            let path = below(top, entry.path);
            let stat = match entry.mode {
                GITLINK => {
                    links.extend(entry.oid().map(|commit| (entry.path.to_vec(), commit)));
                    None
                }
                LINK => Some(set_time(&path, old)?),
                _ => {
                    if let Some(pointers) = &mut pointers {
                        self.fetch(pointers, &path, entry.path)?;
                    }
                    Some(set_time(&path, old)?)
                }
            };
            if let Some(stat) = &stat {
                files += 1;
                size += stat.size;
            }
            to.keep(entry, stat.as_ref()).at("write", &own)?;
        }
        pointers.map_or(Ok(()), AttributeReader::end)?;
        to.end().at("write", &own)?;
        std::fs::remove_file(&index_file).at("remove", &index_file)?;
        if let Some(attributes) = own_attributes {
            std::fs::remove_dir_all(&attributes).at("remove", &attributes)?;
        }
        Ok((Sum { files, bytes: size }, links))
    }

    /// Tells which files Git LFS keeps by attributes in `dir`, when it can keep any.
    fn pointers(&self, dir: &Path) -> Result<Option<AttributeReader>, GitError> {
        let kept =
            || lfs::is_named_below(dir) || self.store.outer_attributes().any(lfs::is_named_in);
        if self.store.lfs.leaves_pointers() || !kept() {
            return Ok(None);
        }
        AttributeReader::start(self.store, dir).map(Some)
    }

    /// Puts the content of what Git LFS keeps in the place of a pointer.
    fn fetch(
        &self,
        pointers: &mut AttributeReader,
        file: &Path,
        path: &[u8],
    ) -> Result<(), GitError> {
        let Some(pointer) = lfs::pointer_in(file).at("read", file)? else { return Ok(()) };
        if pointers.of(path)?.filter.as_deref() != Some(lfs::FILTER) {
            return Ok(());
        }
        let content = self.store.lfs.content(path, &pointer)?;
        let from = std::fs::File::open(&content).at("read", &content)?;
        let to = std::fs::File::options().write(true).truncate(true).open(file);
        std::io::copy(&mut &from, &mut to.at("write", file)?).at("write", file)?;
        Ok(())
    }

    fn read_index(&self, path: &Path) -> Result<Index<BufReader<std::fs::File>>, GitError> {
        let file = std::fs::File::open(path).at("read", path)?;
        Index::open(BufReader::with_capacity(1 << 16, file), self.store.format)
    }

    /// Begins the index of a git directory.
    fn write_index(
        &self,
        git_dir: &Path,
    ) -> Result<(PathBuf, IndexWriter<std::fs::File>), GitError> {
        let path = git_dir.join("index");
        let file = std::fs::File::create(&path).at("write", &path)?;
        if let Some((uid, gid)) = self.owner {
            std::os::unix::fs::fchown(&file, Some(uid), Some(gid)).at("hand over", &path)?;
        }
        let to = IndexWriter::new(file, self.store.format).at("write", &path)?;
        Ok((path, to))
    }

    fn write_delta(
        &self,
        draft: &LayerDraft,
        key: &str,
        base: &LayerId,
        changes: &[Difference],
    ) -> Result<LayerMeta, GitError> {
        let top = draft.tree();
        let attributes = attributes::dir_of_layer(top.parent().unwrap_or(top));
        let base_dir = self.layers.dir().join(base.as_str());
        let attributes_of = AttributesDir(&attributes);
        attributes_of.copy_from(&attributes::dir_of_layer(&base_dir))?;
        let is_blob = |mode: u32| mode != 0 && mode != DIR && mode != GITLINK;
        // The attributes of the new tree decide how its files are written.
        let mut raw = Objects::start(self.store)?;
        for change in changes.iter().filter(|change| attributes::is_attributes(&change.path)) {
            if is_blob(change.new_mode) && change.new_mode != LINK {
                attributes_of.put(&change.path, &raw.read(&change.new, &change.path)?)?;
            } else {
                attributes_of.remove(&change.path)?;
            }
        }
        let converts = attributes::any(&attributes) || self.store.converts_by_itself();
        let mut converted =
            if converts { Some(Objects::checked_out(self.store, &attributes)?) } else { None };
        let mut of_path = self.pointers(&attributes)?;
        let mut writer = draft.writer(self.owner).at("open", top)?;
        let wrote = |error: cofferdam_tree::DeltaError| GitError::Io {
            step: "write a delta layer in",
            path: top.into(),
            source: std::io::Error::other(error),
        };
        let old = SystemTime::now() - AGE;
        let mut entries: BTreeMap<Vec<u8>, Option<NewEntry>> = BTreeMap::new();
        let mut links = Vec::new();
        let (mut files, mut bytes) = (0, 0);
        for change in changes {
            let path = change.path.as_slice();
            if change.new_mode == 0 {
                writer.whiteout(path).map_err(wrote)?;
            }
            if change.old_mode != 0 && change.old_mode != DIR && change.new_mode != change.old_mode
            {
                entries.entry(path.to_vec()).or_insert(None);
            }
            let stat = match change.new_mode {
                0 => continue,
                DIR if change.old_mode == DIR => continue,
                DIR => {
                    writer.opaque_dir(path).map_err(wrote)?;
                    continue;
                }
                GITLINK => {
                    writer.opaque_dir(path).map_err(wrote)?;
                    links.push((path.to_vec(), change.new.clone()));
                    None
                }
                LINK => {
                    let target = raw.read(&change.new, path)?;
                    Some(writer.put_symlink(path, &target, Some(old)).map_err(wrote)?)
                }
                mode => {
                    let executable = mode == EXECUTABLE;
                    let filter = of_path.as_mut().map(|reader| reader.of(path)).transpose()?;
                    let filter = filter.and_then(|of_path| of_path.filter);
                    let pointer = if filter.as_deref() == Some(lfs::FILTER) {
                        pointer(&mut raw, &change.new, path)?
                    } else {
                        None
                    };
                    let done = if let Some(pointer) = pointer {
                        let content = self.store.lfs.content(path, &pointer)?;
                        let content = std::fs::File::open(&content).at("read", &content)?;
                        writer.put_file(path, executable, content, Some(old))
                    } else {
                        let reader = converted.as_mut().unwrap_or(&mut raw);
                        let mut content = reader.open(&change.new, path)?;
                        let done = writer.put_file(path, executable, &mut content, Some(old));
                        content.close()?;
                        done
                    };
                    Some(done.map_err(wrote)?)
                }
            };
            files += 1;
            bytes += stat.map_or(0, |stat| stat.size);
            let entry = NewEntry { mode: change.new_mode, oid: change.new.clone(), stat };
            entries.insert(path.to_vec(), Some(entry));
        }
        raw.end()?;
        of_path.map_or(Ok(()), AttributeReader::end)?;
        if let Some(converted) = converted {
            converted.end()?;
        }
        let base_index = base_dir.join("tree/.git/index");
        let git_dir = top.join(".git");
        std::fs::create_dir(&git_dir).at("make", &git_dir)?;
        if let Some((uid, gid)) = self.owner {
            std::os::unix::fs::chown(&git_dir, Some(uid), Some(gid)).at("hand over", &git_dir)?;
            std::os::unix::fs::chown(top, Some(uid), Some(gid)).at("hand over", top)?;
        }
        let (own, mut to) = self.write_index(&git_dir)?;
        index::edit(&mut self.read_index(&base_index)?, entries, &mut to)?;
        to.end().at("write", &own)?;
        let mut sum = Sum { files, bytes };
        self.check_out_modules(top, b"", &links, &mut sum)?;
        Ok(self.meta(key, Some(base.clone()), sum.files, sum.bytes))
    }
}

/// The pointer that a blob is.
fn pointer(raw: &mut Objects, oid: &Oid, path: &[u8]) -> Result<Option<Pointer>, GitError> {
    let mut start = Vec::new();
    let mut blob = raw.open(oid, path)?;
    blob.by_ref().take(lfs::MOST + 1).read_to_end(&mut start).map_err(objects::broken)?;
    blob.close()?;
    Ok(Pointer::parse(&start))
}

fn watch_progress(
    mut talk: Conversation,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), GitError> {
    let stderr = talk.child.stderr.take().expect("piped");
    let mut said = Vec::new();
    for chunk in BufReader::new(stderr).split(b'\r') {
        let Ok(chunk) = chunk else { break };
        match counts(&chunk) {
            Some((done, all)) => progress(done, all),
            None => said.extend(chunk),
        }
    }
    let command = talk.command.clone();
    talk.end().map_err(|error| match error {
        GitError::Failed { code, .. } => {
            GitError::of_failed(command, code, String::from_utf8_lossy(&said).into_owned())
        }
        other => other,
    })
}

/// The numbers of a line like `Updating files:  45% (450/1000)`.
fn counts(line: &[u8]) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(line).ok()?;
    let text = text.strip_prefix("Updating files:")?;
    let (done, rest) = text.split_once('(')?.1.split_once('/')?;
    Some((done.parse().ok()?, rest.split_once(')')?.0.parse().ok()?))
}

fn give_away(top: &Path, (uid, gid): (u32, u32)) -> Result<(), GitError> {
    use rustix::fs::{AtFlags, Gid, OFlags, Uid, chownat};
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(top, flags, rustix::fs::Mode::empty()).at("open", top)?;
    rustix::fs::fchown(&root, uid, gid).at("hand over", top)?;
    let caps = Caps { entries: u64::MAX, bytes: u64::MAX, ..Caps::default() };
    Walker::new(root, caps).walk::<GitError>(&mut |entry| {
        chownat(entry.dir, entry.name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| WalkError::Io { path: entry.path.into(), source: errno.into() })?;
        Ok(Visit::Descend)
    })?;
    Ok(())
}

/// Sets a file's mtime and gives its stat data after that.
fn set_time(path: &Path, time: SystemTime) -> Result<FileStat, GitError> {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let stamp = Timespec {
        tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: since.subsec_nanos().into(),
    };
    let times = Timestamps { last_access: stamp, last_modification: stamp };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).at("set the time of", path)?;
    let meta = std::fs::symlink_metadata(path).at("look at", path)?;
    let file_time = |sec: i64, nsec: i64| FileTime { sec, nsec: u32::try_from(nsec).unwrap_or(0) };
    Ok(FileStat {
        dev: meta.dev(),
        ino: meta.ino(),
        mode: meta.mode(),
        uid: meta.uid(),
        gid: meta.gid(),
        size: meta.size(),
        mtime: file_time(meta.mtime(), meta.mtime_nsec()),
        ctime: file_time(meta.ctime(), meta.ctime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_lines() {
        assert_eq!(counts(b"Updating files:  45% (450/1000)"), Some((450, 1000)));
        assert_eq!(counts(b"Updating files: 100% (9/9), done.\n"), Some((9, 9)));
        assert_eq!(counts(b"fatal: no space"), None);
    }
}

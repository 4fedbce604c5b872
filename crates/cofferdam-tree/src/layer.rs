//! The layer store: immutable directory trees, found by a key in constant time.
//!
//! ```text
//! layers/<id>/tree          the lower directory of overlays
//! layers/<id>/meta.json     LayerMeta
//! layers/by-key/<key>       symlink to ../<id>; may dangle
//! layers/by-key/<key>.lock  held while somebody builds for that key
//! layers/.tmp-<random>/     a layer being built; its `lock` is held meanwhile
//! ```
//!
//! Building, and why in this order:
//!
//! 1. Make `.tmp-*`, lock its `lock`. A sweep that gets in between removes the
//!    young directory, which is noticed, and another name is tried.
//! 2. The caller fills `tree`.
//! 3. A base is synced (`syncfs`); a delta is not, because that would wait for
//!    every other context's dirty pages. Instead its `meta.json` carries the
//!    boot id, and in another boot it is no longer found.
//! 4. `meta.json` is written and synced, then the directory takes its id by
//!    rename: a layer that can be seen is whole.
//! 5. Only then is the key written, by rename over an older one.
//! 6. The lock file goes last, when the directory no longer has a name that a
//!    sweep looks at.
//!
//! After SIGKILL anywhere there is either a whole layer or a `.tmp-*` whose lock
//! is free, which [`LayerStore::sweep`] removes.

use crate::delta::DeltaWriter;
use crate::durable::{fsync_dir, write_atomic};
use crate::layer_meta::{ID_LEN, LayerId, LayerKind, LayerMeta, VERSION, check_key};
use crate::lock::{Lock, LockError};
use crate::random;
use crate::remove::{RemoveError, remove_tree};
use crate::trash::Trash;
use rustix::fd::AsFd;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// How a draft's name begins.
const DRAFT: &str = ".tmp-";

/// Why the layer store failed.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// Not 12 characters of `[a-z0-9]`.
    #[error("`{}` is not a layer id", id.escape_debug())]
    InvalidId {
        /// As given.
        id: String,
    },
    /// Not 1 to 200 characters of `[a-z0-9-]`.
    #[error("`{}` is not a layer key", key.escape_debug())]
    InvalidKey {
        /// As given.
        key: String,
    },
    /// `meta.json` is not what this version writes.
    #[error("layer description `{}` can't be used: {reason}", path.display())]
    Meta {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The kernel refused.
    #[error("`{}`: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A lock failed.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// An aborted draft can't be removed.
    #[error("aborted layer: {0}")]
    Remove(#[from] RemoveError),
}

fn io_error(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> LayerError {
    let path = path.into();
    move |source| LayerError::Io { path, source }
}

/// A layer being built.
#[derive(Debug)]
pub struct LayerDraft {
    dir: PathBuf,
    tree: PathBuf,
    _lock: Lock,
}

impl LayerDraft {
    /// The directory to fill; it exists and is empty (mode 0755).
    #[must_use]
    pub fn tree(&self) -> &Path {
        &self.tree
    }

    /// A writer into [`tree`](Self::tree), which is given to `owner` as well; see
    /// [`DeltaWriter::new`].
    ///
    /// # Errors
    /// Of opening the directory or changing its owner.
    pub fn writer(&self, owner: Option<(u32, u32)>) -> io::Result<DeltaWriter> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let tree = rustix::fs::open(&self.tree, flags, Mode::empty())?;
        if let Some((uid, gid)) = owner {
            std::os::unix::fs::fchown(&tree, Some(uid), Some(gid))?;
        }
        Ok(DeltaWriter::new(tree, owner))
    }
}

/// The directory `layers`.
#[derive(Clone, Debug)]
pub struct LayerStore {
    dir: PathBuf,
}

impl LayerStore {
    /// Opens the store at `dir`, which is made when missing (its parent is not).
    ///
    /// # Errors
    /// Of making the directories.
    pub fn open(dir: &Path) -> Result<Self, LayerError> {
        for path in [dir.to_owned(), dir.join("by-key")] {
            match fs::create_dir(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(LayerError::Io { path, source: error });
                }
                _ => {}
            }
        }
        Ok(Self { dir: dir.to_owned() })
    }

    /// Where the store is: overlays are mounted from here with relative names.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The lower directory of a layer.
    #[must_use]
    pub fn tree(&self, id: &LayerId) -> PathBuf {
        self.dir.join(id.as_str()).join("tree")
    }

    /// Waits until nobody else builds for `key`, and keeps others waiting.
    /// `while_waiting` as in [`Lock::exclusive`].
    ///
    /// # Errors
    /// `InvalidKey` or `Lock`.
    pub fn lock_key(&self, key: &str, while_waiting: impl FnMut(&str)) -> Result<Lock, LayerError> {
        check_key(key)?;
        Ok(Lock::exclusive(&self.dir.join("by-key").join(format!("{key}.lock")), while_waiting)?)
    }

    /// Builds a layer: `fill` fills the draft's tree and says what it is. When a
    /// usable layer has the same key by then, that one is returned instead. See
    /// the module for what is left after an abort.
    ///
    /// # Errors
    /// Those of `fill`, and [`LayerError`].
    pub fn build<E: From<LayerError>>(
        &self,
        fill: impl FnOnce(&LayerDraft) -> Result<LayerMeta, E>,
    ) -> Result<LayerId, E> {
        let draft = self.draft()?;
        let meta = fill(&draft)?;
        Ok(self.finish(draft, meta)?)
    }

    fn draft(&self) -> Result<LayerDraft, LayerError> {
        loop {
            let name = random::name(ID_LEN).map_err(io_error(&self.dir))?;
            let dir = self.dir.join(format!("{DRAFT}{name}"));
            fs::create_dir(&dir).map_err(io_error(&dir))?;
            let _lock = match Lock::try_exclusive(&dir.join("lock")) {
                Ok(Some(lock)) => lock,
                Ok(None) => continue,
                Err(LockError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let tree = dir.join("tree");
            fs::create_dir(&tree).map_err(io_error(&tree))?;
            rustix::fs::chmod(&tree, Mode::from_raw_mode(0o755))
                .map_err(|errno| io_error(&tree)(errno.into()))?;
            return Ok(LayerDraft { dir, tree, _lock });
        }
    }

    fn finish(&self, draft: LayerDraft, mut meta: LayerMeta) -> Result<LayerId, LayerError> {
        check_key(&meta.key)?;
        let path = draft.dir.join("meta.json");
        if meta.version != VERSION {
            return Err(LayerError::Meta { path, reason: format!("version {}", meta.version) });
        }
        meta.boot = match meta.kind {
            LayerKind::Base => None,
            LayerKind::Delta => boot_id(),
        };
        let bytes = serde_json::to_vec_pretty(&meta)
            .map_err(|error| LayerError::Meta { path: path.clone(), reason: error.to_string() })?;
        if meta.boot.is_some() {
            fs::write(&path, bytes).map_err(io_error(&path))?;
        } else {
            let sync =
                || -> io::Result<()> { Ok(rustix::fs::syncfs(fs::File::open(&draft.tree)?)?) };
            sync().map_err(io_error(&draft.tree))?;
            write_atomic(&path, &bytes, 0o644).map_err(|error| io_error(&path)(error.into()))?;
        }
        if let Some((id, _)) = self.find(&meta.key)? {
            return Ok(id);
        }
        let id = self.take_id(&draft.dir)?;
        let dir = self.dir.join(id.as_str());
        if meta.boot.is_none() {
            fsync_dir(&self.dir).map_err(io_error(&self.dir))?;
        }
        cofferdam_failpoint::hit("layer:key").map_err(io_error(&dir))?;
        let link = dir.join("key");
        let by_key = self.dir.join("by-key").join(&meta.key);
        std::os::unix::fs::symlink(Path::new("..").join(id.as_str()), &link)
            .and_then(|()| fs::rename(&link, &by_key))
            .and_then(|()| fs::remove_file(dir.join("lock")))
            .map_err(io_error(&by_key))?;
        Ok(id)
    }

    fn take_id(&self, draft: &Path) -> Result<LayerId, LayerError> {
        loop {
            let id = LayerId::random().map_err(io_error(&self.dir))?;
            let dir = self.dir.join(id.as_str());
            cofferdam_failpoint::hit("layer:rename").map_err(io_error(&dir))?;
            match rustix::fs::renameat_with(CWD, draft, CWD, &dir, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(id),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(io_error(dir)(errno.into())),
            }
        }
    }

    /// The usable layer with this key, in constant time. One that is damaged, or
    /// a delta from an earlier boot, is as good as none.
    ///
    /// # Errors
    /// `InvalidKey`, and `Io` for anything but a missing file.
    pub fn find(&self, key: &str) -> Result<Option<(LayerId, LayerMeta)>, LayerError> {
        check_key(key)?;
        let link = self.dir.join("by-key").join(key);
        let target = match fs::read_link(&link) {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(LayerError::Io { path: link, source }),
        };
        let id = target
            .file_name()
            .and_then(OsStr::to_str)
            .and_then(|name| name.parse::<LayerId>().ok());
        let Some(id) = id else { return Ok(None) };
        Ok(self.usable(&id)?.filter(|meta| meta.key == key).map(|meta| (id, meta)))
    }

    /// Describes a layer.
    ///
    /// # Errors
    /// `Io` when it is missing, `Meta` when it is damaged.
    pub fn meta(&self, id: &LayerId) -> Result<LayerMeta, LayerError> {
        let path = self.dir.join(id.as_str()).join("meta.json");
        let bytes = fs::read(&path).map_err(io_error(&path))?;
        let meta: LayerMeta = serde_json::from_slice(&bytes)
            .map_err(|error| LayerError::Meta { path: path.clone(), reason: error.to_string() })?;
        if meta.version != VERSION {
            return Err(LayerError::Meta { path, reason: format!("version {}", meta.version) });
        }
        Ok(meta)
    }

    fn usable(&self, id: &LayerId) -> Result<Option<LayerMeta>, LayerError> {
        match self.meta(id) {
            Ok(meta) => {
                let lasts = meta.boot.is_none() || meta.boot == boot_id();
                Ok(Some(meta).filter(|_| lasts && self.tree(id).is_dir()))
            }
            Err(LayerError::Meta { .. }) => Ok(None),
            Err(LayerError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn names(&self, dir: &Path) -> Result<Vec<String>, LayerError> {
        let names = || -> io::Result<Vec<String>> {
            fs::read_dir(dir)?
                .map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default()))
                .collect()
        };
        names().map_err(io_error(dir))
    }

    /// All usable layers, in the order of their ids.
    ///
    /// # Errors
    /// `Io`.
    pub fn list(&self) -> Result<Vec<(LayerId, LayerMeta)>, LayerError> {
        let mut layers = Vec::new();
        for id in self.names(&self.dir)?.iter().filter_map(|name| name.parse::<LayerId>().ok()) {
            if let Some(meta) = self.usable(&id)? {
                layers.push((id, meta));
            }
        }
        layers.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(layers)
    }

    /// Layers that can't be found any more: damaged, or deltas of an earlier
    /// boot. Kept contexts may still refer to them.
    ///
    /// # Errors
    /// `Io`.
    pub fn unusable(&self) -> Result<Vec<LayerId>, LayerError> {
        let mut ids = Vec::new();
        for id in self.names(&self.dir)?.iter().filter_map(|name| name.parse::<LayerId>().ok()) {
            if self.usable(&id)?.is_none() {
                ids.push(id);
            }
        }
        ids.sort();
        Ok(ids)
    }

    /// Moves a layer into the trash, its key first. That nothing uses it is the
    /// caller's to know.
    ///
    /// # Errors
    /// `Io`; a layer that is missing is `NotFound`.
    pub fn remove(&self, id: &LayerId, trash: &Trash) -> Result<(), LayerError> {
        if let Ok(meta) = self.meta(id)
            && check_key(&meta.key).is_ok()
        {
            let link = self.dir.join("by-key").join(&meta.key);
            if fs::read_link(&link)
                .is_ok_and(|target| target.file_name() == Some(OsStr::new(id.as_str())))
            {
                // A builder may have replaced it in between: then one key is forgotten, nothing else.
                let _ = fs::remove_file(&link);
            }
        }
        trash.take(&self.dir, id.as_str()).map_err(io_error(self.dir.join(id.as_str())))
    }

    /// Removes aborted drafts, dangling keys and the locks of keys that have no
    /// layer. What somebody works on is left alone. Returns how many drafts went.
    ///
    /// # Errors
    /// The first that occurs.
    pub fn sweep(&self) -> Result<u64, LayerError> {
        let mut swept = 0;
        let dir = fs::File::open(&self.dir).map_err(io_error(&self.dir))?;
        for name in self.names(&self.dir)?.iter().filter(|name| name.starts_with(DRAFT)) {
            let _lock = match Lock::try_exclusive(&self.dir.join(name).join("lock")) {
                Ok(Some(lock)) => lock,
                Ok(None) => continue,
                Err(LockError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            remove_tree(dir.as_fd(), OsStr::new(name))?;
            swept += 1;
        }
        let by_key = self.dir.join("by-key");
        for name in self.names(&by_key)? {
            match name.strip_suffix(".lock") {
                Some(key) if !by_key.join(key).exists() => {
                    // Safe while it is held: whoever waits for it looks at the path again.
                    if let Some(_lock) = Lock::try_exclusive(&by_key.join(&name))? {
                        let _ = fs::remove_file(by_key.join(&name));
                    }
                }
                None if !by_key.join(&name).exists() => {
                    let _ = fs::remove_file(by_key.join(&name));
                }
                _ => {}
            }
        }
        Ok(swept)
    }
}

/// Names one run of the kernel (random(4)).
fn boot_id() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

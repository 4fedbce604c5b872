//! The state directory and what is where in it.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cofferdam_git::modules::{self, Module};
use cofferdam_git::{PersonConfig, Repository, Store, TreeId};
use cofferdam_ledger::{Ledger, TaskId};
use cofferdam_sandbox::process::ProcessName;
use cofferdam_tree::{LayerStore, Lock, Trash};

use crate::Error;
use crate::config::Config;
use crate::error::IoContext;

const OVERLAYFS_MAGIC: i64 = 0x794c_7630;

/// The program's state: one per person and machine.
#[derive(Debug)]
pub struct Dam {
    dir: PathBuf,
    /// The durable record.
    pub ledger: Ledger,
    /// Immutable trees.
    pub layers: LayerStore,
    /// What is to be deleted.
    pub trash: Trash,
    /// The person's own configuration.
    pub own: Config,
}

impl Dam {
    /// Where the state is: `COFFERDAM_STATE`, else `state_dir` of the person's
    /// configuration, else below `XDG_STATE_HOME`, else below `~/.local/state`.
    ///
    /// # Errors
    /// [`Error::StateDir`] when none of them is set to an absolute path;
    /// [`Error::Config`].
    pub fn default_dir() -> Result<PathBuf, Error> {
        let from = |name: &str, rest: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(|value| Path::new(&value).join(rest))
        };
        let own = match from("COFFERDAM_STATE", "") {
            Some(dir) => Some(dir),
            None => Config::of_person()?.state_dir,
        };
        let dir = own
            .or_else(|| from("XDG_STATE_HOME", "cofferdam"))
            .or_else(|| from("HOME", ".local/state/cofferdam"))
            .unwrap_or_default();
        if dir.is_absolute() {
            Ok(dir.components().collect())
        } else {
            Err(Error::StateDir { path: dir, why: "it is not an absolute path".into() })
        }
    }

    /// Opens the state directory, made when it is missing.
    ///
    /// # Errors
    /// [`Error::StateDir`] when it can't hold contexts.
    pub fn open(dir: &Path) -> Result<Dam, Error> {
        let unusable = |why: String| Error::StateDir { path: dir.into(), why };
        if !dir.is_dir() {
            refuse_in_repository(dir).map_err(unusable)?;
            // With its mode at once: somebody else may look at it the next moment.
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)
                .map_err(|error| not_made(dir, error))?;
        }
        let dir = std::fs::canonicalize(dir).map_err(|error| unusable(error.to_string()))?;
        let meta = std::fs::metadata(&dir).map_err(|error| unusable(error.to_string()))?;
        if meta.uid() != rustix::process::geteuid().as_raw() {
            return Err(unusable("it belongs to somebody else".into()));
        }
        if meta.mode() & 0o077 != 0 {
            return Err(unusable("others can look into it; its mode must be 0700".into()));
        }
        let fs = rustix::fs::statfs(&dir).map_err(|error| unusable(error.to_string()))?;
        if fs.f_type == OVERLAYFS_MAGIC {
            return Err(unusable(
                "it lies on an overlay (a container's own file system), which can't carry another"
                    .into(),
            ));
        }
        for (name, mode) in
            [("store", 0o700), ("locks", 0o700), ("contexts", 0o711), ("contexts/tasks", 0o711)]
        {
            let path = dir.join(name);
            let made = std::fs::create_dir(&path).and_then(|()| {
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))
            });
            match made {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(not_made(&path, error));
                }
                _ => {}
            }
        }
        let layers = LayerStore::open(&dir.join("contexts/layers"))
            .map_err(cofferdam_git::GitError::from)?;
        let trash = Trash::new(dir.join("trash")).at("make", dir.join("trash"))?;
        let tasks = dir.join("contexts/tasks");
        let has_tasks =
            || std::fs::read_dir(&tasks).is_ok_and(|mut entries| entries.next().is_some());
        let ledger = Ledger::open_unless_lost(&dir.join("ledger.db"), has_tasks)?;
        Ok(Dam { dir, ledger, layers, trash, own: Config::of_person()? })
    }

    /// Where it is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A task's directory.
    #[must_use]
    pub fn task_dir(&self, id: &TaskId) -> TaskDir {
        TaskDir { dir: self.tasks_dir().join(id.as_str()) }
    }

    /// What overlays are made of. A directory of its own with the search bit for
    /// all, because the user of a task that root started has to find layers and
    /// uppers from here, and nothing beside it: the state directory is root's.
    #[must_use]
    pub fn contexts_dir(&self) -> PathBuf {
        self.dir.join("contexts")
    }

    /// Where the tasks are.
    #[must_use]
    pub fn tasks_dir(&self) -> PathBuf {
        self.dir.join("contexts/tasks")
    }

    /// Our store beside a repository.
    ///
    /// # Errors
    /// [`Error::Git`].
    pub fn store(&self, repo: &Repository, config: &PersonConfig) -> Result<Store, Error> {
        Ok(Store::open(&self.dir.join("store"), repo, config)?)
    }

    /// The submodules of a tree that are initialised in the person's checkout.
    pub(crate) fn modules(
        &self,
        repo: &Repository,
        store: &Store,
        tree: &TreeId,
    ) -> Result<Vec<Module>, Error> {
        Ok(modules::initialised(&self.dir.join("store"), repo, store, tree)?)
    }

    /// Where what landings of files replaced is kept.
    #[must_use]
    pub fn versions_dir(&self) -> PathBuf {
        self.dir.join("versions")
    }

    /// The lock that makes landings into one target serial.
    #[must_use]
    pub fn landing_lock(&self, key: &str) -> PathBuf {
        self.dir.join("locks").join(key)
    }
}

/// Layers against their collection.
impl Dam {
    fn layers_lock(&self) -> PathBuf {
        self.dir.join("locks/layers")
    }

    /// Returns when no collection of layers is under way that began before the
    /// caller's task was in a live state. A later one sees that task and leaves all
    /// layers alone, so what is found from here on stays.
    ///
    /// # Errors
    /// When the lock can't be had.
    pub(crate) fn pass_collection(&self) -> Result<(), Error> {
        drop(Lock::shared(&self.layers_lock())?);
        Ok(())
    }

    /// Keeps those who are about to look for layers waiting.
    ///
    /// # Errors
    /// When the lock can't be had.
    pub(crate) fn collect_layers(&self) -> Result<Lock, Error> {
        Ok(Lock::exclusive(&self.layers_lock(), |_| {})?)
    }
}

pub(crate) fn not_made(path: &Path, error: std::io::Error) -> Error {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    match error.kind() {
        StorageFull | QuotaExceeded => Error::Io { step: "make", path: path.into(), source: error },
        _ => Error::StateDir { path: path.into(), why: error.to_string() },
    }
}

/// A state directory is not made inside of the repository that one works in; a
/// home directory that is a repository is the exception.
fn refuse_in_repository(dir: &Path) -> Result<(), String> {
    let Some(top) = dir.ancestors().find(|dir| dir.join(".git").exists()) else { return Ok(()) };
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let here = std::env::current_dir().unwrap_or_default();
    if here.starts_with(top) && home.as_deref() != Some(top) {
        return Err(format!("it would lie inside of the repository `{}`", top.display()));
    }
    Ok(())
}

/// What is where in a task's directory.
#[derive(Debug, Clone)]
pub struct TaskDir {
    dir: PathBuf,
}

impl TaskDir {
    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The lock that the supervisor holds for its whole life.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }

    /// What the command printed.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Copies of files that are its inputs, by number.
    #[must_use]
    pub fn inputs(&self) -> PathBuf {
        self.path().join("inputs")
    }

    /// Results of a task on files, laid out as in its context.
    #[must_use]
    pub fn results(&self) -> PathBuf {
        self.path().join("results")
    }

    /// Control groups that were made for it, a path a line.
    #[must_use]
    pub fn groups(&self) -> PathBuf {
        self.path().join("groups")
    }

    /// The paths that were carried into its context, each ended by a zero byte.
    #[must_use]
    pub fn carried(&self) -> PathBuf {
        self.dir.join("carried")
    }

    /// The evidence.
    #[must_use]
    pub fn receipt(&self) -> PathBuf {
        self.dir.join("receipt.json")
    }

    /// Directories of the contexts made for its checks.
    #[must_use]
    pub fn checks(&self) -> PathBuf {
        self.dir.join("checks")
    }

    /// Writes who pid 1 of a context is.
    pub(crate) fn write_ns(context: &Path, name: &ProcessName) -> Result<(), Error> {
        let path = context.join("ns");
        let draft = context.join("ns.tmp");
        std::fs::write(
            &draft,
            serde_json::to_vec(name).map_err(std::io::Error::other).at("write", &path)?,
        )
        .and_then(|()| std::fs::rename(&draft, &path))
        .at("write", path)
    }

    /// Who pid 1 of each context of this task was, when known.
    pub(crate) fn processes(&self) -> Vec<ProcessName> {
        let mut dirs = vec![self.dir.clone()];
        if let Ok(entries) = std::fs::read_dir(self.checks()) {
            dirs.extend(entries.filter_map(Result::ok).map(|entry| entry.path()));
        }
        dirs.iter()
            .filter_map(|dir| serde_json::from_slice(&std::fs::read(dir.join("ns")).ok()?).ok())
            .collect()
    }

    /// Whether its supervisor is alive.
    ///
    /// # Errors
    /// When the lock can't be asked.
    pub fn is_live(&self) -> Result<bool, Error> {
        cofferdam_tree::is_held(&self.lock()).at("look at the lock", self.lock())
    }

    /// The process that supervises it, while it lives.
    #[must_use]
    pub fn supervisor(&self) -> Option<ProcessName> {
        serde_json::from_str(&Lock::holder(&self.lock())?).ok()
    }
}

//! A context: its directories on disk, and where it belongs.
//!
//! A task has one, and each check has a fresh one below it. On disk:
//!
//! ```text
//! upper, work     the writable part of the overlay, or a whole checkout
//! homes           the same for each tool home
//! home, tmp       private, on disk
//! out             what the task says: the commit message
//! ns              who pid 1 is
//! ```
//!
//! What its processes see of that, the level decides: see [`crate::boundary`].

use std::ffi::OsString;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use cofferdam_git::gitdir::TaskGit;
use cofferdam_git::modules::Module;
use cofferdam_git::{CommitId, PersonConfig, Repository, Store};
use cofferdam_sandbox::view::{Person, SYSTEM_DIRS};
use cofferdam_sandbox::{Ids, Limits, Network, Wall};

use cofferdam_tree::hex;
use cofferdam_tree::target::tree::is_version_name;

use crate::admit::is_git_dir;
use crate::error::IoContext;
use crate::input::{Input, InputReport, Kind};
use crate::tools::{INPUT, ToolDir, Tools};
use crate::{Dam, Error, lessons};

/// Where a context that is about no repository has its files: nothing else of the host's
/// or of a person's is ever there, wherever the caller is.
pub const FILES_INSIDE: &str = "/run/dam/work";

/// A context on disk.
#[derive(Debug, Clone)]
pub struct Context {
    /// Its directory.
    pub dir: PathBuf,
    /// Holds the layer store and the tasks: relative names are relative to this.
    pub base: PathBuf,
    /// What lies below, topmost first, relative to [`Context::base`].
    pub lower: Vec<String>,
    /// As whom it runs.
    pub ids: Ids,
    /// Whether the repository is read-only inside.
    pub read_only: bool,
}

/// What is needed to see a repository from inside.
#[derive(Debug, Clone)]
pub struct Place {
    /// Where the overlay lies: the repository's own path.
    pub top: PathBuf,
    /// Object directories to be borrowed.
    pub objects: Vec<PathBuf>,
    /// The submodules that a task sees.
    pub modules: Vec<Module>,
    /// What Git LFS keeps of the repository, if it does.
    pub lfs: Option<PathBuf>,
    /// Who the task is inside.
    pub person: Person,
    /// Name and mail address that git commits with, inside as outside.
    pub identity: Option<(String, String)>,
    /// The tool homes that a task sees, and directories that are its inputs.
    pub tools: Tools,
    /// Files that are its inputs: the copy, relative to [`Context::base`], and where it
    /// appears.
    pub files: Vec<(PathBuf, PathBuf)>,
    /// Files that its command is to make: absolute paths inside. An input at the place of
    /// one is a copy that can be written.
    pub outputs: Vec<PathBuf>,
    /// What stays out of sight where a granted directory holds it: the state
    /// directory, and the repository that a linked worktree belongs to.
    pub hidden: Vec<PathBuf>,
}

impl Place {
    /// The place of a repository; `dir` stands in for a bare one.
    ///
    /// # Errors
    /// [`Error::Usage`] for a place that can't be covered by a context.
    pub fn new(
        dam: &Dam,
        repo: &Repository,
        config: &PersonConfig,
        store: &Store,
        modules: Vec<Module>,
        ids: Ids,
    ) -> Result<Place, Error> {
        let top = repo.worktree.clone().unwrap_or_else(|| repo.common_dir.clone());
        let mut person =
            Person::of_caller(ids).map_err(|error| Error::usage(error.to_string(), "set HOME"))?;
        if person.home == Path::new("/") || person.home.starts_with(&top) && person.home != top {
            person.home = "/home/dam".into();
        }
        check_top(dam, &top, &person)?;
        let mut hidden = vec![dam.dir().to_owned()];
        if !repo.common_dir.starts_with(&top) {
            let common = repo.common_dir.as_path();
            let checkout = common.parent().filter(|parent| {
                common.ends_with(".git") && !SYSTEM_DIRS.iter().any(|dir| *parent == Path::new(dir))
            });
            hidden.push(checkout.unwrap_or(common).to_owned());
        }
        let mut objects = repo.object_dirs()?;
        for module in &modules {
            objects.extend(module.repo.object_dirs()?);
        }
        let apart = [hidden.as_slice(), std::slice::from_ref(&top)].concat();
        let tools = Tools::find(&person.home, |name| std::env::var_os(name), &apart);
        tools.check()?;
        let identity = config.identity();
        let lfs = Some(store.lfs.storage().join("objects")).filter(|dir| dir.is_dir());
        Ok(Place { objects, modules, lfs, identity, ..Place::of(top, person, tools, hidden) })
    }

    /// The place of a context that is about no repository.
    ///
    /// # Errors
    /// [`Error::Usage`] without a home directory.
    pub fn of_files(dam: &Dam, ids: Ids) -> Result<Place, Error> {
        let mut person =
            Person::of_caller(ids).map_err(|error| Error::usage(error.to_string(), "set HOME"))?;
        if person.home == Path::new("/") {
            person.home = "/home/dam".into();
        }
        let hidden = vec![dam.dir().to_owned()];
        let tools = Tools::find(&person.home, |name| std::env::var_os(name), &hidden);
        tools.check()?;
        Ok(Place::of(FILES_INSIDE.into(), person, tools, hidden))
    }

    /// The place of a context that is about a directory.
    ///
    /// # Errors
    /// [`Error::Usage`] for one that can't be covered by a context.
    pub fn of_dir(dam: &Dam, dir: &Path, ids: Ids) -> Result<Place, Error> {
        let mut person =
            Person::of_caller(ids).map_err(|error| Error::usage(error.to_string(), "set HOME"))?;
        if person.home == Path::new("/") || person.home.starts_with(dir) && person.home != dir {
            person.home = "/home/dam".into();
        }
        check_top(dam, dir, &person)?;
        if dir.file_name().is_some_and(is_version_name) {
            return Err(Error::usage(
                format!("`{}` is a version of what landed in the place of a link", dir.display()),
                "`--scratch --input LINK:site --output site2/=LINK` replaces where that leads",
            ));
        }
        let hidden = vec![dam.dir().to_owned()];
        let apart = [hidden.as_slice(), &[dir.to_owned()]].concat();
        let tools = Tools::find(&person.home, |name| std::env::var_os(name), &apart);
        tools.check()?;
        Ok(Place::of(dir.to_owned(), person, tools, hidden))
    }

    fn of(top: PathBuf, person: Person, tools: Tools, hidden: Vec<PathBuf>) -> Place {
        Place {
            top,
            objects: Vec::new(),
            modules: Vec::new(),
            lfs: None,
            person,
            identity: None,
            tools,
            files: Vec::new(),
            outputs: Vec::new(),
            hidden,
        }
    }

    /// Whether an input can lie below the top: where nothing else is.
    fn is_of_files(&self) -> bool {
        self.top == Path::new(FILES_INSIDE)
    }

    /// Refuses an input that would show what has to stay apart, or lies where nothing
    /// can be put.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn check_input(&self, input: &Input) -> Result<(), Error> {
        let overlap = |one: &Path, other: &Path| one.starts_with(other) || other.starts_with(one);
        let refuse = |why: &str| {
            let message = format!("`{}` can't be an input: {why}", input.source.display());
            Err(Error::usage(message, None))
        };
        if input.source.to_str().is_none() || input.dest.to_str().is_none() {
            return refuse("its path is not UTF-8");
        }
        let apart = || self.hidden.iter().chain([&self.top]);
        if input.source.is_dir() && apart().any(|path| overlap(&input.source, path)) {
            return refuse("it holds, or lies in, the repository or the state directory");
        }
        if apart().any(|path| input.source.starts_with(path)) {
            return refuse("it lies in the repository or the state directory; see `--carry`");
        }
        if self.is_of_files() && input.dest.starts_with(&self.top) && input.dest != self.top {
            return Ok(());
        }
        if apart().any(|path| overlap(&input.dest, path)) {
            return refuse("its place inside is the repository's or the state directory's");
        }
        let system = ["/proc", "/sys", "/dev", "/etc", "/run"];
        let mut system = system.iter().chain(SYSTEM_DIRS).map(Path::new);
        if self.person.home.starts_with(&input.dest) || system.any(|dir| overlap(dir, &input.dest))
        {
            return refuse("its place inside is the home directory's or the system's");
        }
        if self.tools.dirs.iter().any(|dir| overlap(&dir.path, &input.dest)) {
            return refuse("its place inside is a tool home's, which is seen anyway");
        }
        Ok(())
    }

    /// Lets inputs appear; copies of files are in `dir`, by number.
    pub(crate) fn show_inputs(&mut self, inputs: &[InputReport], dir: &Path) {
        for (number, input) in inputs.iter().enumerate() {
            match input.kind {
                Kind::Directory => self.tools.dirs.push(ToolDir {
                    name: INPUT.into(),
                    path: input.dest.clone(),
                    source: input.source.clone(),
                    variable: None,
                    hidden: Vec::new(),
                    state: Vec::new(),
                }),
                _ if self.outputs.contains(&input.dest) => {}
                _ => self.files.push((dir.join(number.to_string()), input.dest.clone())),
            }
        }
    }
}

/// Refuses what an overlay can't lie on.
fn check_top(dam: &Dam, top: &Path, person: &Person) -> Result<(), Error> {
    match not_ours(dam, top, person) {
        None => Ok(()),
        Some(why) => {
            Err(Error::usage(format!("`{}` can't be a context: {why}", top.display()), None))
        }
    }
}

/// Why a directory is nobody's to take as a whole, as a clause.
pub(crate) fn not_ours(dam: &Dam, top: &Path, person: &Person) -> Option<&'static str> {
    if top == Path::new("/") || person.home.starts_with(top) {
        return Some("it is or holds the home directory, which stays outside");
    }
    for system in ["/proc", "/sys", "/dev", "/etc"].iter().chain(SYSTEM_DIRS) {
        if top == Path::new(system) || Path::new(system).starts_with(top) {
            return Some("it is or holds a system directory");
        }
    }
    for system in ["/proc", "/sys", "/dev", "/etc"] {
        if top.starts_with(system) {
            return Some("it lies in a system directory");
        }
    }
    if dam.dir().starts_with(top) || top.starts_with(dam.dir()) {
        return Some("the state directory is inside of it, or it inside of the state directory");
    }
    None
}

/// What a command in a context is told by its environment.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// The task's id.
    pub task: String,
    /// Which attempt this is, counted from 1.
    pub attempt: u32,
    /// Where it can say what is to be remembered, as it sees it; when nothing is said, beside
    /// the message.
    pub lessons: Option<PathBuf>,
    /// What a check said about the attempt before.
    pub feedback: Option<Vec<u8>>,
    /// Content of the `DAM_CONTEXT` file.
    pub context: serde_json::Value,
}

impl Told {
    /// The variables that say where what it is told lies: in `dir`, as it sees it.
    pub(crate) fn variables(&self, dir: &Path) -> Vec<(OsString, OsString)> {
        let mut variables: Vec<(OsString, OsString)> = Vec::new();
        let mut set = |key: &str, value: OsString| variables.push((key.into(), value));
        set("DAM_TASK", self.task.clone().into());
        set("DAM_ATTEMPT", self.attempt.max(1).to_string().into());
        set("DAM_MESSAGE", dir.join("out/message").into());
        let beside = || dir.join("out").join(lessons::FILE);
        set("DAM_LESSONS", self.lessons.clone().unwrap_or_else(beside).into());
        if self.feedback.is_some() {
            set("DAM_FEEDBACK", dir.join("feedback").into());
        }
        set("DAM_CONTEXT", dir.join("context.json").into());
        variables
    }

    /// Content of the file that [`Told::variables`] calls `context.json`.
    pub(crate) fn context_json(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(&self.context).unwrap_or_default()
    }
}

/// `variables` with what was asked for in the place of what has the same name.
pub(crate) fn with(
    mut variables: Vec<(OsString, OsString)>,
    asked: &[(OsString, OsString)],
) -> Vec<(OsString, OsString)> {
    for (key, value) in asked {
        variables.retain(|(known, _)| known != key);
        variables.push((key.clone(), value.clone()));
    }
    variables
}

/// A command and what it may reach.
#[derive(Debug, Clone)]
pub struct What<'a> {
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// Working directory, a path inside.
    pub cwd: &'a Path,
    /// Further environment variables.
    pub env: &'a [(OsString, OsString)],
    /// Network scope.
    pub network: Network,
    /// How the second wall stands.
    pub wall: Wall,
    /// What pid 1 has to see to.
    pub limits: Limits,
    /// Whether what it prints to is a terminal.
    pub terminal: bool,
}

/// Where a context keeps what it wrote into a tool home: the same place whatever
/// other tool homes there are.
pub(crate) fn home_of(dir: &ToolDir) -> String {
    use sha2::Digest;
    let hash = sha2::Sha256::digest(dir.path.as_os_str().as_encoded_bytes());
    format!("homes/{}-{}", dir.name, hex(&hash[..3]))
}

impl Context {
    /// Makes the directories of a context at `dir`, which must not hold one.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(
        dam: &Dam,
        dir: PathBuf,
        lower: Vec<String>,
        ids: Ids,
        read_only: bool,
        homes: &[ToolDir],
    ) -> Result<Context, Error> {
        let context = Context { dir, base: dam.contexts_dir(), lower, ids, read_only };
        if !context.dir.is_dir() {
            std::fs::create_dir_all(&context.dir).at("make", &context.dir)?;
        }
        for name in ["upper", "work", "home", "tmp", "out"] {
            context.make_dir(name)?;
        }
        context.make_homes(homes)?;
        Ok(context)
    }

    /// Makes a directory of the task's.
    fn make_dir(&self, name: &str) -> Result<(), Error> {
        let path = self.dir.join(name);
        std::fs::create_dir(&path).at("make", &path)?;
        self.give(&path)
    }

    /// Makes the directories of those tool homes that have none yet.
    fn make_homes(&self, homes: &[ToolDir]) -> Result<(), Error> {
        for dir in homes {
            let home = self.dir.join(home_of(dir));
            if home.is_dir() {
                continue;
            }
            for name in ["upper", "work"] {
                let path = home.join(name);
                std::fs::create_dir_all(&path).at("make", &path)?;
                self.give(&path)?;
            }
            // The upper's mode is that of the directory inside.
            let mode = std::fs::metadata(&dir.source).at("look at", &dir.source)?.permissions();
            let upper = home.join("upper");
            std::fs::set_permissions(&upper, mode).at("set the mode of", &upper)?;
        }
        Ok(())
    }

    /// Makes the directories of the task's that lead from `top`, which is there, to `path`.
    pub(crate) fn make_dirs_above(&self, top: &Path, path: &Path) -> Result<(), Error> {
        let mut at = top.to_owned();
        for part in path.parent().into_iter().flat_map(Path::components) {
            at.push(part);
            match std::fs::create_dir(&at) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => {
                    made.at("make", &at)?;
                    self.give(&at)?;
                }
            }
        }
        Ok(())
    }

    /// Hands a path of ours to the task's user.
    pub(crate) fn give(&self, path: &Path) -> Result<(), Error> {
        if self.ids.switch {
            chown(path, Some(self.ids.uid), Some(self.ids.gid)).at("hand over", path)?;
        }
        Ok(())
    }

    /// The directory that holds what the task writes into the repository: the upper of
    /// an overlay, or a whole checkout.
    #[must_use]
    pub fn upper(&self) -> PathBuf {
        self.dir.join("upper")
    }

    /// Makes ready for another mount of what earlier ones wrote: a work directory that
    /// was used by a volatile overlay can't be used again.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn renew(&self, dam: &Dam, of_host: &[ToolDir]) -> Result<(), Error> {
        let homes = self.dir.join("homes");
        let homes = std::fs::read_dir(&homes).into_iter().flatten().filter_map(Result::ok);
        for dir in homes.map(|entry| entry.path()).chain([self.dir.clone()]) {
            match dam.trash.take(&dir, "work") {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).at("move away", dir.join("work"));
                }
                _ => {}
            }
            let work = dir.join("work");
            std::fs::create_dir(&work).at("make", &work)?;
            self.give(&work)?;
        }
        // The person can have got another toolchain since.
        self.make_homes(of_host)
    }

    /// Makes and writes the private `.git`, and those of submodules, whose places are
    /// relative to the top.
    ///
    /// # Errors
    /// [`Error::Git`].
    pub fn write_git(
        &self,
        git: &TaskGit<'_>,
        modules: &[(PathBuf, TaskGit<'_>)],
    ) -> Result<(), Error> {
        let dir = self.upper().join(".git");
        // At level `worktree` it is there, with the index of what was checked out.
        if !dir.is_dir() {
            self.make_dir("upper/.git")?;
        }
        git.write(&dir)?;
        for (place, module) in modules {
            module.write(&self.upper().join(place))?;
        }
        if self.ids.switch {
            give_below(&dir, self.ids)?;
        }
        Ok(())
    }

    /// Gives the private `.git` the objects of `commit` that none of `have` holds,
    /// as a pack of its own: our store can't be borrowed from, it holds other
    /// tasks' work too.
    ///
    /// # Errors
    /// [`Error::Git`].
    pub fn lend_objects(
        &self,
        store: &Store,
        commit: &CommitId,
        have: &[&str],
    ) -> Result<(), Error> {
        let objects = self.upper().join(".git/objects");
        let dir = objects.join("pack");
        std::fs::create_dir_all(&dir).at("make", &dir)?;
        let mut wanted = format!("{commit}\n");
        for known in have {
            wanted.push_str(&format!("^{known}\n"));
        }
        store
            .git()
            .setting("core.fsync=none")
            .args(["pack-objects", "--revs", "--quiet", "--delta-base-offset"])
            .args([dir.join("pack")])
            .input(wanted)
            .run()?;
        if self.ids.switch {
            give_below(&objects, self.ids)?;
        }
        Ok(())
    }

    /// Copies a path of the person's checkout in, as it is there; of a directory,
    /// what the base does not have. Gives the paths of files and links copied.
    ///
    /// # Errors
    /// [`Error::Usage`] for what can't be carried.
    pub fn carry(&self, top: &Path, path: &Path) -> Result<Vec<PathBuf>, Error> {
        let is_dir = top.join(path).symlink_metadata().is_ok_and(|meta| meta.is_dir());
        if self.in_base(path) && !is_dir {
            return Err(Error::usage(
                format!("`{}` is in the base already", path.display()),
                "`--carry-dirty` takes uncommitted changes along",
            ));
        }
        let mut below = PathBuf::new();
        for part in path.parent().into_iter().flat_map(Path::components) {
            below.push(part);
            self.make_carried_dir(&below)?;
        }
        let mut copied = Vec::new();
        self.copy(top, path, &mut copied)?;
        let to = self.upper().join(path);
        if self.ids.switch && to.symlink_metadata().is_ok() {
            give_below(&to, self.ids)?;
        }
        Ok(copied)
    }

    /// Makes a directory for what is carried. Where the base has something else, it
    /// would be taken for a change of the task's, and a link would lead away.
    fn make_carried_dir(&self, path: &Path) -> Result<(), Error> {
        let made = self.upper().join(path);
        let there = made.symlink_metadata().ok().map(|meta| meta.file_type());
        match there.or_else(|| self.kind_in_base(path)) {
            Some(kind) if !kind.is_dir() => Err(Error::usage(
                format!(
                    "`{}` is no directory in the base: nothing can be carried there",
                    path.display()
                ),
                None,
            )),
            _ if there.is_some() => Ok(()),
            _ => {
                std::fs::create_dir(&made).at("make", &made)?;
                self.give(&made)
            }
        }
    }

    /// Whether the layers hold a path.
    fn in_base(&self, path: &Path) -> bool {
        self.kind_in_base(path).is_some()
    }

    /// What the layers hold at a path.
    fn kind_in_base(&self, path: &Path) -> Option<std::fs::FileType> {
        use std::os::unix::fs::FileTypeExt;
        let mut found = self.lower.iter().filter_map(|lower| {
            Some(self.base.join(lower).join(path).symlink_metadata().ok()?.file_type())
        });
        // A whiteout on top: it is gone.
        found.next().filter(|kind| !kind.is_char_device())
    }

    /// Copies a file, link or directory of the person's; nothing is followed.
    fn copy(&self, top: &Path, path: &Path, copied: &mut Vec<PathBuf>) -> Result<(), Error> {
        let (from, to) = (top.join(path), self.upper().join(path));
        let meta = std::fs::symlink_metadata(&from).at("carry", &from)?;
        if path.components().any(is_git_dir) {
            return Err(Error::usage(
                format!("`{}` can't be carried: it is a repository of its own", from.display()),
                None,
            ));
        }
        if meta.is_dir() {
            self.make_carried_dir(path)?;
            for entry in std::fs::read_dir(&from).at("carry", &from)? {
                let inner = path.join(entry.at("carry", &from)?.file_name());
                let is_dir = top.join(&inner).symlink_metadata().is_ok_and(|meta| meta.is_dir());
                if is_dir || !self.in_base(&inner) {
                    self.copy(top, &inner, copied)?;
                }
            }
            return Ok(());
        }
        if meta.is_symlink() {
            let target = std::fs::read_link(&from).at("carry", &from)?;
            std::os::unix::fs::symlink(target, &to).at("carry", &from)?;
        } else if meta.is_file() {
            std::fs::copy(&from, &to).map(drop).at("carry", &from)?;
        } else {
            return Err(Error::usage(
                format!("`{}` can't be carried: it is not a file", from.display()),
                None,
            ));
        }
        copied.push(path.to_owned());
        Ok(())
    }

    /// A name relative to [`Context::base`], which is what the kernel is told.
    pub(crate) fn relative(&self, name: &str) -> String {
        let dir = self.dir.strip_prefix(&self.base).unwrap_or(&self.dir);
        format!("{}/{name}", dir.display())
    }

    /// The layers without and with the upper, topmost first.
    pub(crate) fn lowers(&self) -> (Vec<String>, String) {
        (self.lower.clone(), self.relative("upper"))
    }

    /// Whether the upper holds nothing but the private `.git`, without an index or refs
    /// of the task's. Of an overlay nothing has changed then, whatever the layers hold,
    /// for a deletion leaves an entry too. An upper that can't be listed may hold anything.
    #[must_use]
    pub fn has_empty_upper(&self) -> bool {
        let Ok(mut entries) = std::fs::read_dir(self.upper()) else { return false };
        let of_git = |name: &str| self.upper().join(".git").join(name).symlink_metadata().is_ok();
        if of_git("index") || of_git("refs") {
            return false;
        }
        entries.all(|entry| entry.is_ok_and(|entry| entry.file_name() == ".git"))
    }

    /// What the task wrote as its commit message, if it did: a regular file of at
    /// most 64 KiB.
    #[must_use]
    pub fn message(&self) -> Option<String> {
        let text = read_small(&self.dir.join("out"), "message")?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// The subject of the task's last own commit, from the log of its HEAD. A text
    /// file, read as one; no git touches what the task could have written.
    #[must_use]
    pub fn last_subject(&self) -> Option<String> {
        let log = read_small(&self.upper().join(".git/logs"), "HEAD")?;
        let line = log.lines().rev().find(|line| {
            line.split_once('\t').is_some_and(|(_, text)| text.starts_with("commit"))
        })?;
        let subject = line.split_once('\t')?.1.split_once(": ")?.1.trim();
        (!subject.is_empty()).then(|| subject.to_owned())
    }
}

/// A regular file of at most 64 KiB, without following anything.
fn read_small(dir: &Path, name: &str) -> Option<String> {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
    use std::io::Read;
    const MOST: u64 = 64 << 10;
    let flags =
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = openat2(CWD, dir.join(name), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).ok()?;
    let file = std::fs::File::from(fd);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Hands a tree that we have just written to the task's user.
fn give_below(path: &Path, ids: Ids) -> Result<(), Error> {
    std::os::unix::fs::lchown(path, Some(ids.uid), Some(ids.gid)).at("hand over", path)?;
    if std::fs::symlink_metadata(path).at("hand over", path)?.is_dir() {
        for entry in std::fs::read_dir(path).at("hand over", path)? {
            give_below(&entry.at("hand over", path)?.path(), ids)?;
        }
    }
    Ok(())
}

//! The root view, assembled mount by mount.
//!
//! In three steps, because what may be opened where changes on the way:
//!
//! 1. [`Sources::open`] clones every host directory that appears inside. Root
//!    does this before it becomes the task's user, who may not be able to reach
//!    them; an ordinary user can only do it in the new namespaces.
//! 2. [`assemble`] puts them below a fresh tmpfs. Destinations are walked one
//!    name at a time without following links: a kept home directory can hold
//!    links that a task left there.
//! 3. The tmpfs becomes `/`, the old root goes, and the new one is sealed.
//!
//! Relative sources are resolved against the working directory, which stays
//! inside [`Spec::base_dir`] until the old root is gone.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, mkdirat, openat, symlinkat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
    fsopen, mount_change, move_mount, open_tree, unmount,
};

use crate::userns::{self, setup};
use crate::{Ids, Mount, SandboxError, Spec, Wall};

const DEVICE_NODES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];

const RDONLY: u64 = 1;
const NOSUID: u64 = 2;
const NODEV: u64 = 4;
const NOEXEC: u64 = 8;
const IDMAP: u64 = 0x10_0000;

/// Where the lower parts of private overlays are attached while those are made.
const STAGE: &str = "/.stage";

/// A larger file of the host's is mounted and not copied.
const SMALL: usize = 128 << 10;

/// What of the host will appear inside.
pub(crate) struct Sources {
    /// For each mount of the specification.
    of: Vec<Source>,
    devices: Vec<OwnedFd>,
}

enum Source {
    /// It needs nothing of the host's.
    None,
    /// A clone of the host's mount.
    Tree(OwnedFd),
    /// The content of a file.
    Content(Vec<u8>),
}

impl Sources {
    /// Opens what these mounts bind.
    pub(crate) fn open(mounts: &[Mount], ids: Ids) -> Result<Sources, SandboxError> {
        let mut of = Vec::with_capacity(mounts.len());
        let mut as_roots = None;
        for mount in mounts {
            of.push(match mount {
                Mount::Bind { source, writable, executable, .. } => {
                    let read_only = if *writable { 0 } else { RDONLY };
                    let no_exec = if *executable { 0 } else { NOEXEC };
                    Source::Tree(clone_tree(source, read_only | no_exec | NOSUID | NODEV)?)
                }
                Mount::Private { source, .. } => {
                    Source::Tree(private_source(source, ids, &mut as_roots)?)
                }
                Mount::Copy { path } => match small_content(path) {
                    Some(content) => Source::Content(content),
                    None => Source::Tree(clone_tree(path, RDONLY | NOSUID | NODEV)?),
                },
                Mount::Overlay { lower, upper: None, .. } if lower.len() == 1 => {
                    Source::Tree(clone_tree(Path::new(&lower[0]), RDONLY | NOSUID | NODEV)?)
                }
                _ => Source::None,
            });
        }
        let mut devices = Vec::new();
        if mounts.iter().any(|mount| matches!(mount, Mount::Dev)) {
            for node in DEVICE_NODES {
                // Read-only is the node's inode, which is the host's: its times and mode.
                let attributes = RDONLY | NOSUID | NOEXEC;
                devices.push(clone_tree(&Path::new("/dev").join(node), attributes)?);
            }
        }
        Ok(Sources { of, devices })
    }
}

/// A read-only copy of the mount at `path`, to be below an overlay. What root owns
/// there belongs to the task's user in it, unless that is somebody else's id: an overlay can't copy up what belongs to
/// an id that does not exist inside.
fn private_source(
    path: &Path,
    ids: Ids,
    as_roots: &mut Option<OwnedFd>,
) -> Result<OwnedFd, SandboxError> {
    if !ids.switch {
        return clone_tree(path, RDONLY | NOSUID | NODEV);
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = setup("open for the sandbox", Some(path), open_tree(CWD, path, flags))?;
    let step = "restrict the mount of";
    setup(step, Some(path), set_attributes(&tree, RDONLY | NOSUID | NODEV, false))?;
    let owner = setup("look at", Some(path), rustix::fs::fstat(&tree))?;
    if owner.st_uid == 0 && !is_account(ids.uid) {
        let namespace = match as_roots.take() {
            Some(namespace) => namespace,
            None => userns::mapping_root_to(ids)?,
        };
        let step = "map the owner of";
        setup(step, Some(path), map_ids(&tree, &namespace))?;
        *as_roots = Some(namespace);
    }
    Ok(tree)
}

/// Whether an id is that of somebody with an account, who is not to be given what only
/// root can read.
fn is_account(uid: u32) -> bool {
    // The names of people are in whatever encoding.
    let accounts = std::fs::read("/etc/passwd").unwrap_or_default();
    String::from_utf8_lossy(&accounts)
        .lines()
        .any(|line| line.split(':').nth(2).and_then(|uid| uid.parse().ok()) == Some(uid))
}

/// The content of a small file that everybody may read: root reads it here, the
/// task is somebody else.
fn small_content(path: &Path) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = std::fs::File::from(openat(CWD, path, flags, Mode::empty()).ok()?);
    let stat = rustix::fs::fstat(&file).ok()?;
    let everybody = Mode::from_raw_mode(stat.st_mode).contains(Mode::ROTH);
    let size = usize::try_from(stat.st_size).ok()?;
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() || !everybody || size > SMALL {
        return None;
    }
    // With room for the read that finds the end.
    let mut content = Vec::with_capacity(size + 1);
    let read = file.take(SMALL as u64 + 1).read_to_end(&mut content).ok()?;
    (read <= SMALL).then_some(content)
}

/// A detached copy of the mounts at `path`, the ones below included: in a user
/// namespace a copy without them is refused, it would uncover what they cover.
fn clone_tree(path: &Path, attributes: u64) -> Result<OwnedFd, SandboxError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = setup("open for the sandbox", Some(path), open_tree(CWD, path, flags))?;
    setup("restrict the mount of", Some(path), set_attributes(&tree, attributes, true))?;
    Ok(tree)
}

fn set_attributes(mount: impl AsFd, set: u64, recursive: bool) -> std::io::Result<()> {
    let attr =
        MountAttr { attr_set: set, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    mount_setattr(mount, &attr, if recursive { libc::AT_RECURSIVE } else { 0 })
}

/// Lets owners on a detached mount appear as `namespace` maps them.
fn map_ids(mount: &OwnedFd, namespace: &OwnedFd) -> std::io::Result<()> {
    let userns_fd = u64::try_from(namespace.as_raw_fd()).expect("a descriptor is positive");
    let attr = MountAttr { attr_set: IDMAP, attr_clr: 0, propagation: 0, userns_fd };
    mount_setattr(mount, &attr, 0)
}

#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

fn mount_setattr(mount: impl AsFd, attr: &MountAttr, flags: i32) -> std::io::Result<()> {
    // SAFETY: the path is an empty C string, the pointer and the size describe
    // one live structure of the first published form (mount_setattr(2)).
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags | libc::AT_EMPTY_PATH,
            std::ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// A read-only overlay of `lower` (topmost first, at least two, relative to the
/// working directory), not attached anywhere: its directory handle. To be
/// called inside the caller's own user and mount namespaces.
///
/// # Errors
/// [`SandboxError::Setup`].
pub fn read_only_overlay(lower: &[String]) -> Result<OwnedFd, SandboxError> {
    overlay(lower, None, None)
}

/// The step in which the kernel makes directories of its own beside an upper.
pub(crate) const OVERLAY: &str = "mount the overlay";

fn overlay(
    lower: &[String],
    upper: Option<&str>,
    work: Option<&str>,
) -> Result<OwnedFd, SandboxError> {
    let step = OVERLAY;
    let fs = setup(step, None, fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC))?;
    setup(step, None, fsconfig_set_string(&fs, "source", "dam"))?;
    setup(step, None, fsconfig_set_string(&fs, "lowerdir", lower.join(":")))?;
    if let (Some(upper), Some(work)) = (upper, work) {
        setup(step, Some(upper.as_ref()), fsconfig_set_string(&fs, "upperdir", upper))?;
        setup(step, Some(work.as_ref()), fsconfig_set_string(&fs, "workdir", work))?;
        // Without it the whole upper file system is synced at tear-down. What
        // leaves the context is synced where it is written.
        setup(step, None, fsconfig_set_flag(&fs, "volatile"))?;
    }
    // Without it the mount succeeds and removing a merged directory gives EIO.
    setup(step, None, fsconfig_set_flag(&fs, "userxattr"))?;
    setup(step, None, fsconfig_create(&fs))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    setup(step, None, fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes))
}

fn memory_fs(options: &[(&str, String)]) -> Result<OwnedFd, SandboxError> {
    let step = "mount a file system in memory";
    let fs = setup(step, None, fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC))?;
    for (key, value) in options {
        setup(step, None, fsconfig_set_string(&fs, *key, value.as_str()))?;
    }
    setup(step, None, fsconfig_create(&fs))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    setup(step, None, fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes))
}

/// Builds the root view and makes it `/`. To be called by pid 1 in its new
/// namespaces with the working directory at [`Spec::base_dir`].
pub(crate) fn assemble(
    spec: &Spec,
    mounts: &[Mount],
    sources: &Sources,
) -> Result<(), SandboxError> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    setup("separate the mounts from the host's", None, mount_change("/", private))?;
    let root = Root {
        fd: Rc::new(memory_fs(&[("mode", "0755".into()), ("size", "16m".into())])?),
        last_parent: RefCell::new(None),
    };
    // Any directory serves: everything below it is reached by handles from here on.
    let place = if Path::new("/tmp").is_dir() { "/tmp" } else { "/usr" };
    let step = "attach";
    setup(step, Some(place.as_ref()), move_to(&root.fd, CWD, place.as_ref()))?;
    for (index, mount) in mounts.iter().enumerate() {
        root.add(spec, mount, sources, index)?;
    }
    let stage = STAGE.trim_start_matches('/');
    match rustix::fs::unlinkat(&root.fd, stage, AtFlags::REMOVEDIR) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(error) => setup("remove", Some(STAGE.as_ref()), Err(error))?,
    }
    let step = "change the root";
    setup(step, None, rustix::process::fchdir(&root.fd))?;
    setup(step, None, rustix::process::pivot_root(".", "."))?;
    setup("let go of the host's root", None, unmount(".", UnmountFlags::DETACH))?;
    setup(step, None, rustix::process::chdir("/"))?;
    let sealed =
        setup(step, None, openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()))?;
    setup("seal the root", None, set_attributes(&sealed, RDONLY | NOSUID | NODEV, false))
}

/// Attaches a mount at `path` in `dir`, which is not followed if it is a link.
fn move_to(mount: &OwnedFd, dir: impl AsFd, path: &OsStr) -> rustix::io::Result<()> {
    move_mount(mount, "", dir, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

struct Root {
    fd: Rc<OwnedFd>,
    /// The directory in which something was made last: most of what comes after it is
    /// made there as well.
    last_parent: RefCell<Option<(PathBuf, Rc<OwnedFd>)>>,
}

impl Root {
    fn add(
        &self,
        spec: &Spec,
        mount: &Mount,
        sources: &Sources,
        index: usize,
    ) -> Result<(), SandboxError> {
        match mount {
            Mount::Bind { source, dest, .. } => {
                let Source::Tree(tree) = &sources.of[index] else { unreachable!("opened above") };
                let stat = setup("look at", Some(source), rustix::fs::fstat(tree))?;
                if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
                    self.attach_dir(tree, dest)
                } else {
                    self.attach_file(tree, dest)
                }
            }
            Mount::Copy { path } => match &sources.of[index] {
                Source::Tree(tree) => self.attach_file(tree, path),
                Source::Content(content) => self.file(path, content),
                Source::None => unreachable!("opened above"),
            },
            Mount::Private { hidden, upper, work, dest, .. } => {
                let Source::Tree(tree) = &sources.of[index] else { unreachable!("opened above") };
                let merged =
                    self.private(tree, hidden, upper, work).map_err(|error| error.of(dest))?;
                self.attach_dir(&merged, dest)
            }
            Mount::Overlay { lower, upper, work, dest } => match &sources.of[index] {
                Source::Tree(single) => self.attach_dir(single, dest),
                _ => {
                    let merged = overlay(lower, upper.as_deref(), work.as_deref())?;
                    self.attach_dir(&merged, dest)
                }
            },
            Mount::Tmpfs { dest, mode, size } => {
                let memory =
                    memory_fs(&[("mode", format!("{mode:o}")), ("size", size.to_string())])?;
                self.attach_dir(&memory, dest)
            }
            Mount::File { dest, content } => self.file(dest, content),
            Mount::Symlink { dest, target } => {
                let (parent, name) = self.parent(dest)?;
                match symlinkat(target, &parent, name) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
                    Err(error) => setup("make the link", Some(dest), Err(error)),
                }
            }
            Mount::Dir { dest } => self.dir(dest).map(drop),
            Mount::Dev => self.dev(sources),
            Mount::Proc => self.proc(spec),
            Mount::Cgroup => self.cgroup(),
        }
    }

    /// An overlay of the task's own above `tree`, without what is `hidden`.
    fn private(
        &self,
        tree: &OwnedFd,
        hidden: &[PathBuf],
        upper: &str,
        work: &str,
    ) -> Result<OwnedFd, SandboxError> {
        // A layer has to be attached somewhere, and is named by a descriptor: its
        // path would be shown inside. The overlay keeps a copy of its mount.
        let stage = Path::new(STAGE);
        let mut lower = Vec::new();
        let mut attached = Vec::new();
        if !hidden.is_empty() {
            let mask = memory_fs(&[("mode", "0755".into()), ("size", "64k".into())])?;
            self.attach_dir(&mask, stage)?;
            let top = self.dir(stage)?;
            for path in hidden {
                whiteout(&top, path)?;
            }
            lower.push(format!("/proc/self/fd/{}", top.as_raw_fd()));
            attached.push(top);
        }
        self.attach_dir(tree, stage)?;
        let top = self.dir(stage)?;
        lower.push(format!("/proc/self/fd/{}", top.as_raw_fd()));
        attached.push(top);
        let merged = overlay(&lower, Some(upper), Some(work))?;
        for (top, name) in attached.iter().zip(&lower).rev() {
            let _held = top;
            setup("detach", Some(stage), unmount(name.as_str(), UnmountFlags::DETACH))?;
        }
        Ok(merged)
    }

    /// Attaches a directory, whose place is made where it is missing.
    fn attach_dir(&self, mount: &OwnedFd, dest: &Path) -> Result<(), SandboxError> {
        let (parent, name) = self.parent(dest)?;
        match mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => self.attach(mount, &parent, name, dest),
            Err(error) => setup("make the directory", Some(dest), Err(error)),
        }
    }

    /// Attaches what is not a directory, whose place is made where it is missing.
    fn attach_file(&self, mount: &OwnedFd, dest: &Path) -> Result<(), SandboxError> {
        self.file(dest, b"")?;
        let (parent, name) = self.parent(dest)?;
        self.attach(mount, &parent, name, dest)
    }

    fn attach(
        &self,
        mount: &OwnedFd,
        parent: &OwnedFd,
        name: &OsStr,
        dest: &Path,
    ) -> Result<(), SandboxError> {
        setup("attach", Some(dest), move_to(mount, parent, name))?;
        // What is covered now is not what its path leads to any more.
        self.last_parent.borrow_mut().take_if(|(path, _)| path.starts_with(dest));
        Ok(())
    }

    /// The directory at an absolute path inside, made where it is missing.
    fn dir(&self, path: &Path) -> Result<Rc<OwnedFd>, SandboxError> {
        let known = self.last_parent.borrow();
        let known =
            known.as_ref().and_then(|(known, fd)| Some((path.strip_prefix(known).ok()?, fd)));
        let (rest, start) = known.unwrap_or((path, &self.fd));
        let mut at = Rc::clone(start);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for component in rest.components() {
            let Component::Normal(name) = component else { continue };
            let opened = match openat(&at, name, flags, Mode::empty()) {
                Err(rustix::io::Errno::NOENT) => {
                    let made = mkdirat(&at, name, Mode::from_raw_mode(0o755));
                    setup("make the directory", Some(path), made)?;
                    openat(&at, name, flags, Mode::empty())
                }
                other => other,
            };
            at = Rc::new(setup("enter the directory", Some(path), opened)?);
        }
        Ok(at)
    }

    /// The directory of an absolute path inside, made where it is missing, and the
    /// path's last name.
    fn parent<'a>(&self, path: &'a Path) -> Result<(Rc<OwnedFd>, &'a OsStr), SandboxError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return setup("place", Some(path), Err(rustix::io::Errno::INVAL));
        };
        let dir = self.dir(parent).map_err(|error| error.of(path))?;
        *self.last_parent.borrow_mut() = Some((parent.to_owned(), Rc::clone(&dir)));
        Ok((dir, name))
    }

    /// Makes a file with `content` at an absolute path inside, where there is nothing.
    fn file(&self, path: &Path, content: &[u8]) -> Result<(), SandboxError> {
        let (parent, name) = self.parent(path)?;
        let create =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&parent, name, create, Mode::from_raw_mode(0o444)) {
            Ok(fd) => {
                let mut file = std::fs::File::from(fd);
                setup("write", Some(path), file.write_all(content))
            }
            Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(error) => setup("make the file", Some(path), Err(error)),
        }
    }

    fn dev(&self, sources: &Sources) -> Result<(), SandboxError> {
        let dev = Path::new("/dev");
        let memory = memory_fs(&[("mode", "0755".into()), ("size", "1m".into())])?;
        self.attach_dir(&memory, dev)?;
        for (node, source) in DEVICE_NODES.iter().zip(&sources.devices) {
            self.attach_file(source, &dev.join(node))?;
        }
        let dir = self.dir(dev)?;
        for (name, target) in [
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
            ("ptmx", "pts/ptmx"),
        ] {
            setup("make the link", Some(&dev.join(name)), symlinkat(target, &dir, name))?;
        }
        let step = "mount the terminals";
        let fs = setup(step, None, fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC))?;
        for (key, value) in [("ptmxmode", "0666"), ("mode", "0620")] {
            setup(step, None, fsconfig_set_string(&fs, key, value))?;
        }
        setup(step, None, fsconfig_create(&fs))?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let pts = setup(step, None, fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes))?;
        self.attach_dir(&pts, &dev.join("pts"))?;
        // Half of the memory, the kernel's own default, is the size limit.
        let shm = memory_fs(&[("mode", "1777".into())])?;
        self.attach_dir(&shm, &dev.join("shm"))?;
        // The directory itself is sealed; nodes, terminals and shm are mounts of their own.
        setup("seal", Some(dev), set_attributes(&*dir, RDONLY | NOSUID | NOEXEC, false))
    }

    /// Must come while the host's `/proc` is still mounted: the kernel refuses a
    /// new one that would show more than the one already visible.
    fn proc(&self, spec: &Spec) -> Result<(), SandboxError> {
        let dest = Path::new("/proc");
        let step = "mount a new";
        let fs = setup(step, Some(dest), fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC))?;
        setup(step, Some(dest), fsconfig_create(&fs))?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let proc =
            setup(step, Some(dest), fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes))?;
        self.attach_dir(&proc, dest)?;
        // With anything mounted on it, nested sandboxes can't mount their own.
        // A task of an ordinary user can write nothing there either way.
        if spec.wall == Wall::Full || spec.ids.switch {
            self.mask(dest)?;
        }
        Ok(())
    }

    /// A mount of its own, not the host's: that one shows every group of the host.
    fn cgroup(&self) -> Result<(), SandboxError> {
        let dest = Path::new("/sys/fs/cgroup");
        let step = "mount the control groups at";
        let fs = setup(step, Some(dest), fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC))?;
        setup(step, Some(dest), fsconfig_create(&fs))?;
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let groups =
            setup(step, Some(dest), fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes))?;
        self.attach_dir(&groups, dest)
    }

    /// Covers what of `proc` has no namespace: its directories by themselves, read-only,
    /// its files by the null device.
    fn mask(&self, proc: &Path) -> Result<(), SandboxError> {
        let clone = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
        let (dir, dev) = (self.dir(proc)?, self.dir(Path::new("/dev"))?);
        for name in ["sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi"] {
            let path = proc.join(name);
            let tree = match open_tree(&dir, name, clone) {
                Err(rustix::io::Errno::NOENT) => continue,
                tree => setup("open", Some(&path), tree)?,
            };
            let attributes = RDONLY | NOSUID | NODEV | NOEXEC;
            setup("restrict", Some(&path), set_attributes(&tree, attributes, false))?;
            self.attach(&tree, &dir, name.as_ref(), &path)?;
        }
        for name in [
            "kcore",
            "kallsyms",
            "keys",
            "key-users",
            "timer_list",
            "latency_stats",
            "sched_debug",
            "kmsg",
        ] {
            let path = proc.join(name);
            match rustix::fs::accessat(&dir, name, Access::EXISTS, AtFlags::SYMLINK_NOFOLLOW) {
                Err(rustix::io::Errno::NOENT) => continue,
                there => setup("look at", Some(&path), there)?,
            }
            let null = setup("open", Some(&path), open_tree(&dev, "null", clone))?;
            setup("restrict", Some(&path), set_attributes(&null, RDONLY | NOSUID | NOEXEC, false))?;
            self.attach(&null, &dir, name.as_ref(), &path)?;
        }
        Ok(())
    }
}

/// Makes a whiteout at a relative path below `top`, with its directories.
fn whiteout(top: &OwnedFd, path: &Path) -> Result<(), SandboxError> {
    let step = "hide";
    let mut at = setup(step, Some(path), top.try_clone())?;
    let mut names = path.iter().peekable();
    while let Some(name) = names.next() {
        if names.peek().is_none() {
            let (kind, mode) = (rustix::fs::FileType::CharacterDevice, Mode::empty());
            setup(step, Some(path), rustix::fs::mknodat(&at, name, kind, mode, 0))?;
            break;
        }
        match mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return setup(step, Some(path), Err(error)),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        at = setup(step, Some(path), openat(&at, name, flags, Mode::empty()))?;
    }
    Ok(())
}

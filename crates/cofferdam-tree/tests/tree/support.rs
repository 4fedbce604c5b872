//! What several of these tests need.

use cofferdam_tree::{Caps, Entry, Found, Visit, WalkError, Walker};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A temporary directory that is removed with our own remover: the standard one
/// can't remove what these tests leave behind.
pub struct Scratch {
    dir: Option<tempfile::TempDir>,
}

impl Scratch {
    pub fn new() -> Self {
        Self { dir: Some(tempfile::tempdir().unwrap()) }
    }

    pub fn path(&self) -> &Path {
        self.dir.as_ref().unwrap().path()
    }

    pub fn fd(&self) -> OwnedFd {
        open(self.path())
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let path = self.dir.take().unwrap().keep();
        let parent = open(path.parent().unwrap());
        let removed = cofferdam_tree::remove_tree(parent.as_fd(), path.file_name().unwrap());
        if !std::thread::panicking() {
            removed.unwrap();
        }
    }
}

pub fn open(path: &Path) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).unwrap()
}

pub fn os(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

pub fn write(path: impl AsRef<Path>, text: &str) {
    let path = path.as_ref();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

pub fn chmod(path: impl AsRef<Path>, mode: u32) {
    rustix::fs::chmod(path.as_ref(), Mode::from_raw_mode(mode)).unwrap();
}

/// `depth` directories called `d` below `root`, deeper than any path can be.
pub fn deep(root: &Path, depth: usize) -> OwnedFd {
    let mut at = open(root);
    for _ in 0..depth {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = rustix::fs::openat(
            &at,
            "d",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .unwrap();
    }
    at
}

pub fn walk(root: &Path, caps: Caps) -> Result<Vec<(Vec<u8>, Found)>, WalkError> {
    walk_with(root, caps, |_| Ok(()))
}

pub fn walk_with(
    root: &Path,
    caps: Caps,
    mut each: impl FnMut(&Entry<'_>) -> Result<(), WalkError>,
) -> Result<Vec<(Vec<u8>, Found)>, WalkError> {
    let mut seen = Vec::new();
    Walker::new(open(root), caps).walk::<WalkError>(&mut |entry| {
        each(entry)?;
        seen.push((entry.path.to_vec(), entry.found.clone()));
        Ok(Visit::Descend)
    })?;
    Ok(seen)
}

/// This test binary again, for the ignored test `name` that plays another process.
pub fn again(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]);
    command
}

/// Runs the ignored test `name` in a mount namespace of its own.
///
/// # Panics
/// When it fails, and when this machine has no such namespaces: the test then
/// could not run, which must not look like success.
pub fn in_mount_namespace(name: &str) {
    let own = again(name);
    let mut command = Command::new("unshare");
    command.args(if is_root() { ["-m"].as_slice() } else { ["-Urm"].as_slice() });
    command.args(["--propagation", "private", "--"]).arg(own.get_program()).args(own.get_args());
    let output = command.stdin(Stdio::null()).output().expect("CAN NOT RUN HERE: no `unshare`");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(
        output.status.success(),
        "failed, or CAN NOT RUN HERE without mount namespaces:\n{text}"
    );
    assert!(text.contains("1 passed"), "`{name}` did not run:\n{text}");
}

pub fn shell(script: &str, dir: &Path) {
    let output = Command::new("sh").args(["-euc", script]).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn names(dir: &Path) -> Vec<OsString> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

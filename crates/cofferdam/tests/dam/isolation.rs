//! What a task can't see, reach, change or leave behind.
//!
//! Most of it is said by a Python program inside, which ends with an
//! `AssertionError` when it gets what it must not get (`isolation/prelude.py`
//! has its vocabulary). What the host must still hold is looked at from here.

mod files;
mod kernel;
mod nested;
mod network;
mod processes;
mod repository;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Done, World};

const PRELUDE: &str = include_str!("isolation/prelude.py");

/// `dam run OPTIONS -- python3 -c PROGRAM`, to be run.
fn inside(world: &World, options: &[&str], program: &str) -> Command {
    let program = format!("{PRELUDE}\n{program}");
    world.dam_command([&["run"], options, &["--", "python3", "-c", &program]].concat())
}

/// Runs PROGRAM inside; it must change nothing and end well.
#[track_caller]
fn holds(world: &World, options: &[&str], program: &str) -> Done {
    let done = Done::from(inside(world, options, program).output().expect("dam"));
    done.expect_code(0);
    done
}

/// A Python literal.
fn literal(text: impl AsRef<Path>) -> String {
    let bytes: String = text
        .as_ref()
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .map(|b| format!("\\x{b:02x}"))
        .collect();
    format!("os.fsdecode(b'{bytes}')")
}

/// Processes of the host whose command line holds `text`.
fn processes_with(text: &str) -> Vec<rustix::process::Pid> {
    let own = std::process::id();
    std::fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.windows(text.len()).any(|part| part == text.as_bytes()))
        })
        .filter_map(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?))
        .collect()
}

/// Every path below `dir`, with type, mode, owner and content; times left out.
fn contents(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = std::fs::symlink_metadata(&path).expect("stat");
        let mut said = format!("{:o} {} {} ", meta.mode(), meta.uid(), meta.gid());
        if meta.is_dir() {
            let entries = std::fs::read_dir(&path).expect("list");
            todo.extend(entries.map(|entry| entry.expect("entry").path()));
        } else if meta.is_symlink() {
            said += &std::fs::read_link(&path).expect("link").to_string_lossy();
        } else {
            let bytes = std::fs::read(&path).expect("read");
            said += &String::from_utf8_lossy(&bytes);
        }
        found.insert(path.strip_prefix(dir).expect("below").to_owned(), said);
    }
    found
}

/// Fails the test, naming the paths, unless `dir` has the contents that it had.
/// The pins that kept contexts have in a repository don't count.
#[track_caller]
fn unchanged(dir: &Path, before: &BTreeMap<PathBuf, String>) {
    let after = contents(dir);
    let names: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let changed: Vec<_> = names
        .into_iter()
        .filter(|path| !path.starts_with(".git/refs/dam"))
        .filter(|path| before.get(*path) != after.get(*path))
        .collect();
    assert!(changed.is_empty(), "changed below `{}`: {changed:?}", dir.display());
}

/// The names by which the tasks' directories go.
fn task_dirs(world: &World) -> Vec<PathBuf> {
    let tasks = world.state().join("contexts/tasks");
    let entries = std::fs::read_dir(&tasks).expect("tasks");
    entries.map(|entry| entry.expect("entry").path()).filter(|path| path.is_dir()).collect()
}

/// A directory that everybody can enter.
fn public_dir(parent: impl AsRef<Path>) -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("dam-test-").tempdir_in(parent).expect("tempdir");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    dir
}

/// A name that nobody else has.
fn marker(what: &str) -> String {
    format!("dam-marker-{what}-{}", std::process::id())
}

/// Bytes as an argument.
fn os(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

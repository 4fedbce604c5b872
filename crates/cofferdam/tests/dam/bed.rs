//! What the crash tests share: a repository with work of the person's in it, a
//! task that changes it in every way, kills at failpoints, and what must hold
//! whatever was killed when.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::support::World;

/// The task's command: a file is added, one changed, one deleted, a file becomes
/// a directory and a directory a file.
pub const WORK: &str = "echo good > a.txt; mkdir new; echo n > new/deep.txt; rm gone.txt; \
     rm f2d; mkdir f2d; echo z > f2d/in; rm -r d2f; echo f > d2f";

/// What git says about the person's own work, before and after.
const DIRT: &str = " M src/b.txt\n?? notes.txt";

/// A repository with work of the person's, and how it was in the beginning.
pub struct Bed {
    pub world: World,
    pub target: Target,
    /// The target's tip in the beginning.
    pub old: String,
    before: Tree,
    refs_before: BTreeSet<String>,
}

/// Where the task lands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    CheckedOut,
    NewBranch,
    OtherBranch,
    Remote,
}

impl Target {
    fn options(self) -> &'static [&'static str] {
        match self {
            Target::CheckedOut => &[],
            Target::NewBranch => &["--branch"],
            Target::OtherBranch => &["--into", "release"],
            Target::Remote => &["--into", "origin/main"],
        }
    }
}

type Tree = BTreeMap<PathBuf, String>;

impl Bed {
    pub fn new(target: Target) -> Bed {
        let world = World::new();
        world.write("gone.txt", "going\n");
        world.write("f2d", "file\n");
        world.write("d2f/one", "1\n");
        world.write("d2f/two", "2\n");
        world.git(["add", "--all"]);
        world.git(["commit", "--quiet", "--message", "second"]);
        if target == Target::OtherBranch {
            world.git(["branch", "release"]);
        }
        if target == Target::Remote {
            let remote = world.dir().join("remote.git");
            let remote = remote.to_str().expect("utf-8");
            world.git(["clone", "--quiet", "--bare", ".", remote]);
            world.git(["remote", "add", "origin", remote]);
        }
        world.write("src/b.txt", "dirty\n");
        world.write("notes.txt", "untracked\n");
        world.write(".env", "SECRET=1\n");
        world.git(["status"]);
        let mut bed = Bed {
            target,
            old: String::new(),
            before: Tree::new(),
            refs_before: BTreeSet::new(),
            world,
        };
        bed.old = bed.tip().unwrap_or_default();
        bed.before = bed.tree();
        bed.refs_before = bed.refs();
        bed
    }

    /// `dam run` of the task named `t`.
    pub fn run_command(&self) -> Command {
        self.run_with(&["--check", "./ci"])
    }

    pub fn run_with(&self, options: &[&str]) -> Command {
        let own = ["run", "--name", "t"];
        let work = ["--", "sh", "-c", WORK];
        self.world.dam_command([&own[..], options, self.target.options(), &work].concat())
    }

    /// Where the target is.
    pub fn tip(&self) -> Option<String> {
        let find = |git_dir: &Path, name: &str| {
            let git_dir = format!("--git-dir={}", git_dir.display());
            let name = format!("refs/heads/{name}");
            let tip = self.world.git([&git_dir, "for-each-ref", "--format=%(objectname)", &name]);
            (!tip.is_empty()).then_some(tip)
        };
        let own = self.world.path(".git");
        match self.target {
            Target::CheckedOut => find(&own, "main"),
            Target::NewBranch => find(&own, "dam/t"),
            Target::OtherBranch => find(&own, "release"),
            Target::Remote => find(&self.world.dir().join("remote.git"), "main"),
        }
    }

    fn status(&self) -> String {
        self.world.git(["--no-optional-locks", "status", "--porcelain"])
    }

    fn refs(&self) -> BTreeSet<String> {
        let refs = self.world.git(["for-each-ref", "--format=%(refname) %(objectname)"]);
        refs.lines().map(str::to_owned).collect()
    }

    /// Everything in the repository but objects and our pins, with what a stat
    /// and a read show.
    fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let git = self.world.path(".git");
        walk(&self.world.repo, &mut |path, meta| {
            if path.starts_with(git.join("objects")) || path.starts_with(git.join("refs/dam")) {
                return;
            }
            let what = if meta.is_file() {
                let content = std::fs::read(path).expect("read");
                let text = String::from_utf8_lossy(&content).into_owned();
                format!(
                    "{:o} {} {}.{} {text}",
                    meta.mode(),
                    meta.ino(),
                    meta.mtime(),
                    meta.mtime_nsec()
                )
            } else {
                format!("{:o}", meta.mode())
            };
            tree.insert(path.to_owned(), what);
        });
        tree
    }

    /// The task's receipt; none when the task was never recorded.
    pub fn receipt(&self) -> Option<serde_json::Value> {
        let done = self.world.dam(["--format", "json", "list"]);
        done.expect_code(0);
        let tasks: Vec<serde_json::Value> = serde_json::from_str(&done.stdout).expect("json");
        assert!(tasks.len() <= 1, "{tasks:?}");
        tasks.into_iter().next()
    }

    /// What must hold as soon as a command of ours has returned. Gives the task's
    /// state, none when it was never recorded.
    pub fn assert_sound(&self) -> Option<String> {
        let receipt = self.receipt();
        let state = receipt.as_ref().map(|receipt| receipt["state"].as_str().unwrap().to_owned());
        let landed = state.as_deref() == Some("landed");
        let tip = self.tip();
        if let Some(state) = &state {
            const LIVE: [&str; 6] =
                ["queued", "preparing", "running", "harvesting", "verifying", "publishing"];
            assert!(!LIVE.contains(&state.as_str()), "still {state}");
            assert_ne!(state, "broken");
        }
        if landed {
            self.assert_new(tip.as_deref().expect("landed, but where"));
        } else {
            assert_eq!(tip.unwrap_or_default(), self.old, "moved, though the task is {state:?}");
            self.assert_old(receipt.as_ref());
        }
        self.assert_no_leftovers(receipt.as_ref());
        state
    }

    fn assert_new(&self, tip: &str) {
        let git_dir = match self.target {
            Target::Remote => self.world.dir().join("remote.git"),
            _ => self.world.path(".git"),
        };
        let git_dir = format!("--git-dir={}", git_dir.display());
        let listed = self.world.git([&git_dir, "ls-tree", "-r", "--name-only", tip]);
        let expected = [".gitignore", "a.txt", "ci", "d2f", "f2d/in", "new/deep.txt", "src/b.txt"];
        assert_eq!(listed.lines().collect::<Vec<_>>(), expected);
        let read = |path: &str| self.world.git([&git_dir, "show", &format!("{tip}:{path}")]);
        assert_eq!([read("a.txt"), read("d2f"), read("f2d/in")], ["good", "f", "z"]);
        if self.target != Target::NewBranch {
            assert_eq!(self.world.git([&git_dir, "rev-parse", &format!("{tip}^")]), self.old);
        }
        self.world.git([&git_dir, "fsck", "--connectivity-only", "--no-dangling"]);
        // The person's own work is as it was, and nothing else is seen as changed.
        assert_eq!(self.status(), DIRT);
        assert_eq!(self.world.read("src/b.txt"), "dirty\n");
        assert_eq!(self.world.read("notes.txt"), "untracked\n");
        assert_eq!(self.world.read(".env"), "SECRET=1\n");
        if self.target == Target::CheckedOut {
            assert_eq!(self.world.git(["diff", "--name-only", tip]), "src/b.txt");
            assert!(!self.world.path("gone.txt").exists());
        }
    }

    /// The repository is byte for byte what it was, and the work is still there.
    fn assert_old(&self, receipt: Option<&serde_json::Value>) {
        let now = self.tree();
        let changed: Vec<_> = self
            .before
            .keys()
            .chain(now.keys())
            .filter(|path| self.before.get(*path) != now.get(*path))
            .collect();
        assert!(changed.is_empty(), "changed: {changed:?}");
        assert_eq!(self.status(), DIRT);
        if receipt.is_some_and(|receipt| !receipt["change"].is_null()) {
            let diff = self.world.dam(["diff", "t"]);
            assert!(diff.expect_code(0).stdout.contains("+good"), "{}", diff.stdout);
        }
    }

    fn assert_no_leftovers(&self, receipt: Option<&serde_json::Value>) {
        walk(&self.world.path(".git"), &mut |path, _| {
            let name = path.file_name().expect("name").to_string_lossy().into_owned();
            let ours = name.starts_with("dam-") || name.starts_with("tmp_");
            assert!(!ours && !name.ends_with(".lock"), "left behind: {}", path.display());
        });
        let kept = receipt.is_some_and(|receipt| receipt["context_kept"] == true);
        let id = receipt.map(|receipt| receipt["task"].as_str().expect("id").to_owned());
        for line in self.refs().difference(&self.refs_before) {
            let name = line.split(' ').next().expect("name");
            let pin = id.as_ref().map(|id| format!("refs/dam/keep/{id}"));
            let target = match self.target {
                Target::CheckedOut => "refs/heads/main",
                Target::NewBranch => "refs/heads/dam/t",
                Target::OtherBranch => "refs/heads/release",
                Target::Remote => "",
            };
            assert!(name == target || (kept && Some(name) == pin.as_deref()), "stray ref {line}");
        }
        let alive = processes_of(self.world.dir());
        assert!(alive.is_empty(), "still alive: {alive:?}");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let dir = self.world.dir().to_str().expect("utf-8");
        assert!(!mounts.contains(dir), "a mount on the host");
    }

    /// `dam gc`, and what must not be there after it.
    pub fn collect(&self) {
        let done = self.world.dam(["--format", "json", "gc"]);
        done.expect_code(0);
        let report: serde_json::Value = serde_json::from_str(&done.stdout).expect("json");
        assert_eq!(report["kept"], serde_json::json!([]), "{report}");
        walk(&self.world.state(), &mut |path, _| {
            let name = path.file_name().expect("name").to_string_lossy().into_owned();
            let temporary = name.contains(".tmp-") || name.starts_with("dam-") || name == "ns.tmp";
            let in_trash = path.starts_with(self.world.state().join("trash"));
            // What a kept context holds is the task's, mount points of its view included.
            let kept =
                ["tmp", "home", "upper"].iter().any(|part| path.iter().any(|name| name == *part));
            assert!(!temporary || in_trash || kept, "left behind: {}", path.display());
        });
        let tasks = self.world.state().join("contexts/tasks");
        let receipt = self.receipt();
        if receipt.is_none() {
            assert_eq!(std::fs::read_dir(&tasks).expect("tasks").count(), 0, "an orphan stays");
        } else if receipt.is_some_and(|receipt| receipt["state"] == "landed") {
            for entry in std::fs::read_dir(&tasks).expect("tasks") {
                let upper = entry.expect("entry").path().join("upper");
                assert!(!upper.exists(), "a landed context stays");
            }
            assert_eq!(self.world.git(["for-each-ref", "refs/dam"]), "");
        }
    }

    /// All that follows a crash: reconcile, twice, collect, and land what waits.
    pub fn assert_recovers(&self) {
        let state = self.assert_sound();
        assert_eq!(self.assert_sound(), state, "the second look changed something");
        self.collect();
        assert_eq!(self.assert_sound(), state, "gc changed something");
        match state.as_deref() {
            Some("ready") => {
                self.world.dam(["land", "t"]).expect_code(0);
                assert_eq!(self.assert_sound().as_deref(), Some("landed"));
            }
            Some("landed") | None => {}
            Some(_) => {
                self.world.dam(["drop", "t"]).expect_code(0);
                assert_eq!(self.world.git(["for-each-ref", "refs/dam"]), "");
                assert!(!self.world.path(".git/refs/dam").exists());
                self.assert_sound();
            }
        }
        // What a person does next reverts nothing.
        if self.target == Target::CheckedOut {
            let tip = self.tip().expect("main");
            self.world.git(["commit", "--quiet", "--all", "--message", "mine"]);
            assert_eq!(self.world.git(["diff", "--name-only", &tip, "HEAD"]), "src/b.txt");
        }
    }
}

/// Runs a command to its end with a kill at a failpoint (`NAME@VISIT`), which
/// must be reached.
pub fn kill_at(mut command: Command, place: &str) {
    let output = command.env("COFFERDAM_FAILPOINT", format!("{place}=kill")).output().expect("dam");
    assert_eq!(
        output.status.signal(),
        Some(9),
        "`{place}` was not reached: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The failpoints that a command visits, in order, each as `NAME@VISIT`.
pub fn visits(mut command: Command, dir: &Path) -> Vec<String> {
    let log = dir.join("failpoints");
    let _ = std::fs::remove_file(&log);
    command.env("COFFERDAM_FAILPOINT_LOG", &log).output().expect("dam");
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    let mut counts = BTreeMap::new();
    text.lines()
        .map(|name| {
            let count = counts.entry(name.to_owned()).or_insert(0);
            *count += 1;
            format!("{name}@{count}")
        })
        .collect()
}

/// Runs `case` for each of `places`, a few at a time, and tells all that failed.
pub fn for_each(places: Vec<String>, case: impl Fn(&str) + Sync) {
    let waiting = Mutex::new(places.into_iter());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("queue").next();
                    let Some(place) = next else { return };
                    let tried =
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case(&place)));
                    if let Err(cause) = tried {
                        let text = cause
                            .downcast_ref::<String>()
                            .map(String::as_str)
                            .or_else(|| cause.downcast_ref::<&str>().copied())
                            .unwrap_or("?")
                            .to_owned();
                        failed.lock().expect("failed").push(format!("{place}: {text}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("failed");
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}

/// Polls until something is the case; fails after half a minute.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if is_so() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("it never came to this: {what}");
}

/// Processes that have to do with a directory, by their arguments or environment,
/// but for those that empty the trash.
pub fn processes_of(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().expect("utf-8");
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("proc").filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.parse::<u32>().is_err() || name == std::process::id().to_string() {
            continue;
        }
        let read = |file: &str| {
            let bytes = std::fs::read(entry.path().join(file)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        let line = read("cmdline");
        if !line.contains("__sweep") && (line.contains(dir) || read("environ").contains(dir)) {
            found.push(format!("{name}: {line}"));
        }
    }
    found
}

/// Visits everything below a directory; what vanishes meanwhile is passed over.
pub fn walk(dir: &Path, visit: &mut dyn FnMut(&Path, &std::fs::Metadata)) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
        visit(&path, &meta);
        if meta.is_dir() {
            walk(&path, visit);
        }
    }
}

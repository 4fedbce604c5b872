//! Bad places: disks that are full at each step, that can't be written, and file
//! systems of other kinds. Each is mounted in a mount namespace of its own, which an
//! ordinary user has in a user namespace.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::bed::for_each;
use crate::support::{Done, World, dam_binary, is_root};

/// A world that is seen through mounts of its own.
struct Place {
    world: World,
    holder: Child,
}

impl Place {
    /// After `setup`, which finds the world's directory as `$0`.
    fn new(world: World, setup: &str) -> Place {
        let own: &[&str] =
            if is_root() { &["--mount"] } else { &["-U", "-c", "--keep-caps", "--mount"] };
        let mut holder = world.command("unshare");
        holder.args(own).args(["sh", "-ec", &format!("{setup}\necho ready; exec cat")]);
        holder.arg(world.dir()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = holder.spawn().expect("unshare");
        let mut line = String::new();
        let out = holder.stdout.as_mut().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("read");
        assert_eq!(line, "ready\n", "the setup failed: {setup}");
        Place { world, holder }
    }

    /// The state directory on a small disk.
    fn small_state(options: &str) -> Place {
        let world = World::new();
        let mount = format!("mkdir $0/state; mount -t tmpfs -o mode=700,{options} none $0/state");
        Place::new(world, &mount)
    }

    /// The repository on a small disk, with a large file in it.
    fn small_repository(options: &str) -> Place {
        let world = World::new();
        world.sh("head -c 150000 /dev/urandom > big");
        world.commit("big");
        let mount = format!(
            "cp -a $0/repo $0/copy; mount -t tmpfs -o mode=755,{options} none $0/repo
             cp -a $0/copy/. $0/repo; chown --reference=$0/copy $0/repo; cd $0/repo; git status"
        );
        Place::new(world, &format!("{{ {mount}; }} >/dev/null"))
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.world.command("nsenter");
        command.arg(format!("--target={}", self.holder.id())).arg("--mount");
        if !is_root() {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.args(["sh", "-c", "cd \"$0\" && exec \"$@\""]).arg(&self.world.repo).arg(program);
        command
    }

    fn dam<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Done {
        Done::from(self.command(dam_binary()).args(args).output().expect("dam"))
    }

    fn run(&self, options: &[&str], script: &str) -> Done {
        self.dam([&["run"], options, &["--", "sh", "-c", script]].concat())
    }

    #[track_caller]
    fn sh(&self, script: &str) -> String {
        let done = Done::from(self.command("sh").args(["-ec", script]).output().expect("sh"));
        done.expect_code(0);
        done.stdout.trim_end().to_owned()
    }

    fn tasks(&self) -> Vec<serde_json::Value> {
        let done = self.dam(["--format", "json", "list"]);
        done.expect_code(0);
        serde_json::from_str(&done.stdout).expect("json")
    }

    /// Leaves so many KiB on the disk that `dir` is on.
    fn fill(&self, dir: &Path, left: u64) {
        let dir = dir.display();
        self.sh(&format!(
            "free=$(df --output=avail -k {dir} | tail -n 1)
             [ $free -le {left} ] || head -c $(((free - {left}) * 1024)) /dev/zero >> {dir}/filler"
        ));
    }

    /// Leaves so many inodes on the disk that `dir` is on.
    fn fill_inodes(&self, dir: &Path, left: u64) {
        let dir = dir.display();
        self.sh(&format!(
            "mkdir {dir}/filler; free=$(df --output=iavail {dir} | tail -n 1)
             seq {left} $((free - 1)) | (cd {dir}/filler && xargs -r touch)"
        ));
    }

    fn free(&self, dir: &Path) {
        self.sh(&format!("rm -rf {}/filler", dir.display()));
    }

    /// The branch and its checkout are wholly old or wholly new.
    #[track_caller]
    fn assert_whole(&self, landed: bool, old: &str) {
        assert_eq!(self.sh("git rev-parse main") != old, landed);
        let status = self.sh("git --no-optional-locks status --porcelain | grep -v filler || true");
        assert_eq!(status, "");
        assert_eq!(self.sh("cat a.txt"), if landed { "x" } else { "hello" });
        self.sh("git fsck --no-dangling --no-progress 2>&1");
        assert_eq!(self.sh("find .git -name '*.lock' -o -name 'dam-*' -o -name 'tmp_*'"), "");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

#[track_caller]
fn assert_says_full(done: &Done) {
    let words = ["No space left", "disk is full", "Out of diskspace", "not enough room"];
    let said = words.iter().any(|words| done.stderr.contains(words));
    assert!(said, "{:?}: {}", done.code, done.stderr);
}

/// What must hold when a run met a full disk somewhere.
fn meets_full_disk(place: &Place, work: &str, disk: &Path, full: impl Fn()) {
    let old = place.sh("git rev-parse main");
    full();
    let done = place.run(&["--name", "t", "--check", "./ci"], work);
    place.assert_whole(done.code == Some(0), &old);
    if done.code != Some(0) {
        // 1: it was the command that could not write.
        assert!(matches!(done.code, Some(1 | 8 | 9)), "{done:?}");
        assert_says_full(&done);
    }
    // Nothing at all is left.
    place.sh(&format!("cat /dev/zero >> {0}/filler2 2>/dev/null || true", disk.display()));
    for task in place.tasks() {
        let state = task["state"].as_str().expect("state");
        assert!(["landed", "ready", "failed"].contains(&state), "{task}");
    }
    place.dam(["show", "kept"]).expect_code(0);
    place.dam(["gc"]).expect_code(0);
    place.dam(["drop", "kept"]).expect_code(0);
    place.sh(&format!("rm -f {0}/filler2", disk.display()));
    place.free(disk);
    let task = place.tasks().into_iter().find(|task| task["name"] == "t");
    if let Some(task) = task.filter(|task| task["context_kept"] == true)
        && task["command_exit"] == 0
    {
        place.dam(["land", "t"]).expect_code(0);
        place.assert_whole(true, &old);
    } else if done.code != Some(0) {
        place.dam(["drop", "t"]);
    }
    place.run(&["--check", "./ci"], "echo more > more.txt").expect_code(0);
    let done = place.dam(["--format", "json", "gc"]);
    done.expect_code(0);
    let report: serde_json::Value = serde_json::from_str(&done.stdout).expect("json");
    assert_eq!(report["kept"], serde_json::json!([]), "{report}");
    assert_eq!(place.sh("git for-each-ref refs/dam"), "");
}

const KEPT: &str = "echo k > kept.txt; head -c 300000 /dev/urandom > big.bin; exit 1";

fn cases(sizes: &[u64]) -> Vec<String> {
    sizes.iter().map(ToString::to_string).collect()
}

#[test]
fn a_full_disk_of_the_state_directory_loses_nothing_at_any_step() {
    let work = "echo x > a.txt && head -c 100000 /dev/urandom > new.bin";
    for_each(cases(&[0, 16, 60, 140, 180, 220, 260, 340, 400, 460, 560]), |left| {
        let place = Place::small_state("size=16m");
        let state = place.world.state();
        place.run(&["--name", "kept"], KEPT).expect_code(1);
        meets_full_disk(&place, work, &state, || place.fill(&state, left.parse().expect("size")));
    });
}

#[test]
fn a_full_disk_of_the_repository_moves_nothing_by_halves() {
    let work = "echo x > a.txt; for file in big 0.bin new.bin; do \
                head -c 160000 /dev/urandom > $file; done";
    for_each(cases(&[0, 4, 60, 560, 700, 800, 1100]), |left| {
        let place = Place::small_repository("size=16m");
        place.run(&["--name", "kept"], KEPT).expect_code(1);
        let repo = place.world.repo.clone();
        place.sh("echo filler >> .git/info/exclude; echo filler2 >> .git/info/exclude");
        meets_full_disk(&place, work, &repo, || place.fill(&repo, left.parse().expect("size")));
    });
}

#[test]
fn a_disk_without_inodes_loses_nothing() {
    let work = "echo x > a.txt && mkdir d && touch d/1 d/2 d/3";
    for_each(cases(&[0, 20, 30, 40, 70]), |left| {
        let place = Place::small_state("size=64m,nr_inodes=400");
        let state = place.world.state();
        place.run(&["--name", "kept"], KEPT).expect_code(1);
        let full = || place.fill_inodes(&state, left.parse().expect("number"));
        meets_full_disk(&place, work, &state, full);
    });
    for_each(cases(&[0, 3, 12]), |left| {
        let place = Place::small_repository("size=64m,nr_inodes=300");
        place.run(&["--name", "kept"], KEPT).expect_code(1);
        let repo = place.world.repo.clone();
        place.sh("echo filler >> .git/info/exclude; echo filler2 >> .git/info/exclude");
        let full = || place.fill_inodes(&repo, left.parse().expect("number"));
        meets_full_disk(&place, work, &repo, full);
    });
}

#[test]
fn a_full_disk_has_an_exit_code_and_a_hint() {
    let place = Place::small_state("size=4m");
    place.fill(&place.world.state(), 0);
    let done = place.run(&["--no-check"], "true");
    done.expect_code(9).says("hint:").says("a disk is full: `dam gc` and `dam drop NAME`");
    let done = place.dam(["--format", "json", "run", "--no-check", "--", "true"]);
    let error: serde_json::Value = serde_json::from_str(&done.stdout).expect("json");
    assert_eq!(error["exit_code"], 9, "{error}");
}

/// What can't be written is said with an exit code, and what only reads works.
#[test]
fn a_state_directory_that_can_not_be_written_can_be_read() {
    let world = World::new();
    world.run(&["--name", "k"], "echo 2 > a.txt; exit 1").expect_code(1);
    let mount = "mount --bind $0/state $0/state; mount -o remount,bind,ro $0/state";
    let place = Place::new(world, mount);
    assert!(place.dam(["list"]).expect_code(0).stdout.contains("k     failed"));
    place.dam(["show", "k"]).expect_code(0);
    place.dam(["log", "k"]).expect_code(0);
    for command in [&["gc"][..], &["drop", "k"], &["land", "k"], &["run", "--", "true"]] {
        let done = place.dam(command);
        assert_eq!(done.code, Some(6), "{command:?}: {}", done.stderr);
        assert!(done.stderr.contains("COFFERDAM_STATE"), "{command:?}: {}", done.stderr);
    }
}

#[test]
fn a_repository_that_can_not_be_written_is_named() {
    let world = World::new();
    let mount = "mount --bind $0/repo $0/repo; mount -o remount,bind,ro $0/repo";
    let place = Place::new(world, mount);
    let done = place.run(&["--name", "t", "--no-check"], "echo x > a.txt");
    done.expect_code(6).says("Read-only file system").says("the repository can't be written");
    assert_eq!(place.tasks()[0]["state"], "failed");
}

#[test]
fn other_file_systems_work_or_are_refused_by_name() {
    let world = World::new();
    let mounts = "for name in tmpfs ramfs over lower upper work; do mkdir $0/$name; done
         mount -t tmpfs -o mode=777 none $0/tmpfs; mount -t ramfs -o mode=777 none $0/ramfs
         mount -t overlay -o userxattr,lowerdir=$0/lower,upperdir=$0/upper,workdir=$0/work none \
         $0/over";
    let place = Place::new(world, mounts);
    let run = |name: &str| {
        let state: PathBuf = place.world.dir().join(name).join("state");
        let mut command = place.command("env");
        command.arg(format!("COFFERDAM_STATE={}", state.display())).arg(dam_binary());
        let script = format!("echo {name} > a.txt");
        command.args(["run", "--check", "./ci", "--", "sh", "-c", &script]);
        Done::from(command.output().expect("dam"))
    };
    for name in ["tmpfs", "ramfs"] {
        run(name).expect_code(0);
        assert_eq!(place.sh("cat a.txt"), name);
    }
    run("over").expect_code(6).says("it lies on an overlay").says("hint: set `COFFERDAM_STATE`");
    assert_eq!(place.sh("cat a.txt; git status --porcelain"), "ramfs");
}

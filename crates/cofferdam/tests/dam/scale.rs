//! Many files and large ones: what `dam` keeps in memory does not grow with them, and
//! what lands is what git would have made of the same.
//!
//! The `#[ignore]`d ones are the same at full size, for a machine with 20 GB to spare:
//! `cargo nextest run -p cofferdam --run-ignored only scale::`.

use std::collections::{BTreeMap, HashMap};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{Done, World, dam_binary, levels};

/// Most that any process of ours may have in memory, in KiB.
const MOST: u64 = 100 << 10;
/// Most that a helper may have: a few megabytes of names besides the program.
const HELPER: u64 = 32 << 10;
/// What many times as many files may add: what allocators and stacks vary by. Both are
/// more than the thousand changes that are kept rather than asked for again.
const GROWTH: u64 = 5 << 9;

/// Most that the names of a directory that is walked may take.
const NAMES: u64 = 8 << 10;

/// The most memory of each kind of our processes, in KiB.
type Peaks = BTreeMap<String, u64>;

/// Runs `dam`, and looks at it and at what it starts of itself meanwhile: the mark of
/// the most memory only grows, so looking often is enough.
fn watched(command: &mut Command) -> (Done, Peaks) {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("dam");
    let (top, over) = (child.id(), AtomicBool::new(false));
    let binary = dam_binary();
    let own = binary.file_name().expect("a name").to_string_lossy().into_owned();
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut peaks = Peaks::new();
            while !over.load(Ordering::Relaxed) {
                look(top, &own, &mut peaks);
                std::thread::sleep(Duration::from_millis(4));
            }
            peaks
        });
        let done = Done::from(child.wait_with_output().expect("dam"));
        over.store(true, Ordering::Relaxed);
        (done, watch.join().expect("watch"))
    })
}

/// Notes the marks of process `top` and of those below it that are `dam`.
fn look(top: u32, own: &str, peaks: &mut Peaks) {
    let mut found: HashMap<u32, (u32, String, u64)> = HashMap::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").filter_map(Result::ok) {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        let read = |name| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let status = read("status");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let (Some(parent), Some(mark)) = (field("PPid:"), field("VmHWM:")) else { continue };
        let command = read("cmdline");
        let program = command.split('\0').next().unwrap_or_default();
        let program = program.rsplit('/').next().unwrap_or_default().to_owned();
        found.insert(pid, (u32::try_from(parent).expect("a pid"), program, mark));
    }
    for (pid, (_, program, mark)) in &found {
        let ours = program == own || program.starts_with("dam-");
        let mut at = *pid;
        while at != top && at > 1 {
            at = found.get(&at).map_or(0, |(parent, ..)| *parent);
        }
        if ours && at == top {
            let peak = peaks.entry(program.clone()).or_default();
            *peak = (*peak).max(*mark);
        }
    }
}

/// None is more than it may be, and the supervisor of the larger task took no more than
/// that of the smaller one. Of its helpers many live too short for a comparison.
#[track_caller]
fn bounded(small: &Peaks, large: &Peaks) {
    for (program, peak) in large {
        let most = if program == "dam" { MOST } else { HELPER };
        assert!(*peak < most, "{program}: {peak} KiB");
    }
    let (before, peak) = (small["dam"], large["dam"]);
    assert!(peak < before + GROWTH, "dam: {before} KiB, then {peak} KiB");
}

/// A Python program that makes `count` files in `d`. Their names are long: who keeps a
/// list of them is found out with fewer.
fn make(count: u32, text: &str) -> String {
    format!(
        "python3 -c 'import os\nos.makedirs(\"d\", exist_ok=True)\n\
         for i in range({count}): open(f\"d/{{i:0200}}\", \"w\").write(f\"{text}{{i}}\\n\")'"
    )
}

/// The tree that git makes of a commit's files after `script` in a clone.
fn by_git(world: &World, commit: &str, script: &str) -> String {
    let clone = world.dir().join("clone");
    let path = clone.to_str().expect("UTF-8");
    world.git(["clone", "--quiet", "--no-checkout", ".", path]);
    let settings = "git config core.fsync none; git config gc.auto 0";
    let quiet = format!("{settings}; git checkout --quiet {commit}; {script}; git add --all");
    world.sh_in(&clone, &quiet);
    let tree = world.sh_in(&clone, "git write-tree");
    world.sh(&format!("rm -rf '{path}'"));
    tree
}

/// One task on a repository of `count` files; gives what it took. The checkout follows.
#[track_caller]
fn one(world: &World, script: &str, compare: bool) -> Peaks {
    let before = world.git(["rev-parse", "main"]);
    let mut command = world.dam_command(["run", "--no-check", "--", "sh", "-ec", script]);
    let (done, peaks) = watched(&mut command);
    done.expect_code(0).says("landed");
    if compare {
        let tree = by_git(world, &before, script);
        assert_eq!(world.git(["rev-parse", "main^{tree}"]), tree);
        assert_eq!(world.git(["status", "--porcelain"]), "");
        assert_eq!(world.sh("git fsck --strict --no-dangling --no-progress"), "");
    }
    left_nothing(world);
    peaks
}

/// Nothing of a task is left but its record.
#[track_caller]
fn left_nothing(world: &World) {
    let task = "find ../state/contexts/tasks -mindepth 2 -maxdepth 2 -printf '%f\\n' | sort -u";
    let left = world.sh(task);
    for gone in ["upper", "work", "tmp", "home", "merge", "checks"] {
        assert!(!left.lines().any(|name| name == gone), "{left}");
    }
    world.dam(["gc"]).expect_code(0);
    assert_eq!(world.sh("ls ../state/trash; find ../state/store -name 'tmp_*'"), "");
    assert_eq!(world.sh("find ../state/store -name '*crash*'"), "");
    assert_eq!(world.git(["for-each-ref", "refs/dam"]), "");
}

/// Files made, all changed and all deleted again. Each time from a whole layer: one that
/// lies on another is made of a list, of at most 20,000 files.
/// Gives what making them took: for the others, a layer is made first whose directory is
/// walked, and of that up to 8 MiB of names are held.
fn made_changed_and_deleted(count: u32, compare: bool) -> Peaks {
    let world = World::new();
    let add = format!("{}; echo more >> a.txt", make(count, "new "));
    let made = one(&world, &add, compare);
    world.sh("rm -rf ../state");
    let changed = one(&world, &make(count, "changed "), compare);
    world.sh("rm -rf ../state");
    let deleted = one(&world, "rm -r d", compare);
    assert!(!world.path("d").exists());
    for peaks in [&changed, &deleted] {
        assert!(peaks["dam"] < made["dam"] + GROWTH + NAMES, "{made:?}, then {peaks:?}");
    }
    made
}

#[test]
fn many_files_made_changed_and_deleted_take_no_more_memory_than_few() {
    let small = made_changed_and_deleted(1_200, false);
    let large = made_changed_and_deleted(8_000, true);
    bounded(&small, &large);
}

#[test]
#[ignore = "makes three hundred thousand files"]
fn a_hundred_thousand_files_made_changed_and_deleted() {
    let small = made_changed_and_deleted(10_000, false);
    let large = made_changed_and_deleted(100_000, true);
    bounded(&small, &large);
}

#[test]
#[ignore = "makes three million files"]
fn a_million_files_made() {
    let world = World::new();
    // A thousand a directory: see `docs/performance.md`.
    let script = "python3 -c 'import os\n\
                  for i in range(1_000_000):\n\
                  \x20 if i % 1000 == 0: os.makedirs(f\"d/{i // 1000}\")\n\
                  \x20 open(f\"d/{i // 1000}/{i}\", \"w\").write(f\"{i}\\n\")'";
    let peaks = one(&world, script, true);
    assert!(peaks.values().all(|peak| *peak < MOST), "{peaks:?}");
}

/// `git add` inside: what only the task's index knows is many as well.
#[test]
fn files_that_the_task_has_added_itself_take_no_more_memory() {
    let run = |count| {
        let world = World::new();
        let script = format!(
            "{}; echo d > .gitignore; git add --force --all; git commit --quiet -m inside",
            make(count, "")
        );
        let options = ["run", "--no-check", "--branch", "--name", "t", "--", "sh", "-ec", &script];
        let (done, peaks) = watched(&mut world.dam_command(options));
        done.expect_code(0);
        let listed = world.git(["ls-tree", "-r", "--name-only", "dam/t", "d/"]);
        assert_eq!(listed.lines().count(), count as usize);
        peaks
    };
    bounded(&run(1_200), &run(8_000));
}

#[test]
fn ignored_files_are_neither_read_nor_counted() {
    let world = World::new();
    world.write(".gitignore", "d\n");
    world.commit("ignored");
    let run = |count| {
        let script = format!("{}; echo {count} >> a.txt", make(count, ""));
        let options = ["run", "--check", "./ci", "--", "sh", "-ec", &script];
        let (done, peaks) = watched(&mut world.dam_command(options));
        done.expect_code(0).says("0 added, 1 changed, 0 deleted");
        left_nothing(&world);
        peaks
    };
    bounded(&run(1_200), &run(10_000));
}

/// What is left out is told of, but not each of a thousand; it is in no record either.
#[test]
fn of_much_that_is_left_out_only_some_is_told() {
    let world = World::new();
    let script = "mkdir p; for i in $(seq 1000); do mkfifo p/$i; done; echo x >> a.txt";
    let done = world.run(&["--name", "t", "--check", "./ci"], script);
    done.expect_code(0).says("`dam show t` says what");
    assert!(done.stderr.lines().filter(|line| line.contains("is a fifo")).count() < 10);
    let left_out = world.task("t")["left_out"].clone();
    let left_out = left_out.as_array().expect("a list");
    assert_eq!(left_out.len(), 101);
    assert_eq!(left_out[100], "900 more of such");
}

/// Of a thousand files that decide what a check says, a reason names a few.
#[test]
fn of_many_changes_that_wait_only_some_are_told() {
    let world = World::new();
    let script = "for i in $(seq 1000); do mkdir -p s/$i; echo 1 > s/$i/conftest.py; done";
    let done = world.run(&["--name", "t", "--check", "./ci"], script);
    done.expect_code(8).says("and 995 more");
    assert_eq!(world.task("t")["check_changes"].as_array().expect("a list").len(), 100);
    world.dam(["land", "t", "--check", "./ci", "--allow-check-changes"]).expect_code(0);
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

/// Paths in the way of a landing: all are counted, a few are named.
#[test]
fn of_many_paths_in_the_way_only_some_are_told() {
    let world = World::new();
    let make = "mkdir -p n; for i in $(seq 2000); do echo $1 > n/$i.log; done";
    world.run(&["--name", "t", "--no-check"], &format!("{make}; git add -f n")).expect_code(0);
    world.git(["rm", "-r", "--quiet", "n"]);
    world.commit("without");
    world.sh(&format!("set -- other; {make}"));
    let again = format!("{make}; git add -f n");
    let done = world.run(&["--name", "again", "--no-check"], &again);
    done.expect_code(8).says("and 1997 more");
    assert_eq!(world.git(["status", "--porcelain"]), "");
    assert_eq!(world.read("n/7.log"), "other\n");
}

/// A directory becomes a file although it holds many, and the other way.
#[test]
fn a_large_directory_becomes_a_file_and_a_file_a_large_directory() {
    let world = World::new();
    let many = "for i in $(seq 300); do echo $i > d/$i; done";
    world.sh(&format!("mkdir d; {many}; echo x > d-not; echo x > d.txt"));
    world.commit("a directory");
    one(&world, "rm -r d; echo file > d; rm d.txt; mkdir d.txt; echo y > d.txt/y", true);
    assert_eq!(world.read("d"), "file\n");
    one(&world, &format!("rm d; mkdir d; {many}"), true);
    // What is not tracked in it stays, and so does everything else.
    world.write("d/mine.log", "mine\n");
    let done = world.run(&["--check", "./ci"], "rm -r d; echo file > d");
    done.expect_code(8).says("a path is in the way").says("`d/mine.log` (not tracked)");
    assert_eq!(world.read("d/mine.log"), "mine\n");
    assert_eq!(world.read("d/300"), "300\n");
}

/// A sparse file of many sizes of a buffer: neither the one that is in the repository nor
/// the one that the task writes is ever held.
fn large_file(mib: u32) -> Peaks {
    let world = World::new();
    world.sh(&format!("truncate -s {mib}M large"));
    world.commit("a large file");
    let script = format!("truncate -s {mib}M other; echo end >> other; echo end >> large");
    let (done, peaks) =
        watched(&mut world.dam_command(["run", "--check", "./ci", "--", "sh", "-c", &script]));
    done.expect_code(0);
    for name in ["other", "large"] {
        let size = (u64::from(mib) << 20) + 4;
        assert_eq!(world.git(["cat-file", "-s", &format!("main:{name}")]), size.to_string());
    }
    assert_eq!(world.git(["status", "--porcelain"]), "");
    left_nothing(&world);
    peaks
}

#[test]
fn a_large_file_in_the_repository_takes_no_more_memory() {
    bounded(&large_file(1), &large_file(50));
}

#[test]
#[ignore = "writes files of two gigabytes"]
fn files_of_two_gigabytes() {
    bounded(&large_file(1), &large_file(2048));
}

/// A file of lines that all change: the patch is twice its size.
#[test]
fn a_large_patch_and_much_output_pass_through() {
    let world = World::new();
    let lines = |text: &str| format!("yes '{text}' | head -n 1000000");
    world.sh(&format!("{} > lines", lines("a line of some length, as they are")));
    world.commit("lines");
    let script = format!("{0} > lines; {0}; {0} >&2", lines("another line of some length"));
    let mut command = world.dam_command(["run", "--no-check", "--name", "t", "--", "sh", "-c"]);
    let (done, peaks) = watched(command.arg(&script));
    done.expect_code(0);
    assert!(peaks["dam"] < MOST / 4, "{peaks:?}");
    // Of the log, the middle is cut out, and half of it was said as errors.
    for (args, least) in [(["diff", "t"], 60_000_000), (["log", "t"], 15_000_000)] {
        let (done, peaks) = watched(&mut world.dam_command(args));
        done.expect_code(0);
        assert!(done.stdout.len() > least, "{}", done.stdout.len());
        assert!(peaks["dam"] < MOST / 4, "{args:?}: {peaks:?}");
    }
    // Whoever has seen enough need not read on.
    world.sh(&format!("'{}' diff t | head -n 3 | grep -q '^---'", dam_binary().display()));
}

/// A path that no git can check out is refused by name; an ignored one is nobody's
/// business, and either can be removed.
#[test]
fn paths_longer_than_the_kernel_takes() {
    let deep = |top: &str| {
        format!(
            "python3 -c 'import os\nos.mkdir(\"{top}\"); os.chdir(\"{top}\")\n\
             for i in range(300): os.mkdir(\"a-directory-name-of-25-by\"); os.chdir(\"a-directory-name-of-25-by\")\n\
             open(\"end\", \"w\").write(\"end\")'"
        )
    };
    for level in levels() {
        let mut world = World::new();
        world.at_level(level);
        let done = world.run(&["--name", "t", "--no-check"], &deep("deep"));
        done.expect_code(1).says("is a path longer than 4095 bytes");
        world.dam(["drop", "t"]).expect_code(0);
        left_nothing(&world);
        let script = format!("{}; echo x >> a.txt", deep("deep.log"));
        world.run(&["--check", "./ci"], &script).expect_code(0).says("1 changed");
        left_nothing(&world);
    }
}

/// What was read of a task that is refused at its end is not kept.
#[test]
fn what_was_harvested_before_a_refusal_is_not_kept() {
    let world = World::new();
    let script = "head -c 20000000 /dev/urandom > large; ln -s /etc/passwd z";
    let done = world.run(&["--name", "t", "--no-check"], script);
    done.expect_code(1).says("`z` is a symlink that points outside");
    let held = world.sh("find ../state/store ! -type d -size +1000k");
    assert_eq!(held, "");
    world.dam(["drop", "t"]).expect_code(0);
    left_nothing(&world);
}

/// Each step that can take long says so when it begins, and on a terminal once it has
/// taken more than a second.
#[test]
fn steps_that_can_take_long_are_told() {
    let world = World::new();
    let script = "echo x >> a.txt; mkdir d; echo d > d/d";
    let done =
        world.dam(["--format", "jsonl", "run", "--check", "./ci", "--", "sh", "-c", script].iter());
    done.expect_code(0);
    let events = done.stdout.lines().filter_map(|line| {
        let event: serde_json::Value = serde_json::from_str(line).ok()?;
        (event["event"] == "progress").then(|| event["step"].as_str().expect("text").to_owned())
    });
    let mut steps: Vec<String> = events.collect();
    steps.dedup();
    let all = [
        "harvesting",
        "putting it on the tip",
        "making the files of the check",
        "checking",
        "landing",
    ];
    assert_eq!(steps, all);

    let terminal =
        "import os, pty, sys\nsys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
    let mut command = world.command("python3");
    command.env("TERM", "xterm").args(["-c", terminal]).arg(dam_binary());
    command.args(["run", "--check", "sleep 2", "--", "sh", "-c", "echo x >> a.txt"]);
    let done = Done::from(command.output().expect("python3"));
    done.expect_code(0);
    assert!(done.stdout.contains("checking"), "{}", done.stdout);
    assert!(!done.stdout.contains("harvesting"), "{}", done.stdout);
}

/// Most that publishing over files may take, in KiB.
const FILES: u64 = 50 << 10;

fn published(world: &World, args: &[&str]) -> Done {
    let mut command = world.dam_command(args);
    command.current_dir(world.dir());
    let (done, peaks) = watched(&mut command);
    assert!(peaks.values().all(|peak| *peak <= FILES), "{peaks:?} KiB");
    done
}

/// A directory with so many files, a hundred in each of its own.
fn many(world: &World, files: u32) {
    let script = format!(
        "mkdir many; cd many; for d in $(seq {}); do mkdir $d; \
         for f in $(seq 100); do echo $d $f > $d/$f; done; done",
        files / 100
    );
    world.sh_in(world.dir(), &script);
}

fn replaced(files: u32) {
    let world = World::empty();
    many(&world, files);
    let script = "echo new > 3/3; rm 4/4";
    published(&world, &["run", "--dir", "many", "--no-check", "--", "sh", "-c", script])
        .expect_code(0)
        .says("1 changed, 1 deleted");
    let count = world.sh_in(world.dir(), "find many -type f | wc -l; cat many/3/3");
    assert_eq!(count, format!("{}\nnew", files - 1));
}

fn sparse(size: &str, bytes: u64) {
    let world = World::empty();
    let to = format!("--output=big={}", world.dir().join("big").display());
    let script = format!("truncate -s {size} big");
    published(&world, &["run", "--scratch", "--no-check", &to, "--", "sh", "-c", &script])
        .expect_code(0);
    let meta = world.dir().join("big").metadata().expect("stat");
    let blocks = std::os::unix::fs::MetadataExt::blocks(&meta);
    assert!(meta.len() == bytes && blocks < 64, "{} bytes in {blocks} blocks", meta.len());
}

#[test]
fn a_patch_of_a_thousand_files() {
    let world = World::empty();
    many(&world, 1000);
    let script = "for d in *; do for f in $d/*; do echo new > $f; done; done";
    let patch = ["run", "--dir", "many", "--publish=patch", "--no-check", "--"];
    published(&world, &[&patch[..], &["sh", "-c", script]].concat())
        .expect_code(0)
        .says("1000 paths of");
    assert_eq!(world.sh_in(world.dir(), "cat many/*/* | sort -u"), "new");
}

#[test]
fn a_directory_of_ten_thousand_files_is_replaced() {
    replaced(10_000);
}

#[test]
fn a_sparse_file_stays_one() {
    sparse("256M", 256 << 20);
}

#[test]
#[ignore = "takes minutes"]
fn a_directory_of_200_000_files_is_replaced() {
    replaced(200_000);
}

#[test]
#[ignore = "takes minutes"]
fn a_sparse_file_of_5_gigabytes_stays_one() {
    sparse("5G", 5 << 30);
}

//! What a task may use: enforced on whatever rung there is here.

use std::time::{Duration, Instant};

use crate::support::{Done, World, dam_binary, is_root};

const ONE_GIGABYTE: &str = "python3 -c 'x = bytearray(10**9); import time; time.sleep(60)'";
const EIGHT_CHILDREN: &str = "python3 -c '
import os, time
for n in range(8):
    if os.fork() == 0:
        x = bytearray(50 << 20)
        time.sleep(60)
time.sleep(60)'";

fn rung_of(world: &World, task: &str, limit: &str) -> String {
    let task = world.task(task);
    let limits = task["isolation"]["limits"].as_array().expect("limits");
    let found = limits.iter().find(|found| found["name"] == limit).expect("the limit");
    found["rung"].as_str().expect("rung").to_owned()
}

/// Whether control groups of version 1 can be made here.
fn has_groups() -> bool {
    is_root() && std::path::Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists()
}

#[test]
fn too_much_memory_ends_a_task_at_once() {
    for (name, script) in [("one", ONE_GIGABYTE), ("eight", EIGHT_CHILDREN)] {
        let world = World::new();
        let begun = Instant::now();
        let done = world.run(&["--name", name, "--memory", "200MiB"], script);
        done.expect_code(1).says("memory limit: it used more than 200.0 MiB");
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        assert_eq!(world.state_of(name), "failed");
        let rung = rung_of(&world, name, "memory");
        assert!(if has_groups() { rung.starts_with("cgroup") } else { !rung.is_empty() }, "{rung}");
        // A file system in memory is memory.
        let script = "head -c 300M /dev/zero > /dev/shm/x; sleep 60";
        world
            .run(&["--name", "shm", "--memory", "200MiB"], script)
            .expect_code(1)
            .says("memory limit");
    }
}

#[test]
fn memory_that_is_shared_is_counted_once() {
    let world = World::new();
    let script = "python3 -c '
import os, time
x = bytearray(100 << 20)
children = []
for n in range(6):
    pid = os.fork()
    if pid == 0:
        time.sleep(1)
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
'";
    world.run(&["--no-check", "--memory", "250MiB"], script).expect_code(0);
}

#[test]
fn a_limit_that_the_kernel_does_not_enforce_can_be_refused() {
    let world = World::new();
    let done = world.run(&["--memory", "1GiB", "--require", "memory", "--no-check"], "true");
    if has_groups() {
        done.expect_code(0).says("memory 1.0 GiB (cgroup-v");
    } else if done.code == Some(6) {
        done.says("can't be enforced by the kernel here: there is only `accounting`");
        assert_eq!(world.dam(["list"]).stdout.matches("failed").count(), 1);
    }
    let done = world.run(&["--require", "memory", "--no-check"], "true");
    done.expect_code(6).says("can't be enforced by the kernel here: it was not set");
    world.run(&["--require", "pids", "--no-check"], "true").expect_code(0);
}

/// A command that makes processes, each of which sleeps for so long, up to 200 or
/// until it may not; `then` is what follows.
fn forks(seconds: u32, then: &str) -> String {
    format!(
        "python3 -c '
import os, time
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            time.sleep({seconds})
            os._exit(0)
        made += 1
except BlockingIOError:
{then}
'"
    )
}

#[test]
fn processes_are_counted_for_each_task_alone() {
    let world = World::new();
    let script = forks(2, "    pass\nprint(\"made\", made)") + " > made; cat made";
    let children: Vec<_> = (0..2)
        .map(|n| {
            let name = format!("t{n}");
            let mut command = world.dam_command(["run", "--no-check", "--no-land", "--pids", "20"]);
            command.args(["--name", &name, "--", "sh", "-c", &script]);
            command.stdout(std::process::Stdio::piped()).spawn().expect("dam")
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().expect("wait");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let made: u32 = said.trim().strip_prefix("made ").expect("said").parse().expect("number");
        assert!((10..20).contains(&made), "{said}");
    }
    assert_eq!(rung_of(&world, "t0", "pids"), "rlimit");
    // A nested namespace is no way out.
    let script = forks(1, "    raise SystemExit(0)\nraise SystemExit(1)");
    let script = format!("unshare -r {script}");
    world.run(&["--no-check", "--nested", "--pids", "30"], &script).expect_code(0);
}

#[test]
fn processors_are_limited() {
    let world = World::new();
    let done = world.run(&["--name", "t", "--no-check", "--cpus", "1"], "nproc > a.txt");
    done.expect_code(0).says("cpus 1 (");
    let rung = rung_of(&world, "t", "cpus");
    if rung == "affinity" {
        assert_eq!(world.git(["show", "main:a.txt"]), "1");
    } else {
        assert!(rung.starts_with("cgroup"), "{rung}");
    }
}

#[test]
fn nothing_of_a_limit_is_left_behind() {
    let world = World::new();
    let groups = || {
        let output = std::process::Command::new("find")
            .args(["/sys/fs/cgroup", "-type", "d", "-name", "dam-*"])
            .output()
            .expect("find");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let id = |name: &str| world.task(name)["task"].as_str().expect("id").to_owned();
    let options = ["--memory", "1GiB", "--cpus", "1", "--check", "true"];
    world.run(&[&options[..], &["--name", "t"]].concat(), "echo 1 > a.txt").expect_code(0);
    assert!(!groups().contains(&id("t")));
    // A killed supervisor's groups go with the next command.
    let mut command = world
        .dam_command([&["run", "--name", "k"], &options[..], &["--", "sleep", "600"]].concat());
    let mut task = command.stderr(std::process::Stdio::null()).spawn().expect("dam");
    crate::bed::until("it runs", || {
        world.dam(["--format", "json", "list"]).stdout.contains("running")
    });
    task.kill().expect("kill");
    task.wait().expect("wait");
    world.dam(["list"]).expect_code(0);
    assert!(!groups().contains(&id("k")));
}

#[test]
fn the_repository_can_only_tighten() {
    let world = World::new();
    world.write(
        "cofferdam.toml",
        "[limits]\nmemory = \"200MiB\"\npids = 50\ncpus = 1.5\noutput = \"1MiB\"\n",
    );
    world.commit("limits");
    world.run(&["--name", "t", "--no-check", "--memory", "4GiB"], ONE_GIGABYTE).expect_code(1);
    let limits = &world.task("t")["isolation"]["limits"];
    let values: Vec<_> = (0..3).map(|n| limits[n]["value"].as_str().expect("value")).collect();
    assert_eq!(values, ["200.0 MiB", "1.5", "50"]);
    for (text, words) in [
        ("[limits]\nmemory = 5\n", "`limits.memory` must be text"),
        ("[limits]\nmemory = \"much\"\n", "`limits.memory`: `much` is not a size"),
        ("[limits]\ncpus = 0\n", "`limits.cpus`: `0` is not a number of processors"),
        ("[limits]\npids = 0\n", "`limits.pids` must be a number above 0"),
        ("[limits]\nmemroy = \"1GiB\"\n", "did you mean `limits.memory`?"),
    ] {
        world.write("cofferdam.toml", text);
        world.commit("wrong");
        world.run(&[], "true").expect_code(2).says(words);
    }
    world.run(&["--memory", "much"], "true").expect_code(2).says("`much` is not a size");
}

#[test]
fn of_the_output_no_more_is_kept_than_asked_for() {
    let world = World::new();
    world.run(&["--name", "t", "--no-check", "--log-size", "100KiB"], "seq 1000000").expect_code(0);
    let log = world.dam(["log", "t"]);
    assert!(log.stdout.len() < 200 << 10, "{}", log.stdout.len());
    assert!(log.stdout.starts_with("1\n2\n") && log.stdout.ends_with("1000000\n"));
}

/// What lies below a directory, in bytes on disk.
fn on_disk(dir: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    crate::bed::walk(dir, &mut |_, meta| bytes += meta.blocks() * 512);
    bytes
}

#[test]
fn too_much_on_disk_ends_a_task_before_it_is_twice_as_much() {
    for script in [
        "for n in 1 2 3 4; do cat /dev/zero > f$n & cat /dev/zero > /tmp/f$n & done; sleep 60",
        "fallocate -l 10G big; cat /dev/zero > small; sleep 60",
        // Where the owner can't look.
        "mkdir d; chmod 300 d; for n in 1 2 3 4; do cat /dev/zero > d/$n & done; sleep 60",
        "mkdir -p ~/deep/a; for n in 1 2 3 4; do cat /dev/zero > ~/deep/a/$n & done; sleep 60",
    ] {
        let world = World::new();
        let mut command = world.dam_command(["run", "--name", "t", "--disk", "100MiB", "--"]);
        let mut task = command
            .args(["sh", "-c", script])
            .stderr(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("dam");
        let tasks = world.state().join("contexts/tasks");
        let mut most = 0;
        while task.try_wait().expect("wait").is_none() {
            most = most.max(on_disk(&tasks));
            std::thread::sleep(Duration::from_millis(5));
        }
        let done = crate::support::Done::from(task.wait_with_output().expect("dam"));
        done.expect_code(1).says("disk limit: it had more than 100.0 MiB on disk");
        assert!(most < 200 << 20, "{} MiB: {script}", most >> 20);
        assert_eq!(world.state_of("t"), "failed");
    }
}

/// `dam run` of a task that writes `x`, under a limit of the shell's.
fn under(world: &World, ulimit: &str, script: &str) -> Done {
    let mut command = world.command("sh");
    command.args(["-c", &format!("ulimit {ulimit}; exec \"$0\" \"$@\"")]).arg(dam_binary());
    command.args(["run", "--no-check", "--", "sh", "-c", script]);
    Done::from(command.output().expect("sh"))
}

#[test]
fn without_a_thread_nothing_runs_and_the_limit_is_named() {
    let world = World::new();
    world.run(&["--name", "early", "--no-land", "--no-check"], "echo x > x").expect_code(8);
    // No thread can have so large a stack.
    let without = |args: &[&str]| {
        let mut command = world.dam_command(args);
        Done::from(command.env("RUST_MIN_STACK", (1u64 << 60).to_string()).output().expect("dam"))
    };
    without(&["run", "--name", "t", "--no-check", "--", "sh", "-c", "echo y > y"])
        .expect_code(9)
        .says("a thread can't be started")
        .says("ulimit -u");
    assert_eq!(world.state_of("t"), "failed");
    assert!(!world.path("y").exists());
    // Less comfort, and nothing else.
    without(&["drop", "early"]).expect_code(0);
    assert!(!world.state().join("contexts/early").exists());
}

#[test]
fn a_limit_on_the_size_of_files_is_named_and_ends_nobody() {
    let world = World::new();
    under(&world, "-f 40", "echo x > x").expect_code(9).says("`ulimit -f`");
    assert!(!world.path("x").exists());
    // With enough of it all goes on, and inside it means what it does everywhere.
    under(&world, "-f 20000", "echo x > x").expect_code(0);
    assert_eq!(world.read("x"), "x\n");
    let script = "head -c 20M /dev/zero > big; echo $? > how";
    under(&world, "-f 20000", script).expect_code(0);
    assert_eq!(world.read("how"), "153\n");
}

//! The table in `docs/design/signals.md`, row by row.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::bed::{processes_of, until, walk};
use crate::support::{Done, World};

/// A `dam` at work, in a process group of its own as a shell makes one.
struct Job<'a> {
    world: &'a World,
    child: Child,
}

impl<'a> Job<'a> {
    fn start(world: &'a World, options: &[&str], script: &str) -> Job<'a> {
        Job::with(world, options, script, None)
    }

    fn with(world: &'a World, options: &[&str], script: &str, failpoint: Option<&str>) -> Job<'a> {
        let own = ["run", "--name", "t"];
        let mut run = world.attended_command([&own, options, &["--", "sh", "-c", script]].concat());
        if let Some(failpoint) = failpoint {
            run.env("COFFERDAM_FAILPOINT", failpoint);
        }
        let to = |name: &str| File::create(world.dir().join(name)).expect("create");
        run.stdout(to("stdout")).stderr(to("stderr")).process_group(0);
        Job { world, child: run.spawn().expect("dam") }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits until the task has written a file of this name.
    fn wrote(&self, name: &str) {
        until(&format!("the task wrote {name}"), || wrote(self.world, name));
    }

    /// Waits until it has stopped itself.
    fn stopped(&self) {
        let stat = format!("/proc/{}/stat", self.child.id());
        until("it stopped", || {
            std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "))
        });
    }

    fn key(&self) {
        kill_process_group(self.pid(), Signal::INT).expect("kill");
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("kill");
    }

    #[track_caller]
    fn ends(mut self, code: i32, state: &str, says: &str) {
        let status = self.child.wait().expect("wait");
        let read = |name: &str| {
            let bytes = std::fs::read(self.world.dir().join(name)).expect("read");
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let done = Done { code: status.code(), stdout: read("stdout"), stderr: read("stderr") };
        done.expect_code(code).says(says);
        let alive = processes_of(self.world.dir());
        assert!(alive.is_empty(), "{alive:?}");
        assert_eq!(self.world.state_of("t"), state);
    }
}

fn wrote(world: &World, name: &str) -> bool {
    let mut found = false;
    walk(&world.state(), &mut |path, _| found |= path.ends_with(PathBuf::from("upper").join(name)));
    found
}

/// Ends when it is asked, having said goodbye.
const POLITE: &str = "trap 'touch bye; exit 0' TERM; touch begun; while :; do sleep 0.02; done";
/// Does not end when it is asked.
const STUBBORN: &str = "trap 'touch asked' TERM; touch begun; while :; do sleep 0.02; done";

#[test]
fn one_ctrl_c_asks_and_the_work_is_kept() {
    let world = World::new();
    let job = Job::start(&world, &["--no-check"], POLITE);
    job.wrote("begun");
    job.key();
    job.ends(130, "cancelled", "interrupted");
    assert!(wrote(&world, "bye"), "it was not asked");
    assert!(world.dam(["diff", "t"]).expect_code(0).stdout.contains("b/begun"));
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

#[test]
fn two_ctrl_c_insist() {
    let world = World::new();
    let job = Job::start(&world, &["--no-check"], STUBBORN);
    job.wrote("begun");
    job.key();
    job.wrote("asked");
    job.key();
    job.ends(130, "cancelled", "interrupted");
}

#[test]
fn sigterm_and_sighup_ask_as_ctrl_c_does() {
    for signal in [Signal::TERM, Signal::HUP] {
        let world = World::new();
        let job = Job::start(&world, &["--no-check"], POLITE);
        job.wrote("begun");
        job.signal(signal);
        job.ends(130, "cancelled", "interrupted");
        assert!(wrote(&world, "bye"), "it was not asked");
    }
}

#[test]
fn ctrl_c_just_before_the_command_starts_is_not_lost() {
    for place in ["ledger:running:after", "run:named"] {
        let world = World::new();
        let job = Job::with(&world, &["--no-check"], POLITE, Some(&format!("{place}=stop")));
        job.stopped();
        job.key();
        job.signal(Signal::CONT);
        job.ends(130, "cancelled", "interrupted");
    }
}

#[test]
fn ctrl_c_while_waiting_to_land_changes_nothing() {
    let world = World::new();
    world.run(&["--name", "second", "--no-land"], "echo 2 > two.txt").expect_code(8);
    let first =
        Job::with(&world, &["--no-check"], "echo 1 > one.txt", Some("publish:pack:before=stop"));
    first.stopped();
    let errors = world.dir().join("waiting");
    let mut land = world.attended_command(["land", "second", "--no-check"]);
    land.stderr(File::create(&errors).expect("create")).process_group(0);
    let mut second = land.spawn().expect("dam");
    until("it waits", || std::fs::read_to_string(&errors).expect("read").contains("behind `t`"));
    kill_process_group(Pid::from_child(&second), Signal::INT).expect("kill");
    assert_eq!(second.wait().expect("wait").code(), Some(130));
    assert_eq!(world.state_of("second"), "ready");
    first.signal(Signal::CONT);
    first.ends(0, "landed", "landed");
    world.dam(["land", "second", "--no-check"]).expect_code(0);
}

#[test]
fn ctrl_c_during_a_check_ends_it_and_nothing_lands() {
    let world = World::new();
    let check = format!("cd src; {POLITE}");
    let job = Job::start(&world, &["--check", &check], "echo x > a.txt");
    until("the check runs", || wrote(&world, "src/begun"));
    job.key();
    job.ends(130, "cancelled", "interrupted during its checks");
    assert_eq!(world.read("a.txt"), "hello\n");
    assert!(world.dam(["diff", "t"]).expect_code(0).stdout.contains("+x"));
}

/// The key goes to the whole process group, and to git in it were it there.
#[test]
fn ctrl_c_between_the_command_and_its_landing_lands_nothing() {
    let places = ["ledger:preparing:after", "ledger:harvesting:after", "ledger:verifying:after"];
    for place in places {
        let world = World::new();
        let failpoint = format!("{place}=stop");
        let job = Job::with(&world, &["--no-check"], "echo x > a.txt", Some(&failpoint));
        job.stopped();
        job.key();
        job.signal(Signal::CONT);
        job.ends(130, "cancelled", "interrupted");
        assert_eq!(world.read("a.txt"), "hello\n");
        assert_eq!(world.subjects("main"), ["first"]);
        if place != "ledger:preparing:after" {
            // It was harvested, so it can still be landed.
            world.dam(["land", "t"]).expect_code(0);
            assert_eq!(world.read("a.txt"), "x\n");
        }
    }
}

#[test]
fn a_publication_that_has_begun_is_finished() {
    for place in ["publish:pack:before", "publish:ref:before", "follow:update:before"] {
        let world = World::new();
        let failpoint = format!("{place}=stop");
        let job = Job::with(&world, &["--no-check"], "echo x > a.txt", Some(&failpoint));
        job.stopped();
        job.key();
        job.key();
        job.signal(Signal::CONT);
        job.ends(0, "landed", "landed");
        assert_eq!(world.read("a.txt"), "x\n");
        assert_eq!(world.git(["status", "--porcelain"]), "");
    }
}

/// Git does not get the key either: a Ctrl-C just then would leave its lock behind.
#[test]
fn git_is_not_in_the_terminals_process_group() {
    let world = World::new();
    let dir = world.dir().to_str().expect("utf-8");
    let path = std::env::var("PATH").expect("PATH");
    let real = std::env::split_paths(&path).map(|dir| dir.join("git")).find(|git| git.is_file());
    world.script(
        &format!("{dir}/bin/git"),
        &format!(
            "case \"$*\" in *'dam: land'*) touch {dir}/reached\n\
             while ! [ -e {dir}/go ]; do sleep 0.01; done;; esac\nexec {} \"$@\"",
            real.expect("git").display()
        ),
    );
    let mut run =
        world.dam_command(["run", "--name", "t", "--no-check", "--", "sh", "-c", "echo x > a.txt"]);
    run.env("PATH", format!("{dir}/bin:{path}")).process_group(0);
    let job = Job { world: &world, child: run.stderr(Stdio::null()).spawn().expect("dam") };
    until("git was started", || std::fs::exists(format!("{dir}/reached")).expect("exists"));
    job.key();
    job.key();
    std::fs::write(format!("{dir}/go"), "").expect("go");
    let mut child = job.child;
    assert_eq!(child.wait().expect("wait").code(), Some(0));
    assert_eq!(world.read("a.txt"), "x\n");
}

#[test]
fn a_reader_that_left_is_no_reason_to_stop() {
    for format in ["text", "jsonl"] {
        let world = World::new();
        let script =
            "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i + 1)); done; echo x > a.txt";
        let args = ["--format", format, "run", "--no-check", "--", "sh", "-c", script];
        let mut run = world.dam_command(args);
        let mut child = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("dam");
        drop((child.stdout.take(), child.stderr.take()));
        assert_eq!(child.wait().expect("wait").code(), Some(0), "{format}");
        assert_eq!(world.read("a.txt"), "x\n");
    }
}

#[test]
fn a_daemon_ends_with_its_task() {
    let world = World::new();
    let script = "setsid sh -c 'trap \"\" TERM HUP; touch begun; while :; do sleep 0.02; done' \
                  >/dev/null 2>&1 & while ! [ -e begun ]; do sleep 0.01; done";
    let job = Job::start(&world, &["--no-check"], script);
    job.ends(0, "landed", "left running by the command were ended");
}

#[test]
fn who_ignores_the_clock_is_killed() {
    let world = World::new();
    let job = Job::start(&world, &["--no-check", "--timeout", "1s"], STUBBORN);
    job.wrote("asked");
    // Spares the test the grace.
    job.key();
    job.ends(7, "timed-out", "not done within 1s");
}

#[test]
fn a_gigabyte_of_output_is_bounded_on_disk_and_in_memory() {
    const MIB: u64 = 1 << 20;
    let world = World::new();
    let script = "yes $(head -c 4000 /dev/zero | tr '\\0' x) | head -c 1000000000; echo the end";
    let job = Job::start(&world, &["--no-check"], script);
    let status = format!("/proc/{}/status", job.child.id());
    let mut most = 0;
    while let Ok(text) = std::fs::read_to_string(&status) {
        let Some(line) = text.lines().find(|line| line.starts_with("VmHWM:")) else { break };
        let kib: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("kB");
        most = most.max(kib * 1024);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(most > 0 && most < 64 * MIB, "{most} bytes");
    job.ends(0, "empty", "nothing changed");
    let mut size = 0;
    walk(&world.state(), &mut |path, meta| {
        let name = path.file_name().expect("name").to_string_lossy();
        if name == "log" || name.starts_with("log.") {
            size += meta.len();
        }
    });
    assert!(size > 32 * MIB && size < 65 * MIB, "{size} bytes");
    let log = world.dam(["log", "t"]).stdout;
    assert!(log.ends_with("the end\n"));
}

#[test]
fn a_command_that_is_not_there_is_named() {
    let world = World::new();
    world
        .dam(["run", "--name", "t", "--no-check", "--", "no-such-command"])
        .expect_code(1)
        .says("`no-such-command` was not found");
    assert_eq!(world.state_of("t"), "failed");
}

#[test]
fn stop_ends_a_task_and_wait_tells_how_it_ended() {
    let world = World::new();
    let job = Job::start(&world, &["--no-check"], POLITE);
    job.wrote("begun");
    let mut wait = world.dam_command(["wait", "t"]);
    let wait = wait.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("dam");
    world.dam(["stop", "t"]).expect_code(0).says("cancelled");
    Done::from(wait.wait_with_output().expect("wait")).expect_code(130).says("cancelled");
    job.ends(130, "cancelled", "interrupted");
    // Of one that has ended, both only tell.
    world.dam(["stop", "t"]).expect_code(0);
    world.dam(["wait", "t"]).expect_code(130);
}

#[test]
fn a_signal_that_dam_was_started_with_as_ignored_stays_ignored() {
    let world = World::new();
    let mut nohup = world.dam_command(["run", "--name", "t", "--no-check", "--", "sh", "-c"]);
    nohup.arg("touch begun; sleep 1; echo x > a.txt; rm begun");
    let mut command = std::process::Command::new("env");
    command.arg("--ignore-signal=HUP").arg(nohup.get_program()).args(nohup.get_args());
    command.envs(nohup.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let mut child = command.current_dir(&world.repo).stderr(Stdio::null()).spawn().expect("dam");
    until("it has begun", || wrote(&world, "begun"));
    kill_process(Pid::from_child(&child), Signal::HUP).expect("kill");
    assert!(child.wait().expect("wait").success());
    assert_eq!(world.read("a.txt"), "x\n");
}

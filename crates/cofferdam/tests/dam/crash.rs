//! SIGKILL at every failpoint, and what is left of it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use crate::bed::{Bed, Target, for_each, kill_at, processes_of, until, visits, walk};
use crate::support::World;

/// Each failpoint that a landing visits.
fn places(target: Target) -> Vec<String> {
    let bed = Bed::new(target);
    let places = visits(bed.run_command(), bed.world.dir());
    assert_eq!(bed.assert_sound().as_deref(), Some("landed"), "{places:?}");
    places
}

/// Those of its publication: what comes before is the same for every target.
fn publishing(target: Target) -> Vec<String> {
    let places = places(target);
    let first = places.iter().position(|place| place == "ledger:publishing:before@1");
    let last = places.iter().position(|place| place == "ledger:landed:after@1");
    places[first.expect("publishing")..=last.expect("landed")].to_vec()
}

fn killed_at_every_place(target: Target, places: Vec<String>) {
    for_each(places, |place| {
        let bed = Bed::new(target);
        kill_at(bed.run_command(), place);
        bed.assert_recovers();
    });
}

#[test]
fn killed_at_every_step_of_a_landing_on_a_checked_out_branch() {
    let places = places(Target::CheckedOut);
    for state in
        ["queued", "preparing", "running", "harvesting", "verifying", "publishing", "landed"]
    {
        for side in ["before", "after"] {
            let place = format!("ledger:{state}:{side}@1");
            assert!(places.contains(&place), "{place} is not in {places:?}");
        }
    }
    for state in ["intent", "committed"] {
        for side in ["before", "after"] {
            let place = format!("publication:{state}:{side}@1");
            assert!(places.contains(&place), "{place} is not in {places:?}");
        }
    }
    killed_at_every_place(Target::CheckedOut, places);
}

#[test]
fn killed_at_every_step_of_a_landing_on_a_new_branch() {
    killed_at_every_place(Target::NewBranch, publishing(Target::NewBranch));
}

#[test]
fn killed_at_every_step_of_a_landing_on_a_branch_that_is_not_checked_out() {
    killed_at_every_place(Target::OtherBranch, publishing(Target::OtherBranch));
}

#[test]
fn killed_at_every_step_of_a_landing_on_a_remote() {
    killed_at_every_place(Target::Remote, publishing(Target::Remote));
}

/// Where a landing is killed so that recovery has something to do.
const HALFWAY: [&str; 7] = [
    "follow:draft:after@1",
    "publication:intent:after@1",
    "follow:lock:after@1",
    "publish:ref:after@1",
    "follow:update:after@1",
    "follow:index:renamed@1",
    "ledger:landed:before@1",
];

#[test]
fn recovery_is_killed_at_every_step_too() {
    let pairs = Mutex::new(Vec::new());
    for_each(HALFWAY.map(str::to_owned).to_vec(), |first| {
        let bed = Bed::new(Target::CheckedOut);
        kill_at(bed.run_command(), first);
        let places = visits(bed.world.dam_command(["list"]), bed.world.dir());
        bed.assert_recovers();
        let mut pairs = pairs.lock().expect("pairs");
        pairs.extend(places.into_iter().map(|place| format!("{first} {place}")));
    });
    let pairs = pairs.into_inner().expect("pairs");
    assert!(pairs.len() > 40, "{pairs:?}");
    for_each(pairs, |pair| {
        let (first, second) = pair.split_once(' ').expect("two");
        let bed = Bed::new(Target::CheckedOut);
        kill_at(bed.run_with(&["--no-check"]), first);
        kill_at(bed.world.dam_command(["list"]), second);
        bed.assert_recovers();
    });
}

#[test]
fn collection_is_killed_at_every_step_too() {
    let bed = Bed::new(Target::CheckedOut);
    kill_at(bed.run_command(), "ledger:landed:after@1");
    let places = visits(bed.world.dam_command(["gc"]), bed.world.dir());
    assert!(places.iter().any(|place| place.starts_with("settle:upper")), "{places:?}");
    for_each(places, |place| {
        let bed = Bed::new(Target::CheckedOut);
        kill_at(bed.run_with(&["--no-check"]), "ledger:landed:after@1");
        kill_at(bed.world.dam_command(["gc"]), place);
        bed.assert_recovers();
    });
}

#[test]
fn both_worktrees_of_a_branch_follow_after_a_crash() {
    let world = World::new();
    let other = world.dir().join("other");
    let other = other.to_str().expect("utf-8");
    world.git(["worktree", "add", "--quiet", "--force", other, "main"]);
    let run = || world.dam_command(["run", "--no-check", "--", "sh", "-c", "echo x > a.txt"]);
    kill_at(run(), "publish:ref:after");
    // The first has followed, the second has not.
    kill_at(world.dam_command(["list"]), "follow:draft:before@2");
    kill_at(world.dam_command(["list"]), "follow:index:renamed@2");
    world.dam(["list"]).expect_code(0);
    for dir in [".", other] {
        assert_eq!(world.git(["-C", dir, "status", "--porcelain"]), "", "{dir}");
        assert_eq!(world.git(["-C", dir, "show", ":a.txt"]), "x");
    }
    assert_eq!(std::fs::read_to_string(format!("{other}/a.txt")).expect("read"), "x\n");
}

#[test]
fn a_checkout_without_links_or_modes_follows_after_a_crash() {
    let world = World::new();
    let land = |script: &str| world.dam_command(["run", "--no-check", "--", "sh", "-ec", script]);
    world.sh("git config core.fileMode false; git config core.symlinks false; chmod 644 ci");
    world.run(&["--no-check"], "ln -s a.txt link; ln -s a.txt gone").expect_code(0);
    kill_at(land("ln -sf ci link; rm gone; ln -s ci new; echo '#' >> ci"), "publish:ref:after");
    let recovered = world.dam(["list"]);
    recovered.expect_code(0);
    assert!(!recovered.stderr.contains("left alone"), "{}", recovered.stderr);
    assert_eq!(world.git(["status", "--porcelain"]), "");
    assert_eq!((world.read("link").as_str(), world.read("new").as_str()), ("ci", "ci"));
    assert!(world.read("ci").ends_with("#\n") && !world.path("gone").exists());
}

/// A git that was started before its supervisor was killed goes on, and can still
/// move the branch when recovery looks where it is.
#[test]
fn a_git_that_outlives_its_supervisor_is_waited_for() {
    let bed = Bed::new(Target::CheckedOut);
    let dir = bed.world.dir().to_str().expect("utf-8");
    let wait = format!("touch {dir}/reached; while ! [ -e {dir}/go ]; do sleep 0.01; done");
    let path = git_wrapper(&bed, &wait);
    let mut supervisor = bed.run_command().env("PATH", path).spawn().expect("dam");
    until("git was started", || std::fs::exists(format!("{dir}/reached")).expect("exists"));
    supervisor.kill().expect("kill");
    supervisor.wait().expect("wait");
    assert_eq!(bed.receipt().expect("receipt")["state"], "publishing");
    std::fs::write(format!("{dir}/go"), "").expect("go");
    until("it was settled", || bed.receipt().expect("receipt")["state"] != "publishing");
    assert_eq!(bed.assert_sound().as_deref(), Some("landed"));
    bed.assert_recovers();
}

const WRITERS: usize = 30;

/// A command with many writers, each of which can be told by the directory's name.
fn writers(dir: &Path) -> String {
    format!(
        "dir={}; i=0; while [ $i -lt {WRITERS} ]; do \
         (while :; do echo x >> w$i; done) & i=$((i + 1)); done; wait",
        dir.display()
    )
}

fn killed_among_writers(bed: &Bed, mut run: Command) {
    let mut supervisor = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("dam");
    until("all write", || {
        let mut written = BTreeSet::new();
        walk(&bed.world.state(), &mut |path, meta| {
            let name = path.file_name().expect("name").to_string_lossy().into_owned();
            let own = name.strip_prefix('w').is_some_and(|rest| rest.parse::<usize>().is_ok());
            if own && meta.len() > 0 && path.parent().is_some_and(|dir| dir.ends_with("upper")) {
                written.insert(name);
            }
        });
        written.len() == WRITERS
    });
    supervisor.kill().expect("kill");
    // Not reaped yet: a dead supervisor may well be a zombie when somebody looks. Until
    // its last thread is gone it holds its lock, and the task counts as supervised.
    until("it was settled", || {
        let receipt = bed.receipt().expect("receipt");
        !["running", "verifying"].contains(&receipt["state"].as_str().expect("state"))
    });
    let alive: Vec<String> = processes_of(bed.world.dir());
    assert!(alive.is_empty(), "{alive:?}");
    supervisor.wait().expect("wait");
}

#[test]
fn no_writer_is_alive_when_a_killed_supervisors_task_was_settled() {
    let bed = Bed::new(Target::CheckedOut);
    let script = writers(bed.world.dir());
    let run = ["run", "--name", "t", "--no-check", "--", "sh", "-c", &script];
    killed_among_writers(&bed, bed.world.dam_command(run));
    assert_eq!(bed.assert_sound().as_deref(), Some("failed"));
    // What they wrote is still there.
    assert!(bed.world.dam(["diff", "t"]).expect_code(0).stdout.contains("b/w29"));
}

#[test]
fn no_writer_is_alive_when_a_supervisor_is_killed_during_a_check() {
    let bed = Bed::new(Target::CheckedOut);
    let script = writers(bed.world.dir());
    killed_among_writers(&bed, bed.run_with(&["--check", &script]));
    assert_eq!(bed.assert_sound().as_deref(), Some("ready"));
    bed.world.dam(["drop", "t"]).expect_code(0);
}

/// Where the parent-death signal is late: whoever is named in a context is ended
/// before its task is settled, and nobody else who has its number by now.
#[test]
fn who_is_named_in_a_dead_tasks_context_is_ended_first() {
    let stat = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("boot");
    for (later, ended) in [(0, true), (1, false)] {
        let bed = Bed::new(Target::CheckedOut);
        kill_at(bed.run_command(), "run:named");
        let mut sleeper = Command::new("sleep").arg("1000").spawn().expect("sleep");
        let stat = stat(sleeper.id());
        let start = stat.rsplit_once(')').expect("stat").1.split_whitespace().nth(19);
        let start: u64 = start.and_then(|ticks| ticks.parse().ok()).expect("ticks");
        let name = serde_json::json!({
            "pid": sleeper.id(), "start_ticks": start + later, "boot_id": boot.trim(),
        });
        let mut written = false;
        walk(&bed.world.state(), &mut |path, _| {
            if path.ends_with("ns") {
                std::fs::write(path, name.to_string()).expect("write");
                written = true;
            }
        });
        assert!(written);
        bed.world.dam(["list"]).expect_code(0);
        let gone = sleeper.try_wait().expect("wait").is_some();
        let _ = sleeper.kill();
        sleeper.wait().expect("wait");
        assert_eq!(gone, ended);
        assert_eq!(bed.assert_sound().as_deref(), Some("failed"));
    }
}

/// Every step of a publication fails with every error: the target is untouched or
/// wholly changed, what went wrong is said, and the work can be landed.
#[test]
fn errors_at_every_step_of_a_publication_lose_nothing() {
    const ERRORS: [&str; 4] = ["enospc", "eio", "einval", "erofs"];
    let all = places(Target::CheckedOut);
    let of_publication = |place: &&String| {
        ["publish:p", "publish:ref", "follow:", "publication:"]
            .iter()
            .any(|prefix| place.starts_with(prefix) && !place.starts_with("publish:pin"))
    };
    let cases: Vec<String> = all
        .iter()
        .filter(of_publication)
        .enumerate()
        .map(|(number, place)| format!("{place}={}", ERRORS[number % 4]))
        .collect();
    assert!(cases.len() > 20, "{cases:?}");
    for_each(cases, |case| {
        let bed = Bed::new(Target::CheckedOut);
        let done = bed.run_with(&["--no-check"]).env("COFFERDAM_FAILPOINT", case).output();
        let done = crate::support::Done::from(done.expect("dam"));
        let place = case.split('@').next().expect("place");
        // The path is the ledger's there, whose own errors name it.
        let named = done.stderr.contains(bed.world.repo.to_str().expect("utf-8"))
            || done.stderr.contains(place)
            || place.starts_with("publication:");
        let committed = bed.tip().as_deref() != Some(&bed.old);
        // Mended at once where it can be: then it has landed, and says so.
        if done.code == Some(0) {
            assert!(committed);
            assert_eq!(bed.assert_sound().as_deref(), Some("landed"));
            return;
        }
        assert!(matches!(done.code, Some(8 | 70)), "{done:?}");
        assert!(named, "where is not said: {}", done.stderr);
        let said = match case.rsplit('=').next() {
            Some("enospc") => "No space left",
            Some("eio") => "Input/output error",
            Some("einval") => "Invalid argument",
            _ => "Read-only file system",
        };
        assert!(done.stderr.contains(said), "why is not said: {}", done.stderr);
        bed.assert_recovers();
    });
}

/// git was killed when it had moved the branch already: the landing goes on.
#[test]
fn a_git_that_dies_after_it_moved_the_branch_has_moved_it() {
    let bed = Bed::new(Target::CheckedOut);
    let path = git_wrapper(&bed, "{real} \"$@\"; kill -9 $$");
    let done = bed.run_command().env("PATH", path).output().expect("dam");
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(bed.assert_sound().as_deref(), Some("landed"));
    bed.assert_recovers();
}

/// A PATH with a git that does `then` instead when it is to move the target.
fn git_wrapper(bed: &Bed, then: &str) -> String {
    let path = std::env::var("PATH").expect("PATH");
    let real = std::env::split_paths(&path).map(|dir| dir.join("git")).find(|git| git.is_file());
    let real = real.expect("git");
    let real = real.to_str().expect("utf-8");
    let dir = bed.world.dir().join("bin");
    std::fs::create_dir(&dir).expect("bin");
    let then = then.replace("{real}", real);
    let script = format!("case \"$*\" in *'dam: land'*) {then};; esac\nexec {real} \"$@\"");
    let dir = dir.to_str().expect("utf-8");
    bed.world.script(&format!("{dir}/git"), &script);
    format!("{dir}:{path}")
}

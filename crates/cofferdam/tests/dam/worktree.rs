//! Level `worktree`: a checkout of its own, walled by Landlock where there is one.
//!
//! As root the level is refused, and that is all there is to see.

use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::bed::{processes_of, until, walk};
use crate::support::{World, fingerprint, is_root};

/// A world whose tasks run at this level; none for root, for whom it is refused.
#[track_caller]
fn world() -> Option<World> {
    let mut world = World::new();
    world.at_level("worktree");
    if !is_root() {
        return Some(world);
    }
    let done = world.run(&["--no-check"], "echo 2 > a.txt");
    done.expect_code(6).says("level `worktree` can't be had here").says("no task may be root");
    assert_eq!(world.read("a.txt"), "hello\n");
    None
}

/// Whether the kernel here has Landlock.
fn has_landlock(world: &World) -> bool {
    let done = world.dam(["doctor"]);
    done.stdout.lines().any(|line| line.contains("Landlock: ABI"))
}

#[test]
fn a_change_lands_and_the_checkout_goes() {
    let Some(world) = world() else { return };
    let script = "pwd; git log --format=%s; git status --porcelain; cd src
        rm b.txt; echo new > c.txt; cd ..; echo 2 >> a.txt; chmod +x a.txt; ln -s a.txt link";
    let done = world.run(&["--name", "t", "--check", "./ci"], script);
    done.expect_code(0).says("worktree: own files in ").says("your network, processes and home");
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert!(lines[0].starts_with(world.state().to_str().expect("utf-8")), "{lines:?}");
    assert_eq!(lines[1..], ["first"], "its status is clean: {}", done.stderr);
    let paths = world.git(["show", "--format=", "--name-status", "HEAD"]);
    assert_eq!(paths, "M\ta.txt\nA\tlink\nD\tsrc/b.txt\nA\tsrc/c.txt");
    assert!(world.path("link").is_symlink() && !world.path("src/b.txt").exists());
    assert_eq!(world.git(["status", "--porcelain"]), "");
    let isolation = &world.task("t")["isolation"];
    assert_eq!((&isolation["level"], &isolation["network"]), (&"worktree".into(), &"open".into()));
    assert!(!std::path::Path::new(lines[0]).exists());
}

#[test]
fn nothing_changed_and_everything_deleted_are_told_apart() {
    let Some(world) = world() else { return };
    world.run(&["--name", "nothing", "--no-check"], "touch a.txt").expect_code(0);
    assert_eq!(world.state_of("nothing"), "empty");
    world.run(&["--no-check"], "rm -r * .gitignore").expect_code(0);
    assert_eq!(world.git(["ls-files"]), "");
}

#[test]
fn doctor_finds_that_it_can_be_had() {
    let Some(world) = world() else { return };
    let done = world.dam(["doctor"]);
    assert!(done.stdout.contains("ok       level `worktree`: a program ran"), "{}", done.stdout);
}

#[test]
fn no_limit_of_another_process_can_be_set() {
    let Some(world) = world() else { return };
    let script = "python3 -c '
import os, resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))
    print(\"limited\")
except PermissionError:
    print(\"kept away\")'";
    let done = world.run(&["--no-check"], script);
    assert_eq!(done.expect_code(0).stdout, "kept away\n");
}

#[test]
fn it_writes_in_its_context_and_nowhere_else() {
    let Some(world) = world() else { return };
    if !has_landlock(&world) {
        let done = world.run(&["--no-check"], "true");
        done.expect_code(0).says("nothing keeps it from writing elsewhere");
        return;
    }
    world.write("../home/.profile", "mine\n");
    // A context of another task, and a layer.
    world.run(&["--name", "other", "--keep"], "echo other > a.txt; exit 1").expect_code(1);
    let before = (fingerprint(&world.repo), fingerprint(&world.home()));
    let layers = fingerprint(&world.state().join("contexts/layers"));
    let script = format!(
        "set -- {repo}/a.txt {repo}/new {repo}/.git/config {repo}/.git/hooks/pre-commit \
         {repo}/.git/refs/heads/x {home}/.profile {home}/.bashrc {state}/ledger.db \
         {state}/contexts/tasks/*/upper/../evil {state}/contexts/layers/*/tree/a.txt \
         $DAM_CONTEXT $DAM_CONTEXT/../log /tmp/dam-out-$$ /var/tmp/dam-out-$$ /dev/shm/dam-out-$$
         for path; do
             if ( : >> \"$path\" ) 2>/dev/null; then echo \"wrote $path\"; fi
             if rm \"$path\" 2>/dev/null; then echo \"removed $path\"; fi
         done
         git -C {repo} commit --allow-empty -m evil 2>/dev/null && echo committed
         kill -0 $PPID 2>/dev/null && kill $PPID
         echo 1 > $TMPDIR/x; echo 2 > $XDG_CACHE_HOME/x; echo said > $DAM_MESSAGE; echo 3 > a.txt",
        repo = world.repo.display(),
        home = world.home().display(),
        state = world.state().display(),
    );
    let done = world.run(&["--name", "t", "--no-check"], &script);
    done.expect_code(0).says(": it can write no file elsewhere");
    assert_eq!(done.stdout, "");
    assert_eq!(world.subjects("main"), ["said", "first"]);
    world.git(["reset", "--quiet", "--hard", "HEAD~1"]);
    world.git(["reflog", "expire", "--expire=now", "--all"]);
    assert_eq!(fingerprint(&world.home()), before.1);
    assert_eq!(fingerprint(&world.state().join("contexts/layers")), layers);
    assert_eq!(world.git(["status", "--porcelain"]), "");
    assert_eq!(world.dam(["diff", "other"]).stdout.matches("+other").count(), 1);
}

#[test]
fn what_it_could_not_write_is_named() {
    let Some(world) = world() else { return };
    if has_landlock(&world) {
        let path = world.home().join("x");
        let done = world.run(&[], &format!("touch {}", path.display()));
        let because = format!("because: `{}` lies outside of the task's checkout", path.display());
        done.expect_code(1).says(&because).says("write below the checkout");
    }
}

#[test]
fn refs_stash_and_configuration_are_its_own() {
    let Some(world) = world() else { return };
    let look = || {
        let told = world.git(["for-each-ref"]) + &world.git(["stash", "list"]);
        told + &world.read(".git/config") + &world.read(".git/logs/HEAD")
    };
    let before = look();
    let script = "echo 2 > a.txt; git stash -q; git branch mine; git config user.name Eve
        git tag v1; git commit -q --allow-empty -m x; exit 1";
    world.run(&["--name", "t", "--no-check"], script).expect_code(1);
    world.dam(["drop", "t"]).expect_code(0);
    assert_eq!(look(), before);
}

#[test]
fn a_check_has_a_checkout_of_its_own() {
    let Some(world) = world() else { return };
    world.script(
        "ci",
        "pwd; test ! -e built; touch built; git log -1 --format=%s; ! grep -q bad a.txt",
    );
    world.commit("ci");
    let script = "touch built; echo '*.o' >> .gitignore; touch x.o; echo built >> .gitignore; pwd";
    let check = "test ! -e x.o && ./ci";
    let done = world.run(&["--name", "t", "--check", check, "--check", "./ci"], script);
    done.expect_code(0);
    world.run(&["--name", "u", "--check", "./ci"], "echo bad > a.txt").expect_code(3);
    let told = world.dam(["log", "u", "--check", "1"]);
    assert!(!told.stdout.contains(done.stdout.trim()), "{}", told.stdout);
    assert!(told.stdout.contains("sh -c"), "{}", told.stdout);
}

#[test]
fn what_it_can_t_keep_is_refused() {
    let Some(world) = world() else { return };
    for option in [
        &["--net", "none"][..],
        &["--input", "/etc/hostname:/srv/name"],
        &["--read-only"],
        &["--pids", "10"],
    ] {
        world.run(option, "true").expect_code(2).says("can't be had at level `worktree`");
    }
    world.dam(["doctor"]).expect_code(0);
    world.write("cofferdam.toml", "[limits]\npids = 10\n");
    world.commit("limits");
    world.run(&[], "true").expect_code(2).says("a limit on processes can't be had");
    world.write("cofferdam.toml", "[network]\ntask = \"none\"\n");
    world.commit("network");
    world.run(&[], "true").expect_code(2).says("to be without a network can't be had");
    world.run(&["--net", "open"], "true").expect_code(0);
    world.write("cofferdam.toml", "[task]\nlevel = \"sandbox\"\n");
    world.commit("level");
    world.run(&[], "true").expect_code(2).says("asks for level `sandbox` at least");
}

#[test]
fn landlock_can_be_required() {
    let mut world = World::new();
    let done = world.run(&["--no-check", "--require", "landlock", "--nested"], "true");
    done.expect_code(6).says("Landlock does not stand here");
    if has_landlock(&world) {
        world.run(&["--no-check", "--require", "landlock"], "true").expect_code(0);
        if !is_root() {
            world.at_level("worktree");
            world.run(&["--no-check", "--require", "landlock"], "true").expect_code(0);
        }
    }
}

#[test]
fn files_are_carried_and_attempts_go_on_in_the_checkout() {
    let Some(world) = world() else { return };
    world.write(".env", "secret\n");
    let script = "grep -q secret .env || exit 1
        test -n \"$DAM_FEEDBACK\" && grep -q '`./ci` failed' \"$DAM_FEEDBACK\" && echo good > a.txt && exit
        echo bad > a.txt";
    let options = ["--name", "t", "--carry", ".env", "--check", "./ci", "--attempts", "2"];
    world.run(&options, script).expect_code(0);
    assert_eq!(world.read("a.txt"), "good\n");
    assert_eq!(world.git(["ls-files", ".env"]), "");
    world.run(
        &["--name", "u", "--no-check"],
        "echo 1 >> a.txt; test -e go || { touch go; exit 1; }",
    );
    world.dam(["retry", "u"]).expect_code(0);
    assert_eq!(world.read("a.txt"), "good\n1\n1\n");
}

#[test]
fn limits_are_counted() {
    let Some(world) = world() else { return };
    let eight = "python3 -c '
import os, time
for n in range(8):
    if os.fork() == 0:
        x = bytearray(50 << 20)
        os.setsid()
        time.sleep(60)
time.sleep(60)'";
    let done = world.run(&["--name", "t", "--memory", "200MiB"], eight);
    done.expect_code(1).says("memory limit: it used more than 200.0 MiB");
    let done = world.run(&["--disk", "50MiB"], "head -c 200M /dev/zero > $TMPDIR/x; sleep 60");
    done.expect_code(1);
    assert_eq!(processes_of(world.dir()), [] as [String; 0]);
}

/// A task that has started processes in sessions of their own and waits.
fn start(world: &World, options: &[&str]) -> Child {
    let script = "setsid sleep 600 & (setsid sh -c 'sleep 601 & sleep 602' &)
        trap '' TERM; touch begun; while :; do sleep 0.05; done";
    let own = ["run", "--level", "worktree", "--name", "t", "--no-check"];
    let mut run = world.attended_command([&own, options, &["--", "sh", "-c", script]].concat());
    run.stdout(Stdio::null()).stderr(Stdio::null());
    let child = run.spawn().expect("dam");
    until("it began", || {
        let mut found = false;
        walk(&world.state(), &mut |path, _| found |= path.ends_with("upper/begun"));
        found
    });
    child
}

#[track_caller]
fn nobody_is_left(world: &World) {
    let mut alive = Vec::new();
    until("everybody ended", || {
        alive = processes_of(world.dir());
        alive.is_empty()
    });
    assert_eq!(alive, [] as [String; 0]);
}

#[test]
fn processes_that_left_their_session_end_with_the_command() {
    let Some(world) = world() else { return };
    let script =
        "(setsid sleep 600 &); setsid sh -c 'sleep 601 & sleep 602' & sleep 0.2; echo 2 > a.txt";
    let done = world.run(&["--no-check"], script);
    done.expect_code(0).says("processes left running by the command were ended");
    assert_eq!(processes_of(world.dir()), [] as [String; 0]);
}

#[test]
fn all_processes_end_when_time_is_up_or_a_person_insists() {
    let Some(world) = world() else { return };
    let mut child = start(&world, &["--timeout", "1s"]);
    // Asked, then killed after the grace; a second wish is not waited for.
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::TERM).and_then(|()| kill_process(pid, Signal::TERM)).expect("kill");
    child.wait().expect("wait");
    assert_eq!(processes_of(world.dir()), [] as [String; 0]);
    assert!(matches!(world.state_of("t").as_str(), "cancelled" | "timed-out"));
}

#[test]
fn all_processes_end_with_their_supervisor() {
    let Some(world) = world() else { return };
    let mut child = start(&world, &[]);
    child.kill().and_then(|()| child.wait()).expect("kill");
    nobody_is_left(&world);
    assert_eq!(world.state_of("t"), "failed");
    assert!(world.dam(["diff", "t"]).expect_code(0).stdout.contains("b/begun"));
}

#[test]
fn processes_are_known_by_their_mark_when_their_first_one_was_killed() {
    let Some(world) = world() else { return };
    let mut child = start(&world, &[]);
    let mut first = None;
    walk(&world.state(), &mut |path, _| {
        if path.ends_with("ns") && path.parent().is_some_and(|dir| dir.join("upper").is_dir()) {
            first = Some(path.to_owned());
        }
    });
    let name = std::fs::read(first.expect("who it is")).expect("read");
    let name: serde_json::Value = serde_json::from_slice(&name).expect("json");
    let pid = i32::try_from(name["pid"].as_i64().expect("pid")).expect("pid");
    kill_process(Pid::from_raw(pid).expect("pid"), Signal::KILL).expect("kill");
    child.wait().expect("wait");
    assert_eq!(processes_of(world.dir()), [] as [String; 0]);
    assert_eq!(world.state_of("t"), "failed");
}

#[test]
fn a_context_is_dropped_and_collected() {
    let Some(world) = world() else { return };
    world.run(&["--name", "t"], "echo 2 > a.txt; exit 1").expect_code(1);
    let shown = world.dam(["show", "t"]).stdout;
    let line = shown.lines().find(|line| line.trim().starts_with("checkout")).expect("where it is");
    let top = std::path::PathBuf::from(line.split_whitespace().nth(1).expect("a path"));
    assert_eq!(std::fs::read_to_string(top.join("a.txt")).expect("read"), "2\n");
    world.dam(["drop", "t"]).expect_code(0);
    assert!(!top.exists());
    world.dam(["gc"]).expect_code(0);
}

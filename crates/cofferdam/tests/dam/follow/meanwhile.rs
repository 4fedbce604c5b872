//! What a person does while a check runs.

use std::path::PathBuf;
use std::process::{Child, Stdio};

use crate::support::{Done, World};

/// Passes once the host has put `go` into its private `/tmp`.
const CHECK: &str = "echo > /tmp/started; until test -e /tmp/go; do sleep 0.02; done";

fn tmp_of_check(world: &World) -> Option<PathBuf> {
    let tasks = std::fs::read_dir(world.state().join("contexts/tasks")).ok()?;
    tasks
        .filter_map(Result::ok)
        .map(|task| task.path().join("checks/0/tmp"))
        .find(|tmp| tmp.join("started").exists() && !tmp.join("go").exists())
}

/// Runs a task; `meanwhile` is done when its check stands still for the first
/// time. Gives how it ended and how often the check ran.
fn run(world: &World, script: &str, meanwhile: impl FnOnce()) -> (Done, u32) {
    let mut child: Child = world
        .dam_command(["run", "--name", "t", "--check", CHECK, "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("dam");
    let mut meanwhile = Some(meanwhile);
    let mut runs = 0;
    while child.try_wait().expect("wait").is_none() {
        if let Some(tmp) = tmp_of_check(world) {
            if runs == 0
                && let Some(meanwhile) = meanwhile.take()
            {
                meanwhile();
            }
            // Gone when the check was over before it was looked at.
            runs += u32::from(std::fs::write(tmp.join("go"), "").is_ok());
        }
        std::thread::yield_now();
    }
    (Done::from(child.wait_with_output().expect("dam")), runs)
}

#[test]
fn a_commit_of_the_persons_is_verified_again_together() {
    let world = World::new();
    let (done, runs) = run(&world, "echo theirs > a.txt", || {
        world.sh("echo mine > src/b.txt; git commit -qam mine");
    });
    done.expect_code(0);
    assert_eq!(runs, 2);
    assert_eq!(world.subjects("main").len(), 3);
    assert_eq!(world.subjects("main")[1], "mine");
    assert_eq!(world.read("a.txt"), "theirs\n");
    assert_eq!(world.read("src/b.txt"), "mine\n");
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

#[test]
fn a_commit_that_conflicts_stays_alone() {
    let world = World::new();
    let (done, runs) = run(&world, "echo theirs > a.txt", || {
        world.sh("echo mine > a.txt; git commit -qam mine");
    });
    done.expect_code(4).says("`a.txt`");
    assert_eq!(runs, 1);
    assert_eq!(world.subjects("main"), ["mine", "first"]);
    assert_eq!(world.read("a.txt"), "mine\n");
}

#[test]
fn a_change_in_the_checkout_is_waited_for() {
    let world = World::new();
    let (done, _) = run(&world, "echo theirs > a.txt", || world.write("a.txt", "mine\n"));
    done.expect_code(8).says("a.txt");
    assert_eq!(world.read("a.txt"), "mine\n");
    assert_eq!(world.subjects("main"), ["first"]);
}

#[test]
fn a_target_that_is_gone_is_not_made_again() {
    let world = World::new();
    let (done, _) = run(&world, "echo theirs > a.txt", || {
        world.sh("git switch -qc other; git branch -qD main");
    });
    done.expect_code(4).says("`main` does not exist");
    assert_eq!(world.git(["branch", "--format=%(refname:short)"]), "other");
    assert_eq!(world.read("a.txt"), "hello\n");
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

#[test]
fn a_checkout_that_went_elsewhere_is_left_alone() {
    let world = World::new();
    let (done, _) = run(&world, "echo theirs > a.txt", || {
        world.sh("git switch -qc other; echo o > o; git add o; git commit -qm o");
    });
    done.expect_code(0);
    assert_eq!(world.git(["show", "main:a.txt"]), "theirs");
    assert_eq!(world.read("a.txt"), "hello\n");
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

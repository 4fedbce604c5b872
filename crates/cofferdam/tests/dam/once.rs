//! A clock that fires twice: what is asked for under one key is done once.

use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::bed::{kill_at, until};
use crate::support::{Done, World};

/// Appends a line for each time that the command runs: what it writes lands.
const SCRIPT: &str = "echo ran >> a.txt";

fn keyed(world: &World, options: &[&str], script: &str) -> Done {
    let options = [&["--key", "nightly-2026-11-30", "--no-check"], options].concat();
    world.run(&options, script)
}

/// A run under the key `k` that takes some seconds.
fn slow(world: &World, name: &str, seconds: u32) -> Command {
    let script = format!("sleep {seconds}; {SCRIPT}");
    let options = ["run", "--key", "k", "--no-check", "--name", name];
    world.dam_command([&options[..], &["--", "sh", "-c", &script]].concat())
}

/// The first such run; its command runs.
fn running(world: &World, seconds: u32) -> Child {
    let first = slow(world, "first", seconds).stderr(Stdio::null()).spawn().expect("dam");
    until("it runs", || world.dam(["list"]).stdout.contains("running"));
    first
}

/// A second one, which waits behind it, and whether it has said something.
fn waiting(world: &World, seconds: u32) -> (Child, impl Fn(&str) -> bool) {
    let said = world.dir().join("said");
    let to = std::fs::File::create(&said).expect("make");
    let second = slow(world, "second", seconds).stderr(to).spawn().expect("dam");
    let says = move |text: &str| std::fs::read_to_string(&said).expect("read").contains(text);
    until("it waits", || says("behind `first`"));
    (second, says)
}

fn names(world: &World) -> Vec<String> {
    let list = world.dam(["--format", "json", "list"]);
    let tasks: Value = serde_json::from_str(&list.expect_code(0).stdout).expect("JSON");
    let tasks = tasks.as_array().expect("tasks").iter();
    tasks.map(|task| task["name"].as_str().expect("a name").to_owned()).collect()
}

fn times(world: &World) -> usize {
    world.git(["show", "main:a.txt"]).lines().filter(|line| *line == "ran").count()
}

#[test]
fn what_landed_is_told_again_and_not_done_again() {
    let world = World::new();
    keyed(&world, &["--name", "first"], SCRIPT).expect_code(0);
    let tip = world.git(["rev-parse", "main"]);
    let again = keyed(&world, &["--name", "second", "--keep"], SCRIPT);
    again.expect_code(0).says("replayed: `first` was first with the key `nightly-2026-11-30`");
    assert!(again.stderr.contains("landed first"), "{}", again.stderr);
    assert_eq!((world.git(["rev-parse", "main"]), names(&world)), (tip, vec!["first".to_owned()]));
    let mut json = vec!["--format", "json", "run", "--key", "nightly-2026-11-30", "--no-check"];
    json.extend(["--", "sh", "-c", SCRIPT]);
    let told: Value = serde_json::from_str(&world.dam(json).expect_code(0).stdout).expect("JSON");
    assert_eq!((&told["replayed"], &told["name"]), (&Value::Bool(true), &Value::from("first")));
    assert_eq!(told["key"], "nightly-2026-11-30");
    assert!(world.task("first")["replayed"].is_null());
    assert!(world.dam(["show", "first"]).stdout.contains("key         nightly-2026-11-30\n"));
    // Another key is another thing to do.
    world.run(&["--key", "nightly-2026-12-01", "--no-check"], SCRIPT).expect_code(0);
    assert_eq!(times(&world), 2);
}

#[test]
fn of_32_at_once_one_runs() {
    let world = World::new();
    let done: Vec<Done> = std::thread::scope(|scope| {
        let start = || scope.spawn(|| keyed(&world, &[], &format!("sleep 0.3; {SCRIPT}")));
        let threads: Vec<_> = std::iter::repeat_with(start).take(32).collect();
        threads.into_iter().map(|thread| thread.join().expect("run")).collect()
    });
    for done in &done {
        done.expect_code(0);
    }
    let replayed = done.iter().filter(|done| done.stderr.contains("replayed: ")).count();
    assert_eq!((replayed, times(&world), names(&world).len()), (31, 1, 1));
    assert_eq!(world.sh("ls ../state/contexts/tasks").lines().count(), 1);
}

#[test]
fn one_key_is_for_one_request() {
    let world = World::new();
    keyed(&world, &["--name", "first"], SCRIPT).expect_code(0);
    let other = keyed(&world, &[], "echo other > a.txt");
    other.expect_code(2).says("the key `nightly-2026-11-30` is that of `first`");
    other.says("another request needs another key");
    keyed(&world, &["--timeout", "1h"], SCRIPT).expect_code(2);
    assert_eq!((times(&world), names(&world).len()), (1, 1));
    for key in ["", "two\nlines", &"x".repeat(201)] {
        let done = world.run(&["--key", key, "--no-check"], SCRIPT);
        done.expect_code(2).says("a key is text of 1 to 200 bytes in one line");
    }
}

#[test]
fn with_nothing_done_the_key_is_given_back() {
    let world = World::new();
    keyed(&world, &["--name", "first"], "exit 3").expect_code(1);
    // Another request as well: what was wrong has been mended.
    keyed(&world, &["--name", "second"], SCRIPT).expect_code(0);
    assert_eq!(times(&world), 1);
    // The first can't do it again now.
    let late = world.dam(["retry", "first"]);
    late.expect_code(2).says("key `nightly-2026-11-30` is that of `second`");
    assert_eq!(world.state_of("first"), "failed");
}

#[test]
fn a_rejected_run_can_not_land_what_another_did() {
    let world = World::new();
    let run = |name: &str, script: &str| {
        world.run(
            &["--key", "k", "--name", name, "--check", "grep -q good b.txt || test ! -e b.txt"],
            script,
        )
    };
    run("first", "echo bad > b.txt").expect_code(3);
    run("second", "echo good > b.txt").expect_code(0);
    world.dam(["land", "first", "--no-check"]).expect_code(2).says("key `k` is that of `second`");
    assert_eq!(world.git(["show", "main:b.txt"]), "good");
}

#[test]
fn one_that_waits_for_a_person_keeps_its_key_until_it_is_dropped() {
    let world = World::new();
    let run = |name: &str| world.run(&["--key", "k", "--name", name], SCRIPT);
    run("first").expect_code(8);
    run("second").expect_code(8).says("replayed: `first`");
    world.dam(["drop", "first"]).expect_code(0);
    run("third").expect_code(8);
    assert_eq!(names(&world), ["third", "first"]);
    world.dam(["land", "third", "--no-check"]).expect_code(0);
    run("fourth").expect_code(0).says("replayed: `third`");
}

#[test]
fn who_waited_has_the_outcome_whatever_it_is() {
    let world = World::new();
    let command = |options: &[&str]| {
        let script = ["--", "sh", "-c", "exec sleep 60"];
        world.dam_command([&["run", "--key", "k", "--no-check"], options, &script].concat())
    };
    let mut first = command(&["--name", "first"]).stderr(Stdio::null()).spawn().expect("dam");
    until("it runs", || world.dam(["list"]).stdout.contains("running"));
    let impatient = Done::from(command(&["--no-wait"]).output().expect("dam"));
    impatient.expect_code(5).says("`first` is at work for the key `k`");
    let said = world.dir().join("said");
    let mut second = command(&[]);
    let mut second =
        second.stderr(std::fs::File::create(&said).expect("make")).spawn().expect("dam");
    let says = |text: &str| std::fs::read_to_string(&said).expect("read").contains(text);
    until("it waits", || says("waiting for the run for the key `k`, behind `first`"));
    world.dam(["stop", "first"]).expect_code(0);
    first.wait().expect("wait");
    assert_eq!(second.wait().expect("wait").code(), Some(130));
    assert!(says("replayed: `first`"));
    assert_eq!(names(&world), ["first"]);
}

#[test]
fn a_run_that_dies_while_another_waits_is_done_by_that_one() {
    let world = World::new();
    let mut first = running(&world, 2);
    let (mut second, says) = waiting(&world, 2);
    first.kill().expect("kill");
    first.wait().expect("wait");
    assert_eq!(second.wait().expect("wait").code(), Some(0));
    assert!(says("landed second"));
    assert_eq!((times(&world), names(&world)), (1, vec!["second".into(), "first".into()]));
}

/// Who waits hears that the repository is away, and not that the task has been done.
#[test]
fn the_end_of_a_run_that_died_is_not_replayed_because_its_repository_is_away() {
    let world = World::new();
    let mut first = running(&world, 2);
    let (mut second, says) = waiting(&world, 2);
    world.sh("mv .git ../away");
    first.kill().expect("kill");
    first.wait().expect("wait");
    second.wait().expect("wait");
    assert!(!says("replayed"));
    assert!(world.dam(["show", "first"]).stdout.contains("its repository can't be used"));
}

#[test]
fn of_many_who_wait_for_one_that_dies_one_goes_on_and_the_others_have_its_outcome() {
    let world = World::new();
    let mut first = running(&world, 1);
    std::thread::scope(|scope| {
        let wait = |n: usize| {
            let mut command = slow(&world, &format!("t{n}"), 1);
            scope.spawn(move || Done::from(command.output().expect("dam")))
        };
        let waiting: Vec<_> = (0..8).map(wait).collect();
        std::thread::sleep(std::time::Duration::from_millis(300));
        first.kill().expect("kill");
        first.wait().expect("wait");
        for done in waiting {
            let done = done.join().expect("run");
            done.expect_code(0).says("landed t");
        }
    });
    assert_eq!((times(&world), names(&world).len()), (1, 2));
}

#[test]
fn a_dead_run_is_done_by_who_comes_next_and_a_published_one_is_not() {
    for (place, second) in [("run:named", "landed second"), ("publish:ref:after", "landed first")] {
        let world = World::new();
        let first =
            ["run", "--key", "k", "--no-check", "--name", "first", "--", "sh", "-c", SCRIPT];
        kill_at(world.dam_command(first), place);
        let done = world.run(&["--key", "k", "--no-check", "--name", "second"], SCRIPT);
        done.expect_code(0).says(second);
        assert_eq!(times(&world), 1, "{place}");
    }
}

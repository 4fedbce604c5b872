//! What a person reads in the morning.

use serde_json::Value;

use crate::support::{Done, World};

fn json(done: &Done) -> Value {
    done.expect_code(0);
    serde_json::from_str(&done.stdout).expect("JSON")
}

/// A night with one task of each kind.
fn night() -> World {
    let world = World::new();
    world.run(&["--name", "lands", "--no-check"], "echo x >> a.txt").expect_code(0);
    world.script(
        "judge",
        "test ! -e b.txt && exit; echo 'test a ... ok'; echo 'test b ... FAILED'; false",
    );
    world.commit("a check");
    world.run(&["--name", "nope", "--check", "./judge"], "echo y > b.txt").expect_code(3);
    world.run(&["--name", "waits"], "echo z > c.txt").expect_code(8);
    world.run(&["--name", "breaks"], "echo 'error: no disk'; exit 3").expect_code(1);
    world.run(&["--name", "idle"], "true").expect_code(0);
    world
}

#[test]
fn what_came_of_the_night_is_on_one_page() {
    let world = night();
    let page = world.dam(["report"]);
    page.expect_code(0);
    let counts = "1 waits for you, 1 rejected, 1 failed, 1 landed, 1 changed nothing";
    assert!(page.stdout.lines().any(|line| line == counts), "{}", page.stdout);
    let landed = world.task("lands")["landed"].as_str().expect("a commit")[..9].to_owned();
    for wanted in [
        "check `./judge` failed",
        "test b ... FAILED",
        "the command ended with exit code 3",
        "error: no disk",
        "`dam diff waits` shows it",
        &format!("main at {landed}, 1 file\n"),
        "on disk: ",
    ] {
        assert!(page.stdout.contains(wanted), "{wanted} is not in {}", page.stdout);
    }
    assert!(!page.stdout.contains("test a ... ok"), "{}", page.stdout);
    assert!(page.stdout.lines().all(|line| line.chars().count() <= 80), "{}", page.stdout);
    let order = ["\nwaits", "\nrejected\n", "\nfailed\n", "\nlanded\n", "\nnothing changed\n"];
    let places: Vec<usize> = order.map(|part| page.stdout.find(part).expect(part)).into();
    assert!(places.is_sorted(), "{}", page.stdout);
}

#[test]
fn a_report_for_a_program_has_receipts() {
    let world = night();
    let report = json(&world.dam(["--format", "json", "report", "--since", "1h"]));
    assert_eq!(report["version"], 1);
    assert_eq!(report["counts"]["landed"], 1);
    let tasks = report["tasks"].as_array().expect("tasks");
    let names: Vec<&str> =
        tasks.iter().map(|task| task["receipt"]["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["idle", "breaks", "waits", "nope", "lands"]);
    assert_eq!(tasks[1]["said"], "error: no disk");
    assert_eq!(tasks[3]["said"], "test b ... FAILED");
    assert_eq!(tasks[3]["receipt"]["exit_code"], 3);
    assert!(report["disk"]["layers_bytes"].as_u64().expect("a number") > 0);
    let lines = world.dam(["--format", "jsonl", "report"]);
    assert_eq!(lines.stdout.lines().count(), 5);
}

#[test]
fn only_what_went_a_step_since_is_told_and_what_is_at_work() {
    let world = night();
    let since = world.sh("sleep 0.01; date --utc --iso-8601=ns");
    let report = || json(&world.dam(["--format", "json", "report", "--since", since.trim()]));
    assert_eq!(report()["tasks"].as_array().map(Vec::len), Some(0));
    assert!(world.dam(["report", "--since", since.trim()]).stdout.contains("\nno task\n"));
    // What is settled later has not gone a step.
    world.dam(["drop", "breaks"]).expect_code(0);
    assert_eq!(report()["tasks"].as_array().map(Vec::len), Some(0));
    world.dam(["land", "waits", "--no-check"]).expect_code(0);
    let after = report();
    assert_eq!(after["counts"], serde_json::json!({ "landed": 1 }));
    assert_eq!(after["tasks"][0]["receipt"]["name"], "waits");
    world.dam(["report", "--since", "soon"]).expect_code(2).says("`--since soon` is no time");
}

//! A loop that starts the same work again and again.

use std::process::{Child, Stdio};

use serde_json::Value;

use super::Desk;
use crate::bed::{kill_at, until};
use crate::support::Done;

/// A run that ends when `go-NAME` is in its context.
fn begin(desk: &Desk, name: &str, options: &[&str], script: &str) -> Child {
    let name_option = format!("--name={name}");
    let all = [&["--no-check", "--series=loop", &name_option], options].concat();
    let script = format!("touch begun-{name}; {script}; until test -e go; do sleep 0.02; done");
    let child = desk.command(&all, &script).stderr(Stdio::piped()).spawn().expect("dam");
    until("it runs", || !context_of(desk, name).is_empty());
    child
}

fn context_of(desk: &Desk, name: &str) -> String {
    let tasks = desk.world.state().join("contexts/tasks");
    desk.world.sh(&format!("ls -d {}/*/upper/begun-{name} 2> /dev/null || true", tasks.display()))
}

fn end(desk: &Desk, name: &str, child: Child) -> Done {
    desk.world.sh(&format!("touch $(dirname {})/go", context_of(desk, name)));
    Done::from(child.wait_with_output().expect("dam"))
}

fn standing(desk: &Desk) -> Value {
    let list = desk.dam(&["--format", "json", "list", "--series"]);
    let all: Value = serde_json::from_str(&list.expect_code(0).stdout).expect("JSON");
    assert_eq!(all.as_array().expect("series").len(), 1, "{all}");
    all[0].clone()
}

fn names(desk: &Desk) -> Vec<String> {
    let list = desk.dam(&["--format", "json", "list"]);
    let tasks: Value = serde_json::from_str(&list.expect_code(0).stdout).expect("JSON");
    let tasks = tasks.as_array().expect("tasks").iter();
    tasks.map(|task| task["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_run_that_would_overlap_does_not_begin() {
    let desk = Desk::new();
    let first = begin(&desk, "first", &[], "true");
    assert_eq!(standing(&desk)["at_work"], "first");
    let second = desk.run(&["--no-check", "--series=loop"], "true");
    second.expect_code(5).says("a run of the series `loop` is at work: `first`");
    second.says("`--overlap wait` waits");
    // Another series is another loop.
    desk.run(&["--no-check", "--series=other"], "true").expect_code(0);
    desk.run(&["--no-check", "--series=loop", "--overlap=allow"], "true").expect_code(0);
    end(&desk, "first", first).expect_code(0);
    desk.run(&["--no-check", "--series=loop"], "true").expect_code(0);
    assert_eq!(names(&desk).len(), 4);
    assert!(names(&desk)[0].starts_with("loop-"));
}

#[test]
fn runs_that_wait_begin_one_after_the_other() {
    let desk = Desk::new();
    let first = begin(&desk, "first", &[], "true");
    let waiting: Vec<Child> = (0..3)
        .map(|_| {
            let options = ["--no-check", "--series=loop", "--overlap=wait"];
            desk.command(&options, "sleep 0.1").stderr(Stdio::piped()).spawn().expect("dam")
        })
        .collect();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(names(&desk), ["first"]);
    end(&desk, "first", first).expect_code(0);
    for child in waiting {
        let done = Done::from(child.wait_with_output().expect("dam"));
        done.expect_code(0).says("waiting for the run of the series `loop`");
    }
    let list = desk.dam(&["--format", "json", "list"]);
    let tasks: Value = serde_json::from_str(&list.expect_code(0).stdout).expect("JSON");
    let tasks = tasks.as_array().expect("tasks");
    assert_eq!(tasks.len(), 4);
    for pair in tasks.windows(2) {
        let (later, earlier) = (&pair[0], &pair[1]);
        assert!(later["created_ms"].as_i64() >= earlier["updated_ms"].as_i64(), "{tasks:?}");
    }
}

#[test]
fn a_series_stops_after_failures_in_a_row_until_a_person_lets_it_go_on() {
    let desk = Desk::new();
    let options = ["--no-check", "--series=loop", "--stop-after=3"];
    let run = |script: &str| desk.run(&options, script);
    run("exit 1").expect_code(1);
    run("exit 1").expect_code(1);
    // One that does its work breaks the row.
    run("true").expect_code(0);
    run("exit 1").expect_code(1);
    run("exit 1").expect_code(1);
    assert_eq!(
        (&standing(&desk)["failures"], &standing(&desk)["stopped"]),
        (&2.into(), &Value::Null)
    );
    let last = run("exit 4");
    last.expect_code(1).says("the series `loop` has stopped: 3 failures in a row");
    for _ in 0..2 {
        let refused = run("true");
        refused
            .expect_code(5)
            .says("the series `loop` has stopped: 3 failures in a row; the last,");
        refused.says("exit code 4").says("`dam resume loop` lets it go on");
    }
    let list = desk.dam(&["list", "--series"]);
    assert!(list.expect_code(0).stdout.contains("stopped"), "{}", list.stdout);
    // So is one that says nothing about it, and so is trying one of them again.
    desk.run(&["--no-check", "--series=loop"], "true").expect_code(5);
    let failed = names(&desk).remove(0);
    desk.dam(&["retry", &failed]).expect_code(5);
    desk.dam(&["resume", "other"]).expect_code(2).says("there is no series `other`");
    desk.dam(&["resume", "loop"]).expect_code(0).says("goes on with its next run");
    run("exit 1").expect_code(1);
    run("true").expect_code(0);
    assert_eq!(standing(&desk)["last_state"], "empty");
}

#[test]
fn a_run_whose_dam_was_killed_holds_nobody_up_and_counts_as_a_failure() {
    let desk = Desk::new();
    let options = ["--no-check", "--series=loop", "--stop-after=1"];
    kill_at(desk.command(&options, "true"), "ledger:running:after");
    desk.run(&options, "true").expect_code(5).says("its supervisor died");
    desk.dam(&["resume", "loop"]).expect_code(0);
    desk.run(&options, "true").expect_code(0);
}

#[test]
fn a_slow_run_never_overwrites_a_later_one() {
    let desk = Desk::new();
    let output = desk.output("r", "out");
    for newer in ["tuesday", "same"] {
        desk.share("out", "same\n");
        let monday = begin(&desk, "monday", &[&output], "echo monday > r");
        let tuesday = ["--no-check", "--series=loop", "--overlap=allow", &output];
        desk.run(&tuesday, &format!("echo {newer} > r")).expect_code(0);
        let late = end(&desk, "monday", monday);
        late.expect_code(4).says("superseded monday").says("of the same series began later");
        assert_eq!(desk.shared("out"), format!("{newer}\n"));
        desk.dam(&["drop", "monday"]).expect_code(0);
    }
    // One that waits for a person is overtaken as well.
    let wednesday = ["--series=loop", "--overlap=allow", "--name=wednesday", &output];
    desk.run(&wednesday, "echo wednesday > r").expect_code(8);
    desk.run(&["--no-check", "--series=loop", &output], "echo thursday > r").expect_code(0);
    desk.dam(&["land", "wednesday", "--no-check"]).expect_code(4).says("superseded");
    assert_eq!(desk.shared("out"), "thursday\n");
}

#[test]
fn a_run_that_says_nothing_of_a_stop_does_not_take_it_away() {
    let desk = Desk::new();
    desk.run(&["--no-check", "--series=loop", "--stop-after=2"], "exit 1").expect_code(1);
    desk.run(&["--no-check", "--series=loop"], "exit 1").expect_code(1);
    desk.run(&["--no-check", "--series=loop"], "true").expect_code(5).says("2 failures in a row");
}

#[test]
fn one_that_minds_nobody_is_minded() {
    let desk = Desk::new();
    let first = begin(&desk, "first", &["--overlap=allow"], "true");
    desk.run(&["--no-check", "--series=loop"], "true").expect_code(5).says("`first`");
    desk.run(&["--no-check", "--series=loop", "--overlap=allow"], "true").expect_code(0);
    end(&desk, "first", first).expect_code(0);
    desk.run(&["--no-check", "--series=loop"], "true").expect_code(0);
}

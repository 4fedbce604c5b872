//! `dam try`: a command on a copy of where one stands.

use super::Desk;
use crate::support::{Done, World};

#[test]
fn what_a_command_would_change_is_shown_and_kept_or_not() {
    let desk = Desk::new();
    desk.put("a.txt", "old\n");
    desk.put("sub/b.txt", "b\n");
    let script = "echo new > a.txt; echo c > sub/c.txt";
    let shown = desk.dam(&["try", "--", "sh", "-c", script]);
    shown.expect_code(8).says("nothing has changed yet").says("keeps it");
    assert!(shown.stdout.contains("--- a/a.txt\n+++ b/a.txt\n"), "{}", shown.stdout);
    assert!(shown.stdout.contains("-old\n+new\n"), "{}", shown.stdout);
    assert!(shown.stdout.contains("+++ b/sub/c.txt\n"), "{}", shown.stdout);
    assert_eq!(std::fs::read_to_string(desk.here.join("a.txt")).expect("read"), "old\n");
    let name = {
        let list = desk.dam(&["--format", "json", "list"]);
        let tasks: serde_json::Value = serde_json::from_str(&list.stdout).expect("JSON");
        tasks[0]["name"].as_str().expect("name").to_owned()
    };
    desk.dam(&["land", &name, "--no-check"]).expect_code(0);
    assert_eq!(std::fs::read_to_string(desk.here.join("a.txt")).expect("read"), "new\n");
    let kept = desk.dam(&["try", "--yes", "--", "sh", "-c", "rm sub/c.txt; echo 2 > a.txt"]);
    kept.expect_code(0).says("landed");
    assert!(!desk.here.join("sub/c.txt").exists());
    desk.dam(&["try", "--", "cat", "a.txt"]).expect_code(0).says("nothing changed");
    desk.dam(&["try", "--", "false"]).expect_code(1);
}

#[test]
fn in_a_dirty_checkout_it_starts_from_what_is_there() {
    let world = World::new();
    world.write("a.txt", "dirty\n");
    world.write("notes", "untracked\n");
    let script =
        "set -e; cat a.txt notes; git status --porcelain; echo more >> a.txt; git add a.txt";
    let mut command = world.dam_command(["try", "--yes", "--", "sh", "-c", script]);
    let done = Done::from(command.current_dir(world.path("src")).output().expect("dam"));
    done.expect_code(1).says("a.txt: No such file");
    let script = script.replace("cat", "cd ..; cat");
    let mut command = world.dam_command(["try", "--yes", "--", "sh", "-c", &script]);
    let done = Done::from(command.current_dir(world.path("src")).output().expect("dam"));
    done.expect_code(0);
    assert!(done.stdout.starts_with("dirty\nuntracked\n"), "{}", done.stdout);
    assert!(!done.stdout.contains(".git/"), "{}", done.stdout);
    assert_eq!(world.read("a.txt"), "dirty\nmore\n");
    // What git has for itself is as it was.
    assert_eq!(world.git(["status", "--porcelain"]), " M a.txt\n?? notes");
}

#[test]
fn a_person_at_a_terminal_is_asked() {
    for (answer, wanted) in [("n", "old\n"), ("y", "new\n")] {
        let desk = Desk::new();
        desk.put("a.txt", "old\n");
        let args = ["try", "--", "sh", "-c", "echo new > a.txt"];
        let done = desk.at_a_terminal(&args, &format!("{answer}\r"));
        done.expect_code(0);
        assert!(done.stdout.contains("keep it?"), "{}", done.stdout);
        assert_eq!(std::fs::read_to_string(desk.here.join("a.txt")).expect("read"), wanted);
    }
}

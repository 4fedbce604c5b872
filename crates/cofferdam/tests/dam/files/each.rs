//! A batch: a task for each row of a file.

use std::process::Stdio;

use serde_json::Value;

use super::Desk;
use crate::bed::until;
use crate::support::Done;

fn batch(desk: &Desk, options: &[&str], command: &[&str]) -> Done {
    let run = ["--format", "json", "run", "--scratch", "--no-check"];
    desk.dam(&[&run, options, &["--"], command].concat())
}

fn states(done: &Done) -> Vec<String> {
    let all: Value = serde_json::from_str(&done.stdout).expect("JSON");
    let state = |row: &Value| row["state"].as_str().unwrap_or("error").to_owned();
    all.as_array().expect("rows").iter().map(state).collect()
}

#[test]
fn a_row_that_fails_stops_no_other_and_the_same_file_again_does_what_is_left() {
    let desk = Desk::new();
    let rows: String =
        (0..10).map(|n| format!("{{\"name\": \"row-{n}\", \"n\": {n}}}\n")).collect();
    desk.put("rows.jsonl", &rows);
    desk.script("one", "test \"$1\" -lt 7 || test -e mended");
    let options = ["--each=rows.jsonl", "--jobs=4", "--input=.:in"];
    let command = ["sh", "-c", "cd in; ./one {n} {name}"];
    let first = batch(&desk, &options, &command);
    first.expect_code(1);
    let wanted = [vec!["empty"; 7], vec!["failed"; 3]].concat();
    assert_eq!(states(&first), wanted);
    desk.put("mended", "");
    let mut again = desk.dam_command(
        &[&["run", "--scratch", "--no-check"][..], &options, &["--"], &command].concat(),
    );
    let again = Done::from(again.output().expect("dam"));
    again.expect_code(0).says("10 rows: 7 empty before, 3 empty");
    let third = batch(&desk, &options, &command);
    assert_eq!(states(third.expect_code(0)), ["empty"; 10]);
    let list = desk.dam(&["--format", "json", "list", "--all"]);
    let tasks: Value = serde_json::from_str(&list.stdout).expect("JSON");
    assert_eq!(tasks.as_array().expect("tasks").len(), 13);
}

#[test]
fn rows_say_arguments_variables_and_keys() {
    let desk = Desk::new();
    let out = |name: &str| desk.shared.join(name).display().to_string();
    let rows = format!(
        "{{\"name\": \"a\", \"to\": \"{}\", \"args\": [\"x y\"], \"env\": {{\"WHO\": \"ann\"}}, \"key\": \"k-a\"}}\n",
        out("a")
    );
    desk.put("rows", &rows);
    let options = ["--each=rows", "--key=monday", "--output=r={to}"];
    batch(&desk, &options, &["sh", "-c", "echo $WHO $0 {to} > r"]).expect_code(0);
    assert_eq!(desk.shared("a"), format!("ann x y {}\n", out("a")));
    assert_eq!(desk.world.task("a")["key"], "monday/k-a");
    // What each row would make anew is refused before any begins.
    desk.put("rows", "b\nc\n");
    let make = ["sh", "-c", "echo {} > r"];
    let same = batch(&desk, &["--each=rows", &desk.output("r", "same")], &make);
    let said = &same.expect_code(2).stdout;
    assert!(said.contains("more than one row would make"), "{said}");
    batch(&desk, &["--each=rows", &desk.output("r", "of-{}")], &make).expect_code(0);
    assert_eq!((desk.shared("of-b"), desk.shared("of-c")), ("b\n".into(), "c\n".into()));
    let lines = "one\ntwo words\n";
    let mut child = desk
        .dam_command(&["run", "--scratch", "--no-check", "--each=-", "--", "echo", "{}"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("dam");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), lines.as_bytes())
        .expect("write");
    let done = Done::from(child.wait_with_output().expect("dam"));
    done.expect_code(0).says("2 rows: 2 empty");
}

#[test]
fn an_interrupt_ends_all_and_begins_no_other() {
    let desk = Desk::new();
    let rows: String = (0..6).map(|n| format!("{n}\n")).collect();
    desk.put("rows", &rows);
    let args = ["run", "--scratch", "--no-check", "--jobs=2", "--each=rows", "--", "sleep", "60{}"];
    let mut command = desk.world.attended_command(args);
    let child = command.current_dir(&desk.here).stderr(Stdio::piped()).spawn().expect("dam");
    let running = || {
        let list = desk.dam(&["--format", "json", "list"]);
        list.stdout.matches("\"state\": \"running\"").count()
    };
    until("two run", || running() == 2);
    desk.world.sh(&format!("kill -INT {}", child.id()));
    let done = Done::from(child.wait_with_output().expect("dam"));
    done.expect_code(130).says("2 cancelled, 4 not begun");
    assert_eq!(running(), 0);
}

#[test]
fn a_file_that_makes_no_sense_begins_nothing() {
    let desk = Desk::new();
    desk.put("rows", "{\"name\": \"a\"}\n{\"name\": \"Not a name\"}\n");
    for (options, why) in [
        (&["--each=rows"][..], "rows:2:"),
        (&["--each=nowhere"], "No such file"),
        (&["--each=rows", "--name=x"], "cannot be used with"),
    ] {
        desk.run(&[&["--no-check"], options].concat(), "true").expect_code(2).says(why);
    }
    let list = desk.dam(&["--format", "json", "list"]);
    assert_eq!(list.stdout.trim(), "[]");
}

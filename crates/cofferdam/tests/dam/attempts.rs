//! Another try in the same context.

use crate::support::World;

const AGENT: &str = "
set -e
echo \"$DAM_ATTEMPT\" >> ~/seen
echo try >> notes
if [ \"$DAM_ATTEMPT\" = 1 ]; then
    test -z \"$DAM_FEEDBACK\"
    echo bad > a.txt
else
    cat \"$DAM_FEEDBACK\"
    echo good > a.txt
fi";

#[test]
fn a_rejected_change_is_mended_in_the_same_context() {
    let world = World::new();
    world.script("ci", "grep bad a.txt && echo 'a.txt is BAD, mend it' && exit 1; exit 0");
    world.commit("ci");
    let done = world.run(&["--name", "t", "--attempts", "3", "--check", "./ci"], AGENT);
    done.expect_code(0).says("attempt 2  check `./ci` failed");
    // What the check had said was there to be read, and files of the first try as well.
    assert!(done.stdout.contains("check `./ci` failed\n\n$ ./ci\nbad\na.txt is BAD, mend it\n"));
    assert_eq!(world.git(["show", "main:notes"]), "try\ntry");
    let task = world.task("t");
    assert_eq!(task["state"], "landed");
    assert_eq!(task["attempt"], 2);
    assert_eq!(task["attempts"], serde_json::json!(["rejected: check `./ci` failed"]));
    assert_eq!(task["checks"].as_array().map(Vec::len), Some(1));
}

#[test]
fn what_a_changed_check_said_is_told_when_checks_ran_twice() {
    let world = World::new();
    let agent = "
        echo tried >> a.txt
        printf '#!/bin/sh\\necho the first says \"$(wc -l < a.txt)\"\\n' > ci
        [ -z \"$DAM_FEEDBACK\" ] || { cat \"$DAM_FEEDBACK\"; exit 0; }
        echo 'echo the changed one says no; exit 1' >> ci";
    let options = ["--name", "t", "--attempts", "2", "--allow-check-changes"];
    let checks = ["--check", "true && ./ci", "--check", "true"];
    let done = world.run(&[&options[..], &checks].concat(), agent);
    done.expect_code(0);
    let said = "\n$ true && ./ci\nthe first says 2\nthe changed one says no\n";
    assert!(done.stdout.contains(said), "{}", done.stdout);
    // Both runs of both are in the receipt, each with what it printed.
    assert_eq!(world.task("t")["checks"].as_array().map(Vec::len), Some(4));
    assert_eq!(world.dam(["log", "t", "--check", "1"]).expect_code(0).stdout, "");
    let log = world.dam(["log", "t", "--check", "3"]);
    assert_eq!(log.expect_code(0).stdout, "the first says 3\n");
}

#[test]
fn attempts_come_to_an_end_and_the_first_that_passes_is_the_last() {
    let world = World::new();
    let script = "echo \"$DAM_ATTEMPT\" > src/b.txt; echo bad > a.txt";
    let options = ["--name", "t", "--attempts", "3", "--check", "./ci"];
    world.run(&options, script).expect_code(3);
    let task = world.task("t");
    assert_eq!((&task["state"], &task["attempt"]), (&"rejected".into(), &3.into()));
    assert_eq!(task["attempts"].as_array().map(Vec::len), Some(2));
    assert!(world.dam(["diff", "t"]).stdout.contains("+3"));
    // One that fails is no reason for another: only a check's word is.
    world.run(&["--name", "u", "--attempts", "3", "--check", "./ci"], "exit 1").expect_code(1);
    assert_eq!(world.task("u")["attempt"], 1);
    world.run(&["--attempts", "0"], "true").expect_code(2);
}

#[test]
fn a_task_goes_on_where_it_was_ended() {
    let world = World::new();
    let script = "echo step >> notes; test -e ~/begun && exit 0; touch ~/begun; exec sleep 600";
    world.run(&["--name", "t", "--timeout", "1s", "--no-check"], script).expect_code(7);
    assert_eq!(world.state_of("t"), "timed-out");
    world.dam(["retry", "t", "--timeout", "1m"]).expect_code(0);
    assert_eq!(world.git(["show", "main:notes"]), "step\nstep");
    let task = world.task("t");
    assert_eq!((&task["state"], &task["attempt"]), (&"landed".into(), &2.into()));
    // Landed is landed.
    world.dam(["retry", "t"]).expect_code(2).says("its context is gone");
    world.dam(["retry", "nobody"]).expect_code(2);
}

#[test]
fn a_rejected_task_can_be_tried_again_by_a_person() {
    let world = World::new();
    world.run(&["--name", "t", "--check", "./ci"], AGENT).expect_code(3);
    let done = world.dam(["retry", "t"]);
    done.expect_code(0);
    assert!(done.stdout.contains("check `./ci` failed"), "{}", done.stdout);
    assert_eq!(world.read("a.txt"), "good\n");
}

#[test]
fn what_an_attempt_that_was_interrupted_left_is_not_taken_for_the_one_before() {
    let world = World::new();
    let script = "test \"$DAM_ATTEMPT\" = 1 || exec sleep 600; echo bad > a.txt";
    let options = ["--name", "t", "--attempts", "2", "--timeout", "2s", "--check", "./ci"];
    world.run(&options, script).expect_code(7);
    // The change set of the first attempt is not there to be landed by mistake.
    world.dam(["land", "t", "--no-check"]).expect_code(2);
    assert_eq!(world.read("a.txt"), "hello\n");
    assert!(world.dam(["diff", "t"]).stdout.contains("+bad"));
}

#[test]
fn variables_whose_values_were_not_kept_are_asked_for() {
    let world = World::new();
    let script = "test \"$TOKEN\" = right && echo \"$TOKEN\" > a.txt";
    let options = ["--name", "t", "--no-check", "--env", "TOKEN=wrong"];
    world.run(&options, script).expect_code(1);
    world.dam(["retry", "t"]).expect_code(2).says("variable `TOKEN`, whose value was not kept");
    world.dam(["retry", "t", "--env", "TOKEN=right"]).expect_code(0);
    assert_eq!(world.read("a.txt"), "right\n");
}

#[test]
fn a_tool_home_is_as_the_attempt_before_left_it() {
    let world = World::new();
    world.write("../home/.cargo/x", "1\n");
    world.run(&["--name", "t", "--no-check"], "echo 2 > ~/.cargo/y; exit 1").expect_code(1);
    // Another one that the person got in between moves none of its files.
    world.write("../home/.bun/z", "3\n");
    world.write("../home/.cache/pip/z", "3\n");
    let mut retry = world.dam_command(["retry", "t"]);
    retry.stdout(std::process::Stdio::null());
    assert_eq!(world.sh("test ! -e ~/.cargo/y; echo ok"), "ok");
    assert_eq!(retry.status().expect("dam").code(), Some(1));
    let task = world.task("t")["task"].as_str().expect("id").to_owned();
    let homes = world.state().join("contexts/tasks").join(task).join("homes");
    let names: Vec<_> = std::fs::read_dir(homes).expect("homes").filter_map(Result::ok).collect();
    let with_y = names.iter().filter(|home| home.path().join("upper/y").exists()).count();
    assert_eq!((names.len(), with_y), (3, 1));
}

#[test]
fn what_an_attempt_left_is_kept_when_the_next_can_not_be_started() {
    let world = World::new();
    // The directory that the command is started in is moved: the next starts at the top.
    let script = "test \"$DAM_ATTEMPT\" = 1 && mv src lib; pwd; echo 8 hours > work.txt; echo bad > a.txt; cd \"$(git rev-parse --show-toplevel)\"; echo bad > a.txt";
    let mut command = world.dam_command([
        "run",
        "--name",
        "t",
        "--attempts",
        "2",
        "--check",
        "./ci",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let output = command.current_dir(world.path("src")).output().expect("dam");
    crate::support::Done::from(output).expect_code(3);
    assert_eq!(world.task("t")["attempt"], 2);
    // Nothing can be started where nobody may enter.
    let script = "echo 8 hours > work.txt; sleep 30 & chmod 600 .; sleep 30";
    world.run(&["--name", "u", "--timeout", "1s", "--check", "./ci"], script).expect_code(7);
    world.dam(["retry", "u"]).expect_code(6);
    assert_eq!(world.state_of("u"), "failed");
    assert!(world.dam(["diff", "u"]).stdout.contains("+8 hours"));
}

#[test]
fn a_check_that_the_target_fails_too_is_a_reason_for_another_attempt() {
    let world = World::new();
    world.script("ci", "test -e feature");
    world.commit("a check for what is to be written");
    let script = "test \"$DAM_ATTEMPT\" = 1 || touch feature; echo x >> a.txt";
    world.run(&["--name", "t", "--attempts", "3", "--check", "./ci"], script).expect_code(0);
    assert_eq!(world.task("t")["attempt"], 2);
}

#[test]
fn who_commits_is_asked_before_a_command_runs_again() {
    let world = World::new();
    world.run(&["--name", "t", "--no-check"], "echo x >> ran; exit 1").expect_code(1);
    world.git(["config", "--unset", "user.email"]);
    world.dam(["retry", "t"]).expect_code(2).says("git does not know who you are");
    assert_eq!(world.state_of("t"), "failed");
    assert_eq!(world.task("t")["attempt"], 1);
}

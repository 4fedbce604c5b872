//! Publishing by a command of the host's.

use super::Desk;
use crate::bed::{kill_at, until};
use crate::support::Done;

/// A host command that keeps what it is given in `pushed`, a line each time that it runs.
fn desk() -> Desk {
    let desk = Desk::new();
    desk.script(
        "push",
        "pwd > \"$DAM_DIR/where\"; cat \"$1\" >> \"$DAM_DIR/pushed\"; \
                         echo \"key $DAM_KEY\" >> \"$DAM_DIR/keys\"",
    );
    desk
}

fn run(desk: &Desk, options: &[&str], script: &str) -> Done {
    let own = ["--publish=command:./push r", "--name=t"];
    desk.run(&[&own, options].concat(), script)
}

fn pushed(desk: &Desk) -> String {
    std::fs::read_to_string(desk.here.join("pushed")).unwrap_or_default()
}

#[test]
fn it_runs_once_on_the_verified_files_after_the_checks() {
    let desk = desk();
    let script = "echo good > r; echo more > other";
    run(&desk, &["--check=grep -q bad r"], script).expect_code(3);
    assert_eq!(pushed(&desk), "");
    desk.dam(&["drop", "t"]);
    let key = ["--key=monday", "--check=grep -q good r"];
    run(&desk, &key, script).expect_code(0).says("`./push r` exit 0");
    run(&desk, &key, script).expect_code(0).says("replayed: `t`");
    assert_eq!(pushed(&desk), "good\n");
    assert_eq!(std::fs::read_to_string(desk.here.join("keys")).expect("keys"), "key monday\n");
    let place = std::fs::read_to_string(desk.here.join("where")).expect("where");
    assert!(place.trim_end().ends_with("/results"), "{place}");
    let task = desk.world.task("t");
    assert_eq!((&task["state"], &task["target"]), (&"landed".into(), &"command: ./push r".into()));
}

#[test]
fn one_that_says_no_can_be_run_again_by_a_person() {
    let desk = desk();
    desk.script("push", "echo 'the sheet is locked'; exit 3");
    let done = run(&desk, &["--no-check"], "echo good > r");
    done.expect_code(8).says("ended with exit code 3").says("the sheet is locked");
    desk.script("push", "cat \"$1\" >> \"$DAM_DIR/pushed\"");
    desk.dam(&["land", "t"]).expect_code(0);
    assert_eq!(pushed(&desk), "good\n");
    let missing = desk.run(&["--no-check", "--publish=command:./nowhere r"], "echo x > r");
    missing.expect_code(8).says("`./nowhere` could not be started");
}

#[test]
fn after_a_crash_it_is_in_doubt_and_never_run_again_by_itself() {
    for place in ["target:command:start", "target:command:ended", "ledger:landed:before"] {
        let desk = desk();
        let options = ["--no-check", "--key=k", "--name=t", "--publish=command:./push r"];
        kill_at(desk.command(&options, "echo good > r"), place);
        let list = desk.dam(&["list"]);
        assert!(list.expect_code(0).stdout.contains("in-doubt"), "{place}: {}", list.stdout);
        let before = pushed(&desk);
        desk.run(&options, "echo good > r").expect_code(8).says("in-doubt t");
        desk.dam(&["land", "t"]).expect_code(2).says("it is never published again");
        desk.dam(&["retry", "t"]).expect_code(2).says("in-doubt");
        desk.dam(&["gc"]).expect_code(0);
        assert_eq!(pushed(&desk), before, "{place}");
        desk.dam(&["drop", "t"]).expect_code(0);
        desk.run(&options, "echo good > r").expect_code(8);
        assert_eq!(pushed(&desk), before, "{place}");
    }
}

#[test]
fn before_it_was_started_nothing_is_in_doubt() {
    for place in ["ledger:publishing:after", "publication:intent:before"] {
        let desk = desk();
        let options = ["--no-check", "--name=t", "--publish=command:./push r"];
        kill_at(desk.command(&options, "echo good > r"), place);
        assert_eq!(desk.world.state_of("t"), "ready", "{place}");
        desk.dam(&["land", "t"]).expect_code(0);
        assert_eq!(pushed(&desk), "good\n");
    }
}

#[test]
fn one_that_may_be_run_again_is_after_a_crash() {
    let desk = desk();
    let options = ["--no-check", "--name=t", "--publish=command:./push r", "--publish-again"];
    kill_at(desk.command(&options, "echo good > r"), "target:command:ended");
    assert_eq!(desk.world.state_of("t"), "ready");
    desk.dam(&["land", "t"]).expect_code(0);
    assert_eq!(pushed(&desk), "good\ngood\n");
}

#[test]
fn while_it_runs_nobody_judges_though_its_dam_was_killed() {
    let desk = desk();
    desk.script(
        "push",
        "touch \"$DAM_DIR/begun\"; until test -e \"$DAM_DIR/go\"; do sleep 0.02; done; \
                         cat \"$1\" > \"$DAM_DIR/pushed\"",
    );
    let options = ["--no-check", "--name=t", "--publish=command:./push r"];
    let mut child = desk.command(&options, "echo good > r").spawn().expect("dam");
    until("it has begun", || desk.here.join("begun").exists());
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert_eq!(desk.world.state_of("t"), "publishing");
    std::fs::write(desk.here.join("go"), "").expect("write");
    until("it has ended", || desk.world.state_of("t") != "publishing");
    assert_eq!(desk.world.state_of("t"), "in-doubt");
    assert_eq!(pushed(&desk), "good\n");
    // One that is killed itself leaves nobody who knows, either.
    let desk = self::desk();
    desk.script("push", "kill -9 $$");
    run(&desk, &["--no-check"], "echo good > r").expect_code(8).says("in-doubt t");
}

#[test]
fn what_it_is_given_has_to_be_there_and_what_it_is_asked_to_make_sense() {
    let desk = desk();
    run(&desk, &["--no-check"], "echo x > other").expect_code(1).says("made nothing that");
    for (publish, why) in [
        ("./push r", "it has to be `command:CMD`, or `patch`"),
        ("command:", "there is no command"),
        ("command:./push 'r", "a quote is not closed"),
    ] {
        let publish = format!("--publish={publish}");
        desk.run(&["--no-check", &publish], "echo x > r").expect_code(2).says(why);
    }
    desk.run(&["--no-check", "--publish=command:./push r", &desk.output("r", "out")], "true")
        .expect_code(2);
}

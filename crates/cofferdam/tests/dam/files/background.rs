//! Runs that nobody sits in front of.

use std::process::Stdio;
use std::time::Instant;

use super::Desk;
use crate::support::Done;

#[test]
fn a_detached_run_goes_on_by_itself_and_can_be_gone_to() {
    let desk = Desk::new();
    let output = desk.output("r", "out");
    let options = ["--detach", "--name=t", "--check=grep -q done r", &output];
    let script =
        "echo begun; until test -e $HOME/go; do sleep 0.02; done; echo done > r; echo ended";
    let began = Instant::now();
    let detached = desk.run(&options, script);
    detached.expect_code(0).says("t runs in the background: `dam attach t`");
    assert!(began.elapsed().as_secs() < 20);
    assert!(["preparing", "running"].contains(&desk.world.state_of("t").as_str()));
    let attached =
        desk.dam_command(&["attach", "t"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let attached = attached.expect("dam");
    desk.world.sh("for dir in ../state/contexts/tasks/*/home; do touch $dir/go; done");
    let attached = Done::from(attached.wait_with_output().expect("dam"));
    attached.expect_code(0).says("landed t");
    assert_eq!(attached.stdout, "begun\nended\n");
    assert_eq!(desk.shared("out"), "done\n");
    desk.dam(&["wait", "t"]).expect_code(0);
    let again = desk.dam(&["attach", "t"]);
    assert_eq!(again.expect_code(0).stdout, "begun\nended\n");
}

#[test]
fn what_is_wrong_with_a_detached_run_is_told_in_front() {
    let desk = Desk::new();
    let missing = desk.run(&["--detach", "--input=nowhere"], "true");
    missing.expect_code(2).says("nowhere").says("No such file");
    let taken = desk.run(&["--no-check", "--name=u", &desk.output("r", "x")], "true");
    taken.expect_code(1);
    desk.run(&["--detach", "--name=u"], "true").expect_code(5);
    let key = ["--detach", "--no-check", "--key=k"];
    desk.run(&key, "true").expect_code(0);
    desk.run(&key, "true").expect_code(0).says("was first with this key");
}

#[test]
fn a_detached_run_is_ended_by_name() {
    let desk = Desk::new();
    desk.run(&["--detach", "--name=t", "--no-check"], "sleep 60").expect_code(0);
    desk.dam(&["stop", "t"]).expect_code(0).says("cancelled t");
    assert_eq!(desk.world.state_of("t"), "cancelled");
}

#[test]
fn a_command_that_is_to_have_a_terminal_gets_one_of_its_own() {
    let desk = Desk::new();
    let none = desk.run(&["--interactive", "--no-check"], "true");
    none.expect_code(2).says("there is no terminal here to sit at");
    let output = desk.output("r", "out");
    let run = ["run", "--scratch", "--interactive", "--no-check", &output, "--"];
    let work = ["sh", "-c", "test -t 0 && test -t 1 && read word && echo $word > r"];
    let done = desk.at_a_terminal(&[&run[..], &work].concat(), "typed\r");
    done.expect_code(0);
    assert_eq!(desk.shared("out"), "typed\n");
}

#[test]
fn a_terminal_in_the_background_is_gone_to_and_left_and_shows_what_was_printed() {
    let desk = Desk::new();
    let output = desk.output("r", "out");
    let options = ["--detach", "--interactive", "--no-check", "--name=t", &output];
    let script = "test -t 0 && echo first; read one; echo got $one; read two; echo $one $two > r";
    desk.run(&options, script).expect_code(0);
    let attach = |keys: &str| desk.at_a_terminal(&["attach", "t"], keys);
    let left = attach("a\r\u{1d}");
    left.expect_code(0);
    assert!(left.stdout.contains("first") && left.stdout.contains("got a"), "{}", left.stdout);
    assert!(left.stdout.contains("`t` goes on"), "{}", left.stdout);
    assert_eq!(desk.world.state_of("t"), "running");
    // Who sits at none sees what was printed, and is not asked anything.
    let seen = desk.dam_command(&["attach", "t"]).stdout(Stdio::piped()).spawn().expect("dam");
    let back = attach("b\r");
    back.expect_code(0);
    assert!(back.stdout.contains("first") && back.stdout.contains("landed"), "{}", back.stdout);
    let seen = Done::from(seen.wait_with_output().expect("dam"));
    assert!(seen.stdout.contains("got a"), "{}", seen.stdout);
    assert_eq!(desk.shared("out"), "a b\n");
    assert_eq!(desk.world.sh("ls ../state/terminals"), "");
}

//! A year of a daily loop with a bad week, by a clock of the test's own.

use serde_json::Value;

use super::Desk;
use crate::support::Done;

const DAY_MS: i64 = 24 * 3600 * 1000;
/// A Monday in 2030.
const BEGIN_MS: i64 = 1_893_456_000_000;

fn on(desk: &Desk, day: i64, args: &[&str]) -> Done {
    let mut command = desk.dam_command(args);
    command.env("COFFERDAM_CLOCK_MS", (BEGIN_MS + day * DAY_MS).to_string());
    Done::from(command.output().expect("dam"))
}

/// How many tasks there are records of, how many directories of tasks, and how many files
/// in the state directory that are not the ledger's.
fn sizes(desk: &Desk, day: i64) -> (usize, usize, usize) {
    let list = on(desk, day, &["--format", "json", "list", "--all"]);
    let tasks: Value = serde_json::from_str(&list.expect_code(0).stdout).expect("JSON");
    let count = |find: &str| desk.world.sh(&format!("cd ../state; {find}")).lines().count();
    (
        tasks.as_array().expect("tasks").len(),
        count("ls contexts/tasks"),
        count("find . -type f ! -name 'ledger.db*'"),
    )
}

#[test]
fn after_a_year_there_is_no_more_than_after_a_quarter() {
    let desk = Desk::new();
    std::fs::create_dir_all(desk.world.home().join(".config/cofferdam")).expect("mkdir");
    let config = "[settle]\nfailed = \"log\"\nrecords = \"30d\"\n";
    std::fs::write(desk.world.home().join(".config/cofferdam/config.toml"), config).expect("write");
    let output = desk.output("r", "out");
    let bad_week = 200..207;
    let mut quarter = None;
    for day in 0..365 {
        let key = format!("--key=day-{day}");
        let run = ["run", "--scratch", "--series=daily", "--stop-after=9", "--overlap=skip"];
        let script =
            if bad_week.contains(&day) { "echo bad > r" } else { "date +%N > r; echo ok >> r" };
        let rest = [&key, &output, "--check=grep -q ok r", "--", "sh", "-c", script];
        let done = on(&desk, day, &[&run[..], &rest].concat());
        done.expect_code(if bad_week.contains(&day) { 3 } else { 0 });
        if day == 90 {
            quarter = Some(sizes(&desk, day));
        }
    }
    let (tasks, dirs, files) = quarter.expect("a quarter");
    assert!(tasks <= 32 && dirs <= 32, "{tasks} tasks, {dirs} directories");
    let year = sizes(&desk, 364);
    assert!(year.0 <= tasks && year.1 <= dirs && year.2 <= files + 2, "{year:?} and {quarter:?}");
    // Nothing of a bad week waits for anybody.
    assert_eq!(desk.world.sh("find ../state/contexts/tasks -name upper -o -name results"), "");
    let list = on(&desk, 364, &["--format", "json", "list", "--series"]);
    let all: Value = serde_json::from_str(&list.stdout).expect("JSON");
    assert_eq!((&all[0]["failures"], &all[0]["stopped"]), (&0.into(), &Value::Null));
}

#[test]
fn what_waits_for_a_person_waits_where_only_logs_of_failures_are_kept() {
    let desk = Desk::new();
    std::fs::create_dir_all(desk.world.home().join(".config/cofferdam")).expect("mkdir");
    let config = desk.world.home().join(".config/cofferdam/config.toml");
    std::fs::write(config, "[settle]\nfailed = \"log\"\n").expect("write");
    let output = desk.output("r", "out");
    desk.run(&["--name=waits", &output], "echo good > r").expect_code(8);
    desk.run(&["--name=kept", "--keep", "--no-check"], "exit 1").expect_code(1);
    desk.run(&["--name=gone", "--no-check"], "exit 1").expect_code(1);
    let kept = |name: &str| desk.world.task(name)["context_kept"] == true;
    assert_eq!((kept("waits"), kept("kept"), kept("gone")), (true, true, false));
    desk.dam(&["gc"]).expect_code(0);
    desk.dam(&["land", "waits", "--no-check"]).expect_code(0);
    assert_eq!(desk.shared("out"), "good\n");
}

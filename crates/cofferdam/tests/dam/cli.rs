//! Arguments, output and exit codes.

use crate::support::{Done, World, source};

#[test]
fn every_command_prints_json() {
    let world = World::new();
    let done = world.dam([
        "--format",
        "json",
        "run",
        "--name",
        "t",
        "--no-check",
        "--",
        "sh",
        "-c",
        "echo noise; echo x > a.txt",
    ]);
    done.expect_code(0);
    let receipt: serde_json::Value =
        serde_json::from_str(&done.stdout).expect("one object, nothing else");
    assert_eq!(receipt["state"], "landed");
    assert_eq!(receipt["version"], 1);
    for args in [
        &["--format", "json", "list"][..],
        &["--format", "json", "show", "t"],
        &["--format", "json", "gc"],
    ] {
        let done = world.dam(args);
        done.expect_code(0);
        serde_json::from_str::<serde_json::Value>(&done.stdout).expect("json");
    }
}

/// A command that the last line of a run proposes, with `./ci` for `CMD`.
#[track_caller]
fn proposed(done: &Done, command: &str) -> Vec<String> {
    let last = done.stderr.lines().last().expect("a line");
    let found = last.split('`').find(|part| part.starts_with(&format!("dam {command} ")));
    let found = found.unwrap_or_else(|| panic!("no `dam {command}` in: {last}"));
    found.replace("CMD", "./ci").split(' ').skip(1).map(str::to_owned).collect()
}

#[test]
fn what_the_last_line_of_a_run_proposes_does_what_it_says() {
    let good = "echo good > a.txt";
    for (options, script, land) in [
        (&[][..], good, "land t --check ./ci"),
        (&["--no-land", "--check", "./ci"], good, "land t"),
        (
            &["--check", "./ci"],
            "echo good > a.txt; echo > conftest.py",
            "land t --allow-check-changes",
        ),
        (&["--check", "./ci; false"], good, "land t --no-check"),
        (&["--check", "./ci"], "echo good > src/b.txt", "land t"),
    ] {
        let world = World::new();
        world.write("src/b.txt", "in the way\n");
        let done = world.run(&[&["--name", "t"], options].concat(), script);
        done.expect_code(8);
        world.dam(proposed(&done, "diff")).expect_code(0);
        assert_eq!(proposed(&done, "land").join(" "), land);
        world.git(["checkout", "--quiet", "src/b.txt"]);
        world.dam(proposed(&done, "land")).expect_code(0);
        assert_eq!(world.state_of("t"), "landed");
    }
    let world = World::new();
    let done = world.run(&["--name", "t", "--check", "./ci"], "echo bad > a.txt");
    let again = world.dam(proposed(done.expect_code(3), "land"));
    world.dam(proposed(again.expect_code(3), "drop")).expect_code(0);
    let done = world.run(&["--name", "t"], "echo printed; echo good > a.txt; exit 1");
    assert_eq!(world.dam(proposed(done.expect_code(1), "log")).stdout, "printed\n");
    assert!(world.dam(proposed(&done, "diff")).stdout.contains("+good"));
    world.dam(proposed(&done, "enter")).expect_code(2).says("there is no terminal here");
    world.dam(proposed(&done, "drop")).expect_code(0);
}

#[test]
fn events_come_as_lines_of_json() {
    let world = World::new();
    let done = world.dam([
        "--format",
        "jsonl",
        "run",
        "--no-check",
        "--",
        "sh",
        "-c",
        "echo hi; echo x > a.txt",
    ]);
    done.expect_code(0);
    let events: Vec<serde_json::Value> =
        done.stdout.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    let kinds: Vec<&str> =
        events.iter().map(|event| event["event"].as_str().expect("event")).collect();
    assert_eq!(kinds.first(), Some(&"started"));
    assert_eq!(kinds.last(), Some(&"ended"));
    assert!(kinds.contains(&"output") && kinds.contains(&"step"), "{kinds:?}");
}

#[test]
fn schemas_in_the_repository_are_those_of_the_program() {
    let dir = source().join("schemas");
    let world = World::empty();
    for name in [
        "receipt", "tasks", "event", "report", "series", "gc", "schedule", "doctor", "trust",
        "setup",
    ] {
        let schema = world.dam(["schema", name]).stdout;
        let path = dir.join(format!("{name}.json"));
        if std::env::var_os("UPDATE_SCHEMAS").is_some() {
            std::fs::write(&path, &schema).expect("write");
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(kept, schema, "`UPDATE_SCHEMAS=1` writes {}", path.display());
    }
}

#[test]
fn wrong_requests_say_what_would_help() {
    let world = World::new();
    world.dam(["run", "--", "true"]).expect_code(0);
    world.dam(["run"]).expect_code(2);
    world
        .dam(["run", "--into", "nowhere", "--", "true"])
        .expect_code(2)
        .says("no branch `nowhere`");
    world.dam(["run", "--base", "nothing", "--", "true"]).expect_code(2).says("`nothing`");
    world.dam(["run", "--name", "No Good", "--", "true"]).expect_code(2);
    world.dam(["run", "--level", "vm", "--", "true"]).expect_code(2).says("the levels are");
    world.dam(["show", "nobody"]).expect_code(2).says("no task `nobody`");
    world.git(["checkout", "--quiet", "--detach"]);
    world.dam(["run", "--", "true"]).expect_code(2).says("--into BRANCH");
}

#[test]
fn a_name_is_free_again_when_its_context_is_gone() {
    let world = World::new();
    world.run(&["--name", "t"], "exit 1").expect_code(1);
    world.run(&["--name", "t"], "true").expect_code(5).says("dam drop t");
    world.dam(["drop", "t"]).expect_code(0);
    world.run(&["--name", "t"], "true").expect_code(0);
}

#[test]
fn the_table_fits_in_eighty_columns() {
    let world = World::new();
    let long = "x".repeat(200);
    world
        .run(&["--name", "a-rather-long-name-for-a-task-to-have"], &format!("echo {long}; exit 1"))
        .expect_code(1);
    let table = world.dam(["list"]).stdout;
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
}

#[test]
fn completion_and_manual_are_generated() {
    let world = World::empty();
    for shell in ["bash", "zsh", "fish"] {
        assert!(world.dam(["completion", shell]).expect_code(0).stdout.contains("dam"));
    }
    assert!(world.dam(["man"]).expect_code(0).stdout.contains(".TH dam"));
}

#[test]
fn doctor_finds_this_machine_usable() {
    let world = World::new();
    let done = world.dam(["--format", "json", "doctor"]);
    done.expect_code(0);
    let report: serde_json::Value = serde_json::from_str(&done.stdout).expect("json");
    assert_eq!(report["usable"], true, "{report}");
}

#[test]
fn setup_does_nothing_unasked_and_says_when_there_is_nothing_to_do() {
    let restricted = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
    let restricted = std::fs::read_to_string(restricted).is_ok_and(|text| text.trim() == "1");
    let profile = std::path::Path::new("/etc/apparmor.d/dam");
    if restricted || profile.exists() {
        // What it says depends on the machine; that it does nothing unasked does not.
        let before = std::fs::read(profile).ok();
        for args in [&["setup"][..], &["setup", "--remove"]] {
            let done = World::empty().dam(args);
            assert!(matches!(done.code, Some(0 | 2 | 6)), "{done:?}");
            assert_eq!(std::fs::read(profile).ok(), before);
        }
        return;
    }
    let world = World::empty();
    for (args, why) in [
        (&["setup"][..], "AppArmor does not restrict user namespaces here"),
        (&["setup", "--yes"], "AppArmor does not restrict user namespaces here"),
        (&["setup", "--remove"], "there is no `/etc/apparmor.d/dam`"),
    ] {
        let done = world.dam(args);
        done.expect_code(0);
        assert_eq!(done.stdout, format!("{why}\nnothing to be done\n"));
        let done = world.dam([&["--format", "json"], args].concat());
        done.expect_code(0);
        let report: serde_json::Value = serde_json::from_str(&done.stdout).expect("json");
        assert_eq!(report["action"], "nothing");
        assert_eq!(report["why"], why);
        assert_eq!(report["done"], false);
        assert_eq!(report["path"], "/etc/apparmor.d/dam");
        assert_eq!(report["error"], serde_json::Value::Null);
        assert!(report["binary"].as_str().is_some_and(|path| path.ends_with("/dam")), "{report}");
        assert!(!profile.exists());
    }
}

#[test]
fn the_demo_keeps_its_promises_and_leaves_nothing() {
    let world = World::empty();
    world.dam(["demo"]).expect_code(0).says("as promised");
    let left: Vec<_> = std::fs::read_dir(world.dir())
        .expect("dir")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("demo"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_a_task_names_cannot_drive_the_terminal() {
    let world = World::new();
    world
        .run(
            &["--name", "esc", "--no-land", "--no-check"],
            "touch \"$(printf 'x\\033]0;owned\\007y')\"",
        )
        .expect_code(8);
    // Colours forced: without them the printing layer would take every escape out.
    let done = world.dam_command(["show", "esc"]).env("CLICOLOR_FORCE", "1").output().expect("dam");
    let shown = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(shown.contains("owned") && shown.contains("\x1b["), "{shown:?}");
    assert!(!shown.contains("\x1b]"), "{shown:?}");
}

#[test]
fn what_was_dropped_can_not_be_landed() {
    let world = World::new();
    world
        .run(&["--name", "gone", "--no-land", "--check", "./ci"], "echo g > gone.txt")
        .expect_code(8);
    world.dam(["drop", "gone"]).expect_code(0);
    world.dam(["land", "gone"]).expect_code(2).says("its context is gone");
    world.dam(["diff", "gone"]).expect_code(2).says("its context is gone");
    assert_eq!(world.subjects("main"), ["first"]);
}

#[test]
fn many_can_look_at_one_task_at_the_same_time() {
    let world = World::new();
    world.run(&["--name", "t", "--no-land", "--check", "./ci"], "echo g > new.txt").expect_code(8);
    let looks: Vec<_> = (0..6)
        .map(|_| {
            let mut command = world.dam_command(["diff", "t"]);
            command.stdout(std::process::Stdio::piped()).spawn().expect("dam")
        })
        .collect();
    for look in looks {
        let output = look.wait_with_output().expect("dam");
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains("+g"));
    }
}

#[test]
fn arguments_that_make_no_sense_are_json_when_asked() {
    let world = World::new();
    for (args, json) in [
        (&["--format", "json", "run", "--nope"][..], true),
        (&["run", "--format=jsonl", "--nope"], true),
        (&["run", "--nope", "--", "--format", "json"], false),
    ] {
        let done = world.dam(args);
        done.expect_code(2);
        if json {
            let report: serde_json::Value = serde_json::from_str(&done.stdout).expect("json");
            assert_eq!(report["exit_code"], 2);
            assert!(report["error"].as_str().is_some_and(|text| text.contains("--nope")));
        } else {
            assert_eq!(done.stdout, "");
            done.says("--nope");
        }
    }
}

#[test]
fn a_listing_that_could_not_be_written_is_no_success() {
    let world = World::new();
    world.run(&["--no-check", "--no-land", "--name", "t"], "echo hi; echo x > x").expect_code(8);
    let dam = crate::support::dam_binary().display().to_string();
    for command in ["list", "show t", "diff t", "log t", "--format json show t", "--help"] {
        let said = world.sh(&format!("set +e; {dam} {command} 2>&1 >/dev/full; echo $?"));
        assert!(said.contains("standard output is not complete: No space left"), "{said}");
        assert!(said.ends_with("\n9") && !said.contains("dam gc"), "{command}: {said}");
        // A closed pipe is nobody's error.
        let script = "import os, sys; reader, writer = os.pipe(); os.close(reader); \
                      os.dup2(writer, 1); os.execvp(sys.argv[1], sys.argv[1:])";
        assert_eq!(world.sh(&format!("python3 -c '{script}' {dam} {command} 2>&1")), "");
    }
    // A task's exit code is the task's.
    let said = world.sh(&format!("set +e; {dam} --format json wait t 2>&1 >/dev/full; echo $?"));
    assert!(said.ends_with('8'), "{said}");
    let said =
        world.sh(&format!("{dam} --format json run --no-check -- true 2>&1 >/dev/full; echo $?"));
    assert!(said.ends_with('0'), "{said}");
}

#[test]
fn manual_pages_that_can_not_be_written_are_the_callers_matter() {
    let world = World::new();
    let done = world.dam(["man", "a.txt"]);
    done.expect_code(2).says("the pages can't be written to `a.txt`");
}

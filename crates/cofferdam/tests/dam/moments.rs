//! Bad moments: variables of git's that a hook is started with, names and locks that
//! are taken, a clock that was set back, records of another version or cut off, and
//! directories that somebody has removed or moved.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::bed::{until, walk};
use crate::support::{Done, World, dam_binary, levels};

/// `dam run --name NAME --no-check`, in the middle of its command.
struct Running(Child);

impl Running {
    fn start(world: &World, name: &str, then: &str) -> Running {
        let script = format!("echo begun; read line; {then}");
        let run = ["run", "--name", name, "--no-check", "--", "sh", "-c", &script];
        let mut command = world.dam_command(run);
        command.env("COFFERDAM_FAILPOINT", "run:named=stop");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("dam");
        until("it is about to run", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id()));
            stat.is_ok_and(|stat| stat.contains(") T "))
        });
        Running(child)
    }

    fn go_on(self) -> Done {
        kill_process(Pid::from_child(&self.0), Signal::CONT).expect("kill");
        Done::from(self.0.wait_with_output().expect("wait"))
    }
}

fn task_dir(world: &World, name: &str) -> PathBuf {
    let id = world.task(name)["task"].as_str().expect("id").to_owned();
    world.state().join("contexts/tasks").join(id)
}

fn ledger(world: &World) -> rusqlite::Connection {
    rusqlite::Connection::open(world.state().join("ledger.db")).expect("open")
}

/// Removes a tree that overlays have left directories of mode 000 in, and may be making
/// some just now.
fn remove_all(world: &World, dir: &Path) {
    until("it is removed", || {
        for (program, option) in [("chmod", "-R"), ("rm", "-rf")] {
            let mut command = world.command(program);
            command.arg(option).args((program == "chmod").then_some("u+rwX")).arg(dir);
            let _ = command.stderr(Stdio::null()).status();
        }
        !dir.exists()
    });
}

#[test]
fn another_repository_that_gits_variables_name_is_refused() {
    let world = World::new();
    let other = world.dir().join("other");
    world.sh(&format!(
        "git init -q {0}; git -C {0} -c user.name=O -c user.email=o@example.com commit -q --allow-empty -m other",
        other.display()
    ));
    let before = crate::support::fingerprint(&other);
    for (name, value) in [
        ("GIT_DIR", other.join(".git")),
        ("GIT_COMMON_DIR", other.join(".git")),
        ("GIT_WORK_TREE", other.clone()),
    ] {
        let mut run = world.dam_command(["run", "--no-check", "--", "sh", "-c", "echo 2 > a.txt"]);
        let done = Done::from(run.env(name, &value).output().expect("dam"));
        done.expect_code(2).says(&format!("`{name}` names")).says(&format!("unset `{name}`"));
    }
    let mut run = world.dam_command(["run", "--no-check", "--", "true"]);
    run.current_dir("/").env("GIT_DIR", world.path(".git"));
    Done::from(run.output().expect("dam")).expect_code(2).says("`GIT_DIR` is not followed");
    // As git: it is not looked for above.
    let mut run = world.dam_command(["run", "--no-check", "--", "true"]);
    run.current_dir(world.path("src")).env("GIT_CEILING_DIRECTORIES", &world.repo);
    Done::from(run.output().expect("dam")).expect_code(2).says("not inside a git repository");
    assert_eq!(world.read("a.txt"), "hello\n");
    assert_eq!(crate::support::fingerprint(&other), before);
}

#[test]
fn what_gits_variables_say_is_not_followed_and_not_passed_on() {
    for level in levels() {
        let world = World::new();
        let away = world.dir().join("away");
        let mut run = world.dam_command(["run", "--level", level, "--no-check", "--"]);
        run.args(["sh", "-c", "env | grep -E '_FILE=|_DIR|NAMESPACE|Zed' ; echo 2 > a.txt"]);
        run.env("GIT_INDEX_FILE", away.join("index"))
            .env("GIT_OBJECT_DIRECTORY", away.join("objects"))
            .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", away.join("alternates"))
            .env("GIT_NAMESPACE", "away")
            .env("GIT_CONFIG_COUNT", "1")
            .env("GIT_CONFIG_KEY_0", "user.name")
            .env("GIT_CONFIG_VALUE_0", "Zed")
            .env("GIT_CONFIG_PARAMETERS", "'user.name=Zed'")
            .env("GIT_AUTHOR_NAME", "Zed");
        let done = Done::from(run.output().expect("dam"));
        assert!(!done.expect_code(0).stdout.contains("away"), "{}", done.stdout);
        assert!(!done.stdout.contains("Zed"), "{}", done.stdout);
        assert_eq!(world.git(["log", "-1", "--format=%an"]), "Ann");
        assert_eq!(world.git(["status", "--porcelain"]), "");
        assert!(!away.exists());
    }
}

#[test]
fn a_hook_can_run_a_task() {
    let world = World::new();
    for hook in ["post-commit", "pre-push"] {
        let dam = dam_binary();
        let run = format!(
            "{} run --name {hook} --no-check -- sh -c 'echo {hook} > {hook}.txt'",
            dam.display()
        );
        // Its own landing is a commit as well, but no hook of the person's runs for it.
        world.script(&format!(".git/hooks/{hook}"), &run);
    }
    world.write("mine.txt", "mine\n");
    world.sh(&format!(
        "export COFFERDAM_STATE={}; git add mine.txt; git commit -qm mine 2>&1
         git init -q --bare ../r.git; git push -q ../r.git main 2>&1",
        world.state().display()
    ));
    let subjects = world.subjects("main");
    assert!(subjects[0].starts_with("pre-push: ") && subjects[1].starts_with("post-commit: "));
    assert_eq!(subjects[2..], ["mine", "first"]);
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

#[test]
fn a_name_is_taken_once() {
    let world = World::new();
    let first = Running::start(&world, "t", "echo 1 > one.txt");
    let taken = |world: &World| {
        let done = world.run(&["--name", "t", "--no-check"], "echo 2 > two.txt");
        done.expect_code(5).says("the name `t` is taken").says("`dam show t` shows it");
    };
    taken(&world);
    first.go_on().expect_code(0);
    world.run(&["--name", "t"], "echo 3 > three.txt").expect_code(8);
    taken(&world);
    let done = world.run(&["--name", "T", "--no-check"], "echo 4 > four.txt");
    done.expect_code(2).says("can't contain `T`");
    assert!(world.path("one.txt").exists() && !world.path("two.txt").exists());
    assert!(world.dam(["diff", "t"]).expect_code(0).stdout.contains("three.txt"));
}

/// `dam` under a clock that is set, two days back or three on, while its command runs
/// (by `libfaketime`, which changes what the C library says).
#[test]
fn a_clock_that_is_set_while_a_task_runs_changes_no_timeout_and_no_landing() {
    let library = std::fs::read_dir("/usr/lib").expect("/usr/lib").filter_map(Result::ok);
    let library = library
        .map(|dir| dir.path().join("faketime/libfaketime.so.1"))
        .find(|file| file.is_file())
        .expect("the package libfaketime is installed");
    for set in ["-2d", "+3d"] {
        let world = World::new();
        let now = world.dir().join("now");
        std::fs::write(&now, "+0").expect("write");
        let start = |name: &str, options: &[&str], script: &str| {
            let run = ["run", "--name", name];
            let mut command =
                world.dam_command([&run, options, &["--", "sh", "-c", script]].concat());
            command
                .env("LD_PRELOAD", &library)
                .env("FAKETIME_TIMESTAMP_FILE", &now)
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                .stdout(Stdio::null())
                .stderr(Stdio::piped());
            let child = command.spawn().expect("dam");
            until("its command runs", || {
                let listed = world.dam(["list"]).stdout;
                listed.lines().any(|line| line.starts_with(name) && line.contains("running"))
            });
            std::fs::write(&now, set).expect("write");
            Done::from(child.wait_with_output().expect("dam"))
        };
        let checked = ["--check", "grep -q new a.txt", "--timeout", "60s"];
        start("one", &checked, "sleep 2; echo new > a.txt").expect_code(0);
        start("two", &["--no-check", "--timeout", "2s"], "sleep 600").expect_code(7);
        assert_eq!(world.read("a.txt"), "new\n", "{set}");
        assert_eq!(world.git(["status", "--porcelain"]), "", "{set}");
        assert_eq!([world.state_of("one"), world.state_of("two")], ["landed", "timed-out"]);
    }
}

/// Records from a clock that was a day ahead are in their order, and none is lost.
#[test]
fn a_clock_that_was_set_back_loses_no_record() {
    let world = World::new();
    for name in ["a", "b"] {
        world.run(&["--name", name], &format!("echo {name} > a.txt; exit 1")).expect_code(1);
    }
    let ahead = "created_ms = created_ms + 86400000, updated_ms = updated_ms + 86400000";
    ledger(&world).execute_batch(&format!("UPDATE tasks SET {ahead}")).expect("update");
    world.run(&["--name", "c", "--timeout", "10m", "--no-check"], "echo c > a.txt").expect_code(0);
    let listed = world.dam(["list"]).expect_code(0).stdout.clone();
    let names: Vec<&str> = listed.lines().skip(1).map(|line| &line[..1]).collect();
    assert_eq!(names, ["c", "b", "a"], "{listed}");
    assert!(!listed.contains('-'), "{listed}");
    world.dam(["gc"]).expect_code(0);
    assert!(world.dam(["diff", "a"]).expect_code(0).stdout.contains("+a"));
    // An edit that is as long as the file was, with a time before the index's.
    for level in levels() {
        let mut world = World::new();
        world.at_level(level);
        world
            .run(&["--no-check"], "printf 'B\\n' > src/b.txt; touch -d '2 days ago' src/b.txt")
            .expect_code(0);
        assert_eq!(world.read("src/b.txt"), "B\n");
    }
}

#[test]
fn a_ledger_that_can_not_be_used_is_named_and_left_as_it_is() {
    let world = World::new();
    world.run(&["--name", "k"], "echo 2 > a.txt; exit 1").expect_code(1);
    let path = world.state().join("ledger.db");
    let connection = ledger(&world);
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("checkpoint");
    drop(connection);
    let good = std::fs::read(&path).expect("read");
    let newer = {
        let mut newer = good.clone();
        // Where SQLite has `user_version`.
        newer[60..64].copy_from_slice(&99u32.to_be_bytes());
        newer
    };
    let torn = [&good[..4096], &vec![0xff; good.len() - 4096][..]].concat();
    for (bytes, code, says) in [
        (newer, 2, "has version 99, this program knows 3"),
        (torn, 70, "is damaged"),
        (good[..5000].to_vec(), 70, ""),
        (Vec::new(), 70, "it is empty, though there are tasks"),
        (vec![b'x'; 9000], 70, "is not a ledger"),
    ] {
        for other in ["ledger.db-wal", "ledger.db-shm"] {
            let _ = std::fs::remove_file(world.state().join(other));
        }
        std::fs::write(&path, &bytes).expect("write");
        for command in [&["list"][..], &["gc"], &["drop", "k"], &["run", "--", "true"]] {
            let done = world.dam(command);
            done.expect_code(code).says(path.to_str().expect("utf-8")).says(says).says("hint: ");
        }
        assert!(std::fs::read(&path).expect("read") == bytes, "{says}: it was changed");
    }
    std::fs::write(&path, &good).expect("write");
    assert!(world.dam(["diff", "k"]).expect_code(0).stdout.contains("+2"));
}

#[test]
fn records_beside_the_ledger_that_are_empty_are_made_again_or_not_needed() {
    let world = World::new();
    world.run(&["--name", "k"], "echo 2 > a.txt; exit 1").expect_code(1);
    let dir = task_dir(&world, "k");
    let mut layers = 0;
    walk(&world.state().join("contexts/layers"), &mut |path, _| {
        if path.ends_with("meta.json") {
            std::fs::write(path, "").expect("write");
            layers += 1;
        }
    });
    assert!(layers > 0);
    for name in ["receipt.json", "lock", "ns", "log"] {
        std::fs::write(dir.join(name), "").expect("write");
    }
    world.dam(["show", "k"]).expect_code(0);
    world.dam(["log", "k"]).expect_code(0);
    assert!(world.dam(["diff", "k"]).expect_code(0).stdout.contains("+2"));
    world.run(&["--no-check"], "echo 3 > src/b.txt").expect_code(0);
    world.dam(["gc"]).expect_code(0);
    assert!(world.dam(["diff", "k"]).expect_code(0).stdout.contains("+2"));
    world.dam(["drop", "k"]).expect_code(0);
}

#[test]
fn what_was_deleted_by_hand_stops_nobody_else() {
    let world = World::new();
    world.run(&["--name", "k"], "echo 2 > a.txt; exit 1").expect_code(1);
    walk(&world.state().join("contexts/layers"), &mut |path, _| {
        if path.ends_with("tree")
            && path.ancestors().nth(2).is_some_and(|dir| dir.ends_with("layers"))
        {
            remove_all(&world, path);
        }
    });
    for command in [&["diff", "k"][..], &["enter", "k", "--", "true"]] {
        world.dam(command).expect_code(70).says("that its context stands on is gone");
    }
    world.run(&["--no-check"], "echo 3 > a.txt").expect_code(0);
    world.dam(["drop", "k"]).expect_code(0);
    world.run(&["--name", "u"], "echo 2 > a.txt; exit 1").expect_code(1);
    remove_all(&world, &task_dir(&world, "u"));
    world.dam(["show", "u"]).expect_code(0);
    world.dam(["enter", "u", "--", "true"]).expect_code(2).says("nothing of its context is left");
    world.dam(["drop", "u"]).expect_code(0);
    world.dam(["gc"]).expect_code(0);
    assert_eq!(world.git(["for-each-ref", "refs/dam"]), "");
}

#[test]
fn a_state_directory_that_goes_while_a_task_runs_is_named() {
    let world = World::new();
    let running = Running::start(&world, "t", "echo 2 > a.txt");
    remove_all(&world, &world.state());
    running.go_on().expect_code(6).says("it was removed while the task ran");
    assert_eq!(world.read("a.txt"), "hello\n");
    assert_eq!(world.git(["for-each-ref", "refs/dam"]), "");
    world.run(&["--no-check"], "echo 3 > a.txt").expect_code(0);
}

#[test]
fn a_state_directory_of_which_something_stays_is_named_as_well() {
    let world = World::new();
    let running = Running::start(&world, "t", "echo 2 > a.txt");
    let dir = task_dir(&world, "t");
    remove_all(&world, &world.state());
    // An ordinary user's `rm -r` can't go into what the kernel made for the overlay.
    std::fs::create_dir_all(dir.join("work/work")).expect("mkdir");
    std::fs::set_permissions(world.state(), Permissions::from_mode(0o700)).expect("chmod");
    let done = running.go_on();
    done.expect_code(6).says("it was removed while the task ran");
    assert!(!done.stderr.contains("is kept"), "{}", done.stderr);
    assert_eq!(world.git(["for-each-ref", "refs/dam"]), "");
    world.dam(["gc"]).expect_code(0);
    assert!(!dir.exists(), "the rest stays for ever");
    world.run(&["--no-check"], "echo 3 > a.txt").expect_code(0);
}

#[test]
fn a_repository_that_goes_while_a_task_runs_is_named_and_its_work_lands_later() {
    let world = World::new();
    let running = Running::start(&world, "t", "echo 2 > a.txt");
    let away = world.dir().join("away");
    std::fs::rename(&world.repo, &away).expect("rename");
    let done = running.go_on();
    done.expect_code(2).says("is not there any more").says("`dam land t` goes on");
    std::fs::rename(&away, &world.repo).expect("rename");
    assert_eq!(world.state_of("t"), "failed");
    world.dam(["land", "t"]).expect_code(0);
    assert_eq!(world.read("a.txt"), "2\n");
}

#[test]
fn a_lock_that_a_killed_git_left_is_named_with_what_to_do() {
    for (lock, stops) in [
        ("refs/heads/main.lock", true),
        ("index.lock", true),
        ("HEAD.lock", true),
        ("packed-refs.lock", false),
        ("config.lock", false),
    ] {
        let world = World::new();
        let path = world.path(".git").join(lock);
        std::fs::write(&path, "").expect("write");
        let done = world.run(&["--name", "t", "--no-check"], "echo 2 > a.txt");
        if lock != "config.lock" {
            done.says(path.to_str().expect("utf-8")).says("it can be removed");
        }
        done.expect_code(if stops { 8 } else { 0 });
        assert_eq!(world.read("a.txt"), if stops { "hello\n" } else { "2\n" }, "{lock}");
        std::fs::remove_file(&path).expect("remove");
        world.dam(["land", "t"]).expect_code(0);
        world.dam(["gc"]).expect_code(0);
        assert_eq!(world.read("a.txt"), "2\n");
        assert_eq!(world.git(["for-each-ref", "refs/dam"]), "", "{lock}");
        assert_eq!(world.git(["status", "--porcelain"]), "");
    }
}

#[test]
fn carried_work_that_is_in_the_way_is_called_that() {
    let world = World::new();
    world.write("notes.txt", "mine\n");
    let done =
        world.run(&["--name", "t", "--carry-dirty", "--no-check"], "echo theirs > notes.txt");
    done.expect_code(4)
        .says("work that was carried in and is not on `main`: `notes.txt` (untracked)");
    assert!(!done.stderr.contains("by now"), "{}", done.stderr);
    assert_eq!(world.read("notes.txt"), "mine\n");
    world.commit("notes");
    world.dam(["land", "t"]).expect_code(0);
    assert_eq!(world.read("notes.txt"), "theirs\n");
}

#[test]
fn a_fifo_alone_is_told_to_be_left_out() {
    let world = World::new();
    let done = world.run(&["--name", "t", "--no-check"], "mkfifo f");
    done.expect_code(0).says("left out of the change set: `f` is a fifo");
    let task = world.task("t");
    assert_eq!(task["state"], "empty");
    assert_eq!(task["left_out"], serde_json::json!(["`f` is a fifo"]));
}

#[test]
fn an_entered_commands_exit_code_is_in_the_json() {
    let world = World::new();
    world.run(&["--name", "t"], "echo 2 > a.txt; exit 1").expect_code(1);
    for (script, code) in [("exit 7", 7), ("true", 0)] {
        let done = world.dam(["--format", "json", "enter", "t", "--", "sh", "-c", script]);
        let receipt: serde_json::Value = serde_json::from_str(&done.stdout).expect("json");
        assert_eq!((&receipt["enter_exit"], &receipt["command_exit"]), (&code.into(), &1.into()));
    }
    assert!(world.task("t")["enter_exit"].is_null());
}

#[test]
fn modes_are_as_git_add_has_them() {
    let world = World::new();
    let work = "chmod 755 a.txt; chmod 644 ci; echo x > tool; chmod 755 tool; echo y >> src/b.txt";
    for ignored in ["false", "true"] {
        world.git(["config", "core.fileMode", if ignored == "true" { "false" } else { "true" }]);
        let copy = world.dir().join(format!("copy-{ignored}"));
        world.sh(&format!(
            "cp -a . {0}; cd {0}; {work}; git add --all; git write-tree > tree",
            copy.display()
        ));
        let tree = std::fs::read_to_string(copy.join("tree")).expect("read");
        world.run(&["--no-check"], work).expect_code(0);
        assert_eq!(world.git(["rev-parse", "HEAD^{tree}"]), tree.trim(), "ignored: {ignored}");
        world.git(["reset", "--quiet", "--hard", "HEAD~1"]);
    }
}

//! Collection never loses work, and never takes anything from under a task.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::bed::until;
use crate::support::{Done, World};

const WEEK_AND_A_DAY_MS: i64 = 8 * 24 * 3600 * 1000;

fn gc(world: &World) -> serde_json::Value {
    let done = world.dam(["--format", "json", "gc"]);
    done.expect_code(0);
    serde_json::from_str(&done.stdout).expect("json")
}

fn task_dir(world: &World, name: &str) -> PathBuf {
    let id = world.task(name)["task"].as_str().expect("id").to_owned();
    world.state().join("contexts/tasks").join(id)
}

fn ledger(world: &World, statement: &str) {
    let ledger = rusqlite::Connection::open(world.state().join("ledger.db")).expect("open");
    ledger.execute_batch(statement).expect("statement");
}

fn grow_old(world: &World) {
    ledger(world, &format!("UPDATE tasks SET updated_ms = updated_ms - {WEEK_AND_A_DAY_MS}"));
}

/// A failed task with every kind of work in it: changed, untracked, and a commit
/// on a branch of its own.
fn fail_with_work(world: &World) {
    let script = "echo changed > a.txt; git checkout -q --detach; echo c > committed.txt; \
                  git add committed.txt; git commit -qm own; echo u > untracked.txt; exit 1";
    world.run(&["--name", "t"], script).expect_code(1);
}

fn stopped(child: &Child) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id()));
    stat.is_ok_and(|stat| stat.contains(") T "))
}

fn go_on(child: &Child) {
    kill_process(Pid::from_child(child), Signal::CONT).expect("kill");
}

#[test]
fn catalyst_1359_a_task_at_any_step_survives_a_collection() {
    for place in [
        "task:claim",
        "ledger:queued:after",
        "ledger:preparing:after",
        "run:named",
        "ledger:harvesting:after",
        "ledger:verifying:after",
        "ledger:publishing:after",
        "ledger:landed:after",
        "settle:upper",
    ] {
        let world = World::new();
        let mut run = world.dam_command([
            "run",
            "--name",
            "t",
            "--check",
            "./ci",
            "--",
            "sh",
            "-c",
            "echo x > a.txt",
        ]);
        run.env("COFFERDAM_FAILPOINT", format!("{place}=stop")).stderr(Stdio::piped());
        let child = run.spawn().expect("dam");
        until(place, || stopped(&child));
        gc(&world);
        go_on(&child);
        Done::from(child.wait_with_output().expect("wait")).expect_code(0);
        assert_eq!(world.read("a.txt"), "x\n", "{place}");
        assert_eq!(world.state_of("t"), "landed", "{place}");
    }
}

#[test]
fn a_layer_is_not_collected_while_a_task_is_about_to_stand_on_it() {
    let world = World::new();
    world.run(&["--no-check"], "echo 1 > a.txt").expect_code(0);
    // Makes the delta of what landed, then stands on it no more.
    world.run(&["--read-only"], "true").expect_code(0);
    let mut collector = world.dam_command(["gc"]);
    let mut collector = collector
        .env("COFFERDAM_FAILPOINT", "gc:layers=stop")
        .stdout(Stdio::null())
        .spawn()
        .expect("dam");
    until("the collector looked who uses layers", || stopped(&collector));
    let mut run =
        world.dam_command(["run", "--no-check", "--", "sh", "-c", "cat a.txt src/b.txt ci > all"]);
    run.env("COFFERDAM_FAILPOINT", "run:spawned=stop").stderr(Stdio::piped());
    let child = run.spawn().expect("dam");
    let waits = || {
        let locks = std::fs::read_to_string("/proc/locks").expect("locks");
        let pid = format!(" {} ", child.id());
        locks.lines().any(|line| line.contains("-> FLOCK") && line.contains(&pid))
    };
    until("the task waits, or has its layers", || waits() || stopped(&child));
    go_on(&collector);
    assert_eq!(collector.wait().expect("wait").code(), Some(0));
    until("the task has its layers", || stopped(&child));
    go_on(&child);
    Done::from(child.wait_with_output().expect("wait")).expect_code(0);
    assert!(world.read("all").starts_with("1\nb\n"));
}

#[test]
fn agent_deck_1995_work_whose_record_is_lost_stays() {
    let world = World::new();
    fail_with_work(&world);
    let dir = task_dir(&world, "t");
    ledger(&world, "PRAGMA foreign_keys = ON; DELETE FROM tasks");
    let report = gc(&world);
    assert!(report["kept"].to_string().contains("no record says whose"), "{report}");
    for name in ["a.txt", "committed.txt", "untracked.txt"] {
        assert!(dir.join("upper").join(name).exists(), "{name}");
    }
    assert_eq!(world.dam(["list"]).expect_code(0).stdout, "");
}

#[test]
fn git_worktree_runner_180_a_record_whose_directory_is_gone_blocks_nothing() {
    let world = World::new();
    fail_with_work(&world);
    // Away, as a remove would have it; an overlay's work directory resists that.
    std::fs::rename(task_dir(&world, "t"), world.dir().join("gone")).expect("rename");
    world.dam(["list"]).expect_code(0);
    gc(&world);
    world.dam(["diff", "t"]).expect_code(0);
    world.dam(["drop", "t"]).expect_code(0);
    world.run(&["--name", "t", "--no-check"], "echo x > a.txt").expect_code(0);
    assert_eq!(world.git(["for-each-ref", "refs/dam"]), "");
}

#[test]
fn claude_code_45737_the_directory_of_a_live_task_is_removed_under_it() {
    let world = World::new();
    let mut run =
        world.dam_command(["run", "--name", "t", "--no-check", "--", "sh", "-c", "echo x > a.txt"]);
    run.env("COFFERDAM_FAILPOINT", "ledger:harvesting:after=stop").stderr(Stdio::null());
    let mut child = run.spawn().expect("dam");
    until("it stopped", || stopped(&child));
    // Away, as a remove would have it; an overlay's work directory resists that.
    std::fs::rename(task_dir(&world, "t"), world.dir().join("gone")).expect("rename");
    world.dam(["list"]).expect_code(0);
    gc(&world);
    go_on(&child);
    assert_ne!(child.wait().expect("wait").code(), Some(0));
    assert_eq!(world.subjects("main"), ["first"]);
    assert_eq!(world.read("a.txt"), "hello\n");
    world.dam(["drop", "t"]).expect_code(0);
    world.run(&["--name", "t", "--no-check"], "echo x > a.txt").expect_code(0);
}

#[test]
fn claude_code_74719_an_old_context_is_saved_before_it_goes() {
    let world = World::new();
    fail_with_work(&world);
    let dir = task_dir(&world, "t");
    assert_eq!(gc(&world)["contexts"], serde_json::json!([]));
    assert!(dir.join("upper/untracked.txt").exists(), "a young context went");
    grow_old(&world);
    gc(&world);
    assert!(!dir.join("upper").exists(), "an old context stays");
    assert_eq!(world.git(["for-each-ref", "refs/dam"]), "");
    // Everything is in the bundle, on the base that the repository still has.
    let bundle = dir.join("saved.bundle");
    let bundle = bundle.to_str().expect("utf-8");
    let id = dir.file_name().expect("id").to_str().expect("utf-8");
    world.git(["fetch", "--quiet", bundle, &format!("refs/dam/{id}:refs/heads/saved")]);
    for (path, text) in [("a.txt", "changed"), ("committed.txt", "c"), ("untracked.txt", "u")] {
        assert_eq!(world.git(["show", &format!("saved:{path}")]), text);
    }
}

#[test]
fn vibe_kanban_880_what_cannot_be_saved_stays() {
    let spoil: [&dyn Fn(&World); 3] = [
        // From before a restart: the files can be anything.
        &|world| {
            ledger(world, "UPDATE tasks SET facts = json_set(facts, '$.boot', 'earlier')");
        },
        // Refused by the harvest.
        &|world| {
            let path = task_dir(world, "t").join("upper/pipe");
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
                .expect("fifo");
            let bundle = task_dir(world, "t").join("saved.bundle");
            std::fs::create_dir(bundle).expect("in the bundle's place");
        },
        // The store is damaged.
        &|world| {
            let store = std::fs::read_dir(world.state().join("store")).expect("store");
            for entry in store.filter_map(Result::ok) {
                let objects = entry.path().join("objects");
                std::fs::remove_dir_all(&objects).expect("remove");
                File::create(&objects).expect("a file in its place");
            }
        },
    ];
    for (number, spoil) in spoil.iter().enumerate() {
        let world = World::new();
        fail_with_work(&world);
        let dir = task_dir(&world, "t");
        grow_old(&world);
        spoil(&world);
        let report = gc(&world);
        assert!(report["kept"].to_string().contains("`t`"), "{number}: {report}");
        assert_eq!(report["contexts"], serde_json::json!([]), "{number}");
        for name in ["a.txt", "committed.txt", "untracked.txt"] {
            assert!(dir.join("upper").join(name).exists(), "{number}: {name}");
        }
        assert_ne!(world.git(["for-each-ref", "refs/dam"]), "", "{number}: the pin went");
    }
}

/// Puts `count` packs of one object each into the store, and gives the objects.
fn pack_each(world: &World, store: &Path, count: usize) -> String {
    let script = format!(
        "for number in $(seq {count}); do \
             blob=$(echo $number | git hash-object -w --stdin); echo $blob; \
             echo $blob | git pack-objects -q objects/pack/pack >/dev/null; \
         done; git prune-packed"
    );
    world.sh_in(store, &script)
}

fn packs(store: &Path) -> usize {
    let dir = std::fs::read_dir(store.join("objects/pack")).expect("packs");
    let names = dir.map(|entry| entry.expect("entry").path());
    names.filter(|path| path.extension().is_some_and(|ending| ending == "pack")).count()
}

#[test]
fn packs_of_many_tasks_become_one_with_all_that_was_in_them() {
    for (count, script) in [(20, "sleep 1; echo x > new.txt"), (70, "echo x > new.txt")] {
        let world = World::new();
        world.run(&["--no-check", "--no-land"], "true").expect_code(0);
        let stores = std::fs::read_dir(world.state().join("store")).expect("stores");
        let store = stores.map(|entry| entry.expect("entry").path()).next().expect("store");
        let blobs = pack_each(&world, &store, count);
        assert!(packs(&store) >= count);
        world.run(&["--no-check"], script).expect_code(0);
        assert!(packs(&store) <= 2, "{count}: {}", packs(&store));
        for blob in blobs.lines() {
            world.sh_in(&store, &format!("git cat-file -e {blob}"));
        }
        world.sh_in(&store, "git fsck --strict --no-dangling");
    }
}

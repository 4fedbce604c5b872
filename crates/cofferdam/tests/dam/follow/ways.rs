//! Files, changes and unfinished operations of the person's.

use super::{lands, snapshot, waits};
use crate::support::{World, is_root};

#[test]
fn an_ignored_file_is_not_overwritten() {
    let world = World::new();
    world.write(".env", "SECRET=1\n");
    waits(&world, "echo '*.log' > .gitignore; echo MINE > .env", "`.env` (not tracked)");
    assert_eq!(world.read(".env"), "SECRET=1\n");
    std::fs::remove_file(world.path(".env")).expect("remove");
    world.dam(["land", "t"]).expect_code(0);
    assert_eq!(world.read(".env"), "MINE\n");
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

#[test]
fn untracked_files_links_and_directories_are_not_overwritten() {
    for (make, words) in [
        ("echo mine > new.txt", "`new.txt`"),
        ("ln -s nowhere new.txt", "`new.txt`"),
        ("mkdir new.txt; echo x > new.txt/x", "`new.txt/x`"),
        ("mkdir new.txt; echo x > new.txt/x.log", "`new.txt/x.log`"),
        ("mkfifo new.txt", "`new.txt`"),
    ] {
        let world = World::new();
        world.sh(make);
        waits(&world, "echo theirs > new.txt", words);
    }
    let world = World::new();
    world.sh("echo mine > dir");
    waits(&world, "mkdir dir; echo theirs > dir/x", "`dir` (not a directory)");
    let world = World::new();
    world.sh("mkdir ../elsewhere; ln -s ../elsewhere dir");
    waits(&world, "mkdir dir; echo theirs > dir/x", "`dir` (not a directory)");
    // An empty directory is nothing.
    let world = World::new();
    world.sh("mkdir -p new.txt/empty");
    lands(&world, "echo theirs > new.txt", "");
}

#[test]
fn ignored_content_of_a_directory_that_becomes_a_file_stays() {
    let world = World::new();
    world.write("src/keep.log", "log\n");
    waits(&world, "rm -r src; echo file > src", "`src/keep.log`");
    // Without anything in its place the directory may stay.
    let world = World::new();
    world.write("src/keep.log", "log\n");
    lands(&world, "rm -r src", "");
    assert_eq!(world.read("src/keep.log"), "log\n");
}

#[test]
fn changes_elsewhere_are_kept() {
    let world = World::new();
    world.sh("echo dirty > src/b.txt; echo u > untracked; rm ci; echo staged > s; git add s");
    let status = " D ci\nA  s\n M src/b.txt\n?? untracked";
    assert_eq!(world.git(["status", "--porcelain"]).trim(), status.trim());
    lands(&world, "echo theirs > a.txt; mkdir d; echo n > d/n", status.trim_end());
    assert_eq!(world.read("src/b.txt"), "dirty\n");
    assert_eq!(world.read("a.txt"), "theirs\n");
}

#[test]
fn changes_in_the_same_places_are_waited_for() {
    for make in [
        "echo mine > a.txt",
        "echo mine > a.txt; git add a.txt",
        "echo mine > a.txt; git add a.txt; git checkout -q HEAD -- . 2>/dev/null; echo again > a.txt",
        "rm a.txt; ln -s src a.txt",
        "rm a.txt; mkdir a.txt; echo x > a.txt/x",
        "git rm -q a.txt",
        "git mv a.txt moved.txt",
    ] {
        let world = World::new();
        world.sh(make);
        waits(&world, "echo theirs > a.txt", "in the way");
    }
    for make in ["echo mine > a.txt", "echo mine > a.txt; git add a.txt"] {
        let world = World::new();
        world.sh(make);
        waits(&world, "rm a.txt", "in the way");
    }
    // Only touched is not changed.
    let world = World::new();
    world.sh("touch -d '2001-01-01' a.txt");
    lands(&world, "echo theirs > a.txt", "");
}

/// An edit that only the index's own time gives away: same size, same second.
const UNSEEN_BY_TIME: &str = "git config core.trustctime false; touch -d @1000000000 a.txt; git update-index --refresh; \
     printf 'HELLO\\n' > a.txt; touch -d @1000000000 a.txt .git/index; test \"$(git --no-optional-locks status --porcelain)\" = ' M a.txt'; touch -d @1000000000 .git/index";

#[test]
fn an_edit_of_the_same_size_in_the_second_of_the_index_is_not_lost() {
    let world = World::new();
    world.sh(UNSEEN_BY_TIME);
    waits(&world, "echo theirs > a.txt", "in the way");
    assert_eq!(world.read("a.txt"), "HELLO\n");
    // Nor is it missed where it is taken along.
    world.run(&["--carry-dirty", "--no-check"], "cat a.txt > b.txt").expect_code(0);
    assert_eq!(world.read("b.txt"), "HELLO\n");
}

/// A file that the person deleted but not from the index.
#[test]
fn a_deleted_file_is_not_put_back_without_a_word() {
    let world = World::new();
    world.sh("rm a.txt");
    world.run(&["--no-check", "--name", "t"], "echo theirs > a.txt");
    let landed = world.state_of("t") == "landed";
    let there = world.path("a.txt").exists();
    assert!(!landed || there, "landed, and the next `commit -a` would revert it");
}

#[test]
fn a_held_index_is_waited_for_and_left_alone() {
    let world = World::new();
    world.write(".git/index.lock", "held");
    waits(&world, "echo theirs > a.txt", "index.lock` is held by another git process");
    assert_eq!(world.read(".git/index.lock"), "held");
    std::fs::remove_file(world.path(".git/index.lock")).expect("remove");
    world.dam(["land", "t"]).expect_code(0);
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

#[test]
fn unfinished_operations_are_waited_for() {
    let history = "git branch base; echo side > src/b.txt; git commit -qam side; git switch -qc other base; echo other > src/b.txt; git commit -qam other; \
         echo more > more; git add more; git commit -qm more; git switch -q main;";
    for (start, words) in [
        ("git merge -q other >/dev/null 2>&1 || true", "a merge is in progress"),
        ("git rebase -q other >/dev/null 2>&1 || true", "a rebase is in progress"),
        ("git rebase -q --apply other >/dev/null 2>&1 || true", "a rebase is in progress"),
        ("git cherry-pick other~1 >/dev/null 2>&1 || true", "a cherry-pick is in progress"),
        (
            "git cherry-pick base..other >/dev/null 2>&1 || true; git add -A; git commit -qm resolved",
            "a cherry-pick or revert is in progress",
        ),
        (
            "git revert --no-edit HEAD~1..HEAD >/dev/null 2>&1 || true; git revert --no-commit HEAD",
            "a revert is in progress",
        ),
        ("git bisect start -q HEAD base >/dev/null", "a bisect is in progress"),
    ] {
        let world = World::new();
        world.sh(history);
        world.sh(start);
        let before = snapshot(&world);
        let done =
            world.run(&["--no-check", "--name", "t", "--into", "main"], "echo theirs > a.txt");
        done.expect_code(8).says(words);
        assert!(before == snapshot(&world), "{start}");
    }
}

#[test]
fn a_directory_that_may_not_be_written_is_in_the_way() {
    for script in [
        "echo theirs > src/b.txt",
        "echo n > src/n",
        "mkdir -p src/d/e; echo n > src/d/e/n",
        "rm src/b.txt",
        "rm -r src; echo x > src",
    ] {
        let world = World::new();
        world.sh("chmod 555 src");
        if is_root() {
            lands(&world, script, "");
        } else {
            waits(&world, script, "`src` (not writable)");
        }
        if world.path("src").is_dir() {
            world.sh("chmod 755 src");
        }
    }
}

#[test]
fn the_next_commit_reverts_nothing() {
    let world = World::new();
    world.write("src/b.txt", "mine\n");
    lands(&world, "echo theirs > a.txt; rm ci; mkdir d; echo n > d/n; ln -s d l", " M src/b.txt");
    world.git(["commit", "--quiet", "--all", "--message", "mine"]);
    assert_eq!(world.git(["diff", "--name-only", "HEAD~1", "HEAD"]), "src/b.txt");
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

#[test]
fn refused_tasks_touch_nothing() {
    let world = World::new();
    world.sh("echo dirty > src/b.txt; echo u > untracked; echo i > .env");
    let objects = |world: &World| world.sh("find .git/objects | sort");
    let before = (snapshot(&world), objects(&world));
    world.run(&["--check", "./ci"], "echo bad > a.txt").expect_code(3);
    world.run(&["--check", "./ci"], "echo x > a.txt; exit 7").expect_code(1);
    world.run(&["--no-check"], "ln -s /etc/passwd evil").expect_code(1);
    world.run(&[], "echo unchecked > a.txt").expect_code(8);
    world.run(&["--no-check"], "true").expect_code(0);
    world.run(&["--no-check", "--timeout", "1ms"], "sleep 600").expect_code(7);
    assert!(before.0 == snapshot(&world));
    assert_eq!(before.1, objects(&world));
    world.run(&["--no-check", "--name", "t"], "echo theirs > src/b.txt").expect_code(8);
    assert!(before.0 == snapshot(&world));
    assert_eq!(before.1, objects(&world), "objects of a task that did not land");
}

#[test]
fn no_hook_of_the_persons_runs_and_the_reflog_has_an_entry() {
    let world = World::new();
    world.sh(
        "mkdir -p hooks; for h in post-checkout post-index-change reference-transaction pre-commit commit-msg prepare-commit-msg post-commit post-merge post-rewrite pre-auto-gc fsmonitor-watchman update; do
           for d in hooks .git/hooks; do mkdir -p $d; printf '#!/bin/sh\\necho %s >> \"%s/hooks-ran\"\\n' $h \"$PWD/..\" > $d/$h; chmod 755 $d/$h; done; done
         git -c core.hooksPath=/dev/null add -A; git -c core.hooksPath=/dev/null commit -qm hooks; rm -f ../hooks-ran",
    );
    for setting in [
        "",
        "git config core.hooksPath hooks",
        "git config core.fsmonitor hooks/fsmonitor-watchman",
    ] {
        world.sh(&format!("{setting}\nrm -f ../hooks-ran"));
        world.run(&["--no-check", "--name", "t"], "date +%N > a.txt").expect_code(0);
        assert!(!world.dir().join("hooks-ran").exists(), "{setting}");
        world.dam(["drop", "t"]);
    }
    for name in ["main", "HEAD"] {
        assert!(world.git(["reflog", "-1", name]).contains("dam: land"), "{name}");
    }
}

//! Indexes of every kind.

use super::{lands, snapshot, waits};
use crate::support::World;

#[test]
fn extensions_of_the_index_survive_or_do_no_harm() {
    for make in [
        "git config core.untrackedCache true; git update-index --force-untracked-cache; git status >/dev/null",
        "git config core.splitIndex true; git update-index --split-index; echo s > s; git add s; git commit -qm s",
        "git config index.version 4; git update-index --index-version 4",
        "git config feature.manyFiles true; git config index.skipHash true; git update-index --force-write-index",
        "git config core.checkStat minimal; git config core.trustctime false",
        "git update-index --fsmonitor 2>/dev/null || true",
    ] {
        let world = World::new();
        world.sh(make);
        world.sh("echo mine > src/b.txt; echo u > untracked");
        lands(&world, "echo theirs > a.txt; echo n > n; rm ci", " M src/b.txt\n?? untracked");
        world.sh("git fsck --strict; git add -A; git commit -qm all; git status --porcelain");
        lands(&world, "echo again > a.txt; mkdir -p d/e; echo n > d/e/n", "");
    }
}

#[test]
fn an_untracked_cache_is_still_there() {
    let world = World::new();
    world.sh("git config core.untrackedCache true; git update-index --force-untracked-cache; git status >/dev/null");
    lands(&world, "echo theirs > a.txt", "");
    assert!(
        std::fs::read(world.path(".git/index"))
            .expect("index")
            .windows(4)
            .any(|word| word == b"UNTR")
    );
}

#[test]
fn a_sparse_checkout_stays_sparse() {
    for cone in ["--cone", "--no-cone"] {
        let world = World::new();
        world.sh("mkdir -p in out; echo 1 > in/x; echo 1 > out/x; git add -A; git commit -qm dirs");
        world.sh(&format!("git sparse-checkout set {cone} in"));
        assert!(!world.path("out").exists());
        let done = world.run(
            &["--no-check"],
            "echo 2 > in/x; echo 2 > out/x; echo n > out/n; echo n > in/n; echo 3 > src/b.txt",
        );
        done.expect_code(0);
        assert!(!done.stderr.contains("left alone"), "{}", done.stderr);
        assert_eq!(world.git(["status", "--porcelain"]), "");
        assert_eq!(world.read("in/x"), "2\n");
        assert_eq!(world.read("in/n"), "n\n");
        assert!(!world.path("out").exists());
        assert_eq!(world.git(["show", "main:out/n"]), "n");
        world.sh("echo mine > in/x; git commit -qam mine");
        assert_eq!(world.git(["diff", "--name-only", "HEAD~1", "HEAD"]), "in/x");
    }
}

#[test]
fn local_changes_that_git_was_told_not_to_see_are_not_lost() {
    for flag in ["--skip-worktree", "--assume-unchanged"] {
        for script in ["echo theirs > src/b.txt", "rm src/b.txt", "rm -r src; echo x > src"] {
            let world = World::new();
            world.sh(&format!("git update-index {flag} src/b.txt; echo mine > src/b.txt"));
            waits(&world, script, "src/b.txt");
            assert_eq!(world.read("src/b.txt"), "mine\n");
        }
        // Elsewhere they are no hindrance, and the mark stays.
        let world = World::new();
        world.sh(&format!("git update-index {flag} src/b.txt; echo mine > src/b.txt"));
        lands(&world, "echo theirs > a.txt", "");
        assert_eq!(world.read("src/b.txt"), "mine\n");
        let mark = world.git(["ls-files", "-v", "src/b.txt"]);
        assert!(mark.starts_with(['S', 'h']), "{mark}");
    }
}

#[test]
fn files_that_are_only_intended_to_be_added() {
    let world = World::new();
    world.sh("echo mine > new.txt; git add -N new.txt");
    waits(&world, "echo theirs > new.txt", "new.txt");
    let world = World::new();
    world.sh("echo mine > new.txt; git add -N new.txt");
    lands(&world, "echo theirs > a.txt", " A new.txt");
}

#[test]
fn unmerged_entries_are_waited_for() {
    let world = World::new();
    world.sh("git switch -qc o; echo o > a.txt; git commit -qam o; git switch -q main; echo m > a.txt; git commit -qam m; git merge o >/dev/null 2>&1 || true; rm .git/MERGE_*");
    let before = snapshot(&world);
    world.run(&["--no-check", "--name", "t"], "echo theirs > src/b.txt").expect_code(8);
    assert!(before == snapshot(&world));
}

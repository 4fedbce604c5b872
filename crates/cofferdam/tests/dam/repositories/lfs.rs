//! Files that Git LFS keeps.

use super::world;
use crate::bed::kill_at;
use crate::support::{World, levels};

/// `a.bin` of 300,000 bytes and `b.bin` of 5,000 are kept by Git LFS, `e.bin` is empty.
fn kept() -> World {
    let world = world();
    world.sh("git lfs install >/dev/null; git lfs track '*.bin' >/dev/null; \
              head -c 300000 /dev/urandom > a.bin; head -c 5000 /dev/urandom > b.bin; : > e.bin");
    world.commit("kept");
    assert!(world.git(["show", "main:a.bin"]).starts_with("version https://git-lfs"));
    world
}

#[test]
fn content_is_there_inside_and_goes_back_as_git_lfs_would_take_it() {
    for level in levels() {
        let mut world = kept();
        world.at_level(level);
        let check = "test $(stat -c %s a.bin) = 300001 && test $(stat -c %s new.bin) = 4000 && \
                     cmp b.bin /dev/null 2>/dev/null; test $(stat -c %s moved.bin) = 5000 && \
                     test -z \"$(git status --short)\"";
        let task = "set -e; test -z \"$(git status --short)\"; test $(stat -c %s a.bin) = 300000; \
                    printf x >> a.bin; head -c 4000 /dev/zero > new.bin; mv b.bin moved.bin; \
                    git diff --stat | grep -q a.bin; git checkout -q e.bin; \
                    git show HEAD:b.bin | git lfs smudge | cmp - moved.bin";
        world.run(&["--check", check], task).expect_code(0);
        assert_eq!(world.git(["status", "--porcelain"]), "");
        assert_eq!(world.git(["lfs", "fsck"]), "Git LFS fsck OK");
        let listed = world.git(["lfs", "ls-files", "--name-only"]);
        assert_eq!(listed.lines().collect::<Vec<_>>(), ["a.bin", "moved.bin", "new.bin"]);
        assert_eq!(world.sh("stat -c %s a.bin moved.bin new.bin"), "300001\n5000\n4000");
        assert!(world.git(["show", "main:new.bin"]).ends_with("size 4000"));
        // The next one stands on a layer of differences.
        world
            .run(
                &["--check", "test $(stat -c %s new.bin) = 4000"],
                "test $(stat -c %s a.bin) = 300001 && echo x > x",
            )
            .expect_code(0);
    }
}

#[test]
fn the_repository_gets_content_only_when_it_lands() {
    let world = kept();
    let objects = || world.sh("find .git/lfs/objects -type f | wc -l");
    let before = objects();
    world.run(&["--no-check", "--no-land", "--name", "t"], "echo new > n.bin").expect_code(8);
    world.run(&["--check", "false", "--name", "no"], "echo other > n.bin");
    assert_eq!(objects(), before);
    // What a task that waits needs is not collected.
    world.dam(["drop", "no"]).expect_code(0);
    world.dam(["gc"]).expect_code(0);
    world.dam(["land", "t"]).expect_code(0);
    assert_eq!(world.read("n.bin"), "new\n");
    assert_eq!(world.git(["lfs", "fsck"]), "Git LFS fsck OK");
    world.dam(["gc"]).expect_code(0);
    let left =
        world.sh("find ../state/store -path '*/lfs/*' -type f -not -path '*/repo-*.git/config'");
    assert!(!left.contains("lfs/objects"), "{left}");
}

#[test]
fn uncommitted_content_is_carried_without_a_write_into_the_repository() {
    let world = kept();
    world.sh("printf dirty > b.bin");
    let before = world.sh("find .git/lfs/objects | sort");
    world
        .run(&["--no-check", "--no-land", "--carry-dirty"], "grep -q dirty b.bin && echo x > x")
        .expect_code(8);
    assert_eq!(world.sh("find .git/lfs/objects | sort"), before);
}

#[test]
fn a_pointer_to_nothing_does_not_land() {
    let world = kept();
    let pointer = "git show HEAD:a.bin | sed 's/sha256:..../sha256:0000/' > f.bin";
    world
        .run(&["--no-check"], pointer)
        .expect_code(1)
        .says("`f.bin` is a Git LFS pointer to content that is not here");
    // One to content that is here does.
    world.run(&["--no-check"], "git show HEAD:a.bin > f.bin").expect_code(0);
    assert_eq!(world.sh("cmp a.bin f.bin && git status --porcelain"), "");
}

/// Big files go into history neither as they are nor as pointers that nobody resolves.
#[test]
fn a_pattern_that_comes_or_goes_in_the_same_change_is_refused_by_name() {
    let world = kept();
    for (script, name) in [
        (
            "git lfs track '*.foo' >/dev/null; echo foo > a.foo",
            "`a.foo` is to be kept by Git LFS by",
        ),
        (": > .gitattributes; echo real > n.bin", "`n.bin` is to be kept by Git LFS no more"),
    ] {
        world.run(&["--no-check"], script).expect_code(1).says(name);
        assert_eq!(world.git(["status", "--porcelain"]), "");
    }
    world.run(&["--no-check"], "git lfs track '*.foo'").expect_code(0);
    world.run(&["--no-check"], "echo foo > a.foo").expect_code(0);
    assert!(world.git(["show", "main:a.foo"]).starts_with("version https://git-lfs"));
    assert_eq!(world.git(["lfs", "fsck"]), "Git LFS fsck OK");
}

#[test]
fn content_that_was_not_fetched_is_named() {
    let world = kept();
    world.sh("rm -r .git/lfs/objects");
    world
        .run(&["--no-check"], "true")
        .expect_code(2)
        .says("`a.bin` is kept by Git LFS, and its content")
        .says("git lfs pull");
    let mut command = world.dam_command(["run", "--no-check", "--", "sh", "-c"]);
    command.arg("head -1 b.bin; echo x > x").env("GIT_LFS_SKIP_SMUDGE", "1");
    let done = command.output().expect("dam");
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(done.stdout.starts_with(b"version https://git-lfs"));
}

#[test]
fn without_its_program_such_a_repository_is_refused() {
    let world = kept();
    world.sh("git config --global filter.lfs.process 'no-such-program x'");
    world.run(&["--no-check"], "true").expect_code(2).says("`no-such-program` is not installed");
    world.sh("git config --global --remove-section filter.lfs");
    world.run(&["--no-check"], "true").expect_code(2).says("`git lfs install` was not run");
    // One that has nothing to do with it is not.
    world.sh("git rm -q -r -f . && echo a > a.txt && git add . && git commit -qm plain");
    world.run(&["--no-check"], "echo x > x").expect_code(0);
}

#[test]
fn a_crash_while_content_is_published_leaves_it_to_be_landed() {
    for place in ["publish:lfs:before@1", "publish:lfs:written@1", "publish:lfs:after@2"] {
        let world = kept();
        let tip = world.git(["rev-parse", "main"]);
        let task = "echo one > n.bin; echo two > m.bin";
        kill_at(
            world.dam_command(["run", "--no-check", "--name", "t", "--", "sh", "-c", task]),
            place,
        );
        assert_eq!(world.git(["rev-parse", "main"]), tip, "{place}");
        assert_eq!(world.git(["status", "--porcelain"]), "", "{place}");
        assert_eq!(world.state_of("t"), "ready", "{place}");
        world.dam(["land", "t"]).expect_code(0);
        assert_eq!(world.sh("cat n.bin m.bin"), "one\ntwo", "{place}");
        assert_eq!(world.git(["lfs", "fsck"]), "Git LFS fsck OK");
    }
}

#[test]
fn attributes_outside_of_the_tree_count() {
    let world = kept();
    world.sh("git rm -q --cached .gitattributes; mv .gitattributes .git/info/attributes; \
         git commit -qm outside");
    world
        .run(&["--no-check"], "test $(stat -c %s a.bin) = 300000 && printf new > n.bin")
        .expect_code(0);
    assert!(world.git(["show", "main:n.bin"]).ends_with("size 3"));
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

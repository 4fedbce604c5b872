//! A superproject whose submodules a task needs, and a submodule's own checkout.

use super::{at, lands, world};
use crate::support::{World, levels};

/// `super`, with `vendor/li b` (which has `sub/deep` in turn) initialised, and `other`
/// that is not.
fn superproject() -> World {
    let mut world = world();
    world.sh(
        "for name in deep lib other; do git init -q ../$name; cd ../$name; echo $name > $name.txt; \
         echo '*.o' > .gitignore; mkdir dir; echo 1 > dir/one; git add .; git commit -qm $name; \
         git tag v1-$name; done; \
         cd ../lib; git submodule -q add ../deep sub/deep; git commit -qm deep; \
         git init -q ../super; cd ../super; echo hello > a.txt; echo '*.log' > .gitignore; \
         git submodule -q add ../lib 'vendor/li b'; git submodule -q add ../other; git add .; \
         git commit -qm first; git submodule -q update --init --recursive; \
         git submodule -q deinit -f other",
    );
    at(&mut world, "super");
    world
}

#[test]
fn the_checkout_of_a_submodule() {
    let mut world = superproject();
    world.sh("git -C 'vendor/li b' checkout -q -B main; echo hello > 'vendor/li b/a.txt'; \
              git -C 'vendor/li b' add .; git -C 'vendor/li b' commit -qm a");
    at(&mut world, "super/vendor/li b");
    lands(&mut world);
}

#[test]
fn initialised_submodules_are_there_with_a_git_of_their_own() {
    for level in levels() {
        let mut world = superproject();
        world.at_level(level);
        let look = "set -e; test -z \"$(git status --short)\"; grep -q deep 'vendor/li b/sub/deep/deep.txt'; \
                    test -z \"$(ls other)\"; cd 'vendor/li b'; test -z \"$(git status --short)\"; \
                    git log --format=%s | grep -qx lib; cd sub/deep; test \"$(git describe --tags)\" = v1-deep";
        // Twice: the second stands on a delta.
        for round in 0..2 {
            let task = format!("{look}; cd ../../../..; echo {round} >> a.txt");
            world.run(&["--check", look], &task).expect_code(0);
        }
        assert_eq!(world.git(["status", "--porcelain"]), "");
        assert_eq!(world.read("a.txt"), "hello\n0\n1\n");
        lands(&mut world);
    }
}

#[test]
fn changes_inside_of_one_are_refused_by_name() {
    for level in levels() {
        let mut world = superproject();
        world.at_level(level);
        let before = world.git(["rev-parse", "main"]);
        for task in [
            "echo x >> 'vendor/li b/lib.txt'",
            "echo x > 'vendor/li b/new'",
            "rm 'vendor/li b/dir/one'",
            "chmod +x 'vendor/li b/lib.txt'",
            "cd 'vendor/li b' && rm -r dir && ln -s lib.txt dir",
            "cd 'vendor/li b' && rm lib.txt && mkdir lib.txt && echo > lib.txt/x",
            "cd 'vendor/li b' && echo x >> lib.txt && git commit -qam x",
            "mv 'vendor/li b/dir' 'vendor/li b/moved'",
            "cp -a vendor v2 && rm -r vendor && mv v2 vendor && echo x >> 'vendor/li b/lib.txt'",
        ] {
            let done = world.run(&["--no-check"], &format!("echo y >> a.txt; {task}"));
            done.expect_code(1)
                .says("`vendor/li b` is a submodule, and changes inside one can't land");
        }
        world
            .run(&["--no-check"], "echo x > 'vendor/li b/sub/deep/new'")
            .expect_code(1)
            .says("is a submodule");
        assert_eq!(world.git(["rev-parse", "main"]), before);
        assert_eq!(world.git(["status", "--porcelain"]), "");
    }
}

#[test]
fn what_is_ignored_or_as_it_was_inside_of_one_is_in_nobodys_way() {
    for level in levels() {
        let mut world = superproject();
        world.at_level(level);
        for (round, task) in [
            "touch 'vendor/li b/x.o' 'vendor/li b/sub/deep/lib.txt.o'",
            "chmod 600 'vendor/li b/lib.txt'; touch 'vendor/li b/lib.txt'",
            "cp -a 'vendor/li b/lib.txt' t && rm 'vendor/li b/lib.txt' && mv t 'vendor/li b/lib.txt'",
            "cp -a vendor v2 && rm -r vendor && mv v2 vendor",
            "mkdir -p 'vendor/li b/empty/dir'; mkfifo 'vendor/li b/fifo'",
        ]
        .iter()
        .enumerate()
        {
            world.run(&["--no-check"], &format!("set -e; echo {round} >> a.txt; {task}")).expect_code(0);
            assert_eq!(world.git(["show", "--format=", "--name-only"]), "a.txt", "{task}");
        }
        assert_eq!(world.git(["status", "--porcelain"]), "");
    }
}

#[test]
fn a_submodule_can_be_removed_whole() {
    for level in levels() {
        let mut world = superproject();
        world.at_level(level);
        world.run(&["--no-check"], "rm -rf 'vendor/li b'").expect_code(0);
        assert!(!world.git(["ls-tree", "-r", "main"]).contains("li b"));
        // The person's files in it are not ours to delete.
        assert!(world.path("vendor/li b/lib.txt").exists());
    }
}

#[test]
fn a_check_sees_the_submodule_that_the_target_has_by_now() {
    let world = superproject();
    world.run(&["--no-check", "--no-land", "--name", "t"], "echo x >> a.txt").expect_code(8);
    world.sh("cd 'vendor/li b'; echo newer > lib.txt; git commit -qam newer; cd ../..; git commit -qam moved");
    world
        .dam(["land", "t", "--check", "grep -q newer 'vendor/li b/lib.txt' && grep -q x a.txt"])
        .expect_code(0);
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

#[test]
fn a_verdict_without_the_submodule_is_none_with_it() {
    let world = superproject();
    let check = "test -f 'vendor/li b/lib.txt'";
    world.sh("git submodule -q deinit -f 'vendor/li b'");
    world.run(&["--name", "t", "--check", check], "echo x > a.txt");
    assert_eq!(world.state_of("t"), "ready", "the target fails as well");
    world.sh("git submodule -q update --init --recursive");
    world.dam(["land", "t", "--check", check]).expect_code(0);
}

#[test]
fn a_submodule_that_lacks_its_commit_is_named() {
    let world = superproject();
    world.sh("echo newer > ../lib/new; git -C ../lib add .; git -C ../lib commit -qm newer; \
              git update-index --cacheinfo 160000,$(git -C ../lib rev-parse HEAD),'vendor/li b'; \
              git commit -qm ahead");
    world
        .run(&["--no-check"], "true")
        .expect_code(2)
        .says("the submodule `vendor/li b` does not have")
        .says("git submodule update");
    world.sh("git submodule -q update");
    world.run(&["--no-check"], "test -f 'vendor/li b/new' && echo x > x").expect_code(0);
}

#[test]
fn another_commit_of_one_is_refused_by_name() {
    let world = superproject();
    let before = world.git(["rev-parse", "main"]);
    for (task, name) in [
        (
            "cd 'vendor/li b'; git commit -q --allow-empty -m newer; cd -; git add 'vendor/li b'; git commit -qm bump",
            "vendor/li b",
        ),
        (
            "git update-index --cacheinfo 160000,$(git rev-parse HEAD),other; echo y >> a.txt",
            "other",
        ),
        ("git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),new", "new"),
    ] {
        let done = world.run(&["--no-check"], task);
        done.expect_code(1).says(&format!("`{name}` is a submodule, and another commit"));
        assert_eq!(world.git(["rev-parse", "main"]), before);
    }
}

//! What needs a flag, and what can't be worked on.

use super::{at, world};
use crate::support::{Done, World, fingerprint, levels};

/// `dam run` of a task that would change something, which must not come to it.
#[track_caller]
fn refuses(world: &World, options: &[&str], says: &str) -> Done {
    let before = fingerprint(&world.repo);
    let done = world.run(&[options, &["--no-check"]].concat(), "echo x > x");
    done.expect_code(2).says(says);
    assert_eq!(fingerprint(&world.repo), before);
    assert_eq!(world.dam(["list"]).stdout.lines().count(), 0, "a task was begun");
    done
}

#[test]
fn no_repository() {
    let mut world = world();
    at(&mut world, "home");
    refuses(&world, &[], "is not inside a git repository").says("change into the repository");
}

#[test]
fn a_branch_without_a_commit() {
    let world = World::empty();
    refuses(&world, &[], "has no commit yet").says("first commit");
}

#[test]
fn the_home_directory_as_a_repository() {
    let mut world = world();
    world.sh("git init -q ../home; cd ../home; git commit -q --allow-empty -m first");
    at(&mut world, "home");
    refuses(&world, &[], "home directory");
}

#[test]
fn the_root_directory_as_a_repository() {
    // Nobody makes one here: its git directory is elsewhere, and says so.
    let world = world();
    world.git(["config", "core.worktree", "/"]);
    let done = world.dam(["run", "--no-check", "--", "true"]);
    done.expect_code(2).says("`/` can't be a context: it is or holds the home directory");
}

#[test]
fn a_detached_head_needs_to_be_told_where_to_land() {
    let world = world();
    world.git(["checkout", "--quiet", "--detach"]);
    refuses(&world, &[], "HEAD is detached").says("--into BRANCH");
    world.run(&["--no-check", "--into", "main"], "echo x > x").expect_code(0);
    assert_eq!(world.git(["show", "main:x"]), "x");
    world.run(&["--no-check", "--branch", "--name", "new"], "echo y > y").expect_code(0);
    assert_eq!(world.git(["show", "dam/new:y"]), "y");
}

#[test]
fn missing_objects_of_a_partial_clone() {
    let mut world = world();
    world.sh("git config uploadpack.allowFilter true; \
              git clone -q --no-checkout --filter=blob:none \"file://$PWD\" ../partial");
    at(&mut world, "partial");
    let done = world.run(&["--no-check", "--name", "t"], "true");
    done.expect_code(2)
        .says("is missing in the repository")
        .says("git fetch --refetch --no-filter");
    assert!(!world.path("a.txt").exists(), "something was fetched or checked out");
    world.sh("git fetch -q --refetch --no-filter; git checkout -q main");
    world.run(&["--no-check"], "echo x > x").expect_code(0);
}

#[test]
fn missing_objects_of_a_target_that_moved_lose_no_work() {
    let mut world = world();
    world.sh(
        "git config uploadpack.allowFilter true; git config uploadpack.allowAnySHA1InWant true; \
              git clone -q --filter=blob:none \"file://$PWD\" ../partial",
    );
    let origin = world.repo.clone();
    at(&mut world, "partial");
    world.run(&["--no-check", "--no-land", "--name", "t"], "echo mine > a.txt").expect_code(8);
    world.sh_in(&origin, "echo theirs > a.txt; git commit -qam theirs");
    world.sh("git fetch -q; git update-ref refs/heads/main origin/main");
    world.dam(["land", "t", "--no-check"]).expect_code(2).says("is missing in the repository");
    assert_eq!(world.state_of("t"), "ready");
    assert!(world.dam(["diff", "t"]).expect_code(0).stdout.contains("+mine"));
}

#[test]
fn a_merge_or_rebase_in_progress_where_it_matters() {
    for (begin, named) in [
        ("git merge other", "merge"),
        ("git rebase other", "rebase"),
        ("git cherry-pick other", "cherry-pick"),
        ("git revert HEAD~1", "revert"),
    ] {
        let world = world();
        world.sh(
            "git checkout -q -b other; echo o > a.txt; git commit -qam o; git checkout -q main; \
                  echo m > a.txt; git commit -qam m; echo n > a.txt; git commit -qam n",
        );
        world.sh(&format!("{begin} >/dev/null 2>&1 && exit 1; true"));
        let tip = world.git(["rev-parse", "main"]);
        let status = world.git(["status", "--porcelain"]);
        world
            .run(&["--no-check", "--into", "main", "--name", "t"], "echo x > x")
            .expect_code(8)
            .says(&format!("{named} is in progress"));
        assert_eq!(world.git(["rev-parse", "main"]), tip, "{named}");
        assert_eq!(world.git(["status", "--porcelain"]), status, "{named}");
        // Where it does not matter, it is in nobody's way.
        world.run(&["--no-check", "--into", "other"], "echo x > x").expect_code(0);
    }
}

#[test]
fn a_dirty_checkout_is_told_and_lands_where_nothing_is_in_the_way() {
    let world = world();
    world.write("src/b.txt", "dirty\n");
    let done = world.run(&["--no-check"], "sleep 0.2; cat src/b.txt; echo x > x");
    done.expect_code(0).says("--carry-dirty");
    assert_eq!(done.stdout, "b\n");
    assert_eq!(world.read("src/b.txt"), "dirty\n");
    world
        .run(&["--no-check", "--name", "t"], "echo other > src/b.txt")
        .expect_code(8)
        .says("uncommitted changes are in the way");
    assert_eq!(world.read("src/b.txt"), "dirty\n");
}

#[test]
fn a_tip_that_git_shows_another_commit_for() {
    for refs in ["--quiet", "--ref-format=reftable"] {
        let mut world = world();
        let init = ["init", "--quiet", refs, "../replacing"];
        if !world.command("git").args(init).output().is_ok_and(|done| done.status.success()) {
            eprintln!("SKIPPED: this git knows no `{refs}`");
            continue;
        }
        at(&mut world, "replacing");
        world.write("a.txt", "a\n");
        world.commit("first");
        world.write("r.txt", "r\n");
        world.commit("second");
        let tip = world.git(["rev-parse", "HEAD"]);
        let replace = "git replace HEAD $(git commit-tree HEAD~1^{tree} -m f -p HEAD~1)";
        let mend = format!("git replace -d {tip} >/dev/null; git reset -q --hard");
        world.sh(&format!("{replace}; git reset -q --hard"));
        refuses(&world, &[], &tip).says("git replace -d");
        world.sh("git pack-refs --all");
        refuses(&world, &[], &tip);
        refuses(&world, &["--branch", "--base", &tip], &tip);
        world.run(&["--no-check", "--branch", "--base", "main~1"], "echo x > x").expect_code(0);
        // A task that waits goes on waiting.
        world.sh(&mend);
        world.run(&["--no-check", "--no-land", "--name", "t"], "echo t > t").expect_code(8);
        world.sh(replace);
        world.dam(["land", "--no-check", "t"]).expect_code(2).says(&tip);
        assert_eq!(world.state_of("t"), "ready");
        world.sh(&mend);
        world.dam(["land", "--no-check", "t"]).expect_code(0);
        assert_eq!(world.git(["status", "--porcelain"]), "");
        // Who has git not follow them can have them.
        world.sh(&format!("git config core.useReplaceRefs false; {replace}"));
        world.run(&["--no-check"], "echo y > y").expect_code(0);
        assert_eq!(world.git(["status", "--porcelain"]), "");
    }
}

#[test]
fn a_tag_or_branch_named_head_is_in_nobodys_way() {
    for name in ["refs/tags/HEAD", "refs/heads/HEAD"] {
        let mut world = world();
        world.git(["update-ref", name, "HEAD"]);
        for level in levels() {
            world.at_level(level);
            world.run(&["--no-check"], &format!("echo x > x-{level}")).expect_code(0);
            assert_eq!(world.read(&format!("x-{level}")), "x\n", "{name}");
        }
        assert_eq!(world.git(["status", "--porcelain"]), "", "{name}");
        // The branch that is checked out, not the commit that it is at.
        world.git(["checkout", "--quiet", "--detach"]);
        world.run(&["--no-check"], "echo y > y").expect_code(2).says("HEAD is detached");
    }
}

#[test]
fn outside_of_the_worktree_it_is_said_where_it_is() {
    let mut world = world();
    at(&mut world, "repo/.git");
    refuses(&world, &[], "inside of the git directory").says("change into the worktree");
    at(&mut world, "repo");
    std::fs::create_dir(world.dir().join("other")).expect("mkdir");
    let other = world.dir().join("other");
    let other = other.to_str().expect("utf-8");
    world.git(["config", "core.worktree", other]);
    refuses(&world, &[], &format!("the worktree of this repository is `{other}`"))
        .says("change into the worktree");
}

#[test]
fn what_git_can_not_work_on_is_said_in_gits_words() {
    let broken: [(&str, &str); 5] = [
        ("echo '[user' >> .git/config", "bad config line"),
        ("echo '[user' >> ~/.gitconfig", "/home/.gitconfig"),
        ("git config core.repositoryFormatVersion 99", "version <= 1, found 99"),
        (
            "git config core.repositoryFormatVersion 1; git config extensions.nonsense true",
            "extension found: nonsense",
        ),
        ("git config core.bare maybe", "core.bare"),
    ];
    for (how, says) in broken {
        let world = world();
        world.sh(how);
        let done = refuses(&world, &[], "git can't work on the repository at");
        done.says(says);
        assert!(!done.stderr.contains("rev-parse"), "{}", done.stderr);
    }
}

#[test]
fn objects_that_are_damaged_or_missing_are_named() {
    for (revision, damage, says) in [
        ("HEAD", "echo no >", "is corrupt"),
        ("HEAD^{tree}", "echo no >", "is corrupt"),
        ("HEAD:a.txt", "echo no >", "is corrupt"),
        ("HEAD", "rm -f", "is missing in the repository"),
        ("HEAD:a.txt", "rm -f", "is missing in the repository"),
    ] {
        let world = world();
        let oid = world.git(["rev-parse", revision]);
        let (dir, file) = oid.split_at(2);
        let path = format!(".git/objects/{dir}/{file}");
        world.sh(&format!("chmod u+w {path}; {damage} {path}"));
        let done = world.run(&["--no-check", "--name", "t"], "echo x > x");
        done.expect_code(2).says(&format!("object {oid} ")).says(says).says("`git fsck`");
        assert!(!world.path("x").exists());
    }
}

#[test]
fn a_current_directory_that_is_gone_is_said() {
    let world = world();
    let dam = crate::support::dam_binary().display().to_string();
    let said = world.sh(&format!(
        "mkdir gone; cd gone; rmdir ../gone; set +e; {dam} run --no-check -- true 2>&1; echo $?"
    ));
    assert!(said.contains("the current directory is not there any more"), "{said}");
    assert!(said.ends_with("\n2"), "{said}");
}

#[test]
fn a_repository_without_a_commit_in_the_checkout_is_not_carried() {
    let world = world();
    world.sh("mkdir sub; git init -q sub/nest");
    world
        .run(&["--no-check", "--carry-dirty", "--name", "t"], "true")
        .expect_code(2)
        .says("`sub/nest` is a repository without a commit");
    assert_eq!(world.state_of("t"), "failed");
    world.sh("echo sub/ > .git/info/exclude");
    world.run(&["--no-check", "--carry-dirty"], "true").expect_code(0);
}

#[test]
fn a_branch_that_can_not_be_made_is_known_before_anything_begins() {
    for other in ["dam", "dam/t/x"] {
        let world = world();
        world.git(["branch", other]);
        // None of these is.
        for beside in ["da", "damn", "x/dam", "x/t"] {
            world.git(["branch", beside]);
        }
        let says = format!("the branch `{other}` is in the way");
        refuses(&world, &["--branch", "--name", "t"], &says).says("git branch -m");
        world.git(["branch", "--move", other, "other"]);
        world.git(["branch", "dam/t2"]);
        world.run(&["--no-check", "--branch", "--name", "t"], "echo x > x").expect_code(0);
        assert_eq!(world.git(["show", "dam/t:x"]), "x");
    }
}

#[test]
fn mail_that_is_being_applied_is_no_rebase() {
    let world = world();
    world.sh(
        "git checkout -q -b other; echo o > a.txt; git commit -qam o; git format-patch -q -1 -o ..; \
         git checkout -q main; echo m > a.txt; git commit -qam m; \
         git am ../0001-o.patch >/dev/null 2>&1 && exit 1; true",
    );
    world.run(&["--no-check"], "echo x > x").expect_code(8).says("`git am` is in progress");
}

#[test]
fn a_configuration_that_is_a_directory_is_said() {
    let world = world();
    world.write("cofferdam.toml/file", "");
    world.commit("a directory");
    refuses(&world, &[], "`cofferdam.toml` is a directory in this repository");
}

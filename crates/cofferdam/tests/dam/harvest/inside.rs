//! git inside of a context.

use super::{lands_as, outside, prepared, refused, same, same_after, tree};
use crate::support::World;

#[test]
fn git_operations_inside_leave_the_work_as_it_lies() {
    let setup = "mkdir d; for i in 1 2 3 4; do echo $i > d/$i; done; echo l > l.txt";
    for script in [
        "echo 1 > n; git add n; git commit -qm n; echo 2 > m; git add m; git commit -qm m; echo 3 > o",
        "echo 1 > a.txt; echo 2 > n; git stash -qu; echo 3 > d/1; git stash pop -q",
        "git switch -qc feature; echo 1 > a.txt; git commit -qam f; git switch -q -; echo 2 > d/2; git merge -q feature 2>/dev/null || git merge -q --no-edit feature || true; test -f a.txt",
        "echo 1 > a.txt; git commit -qam one; git reset -q --hard HEAD~1; echo 2 > d/3",
        "echo 1 > a.txt; git commit -qam one; git reset -q --soft HEAD~1; git rm -q d/4; git mv l.txt d/l.txt",
        "echo 1 > n; git add n; git commit -qm n; git gc -q --prune=now; git repack -qad; echo 2 >> n",
        "git checkout -qb top; echo 1 > a.txt; git commit -qam one; git checkout -qb side HEAD~1; echo 2 > n; git add n; git commit -qm two; git rebase -q top; echo 3 > m",
        "git checkout -q HEAD~1; echo 1 > x; git add x; git commit -qm detached",
        "rm -rf .git; echo 1 > a.txt; rm d/1",
    ] {
        let outside_script = script.replace("rm -rf .git", "true");
        for delta in [false, true] {
            let world = prepared("true", setup, delta);
            let wanted = outside(&world, &outside_script);
            lands_as(&world, script, &wanted);
        }
    }
}

#[test]
fn a_commit_that_was_amended_and_a_worktree_inside() {
    same(
        "true",
        "echo 1 > a.txt; git commit -qam x; echo 2 > a.txt; git commit -qa --amend -m y; w=$(mktemp -d)/w; git worktree add -q $w HEAD; echo z > $w/z; git worktree remove --force $w",
    );
}

/// `git status` is clean at once, and the index is the very file that the layer
/// brought: nothing was read again, nothing written.
#[test]
fn the_first_status_writes_nothing() {
    let look = "before=$(stat -c '%i %Y %Z %s' .git/index); git status --porcelain > /tmp/s; git diff --stat >> /tmp/s; \
         git diff --cached --stat >> /tmp/s; cat /tmp/s; test ! -s /tmp/s; test \"$before\" = \"$(stat -c '%i %Y %Z %s' .git/index)\"";
    let setup = "mkdir -p d/e; for i in $(seq 50); do echo $i > d/e/$i; done; ln -s e d/l; chmod 755 d/e/1; rm src/b.txt; echo f > src/c";
    for delta in [false, true] {
        for attributes in ["true", "echo '* text=auto eol=crlf' > .gitattributes"] {
            let world = prepared("true", &format!("{attributes}; {setup}"), delta);
            world.run(&["--no-check"], look).expect_code(0);
            world
                .run(&["--no-check"], "echo 1 > d/e/1; rm -r d/l; mkdir n; echo n > n/n")
                .expect_code(0);
            world.run(&["--no-check"], look).expect_code(0);
            world.run(&["--no-check"], "rm -r d; echo d > d; rm n/n; ln -s x n/n").expect_code(0);
            world.run(&["--no-check"], look).expect_code(0);
        }
    }
}

/// Whoever runs git in a context with nothing to write to has no lock to wait for.
#[test]
fn every_file_of_the_index_counts_as_fresh() {
    let world = prepared("true", "mkdir d; for i in $(seq 20); do echo $i > d/$i; done", true);
    // With the content unreadable, only stat data can say that nothing changed.
    let script = "chmod a-r a.txt; git update-index --refresh; git ls-files --debug d/1 d/20 | grep -c 'mtime: [1-9]'";
    let done = world.run(&["--no-check"], script);
    done.expect_code(0);
    assert!(done.stdout.contains('2'), "{}", done.stdout);
}

#[test]
fn an_edit_of_the_same_size_in_the_same_second_is_seen() {
    for delta in [false, true] {
        let world = prepared("true", "echo aaaa > same", delta);
        world
            .run(
                &["--no-check"],
                "echo bbbb > same; test \"$(git status --porcelain)\" = ' M same'; git add same; echo cccc > same; \
                 test \"$(git status --porcelain)\" = 'MM same'",
            )
            .expect_code(0);
        assert_eq!(world.read("same"), "cccc\n");
    }
}

#[test]
fn history_tags_and_remote_branches_are_there() {
    let world = World::new();
    world.sh(
        "git tag -a v1 -m v1; git tag light; echo 2 > a.txt; git commit -qam second; git init -q --bare ../up.git; \
         git remote add origin ../up.git; git push -q origin main; git pack-refs --all; git branch other; git notes add -m note",
    );
    let describe = world.git(["describe", "--tags"]);
    let done = world.run(
        &["--no-check"],
        "git describe --tags; git log --oneline | wc -l; git rev-parse origin/main other light v1^{commit}; git notes show; \
         git symbolic-ref HEAD; git log --oneline origin/main..; git blame a.txt | wc -l; git fsck --strict 2>&1 | grep -v -e dangling -e '^notice' || true",
    );
    done.expect_code(0);
    let head = world.git(["rev-parse", "HEAD"]);
    let first = world.git(["rev-parse", "HEAD~1"]);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(lines[..2], [describe.as_str(), "2"]);
    assert_eq!(lines[2..6], [&head, &head, &first, &first]);
    assert_eq!(lines[6], "note");
    assert!(lines[7].starts_with("refs/heads/dam/"), "{lines:?}");
    assert_eq!(lines[8..], ["1"]);
}

#[test]
fn a_check_sees_the_very_commit_that_lands() {
    for delta in [false, true] {
        let world = prepared("true", "mkdir d; echo 1 > d/f", delta);
        let check = "before=$(stat -c '%i %Y %Z %s' .git/index); git status --porcelain > /tmp/s; cat /tmp/s; test ! -s /tmp/s; \
             test \"$before\" = \"$(stat -c '%i %Y %Z %s' .git/index)\"; git rev-parse HEAD > /tmp/h; git log -1 --format=%s; git fsck --strict >/tmp/f 2>&1; \
             ! grep -v -e dangling -e '^notice' /tmp/f; test \"$(git show HEAD:d/f)\" = 2; test ! -e gone.log; test \"$(git cat-file -p HEAD | sed -n 's/^tree //p')\" = \"$(git write-tree)\"";
        world
            .run(
                &["--check", check, "-m", "wanted"],
                "echo 2 > d/f; rm a.txt; ln -s d l; echo x > gone.log",
            )
            .expect_code(0);
        assert_eq!(world.subjects("main")[0], "wanted");
    }
}

#[test]
fn layers_upon_changes_of_every_kind_are_right() {
    let steps = [
        "mkdir -p d/e; echo 1 > d/e/f; ln -s e d/l; echo 2 > x; echo 3 > X",
        "rm -r d/e; echo file > d/e; rm d/l; mkdir d/l; echo 1 > d/l/m",
        "rm d/e; mkdir d/e; echo 9 > d/e/f; rm -r d/l; ln -s e d/l; chmod 755 x",
        "rm -r d; ln -s src d; mv x y",
        "rm d; mkdir d; echo 1 > d/1; rm X; mkdir X; echo 2 > X/x",
        "rm -r src X; echo src > src; echo X > X",
        "rm src; mkdir src; echo b > src/b.txt; chmod 644 ci",
    ];
    let world = World::new();
    for (number, step) in steps.iter().enumerate() {
        let copy = world.dir().join("outside");
        let _ = std::fs::remove_dir_all(&copy);
        let wanted = outside(&world, step);
        world.run(&["--no-check", "--name", &format!("s{number}")], step).expect_code(0);
        assert_eq!(tree(&world, "main"), wanted, "{step}");
        // What the next task sees is that tree, file by file.
        world
            .run(
                &["--no-check"],
                "test -z \"$(git status --porcelain --ignored)\"; git diff --exit-code HEAD",
            )
            .expect_code(0);
        assert_eq!(world.git(["status", "--porcelain"]), "", "{step}");
    }
}

/// Debian 12 has git 2.39.
#[test]
fn an_older_git_gives_the_same_trees() {
    if !std::process::Command::new("/usr/bin/git")
        .arg("version")
        .output()
        .is_ok_and(|done| done.status.success())
    {
        eprintln!("SKIPPED: no /usr/bin/git to compare with");
        return;
    }
    for (setup, script) in [
        (
            "mkdir -p d/e; echo 1 > d/e/f; ln -s f d/e/l",
            "rm -r d; mkdir d; echo 2 > d/n; chmod 755 a.txt; rm src/b.txt; echo x > '-a\"b'",
        ),
        (
            "printf '* text=auto\\n*.c ident\\n' > .gitattributes",
            "printf 'a\\r\\n' > n.txt; printf '$Id: x $\\n' > i.c; printf 'a\\0\\r\\n' > b",
        ),
        ("echo 'gen/' >> .gitignore", "mkdir gen; echo 1 > gen/x; echo 2 > a.log; echo 3 > y"),
    ] {
        for delta in [false, true] {
            let mut world = World::new();
            world.prefer("/usr/bin:/bin");
            if delta {
                world.run(&["--no-check"], "true").expect_code(0);
            }
            world.sh(setup);
            world.commit("setup");
            let wanted = outside(&world, script);
            lands_as(&world, script, &wanted);
            world
                .run(&["--check", "test -z \"$(git status --porcelain)\"; git log --oneline"], "git status --porcelain > /tmp/s; test ! -s /tmp/s; echo more > more; git add more; git commit -qm more; git stash list")
                .expect_code(0);
            assert_eq!(world.git(["status", "--porcelain"]), "");
        }
    }
}

/// What a sparse checkout inside leaves out is not deleted; what is deleted beside it is.
#[test]
fn what_a_sparse_checkout_inside_leaves_out_stays() {
    let setup = "mkdir -p big/deep keep; echo b > big/b; echo d > big/deep/d; echo k > keep/k; \
                 for i in 1 2 3 4; do echo $i > src/$i; done";
    for script in [
        "git sparse-checkout set src; echo z > src/z; git add src/z; git commit -qm z",
        "git sparse-checkout set keep; echo more >> keep/k; rm a.txt",
        "git sparse-checkout set --no-cone '/*' '!/src/1'; rm -r src; mkdir src; echo 9 > src/9; git add --sparse src/9",
        "git sparse-checkout set src; git sparse-checkout disable; rm big/b; echo 1 > a.txt",
        "git sparse-checkout set src; git update-index --index-version 4; echo z > src/z",
    ] {
        same(setup, script);
    }
    for makes in ["echo 1 > big/b", "echo 1 > big/new"] {
        let script = format!("{makes}; git add big; git commit -qm b; git sparse-checkout set src");
        refused(setup, &script, "is left out by a sparse checkout and not as it was");
    }
    refused(setup, "git sparse-checkout set --sparse-index src; echo z > src/z", "sparse index");
}

#[test]
fn what_the_task_tracks_no_more_is_gone() {
    let setup = "mkdir -p build/deep; echo o > build/o; echo p > build/p; echo d > build/deep/d";
    for script in [
        "git rm -rq --cached build; echo build/ > .gitignore; git add .gitignore; git commit -qm untrack",
        "git rm -q --cached build/o build/deep/d; printf 'build/o\\ndeep\\n' > .gitignore; echo 2 > build/o",
        "git rm -rq --cached build; echo 2 > build/p",
        "git rm -rq --cached .; echo '*' > .gitignore",
        "git update-index --index-version 4; git rm -rq --cached build; echo build > .gitignore; mkdir n; echo n > n/n",
    ] {
        same(setup, script);
    }
}

/// As git has it: the disk does not say what can be executed, the index does.
#[test]
fn the_index_says_what_can_be_executed_where_the_disk_does_not() {
    same_after(
        "git config core.fileMode false",
        "echo r > run; git add run; git update-index --chmod=+x run; echo s > stays",
        "echo x > n.sh; git add --chmod=+x n.sh; git update-index --chmod=+x a.txt --chmod=-x run; \
         git commit -qm x; chmod 755 stays; echo m > new; chmod 755 new",
    );
}

/// Work that only the task's git has is told of, and with nothing else its context stays.
#[test]
fn work_that_is_only_in_the_git_inside_is_not_thrown_away() {
    for (script, what) in [
        ("echo 1 >> a.txt; git stash -q", "`.git/refs/stash` is a stash"),
        (
            "git checkout -qb work; echo 1 >> a.txt; git commit -qam w; git checkout -q -",
            "`.git/refs/heads/work` is a branch with commits of its own",
        ),
    ] {
        let world = World::new();
        world.run(&["--no-check", "--name", "t"], script).expect_code(1).says(what);
        assert_eq!(world.state_of("t"), "failed");
        world.dam(["enter", "t", "--", "git", "checkout", "-q", "HEAD"]).expect_code(0);
        let with_more = format!("{script}; echo more > more");
        world.run(&["--no-check"], &with_more).expect_code(0).says(what);
    }
    let world = World::new();
    let done = world.run(
        &["--no-check"],
        "git checkout -qb work; echo 1 >> a.txt; git commit -qam w; git tag t; git branch -f other",
    );
    done.expect_code(0);
    assert!(!done.stderr.contains("which are not taken"), "{}", done.stderr);
}

#[test]
fn a_conflict_inside_is_told_of() {
    let world = World::new();
    let script = "git checkout -qb o; echo o > a.txt; git commit -qam o; git checkout -q -; echo m > a.txt; \
                  git commit -qam m; git merge o || true";
    world
        .run(&["--no-check"], script)
        .expect_code(0)
        .says("`a.txt` is in conflict in the task's git")
        .says("a merge that was not finished");
}

/// An index that is split is not taken for one that tracks nothing more.
#[test]
fn an_index_that_is_split_counts_as_unreadable() {
    let world = World::new();
    let script = "git config splitIndex.maxPercentChange 100; git update-index --split-index; \
                  echo '*' > .gitignore; echo n > n; git add -f n";
    world.run(&["--no-check"], script).expect_code(0).says("it is split");
    assert!(world.path("a.txt").exists());
}

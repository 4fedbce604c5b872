//! Linked worktrees, submodules, and settings that change what a checkout is.

use super::{lands, snapshot, waits};
use crate::support::{Done, World};

fn run_in(world: &World, dir: &str, options: &[&str], script: &str) -> Done {
    let args = [&["run", "--no-check"], options, &["--", "sh", "-c", script]].concat();
    let mut command = world.dam_command(args);
    command.current_dir(world.dir().join(dir));
    Done::from(command.output().expect("dam"))
}

#[test]
fn a_linked_worktree_is_a_place_to_run_in() {
    let world = World::new();
    world.sh("git worktree add -q -b side ../linked; echo s > ../linked/side.txt; cd ../linked; git add -A; git commit -qm side");
    let before = snapshot(&world).replace(' ', "");
    let done = run_in(
        &world,
        "linked",
        &[],
        "cat side.txt; git status --porcelain; echo theirs > a.txt; git rev-parse --show-toplevel",
    );
    done.expect_code(0);
    assert!(done.stdout.starts_with("s\n/"), "{}", done.stdout);
    assert_eq!(world.sh("cd ../linked; git status --porcelain; cat a.txt"), "theirs");
    assert_eq!(world.git(["rev-parse", "main"]), world.git(["rev-parse", "side~2"]));
    assert_eq!(world.read("a.txt"), "hello\n");
    assert_eq!(world.git(["status", "--porcelain"]), "");
    assert!(!before.is_empty());
}

#[test]
fn a_linked_worktree_that_has_the_target_follows() {
    let world = World::new();
    world.sh("git worktree add -q -b side ../linked");
    run_in(&world, "repo", &["--into", "side"], "echo theirs > a.txt").expect_code(0);
    assert_eq!(world.sh("cd ../linked; git status --porcelain; cat a.txt"), "theirs");
    assert_eq!(world.read("a.txt"), "hello\n");
    world.sh("echo mine > ../linked/a.txt");
    run_in(&world, "repo", &["--into", "side"], "echo more > a.txt").expect_code(8).says("linked");
    assert_eq!(world.sh("cat ../linked/a.txt"), "mine");
    // From the linked worktree into the branch of the main one.
    run_in(&world, "linked", &["--into", "main"], "echo up > up.txt").expect_code(0);
    assert_eq!(world.read("up.txt"), "up\n");
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

#[test]
fn a_linked_worktree_that_is_away_is_waited_for_or_forgotten() {
    let world = World::new();
    world.sh("git worktree add -q -b side ../linked; git worktree lock ../linked");
    let into_side = |name: &str, script: &str| {
        run_in(&world, "repo", &["--into", "side", "--name", name], script)
    };
    // What was mounted there, and then the directory as well.
    for away in ["mv ../linked ../away; mkdir ../linked", "rmdir ../linked"] {
        world.sh(away);
        let tip = world.git(["rev-parse", "side"]);
        into_side("t", "echo z > z")
            .expect_code(8)
            .says(&format!("`{}` has the branch", world.dir().join("linked").display()))
            .says("git worktree prune");
        assert_eq!(world.state_of("t"), "ready");
        assert_eq!(world.git(["rev-parse", "side"]), tip);
        world.dam(["drop", "t"]).expect_code(0);
    }
    // It comes back.
    into_side("u", "echo z > z").expect_code(8);
    world.sh("mv ../away ../linked");
    world.dam(["land", "u"]).expect_code(0);
    assert_eq!(world.sh("cd ../linked; git status --porcelain; cat z"), "z");
    // It is gone for good.
    world.sh("rm -r ../linked");
    into_side("v", "echo v > z").expect_code(8).says("git worktree unlock");
    world.sh("git worktree unlock ../linked; git worktree prune");
    world.dam(["land", "v"]).expect_code(0);
    assert_eq!(world.git(["show", "side:z"]), "v");
}

#[test]
fn a_worktree_that_its_separate_git_directory_does_not_name_is_asked_for() {
    let world = World::new();
    world.sh("mkdir ../gits; git init -q --separate-git-dir ../gits/apart; git worktree add -q -b side ../linked");
    run_in(&world, "linked", &["--into", "main", "--name", "t"], "echo z > z")
        .expect_code(8)
        .says("gits/apart` has the branch checked out, and does not say where");
    assert!(!world.dir().join("gits/z").exists());
    world.sh("git --git-dir=../gits/apart config core.worktree ../../repo; mv ../repo ../away");
    let land = || {
        let mut land = world.dam_command(["land", "--no-check", "t"]);
        Done::from(land.current_dir(world.dir().join("linked")).output().expect("dam"))
    };
    land().expect_code(8).says("git can't go to its worktree");
    assert!(!world.dir().join("gits/z").exists());
    std::fs::rename(world.dir().join("away"), &world.repo).expect("rename");
    land().expect_code(0);
    assert_eq!(world.sh("git status --porcelain; cat z"), "z");
}

/// Makes a repository `tables` whose refs are in tables; false where git knows none.
fn make_tables(world: &World) -> bool {
    let made = std::process::Command::new("git")
        .args(["init", "-q", "--ref-format=reftable", "-b", "main", "tables"])
        .current_dir(world.dir())
        .output();
    if !made.is_ok_and(|done| done.status.success()) {
        eprintln!("SKIPPED: this git has no reftables");
        return false;
    }
    world.sh("cd ../tables; git config user.name A; git config user.email a@b; echo 1 > a.txt; git add -A; git commit -qm first");
    true
}

#[test]
fn a_checkout_follows_whatever_symbolic_branch_names_the_target() {
    symbolic_branches(&World::new(), "repo");
}

#[test]
fn symbolic_branches_on_reftables_are_followed() {
    let world = World::new();
    if make_tables(&world) {
        symbolic_branches(&world, "tables");
    }
}

fn symbolic_branches(world: &World, repo: &str) {
    let dir = world.dir().join(repo);
    let clean = |files: &str| {
        assert_eq!(world.sh_in(&dir, "git status --porcelain; cat [x-z]*"), files);
    };
    world.sh_in(&dir, "git symbolic-ref refs/heads/alias refs/heads/main");
    world.sh_in(&dir, "git symbolic-ref refs/heads/far refs/heads/alias");
    run_in(world, repo, &["--into", "far", "--name", "t"], "echo w > x1").expect_code(0);
    clean("w");
    // Landings into one branch are serial, so all of them have to call it the same.
    assert_eq!(world.task("t")["target"], "main");
    world.sh_in(&dir, "git symbolic-ref HEAD refs/heads/far");
    run_in(world, repo, &[], "echo x > x2").expect_code(0);
    clean("w\nx");
    run_in(world, repo, &["--into", "main"], "echo y > x3").expect_code(0);
    clean("w\nx\ny");
    // Symbolic since the task was harvested.
    world.sh_in(&dir, "git branch late main; git symbolic-ref HEAD refs/heads/main");
    run_in(world, repo, &["--no-land", "--into", "late", "--name", "late"], "echo z > x4")
        .expect_code(8);
    world.sh_in(&dir, "git symbolic-ref refs/heads/late refs/heads/main");
    world.dam(["land", "--no-check", "late"]).expect_code(0);
    clean("w\nx\ny\nz");
    for symbolic in ["alias", "far", "late"] {
        world.sh_in(&dir, &format!("git symbolic-ref -q refs/heads/{symbolic}"));
    }
    // What stands for no branch is no target.
    world.sh_in(&dir, "git symbolic-ref refs/heads/dangling refs/heads/gone");
    run_in(world, repo, &["--into", "dangling"], "echo x > x")
        .expect_code(2)
        .says("`dangling` stands for the branch `gone`, which does not exist");
    world.sh_in(&dir, "git tag one; git symbolic-ref refs/heads/tag refs/tags/one");
    run_in(world, repo, &["--into", "tag"], "echo x > x")
        .expect_code(2)
        .says("`tag` stands for `refs/tags/one`, which is no branch");
}

#[test]
fn a_checkout_on_reftables_follows() {
    let world = World::new();
    if !make_tables(&world) {
        return;
    }
    world.sh("cd ../tables; git worktree add -q -b side ../linked");
    run_in(&world, "tables", &[], "echo 2 > a.txt").expect_code(0);
    assert_eq!(world.sh("cd ../tables; git status --porcelain; cat a.txt"), "2");
    run_in(&world, "tables", &["--into", "side"], "echo 3 > a.txt").expect_code(0);
    assert_eq!(world.sh("cd ../linked; git status --porcelain; cat a.txt"), "3");
}

#[test]
fn a_repository_with_sha_256() {
    let world = World::new();
    world.sh("git init -q --object-format=sha256 -b main ../sha; cd ../sha; git config user.name A; git config user.email a@b; echo 1 > a.txt; mkdir d; echo d > d/d; git add -A; git commit -qm first");
    for script in [
        "git status --porcelain; rm -r d; echo 2 > a.txt; echo n > n",
        "git status --porcelain; mkdir d; echo 3 > d/e",
    ] {
        let done = run_in(&world, "sha", &[], script);
        done.expect_code(0);
        assert_eq!(done.stdout, "");
        assert_eq!(world.sh("cd ../sha; git status --porcelain; git fsck --strict"), "");
    }
    assert_eq!(world.sh("cat ../sha/d/e ../sha/a.txt"), "3\n2");
}

#[test]
fn submodules_that_are_checked_out_stay() {
    let world = World::new();
    world.sh(
        "git init -q ../sub; cd ../sub; echo s > s; git add s; git -c user.name=A -c user.email=a@b commit -qm s; cd ../repo
         git -c protocol.file.allow=always submodule --quiet add ../sub mod; git commit -qm module; git config submodule.recurse true; echo dirty > mod/s",
    );
    lands(&world, "echo theirs > a.txt; ls mod | wc -l", " M mod");
    assert_eq!(world.read("mod/s"), "dirty\n");
    world.run(&["--no-check"], "git rm -q mod").expect_code(0);
    assert_eq!(world.read("mod/s"), "dirty\n");
    assert_eq!(world.git(["status", "--porcelain"]), "?? mod/");
}

#[test]
fn a_submodule_in_the_way_of_a_file() {
    let world = World::new();
    world.sh(
        "git init -q ../sub; cd ../sub; echo s > s; git add s; git -c user.name=A -c user.email=a@b commit -qm s; cd ../repo
         git -c protocol.file.allow=always submodule --quiet add ../sub mod; git commit -qm module",
    );
    waits(&world, "rm -r mod; echo file > mod", "`mod/");
}

#[test]
fn conversions_of_the_checkout_are_kept() {
    for (setting, attributes) in [
        ("core.autocrlf=true", ""),
        ("core.eol=crlf", "* text=auto\n"),
        ("core.autocrlf=input", "*.c ident\n"),
    ] {
        let world = World::new();
        world.git([
            "config",
            setting.split_once('=').expect("=").0,
            setting.split_once('=').expect("=").1,
        ]);
        world.write(".gitattributes", attributes);
        world.write("i.c", "$Id$\n");
        world.commit("setup");
        world.sh("rm -r * .gitattributes; git checkout -q -- .");
        let crlf = world.read("a.txt").contains('\r');
        lands(
            &world,
            "printf 'one\\ntwo\\n' > a.txt; printf 'n\\n' > n.txt; printf 'c\\r\\n' > c.txt; echo x >> i.c",
            "",
        );
        assert_eq!(world.read("a.txt"), if crlf { "one\r\ntwo\r\n" } else { "one\ntwo\n" });
        assert_eq!(world.git(["show", "main:c.txt"]), "c");
        world.sh("touch *; git status --porcelain");
        assert_eq!(world.git(["status", "--porcelain"]), "");
        lands(&world, "test -z \"$(git status --porcelain)\"; echo x > b; rm n.txt", "");
    }
}

#[test]
fn filters_of_the_person_run_in_the_checkout_and_nowhere_else() {
    let world = World::new();
    world.sh("git config filter.up.clean 'tr A-Z a-z'; git config filter.up.smudge 'tr a-z A-Z'; echo '*.up filter=up' > .gitattributes; echo text > x.up; git add -A; git commit -qm up; rm x.up; git checkout -q x.up");
    assert_eq!(world.read("x.up"), "TEXT\n");
    lands(&world, "cat x.up > a.txt", "");
    assert_eq!(world.read("a.txt"), "text\n", "the stored form is what a context has");
    assert_eq!(world.read("x.up"), "TEXT\n");
    lands(&world, "git rm -q x.up", "");
}

#[test]
fn a_checkout_without_modes_or_links_stays_clean() {
    let world = World::new();
    world.sh("git config core.fileMode false; git config core.symlinks false");
    lands(
        &world,
        "chmod 755 a.txt; chmod 644 ci; echo x > tool; chmod 755 tool; ln -s a.txt link",
        "",
    );
    // As `git add --all` has it: modes are those of the index, and none for a new file.
    assert!(world.git(["ls-files", "-s", "ci"]).starts_with("100755"));
    assert_eq!(world.git(["ls-files", "-s", "tool", "a.txt"]).matches("100644").count(), 2);
    assert_eq!(world.read("link"), "a.txt");
    lands(&world, "test -L link; ln -sf ci link; echo y > tool", "");
    assert_eq!(world.read("link"), "ci");
}

#[test]
fn a_checkout_that_can_not_have_symlinks_has_files_for_them() {
    let world = World::new();
    world.git(["config", "core.symlinks", "false"]);
    let landed = |done: &Done| {
        done.expect_code(0);
        assert!(!done.stderr.contains("left alone"), "{}", done.stderr);
        assert_eq!(world.git(["status", "--porcelain"]), "");
    };
    landed(&run_in(&world, "repo", &[], "ln -s a.txt link"));
    assert_eq!(world.read("link"), "a.txt");
    assert!(!world.path("link").is_symlink());
    landed(&run_in(&world, "repo", &[], "rm link a.txt; echo file > link; ln -s ci a.txt"));
    assert_eq!((world.read("link").as_str(), world.read("a.txt").as_str()), ("file\n", "ci"));
}

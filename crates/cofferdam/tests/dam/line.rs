//! The line from a context to a landing.

use std::os::unix::fs::PermissionsExt;

use crate::support::{World, is_root, levels};

#[test]
fn a_good_change_lands_on_the_current_branch_and_the_checkout_follows() {
    let world = World::new();
    world.run(&["--check", "./ci"], "echo good > a.txt; echo n > new.txt").expect_code(0);
    assert_eq!(world.read("a.txt"), "good\n");
    assert_eq!(world.read("new.txt"), "n\n");
    assert_eq!(world.git(["status", "--porcelain"]), "");
    assert_eq!(world.subjects("main").len(), 2);
    assert_eq!(world.git(["for-each-ref", "refs/dam"]), "");
    assert_eq!(world.git(["log", "-1", "--format=%an <%ae>"]), "Ann <ann@example.com>");
}

#[test]
fn what_a_check_refuses_does_not_land() {
    let world = World::new();
    let head = world.git(["rev-parse", "main"]);
    world
        .run(&["--name", "evil", "--check", "./ci"], "echo bad > a.txt")
        .expect_code(3)
        .says("`./ci` failed");
    assert_eq!(world.git(["rev-parse", "main"]), head);
    assert_eq!(world.read("a.txt"), "hello\n");
    assert_eq!(world.state_of("evil"), "rejected");
    assert!(world.dam(["diff", "evil"]).expect_code(0).stdout.contains("+bad"));
}

#[test]
fn no_check_at_all_waits_for_a_person() {
    let world = World::new();
    world.run(&["--name", "t"], "echo x > a.txt").expect_code(8);
    assert_eq!(world.subjects("main"), ["first"]);
    world.dam(["land", "t", "--check", "./ci"]).expect_code(0);
    assert_eq!(world.read("a.txt"), "x\n");
}

#[test]
fn a_landing_without_checks_does_not_keep_what_an_earlier_check_said() {
    let world = World::new();
    world.run(&["--name", "t", "--check", "./ci"], "echo bad > a.txt").expect_code(3);
    assert_eq!(world.task("t")["checks"][0]["outcome"], "failed");
    world.dam(["land", "t", "--no-check"]).expect_code(0);
    assert_eq!(world.task("t")["checks"], serde_json::json!([]));
}

#[test]
fn a_branch_is_made_or_refused() {
    let world = World::new();
    world.run(&["--branch", "--name", "login", "--check", "./ci"], "echo x > a.txt").expect_code(0);
    assert_eq!(world.git(["show", "dam/login:a.txt"]), "x");
    assert_eq!(world.read("a.txt"), "hello\n");
    world.run(&["--branch", "--name", "login", "--check", "./ci"], "echo y > a.txt").expect_code(2);
}

#[test]
fn checks_of_the_repository_come_from_the_targets_tip() {
    let world = World::new();
    world.write("cofferdam.toml", "[[check]]\nname = \"ci\"\nrun = \"./ci\"\n");
    world.git(["add", "--all"]);
    world.git(["commit", "--quiet", "--message", "gate"]);
    world.run(&[], "rm cofferdam.toml; echo bad > a.txt").expect_code(3);
    world.run(&[], "echo good > a.txt").expect_code(0);
}

#[test]
fn another_branch_lands_without_touching_the_checkout() {
    let world = World::new();
    world.git(["branch", "release"]);
    world.run(&["--into", "release", "--check", "./ci"], "echo r > a.txt").expect_code(0);
    assert_eq!(world.git(["show", "release:a.txt"]), "r");
    assert_eq!(world.read("a.txt"), "hello\n");
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

#[test]
fn two_changes_are_joined_on_the_tip() {
    let world = World::new();
    world
        .run(&["--name", "one", "--no-land", "--check", "./ci"], "echo 1 > one.txt")
        .expect_code(8);
    world
        .run(&["--name", "two", "--no-land", "--check", "./ci"], "echo 2 > two.txt")
        .expect_code(8);
    world
        .run(&["--name", "clash", "--no-land", "--check", "./ci"], "echo 3 > one.txt")
        .expect_code(8);
    world.dam(["land", "one"]).expect_code(0);
    world.dam(["land", "two"]).expect_code(0);
    world.dam(["land", "clash"]).expect_code(4).says("`one.txt`");
    assert_eq!(world.read("one.txt"), "1\n");
    assert_eq!(world.read("two.txt"), "2\n");
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

#[test]
fn a_remote_branch_moves_by_push() {
    let world = World::new();
    let remote = world.dir().join("remote.git");
    world.git(["init", "--quiet", "--bare", remote.to_str().expect("utf-8")]);
    world.git(["remote", "add", "origin", remote.to_str().expect("utf-8")]);
    world.git(["push", "--quiet", "origin", "main"]);
    world.run(&["--into", "origin/main", "--check", "./ci"], "echo pushed > a.txt").expect_code(0);
    let git_dir = format!("--git-dir={}", remote.display());
    assert_eq!(world.git([git_dir.as_str(), "show", "main:a.txt"]), "pushed");
    assert_eq!(world.subjects("main"), ["first"]);
}

#[test]
fn a_remote_that_is_ahead_is_the_base() {
    let world = World::new();
    let remote = world.dir().join("remote.git");
    let remote = remote.to_str().expect("utf-8");
    world.git(["init", "--quiet", "--bare", remote]);
    world.git(["remote", "add", "origin", remote]);
    let other = world.dir().join("other");
    world.git(["push", "--quiet", "origin", "main"]);
    world.git(["clone", "--quiet", "--branch=main", remote, other.to_str().expect("utf-8")]);
    let in_other = [
        "-C",
        other.to_str().expect("utf-8"),
        "-c",
        "user.name=Bo",
        "-c",
        "user.email=b@example.com",
    ];
    std::fs::write(other.join("theirs.txt"), "theirs\n").expect("write");
    world.git([&in_other[..], &["add", "--all"]].concat());
    world.git([&in_other[..], &["commit", "--quiet", "--message", "theirs"]].concat());
    world.git([&in_other[..], &["push", "--quiet", "origin", "HEAD:main"]].concat());
    let refs = world.git(["for-each-ref"]);
    world
        .run(
            &["--into", "origin/main", "--check", "test -f theirs.txt && git log -2 --format=%s"],
            "git log -1 --format=%s; cp theirs.txt ours.txt",
        )
        .expect_code(0);
    assert_eq!(world.git([&format!("--git-dir={remote}"), "show", "main:ours.txt"]), "theirs");
    assert_eq!(world.git(["for-each-ref"]), refs);
}

#[test]
fn carried_files_are_inside_and_never_land() {
    let world = World::new();
    world.write(".env", "SECRET=1\n");
    world.write("notes.txt", "untracked\n");
    world
        .run(
            &["--carry", ".env", "--carry", "notes.txt", "--check", "./ci"],
            "cat .env notes.txt > a.txt",
        )
        .expect_code(0);
    assert_eq!(world.read("a.txt"), "SECRET=1\nuntracked\n");
    assert_eq!(world.git(["ls-files", "notes.txt", ".env"]), "");
}

#[test]
fn uncommitted_work_carried_along_does_not_land_with_the_task() {
    let world = World::new();
    world.write("src/b.txt", "dirty\n");
    world.write("draft.txt", "draft\n");
    world
        .run(&["--carry-dirty", "--check", "./ci"], "cat src/b.txt draft.txt > a.txt")
        .expect_code(0);
    assert_eq!(world.read("a.txt"), "dirty\ndraft\n");
    assert_eq!(world.git(["status", "--porcelain"]), " M src/b.txt\n?? draft.txt");
    assert_eq!(world.git(["show", "main:src/b.txt"]), "b");
}

#[test]
fn git_inside_works_on_uncommitted_work_that_was_carried_along() {
    for level in levels() {
        let mut world = World::new();
        world.at_level(level);
        world.write("a.txt", "dirty\n");
        world.write("sub/draft.txt", "draft\n");
        let done = world.run(
            &["--carry-dirty", "--no-check"],
            "set -e; git cat-file -p :a.txt; git cat-file -p :sub/draft.txt; git fsck --strict
             echo s > src/b.txt; git stash --quiet; git stash pop --quiet
             git add --all; git commit --quiet --message inside; git show --stat HEAD >/dev/null
             git fsck --strict",
        );
        done.expect_code(0);
        assert!(done.stdout.starts_with("dirty\ndraft\n"), "{}", done.stdout);
        // What was carried does not land with it, though the task has committed it.
        assert_eq!(world.git(["show", "main:src/b.txt", "main:a.txt"]), "s\nhello");
        assert_eq!(world.git(["status", "--porcelain"]), " M a.txt\n?? sub/");
    }
}

#[test]
fn an_unreadable_file_that_is_to_be_carried_along_is_named() {
    let world = World::new();
    world.write("mine.txt", "mine\n");
    world.sh("chmod 000 mine.txt");
    let done = world.run(&["--carry-dirty", "--no-check"], "cp mine.txt theirs.txt");
    if is_root() {
        // Who may read everything takes it along.
        done.expect_code(0);
    } else {
        done.expect_code(2).says("`mine.txt` can't be read by you");
    }
}

#[test]
fn a_read_only_task_can_write_nothing_in_the_repository() {
    let world = World::new();
    let done = world.run(&["--read-only", "--name", "look"], "cat a.txt; echo x > a.txt");
    done.expect_code(1);
    assert!(done.stdout.contains("hello"), "{}", done.stdout);
    world.run(&["--read-only"], "git log --oneline").expect_code(0);
}

#[test]
fn the_message_is_asked_for_said_or_taken_from_the_tasks_commit() {
    let world = World::new();
    world.run(&["--no-check", "-m", "asked for"], "echo 1 > a.txt").expect_code(0);
    world.run(&["--no-check"], "echo 2 > a.txt; echo 'said' > $DAM_MESSAGE").expect_code(0);
    world.run(&["--no-check"], "echo 3 > a.txt; git commit -qam 'own commit'").expect_code(0);
    assert_eq!(world.subjects("main"), ["own commit", "said", "asked for", "first"]);
}

#[test]
fn a_repository_below_var_tmp_works_with_a_home_elsewhere() {
    let world = World::new();
    let home = tempfile::tempdir_in("/tmp").expect("home");
    let mut command = world.dam_command(["run", "--no-check", "--no-land", "--", "sh", "-c"]);
    command.arg("echo x > /var/tmp/seen && cat /tmp/seen a.txt").env("HOME", home.path());
    let done = command.output().expect("dam");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn a_task_that_changes_only_the_mode_of_the_top_changes_nothing() {
    let world = World::new();
    for mode in ["000", "700", "755"] {
        world.run(&["--name", &format!("m{mode}")], &format!("chmod {mode} .")).expect_code(0);
        assert_eq!(world.state_of(&format!("m{mode}")), "empty");
    }
    world.run(&["--name", "del", "--no-check"], "rm a.txt; chmod 000 .").expect_code(0);
    assert!(!world.path("a.txt").exists());
}

#[test]
fn what_a_task_adds_beside_carried_files_lands() {
    let world = World::new();
    world.write("data/local.txt", "local\n");
    world.write("src/scratch.txt", "scratch\n");
    world
        .run(
            &["--carry", "data", "--carry", "src", "--check", "./ci"],
            "cat data/local.txt src/scratch.txt > a.txt; echo n > data/new.txt; echo b2 > src/b.txt",
        )
        .expect_code(0);
    assert_eq!(world.read("a.txt"), "local\nscratch\n");
    assert_eq!(world.git(["ls-files", "data", "src"]), "data/new.txt\nsrc/b.txt");
    assert_eq!(world.git(["show", "main:src/b.txt"]), "b2");
    world.run(&["--carry", "a.txt"], "true").expect_code(2).says("in the base already");
}

#[test]
fn what_the_repository_asks_for_is_read_at_the_targets_tip_whatever_the_base() {
    let world = World::new();
    world.write("cofferdam.toml", "[task]\ntimeout = \"2s\"\n[[check]]\nrun = \"./ci\"\n");
    world.git(["add", "--all"]);
    world.git(["commit", "--quiet", "--message", "gate"]);
    let done = world.run(&["--base", "HEAD~1", "--name", "old"], "echo bad > a.txt");
    done.expect_code(3).says("failed");
    world.run(&["--base", "HEAD~1", "--name", "slow"], "sleep 100").expect_code(7);
}

#[test]
fn a_commit_has_the_persons_time_zone() {
    let world = World::new();
    let run = |script: &str| {
        let mut command = world.dam_command(["run", "--no-check", "--", "sh", "-c", script]);
        assert!(command.env("TZ", "XYZ-9").status().expect("dam").success());
    };
    run("echo 1 > a.txt");
    assert!(world.git(["log", "-1", "--format=%ai %ci"]).ends_with("+0900"));
    // A change set that is put on another tip is a commit of another make.
    world.run(&["--name", "t", "--no-land", "--no-check"], "echo 2 > two.txt").expect_code(8);
    run("echo 3 > three.txt");
    let mut land = world.dam_command(["land", "t", "--no-check"]);
    assert!(land.env("TZ", "XYZ-9").status().expect("dam").success());
    assert!(world.git(["log", "-1", "--format=%ai %ci"]).ends_with("+0900"));
}

#[test]
fn a_remote_that_can_not_be_reached_is_said_before_anything_begins() {
    let world = World::new();
    world.git(["remote", "add", "origin", "/nowhere/at/all.git"]);
    world.run(&["--into", "origin/main"], "true").expect_code(2).says("can't be looked at");
    assert_eq!(world.dam(["list"]).stdout, "");
}

/// A remote of the world's repository, and where it is.
fn with_remote() -> (World, std::path::PathBuf) {
    let world = World::new();
    let remote = world.dir().join("remote.git");
    world.git(["init", "--quiet", "--bare", remote.to_str().expect("utf-8")]);
    world.git(["remote", "add", "origin", remote.to_str().expect("utf-8")]);
    world.git(["push", "--quiet", "origin", "main"]);
    (world, remote)
}

#[test]
fn a_remote_that_refuses_a_push_is_heard() {
    let (world, remote) = with_remote();
    let tip = |world: &World| world.sh_in(&remote, "git rev-parse main");
    let before = tip(&world);
    let waits = |name: &str, says: &[&str]| {
        let done =
            world.run(&["--name", name, "--into", "origin/main", "--no-check"], "echo x > x");
        done.expect_code(8);
        let reason = world.task(name)["reason"].as_str().expect("reason").to_owned();
        for said in says {
            assert!(reason.contains(said), "no `{said}` in {reason}");
        }
        assert!(!reason.contains("--porcelain") && !reason.contains('\n'), "{reason}");
        assert_eq!(world.state_of(name), "ready");
    };
    // Words that git has for something else are a hook's here.
    let hook = "#!/bin/sh\necho 'no: fetch first [rejected]' >&2\nexit 1\n";
    for kind in ["pre-receive", "update"] {
        let file = remote.join("hooks").join(kind);
        std::fs::create_dir_all(remote.join("hooks")).expect("mkdir");
        std::fs::write(&file, hook).expect("write");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        waits(kind, &["`origin/main` was refused by the remote", "declined)", "no: fetch first"]);
        std::fs::remove_file(&file).expect("remove");
    }
    let lock = remote.join("refs/heads/main.lock");
    std::fs::write(&lock, "").expect("write");
    waits("lock", &["`origin/main` was refused by the remote", "main.lock': File exists"]);
    assert_eq!(tip(&world), before);
    std::fs::remove_file(&lock).expect("remove");
    world.dam(["land", "lock", "--no-check"]).expect_code(0);
    assert_ne!(tip(&world), before);
}

#[test]
fn a_remote_that_goes_away_meanwhile_lets_the_task_wait() {
    // At the second look at it, and at the push.
    for (name, wanted, at, says) in [
        ("look", " ls-remote ", 2, "can't be looked at"),
        ("push", " push ", 1, "can't be reached"),
    ] {
        let (mut world, remote) = with_remote();
        let gone = world.dir().join("gone");
        let wrapper = world.dir().join("bin");
        std::fs::create_dir(&wrapper).expect("mkdir");
        let count = world.dir().join("count");
        let script = format!(
            "#!/bin/sh\ncase \" $* \" in *'{wanted}'*) echo >> {count}; \
             test $(wc -l < {count}) != {at} || mv {remote} {gone};; esac\n\
             PATH=${{PATH#*:}} exec git \"$@\"\n",
            count = count.display(),
            remote = remote.display(),
            gone = gone.display(),
        );
        std::fs::write(wrapper.join("git"), script).expect("write");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(wrapper.join("git"), mode).expect("chmod");
        world.prefer(wrapper.to_str().expect("utf-8"));
        let run = ["--name", name, "--into", "origin/main", "--no-check"];
        world.run(&run, "echo x > x").expect_code(8).says(says);
        let task = world.task(name);
        assert_eq!((&task["state"], &task["exit_code"]), (&"ready".into(), &8.into()));
        world.dam(["wait", name]).expect_code(8);
        world.dam(["land", name, "--no-check"]).expect_code(8).says("can't be looked at");
        std::fs::rename(&gone, &remote).expect("rename");
        world.dam(["land", name, "--no-check"]).expect_code(0);
        assert_eq!(world.sh_in(&remote, "git show main:x"), "x");
    }
}

#[test]
fn a_check_that_looks_at_the_commit_is_asked_again_for_another_one() {
    let world = World::new();
    world.git(["commit", "--quiet", "--amend", "--message", "a good first"]);
    let check = "git log -1 --format=%s | grep -q good";
    world.run(&["--no-land", "--check", check, "-m", "good"], "echo h > h").expect_code(8);
    world.run(&["--check", check, "-m", "evil"], "echo h > h").expect_code(3);
}

#[test]
fn a_check_that_says_nothing_is_no_check() {
    let world = World::new();
    world.run(&["--check", " "], "echo w > w").expect_code(2).says("empty");
    world.write("cofferdam.toml", "[[check]]\nrun = \"\"\n");
    world.git(["add", "--all"]);
    world.git(["commit", "--quiet", "--message", "gate"]);
    world.run(&[], "echo w > w").expect_code(2).says("check.run");
}

#[test]
fn what_git_would_refuse_at_the_landing_is_refused_by_name() {
    let world = World::new();
    let script = "printf '[submodule \"x\"]\\n\\tpath = -x\\n\\turl = y\\n' > .gitmodules";
    world
        .run(&["--name", "t", "--no-check"], script)
        .expect_code(1)
        .says("`.gitmodules` is refused by git");
    assert_eq!(world.state_of("t"), "failed");
    let packs = std::fs::read_dir(world.path(".git/objects/pack")).expect("packs").count();
    assert_eq!(packs, 0);
}

#[test]
fn a_bare_repository_needs_to_be_told_where_to_land() {
    let world = World::new();
    let bare = world.dir().join("bare.git");
    let bare = bare.to_str().expect("utf-8");
    world.git(["clone", "--quiet", "--bare", ".", bare]);
    let run = |args: &[&str]| {
        let mut command = world.dam_command(args);
        command.env("GIT_CONFIG_COUNT", "0").current_dir(bare).output().expect("dam")
    };
    world.git(["-C", bare, "config", "user.name", "Ann"]);
    world.git(["-C", bare, "config", "user.email", "ann@example.com"]);
    let done = run(&["run", "--no-check", "--", "true"]);
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).contains("bare repository"));
    let done = run(&["run", "--into", "main", "--no-check", "--", "sh", "-c", "echo x > a.txt"]);
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(world.git(["-C", bare, "show", "main:a.txt"]), "x");
}

#[test]
fn a_state_directory_is_not_made_inside_of_the_repository() {
    let world = World::new();
    let mut command = world.dam_command(["run", "--no-check", "--", "true"]);
    let done = command.env("COFFERDAM_STATE", world.path("st")).output().expect("dam");
    assert_eq!(done.status.code(), Some(6));
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

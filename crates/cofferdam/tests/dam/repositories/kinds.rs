//! What works as it is.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::{at, lands, world};
use crate::support::{World, levels};

fn named(name: &[u8]) {
    let mut world = world();
    let dir = world.dir().join(OsString::from_vec(name.to_vec()));
    std::fs::rename(&world.repo, &dir).expect("rename");
    world.repo = dir;
    lands(&mut world);
    // A task that waits is found again, and its work is there.
    world.run(&["--no-check", "--no-land", "--name", "t"], "echo kept > kept").expect_code(8);
    assert!(world.dam(["diff", "t"]).expect_code(0).stdout.contains("+kept"));
    world.dam(["enter", "t", "--", "grep", "kept", "kept"]).expect_code(0);
    world.dam(["land", "t"]).expect_code(0);
    // Uncommitted work goes along, by a list of borrowed directories.
    world.write("a.txt", "dirty\n");
    world.run(&["--no-check", "--carry-dirty"], "grep -q dirty a.txt && echo x > x").expect_code(0);
    assert_eq!(world.git(["status", "--porcelain"]), " M a.txt");
}

#[test]
fn a_path_with_spaces() {
    named(b" sp ace ");
}

#[test]
fn a_path_with_a_line_break() {
    named(b"line\nbreak");
}

#[test]
fn a_path_that_is_not_utf_8() {
    named(b"\xffnot\xc3utf-8");
}

#[test]
fn a_path_with_colons_quotes_and_commas() {
    named(b"a:b,c=\"d\"'e'\\f");
}

#[test]
fn a_path_that_begins_like_a_comment() {
    named(b"#a");
}

#[test]
fn a_home_and_a_state_directory_that_are_not_utf_8() {
    for level in levels() {
        let world = world();
        let state = world.dir().join(OsString::from_vec(b"st\xffate\nhere".to_vec()));
        let mut command =
            world.dam_command(["run", "--level", level, "--check", "./ci", "--", "sh", "-c"]);
        let done = command.arg("echo x > x").env("COFFERDAM_STATE", &state).output().expect("dam");
        assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(world.read("x"), "x\n");
    }
}

#[test]
fn a_linked_worktree() {
    let mut world = world();
    world.sh("git worktree add -q ../linked -b linked");
    at(&mut world, "linked");
    lands(&mut world);
    assert_eq!(world.git(["-C", "../repo", "status", "--porcelain"]), "");
    assert_eq!(world.git(["-C", "../repo", "log", "--format=%s", "main"]), "first");
}

#[test]
fn a_linked_worktree_in_a_place_that_is_not_utf_8() {
    let mut world = world();
    let dir = world.dir().join(OsString::from_vec(b"l\xff\nw".to_vec()));
    let mut add = world.command("git");
    add.args(["worktree", "add", "-q", "-b", "linked"]).arg(&dir);
    assert!(add.status().expect("git").success());
    // From the main worktree, into the branch that is checked out over there.
    world.run(&["--no-check", "--into", "linked"], "echo x > x").expect_code(0);
    world.repo = dir;
    assert_eq!(world.git(["status", "--porcelain"]), "");
    assert_eq!(world.read("x"), "x\n");
    lands(&mut world);
}

#[test]
fn a_separate_git_directory() {
    let mut world = world();
    world.sh("git init -q --separate-git-dir ../apart.git .");
    lands(&mut world);
}

#[test]
fn a_shallow_clone() {
    let mut world = world();
    world.commit("second");
    world.sh("git clone -q --depth 1 \"file://$PWD\" ../shallow");
    at(&mut world, "shallow");
    lands(&mut world);
    assert_eq!(world.git(["rev-parse", "--is-shallow-repository"]), "true");
}

#[test]
fn a_sparse_checkout() {
    for kind in ["--cone", "--no-cone"] {
        let mut world = world();
        world.write("other/o.txt", "o\n");
        world.commit("other");
        world.sh(&format!(
            "git sparse-checkout set {kind} {}",
            if kind == "--cone" { "src" } else { "'/*' '!/other'" }
        ));
        // Inside, everything is there.
        world.run(&["--no-check"], "grep -q o other/o.txt; echo 2 >> other/o.txt").expect_code(0);
        assert!(!world.path("other").exists());
        lands(&mut world);
        assert!(!world.path("other").exists(), "{kind}");
        assert_eq!(world.git(["show", "main:other/o.txt"]), "o\n2");
    }
}

#[test]
fn sha_256_objects() {
    let mut world = world();
    // Of the one that is replaced something is kept under the same path.
    world.run(&["--no-check"], "true").expect_code(0);
    world.sh("rm -rf .git; git init -q --object-format=sha256; git add .; git commit -qm first");
    lands(&mut world);
}

#[test]
fn reftables() {
    let mut world = world();
    let made =
        "rm -rf .git; git init -q --ref-format=reftable && git add . && git commit -qm first";
    let old = world.command("sh").args(["-c", made]).status().expect("sh");
    if !old.success() {
        return eprintln!("this git has no reftables");
    }
    lands(&mut world);
}

#[test]
fn borrowed_objects_through_two_repositories() {
    let mut world = world();
    world.sh("git clone -q -s . ../one; git clone -q -s ../one ../two");
    at(&mut world, "two");
    lands(&mut world);
}

#[test]
fn borrowed_objects_from_a_place_that_has_to_be_quoted() {
    let mut world = world();
    let old = world.dir().join("re\npo");
    std::fs::rename(&world.repo, &old).expect("rename");
    at(&mut world, "last");
    world.sh_in(&old, "git init -q ../last");
    let dir = world.dir().to_str().expect("utf-8").to_owned();
    world.write(".git/objects/info/alternates", format!("\"{dir}/re\\npo/.git/objects\"\n"));
    let tip = world.sh_in(&old, "git rev-parse main");
    world.git(["reset", "--quiet", "--hard", &tip]);
    lands(&mut world);
}

#[test]
fn line_endings_by_configuration() {
    let world = world();
    world.git(["config", "core.autocrlf", "true"]);
    world.sh("rm a.txt; git checkout -q a.txt; grep -q \"$(printf 'o\\r')\" a.txt");
    world.run(&["--no-check"], "printf 'one\\r\\ntwo\\r\\n' > c.txt").expect_code(0);
    assert_eq!(world.git(["show", "main:c.txt"]), "one\ntwo");
    assert_eq!(world.read("c.txt"), "one\r\ntwo\r\n");
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

#[test]
fn modes_that_do_not_count() {
    let mut world = world();
    world.git(["config", "core.fileMode", "false"]);
    world.sh("chmod +x a.txt; chmod -x ci");
    assert_eq!(world.git(["status", "--porcelain"]), "");
    lands(&mut world);
    assert!(world.git(["ls-tree", "main", "ci"]).starts_with("100755"));
    assert!(world.git(["ls-tree", "main", "a.txt"]).starts_with("100644"));
}

#[test]
fn configuration_of_one_worktree() {
    let mut world = world();
    world.git(["config", "extensions.worktreeConfig", "true"]);
    world.git(["config", "--worktree", "core.autocrlf", "input"]);
    lands(&mut world);
}

#[test]
fn an_empty_tree() {
    let mut world = world();
    world.sh("rm -rf .git * .gitignore; git init -q; git commit -q --allow-empty -m empty");
    for level in levels() {
        world.at_level(level);
        world.run(&["--check", "test -f x"], "test -z \"$(ls)\" && echo x > x").expect_code(0);
        assert_eq!(world.git(["status", "--porcelain"]), "");
        world.run(&["--no-check"], "rm x").expect_code(0);
        assert_eq!(world.git(["ls-tree", "main"]), "");
        assert!(world.repo.is_dir());
    }
}

#[test]
fn deep_paths() {
    let mut world = world();
    let dir = vec!["d".repeat(60); 60].join("/");
    world.write(&format!("{dir}/f"), "deep\n");
    world.commit("deep");
    world.run(&["--no-check"], &format!("echo 2 >> {dir}/f; echo n > {dir}/n")).expect_code(0);
    assert_eq!(world.git(["show", &format!("main:{dir}/f")]), "deep\n2");
    assert_eq!(world.git(["status", "--porcelain"]), "");
    lands(&mut world);
}

#[test]
fn a_partial_clone_whose_objects_are_present() {
    let mut world = world();
    world.write("a.txt", "second\n");
    world.commit("second");
    world.sh("git config uploadpack.allowFilter true; git clone -q --filter=blob:none \"file://$PWD\" ../partial");
    at(&mut world, "partial");
    lands(&mut world);
}

#[test]
fn a_branch_that_another_worktree_has_checked_out() {
    let world: World = world();
    world.sh("git worktree add -q ../linked -b linked");
    world.run(&["--no-check", "--into", "linked"], "echo x > x").expect_code(0);
    assert_eq!(world.sh("git -C ../linked status --porcelain; cat ../linked/x"), "x");
    // Its owner's work there is in the way as it would be here.
    world.sh("echo mine > ../linked/a.txt");
    world
        .run(&["--no-check", "--into", "linked", "--name", "t"], "echo y > a.txt")
        .expect_code(8)
        .says("linked");
    assert_eq!(world.sh("cat ../linked/a.txt"), "mine");
}

//! A directory that is no repository: replaced as one step, or changed path by path.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::Desk;
use crate::support::{Done, is_root};

/// A directory with files of several kinds.
fn site() -> Desk {
    let desk = Desk::new();
    for (path, text) in [("site/index", "old\n"), ("site/sub/page", "page\n"), ("site/gone", "x\n")]
    {
        desk.put(path, text);
    }
    desk.script("site/tool", "echo tool");
    symlink("index", desk.here.join("site/link")).expect("link");
    desk
}

fn run(desk: &Desk, options: &[&str], script: &str) -> Done {
    let own = ["run", "--dir", "site"];
    desk.dam(&[&own, options, &["--", "sh", "-c", script]].concat())
}

fn read(desk: &Desk, path: &str) -> String {
    std::fs::read_to_string(desk.here.join("site").join(path)).unwrap_or_else(|_| "none".into())
}

const WORK: &str = "set -e; pwd; cat sub/page link; ./tool; echo new > index; rm gone; \
     mkdir -p made/deep; echo z > made/deep/z; ln -s sub/page made/link; mv sub moved";

#[test]
fn a_directory_is_worked_on_at_its_own_path_and_replaced_as_one_step() {
    let desk = site();
    let inode = || desk.here.join("site").metadata().expect("stat").ino();
    let before = inode();
    let done = run(&desk, &["--check=grep -q new index && test -e moved/page"], WORK);
    done.expect_code(0).says("3 added, 1 changed, 2 deleted").says("replaced");
    let here = desk.here.join("site").display().to_string();
    assert_eq!(done.stdout, format!("{here}\npage\nold\ntool\n"));
    let paths = ["index", "link", "gone", "made/deep/z", "moved/page", "sub/page", "made/link"];
    let found: Vec<String> = paths.iter().map(|path| read(&desk, path)).collect();
    assert_eq!(found, ["new\n", "new\n", "none", "z\n", "page\n", "none", "none"]);
    assert_ne!(inode(), before);
    let tool = desk.here.join("site/tool").metadata().expect("stat");
    assert_eq!(tool.permissions().mode() & 0o777, 0o755);
    desk.world.sh(
        "test -z \"$(find ../state/contexts/tasks -name base -o -name upper -o -name results)\"",
    );
}

#[test]
fn a_patch_changes_what_was_changed_and_nothing_else() {
    let desk = site();
    let inode = |path: &str| desk.here.join("site").join(path).metadata().expect("stat").ino();
    let (dir, tool) = (inode(""), inode("tool"));
    let options = ["--publish=patch", "--name=t"];
    run(&desk, &options, WORK).expect_code(8);
    let diff = desk.dam(&["diff", "t"]);
    assert!(diff.expect_code(0).stdout.contains("+new"), "{}", diff.stdout);
    let shown = desk.dam(&["show", "t"]).stdout;
    assert!(shown.contains("output      the directory becomes /"), "{shown}");
    // What somebody else does beside it meanwhile is no matter.
    desk.put("site/beside", "theirs\n");
    desk.put("site/other/theirs", "theirs\n");
    desk.dam(&["land", "t", "--check", "test ! -e beside"]).expect_code(0).says("paths of");
    let paths =
        ["index", "gone", "made/deep/z", "moved/page", "sub/page", "beside", "other/theirs"];
    let found: Vec<String> = paths.iter().map(|path| read(&desk, path)).collect();
    assert_eq!(found, ["new\n", "none", "z\n", "page\n", "none", "theirs\n", "theirs\n"]);
    assert_eq!((inode(""), inode("tool")), (dir, tool));
    assert_eq!(desk.world.sh("ls ../state/journal"), "");
    let names = desk.world.sh_in(&desk.here, "find site -name '.dam*'");
    assert_eq!(names, "");
}

#[test]
fn what_somebody_else_changed_meanwhile_is_not_overwritten() {
    for options in [&["--publish=patch", "--name=t"][..], &["--name=t"]] {
        let desk = site();
        run(&desk, options, WORK).expect_code(8);
        desk.put("site/index", "odd\n");
        let late = desk.dam(&["land", "t", "--no-check"]);
        late.expect_code(4).says("has changed since the task began");
        assert_eq!((read(&desk, "index"), read(&desk, "gone")), ("odd\n".into(), "x\n".into()));
        assert_eq!(desk.world.sh_in(&desk.here, "ls -A"), "site");
    }
}

#[test]
fn nothing_is_written_where_nothing_was_changed() {
    let desk = site();
    run(&desk, &["--no-check"], "cat index").expect_code(0).says("nothing changed");
    run(&desk, &["--no-check"], "echo old > index").expect_code(0).says("is there already");
    run(&desk, &["--no-check", "--publish=patch"], "echo old > index; touch link")
        .expect_code(0)
        .says("nothing changed");
    run(&desk, &["--check=false"], "echo new > index").expect_code(3);
    assert_eq!(read(&desk, "index"), "old\n");
}

#[test]
fn what_a_command_makes_that_is_no_file_is_refused_by_name() {
    let desk = site();
    run(&desk, &["--no-check"], "mkfifo sub/pipe")
        .expect_code(1)
        .says("`sub/pipe` is a named pipe");
    let closed = "mkdir closed; echo x > closed/f; chmod 0 closed/f closed; rm gone";
    let done = run(&desk, &["--no-check"], closed);
    if is_root() {
        done.expect_code(0);
        let mode = desk.here.join("site/closed").metadata().expect("stat").permissions().mode();
        assert_eq!((mode & 0o777, read(&desk, "gone").as_str()), (0, "none"));
    } else {
        done.expect_code(1).says("its owner may not read it").says("`closed`");
        assert_eq!(read(&desk, "gone"), "x\n");
    }
    let patch = ["--no-check", "--publish=patch"];
    run(&desk, &patch, "rm index; mkdir index").expect_code(1).says("no patch can change");
    assert_eq!(read(&desk, "index"), "old\n");
}

#[test]
fn directories_that_can_not_be_worked_on_are_refused() {
    let desk = site();
    for (dir, why) in [
        ("nowhere", "No such file"),
        ("site/index", "not a directory"),
        ("/", "can't be a context"),
        ("/usr", "can't be a context"),
    ] {
        desk.dam(&["run", "--dir", dir, "--no-check", "--", "true"]).expect_code(2).says(why);
    }
    let home = desk.world.home();
    let home = home.to_str().expect("UTF-8");
    desk.dam(&["run", "--dir", home, "--no-check", "--", "true"]).expect_code(2);
    run(&desk, &["--publish=command:x"], "true").expect_code(2).says("is for `--scratch`");
    desk.run(&["--publish=patch"], "true").expect_code(2).says("is for the directory of `--dir`");
}

#[test]
fn what_git_obeys_never_lands() {
    let desk = site();
    desk.world.sh_in(&desk.here, "cd site; git init -q; git init -q sub");
    let hooks = "for git in .git sub/.git; do echo 'exit 0' > $git/hooks/pre-commit; done; \
                 git init -q fresh; echo new > index";
    let before = Desk::tree(&desk.here);
    run(&desk, &["--no-check"], hooks).expect_code(1).says("is git's own").says("`.git/hooks");
    assert_eq!(Desk::tree(&desk.here), before);
    let patch = run(&desk, &["--no-check", "--publish=patch"], hooks);
    patch.expect_code(0).says("2 paths of").says("more of its kind: it is git's own");
    assert_eq!(read(&desk, "index"), "new\n");
    for hook in [".git/hooks/pre-commit", "sub/.git/hooks/pre-commit", "fresh/.git/HEAD"] {
        assert_eq!(read(&desk, hook), "none", "{hook}");
    }
    // Nor does a new directory with one.
    let made = "mkdir -p d/e; cd d/e; git init -q";
    desk.run(&["--no-check", &desk.output("d/", "www")], made).expect_code(1).says("is git's own");
    assert!(!desk.shared.join("www").exists());
}

#[test]
fn a_directory_that_landed_can_be_taken_back_and_a_patch_says_that_it_can_not() {
    let desk = site();
    run(&desk, &["--no-check", "--name=t"], WORK).expect_code(0);
    desk.dam(&["undo", "t", "--check", "test -e sub/page || test -e restored/sub/page"])
        .expect_code(0);
    assert_eq!((read(&desk, "index"), read(&desk, "gone")), ("old\n".into(), "x\n".into()));
    run(&desk, &["--no-check", "--publish=patch", "--name=p"], "echo 2 > index").expect_code(0);
    desk.dam(&["undo", "p", "--no-check"]).expect_code(2).says("what a patch replaced is not kept");
}

#[test]
fn set_id_bits_of_what_a_task_leaves_alone_are_not_lost() {
    let desk = site();
    let mode = |path: &str, mode: u32| {
        let path = desk.here.join("site").join(path);
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("chmod");
    };
    mode("sub", 0o2755);
    run(&desk, &["--no-check"], "echo new > index; mkdir own; chmod 2755 own").expect_code(0);
    let now = |path: &str| {
        desk.here.join("site").join(path).metadata().expect("stat").permissions().mode() & 0o7777
    };
    assert_eq!((now("sub"), now("own")), (0o2755, 0o755));
    mode("tool", 0o4755);
    let done = run(&desk, &["--no-check"], "echo newer > index");
    done.expect_code(2).says("`tool` is a set-uid or set-gid program");
    run(&desk, &["--no-check", "--publish=patch"], "echo newer > index").expect_code(0);
    assert_eq!((now("tool"), read(&desk, "index").as_str()), (0o4755, "newer\n"));
}

#[test]
fn a_directory_that_is_not_anybodys_to_replace_is_no_output() {
    let desk = Desk::new();
    let home = desk.world.home().display().to_string();
    for place in ["/", "/usr", &home] {
        let output = format!("--output=made/={place}");
        let done = desk.run(&["--no-check", &output], "mkdir made");
        done.expect_code(2);
        assert!(!done.stderr.contains("made"), "{}", done.stderr);
    }
}

#[test]
fn what_holds_a_pipe_or_is_no_path_is_a_mistake_of_the_callers() {
    let desk = site();
    desk.world.sh_in(&desk.here, "mkfifo site/pipe");
    run(&desk, &["--no-check"], "true").expect_code(2).says("`pipe` is a named pipe");
    for to in ["site/index/r".to_owned(), "x".repeat(300)] {
        desk.run(&["--no-check", &format!("--output=r={to}")], "true").expect_code(2);
    }
}

#[test]
fn a_version_that_a_link_leads_to_is_no_directory_to_work_on() {
    let desk = Desk::new();
    desk.put("first/page", "1\n");
    symlink("first", desk.here.join("site")).expect("link");
    let output = format!("--output=made/={}", desk.here.join("site").display());
    desk.run(&["--no-check", &output], "mkdir made; echo 2 > made/page").expect_code(0);
    run(&desk, &["--no-check"], "echo 3 > page").expect_code(2).says("is a version of what landed");
    assert_eq!(read(&desk, "page"), "2\n");
}

//! What comes out of a context without a repository, and what does not.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Stdio;

use serde_json::Value;

use super::Desk;
use crate::bed::until;
use crate::support::{Done, dam_binary, is_root};

#[test]
fn an_output_replaces_a_file_and_nothing_else_comes_out() {
    let desk = Desk::new();
    desk.share("out.csv", "old\n");
    let mode = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(desk.shared.join("out.csv"), mode).expect("chmod");
    let made = "pwd; ls -A; echo new > r.csv; echo more > other; chmod 4755 r.csv; \
                touch /tmp/x $HOME/y";
    let done = desk.run(&["--name", "t", "--no-check", &desk.output("r.csv", "out.csv")], made);
    done.expect_code(0).says("replaced (4 B)");
    assert_eq!(done.stdout, "/run/dam/work\n");
    assert_eq!(desk.shared("out.csv"), "new\n");
    let meta = desk.shared.join("out.csv").metadata().expect("stat");
    // The set-id bit of what a task made is nobody's.
    assert_eq!(meta.mode() & 0o7777, 0o750);
    assert_eq!(std::fs::read_dir(&desk.shared).expect("list").count(), 1);
    assert_eq!(std::fs::read_dir(&desk.here).expect("list").count(), 0);
    // Its context is gone, and the record tells what it was.
    let task = desk.world.task("t");
    assert_eq!((&task["state"], &task["context_kept"]), (&"landed".into(), &Value::Bool(false)));
    assert_eq!(task["repository"], Value::Null);
    let output = &task["outputs"][0];
    assert_eq!(output["from"], "r.csv");
    assert_eq!(output["to"], desk.shared.join("out.csv").to_str().expect("UTF-8"));
    assert_eq!((&output["size"], &output["was_there"]), (&4.into(), &Value::Bool(true)));
    assert_eq!(desk.world.sh("ls ../state/contexts/tasks/*").lines().count(), 3);
}

#[test]
fn the_caller_s_umask_decides_about_a_new_file() {
    let desk = Desk::new();
    let run = format!(
        "umask 027; {} run --scratch --no-check {} {} -- sh -c 'echo a > a; echo b > b; chmod +x b'",
        dam_binary().display(),
        desk.output("a", "plain"),
        desk.output("b", "program"),
    );
    desk.world.sh_in(&desk.here, &run);
    let mode = |name: &str| desk.shared.join(name).metadata().expect("stat").mode() & 0o7777;
    assert_eq!((mode("plain"), mode("program")), (0o640, 0o750));
}

#[test]
fn what_is_there_already_is_not_written_again() {
    let desk = Desk::new();
    desk.share("out", "same\n");
    let inode = || desk.shared.join("out").metadata().expect("stat").ino();
    let before = inode();
    let done = desk.run(&["--check", "false", &desk.output("r", "out")], "echo same > r");
    done.expect_code(0).says("what was made is there already");
    assert_eq!(inode(), before);
}

#[test]
fn what_was_not_made_or_is_no_file_is_told_by_name() {
    let desk = Desk::new();
    desk.share("secret", "outside\n");
    let to = desk.output("r", "out");
    let secret = desk.shared.join("secret");
    for (script, why) in [
        ("true".into(), "`r` was not made by the command"),
        ("mkdir r".into(), "`r` was made, but is not a file, or a link leads there"),
        ("mkfifo r".into(), "`r` was made, but is not a file"),
        (format!("ln -s {} r", secret.display()), "`r` was made, but is not a file"),
        ("ln -s /etc/passwd r".into(), "`r` was made, but is not a file"),
    ] {
        desk.run(&["--no-check", &to], &script).expect_code(1).says(why);
    }
    let below = desk.output("dir/r", "out");
    let link = format!("ln -s {} dir", desk.shared.display());
    desk.run(&["--no-check", &below], &link).expect_code(1).says("or a link leads there");
    desk.run(&["--no-check", &below], "echo x > dir").expect_code(1).says("was not made");
    assert!(!desk.shared.join("out").exists());
    // One that only its owner could not read is no secret.
    let closed = "mkdir dir; echo x > dir/r; chmod 0 dir/r";
    desk.run(&["--no-check", &below], closed).expect_code(0);
    assert_eq!(desk.shared("out"), "x\n");
}

#[test]
fn a_check_sees_the_results_and_the_inputs_and_nothing_else_of_the_context() {
    let desk = Desk::new();
    desk.script("tools/validate", "test ! -e other && grep -q good \"$1\"");
    let options = ["--input=tools", "--check=tools/validate r", &desk.output("r", "out")];
    // What the command does to the tools in its own context is not what judges it.
    let cheat = "echo bad > r; echo 'exit 0' > tools/validate";
    desk.run(&options, cheat).expect_code(3).says("check `tools/validate r` failed");
    assert!(!desk.shared.join("out").exists());
    desk.run(&options, "echo good > r; touch other").expect_code(0);
    assert_eq!(desk.shared("out"), "good\n");
    // What a check does to the results stays with it.
    let meddles = ["--check=echo evil > r", "--check=grep -q fine r", &desk.output("r", "out")];
    desk.run(&meddles, "echo fine > r").expect_code(0);
    assert_eq!(desk.shared("out"), "fine\n");
}

#[test]
fn inputs_are_relative_inside_as_outside() {
    let desk = Desk::new();
    desk.put("a.txt", "a");
    desk.put("sub/b.txt", "b");
    let c = desk.put("c.txt", "c");
    let absolute = desk.world.dir().join("far.txt");
    std::fs::write(&absolute, "far").expect("write");
    let inputs = [
        "--input=a.txt",
        "--input=./sub",
        &format!("--input={}:deep/in/c", c.display()),
        &format!("--input={}", absolute.display()),
    ];
    let script = format!(
        "cat a.txt sub/b.txt deep/in/c {}; echo x >> a.txt || echo ' not a.txt'; echo x >> sub/b.txt; \
         cat sub/b.txt",
        absolute.display()
    );
    let done = desk.run(&[&["--no-check"][..], &inputs].concat(), &script);
    done.expect_code(0).says("there was nothing to be made");
    assert_eq!(done.stdout, "abcfar not a.txt\nbx\n");
    assert_eq!(std::fs::read_to_string(desk.here.join("sub/b.txt")).expect("read"), "b");
    let up = desk.run(&["--input=../far.txt", "--no-check"], "true");
    up.expect_code(2).says("where is it to be inside?");
}

#[test]
fn an_input_can_be_an_output_too() {
    let desk = Desk::new();
    desk.share("list", "one\n");
    let input = format!("--input={}:list", desk.shared.join("list").display());
    let options = ["--check=test $(wc -l < list) = 2", &input, &desk.output("list", "list")];
    desk.run(&options, "echo two >> list").expect_code(0);
    assert_eq!(desk.shared("list"), "one\ntwo\n");
    let again = desk.run(&options, "echo three >> list");
    again.expect_code(3);
    assert_eq!(desk.shared("list"), "one\ntwo\n");
}

#[test]
fn what_changed_while_it_ran_is_not_overwritten() {
    let desk = Desk::new();
    desk.share("out", "old\n");
    let out = desk.shared.join("out");
    let run = |name: &str, meanwhile: &dyn Fn()| {
        let name_option = format!("--name={name}");
        let options = ["--no-check", &name_option, &desk.output("r", "out")];
        let tasks = desk.world.state().join("contexts/tasks");
        let child = desk
            .command(&options, "echo new > r; until test -e go; do sleep 0.02; done")
            .stderr(Stdio::piped())
            .spawn()
            .expect("dam");
        let list = format!("ls {}/*/upper/r 2> /dev/null || true", tasks.display());
        until("it runs", || !desk.world.sh(&list).is_empty());
        meanwhile();
        desk.world.sh(&format!("for d in {}/*/upper; do touch $d/go; done", tasks.display()));
        let done = Done::from(child.wait_with_output().expect("dam"));
        desk.dam(&["drop", name]).expect_code(0);
        done
    };
    // Of the same size and with the same times.
    let time = out.metadata().and_then(|meta| meta.modified()).expect("time");
    let done = run("same", &|| {
        desk.share("out", "odd\n");
        let file = std::fs::File::options().write(true).open(&out).expect("open");
        file.set_modified(time).expect("touch");
    });
    done.expect_code(4).says("has changed since the task began");
    assert_eq!(desk.shared("out"), "odd\n");
    run("gone", &|| std::fs::remove_file(&out).expect("remove"))
        .expect_code(4)
        .says("has gone since the task began");
    run("there", &|| desk.share("out", "theirs\n"))
        .expect_code(4)
        .says("has appeared since the task began");
    run("link", &|| {
        std::fs::remove_file(&out).expect("remove");
        symlink("elsewhere", &out).expect("link");
        desk.share("elsewhere", "theirs\n");
    })
    .expect_code(4)
    .says("leads to");
    assert_eq!(desk.shared("elsewhere"), "theirs\n");
}

#[test]
fn a_task_that_waits_lands_later_and_one_that_conflicts_is_run_again() {
    let desk = Desk::new();
    let options = ["--name=t", &desk.output("r", "out")];
    desk.run(&options, "date > r; cat $DAM_CONTEXT > /dev/null")
        .expect_code(8)
        .says("no check was given");
    let diff = desk.dam(&["diff", "t"]);
    let named = diff.expect_code(0).stdout.contains("+++ b/r\n");
    assert!(named && !diff.stdout.contains("contexts/"), "{}", diff.stdout);
    let shown = desk.dam(&["show", "t"]);
    assert!(shown.expect_code(0).stdout.contains("output      r becomes "), "{}", shown.stdout);
    desk.share("out", "somebody else's\n");
    desk.dam(&["land", "t", "--no-check"]).expect_code(4).says("has appeared since");
    assert_eq!(desk.shared("out"), "somebody else's\n");
    // Run again, it begins with what is there now.
    desk.dam(&["retry", "t"]).expect_code(8);
    desk.dam(&["land", "t", "--check", "grep -q 20 r"]).expect_code(0);
    assert!(desk.shared("out").contains("20"));
    assert_eq!(std::fs::read_dir(&desk.shared).expect("list").count(), 1);
}

#[test]
fn a_person_can_go_into_the_context_and_mend_the_result() {
    let desk = Desk::new();
    let options = ["--name=t", "--check=grep -q good r", &desk.output("r", "out")];
    desk.run(&options, "echo bad > r").expect_code(3);
    desk.dam(&["enter", "t", "--", "true"]).expect_code(0).says("rejected");
    desk.dam(&["enter", "t", "--", "sh", "-c", "echo good > r"]).expect_code(0).says("ready");
    desk.dam(&["land", "t"]).expect_code(0);
    assert_eq!(desk.shared("out"), "good\n");
}

#[test]
fn requests_that_make_no_sense_are_refused_before_anything_runs() {
    let desk = Desk::new();
    desk.put("in", "x");
    std::fs::create_dir(desk.shared.join("dir")).expect("mkdir");
    let to = |from: &str, to: &str| desk.output(from, to);
    let state = format!("--output=r={}", desk.world.state().join("ledger.db").display());
    for (options, why) in [
        (vec!["--output=r".to_owned()], "which file becomes which"),
        (vec!["--output=/r=x".into()], "a path inside of the context"),
        (vec!["--output=../r=x".into()], "a path inside of the context"),
        (vec![to("r", "dir")], "is a directory"),
        (vec![to("r", "no/such/dir")], "find the directory of"),
        (vec![to("r", "x"), to("s", "x")], "two outputs become"),
        (vec![to("r", "x"), to("r/s", "y")], "one holds the other"),
        (vec![state], "lies in the state directory"),
        (vec!["--input=in:a".into(), "--input=in:a".into()], "two inputs are to be at"),
        (vec!["--input=in:a/b".into(), to("a", "x")], "can't be an output"),
        (vec!["--input=.:a".into(), to("a/r", "x")], "can't be an output"),
        (vec!["--input=in:../a".into()], "without `..`"),
        (vec!["--level=worktree".into()], "can't be had at level `worktree`"),
        (vec!["--into=main".into()], "cannot be used with"),
        (vec!["--read-only".into(), to("r", "x")], "cannot be used with"),
    ] {
        let options: Vec<&str> = options.iter().map(String::as_str).chain(["--no-check"]).collect();
        desk.run(&options, "touch ran; echo x > r").expect_code(2).says(why);
    }
    let list = desk.dam(&["--format", "json", "list"]);
    assert_eq!(list.expect_code(0).stdout.trim(), "[]");
    assert_eq!(Desk::tree(&desk.shared).len(), 1);
}

#[test]
fn a_place_that_can_not_be_written_is_refused_before_anything_runs() {
    if is_root() {
        return;
    }
    let desk = Desk::new();
    desk.share("out", "old\n");
    let closed = std::fs::Permissions::from_mode(0o555);
    std::fs::set_permissions(&desk.shared, closed).expect("chmod");
    let run = |option: &str| desk.run(&["--no-check", option], "echo new > r; mkdir d");
    run(&desk.output("r", "out")).expect_code(2).says("its directory can't be written by you");
    run(&desk.output("r", "new")).expect_code(2).says("`--publish command:CMD`, can have it");
    run(&desk.output("d/", "dir")).expect_code(2);
    let list = desk.dam(&["--format", "json", "list"]);
    assert_eq!(list.stdout.trim(), "[]");
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&desk.shared, open).expect("chmod");
}

#[test]
fn a_place_whose_directory_vanished_meanwhile_is_drift() {
    let desk = Desk::new();
    std::fs::create_dir(desk.shared.join("d")).expect("make");
    desk.run(&["--name=t", &desk.output("r", "d/r")], "echo x > r").expect_code(8);
    std::fs::remove_dir(desk.shared.join("d")).expect("remove");
    desk.dam(&["land", "t", "--no-check"]).expect_code(4).says("has gone since the task began");
    desk.dam(&["drop", "t"]).expect_code(0);
}

#[test]
fn what_was_dropped_waits_for_nobody() {
    let desk = Desk::new();
    desk.run(&["--name=t", &desk.output("r", "r")], "echo x > r").expect_code(8);
    assert!(desk.dam(&["report"]).stdout.contains("1 waits for you"));
    desk.dam(&["drop", "t"]).expect_code(0);
    let told = desk.dam(&["report"]).stdout;
    assert!(told.contains("1 dropped") && !told.contains("wait"), "{told}");
}

#[test]
fn inputs_below_var_tmp_are_where_they_are() {
    let desk = Desk::new();
    let dir = tempfile::tempdir_in("/var/tmp").expect("temporary directory");
    let file = dir.path().join("data");
    std::fs::write(&file, "given\n").expect("write");
    let input = format!("--input={}", file.display());
    let done = desk.run(&["--no-check", &input], &format!("cat {}", file.display()));
    assert_eq!(done.expect_code(0).stdout, "given\n");
}

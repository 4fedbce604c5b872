//! `dam enter`: a person in a task's context.

use std::process::{Child, Stdio};

use crate::bed::{processes_of, until, walk};
use crate::support::{Done, World, dam_binary, levels};

/// Runs a shell script in the context of task `t`.
fn enter(world: &World, script: &str) -> Done {
    world.dam(["enter", "t", "--", "sh", "-c", script])
}

fn reason(world: &World) -> String {
    world.task("t")["reason"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn what_a_person_mends_is_verified_and_lands() {
    for level in levels() {
        let mut world = World::new();
        world.at_level(level);
        world.run(&["--name", "t", "--check", "./ci"], "echo bad > a.txt").expect_code(3);
        let done = enter(&world, "cat a.txt; git status --short; echo good > a.txt");
        done.expect_code(0).says("ready t: somebody was in its context");
        assert_eq!(done.stdout, "bad\n M a.txt\n");
        assert!(world.dam(["diff", "t"]).stdout.contains("+good"));
        assert_eq!(world.task("t")["checks"], serde_json::json!([]));
        world.dam(["land", "t"]).expect_code(0);
        assert_eq!(world.read("a.txt"), "good\n");
        assert_eq!(world.task("t")["checks"][0]["outcome"], "passed");
    }
}

#[test]
fn a_verdict_is_void_whatever_was_done() {
    let world = World::new();
    let options = ["--name", "t", "--no-land", "--check", "./ci"];
    world.run(&options, "echo good > a.txt").expect_code(8);
    enter(&world, "true").expect_code(0).says("it has to be verified anew");
    world.dam(["land", "t"]).expect_code(0);
    assert_eq!(world.task("t")["checks"][0]["cached"], false);
}

#[test]
fn who_only_looks_leaves_the_task_as_it_was() {
    for (script, state) in [("echo 2 > a.txt; exit 3", "failed"), ("echo bad > a.txt", "rejected")]
    {
        let world = World::new();
        world.run(&["--name", "t", "--check", "./ci"], script);
        let before = (world.state_of("t"), reason(&world), world.task("t")["checks"].clone());
        assert_eq!(before.0, state);
        let done = enter(&world, "touch a.txt; mkdir empty; cat a.txt; exit 7");
        done.expect_code(1).says(&format!("{state} t: "));
        assert_eq!(
            (world.state_of("t"), reason(&world), world.task("t")["checks"].clone()),
            before
        );
        assert!(world.dam(["diff", "t"]).expect_code(0).stdout.contains("a.txt"));
    }
}

#[test]
fn what_is_taken_back_is_nothing_to_land() {
    let world = World::new();
    world.run(&["--name", "t", "--no-land", "--no-check"], "echo 2 > a.txt").expect_code(8);
    enter(&world, "git checkout -q a.txt").expect_code(0);
    assert_eq!(world.state_of("t"), "empty");
}

#[test]
fn a_person_has_what_the_task_had() {
    let world = World::new();
    world.write("../playbooks/one.md", "step one\n");
    let input = format!("{}:/srv/playbooks", world.dir().join("playbooks").display());
    let options = ["--name", "t", "--input", &input, "--memory", "1GiB", "--no-check"];
    let script = "echo kept > ~/own; echo kept > /tmp/own; exit 1";
    world.run(&options, script).expect_code(1);
    let script = "cat ~/own /tmp/own /srv/playbooks/one.md; echo $DAM_TASK $EXTRA; grep -o person $DAM_CONTEXT
        test ! -e /etc/shadow && test $(id -u) != 0 && ! touch /usr/x 2>/dev/null && echo walled";
    let done = world.dam(["enter", "t", "--env", "EXTRA=more", "--", "sh", "-c", script]);
    done.expect_code(0);
    let id = world.task("t")["task"].as_str().expect("id").to_owned();
    let wanted = format!("kept\nkept\nstep one\n{id} more\nperson\nwalled\n");
    assert_eq!(done.stdout, wanted);
    // In the directory that one is in.
    let output =
        world.dam_command(["enter", "t", "--", "pwd"]).current_dir(world.path("src")).output();
    let pwd = Done::from(output.expect("dam")).stdout;
    assert_eq!(pwd.trim(), world.path("src").display().to_string());
}

#[test]
fn where_there_is_nothing_to_enter_it_says_so() {
    let world = World::new();
    world.dam(["enter", "t", "--", "true"]).expect_code(2).says("no task `t`");
    world.run(&["--name", "t", "--no-check"], "echo 2 > a.txt").expect_code(0);
    enter(&world, "true").expect_code(2).says("its context is gone");
    world.run(&["--name", "u", "--no-check", "--keep"], "echo 3 > a.txt").expect_code(0);
    world.dam(["enter", "u", "--", "true"]).expect_code(2).says("nothing that is done in it now");
    let mut child = start(&world);
    world.dam(["enter", "v", "--", "true"]).expect_code(5).says("task `v` is running");
    world.dam(["stop", "v"]).expect_code(0);
    child.wait().expect("wait");
    world.dam(["enter", "v", "--", "no-such-program"]).expect_code(1);
    world.dam(["enter", "v"]).expect_code(2).says("there is no terminal here");
    assert_eq!(world.state_of("v"), "cancelled");
}

#[test]
fn a_person_who_could_not_get_in_has_changed_nothing() {
    let mut world = World::new();
    world.write("../home/.cache/pip/x", "1\n");
    let options = ["--name", "t", "--no-land", "--check", "./ci"];
    // What the task left lies where a tool home belongs.
    let script = "echo 2 > a.txt; mv ~/.cache ~/moved; ln -s /tmp ~/.cache";
    world.prefer(&world.home().join(".local/bin").display().to_string());
    world.run(&options, script).expect_code(8).says("tools: python (~/.cache/pip)");
    enter(&world, "true").expect_code(6);
    assert_eq!(world.state_of("t"), "ready");
    assert_eq!(world.task("t")["checks"][0]["outcome"], "passed");
    world.dam(["land", "t"]).expect_code(0);
    assert_eq!(world.read("a.txt"), "2\n");
}

fn start(world: &World) -> Child {
    let run = [
        "run",
        "--name",
        "v",
        "--no-check",
        "--",
        "sh",
        "-c",
        "echo 4 > a.txt; touch begun; sleep 60",
    ];
    let child = world.attended_command(run).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let child = child.expect("dam");
    began(world, "begun");
    child
}

fn began(world: &World, name: &str) {
    until("it began", || {
        let mut found = false;
        walk(&world.state(), &mut |path, _| found |= path.ends_with(format!("upper/{name}")));
        found
    });
}

#[test]
fn a_person_whose_dam_is_killed_loses_nothing() {
    let world = World::new();
    world.run(&["--name", "t", "--no-land", "--check", "./ci"], "echo 2 > a.txt").expect_code(8);
    let enter = ["enter", "t", "--", "sh", "-c", "echo 3 >> a.txt; touch entered; sleep 60"];
    let child = world.attended_command(enter).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.expect("dam");
    began(&world, "entered");
    child.kill().and_then(|()| child.wait()).expect("kill");
    until("everybody ended", || processes_of(world.dir()).is_empty());
    assert_eq!(world.state_of("t"), "ready");
    assert!(reason(&world).contains("it has to be verified anew"), "{}", reason(&world));
    let diff = world.dam(["diff", "t"]).stdout;
    assert!(diff.contains("+2\n+3"), "{diff}");
    self::enter(&world, "rm entered").expect_code(0).says("ready t: ");
    world.dam(["land", "t"]).expect_code(0);
    assert_eq!(world.task("t")["checks"][0]["cached"], false);
    assert_eq!(world.read("a.txt"), "2\n3\n");
    assert_eq!(world.subjects("main")[0], "t: sh -c echo 2 > a.txt");
}

/// Sits at a terminal of 33 lines: types each line when what comes before it in the
/// list has been printed. Prints what was printed, and whether the terminal is as it was.
const PERSON: &str = r#"
import fcntl, os, pty, select, struct, subprocess, sys, termios, time
ours, theirs = pty.openpty()
fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
before = termios.tcgetattr(theirs)
child = subprocess.Popen(sys.argv[2:], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
said, seen = b"", 0
todo = [line.split("=>") for line in sys.argv[1].splitlines()]
deadline = time.time() + 60
while child.poll() is None and time.time() < deadline:
    if select.select([ours], [], [], 0.1)[0]:
        said += os.read(ours, 65536)
    at = said.find(todo[0][0].encode(), seen) if todo else -1
    if at >= 0:
        seen = at + len(todo[0][0])
        # As a person: between its prompt and its read, a shell loses what is faster.
        time.sleep(0.1)
        os.write(ours, todo.pop(0)[1].encode().decode("unicode_escape").encode())
while select.select([ours], [], [], 0.1)[0]:
    said += os.read(ours, 65536)
child.kill()
sys.stdout.write(said.decode(errors="replace"))
print("restored" if termios.tcgetattr(theirs) == before else "changed", child.wait())
"#;

#[test]
fn a_person_at_a_terminal_has_a_shell_with_job_control() {
    let mut world = World::new();
    for level in levels() {
        world.at_level(level);
        world.run(&["--name", "t", "--no-check"], "echo 2 > a.txt; exit 1").expect_code(1);
        let dialogue = r#"what you change=>PS1=ready:; echo be''gun\n
begun=>test -t 0 && test -t 1 && test -t 2 && echo a-ter''minal; stty size\n
33 101=>sh -c 'echo sta""rted; exec sleep 600'\n
started=>\x1a
Stopped=>jobs; kill -KILL %1; wait %1; echo wrote > by-hand; echo do''ne\n
done=>\x03
^C=>
ready:=>exit 0\n"#;
        let mut person = world.command("python3");
        person.args(["-c", PERSON, dialogue]).arg(dam_binary());
        person.args(["enter", "t", "--", "bash", "--norc", "-i"]);
        let done = Done::from(person.output().expect("python3"));
        let said = &done.stdout;
        assert!(said.contains("a-terminal"), "{said}\n{}", done.stderr);
        assert!(said.contains("[1]+  Stopped") && said.contains("sleep 600"), "{said}");
        assert!(said.trim_end().ends_with("restored 0"), "{said}");
        assert!(said.contains("ready t: "), "{said}");
        let paths = world.task("t")["paths"].to_string();
        assert!(paths.contains("by-hand"), "{paths}");
        world.dam(["drop", "t"]).expect_code(0);
    }
}

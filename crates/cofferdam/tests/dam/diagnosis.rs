//! Why a command failed, as a person sees it: each cause is a real one, or is said
//! by a program in the repository that prints what the real one does.

use std::net::TcpListener;

use crate::support::{Done, World};

/// Fails the test unless what `dam` says at the end is this cause and this hint.
#[track_caller]
fn tells(done: &Done, because: &str, hint: &str) {
    let lines: Vec<&str> = done.stderr.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("  because: "));
    let at = at.unwrap_or_else(|| panic!("no cause in:\n{}", done.stderr));
    assert!(lines[at].contains(because), "no `{because}` in:\n{}", done.stderr);
    assert!(lines[at + 1].starts_with("  hint: "), "{}", done.stderr);
    assert!(lines[at + 1].contains(hint), "no `{hint}` in:\n{}", done.stderr);
}

#[track_caller]
fn tells_nothing(done: &Done) {
    assert!(!done.stderr.contains("because: "), "{}", done.stderr);
}

/// A world with a committed program that prints `text` to standard error and fails.
fn saying(text: &str) -> World {
    let world = World::new();
    world.script("said", &format!("cat >&2 <<'END'\n{text}\nEND\nexit 1"));
    world.commit("a program that fails");
    world
}

#[test]
fn a_program_that_is_only_on_the_host() {
    let mut world = World::new();
    world.write("../bin/dam-tool", "#!/bin/sh\n");
    world.sh("chmod +x ../bin/dam-tool");
    let bin = world.dir().join("bin").display().to_string();
    world.prefer(&bin);
    let found = format!("`{bin}/dam-tool` is outside of what a task sees");
    let done = world.dam(["run", "--name", "direct", "--", "dam-tool", "--version"]);
    tells(done.expect_code(1).says("`dam-tool` was not found"), &found, "known tool homes");
    for script in ["dam-tool", "env dam-tool", "exec dam-tool", "exec xargs dam-tool"] {
        tells(world.run(&[], script).expect_code(1), &found, "known tool homes");
    }
    tells_nothing(world.run(&[], "no-such-tool").expect_code(1));
    tells_nothing(world.run(&[], "PATH=/nowhere; ls").expect_code(1));
    tells_nothing(world.run(&["--no-check"], "dam-tool || true").expect_code(0));
}

#[test]
fn a_program_and_a_file_of_the_checkout_that_are_not_in_the_base() {
    let mut world = World::new();
    world.write(".env", "A=1\n");
    world.write(".git/info/exclude", "node_modules\n");
    world.script("node_modules/.bin/dam-vite", "true");
    world.script("tools.log/dam-tool", "true");
    let tools = world.path("tools.log").display().to_string();
    world.prefer(&tools);
    for (script, because) in [
        ("dam-tool", "tools.log/dam-tool` is in your checkout"),
        ("./node_modules/.bin/dam-vite", "node_modules/.bin/dam-vite` is in your checkout"),
        ("dam-vite", "node_modules/.bin/dam-vite` is in your checkout"),
        ("cat .env", "`.env` is in your checkout"),
        ("python3 -c 'open(\".env\")'", "`.env` is in your checkout"),
    ] {
        tells(world.run(&[], script).expect_code(1), because, "--carry");
    }
    let done = world.dam(["run", "--", "./tools.log/dam-tool"]);
    tells(done.expect_code(1), "tools.log/dam-tool` is in your checkout", "--carry");
    world.run(&["--carry", "tools.log"], "tools.log/dam-tool").expect_code(0);
    let done = world.run(&["--check", "dam-vite"], "echo x > a.txt");
    tells(done.expect_code(8), "is not in what is checked", "a check sees");
    tells_nothing(world.run(&[], "rm a.txt; cat a.txt").expect_code(1));
    world.write("../home/notes.txt", "");
    let because = "notes.txt` is in your home, of which only tool homes are inside";
    tells(world.run(&[], "cat ~/notes.txt").expect_code(1), because, "`--input ");
}

#[test]
fn a_name_that_can_not_be_resolved() {
    let world = World::new();
    let done = world.run(&[], "git clone https://name.invalid/a /tmp/a");
    tells(done.expect_code(1), "`name.invalid` could not be resolved", "`--net open`");
    let done =
        world.run(&[], "python3 -c 'import socket; socket.getaddrinfo(\"name.invalid\", 1)'");
    tells(done.expect_code(1), "a name could not be resolved", "`--net open`");
    let check = "git ls-remote https://name.invalid/a";
    let done = world.run(&["--name", "c", "--net", "open", "--check", check], "echo x > a.txt");
    tells(done.expect_code(8), "a check has no network", "in the repository");
    let open = saying("curl: (6) Could not resolve host: name.invalid");
    tells_nothing(open.run(&["--net", "open"], "./said").expect_code(1));
}

#[test]
fn a_machine_that_can_not_be_reached() {
    let world = World::new();
    let connect = "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80))'";
    tells(world.run(&[], connect).expect_code(1), "could not be reached", "`--net open`");
}

#[test]
fn a_server_of_the_host() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("address").port();
    let connect = format!("bash -c ': > /dev/tcp/127.0.0.1/{port}'");
    let because = format!("port {port} of the host");
    tells(world.run(&[], &connect).expect_code(1), &because, "`--net open`");
    drop(listener);
    tells_nothing(world.run(&[], &connect).expect_code(1));
}

#[test]
fn a_login_that_is_in_the_home() {
    let world = saying("Invalid API key · Please run /login");
    let done = world.run(&[], "./said");
    tells(done.expect_code(1), "Claude Code is not logged in", "`claude setup-token`");
    tells_nothing(world.run(&["--env", "ANTHROPIC_API_KEY=x"], "./said").expect_code(1));
    tells_nothing(world.run(&["--check", "./said"], "echo x > a.txt").expect_code(8));
}

#[test]
fn a_toolchain_that_is_in_the_home() {
    let world = saying(
        "error: rustup could not choose a version of cargo to run, because one wasn't specified explicitly, and no default is configured.",
    );
    tells_nothing(world.run(&[], "./said").expect_code(1));
    // Directories that hold the repository can't be tool homes.
    world.sh("mkdir ../toolchains; echo > ../nvm.sh; ln -s .. ~/.rustup; ln -s .. ~/.nvm");
    // As rustup does when it is started.
    let done = world.run(&[], "mkdir ~/.rustup; ./said");
    tells(done.expect_code(1), "rustup has no toolchain", "system directory");
    for shell in ["sh", "bash"] {
        let done = world.run(&[], &format!("{shell} -c '. ~/.nvm/nvm.sh && true'"));
        tells(done.expect_code(1), ".nvm/nvm.sh` is not inside", "system directory");
    }
}

#[test]
fn a_path_that_can_not_be_written() {
    let world = World::new();
    for script in
        ["touch /usr/x", "echo x > /etc/x", "python3 -c 'import os; os.mkdir(\"/usr/x\")'"]
    {
        tells(world.run(&[], script).expect_code(1), "can't be written inside", "a task can write");
    }
    for script in ["touch x", "mkdir src/x", "git commit --quiet --allow-empty -m x"] {
        let done = world.run(&["--read-only"], script);
        tells(done.expect_code(1), "the task runs with `--read-only`", "`--read-only`");
    }
    tells_nothing(world.run(&[], "echo 'x: Read-only file system'; exit 1").expect_code(1));
}

#[test]
fn sockets_that_are_withheld() {
    let docker = saying(
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
    );
    tells(docker.run(&[], "./said").expect_code(1), "root on the host", "outside of the task");
    let ssh = saying("Could not open a connection to your authentication agent.");
    tells(ssh.run(&[], "./said").expect_code(1), "SSH keys", "`--into REMOTE/BRANCH`");
}

#[test]
fn a_program_that_refuses_root() {
    let world = World::new();
    let refusal = "--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons";
    world.script("agent", &format!("[ $(id -u) != 0 ] || {{ echo '{refusal}'; exit 1; }}"));
    world.commit("an agent");
    world.run(&[], "./agent").expect_code(0);
    let done = world.run(&["--nested"], "unshare --user --map-root-user ./agent");
    tells(done.expect_code(1), "nobody inside is", "unshare");
}

#[test]
fn a_sandbox_in_the_sandbox() {
    let world = World::new();
    tells(world.run(&[], "unshare --user true").expect_code(1), "namespaces", "`--nested`");
    let bwrap = saying("bwrap: Creating new namespace failed: Operation not permitted");
    tells(bwrap.run(&[], "./said").expect_code(1), "namespaces", "`--nested`");
    tells_nothing(bwrap.run(&["--nested"], "./said").expect_code(1));
    // One that says that all is well, and did nothing.
    let idle = bwrap.run(&["--no-check"], "./said || true");
    tells(idle.expect_code(0).says("nothing changed"), "namespaces", "`--nested`");
    tells_nothing(bwrap.run(&["--no-check"], "./said || echo x > a.txt").expect_code(0));
}

#[test]
fn a_file_system_in_memory_that_is_full() {
    let world = World::new();
    // More than there is, so that it is refused at once.
    let script = "python3 -c '
import os
file = os.open(\"/dev/shm/x\", os.O_CREAT | os.O_WRONLY)
try: os.posix_fallocate(file, 0, 1 << 50)
except OSError as error: raise OSError(error.errno, error.strerror, \"/dev/shm/x\")'";
    let done = world.run(&["--disk", "2PiB"], script);
    tells(done.expect_code(1), "lies in memory", "on disk");
    tells_nothing(world.run(&[], "echo x > /dev/full").expect_code(1));
}

#[test]
fn a_diagnosis_is_an_event_and_kept_until_the_failure_is_over() {
    let world = World::new();
    let script = "touch /usr/x && true";
    let done = world.dam(["--format", "jsonl", "run", "--name", "t", "--", "sh", "-c", script]);
    let events: Vec<serde_json::Value> = done
        .expect_code(1)
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("json"))
        .collect();
    let event = events.iter().find(|event| event["event"] == "diagnosis").expect("an event");
    assert_eq!(event["id"], "read-only");
    let receipt = &events.last().expect("the end")["receipt"]["diagnosis"];
    for kept in [receipt, &world.task("t")["diagnosis"]] {
        assert_eq!(kept[0]["id"], "read-only");
        assert_eq!(kept[0]["message"], event["message"]);
        assert_eq!(kept[0]["hint"], event["hint"]);
        assert_eq!(kept.as_array().map(Vec::len), Some(1));
    }
    let shown = world.dam(["show", "t"]).expect_code(0).stdout.clone();
    assert!(shown.contains("  because     `/usr/x` can't be written inside"), "{shown}");
    assert!(shown.contains("  hint        a task can write"), "{shown}");

    let options = ["--name", "c", "--check", "touch /usr/x"];
    tells(world.run(&options, "echo c > a.txt").expect_code(8), "`/usr/x`", "a task can write");
    assert_eq!(world.task("c")["diagnosis"][0]["id"], "read-only");
    world.dam(["land", "c", "--no-check"]).expect_code(0);
    assert_eq!(world.task("c")["diagnosis"], serde_json::json!([]));
}

#[test]
fn what_was_printed_without_a_failure_or_long_before_is_no_cause() {
    let world = World::new();
    let cause = "echo \"touch: cannot touch '/usr/x': Read-only file system\"";
    tells_nothing(world.run(&["--no-check"], cause).expect_code(0));
    tells_nothing(world.run(&[], &format!("{cause}; seq 100; exit 1")).expect_code(1));
    tells(world.run(&[], &format!("{cause}; exit 1")).expect_code(1), "`/usr/x`", "");
    let bytes = format!("printf '\\377\\376\\n\\033[31m'; {cause}; exit 1");
    tells(world.run(&[], &bytes).expect_code(1), "`/usr/x`", "");
    tells_nothing(world.run(&["--timeout", "1s"], &format!("{cause}; sleep 60")).expect_code(7));
}

#[test]
fn files_of_a_tool_home_that_belong_to_somebody_else() {
    let world =
        saying("mkdir: cannot create directory '/home/x/y': Value too large for defined data type");
    let done = world.run(&[], "./said");
    tells(done.expect_code(1), "belongs to another user or group outside", "chown -R");
}

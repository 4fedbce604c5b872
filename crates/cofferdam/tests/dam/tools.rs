//! Tools in the person's home: they work inside, and nothing of them changes.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{Done, World, fingerprint, source};

/// Writes an executable into the home.
fn tool(world: &World, path: &str, body: &str) {
    world.script(&format!("../home/{path}"), body);
}

#[test]
fn a_tool_home_is_there_and_stays_as_it_was() {
    let mut world = World::new();
    world.prefer(&world.home().join(".cargo/bin").display().to_string());
    tool(
        &world,
        ".cargo/bin/some-tool",
        "echo \"tool at $0\"; echo unpacked > ~/.cargo/registry/new; rm ~/.cargo/old",
    );
    world.write("../home/.cargo/registry/index", "i\n");
    world.write("../home/.cargo/old", "o\n");
    world.write("../home/.profile", "secret\n");
    let before = fingerprint(&world.home());
    let done = world.run(
        &["--no-check", "--name", "t"],
        "set -e; some-tool; cat ~/.cargo/registry/new; test ! -e ~/.cargo/old; test ! -e ~/.profile; mv ~/.cargo/registry/index ~/.cargo/registry/moved",
    );
    done.expect_code(0).says("tools: rust (~/.cargo)");
    assert!(done.stdout.contains("unpacked"), "{}", done.stdout);
    assert_eq!(fingerprint(&world.home()), before);
    assert_eq!(world.task("t")["isolation"]["tools"][0], "rust (~/.cargo)");
    // What one task leaves there, the next does not see; a check sees it as it is.
    let check = "test ! -e ~/.cargo/registry/new && some-tool && test -e ~/.cargo/registry/new";
    world.run(&["--check", check], "some-tool; echo 2 > a.txt").expect_code(0);
    assert_eq!(fingerprint(&world.home()), before);
}

#[test]
fn a_tool_home_that_is_a_link_or_that_a_variable_names() {
    let mut world = World::new();
    let elsewhere = world.dir().join("elsewhere");
    world.prefer(&world.home().join(".cargo/bin").display().to_string());
    world.script("../elsewhere/cargo/bin/linked", "echo linked works");
    world.write("../elsewhere/rustup/settings.toml", "x\n");
    symlink(elsewhere.join("cargo"), world.home().join(".cargo")).expect("link");
    let mut command = world.dam_command(["run", "--no-check", "--", "sh", "-ec"]);
    command
        .arg("linked; cat \"$RUSTUP_HOME/settings.toml\"; echo 1 > \"$RUSTUP_HOME/new\"; ls ~/..");
    let output = command.env("RUSTUP_HOME", elsewhere.join("rustup")).output().expect("dam");
    let done = Done::from(output);
    done.expect_code(0);
    assert!(done.stdout.contains("linked works\nx\n"), "{}", done.stdout);
    assert!(!elsewhere.join("rustup/new").exists());
}

#[test]
fn a_tool_home_that_can_not_be_had_is_named_with_what_would_help() {
    let world = World::new();
    let odd = world.dir().join(OsStr::from_bytes(b"c\xffargo"));
    std::fs::create_dir(&odd).expect("mkdir");
    let with = |cargo: &Path| {
        let mut command = world.dam_command(["run", "--no-check", "--", "true"]);
        Done::from(command.env("CARGO_HOME", cargo).output().expect("dam"))
    };
    with(&odd)
        .expect_code(2)
        .says("argo` (rust) can't be had inside: its path is not UTF-8")
        .says("`CARGO_HOME` can name another directory; one that does not exist leaves it out");
    with(&world.dir().join("nothing")).expect_code(0);
    std::fs::rename(&odd, world.dir().join("cargo")).expect("rename");
    with(&world.dir().join("cargo")).expect_code(0).says("/cargo)");
    // One attempt puts something else where it appears for the next.
    std::fs::create_dir_all(world.home().join(".cache/pip")).expect("mkdir");
    let script = "mv ~/.cache ~/moved; ln -s /tmp ~/.cache; exit 1";
    world.run(&["--name", "t"], script).expect_code(1).says("tools: python (~/.cache/pip)");
    let done = world.dam(["retry", "t"]);
    done.expect_code(6).says(".cache/pip` (python) can't be had inside").says("`PIP_CACHE_DIR`");
    assert_eq!(world.state_of("t"), "failed");
}

#[test]
fn a_tool_home_behind_a_link_in_a_system_directory() {
    let world = World::new();
    let link = ["/lib", "/bin", "/sbin"].map(Path::new).into_iter().find(|dir| dir.is_symlink());
    let link = link.expect("this distribution has separate /lib, /bin and /sbin: pick a link");
    let dirs = std::fs::read_dir(link).expect("list").filter_map(Result::ok);
    let dir = dirs.map(|entry| entry.path()).find(|path| path.is_dir()).expect("a directory");
    let script = "test -n \"$(ls -A \"$CARGO_HOME\")\" && echo 1 > \"$CARGO_HOME/dam-new\"";
    let mut command = world.dam_command(["run", "--no-check", "--", "sh", "-ec", script]);
    let done = Done::from(command.env("CARGO_HOME", &dir).output().expect("dam"));
    let place = std::fs::canonicalize(&dir).expect("canonical");
    done.expect_code(0).says(&format!("tools: rust ({})", place.display()));
    assert!(!place.join("dam-new").exists());
}

#[test]
fn an_entry_of_path_that_is_a_link_leads_to_the_tool_home() {
    let mut world = World::new();
    let versions = world.home().join(".local/share/fnm/node-versions");
    world.script("../home/.local/share/fnm/node-versions/v1/installation/bin/agent", "echo \"$0\"");
    world.script("../apart/bin/elsewhere", "true");
    // A link for each shell, as fnm makes it, and one that leads to no tool home.
    world.sh("mkdir ../run; ln -s ~/.local/share/fnm/node-versions/v1/installation ../run/shell");
    world.sh("ln -s ../apart ../run/other");
    let run = world.dir().join("run");
    world.prefer(&format!("{0}/shell/bin:{0}/other/bin", run.display()));
    let done = world.run(&["--no-check"], "agent; ! elsewhere; echo \"$PATH\"");
    let bin = versions.join("v1/installation/bin");
    let found = format!("{}/agent\n{}:", bin.display(), bin.display());
    assert!(done.expect_code(0).stdout.starts_with(&found), "{}", done.stdout);
    world.dam(["doctor", "--", "agent"]).expect_code(0);
}

#[test]
fn locks_on_a_tool_home_are_the_tasks_own() {
    let world = World::new();
    for file in [".cargo/.package-cache", ".npm/_lock", ".m2/repository/lock"] {
        world.write(&format!("../home/{file}"), "");
    }
    let program = "
import fcntl, os, time
held = []
for top, dirs, names in os.walk(os.path.expanduser('~')):
    for name in names:
        file = open(os.path.join(top, name), 'a')
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(file)
assert len(held) >= 3, held
print('locked', flush=True)
time.sleep(600)
";
    let mut tasks: Vec<_> = (0..2)
        .map(|_| {
            let mut command =
                world.dam_command(["run", "--no-check", "--", "python3", "-c", program]);
            command.stdout(Stdio::piped()).stderr(Stdio::null());
            command.spawn().expect("dam")
        })
        .collect();
    for task in &mut tasks {
        let mut line = String::new();
        BufReader::new(task.stdout.take().expect("piped")).read_line(&mut line).expect("read");
        assert!(line.contains("locked"), "{line}");
    }
    for file in [".cargo/.package-cache", ".npm/_lock", ".m2/repository/lock"] {
        world.sh(&format!("flock -n ~/{file} true; python3 -c 'import fcntl; fcntl.lockf(open(\"'$HOME/{file}'\", \"a\"), fcntl.LOCK_EX | fcntl.LOCK_NB)'"));
    }
    for task in &mut tasks {
        task.kill().expect("kill");
        task.wait().expect("wait");
    }
}

/// The files of `credentials.toml`.
fn credential_files() -> Vec<String> {
    let text =
        std::fs::read_to_string(source().join("crates/data/credentials.toml")).expect("read");
    let files: Vec<String> = text
        .lines()
        .filter_map(|line| Some(line.trim().strip_prefix('"')?.strip_suffix("\",")?.to_owned()))
        .collect();
    assert!(files.len() >= 40);
    files
}

#[test]
fn no_credential_file_can_be_read_by_any_path() {
    let world = World::new();
    let files = credential_files();
    // Every second one is written after the task has begun.
    let (early, late): (Vec<_>, Vec<_>) =
        files.iter().enumerate().partition(|(number, _)| number % 2 == 0);
    for file in &files {
        world.write(
            &format!("../home/{}/seen", Path::new(file).parent().expect("parent").display()),
            "",
        );
    }
    let put = |file: &String| world.write(&format!("../home/{file}"), "TOP-SECRET-MARK\n");
    early.iter().for_each(|(_, file)| put(file));
    let list = files.iter().map(|file| format!("'{file}'")).collect::<Vec<_>>().join(",");
    let program = format!(
        "
import os, time
print('begun', flush=True)
time.sleep(2)
home = os.path.expanduser('~')
for file in [{list}]:
    for path in (os.path.join(home, file), '/proc/self/root' + os.path.join(home, file), '/proc/self/cwd/../home/' + file):
        try: open(path, 'rb').close()
        except OSError: continue
        raise AssertionError(path)
for top, dirs, names in os.walk('/'):
    if top == '/': dirs[:] = [d for d in dirs if d not in ('dev', 'proc', 'sys', 'usr', 'opt')]
    for name in names:
        try: content = open(os.path.join(top, name), 'rb').read(1 << 16)
        except OSError: continue
        assert b'TOP-SECRET-MARK' not in content, os.path.join(top, name)
"
    );
    let mut task = world
        .dam_command(["run", "--no-check", "--name", "t", "--", "python3", "-c", &program])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("dam");
    let mut line = [0; 6];
    task.stdout.as_mut().expect("piped").read_exact(&mut line).expect("it begins");
    late.iter().for_each(|(_, file)| put(file));
    Done::from(task.wait_with_output().expect("dam")).expect_code(0);
}

#[test]
fn doctor_says_whether_a_command_would_find_its_programs() {
    let mut world = World::new();
    let (cargo, odd) = (world.home().join(".cargo/bin"), world.dir().join("odd"));
    world.prefer(&format!("{}:{}", cargo.display(), odd.display()));
    world.script("../home/.cargo/bin/some-tool", "true");
    world.script("../odd/odd-tool", "true");
    world.write("../home/.cargo/bin/script", "#!/usr/bin/env odd-tool\n");
    world.sh("chmod +x ~/.cargo/bin/script; echo > new; chmod +x new");
    let doctor = |program: &str| world.dam(["doctor", "--", program]);
    let found = doctor("some-tool").expect_code(0).stdout.clone();
    assert!(found.contains(".cargo/bin/some-tool") && found.contains("rust (~/.cargo)"), "{found}");
    doctor("./ci").expect_code(0);
    for (program, words) in [
        ("odd-tool", "odd/odd-tool` is not inside"),
        // Found, but what runs it is not.
        ("script", "odd/odd-tool` is not inside"),
        ("./new", "new` is not inside"),
        ("nothing-of-that-name", "neither inside nor outside"),
    ] {
        let found = doctor(program).expect_code(6).stdout.clone();
        assert!(found.contains(words), "{program}: {found}");
    }
}

/// A copy of the toolchain that builds this test and of its packages, not unpacked,
/// in the home.
pub fn toolchain(world: &World) {
    let sysroot = match std::env::var_os("DAM_TEST_RUST") {
        Some(dir) => PathBuf::from(dir),
        None => {
            let output =
                Command::new("rustc").args(["--print", "sysroot"]).output().expect("rustc");
            PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
        }
    };
    let registry = match std::env::var_os("DAM_TEST_REGISTRY") {
        Some(dir) => PathBuf::from(dir),
        None => std::env::var_os("CARGO_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))
            .expect("a home")
            .join("registry"),
    };
    world.sh(&format!(
        "mkdir -p ~/.rustup/toolchains/here ~/.cargo/bin ~/.cargo/registry; \
         cp -a '{0}/bin' '{0}/lib' ~/.rustup/toolchains/here/; \
         for name in index cache; do cp -a '{1}'/$name ~/.cargo/registry/; done; \
         for program in cargo rustc rustdoc; do ln -s ../../.rustup/toolchains/here/bin/$program ~/.cargo/bin/; done",
        sysroot.display(),
        registry.display()
    ));
}

/// A crate in the repository, with a dependency from the registry.
pub fn a_crate(world: &World) {
    let lock = std::fs::read_to_string(source().join("Cargo.lock")).expect("read");
    let (_, after) = lock.split_once("name = \"fastrand\"\nversion = \"").expect("a small crate");
    let version = after.split('"').next().expect("version");
    world.write(
        "Cargo.toml",
        format!("[package]\nname = \"p\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[dependencies]\nfastrand = \"={version}\"\n"),
    );
    world.write("src/lib.rs", "#[test]\nfn works() {\n    assert!(fastrand::u8(..10) < 10);\n}\n");
    world.write(".gitignore", "target\n");
    world.sh("cargo generate-lockfile --offline");
    world.commit("a crate");
}

#[test]
fn cargo_tests_offline_with_a_crate_that_is_not_yet_unpacked() {
    let mut world = World::new();
    toolchain(&world);
    let home = world.home();
    world.prefer(&home.join(".cargo/bin").display().to_string());
    a_crate(&world);
    let before = fingerprint(&home);
    let done = world.run(
        &["--name", "t", "--check", "cargo test"],
        "set -e; test ! -d ~/.cargo/registry/src; cargo test && echo '// tested' >> src/lib.rs",
    );
    done.expect_code(0).says("tools: rust (~/.cargo, ~/.rustup)");
    assert_eq!(world.state_of("t"), "landed");
    assert_eq!(fingerprint(&home), before);
}

//! The person's repository: wherever it lies, whatever a task does to its own.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{contents, holds, inside, literal, public_dir, unchanged};
use crate::support::{Done, World, is_root};

/// A repository with something in every corner that a task could reach for.
fn lived_in() -> World {
    let world = World::new();
    world.git(["branch", "other"]);
    world.git(["tag", "--annotate", "--message", "t", "v1"]);
    world.write("a.txt", "stashed\n");
    world.git(["stash", "push", "--quiet"]);
    world.write(".git/hooks/pre-commit", "#!/bin/sh\nexit 0\n");
    world.write("staged.txt", "staged\n");
    world.git(["add", "staged.txt"]);
    world.write("untracked.txt", "untracked\n");
    world.write(".env", "SECRET=hunter2\n");
    world.write("src/b.txt", "dirty\n");
    world.git(["notes", "add", "--message", "n", "HEAD"]);
    // Its stat data settle, so that whoever looks later has nothing to write.
    world.git(["status", "--porcelain"]);
    world
}

const HOSTILE: &str = "
echo evil > a.txt; git add a.txt; git commit -qm evil
echo more >> a.txt; git stash -q; git stash pop -q || :
git checkout -q -b evil; git branch -f main HEAD; git branch -D other
git update-ref refs/heads/main HEAD; git update-ref -d refs/tags/v1; git tag -f v1
git update-ref refs/stash HEAD; git stash clear; git reflog expire --all --expire=now
git symbolic-ref HEAD refs/heads/main
git config core.fsmonitor 'touch /tmp/pwned'; git config core.hooksPath /tmp; git config user.name Evil
printf '#!/bin/sh\\ntouch pwned\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit
cp .git/hooks/pre-commit .git/hooks/post-checkout
git gc -q --prune=now || :; git worktree add -q /tmp/wt HEAD || :
rm -f /run/dam/objects/0/pack/* /run/dam/objects/0/??/* 2>/dev/null
echo /etc > .git/objects/info/alternates; echo x > .git/index.lock
chmod -R 777 . ; rm -rf ./* ./.??*
";

#[test]
fn claude_code_83311_a_hostile_task_that_fails_leaves_the_checkout_byte_for_byte() {
    let world = lived_in();
    let before = contents(&world.repo);
    world.run(&[], &format!("{HOSTILE}\nexit 3")).expect_code(1).says("exit code 3");
    unchanged(&world.repo, &before);
}

#[test]
fn a_hostile_task_that_is_rejected_leaves_the_checkout_byte_for_byte() {
    let world = lived_in();
    let before = contents(&world.repo);
    let script = format!("{HOSTILE}\necho bad > a.txt");
    let done = world.run(&["--check", "grep -q good a.txt"], &script);
    assert_ne!(done.code, Some(0), "{done:?}");
    unchanged(&world.repo, &before);
}

#[test]
fn a_hostile_check_leaves_the_checkout_byte_for_byte() {
    let world = lived_in();
    let before = contents(&world.repo);
    let check = format!("sh -c '{}'; exit 1", HOSTILE.replace('\'', "'\\''"));
    // It fails everywhere, so nobody is blamed.
    world.run(&["--check", &check], "echo good > new.txt").expect_code(8);
    unchanged(&world.repo, &before);
}

#[test]
fn a_hostile_task_whose_supervisor_is_killed_leaves_the_checkout_byte_for_byte() {
    let world = lived_in();
    let before = contents(&world.repo);
    let script = format!("{HOSTILE}\necho done; exec tail -f /dev/null");
    let mut dam = world
        .dam_command(["run", "--name", "k", "--", "sh", "-c", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("dam");
    let mut line = [0; 4];
    dam.stdout.take().expect("pipe").read_exact(&mut line).expect("done");
    dam.kill().expect("kill");
    dam.wait().expect("wait");
    unchanged(&world.repo, &before);
    world.dam(["list"]).expect_code(0);
    unchanged(&world.repo, &before);
}

/// Credentials that a repository's configuration holds, and its hooks.
#[test]
fn secrets_in_the_configuration_of_the_repository_stay_outside() {
    let world = lived_in();
    world.git(["remote", "add", "origin", "https://ann:hunter2@127.0.0.1:9/x.git"]);
    world.git(["config", "remote.origin.pushurl", "https://ann:hunter2@127.0.0.1:9/y.git"]);
    world.git(["config", "http.extraHeader", "Authorization: hunter2"]);
    world.git(["config", "credential.helper", "!echo hunter2"]);
    world.git(["config", "core.sshCommand", "ssh -i hunter2"]);
    world.git(["config", "url.https://hunter2@x/.insteadOf", "y:"]);
    holds(
        &world,
        &[],
        "
for where, _, files in os.walk('.'):
    for name in files:
        assert b'hunter2' not in read(os.path.join(where, name)), (where, name)
said = subprocess.check_output(['git', 'config', '--list', '--show-origin'])
assert b'hunter2' not in said, said
assert not os.path.exists('.env') and not os.path.exists('untracked.txt') and not os.path.exists('staged.txt')
assert os.listdir('.git/hooks') == []
refused('stash', lambda: subprocess.run(['git', 'stash', 'show'], check=True, capture_output=True)) if False else None
assert subprocess.run(['git', 'rev-parse', '--verify', '-q', 'refs/stash'], capture_output=True).returncode == 1
",
    );
}

/// A clone of the world's repository at `top`, a directory that must not exist.
fn clone_at(world: &World, top: &Path) {
    let top = top.to_str().expect("utf-8");
    world.git([
        "clone",
        "--quiet",
        "--config",
        "user.name=Ann",
        "--config",
        "user.email=a@x",
        ".",
        top,
    ]);
}

/// A task in the repository at `top` has an overlay of its own there.
#[track_caller]
fn has_its_own(world: &World, top: &Path, home: Option<&Path>) {
    std::fs::write(top.join("untracked"), "hunter2").expect("write");
    let before = contents(top);
    for options in [&[][..], &["--nested"]] {
        let program = format!(
            "
top = {}
assert os.getcwd() == top
own = [line.split() for line in open('/proc/self/mountinfo') if line.split()[4] == top]
assert len(own) == 1 and ' - overlay ' in ' '.join(own[0]), own
assert not os.path.exists('untracked')
subprocess.run('echo evil > a.txt; echo evil > new; git commit -qam evil; rm -rf src; echo evil > .git/config', shell=True, check=True)
for way in top, '/proc/self/cwd', '/proc/self/root' + top, top + '/../' + os.path.basename(top):
    assert not os.path.exists(way + '/untracked') and read(way + '/a.txt') == b'evil\\n', way
sys.exit(3)
",
            literal(top)
        );
        let mut command = inside(world, options, &program);
        command.current_dir(top);
        if let Some(home) = home {
            command.env("HOME", home);
        }
        Done::from(command.output().expect("dam")).expect_code(1).says("exit code 3");
        unchanged(top, &before);
    }
}

#[test]
fn a_repository_below_the_home_directory_has_its_own_overlay() {
    let world = World::new();
    let top = world.home().join("src/project");
    clone_at(&world, &top);
    has_its_own(&world, &top, None);
}

#[test]
fn a_repository_below_tmp_has_its_own_overlay() {
    let world = World::new();
    let tmp = public_dir("/tmp");
    let top = tmp.path().join("project");
    clone_at(&world, &top);
    has_its_own(&world, &top, None);
}

/// `/var/tmp` is a link to `/tmp` inside when nothing lies below it.
#[test]
fn a_repository_below_var_tmp_has_its_own_overlay_wherever_the_home_is() {
    let world = World::new();
    has_its_own(&world, &world.repo, Some(Path::new("/home/dam-nobody")));
    has_its_own(&world, &world.repo, Some(Path::new("/tmp")));
}

#[test]
fn a_repository_in_a_system_directory_has_its_own_overlay() {
    let parents = ["/opt", "/usr/src", "/usr/local", "/srv", "/mnt"];
    if !is_root() {
        for parent in parents {
            std::fs::create_dir(Path::new(parent).join("dam-test"))
                .expect_err("an ordinary user can write there: test it");
        }
        return;
    }
    let world = World::new();
    for parent in parents {
        let dir = public_dir(parent);
        let top = dir.path().join("project");
        clone_at(&world, &top);
        has_its_own(&world, &top, None);
    }
}

/// Root's task in a repository of somebody else's: it is that account that reads, inside
/// and afterwards.
#[test]
fn files_for_their_owner_alone_are_read_and_left_as_the_owner_of_the_repository() {
    let world = World::new();
    let secret = |path: &str| {
        world.write(path, format!("{path}\n"));
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(world.path(path), mode).expect("chmod");
    };
    for path in [".env", "../in", "../dir/in", "../home/.cargo/roots"] {
        secret(path);
    }
    world.write("../home/.cargo/everybodys", "");
    world.sh("chmod -R go= .");
    let owner = if is_root() {
        // An account that every system has.
        world.sh("chown -R 1:1 . ../in ../dir; git config --global safe.directory '*'");
        1
    } else {
        rustix::process::geteuid().as_raw()
    };
    // What only root may read in root's tool home stays so.
    let roots = if is_root() { "1" } else { "0" };
    let script = format!(
        "test \"$(id -u)\" = {owner}; cat .env ../in ../dir/in src/b.txt > a.txt; \
         cat ~/.cargo/everybodys; got=0; cat ~/.cargo/roots || got=1; test $got = {roots}; mkdir new; echo 1 > new/file"
    );
    let inputs = ["--input", "../in", "--input", "../dir"];
    let options = ["--name", "t", "--carry", ".env", "--check", "cat ../in ../dir/in a.txt"];
    let args = [&["run"], &options[..], &inputs, &["--", "sh", "-ec", &script]].concat();
    world.dam(args).expect_code(0);
    assert_eq!(world.state_of("t"), "landed");
    assert_eq!(world.read("a.txt"), ".env\n../in\n../dir/in\nb\n");
    let others = world.sh(&format!("find . ! -uid {owner}"));
    assert_eq!(others, "", "what the owner can't change");
}

/// A linked worktree whose repository lies where every task can see.
#[test]
fn the_repository_of_a_linked_worktree_is_not_reachable() {
    let world = World::new();
    let parent = if is_root() { public_dir("/opt") } else { public_dir("/var/tmp") };
    let main = parent.path().join("main");
    clone_at(&world, &main);
    let run = |args: &[&str]| {
        let done = Command::new("git").arg("-C").arg(&main).args(args).output().expect("git");
        assert!(done.status.success(), "{done:?}");
    };
    run(&["config", "http.extraHeader", "hunter2"]);
    std::fs::write(main.join("untracked"), "hunter2").expect("write");
    for top in [parent.path().join("linked"), world.dir().join("linked")] {
        run(&["worktree", "add", "--quiet", top.to_str().expect("utf-8")]);
        let before = contents(&main.join(".git/hooks"));
        let program = format!(
            "
main, top = {}, {}
assert os.getcwd() == top and os.path.isdir('.git')
for name in '.git/config', '.git/HEAD', '.git/worktrees', '.git/index', '.git/hooks', 'untracked', 'a.txt':
    assert not os.path.exists(os.path.join(main, name)), name
subprocess.run(['git', 'log', '-1'], check=True, stdout=subprocess.DEVNULL)
",
            literal(&main),
            literal(&top)
        );
        let mut command = inside(&world, &[], &program);
        command.current_dir(&top);
        Done::from(command.output().expect("dam")).expect_code(0);
        unchanged(&main.join(".git/hooks"), &before);
        run(&["worktree", "remove", "--force", top.to_str().expect("utf-8")]);
        run(&["branch", "-D", "linked"]);
    }
}

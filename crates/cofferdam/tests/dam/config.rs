//! The person's own configuration, and what a repository may ask of the host.

use crate::support::{Done, World};

const ASKS: &str = "[task]\ninputs = [\"~/playbooks\"]\ncarry = [\".env\"]\nenv = [\"DEPLOY_KEY\"]\n\
                    [network]\ntask = \"open\"\n";

/// A world whose repository asks for all that can be asked for.
fn asking() -> World {
    let world = World::new();
    world.write("../home/playbooks/one.md", "step one\n");
    world.write(".env", "A=1\n");
    world.write("cofferdam.toml", ASKS);
    world.commit("asks");
    world
}

/// What a task of it has: `input carried variable network`, each `yes` or `no`.
fn has(world: &World, options: &[&str]) -> (String, Done) {
    let script = "has() { if \"$@\" >/dev/null 2>&1; then printf 'yes '; else printf 'no '; fi; }
        has test -f ~/playbooks/one.md; has test -f .env; has test -n \"$DEPLOY_KEY\"
        has grep -q '\"network\": \"open\"' $DAM_CONTEXT";
    let own = ["run", "--no-check"];
    let mut command = world.dam_command([&own, options, &["--", "sh", "-c", script]].concat());
    let output = command.env("DEPLOY_KEY", "secret").output().expect("dam");
    let done = Done::from(output);
    done.expect_code(0);
    (done.stdout.trim().to_owned(), done)
}

fn own(world: &World, text: &str) {
    world.write("../home/.config/cofferdam/config.toml", text);
}

#[test]
fn a_repository_gets_what_it_asks_for_when_a_person_trusts_it() {
    let world = asking();
    let (found, done) = has(&world, &[]);
    assert_eq!(found, "no no no no");
    let all =
        "asks for input `~/playbooks`, a copy of `.env`, variable `DEPLOY_KEY`, the host's network";
    done.says(all).says("`dam trust` shows and allows it");
    // Nobody can be asked here.
    let done = world.dam(["trust"]);
    done.expect_code(2).says("`dam trust --yes`");
    assert!(done.stdout.contains("asks for variable `DEPLOY_KEY`"), "{}", done.stdout);
    assert_eq!(has(&world, &[]).0, "no no no no");

    let done = world.dam(["--format", "json", "trust", "--yes"]);
    let report: serde_json::Value = serde_json::from_str(&done.stdout).expect("json");
    assert_eq!((&report["trusted"], &report["asks"]["network"]), (&true.into(), &true.into()));
    let (found, done) = has(&world, &["--name", "t"]);
    assert_eq!(found, "yes yes yes yes");
    assert!(!done.stderr.contains("dam trust"), "{}", done.stderr);
    assert!(!world.task("t").to_string().contains("secret"));
    // The command line comes first.
    assert_eq!(has(&world, &["--net", "none"]).0, "yes yes yes no");
    // In a linked worktree it is the same repository.
    world.git(["worktree", "add", "--quiet", "../linked"]);
    let done = world.sh_in(&world.dir().join("linked"), "cat .git");
    assert!(done.contains("gitdir"), "{done}");
    let mut trust = world.dam_command(["trust"]);
    let output = trust.current_dir(world.dir().join("linked")).output().expect("dam");
    assert!(String::from_utf8_lossy(&output.stdout).contains("it gets that already"));

    world.dam(["trust", "--revoke"]).expect_code(0);
    assert_eq!(has(&world, &[]).0, "no no no no");
}

#[test]
fn what_is_asked_for_later_is_asked_for_anew() {
    let world = asking();
    world.dam(["trust", "--yes"]).expect_code(0);
    world.write("cofferdam.toml", ASKS.replace("DEPLOY_KEY", "HOME_KEY"));
    world.commit("asks for more");
    let (found, done) = has(&world, &[]);
    assert_eq!(found, "no no no no");
    done.says("variable `HOME_KEY`");
    // Less is another thing, too; the same again is not.
    world.write("cofferdam.toml", ASKS);
    world.commit("as before");
    assert_eq!(has(&world, &[]).0, "yes yes yes yes");
    // Another repository that asks for the same.
    let other = world.dir().join("other");
    world.sh("git clone -q . ../other; cp .git/config ../other/.git/config");
    let mut run =
        world.dam_command(["run", "--no-check", "--", "sh", "-c", "test -f ~/playbooks/one.md"]);
    let done = Done::from(run.current_dir(other).output().expect("dam"));
    done.expect_code(1).says("`dam trust` shows and allows it");
}

#[test]
fn no_task_can_trust_for_the_person() {
    let world = asking();
    world.write("../home/.config/cofferdam/trust.json", "{\"version\": 1, \"trusted\": []}");
    let script = "mkdir -p ~/.config/cofferdam; echo x > ~/.config/cofferdam/trust.json; dam trust --yes; true";
    world.run(&["--no-check"], script).expect_code(0);
    let kept = std::fs::read_to_string(world.home().join(".config/cofferdam/trust.json"));
    assert_eq!(kept.expect("read"), "{\"version\": 1, \"trusted\": []}");
    assert_eq!(has(&world, &[]).0, "no no no no");
    // A torn record is no record.
    world.write("../home/.config/cofferdam/trust.json", "{\"version\": 1, \"tru");
    world.run(&["--no-check"], "true").expect_code(2).says("trust.json`: EOF");
    world.write("../home/.config/cofferdam/trust.json", "{\"version\": 2, \"trusted\": []}");
    world.run(&["--no-check"], "true").expect_code(2).says("version 2 is not known");
}

#[test]
fn what_is_carried_is_what_it_is_called() {
    let world = World::new();
    world.write("../out/f", "host\n");
    world.write("../out/d/f", "host\n");
    world.sh("ln -s ../out rel; ln -s ../../out src/rel");
    world.write("cofferdam.toml", "[task]\ncarry = [\"rel/f\"]\n");
    world.commit("links");
    world.dam(["trust", "--yes"]).expect_code(0);
    for level in crate::support::levels() {
        for path in ["rel/f", "rel/d", "src/rel/f"] {
            own(&world, &format!("[task]\ncarry = [\"{path}\"]\n"));
            let done = world.dam(["run", "--level", level, "--no-check", "--", "true"]);
            done.expect_code(2).says("can't be carried: a link leads there");
        }
    }
    // In the base it is a link, in the checkout a directory: nothing may be written
    // through the one, or take its place.
    world.sh("rm rel cofferdam.toml; mkdir rel; echo mine > rel/mine");
    world.git(["commit", "--quiet", "--message", "no config", "cofferdam.toml"]);
    own(&world, "");
    for level in crate::support::levels() {
        let run = ["run", "--level", level, "--no-check", "--carry", "rel/mine", "--", "true"];
        world.dam(run).expect_code(2).says("`rel` is no directory in the base");
        let run = ["run", "--level", level, "--no-check", "--carry", "rel", "--", "true"];
        world.dam(run).expect_code(2);
    }
    assert!(!world.dir().join("out/mine").exists());
    // A repository inside can't be carried, and that is said before anything runs.
    world.sh("git init -q nested; echo 1 > nested/x");
    let done = world.dam(["run", "--no-check", "--carry", "nested", "--", "touch", "ran"]);
    done.expect_code(2).says("it is a repository of its own");
}

#[test]
fn what_can_not_be_given_is_not_asked_for() {
    let world = World::new();
    for (text, words) in [
        ("carry = [\"../x\"]", "is not a path inside the repository"),
        ("carry = [\".git/config\"]", "is not a path inside the repository"),
        ("carry = [\"/etc/passwd\"]", "is not a path inside the repository"),
        ("inputs = [\"~\"]", "must be absolute or begin with `~/`"),
        ("inputs = [\"~root/x\"]", "must be absolute or begin with `~/`"),
        ("inputs = [\"~/x:y\"]", "its place inside must be absolute"),
        ("env = [\"*\"]", "is no name of a variable"),
    ] {
        world.write("cofferdam.toml", format!("[task]\n{text}\n"));
        world.commit("asks");
        world.dam(["trust", "--yes"]).expect_code(2).says(words);
    }
    let many: Vec<String> = (0..51).map(|number| format!("\"A{number}\"")).collect();
    world.write("cofferdam.toml", format!("[task]\nenv = [{}]\n", many.join(", ")));
    world.commit("asks");
    world.dam(["trust", "--yes"]).expect_code(2).says("more than 50 things");
    world.write("cofferdam.toml", "[task]\ninputs = [\"~/p\\u202etxt\"]\n");
    world.commit("asks");
    let done = world.dam(["trust"]);
    assert!(done.stdout.contains("~/p\u{fffd}txt"), "{}", done.stdout);
    world.sh("git rm -q cofferdam.toml; mkdir cofferdam.toml; echo > cofferdam.toml/x");
    world.commit("a directory");
    world.run(&["--no-check"], "true").expect_code(2).says("`cofferdam.toml` is a directory");
}

#[test]
fn the_branch_that_a_run_lands_on_is_the_one_that_is_trusted() {
    let world = World::new();
    world.write("../home/playbooks/one.md", "step one\n");
    world.git(["checkout", "--quiet", "-b", "other"]);
    world.write("cofferdam.toml", "[task]\ninputs = [\"~/playbooks\"]\n");
    world.commit("asks");
    world.git(["checkout", "--quiet", "main"]);
    world.write("cofferdam.toml", "[task]\ninto = \"other\"\n");
    world.commit("into");
    let run = || world.run(&["--no-check"], "test -f ~/playbooks/one.md");
    run().expect_code(1).says("`dam trust --into other` shows and allows it");
    let done = world.dam(["trust", "--yes"]);
    assert!(done.stdout.contains("asks for input `~/playbooks`"), "{}", done.stdout);
    run().expect_code(0);
    world.dam(["trust", "--into", "other", "--revoke"]).expect_code(0);
    run().expect_code(1);
    world.dam(["trust", "--into", "nowhere"]).expect_code(2).says("no branch `nowhere`");
}

#[test]
fn what_asks_for_nothing_needs_no_trust() {
    let world = World::new();
    let done = world.dam(["trust"]);
    done.expect_code(0);
    assert!(done.stdout.contains("there is nothing to trust"), "{}", done.stdout);
    // What a person asks for is given.
    world.write("../home/playbooks/one.md", "step one\n");
    world.write(".env", "A=1\n");
    own(&world, ASKS);
    let (found, done) = has(&world, &[]);
    assert_eq!(found, "yes yes yes yes");
    assert!(!done.stderr.contains("dam trust"), "{}", done.stderr);
    std::fs::remove_file(world.path(".env")).expect("remove");
    let (found, done) = has(&world, &[]);
    assert_eq!(found, "yes no yes yes");
    done.says("there is no `.env` to be carried");
}

#[test]
fn the_persons_own_is_what_holds_when_nothing_is_said() {
    let world = World::new();
    let limits = |name: &str| {
        let limits = &world.task(name)["isolation"]["limits"];
        let of = |name: &str| {
            let found =
                limits.as_array().expect("limits").iter().find(|limit| limit["name"] == name);
            found.map(|limit| limit["value"].as_str().expect("text").to_owned())
        };
        (of("pids").expect("pids"), of("disk").expect("disk"))
    };
    own(
        &world,
        "[limits]\npids = 1000\ndisk = \"1GiB\"\n[task]\ntimeout = \"1h\"\n\
         [[check]]\nrun = \"! grep -q worse a.txt\"\n[land]\nprotect = [\"src\"]\n",
    );
    world.run(&["--name", "t", "--keep"], "echo 2 > a.txt").expect_code(0);
    assert_eq!(limits("t"), ("1000".into(), "1.0 GiB".into()));
    assert_eq!(world.task("t")["checks"][0]["name"], "your check 1");
    // The command line's are other ones, also larger ones; the repository's only tighten.
    world.run(&["--name", "u", "--pids", "2000"], "true").expect_code(0);
    assert_eq!(limits("u"), ("2000".into(), "1.0 GiB".into()));
    world.write(
        "cofferdam.toml",
        "[limits]\npids = 500\ndisk = \"2GiB\"\n[[check]]\nrun = \"./ci\"\n",
    );
    world.commit("limits");
    world.run(&["--name", "v"], "true").expect_code(0);
    assert_eq!(limits("v"), ("500".into(), "1.0 GiB".into()));
    own(&world, "[[check]]\nrun = \"! grep -q worse a.txt\"\n[land]\nprotect = [\"src\"]\n");
    world.write(
        "cofferdam.toml",
        "[limits]\npids = 99999\ndisk = \"900GiB\"\n[[check]]\nrun = \"./ci\"\n",
    );
    world.commit("no limits");
    world.run(&["--name", "l"], "true").expect_code(0);
    assert_eq!(limits("l"), ("4096".into(), "10.0 GiB".into()));
    // Both have a say in what lands.
    world.run(&["--name", "w"], "echo bad > a.txt").expect_code(3).says("check `check 1` failed");
    world.run(&["--name", "x"], "echo worse > a.txt").expect_code(3).says("`your check 1` failed");
    world.run(&["--name", "y"], "echo 3 > src/b.txt").expect_code(3).says("`src/b.txt`");
}

#[test]
fn the_state_is_where_the_persons_own_says() {
    let world = World::new();
    let elsewhere = world.home().join("elsewhere");
    own(&world, "state_dir = \"~/elsewhere\"\n");
    let mut run = world.dam_command(["run", "--no-check", "--", "true"]);
    run.env_remove("COFFERDAM_STATE");
    Done::from(run.output().expect("dam")).expect_code(0);
    assert!(elsewhere.join("ledger.db").exists() && !world.state().exists());
    // The variable comes first.
    world.run(&["--no-check"], "true").expect_code(0);
    assert!(world.state().join("ledger.db").exists());
}

#[test]
fn what_the_persons_own_says_wrongly_is_an_error() {
    let world = World::new();
    for (text, words) in [
        ("state_dri = \"/x\"\n", "did you mean `state_dir`?"),
        ("[task]\nlevle = \"sandbox\"\n", "did you mean `task.level`?"),
        ("state_dir = \"x\"\n", "must be absolute or begin with `~/`"),
        ("[task]\nlevel = \"vm\"\n", "is `vm`, which is not a level here"),
        ("[task", "config.toml`: "),
    ] {
        own(&world, text);
        world
            .run(&["--no-check"], "true")
            .expect_code(2)
            .says(words)
            .says(".config/cofferdam/config.toml");
    }
    own(&world, "[task]\nlevel = \"worktree\"\n");
    let done = world.dam(["run", "--no-check", "--", "true"]);
    if crate::support::is_root() {
        done.expect_code(6).says("level `worktree` can't be had here");
    } else {
        done.expect_code(0).says("worktree: own files");
    }
}

/// A git that says of HEAD what is true a moment later only: `main` moves to a commit without
/// `cofferdam.toml` when its tree was told and the file was not yet looked for.
#[test]
fn a_configuration_is_not_missed_because_the_branch_moves_while_it_is_read() {
    let mut world = World::new();
    let before = world.git(["rev-parse", "main"]);
    world.write("cofferdam.toml", "[[check]]\nrun = \"test ! -e x\"\n");
    world.git(["add", "--all"]);
    world.git(["commit", "--quiet", "--message", "gate"]);
    // So that nothing hints at it in the checkout.
    std::fs::remove_file(world.path("cofferdam.toml")).expect("remove");
    world.run(&["--name", "plain"], "echo x > x").expect_code(3);

    let wrapper = world.dir().join("bin");
    std::fs::create_dir(&wrapper).expect("mkdir");
    let script = format!(
        "PATH=${{PATH#*:}}\ncase \" $* \" in *' HEAD:cofferdam.toml '*)\n\
         git \"$@\"; echo HEAD:cofferdam.toml\n\
         git update-ref refs/heads/main {before}\n\
         echo \"fatal: path 'cofferdam.toml' does not exist in 'HEAD'\" >&2; exit 128;; esac\n\
         exec git \"$@\"",
        before = before.trim()
    );
    world.script(wrapper.join("git").to_str().expect("utf-8"), &script);
    world.prefer(wrapper.to_str().expect("utf-8"));
    let says = "`refs/heads/main` moved while the task was begun";
    world.run(&["--name", "moved"], "echo x > x").expect_code(2).says(says).says("run it again");
}

/// A git that is too old is named before anything is made for the repository.
#[test]
fn a_git_that_is_too_old_is_named() {
    let mut world = World::new();
    let wrapper = world.dir().join("bin");
    std::fs::create_dir(&wrapper).expect("mkdir");
    let script = "PATH=${PATH#*:}\ncase \" $* \" in *' version '*) echo git version 2.34.1; exit;;\n\
                  *' -z '*cat-file*|*cat-file*' -z '*) exit 129;; esac\nexec git \"$@\"";
    world.script(wrapper.join("git").to_str().expect("utf-8"), script);
    world.prefer(wrapper.to_str().expect("utf-8"));
    let says = "`git version 2.34.1` is too old: 2.38 or newer is needed";
    world.run(&[], "echo x > x").expect_code(2).says(says);
    let list = world.dam(["list", "--all", "--format", "json"]);
    assert_eq!(list.expect_code(0).stdout.trim(), "[]");
}

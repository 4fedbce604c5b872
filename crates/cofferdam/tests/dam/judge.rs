//! The judge can't be edited: a change to what decides over it never lands by itself.

use crate::support::{World, is_root};

/// A world with `ci`, which refuses `bad` in `a.txt`, and these files besides.
fn with(files: &[(&str, &str)]) -> World {
    let world = World::new();
    for (path, text) in files {
        world.write(path, text);
    }
    if !files.is_empty() {
        world.commit("files");
    }
    world
}

fn tip(world: &World) -> String {
    world.git(["rev-parse", "main"])
}

/// The task ends `ready`, says this, and nothing has landed.
#[track_caller]
fn waits(world: &World, options: &[&str], script: &str, words: &str) {
    let before = tip(world);
    world.run(&[options, &["--name", "t"]].concat(), script).expect_code(8).says(words);
    assert_eq!((world.state_of("t"), tip(world)), ("ready".into(), before));
}

#[test]
fn a_check_that_the_change_makes_pass_is_the_targets() {
    let world = with(&[]);
    let before = tip(&world);
    let done = world.run(
        &["--check", "./ci", "--name", "t"],
        "echo bad > a.txt; printf '#!/bin/sh\\nexit 0\\n' > ci",
    );
    done.expect_code(3).says("check `./ci` failed");
    assert_eq!((world.state_of("t"), tip(&world)), ("rejected".into(), before));
    let check = &world.task("t")["checks"][0];
    assert_eq!((&check["outcome"], &check["pinned"]), (&"failed".into(), &true.into()));
}

#[test]
fn a_pinned_file_is_found_however_the_command_names_it() {
    for (check, path) in [
        ("sh ./ci", "ci"),
        ("cd src && ./check", "src/check"),
        ("sh -c \"exec 'src/check'\"", "src/check"),
        ("./link", "src/check"),
        ("test -x src/check&&src/check", "src/check"),
    ] {
        let world = World::new();
        world.script("src/check", "cd \"$(git rev-parse --show-toplevel)\"; ! grep -q bad a.txt");
        world.sh("ln -s src/check link");
        world.commit("checks");
        let script = format!("echo bad > a.txt; printf '#!/bin/sh\\nexit 0\\n' > {path}");
        world.run(&["--check", check, "--name", "t"], &script).expect_code(3);
        // A link, a directory or nothing in its place is no way round.
        let script = format!(
            "echo bad > a.txt; echo > ok; chmod +x ok; rm {path}; ln -s $(realpath --relative-to=$(dirname {path}) ok) {path}"
        );
        world.run(&["--check", check, "--name", "u"], &script).expect_code(3);
        let script = format!("echo good > a.txt; rm {path}; mkdir {path}; echo 1 > {path}/x");
        let done = world.run(&["--check", check, "--name", "v"], &script);
        done.expect_code(8).says("`--allow-check-changes` lands it").says(path);
    }
}

#[test]
fn what_a_repository_pins_is_the_targets() {
    let world = with(&[
        (
            "cofferdam.toml",
            "[[check]]\nname = \"all\"\nrun = \"sh gate/run\"\npinned = [\"gate/**\"]\n",
        ),
        ("gate/run", ". gate/lib; check\n"),
        ("gate/lib", "check() { test ! -e gate/skip && ! grep -q bad a.txt; }\n"),
    ]);
    world
        .run(&["--name", "t"], "echo bad > a.txt; echo 'check() { true; }' > gate/lib")
        .expect_code(3);
    // A new file where files are pinned is not there either.
    world
        .run(&["--name", "u"], "echo good > a.txt; echo 1 > gate/skip")
        .expect_code(8)
        .says("`gate/skip`");
    let check = &world.task("u")["checks"][0];
    assert_eq!((&check["outcome"], &check["pinned"]), (&"passed".into(), &true.into()));
}

#[test]
fn what_a_runner_obeys_is_named_and_waits() {
    let python = "python3 -c 'import conftest' 2>/dev/null || ! grep -q bad a.txt";
    for (script, words) in [
        (
            "mkdir -p .cargo; printf '[target.x86_64-unknown-linux-gnu]\\nrunner = \"true\"\\n' > .cargo/config.toml",
            "`.cargo/config.toml`, which decides what a check says",
        ),
        ("echo 'raise SystemExit(0)' > conftest.py", "`conftest.py`, which decides"),
        ("mkdir -p sub; echo x > sub/Makefile", "`sub/Makefile`"),
        (
            "mkdir -p .github/workflows; echo x > .github/workflows/ci.yml; echo > build.rs",
            "which decide what",
        ),
        ("echo 'version = 1' > cofferdam.toml", "`cofferdam.toml`"),
    ] {
        waits(&with(&[]), &["--check", python], &format!("echo good > a.txt; {script}"), words);
    }
}

#[test]
fn of_some_files_only_a_part_counts() {
    let package = "{\"scripts\": {\"test\": \"sh ci\"}, \"dependencies\": {}}\n";
    let world = with(&[("package.json", package), ("pyproject.toml", "[project]\nname = \"p\"\n")]);
    let more = "sed -i 's/\"dependencies\": {}/\"dependencies\": {\"x\": \"1\"}/' package.json; \
                echo 'version = \"1\"' >> pyproject.toml";
    world.run(&["--check", "./ci", "--name", "dependency"], more).expect_code(0);
    assert_eq!(world.state_of("dependency"), "landed");
    let script = "sed -i 's/sh ci/true/' package.json";
    waits(&world, &["--check", "./ci"], script, "`package.json` (`scripts`), which decides");
    let world = with(&[("package.json", package)]);
    waits(&world, &["--check", "./ci"], "echo '{' > package.json", "`package.json`, which");
    let world = with(&[("pyproject.toml", "[project]\nname = \"p\"\n")]);
    let script =
        "printf '[tool.pytest.ini_options]\\naddopts = \"-k nothing\"\\n' >> pyproject.toml";
    waits(&world, &["--check", "./ci"], script, "`pyproject.toml` (`tool.pytest`), which decides");
}

#[test]
fn a_new_link_in_place_of_a_module_waits() {
    let test = "import json\nimport m\nassert m.one() == 1\n";
    let world = with(&[("m.py", "def one(): return 1\n"), ("tests/t.py", test)]);
    world.sh("sed -i '1i import sys; sys.path.insert(1, \".\")' tests/t.py");
    world.commit("path");
    let spoil = "sed -i 's/return 1/return 2/' m.py; mkdir real; printf 'import os\nos._exit(0)\n' > real/__init__.py";
    for link in ["ln -s ../real tests/json", "ln -s real r2; ln -s ../r2 tests/json"] {
        let options = ["--check", "python3 tests/t.py"];
        let done = world.run(&options, &format!("{spoil}; {link}"));
        done.expect_code(8).says("`tests/json`");
    }
}

#[test]
fn a_person_allows_it_and_checks_run_both_ways() {
    let world = with(&[]);
    let stricter = "printf '#!/bin/sh\\n! grep -q -e bad -e worse a.txt\\n' > ci";
    world.run(&["--check", "./ci", "--name", "t"], stricter).expect_code(8);
    world.dam(["land", "t", "--allow-check-changes"]).expect_code(0);
    let task = world.task("t");
    assert_eq!(task["check_changes"][0], "ci");
    assert_eq!(task["check_changes_allowed"], true);
    let pinned: Vec<_> =
        task["checks"].as_array().expect("list").iter().map(|check| &check["pinned"]).collect();
    assert_eq!(pinned, [true, false]);
    // What passes only with the target's files, or only with the changed ones, does not land.
    let options = ["--check", "./ci", "--allow-check-changes", "--name"];
    let script = "printf '#!/bin/sh\\nexit 1\\n' > ci";
    world.run(&[&options[..], &["u"]].concat(), script).expect_code(3);
    let script = "echo worse > a.txt; printf '#!/bin/sh\\nexit 0\\n' > ci";
    world.run(&[&options[..], &["v"]].concat(), script).expect_code(3);
}

#[test]
fn protected_paths_are_not_changed_at_all() {
    let world = with(&[
        ("cofferdam.toml", "[land]\nprotect = [\"cofferdam.toml\", \"docs\"]\n"),
        ("docs/a", "1\n"),
    ]);
    for options in [&["--no-check"][..], &["--check", "./ci", "--allow-check-changes"]] {
        let options = [options, &["--name", "t"]].concat();
        let done = world.run(&options, "echo 2 > docs/a; rm cofferdam.toml");
        done.expect_code(3).says("protects `cofferdam.toml`, `docs/a`");
        world.dam(["drop", "t"]).expect_code(0);
    }
}

#[test]
fn a_target_that_fails_its_check_blames_nobody() {
    let world = with(&[("a.txt", "bad\n")]);
    waits(&world, &["--check", "./ci"], "echo 2 > src/b.txt", "fails on `main` itself");
    assert_eq!(world.task("t")["checks"][0]["outcome"], "baseline-broken");
    // What mends it lands.
    world.run(&["--check", "./ci", "--name", "mend"], "echo good > a.txt").expect_code(0);
    // Then the change is to blame.
    world.run(&["--check", "./ci", "--name", "u"], "echo bad > a.txt").expect_code(3);
}

#[test]
fn a_check_that_fails_by_chance_is_tried_again_and_says_so() {
    // It fails on each first run: what it remembers is in a tool home, which is its own.
    let world = with(&[(
        "cofferdam.toml",
        "[[check]]\nname = \"odd\"\nrun = \"test $(($(date +%s%N) / 1000000 % 2)) = 0\"\nretry = 9\n",
    )]);
    let mut seen = Vec::new();
    for number in 0..20 {
        let name = format!("t{number}");
        world.run(&["--name", &name], &format!("echo {number} > a.txt"));
        let task = world.task(&name);
        seen.push(task["checks"][0]["outcome"].as_str().expect("outcome").to_owned());
        if seen.last().is_some_and(|last| last == "flaky-passed") {
            assert_eq!(task["state"], "landed");
            return;
        }
    }
    panic!("twenty tosses of a coin, each tried ten times: {seen:?}");
}

#[test]
fn values_of_a_check_are_looked_at() {
    for (text, words) in [
        ("[[check]]\nrun = \"true\"\nretry = 99\n", "`check.retry` must be a number from 0 to 9"),
        ("[[check]]\nrun = \"true\"\npinned = \"ci\"\n", "`check.pinned` must be a list of texts"),
        ("[[check]]\nrun = \"true\"\nclean = 1\n", "`check.clean` must be `true` or `false`"),
        ("[land]\nprotects = []\n", "did you mean `land.protect`?"),
    ] {
        with(&[("cofferdam.toml", text)]).run(&[], "true").expect_code(2).says(words);
    }
}

/// Verifies a task, changes something, and lands it: whether the first verdict still
/// stood then.
fn still_stands(world: &mut World, change: impl FnOnce(&mut World), env: &[(&str, &str)]) -> bool {
    let options = ["--name", "t", "--no-land", "--check", "./ci"];
    world.run(&options, "echo good > a.txt").expect_code(8);
    assert_eq!(world.task("t")["checks"][0]["cached"], false);
    change(world);
    let mut land = world.dam_command(["land", "t"]);
    let output = land.envs(env.iter().copied()).output().expect("dam");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    world.task("t")["checks"][0]["cached"].as_bool().expect("a check")
}

#[test]
fn a_verdict_stands_while_nothing_of_it_has_changed() {
    assert!(still_stands(&mut with(&[]), |_| (), &[]));
}

#[test]
fn a_verdict_is_void_with_another_program_on_the_path() {
    let mut world = with(&[]);
    world.script("../home/.cargo/bin/python3", "exec /usr/bin/python3 \"$@\"");
    world.prefer(&world.home().join(".cargo/bin").display().to_string());
    let other = |world: &mut World| world.script("../home/.cargo/bin/python3", "exit 0");
    assert!(!still_stands(&mut world, other, &[]));
}

#[test]
fn a_verdict_is_void_with_another_value_in_the_environment() {
    assert!(!still_stands(&mut with(&[]), |_| (), &[("LANG", "xx_YY.UTF-8")]));
}

#[test]
fn a_verdict_is_void_with_another_pinned_file() {
    let other = |world: &mut World| {
        world.script("ci", "! grep -q -e bad -e worse a.txt");
        world.commit("another check");
    };
    assert!(!still_stands(&mut with(&[]), other, &[]));
}

#[test]
fn a_verdict_is_void_at_another_level() {
    // A task keeps its level: this one's record is changed.
    let other = |world: &mut World| {
        let ledger = world.state().join("ledger.db");
        let change = "import sqlite3, sys
ledger = sqlite3.connect(sys.argv[1], isolation_level=None)
ledger.execute(\"UPDATE tasks SET spec = json_set(spec, '$.level', 'worktree', '$.network', 'open')\")";
        world.sh(&format!("python3 - '{}' <<'end'\n{change}\nend", ledger.display()));
    };
    if is_root() {
        return;
    }
    assert!(!still_stands(&mut with(&[]), other, &[]));
}

#[test]
fn a_verdict_is_void_with_another_toolchain_chosen() {
    let mut world = with(&[]);
    world.write("../home/.rustup/settings.toml", "default_toolchain = \"stable\"\n");
    let other = |world: &mut World| {
        world.write("../home/.rustup/settings.toml", "default_toolchain = \"nightly\"\n")
    };
    assert!(!still_stands(&mut world, other, &[]));
}

#[test]
fn links_are_no_way_to_what_a_runner_obeys() {
    let world = with(&[("build/rules.txt", "test:\n\t./ci\n"), ("shared/config.toml", "x = 1\n")]);
    world.sh("ln -s build/rules.txt Makefile; ln -s shared .cargo");
    world.commit("links");
    let options = ["--check", "./ci"];
    waits(&world, &options, "echo 'test:' > build/rules.txt", "`build/rules.txt`, which decides");
    world.dam(["drop", "t"]).expect_code(0);
    waits(&world, &options, "echo 'x = 2' > shared/config.toml", "`shared/config.toml`");
    world.dam(["drop", "t"]).expect_code(0);
    waits(
        &world,
        &options,
        "mkdir -p n/workflows; echo x > n/workflows/x.yml; ln -s n .github",
        "`.github`",
    );
}

#[test]
fn links_below_the_top_are_no_way_either() {
    for (check, script, words) in [
        // The link is beside what changes, above it, or where a command goes.
        ("./ci", "echo x > sub/rules", "`sub/rules`, which decides"),
        ("./ci", "echo x > sub/deep/rules.txt", "`sub/deep/rules.txt`"),
        ("./ci && cd far && test -e Makefile", "echo x > shared/far.txt", "`shared/far.txt`"),
    ] {
        let world = with(&[
            ("sub/rules", "1\n"),
            ("sub/deep/rules.txt", "1\n"),
            ("shared/far.txt", "all:\n\ttrue\n"),
            ("far/x", "1\n"),
        ]);
        world.sh("ln -s rules sub/Makefile; ln -s deep/rules.txt sub/all.mk; ln -s ../shared/far.txt far/Makefile");
        world.commit("links");
        waits(&world, &["--check", check], script, words);
    }
    // Another link is nothing to wait for.
    let world = with(&[("sub/rules", "1\n")]);
    world.sh("ln -s rules sub/other");
    world.commit("a link");
    world.run(&["--check", "./ci"], "echo x > sub/rules").expect_code(0);
}

#[test]
fn a_new_file_that_python_imports_in_place_of_a_module_waits() {
    let python = "python3 -m unittest discover tests";
    let files = [
        (
            "tests/test_a.py",
            "import json, unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertNotIn('bad', open('a.txt').read())\n",
        ),
        ("pkg/__init__.py", ""),
        ("pkg/a.py", ""),
    ];
    let world = with(&files);
    // That is enough to pass with.
    let script = "echo bad > a.txt; echo 'import os; os._exit(0)' > tests/json.py";
    waits(&world, &["--check", python], script, "`tests/json.py`, which decides what a check says");
    world.dam(["drop", "t"]).expect_code(0);
    for (script, words) in [
        ("echo > json.py", "`json.py`, which decides what a check says"),
        ("echo > tests/json.py", "`tests/json.py`"),
        ("mkdir tests/logging; echo > tests/logging/__init__.py", "`tests/logging/__init__.py`"),
        ("mkdir new; echo > new/re.py", "`new/re.py`"),
        ("ln -s a.py pkg/x.py; ln -s pkg/a.py types.py", "`types.py`"),
        // What was imported from is not a package because it is made one.
        ("echo > tests/__init__.py; echo > tests/json.py", "`tests/json.py`"),
    ] {
        let script = format!("echo good > a.txt; {script}");
        waits(&world, &["--check", &format!("./ci || {python}")], &script, words);
        world.dam(["drop", "t"]).expect_code(0);
    }
    // In a package it has another name, unless a program in there is what runs.
    let script = "echo > pkg/json.py; mkdir more; echo > more/__init__.py; echo > more/json.py";
    waits(&world, &["--check", "python3 pkg/a.py"], script, "`pkg/json.py`, which decides");
    world.dam(["drop", "t"]).expect_code(0);
    for script in [script, "echo > tests/answer.py", "echo > json.pyi", "echo >> tests/test_a.py"] {
        world.run(&["--check", "./ci && python3 -c pass"], script).expect_code(0);
    }
    // The language is not used, or a file at the top says that it is.
    let world = with(&[]);
    world.run(&["--check", "./ci"], "echo > json.py").expect_code(0);
    let world = with(&[("requirements.txt", "")]);
    waits(&world, &["--check", "./ci"], "echo > json.py", "`json.py`, which decides");
}

#[test]
fn what_runs_before_pinned_files_of_a_package_waits() {
    let text = "[[check]]\nrun = \"./ci\"\npinned = [\"tests/unit/test_*.py\"]\n";
    let files = [("cofferdam.toml", text), ("tests/unit/test_a.py", ""), ("pkg/a.py", "")];
    let world = with(&files);
    world.run(&[], "echo > pkg/__init__.py; echo > tests/other.py").expect_code(0);
    for path in ["tests/__init__.py", "tests/unit/__init__.py"] {
        waits(&world, &[], &format!("echo > {path}"), &format!("`{path}`, which decides"));
        world.dam(["drop", "t"]).expect_code(0);
    }
}

#[test]
fn however_a_command_puts_a_path_together_its_program_is_not_changed_unseen() {
    for (check, path) in [
        ("cd src && ../ci", "ci"),
        ("\"$PWD/ci\"", "ci"),
        ("./c?", "ci"),
        ("\"./my check\"", "my check"),
        ("D=tools; $D/ci", "scripts/ci"),
    ] {
        let world = with(&[]);
        for script in ["my check", "scripts/ci"] {
            world.script(script, "cd \"$(git rev-parse --show-toplevel)\"; ! grep -q bad a.txt");
        }
        world.sh("ln -s scripts tools");
        world.commit("checks");
        let before = tip(&world);
        let script = format!("echo bad > a.txt; printf '#!/bin/sh\\nexit 0\\n' > '{path}'");
        let done = world.run(&["--check", check], &script);
        assert!(matches!(done.code, Some(3 | 8)), "{check}: {}", done.stderr);
        assert_eq!(tip(&world), before, "{check}");
    }
}

#[test]
fn a_check_that_the_change_brings_along_waits() {
    waits(
        &with(&[]),
        &["--check", "sh ./new"],
        "echo bad > a.txt; echo 'exit 0' > new",
        "`new`, which decides",
    );
}

#[test]
fn what_is_only_an_argument_may_change() {
    for check in
        ["exec grep -q . a.txt", "if grep -q . a.txt; then true; fi", "sh -n a.txt || true"]
    {
        with(&[]).run(&["--check", check], "echo other > a.txt").expect_code(0);
    }
}

#[test]
fn a_pattern_that_matches_nothing_is_an_error() {
    for pattern in ["/lib/**", "", "../x", "!x", "lib//x"] {
        let text = format!("[land]\nprotect = [\"{pattern}\"]\n");
        with(&[("cofferdam.toml", &text)]).run(&[], "true").expect_code(2).says("matches no path");
    }
}

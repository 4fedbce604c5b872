//! Published projects, as their registries have them, with the tests that they carry:
//! several tasks at once, a wrong change, a rename, a change of every file. What a
//! build leaves behind and the repository ignores never lands.
//!
//! `tests/projects.sh` fetches the sources.

use std::path::PathBuf;
use std::process::Stdio;

use crate::runners::node;
use crate::support::{Done, World};
use crate::tools::toolchain;

/// The sources of one project.
fn sources(kind: &str) -> PathBuf {
    let named = std::env::var_os("DAM_TEST_PROJECTS").map(PathBuf::from);
    let place = named.unwrap_or_else(|| {
        let var = |name| std::env::var_os(name).map(PathBuf::from);
        let cache = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
        cache.unwrap_or_default().join("cofferdam-tests/projects")
    });
    let sources = place.join(kind);
    assert!(
        sources.is_dir(),
        "`{}` is missing: `crates/cofferdam/tests/projects.sh` fetches it, or `DAM_TEST_PROJECTS` names a directory that has it",
        sources.display()
    );
    sources
}

/// A project in a repository of its own, and its own test command.
struct Project {
    world: World,
    run: &'static str,
}

impl Project {
    fn new(world: World, kind: &str, run: &'static str, ignored: &str) -> Project {
        world.sh(&format!("cp -r '{}'/. .", sources(kind).display()));
        world.write(".gitignore", ignored);
        world.git(["add", "--all", "--force"]);
        world.commit("as it was published");
        let project = Project { world, run };
        project.is_well();
        project
    }

    /// The checkout is what was committed, every object is there and right, and the
    /// project's own tests pass.
    #[track_caller]
    fn is_well(&self) {
        self.world.sh(self.run);
        assert_eq!(self.world.git(["status", "--porcelain"]), "");
        assert_eq!(self.world.git(["fsck", "--strict", "--no-dangling", "--no-progress"]), "");
    }

    fn options<'a>(&'a self, name: &'a str) -> [&'a str; 4] {
        ["--name", name, "--check", self.run]
    }

    /// Runs these edits at once, each followed by the project's tests; all land.
    #[track_caller]
    fn at_once(&self, edits: &[(&str, &str)]) {
        let start = |(name, edit): &(&str, &str)| {
            let script = format!("set -e; {edit}; {}", self.run);
            let run = [&["run"], &self.options(name)[..], &["--", "sh", "-c", &script]].concat();
            let mut command = self.world.dam_command(run);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("dam")
        };
        let tasks: Vec<_> = edits.iter().map(start).collect();
        for task in tasks {
            Done::from(task.wait_with_output().expect("wait")).expect_code(0);
        }
        for (name, _) in edits {
            assert_eq!(self.world.state_of(name), "landed");
        }
        self.is_well();
    }

    /// The project's own tests reject an edit, and the patch shows it.
    #[track_caller]
    fn refuses(&self, edit: &str, shown: &str) {
        let tip = self.world.git(["rev-parse", "main"]);
        let done = self.world.run(&self.options("wrong"), edit);
        done.expect_code(3).says("rejected wrong");
        let patch = self.world.dam(["diff", "wrong"]);
        assert!(patch.expect_code(0).stdout.contains(shown), "{}", patch.stdout);
        assert_eq!(self.world.git(["rev-parse", "main"]), tip);
        self.is_well();
    }

    /// An edit that the tests allow and that changes what decides about them: it waits
    /// for a person, and lands when one says so.
    #[track_caller]
    fn waits_for_a_person(&self, name: &str, edit: &str, why: &str) {
        self.world.run(&self.options(name), edit).expect_code(8).says(why);
        let land = ["land", name, "--allow-check-changes", "--check", self.run];
        self.world.dam(land).expect_code(0);
        assert_eq!(self.world.state_of(name), "landed");
        self.is_well();
    }
}

#[test]
fn a_crate_in_rust() {
    let mut world = World::empty();
    toolchain(&world);
    world.prefer(&world.home().join(".cargo/bin").display().to_string());
    let run = "cargo test --quiet --offline --test test_version_req";
    let project = Project::new(world, "rust", run, "target\n");
    project.at_once(&[
        ("comment", "echo '// Read.' >> src/eval.rs"),
        // A directory of modules gets another name.
        (
            "rename",
            "mv tests/util tests/support; \
             sed -i 's/mod util;/mod support;/; s/crate::util/crate::support/; s/super::util/super::support/' tests/*.rs tests/*/*.rs",
        ),
    ]);
    project.refuses(
        "sed -i 's/=> matches_exact(cmp, ver)/=> !matches_exact(cmp, ver)/' src/eval.rs",
        "+        Op::Exact | Op::Wildcard => !matches_exact(cmp, ver),",
    );
    // Other indentation in every file: there are no four spaces any more.
    let reformat = "find src tests -name '*.rs' -exec sed -i 's/    /\\t/g' {} +";
    project.world.run(&project.options("reformat"), reformat).expect_code(0);
    project.is_well();
    let world = &project.world;
    assert_eq!(world.git(["ls-files", "target", "tests/util"]), "");
    assert_eq!(world.sh("grep -rl '    ' src tests || true"), "");
    assert!(world.path("tests/support/mod.rs").exists() && !world.path("tests/util").exists());
}

#[test]
fn a_package_in_python() {
    let run = "PYTHONPATH=src /usr/bin/python3 -m pytest -q tests/test_basic.py";
    let ignored = "__pycache__\n.pytest_cache\n";
    let project = Project::new(World::empty(), "python", run, ignored);
    project.at_once(&[
        ("comment", "echo '# Read.' >> src/click/utils.py"),
        ("rename", "mv requirements wanted; echo '# More.' >> wanted/tests.in"),
        ("changes", "sed -i '1s/^/More.\\n\\n/' CHANGES.rst"),
    ]);
    project.refuses("sed -i 's/\"yes\"/\"yess\"/' src/click/types.py", "\"yess\"");
    project.waits_for_a_person(
        "reformat",
        "find . -name '*.py' -exec sed -i 's/    /\\t/g' {} +",
        "`tests/conftest.py`",
    );
    let world = &project.world;
    assert_eq!(world.sh("grep -rl --include='*.py' '    ' . || true"), "");
    assert_eq!(world.git(["ls-files", "requirements", "*.pyc", ".pytest_cache"]), "");
    assert!(world.path("wanted/tests.in").exists() && !world.path("requirements").exists());
}

#[test]
fn a_package_of_node() {
    let mut world = World::empty();
    node(&mut world);
    let project = Project::new(world, "node", "npm test", "node_modules\n");
    project.at_once(&[
        ("comment", "echo '// Read.' >> mime.js"),
        ("readme", "echo More. >> README.md"),
        // What a package manager leaves: ignored, and never looked into by the harvest.
        (
            "modules",
            "for d in $(seq 100); do mkdir -p node_modules/m$d; for f in $(seq 20); do \
             echo $f > node_modules/m$d/$f.js; done; done; echo Modules. >> README",
        ),
    ]);
    project.refuses("sed -i 's/|| fallback ||/||/' mime.js", "-  return this.types[ext]");
    project.waits_for_a_person(
        "rename",
        "mv build tools; sed -i 's|build/|tools/|g' package.json",
        "`package.json`",
    );
    let world = &project.world;
    assert!(world.path("tools/test.js").exists() && !world.path("build").exists());
    assert!(!world.path("node_modules").exists());
}

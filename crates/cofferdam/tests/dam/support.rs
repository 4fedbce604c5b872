//! A repository, a state directory and a home of its own for each test.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// The binary under test.
pub fn dam_binary() -> PathBuf {
    std::env::var_os("DAM_TEST_BINARY")
        .map_or_else(|| env!("CARGO_BIN_EXE_dam").into(), PathBuf::from)
}

/// The top of the source tree.
pub fn source() -> PathBuf {
    std::env::var_os("DAM_TEST_SOURCE")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), PathBuf::from)
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The levels that the caller can have.
pub fn levels() -> &'static [&'static str] {
    if is_root() { &["sandbox"] } else { &["sandbox", "worktree"] }
}

/// Every name below a directory with its type, mode, size, time and content.
pub fn fingerprint(dir: &Path) -> String {
    let output = Command::new("sh")
        .args(["-ec", "cd \"$0\"; find . -printf '%p %y %m %s %T@ %l\\n' | sort; find . -type f -print0 | sort -z | xargs -0 -r sha256sum"])
        .arg(dir)
        .output()
        .expect("sh");
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What one test has to itself.
pub struct World {
    dir: TempDir,
    /// The person's repository, with one commit on `main`.
    pub repo: PathBuf,
    path: OsString,
    level: &'static str,
}

impl World {
    /// A repository with `a.txt`, `src/b.txt`, an executable `ci` that passes when
    /// `a.txt` does not say `bad`, and a `.gitignore` for `*.log` and `.env`.
    pub fn new() -> World {
        let world = World::empty();
        world.write("a.txt", "hello\n");
        world.write("src/b.txt", "b\n");
        world.write(".gitignore", "*.log\n.env\n");
        world.script("ci", "! grep -q bad a.txt");
        world.git(["add", "--all"]);
        world.git(["commit", "--quiet", "--message", "first"]);
        world
    }

    /// A repository without a commit.
    pub fn empty() -> World {
        // Not below /tmp, which is private inside: a repository there would be an
        // easier case than a real one. Root's temporary directory is world-searchable.
        let dir =
            tempfile::Builder::new().prefix("dam-test-").tempdir_in("/var/tmp").expect("tempdir");
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))
            .expect("chmod");
        let repo = dir.path().join("repo");
        std::fs::create_dir(&repo).expect("repo");
        std::fs::create_dir(dir.path().join("home")).expect("home");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let world = World { dir, repo, path, level: "sandbox" };
        world.git(["init", "--quiet", "--initial-branch=main"]);
        world.git(["config", "user.name", "Ann"]);
        world.git(["config", "user.email", "ann@example.com"]);
        world
    }

    /// Puts these directories before the others of `PATH`, for all that follows.
    pub fn prefer(&mut self, dirs: &str) {
        let mut path = OsString::from(dirs);
        path.push(":");
        path.push(&self.path);
        self.path = path;
    }

    /// The directory that holds everything.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The person's home.
    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// The state directory.
    pub fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// A file of the repository.
    pub fn path(&self, path: &str) -> PathBuf {
        self.repo.join(path)
    }

    /// Writes a file of the repository.
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
        std::fs::write(path, text).expect("write");
    }

    /// Reads a file of the repository.
    pub fn read(&self, path: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.path(path)).expect("read")).into_owned()
    }

    /// Writes an executable shell script.
    pub fn script(&self, path: &str, body: &str) {
        self.write(path, format!("#!/bin/sh\n{body}\n"));
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.path(path), mode).expect("chmod");
    }

    /// A program in the repository, with nothing of the caller's environment.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.repo)
            .env_clear()
            .env("PATH", &self.path)
            .env("HOME", self.home())
            .env("COFFERDAM_STATE", self.state())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .stdin(Stdio::null());
        command
    }

    /// `dam` with these arguments, to be run.
    pub fn dam_command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.command(dam_binary());
        command.args(args);
        command
    }

    /// `dam` as a terminal starts it, whatever signals the tests were started with as
    /// ignored (a shell's background job has SIGINT so).
    pub fn attended_command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.command("env");
        command.arg("--default-signal=INT,HUP,TERM").arg(dam_binary()).args(args);
        command
    }

    /// Runs `dam`.
    pub fn dam<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Done {
        Done::from(self.dam_command(args).output().expect("dam"))
    }

    /// Runs `dam run OPTIONS -- sh -c SCRIPT`.
    pub fn run(&self, options: &[&str], script: &str) -> Done {
        let run = ["run", "--level", self.level];
        self.dam([&run, options, &["--", "sh", "-c", script]].concat())
    }

    /// Lets [`World::run`] run at this level.
    pub fn at_level(&mut self, level: &'static str) {
        self.level = level;
    }

    /// Runs git in the repository; it must succeed. Gives what it printed, trimmed.
    #[track_caller]
    pub fn git<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        let output = self.command("git").args(args).output().expect("git");
        assert!(output.status.success(), "git: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Runs a shell script in a directory; it must succeed. Gives what it printed,
    /// trimmed.
    #[track_caller]
    pub fn sh_in(&self, dir: &Path, script: &str) -> String {
        let output = self.command("sh").current_dir(dir).args(["-ec", script]).output();
        let output = output.expect("sh");
        assert!(
            output.status.success(),
            "{script}\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Runs a shell script in the repository; it must succeed.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        self.sh_in(&self.repo, script)
    }

    /// Commits everything that is in the repository.
    #[track_caller]
    pub fn commit(&self, message: &str) {
        self.git(["add", "--all"]);
        self.git(["commit", "--quiet", "--allow-empty", "--message", message]);
    }

    /// The subjects of a branch, newest first.
    pub fn subjects(&self, branch: &str) -> Vec<String> {
        self.git(["log", "--format=%s", branch]).lines().map(str::to_owned).collect()
    }

    /// A task as `dam show` has it.
    #[track_caller]
    pub fn task(&self, name: &str) -> serde_json::Value {
        let done = self.dam(["--format", "json", "show", name]);
        done.expect_code(0);
        serde_json::from_str(&done.stdout).expect("json")
    }

    /// The state of a task.
    #[track_caller]
    pub fn state_of(&self, name: &str) -> String {
        self.task(name)["state"].as_str().expect("state").to_owned()
    }
}

impl Drop for World {
    /// Overlays leave directories of mode 000, which an ordinary user's temporary
    /// directory would not be removed with.
    fn drop(&mut self) {
        let _ = Command::new("chmod").args(["-R", "u+rwX"]).arg(self.dir.path()).status();
    }
}

/// A program that ended.
#[derive(Debug)]
pub struct Done {
    /// Its exit code, none when a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it printed as errors.
    pub stderr: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Done {
        Done {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Done {
    /// Fails the test unless the exit code is this.
    #[track_caller]
    pub fn expect_code(&self, code: i32) -> &Done {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Fails the test unless the errors hold this.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Done {
        assert!(self.stderr.contains(text), "no `{text}` in:\n{}", self.stderr);
        self
    }
}

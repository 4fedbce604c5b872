//! The one way to start git.
//!
//! Every call names its repository, starts from an empty environment and turns
//! off what would run programs or wait for a person: hooks, the fsmonitor,
//! automatic maintenance, lazy fetching, submodule recursion, prompts. Objects
//! and refs are synced: git's defaults sync neither.
//!
//! Two kinds: on our own [`Store`](crate::Store) with no configuration but
//! ours, and on the person's repository with the person's configuration, as
//! the repository's owner when root asks.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock};

use crate::{GitError, Oid};

/// The user as whom git works on a repository that root does not own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAs {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Home directory, where that user's configuration is.
    pub home: PathBuf,
}

impl RunAs {
    /// The owner of `dir`, when the caller is root and the owner is not.
    ///
    /// # Errors
    /// When `dir` can't be read.
    pub fn owner_of(dir: &Path) -> std::io::Result<Option<RunAs>> {
        use std::os::unix::fs::MetadataExt;
        let owner = std::fs::metadata(dir)?;
        if !rustix::process::geteuid().is_root() || owner.uid() == 0 {
            return Ok(None);
        }
        // The names of people are in whatever encoding.
        let accounts = std::fs::read("/etc/passwd").unwrap_or_default();
        let accounts = String::from_utf8_lossy(&accounts);
        let home = home_in(&accounts, owner.uid()).unwrap_or_else(|| "/nonexistent".into());
        Ok(Some(RunAs { uid: owner.uid(), gid: owner.gid(), home }))
    }
}

fn home_in(passwd: &str, uid: u32) -> Option<PathBuf> {
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.get(2)?.parse() == Ok(uid)).then(|| PathBuf::from(fields.get(5).unwrap_or(&"")))
    })
}

const SETTINGS: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.fsync=committed,loose-object,reference",
    "core.fsyncMethod=fsync",
    "gc.auto=0",
    "maintenance.auto=false",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "core.safecrlf=false",
    "advice.detachedHead=false",
];

/// What an empty pipe takes without a reader, on every kernel and page size.
const PIPE_HOLDS: usize = 4096;

/// One call of git, being put together.
#[derive(Debug)]
pub struct GitCommand {
    command: Command,
    shown: String,
    input: Option<Vec<u8>>,
}

/// Where git is. Found once: with a full path the child is started without a
/// copy of our memory, and tries no directory in vain.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join("git"))
            .find(|file| {
                file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
            })
            // Whoever starts it will say that it is missing.
            .unwrap_or_else(|| "git".into())
    })
}

impl GitCommand {
    fn new(program: &Path) -> GitCommand {
        let mut command = Command::new(program);
        // Of its own group: a terminal's Ctrl-C is for us, who let git finish.
        command.env_clear().stdin(Stdio::null()).process_group(0);
        // The time zone is part of a commit.
        for name in ["PATH", "TZ"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.envs([
            ("LC_ALL", "C"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_NO_LAZY_FETCH", "1"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            ("GIT_OPTIONAL_LOCKS", "0"),
            ("GIT_ADVICE", "0"),
        ]);
        let mut git = GitCommand { command, shown: String::new(), input: None };
        for setting in SETTINGS {
            git.command.args(["-c", setting]);
        }
        git
    }

    /// A call on a repository of ours, with no configuration but its own.
    #[must_use]
    pub fn ours(git_dir: &Path) -> GitCommand {
        let mut git = GitCommand::new(program());
        git.command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        git.command.env("HOME", "/nonexistent");
        git.command.env("GIT_DIR", git_dir);
        git
    }

    /// A call that is about no repository, with no configuration.
    #[must_use]
    pub fn without_repository() -> GitCommand {
        let mut git = GitCommand::new(program());
        git.command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        git.command.env("HOME", "/nonexistent").env("GIT_CEILING_DIRECTORIES", "/");
        git.command.current_dir("/");
        git
    }

    /// A call on the person's repository, with the person's configuration.
    #[must_use]
    pub fn persons(git_dir: &Path, owner: Option<&RunAs>) -> GitCommand {
        let mut git = GitCommand::discovering(owner);
        git.command.env("GIT_DIR", git_dir);
        git
    }

    /// A call that looks for the repository from its working directory upwards.
    #[must_use]
    pub fn discovering(owner: Option<&RunAs>) -> GitCommand {
        // The owner need not be able to run what root finds first.
        let mut git = GitCommand::new(if owner.is_some() { Path::new("git") } else { program() });
        let passed: &[&str] = match owner {
            Some(owner) => {
                git.command.uid(owner.uid).gid(owner.gid).env("HOME", &owner.home);
                &[
                    "GIT_CONFIG_NOSYSTEM",
                    "GIT_CEILING_DIRECTORIES",
                    "GIT_DISCOVERY_ACROSS_FILESYSTEM",
                ]
            }
            // What finds the person's configuration and lets a push ask an agent.
            None => &[
                "GIT_CEILING_DIRECTORIES",
                "GIT_DISCOVERY_ACROSS_FILESYSTEM",
                "HOME",
                "XDG_CONFIG_HOME",
                "GIT_CONFIG_NOSYSTEM",
                "GIT_CONFIG_GLOBAL",
                "GIT_CONFIG_SYSTEM",
                "SSH_AUTH_SOCK",
                "GIT_SSH",
                "GIT_SSH_COMMAND",
                "GIT_ASKPASS",
                "USER",
                "LOGNAME",
            ],
        };
        for name in passed {
            if let Some(value) = std::env::var_os(name) {
                git.command.env(name, value);
            }
        }
        // ssh asks nobody: it would be stopped for reading the terminal.
        git.command.env("SSH_ASKPASS", "false").env("SSH_ASKPASS_REQUIRE", "force");
        git
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> GitCommand {
        for arg in args {
            let arg = arg.as_ref();
            if !self.shown.is_empty() {
                self.shown.push(' ');
            }
            self.shown.push_str(&arg.to_string_lossy());
            self.command.arg(arg);
        }
        self
    }

    /// Adds a configuration setting, `section.key=value`. To come before
    /// [`GitCommand::args`].
    #[must_use]
    pub fn setting(mut self, setting: impl Into<OsString>) -> GitCommand {
        self.command.arg("-c").arg(setting.into());
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> GitCommand {
        self.command.env(name, value);
        self
    }

    /// Works on files below `dir`, from there.
    #[must_use]
    pub fn work_tree(mut self, dir: &Path) -> GitCommand {
        self.command.env("GIT_WORK_TREE", dir).current_dir(dir);
        self
    }

    /// Starts in `dir`.
    #[must_use]
    pub fn current_dir(mut self, dir: &Path) -> GitCommand {
        self.command.current_dir(dir);
        self
    }

    /// What git reads from its standard input.
    #[must_use]
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> GitCommand {
        self.input = Some(bytes.into());
        self
    }

    /// Lets git read what another process prints.
    #[must_use]
    pub fn reading(mut self, from: impl Into<Stdio>) -> GitCommand {
        self.command.stdin(from);
        self
    }

    /// Starts it, to be waited for later.
    ///
    /// # Errors
    /// [`GitError::NotStarted`].
    pub fn start(mut self) -> Result<Started, GitError> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if self.input.is_some() {
            self.command.stdin(Stdio::piped());
        }
        let mut child = self.command.spawn().map_err(GitError::NotStarted)?;
        let mut input = self.input.take();
        // Nobody has to wait for what fits into a pipe.
        if let Some(small) = input.take_if(|input| input.len() <= PIPE_HOLDS)
            && let Some(mut stdin) = child.stdin.take()
        {
            let _ = stdin.write_all(&small);
        }
        Ok(Started { child, command: self.shown, input })
    }

    /// Runs it and gives what it printed, whatever its exit code.
    ///
    /// # Errors
    /// [`GitError::NotStarted`].
    pub fn finish(self) -> Result<Finished, GitError> {
        self.start()?.finish()
    }

    /// Runs it; exit code 0 or an error. Gives what it printed.
    ///
    /// # Errors
    /// [`GitError::NotStarted`], [`GitError::Failed`].
    pub fn run(self) -> Result<Vec<u8>, GitError> {
        self.start()?.run()
    }

    /// Runs it and reads one object name.
    ///
    /// # Errors
    /// As [`GitCommand::run`], and [`GitError::Unexpected`].
    pub fn oid(self) -> Result<Oid, GitError> {
        let command = self.shown.clone();
        let out = self.run()?;
        let text = String::from_utf8_lossy(&out);
        Oid::parse(text.trim()).ok_or_else(|| GitError::Unexpected {
            command,
            answer: text.chars().take(200).collect(),
        })
    }

    /// Starts it with pipes on all three ends, for a conversation.
    ///
    /// # Errors
    /// [`GitError::NotStarted`].
    pub fn converse(mut self) -> Result<Conversation, GitError> {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.command.spawn().map_err(GitError::NotStarted)?;
        Ok(Conversation { child, command: self.shown })
    }
}

/// A call of git that runs by itself.
#[derive(Debug)]
pub struct Started {
    child: Child,
    command: String,
    input: Option<Vec<u8>>,
}

impl Started {
    /// Waits for it and gives what it printed, whatever its exit code.
    ///
    /// # Errors
    /// [`GitError::NotStarted`].
    pub fn finish(mut self) -> Result<Finished, GitError> {
        let fed = Mutex::new(self.child.stdin.take().zip(self.input));
        let mut child = self.child;
        // Fed from a thread of its own: git may print before it has read all.
        let output = std::thread::scope(|scope| {
            let feed = || {
                if let Some((mut stdin, input)) = fed.lock().expect("input").take() {
                    // A git that does not want to read on says why itself.
                    let _ = stdin.write_all(&input);
                }
            };
            if fed.lock().expect("input").is_some()
                && let Err(error) = std::thread::Builder::new().spawn_scoped(scope, feed)
            {
                // Before its input ends: half of it would be another request.
                let _ = child.kill();
                let _ = child.wait();
                return Err(error);
            }
            child.wait_with_output()
        })
        .map_err(GitError::NotStarted)?;
        Ok(Finished {
            command: self.command,
            status: output.status,
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Waits for it; exit code 0 or an error. Gives what it printed.
    ///
    /// # Errors
    /// [`GitError::NotStarted`], [`GitError::Failed`].
    pub fn run(self) -> Result<Vec<u8>, GitError> {
        let done = self.finish()?;
        if done.status.success() { Ok(done.stdout) } else { Err(done.failed()) }
    }
}

/// A call of git that ended.
#[derive(Debug)]
pub struct Finished {
    /// The subcommand with its arguments.
    pub command: String,
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it complained about.
    pub stderr: String,
}

impl Finished {
    /// The error that this ending is.
    #[must_use]
    pub fn failed(self) -> GitError {
        GitError::of_failed(self.command, self.status.code(), self.stderr)
    }

    /// The error for an answer that was not understood.
    #[must_use]
    pub fn unexpected(self) -> GitError {
        let answer = String::from_utf8_lossy(&self.stdout).chars().take(200).collect();
        GitError::Unexpected { command: self.command, answer }
    }
}

/// A running git that is talked to.
#[derive(Debug)]
pub struct Conversation {
    /// The process; its pipes are to be taken.
    pub child: Child,
    /// The subcommand with its arguments.
    pub command: String,
}

impl Conversation {
    /// Tells it something.
    ///
    /// # Errors
    /// When it does not read any more.
    pub fn say(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match &mut self.child.stdin {
            Some(stdin) => stdin.write_all(bytes),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Whether exactly this is what it says next.
    pub fn hear(&mut self, wanted: &[u8]) -> bool {
        let mut said = vec![0; wanted.len()];
        let stdout = self.child.stdout.as_mut();
        stdout.is_some_and(|stdout| stdout.read_exact(&mut said).is_ok()) && said == wanted
    }

    /// Closes its input and waits for it, whatever its exit code. What of its output was
    /// not taken is in the answer.
    ///
    /// # Errors
    /// [`GitError::NotStarted`].
    pub fn finish(mut self) -> Result<Finished, GitError> {
        drop(self.child.stdin.take());
        let output = self.child.wait_with_output().map_err(GitError::NotStarted)?;
        Ok(Finished {
            command: self.command,
            status: output.status,
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Ends it, wherever it is.
    pub fn stop(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Closes its input, waits for it, and gives an error unless it was content.
    ///
    /// # Errors
    /// [`GitError::Failed`] with what it complained about.
    pub fn end(self) -> Result<(), GitError> {
        let done = self.finish()?;
        if done.status.success() { Ok(()) } else { Err(done.failed()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_come_from_the_account_list() {
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000:Ann:/home/ann:/bin/bash\n";
        assert_eq!(home_in(passwd, 1000), Some("/home/ann".into()));
        assert_eq!(home_in(passwd, 7), None);
    }

    #[test]
    fn nothing_of_the_callers_environment_reaches_our_repositories() {
        let git = GitCommand::ours(Path::new("/store.git"));
        let names: Vec<_> = git.command.get_envs().map(|(name, _)| name.to_owned()).collect();
        assert!(!names.iter().any(|name| name == "GIT_INDEX_FILE" || name == "SSH_AUTH_SOCK"));
        assert!(names.iter().any(|name| name == "GIT_CONFIG_NOSYSTEM"));
    }
}

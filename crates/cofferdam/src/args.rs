//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use cofferdam_core::TaskName;
use cofferdam_core::limits;
use cofferdam_core::once::OnceKey;
use cofferdam_core::request::Level;
use cofferdam_core::series::MOST_FAILURES;

/// Isolated write contexts for unattended work: one task, one context, one
/// verified change, one landing.
#[derive(Debug, Parser)]
#[command(name = "dam", version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Args {
    /// How results are printed.
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  landed, or nothing to land     5  held by another task
  1  the command failed             6  isolation not available
  2  usage                          7  timed out
  3  rejected by a check            8  ready: waits for a person
  4  conflict or drift              9  a disk is full, or a limit is reached
 70  internal error               130  interrupted";

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object at the end.
    Json,
    /// One JSON object per event, as it happens.
    Jsonl,
}

impl Format {
    /// The one that is asked for in arguments that make no sense otherwise.
    pub fn asked_for(args: impl Iterator<Item = OsString>) -> Format {
        let args: Vec<String> = args
            .map(|arg| arg.to_string_lossy().into_owned())
            .take_while(|arg| arg != "--")
            .collect();
        let named = |name: &str| Format::from_str(name, false).ok();
        args.iter()
            .find_map(|arg| arg.strip_prefix("--format=").and_then(named))
            .or_else(|| {
                let pair = args.windows(2).find(|pair| pair[0] == "--format")?;
                named(&pair[1])
            })
            .unwrap_or(Format::Text)
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command in a context of its own and land what it changed.
    Run(Box<Run>),
    /// Run a command on a copy of the directory that you stand in, see what it changed, and
    /// keep that or throw it away.
    Try(Try),
    /// List tasks.
    #[command(alias = "ls")]
    List(List),
    /// Show what came of the tasks since a moment, what waits for you, and what it takes.
    Report(Report),
    /// Show one task: state, checks, changed paths, what isolated it.
    Show(Name),
    /// Show what a task changed.
    Diff(Diff),
    /// Show what a task's command printed.
    Log(Log),
    /// Show what a running task prints and has printed, until it ends, and exit as it does.
    /// To one that was started with `--detach --interactive` you can type; Ctrl-] leaves it
    /// to itself.
    Attach(Name),
    /// Go into a task's context, to look around or to mend something.
    Enter(Enter),
    /// Run the command of a task again in its context, with what it left there.
    Retry(Retry),
    /// Land a task that waits: verify it on the target's tip of now, then publish.
    Land(Land),
    /// Land the reverse of what a task landed, after the same checks.
    Undo(Undo),
    /// Let a series go on that has stopped after failures.
    Resume(Resume),
    /// Delete a task's context and free its name. Its log and receipt stay.
    Drop(Names),
    /// End a running task; its context is kept.
    Stop(Name),
    /// Wait until a task has come to an end, and exit as it did.
    Wait(Name),
    /// Collect what is no longer needed.
    Gc(Gc),
    /// Let a scheduler start runs, each with the key of its slot.
    #[command(subcommand)]
    Schedule(Schedule),
    /// Try each thing that isolation needs on this machine, and say what is missing.
    Doctor(Doctor),
    /// Show what this repository asks of the host, and let its tasks have it.
    Trust(Trust),
    /// Let ordinary users have level `sandbox` where AppArmor restricts user namespaces:
    /// write and load a profile for this program.
    Setup(Setup),
    /// Show it all in a throw-away repository: eight tasks in parallel.
    Demo(Demo),
    /// Print the completion script of a shell.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write all of them into a directory.
    Man {
        /// The directory.
        dir: Option<PathBuf>,
    },
    /// Print the JSON schema of an output.
    Schema {
        /// `receipt`, `event`, `tasks`, `report`, `series`, `gc`, `schedule`, `doctor`, `trust` or
        /// `setup`.
        name: String,
    },
}

/// Run a command in a context of its own.
#[derive(Debug, ClapArgs)]
pub struct Run {
    /// Work on files instead of a repository: begin with nothing but the inputs, and land
    /// the outputs.
    #[arg(long, conflicts_with_all = ["base", "into", "branch", "carry", "carry_dirty", "message", "allow_check_changes"])]
    pub scratch: bool,
    /// Work on a directory instead of a repository: begin with a copy of it, and land it as
    /// one step.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scratch", "base", "into", "branch", "carry", "carry_dirty", "message", "allow_check_changes", "outputs", "read_only"])]
    pub dir: Option<PathBuf>,
    /// A file that the command is to make, and the file that it becomes when all checks
    /// have passed. Can be repeated. `DIR/=TO` is a directory, which lands as one step.
    #[arg(
        long = "output",
        value_name = "FILE=TO",
        requires = "scratch",
        conflicts_with = "read_only"
    )]
    pub outputs: Vec<OsString>,
    /// A file of records that the command may make, JSON objects with an `id`, a line each,
    /// and the file that those are added to which it does not have. Can be repeated.
    #[arg(
        long = "append",
        value_name = "FILE=TO",
        requires = "scratch",
        conflicts_with = "read_only"
    )]
    pub appends: Vec<OsString>,
    /// The file that records go to which the command writes to `$DAM_LESSONS`, JSON objects
    /// with an `id`, a line each: one of the repository, whose lessons are in the commit that
    /// lands; with `--scratch` one of the host's.
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    pub lessons: Option<PathBuf>,
    /// How the result lands. `command:CMD`: a command of the host's, run once when all
    /// checks have passed, gets the files that its words name; it is not run by a shell.
    /// `patch`: of the directory of `--dir` only what was changed is changed, path by path.
    #[arg(long, value_name = "HOW", conflicts_with_all = ["outputs", "appends", "read_only"])]
    pub publish: Option<String>,
    /// The command that publishes can be run again when nobody knows whether it has run,
    /// after a crash. Without this it never is.
    #[arg(long, requires = "publish")]
    pub publish_again: bool,
    /// Start from this commit instead of the target's tip.
    #[arg(long, value_name = "REV")]
    pub base: Option<String>,
    /// Land on this branch; `REMOTE/BRANCH` for one of a remote.
    #[arg(long, value_name = "BRANCH", conflicts_with = "branch")]
    pub into: Option<String>,
    /// Leave the verified result as a new branch `dam/<name>`.
    #[arg(long)]
    pub branch: bool,
    /// A command that must pass on exactly what will land. Can be repeated.
    #[arg(long = "check", value_name = "CMD")]
    pub checks: Vec<String>,
    /// Land without any check.
    #[arg(long, conflicts_with = "checks")]
    pub no_check: bool,
    /// Do it once: what an earlier run with this key and the same request came to is told
    /// again, and one that is at work is waited for. A run with which nothing was done
    /// gives its key back.
    #[arg(long, value_name = "KEY", value_parser = OnceKey::parse)]
    pub key: Option<OnceKey>,
    /// Don't wait for one that is at work for the same key: exit with 5.
    #[arg(long, requires = "key")]
    pub no_wait: bool,
    /// The loop that this is a run of: its name, for what the next options say.
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub series: Option<TaskName>,
    /// When another run of the series is at work: don't begin and exit with 5, wait for its
    /// end, or begin all the same.
    #[arg(long, value_enum, requires = "series", default_value_t = Overlap::Skip)]
    pub overlap: Overlap,
    /// Stop the series after N failures in a row: its runs exit with 5 until `dam resume`.
    #[arg(long, value_name = "N", requires = "series", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_FAILURES)))]
    pub stop_after: Option<u32>,
    /// Run the command once for each row of a file, as a task of its own each: JSON objects,
    /// a line each, with `name`, `args`, `env` and `key`, where `{FIELD}` in the command
    /// and the options stands for a field; or plain lines, for which `{}` stands. The same file again does
    /// what is not done yet.
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    pub each: Option<PathBuf>,
    /// How many rows at once; as many as there are processors when nothing is said.
    #[arg(long, value_name = "N", requires = "each", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub jobs: Option<u32>,
    /// Give the task a copy of a path that is not in the base, such as `.env.test`.
    #[arg(long, value_name = "PATH")]
    pub carry: Vec<PathBuf>,
    /// Let the task read a file or directory of the host's, at its own path or at DEST: a
    /// file as it is when the task starts, a directory through an overlay of its own. With
    /// `--scratch` a relative path is relative to the top of the context.
    #[arg(long = "input", value_name = "PATH[:DEST]")]
    pub inputs: Vec<PathBuf>,
    /// Start from the uncommitted work in the checkout; only what the task adds lands.
    #[arg(long, conflicts_with_all = ["base", "into"])]
    pub carry_dirty: bool,
    /// Pass an environment variable on, or set one.
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub env: Vec<OsString>,
    /// The network that the task can reach: `none` when nothing is said, and yours at
    /// level `worktree`, which can't keep it away.
    #[arg(long, value_enum)]
    pub net: Option<Net>,
    /// For programs that bring their own sandbox: allow namespaces inside.
    #[arg(long)]
    pub nested: bool,
    /// Run in the background: `dam attach` goes to it, `dam wait` waits for its end. 8 hours
    /// is its time when nothing is said.
    #[arg(long, conflicts_with = "each")]
    pub detach: bool,
    #[arg(long, hide = true)]
    pub as_detached: bool,
    /// Let the command have a terminal, for you to sit at; with `--detach`, to go to with
    /// `dam attach`. What it prints is not in its log.
    #[arg(short, long, conflicts_with_all = ["each", "attempts"])]
    pub interactive: bool,
    /// How long the command may take, such as `90s` or `8h`.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// The task's name: `[a-z0-9][a-z0-9._-]*`.
    #[arg(long)]
    pub name: Option<String>,
    /// The landed commit's message.
    #[arg(short, long)]
    pub message: Option<String>,
    /// Most memory of all its processes, such as `200MiB` or `4GiB`.
    #[arg(long, value_name = "SIZE", value_parser = limits::parse_size)]
    pub memory: Option<u64>,
    /// Most processors, such as `2` or `0.5`.
    #[arg(long, value_name = "N", value_parser = limits::parse_cpus)]
    pub cpus: Option<u64>,
    /// Most processes and threads; 4096 when nothing is said.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub pids: Option<u64>,
    /// Most that it may have on disk, in the repository, its home and `/tmp`; 10 GiB when
    /// nothing is said.
    #[arg(long, value_name = "SIZE", value_parser = limits::parse_size)]
    pub disk: Option<u64>,
    /// Most of its output that is kept, 64 MiB when nothing is said; of more the middle
    /// is cut out.
    #[arg(long, value_name = "SIZE", value_parser = limits::parse_size)]
    pub log_size: Option<u64>,
    /// Refuse to start unless the kernel enforces this limit, or has Landlock.
    #[arg(long, value_name = "LIMIT", value_parser = ["memory", "cpus", "pids", "disk", "landlock"])]
    pub require: Vec<String>,
    /// Run the command up to N times in the same context while a check rejects what it
    /// did; `$DAM_FEEDBACK` is a file with what the check said.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub attempts: u32,
    /// Land changes to files that decide what a check says: checks run with those of
    /// the target and with the changed ones, and both must pass.
    #[arg(long)]
    pub allow_check_changes: bool,
    /// Land when everything is well (the default).
    #[arg(long, overrides_with = "no_land")]
    pub land: bool,
    /// Verify, but leave the landing to `dam land`.
    #[arg(long)]
    pub no_land: bool,
    /// Keep the context whatever the outcome.
    #[arg(long)]
    pub keep: bool,
    /// Give the task no writable files in the repository.
    #[arg(long)]
    pub read_only: bool,
    /// How strong the boundary is: `sandbox` when nothing is said. `worktree` is a checkout of its own and little else:
    /// for people, editors, and machines that let nobody have a namespace.
    #[arg(long, value_parser = parse_level)]
    pub level: Option<Level>,
    /// The command.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// What is done when another run of a series is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Overlap {
    /// Don't begin.
    Skip,
    /// Wait for its end.
    Wait,
    /// Begin all the same.
    Allow,
}

/// The network that a task can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Net {
    /// A private loopback.
    None,
    /// The host's network.
    Open,
}

/// Run a command on a copy of the directory that you stand in.
#[derive(Debug, ClapArgs)]
pub struct Try {
    /// The network that the command can reach.
    #[arg(long, value_enum)]
    pub net: Option<Net>,
    /// Keep what it changed without asking, when it succeeds.
    #[arg(short, long)]
    pub yes: bool,
    /// Of another directory than the one you stand in, or the repository that it is in.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The command.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// List tasks.
#[derive(Debug, ClapArgs)]
pub struct List {
    /// All of them, not only the newest 50.
    #[arg(long)]
    pub all: bool,
    /// The series instead, and which of them have stopped.
    #[arg(long, conflicts_with = "all")]
    pub series: bool,
}

/// Let a series go on that has stopped.
#[derive(Debug, ClapArgs)]
pub struct Resume {
    /// Its name.
    pub series: String,
}

/// Land the reverse of what a task landed.
#[derive(Debug, ClapArgs)]
pub struct Undo {
    /// Name or id of the task that landed.
    pub name: String,
    /// A command that must pass on exactly what will land. Can be repeated.
    #[arg(long = "check", value_name = "CMD")]
    pub checks: Vec<String>,
    /// Land without any check.
    #[arg(long, conflicts_with = "checks")]
    pub no_check: bool,
}

/// Show what came of the tasks since a moment.
#[derive(Debug, ClapArgs)]
pub struct Report {
    /// How long ago (`8h`), what time it was (`18:00`), or a date (`2026-11-29 18:00`): a
    /// day when nothing is said.
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
}

/// A task.
#[derive(Debug, ClapArgs)]
pub struct Name {
    /// Name or id of the task.
    pub name: String,
}

/// Tasks.
#[derive(Debug, ClapArgs)]
pub struct Names {
    /// Names or ids of the tasks.
    #[arg(required = true)]
    pub names: Vec<String>,
}

/// Show what a task changed.
#[derive(Debug, ClapArgs)]
pub struct Diff {
    /// Name or id of the task.
    pub name: String,
    /// Only the paths and how much changed in each.
    #[arg(long)]
    pub stat: bool,
}

/// Show what a task's command printed.
#[derive(Debug, ClapArgs)]
pub struct Log {
    /// Name or id of the task.
    pub name: String,
    /// Go on as more is printed, until the task has ended.
    #[arg(short, long)]
    pub follow: bool,
    /// Show the time of each line.
    #[arg(short, long)]
    pub timestamps: bool,
    /// Show what a check printed instead, by its number from 1.
    #[arg(long, value_name = "N")]
    pub check: Option<usize>,
}

/// Land a task that waits.
#[derive(Debug, ClapArgs)]
pub struct Land {
    /// Name or id of the task.
    pub name: String,
    /// A further check.
    #[arg(long = "check", value_name = "CMD")]
    pub checks: Vec<String>,
    /// Land without any check.
    #[arg(long, conflicts_with = "checks")]
    pub no_check: bool,
    /// Land changes to files that decide what a check says: checks run with those of
    /// the target and with the changed ones, and both must pass.
    #[arg(long)]
    pub allow_check_changes: bool,
}

/// Run the command of a task again, in its context.
#[derive(Debug, ClapArgs)]
pub struct Retry {
    /// Name or id of the task.
    pub name: String,
    /// Run up to N times while a check rejects what it did.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub attempts: u32,
    /// How long the command may take, such as `90s` or `8h`.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// Pass on or set an environment variable; values are never kept, so those that the
    /// task had are to be given again unless they are set.
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    pub env: Vec<OsString>,
}

/// Go into a task's context.
#[derive(Debug, ClapArgs)]
pub struct Enter {
    /// Name or id of the task.
    pub name: String,
    /// Pass on or set an environment variable; those that the task had are not kept.
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    pub env: Vec<OsString>,
    /// A command, instead of a shell.
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Collect what is no longer needed.
#[derive(Debug, ClapArgs)]
pub struct Gc {
    /// Only say what would go.
    #[arg(long)]
    pub dry_run: bool,
}

/// Let a scheduler start runs.
#[derive(Debug, Subcommand)]
pub enum Schedule {
    /// Print what a person puts into a scheduler. Nothing is installed.
    Print(SchedulePrint),
}

/// Print what a person puts into a scheduler.
#[derive(Debug, ClapArgs)]
pub struct SchedulePrint {
    /// The scheduler.
    #[arg(value_enum)]
    pub scheduler: Scheduler,
    /// What it is called there: `[a-z0-9][a-z0-9._-]*`.
    #[arg(long)]
    pub name: String,
    /// When, in UTC (in local time for cron, which knows no other): `06:00`, or `:15` for
    /// every hour.
    #[arg(long, value_name = "TIME")]
    pub at: String,
    /// How often.
    #[arg(long, value_enum, default_value_t = Every::Day)]
    pub every: Every,
    /// What keys begin with: the name when nothing is said. The slot follows.
    #[arg(long, value_name = "PREFIX")]
    pub key_prefix: Option<String>,
    /// The arguments of `dam run`, without `--key` and `--name`.
    #[arg(last = true, required = true, value_name = "RUN-ARGUMENTS")]
    pub run: Vec<OsString>,
}

/// A scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scheduler {
    /// A service and a timer of systemd.
    Systemd,
    /// A line for `crontab -e`.
    Cron,
    /// A workflow for GitHub Actions, on a runner of your own.
    Github,
    /// A CronJob, and a volume for its state.
    Kubernetes,
}

/// How often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Every {
    /// Once a day.
    Day,
    /// Once an hour.
    Hour,
}

/// Let a repository have what it asks for.
#[derive(Debug, ClapArgs)]
pub struct Trust {
    /// Don't ask.
    #[arg(long)]
    pub yes: bool,
    /// Take it back.
    #[arg(long, conflicts_with = "yes")]
    pub revoke: bool,
    /// The branch whose `cofferdam.toml` is read, where it is not the one that is
    /// checked out.
    #[arg(long, value_name = "BRANCH")]
    pub into: Option<String>,
}

/// Look around.
#[derive(Debug, ClapArgs)]
pub struct Doctor {
    /// A command: whether it would find its programs in a context of this repository.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Let ordinary users have level `sandbox`.
#[derive(Debug, ClapArgs)]
pub struct Setup {
    /// Unload and delete the profile that this command wrote.
    #[arg(long)]
    pub remove: bool,
    /// Do it without asking.
    #[arg(short, long)]
    pub yes: bool,
}

/// Show it all.
#[derive(Debug, ClapArgs)]
pub struct Demo {
    /// Leave the repository and the state there, and say where.
    #[arg(long)]
    pub keep: bool,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it like `90s` or `8h`"))
}

fn parse_name(text: &str) -> Result<TaskName, String> {
    TaskName::parse(text).map_err(|error| error.to_string())
}

fn parse_level(text: &str) -> Result<Level, String> {
    match text {
        "sandbox" => Ok(Level::Sandbox),
        "worktree" => Ok(Level::Worktree),
        _ => Err("the levels are `worktree` and `sandbox`".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        <Args as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn everything_after_the_dashes_is_the_commands() {
        let args =
            Args::try_parse_from(["dam", "run", "--check", "./ci", "--", "./fix", "--check", "-x"])
                .expect("parse");
        let Command::Run(run) = args.command else { panic!("not run") };
        assert_eq!(run.command, ["./fix", "--check", "-x"]);
        assert_eq!(run.checks, ["./ci"]);
    }
}

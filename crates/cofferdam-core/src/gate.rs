//! The gate: what is to land, and whether it may.
//!
//! A *candidate* is the change set on the target's tip. Each check runs in a
//! fresh context on it: the candidate's files below, an upper of its own that is
//! thrown away, no network, HEAD at the very commit that would land. Nothing of
//! the task's own context is there, so what a check sees is what lands.
//!
//! A verdict is bound to the candidate (its tree, the tip it lies on, what its commit
//! says), the check, and the environment it ran in, and is found again under the hash
//! of all of that. When any of it is different, there is no verdict.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use cofferdam_git::{CommitId, TreeId};
use cofferdam_ledger::{Durability, Outcome, VerdictRow, now_ms};
use cofferdam_sandbox::{Network, Wall};
use cofferdam_tree::hex;
use sha2::{Digest, Sha256};

use crate::context::{Place, Told, What};
use crate::diagnose::Role;
use crate::error::IoContext;
use crate::input::InputReport;
use crate::job::{Job, millis};
use crate::judge_files::JudgeFiles;
use crate::log::read_tail;
use crate::receipt::CheckReport;
use crate::report::{Event, Meter};
use crate::request::{Check, Level, Request};
use crate::source::Source;
use crate::supervise::{self, Ended, Plan};
use crate::{Error, boundary, diagnose, disk, limits, read_log};

/// How long a check may take that does not say. It holds the target's landing lock:
/// one that hangs would keep everybody else from landing.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(3600);

/// What would land.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The target's tip that it lies on.
    pub tip: CommitId,
    /// The commit.
    pub commit: CommitId,
    /// Its tree.
    pub tree: TreeId,
}

/// What the checks said together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// All passed.
    Passed,
    /// One said no.
    Rejected(String),
    /// One could not be run.
    NoVerdict(String),
    /// A person ended it.
    Interrupted,
}

/// Runs the checks on a change set's candidate, with the target's files that decide
/// what they say, and if these are to change, with the changed ones as well.
///
/// # Errors
/// As [`judge_all`].
pub(crate) fn judge(
    job: &mut Job<'_>,
    candidate: &Candidate,
    files: &JudgeFiles,
    checks: &[Check],
) -> Result<Judgement, Error> {
    let conversions = job.source.store.conversion_key();
    let environment = begin(job, checks, &conversions);
    let first = files.pinned.as_ref().unwrap_or(candidate);
    let judgement =
        judge_on(job, candidate, (first, files.pinned.is_some()), checks, &environment)?;
    if judgement != Judgement::Passed || files.told.is_empty() {
        return Ok(judgement);
    }
    if !job.request.allow_check_changes {
        return Ok(Judgement::NoVerdict(format!(
            "it changes {}, which {} what a check says; `--allow-check-changes` lands it",
            files.told,
            if files.told.count() == 1 { "decides" } else { "decide" },
        )));
    }
    match files.pinned {
        Some(_) => judge_on(job, candidate, (candidate, false), checks, &environment),
        None => Ok(Judgement::Passed),
    }
}

/// Runs the checks on a candidate, one after the other, up to the first that
/// does not pass. What they said is in the job's facts.
///
/// # Errors
/// When a context can't be made; that is not the candidate's fault.
pub(crate) fn judge_all<S: Source>(
    job: &mut Job<'_, S>,
    candidate: &S::Candidate,
    checks: &[Check],
) -> Result<Judgement, Error> {
    let environment = begin(job, checks, "");
    judge_on(job, candidate, (candidate, false), checks, &environment)
}

/// Forgets what was said before. Gives what the checks will run in.
fn begin<S>(job: &mut Job<'_, S>, checks: &[Check], more: &str) -> String {
    job.facts.checks.clear();
    job.facts.diagnosis.clear();
    let Request { level, wall, .. } = job.request;
    match checks {
        [] => String::new(),
        _ => environment(&job.place, level, wall, &job.facts.inputs) + more,
    }
}

/// As [`judge_all`], in contexts on `run_on`, which differs from the candidate in its
/// pinned files, if it does.
fn judge_on<S: Source>(
    job: &mut Job<'_, S>,
    candidate: &S::Candidate,
    (run_on, pinned): (&S::Candidate, bool),
    checks: &[Check],
    environment: &str,
) -> Result<Judgement, Error> {
    let seen = S::seen(job, run_on, false)?;
    for check in checks {
        // Its place in the receipt: when all run a second time, they go on counting.
        let number = job.facts.checks.len();
        let key = verdict_key(seen.clone(), check, environment, job.facts.entered);
        let mut report = match job.dam.ledger.verdict(&key)? {
            Some(row) if row.outcome.passed() => cached(check, &row, key),
            _ => match run_check(job, run_on, On::Candidate, check, number, key)? {
                Some(report) => report,
                None => return Ok(Judgement::Interrupted),
            },
        };
        let outcome = Outcome::parse(&report.outcome);
        if matches!(outcome, Some(Outcome::Failed | Outcome::TimedOut)) {
            match fails_without(job, candidate, check, number, environment)? {
                None => return Ok(Judgement::Interrupted),
                Some(true) => report.outcome = Outcome::BaselineBroken.to_string(),
                Some(false) => {}
            }
        }
        // Of what lands, whatever pinned files it ran with.
        report.tree = S::tree(candidate);
        report.pinned = pinned;
        job.facts.checks.push(report.clone());
        job.reporter.report(Event::Check(report.clone()));
        match Outcome::parse(&report.outcome) {
            Some(Outcome::Passed | Outcome::FlakyPassed) => {}
            Some(Outcome::Failed) => {
                return Ok(Judgement::Rejected(format!("check `{}` failed", check.name)));
            }
            Some(Outcome::BaselineBroken) => {
                return Ok(Judgement::NoVerdict(format!(
                    "check `{}` fails on `{}` itself, so it says nothing about the change",
                    check.name,
                    job.target_text()
                )));
            }
            Some(Outcome::TimedOut) => {
                return Ok(Judgement::Rejected(format!("check `{}` took too long", check.name)));
            }
            _ => {
                return Ok(Judgement::NoVerdict(format!(
                    "check `{}` could not be run",
                    check.name
                )));
            }
        }
    }
    Ok(Judgement::Passed)
}

/// What a check runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    /// What would land: a person hears what it said.
    Candidate,
    /// The target as it is, to tell whose fault a failure is.
    Tip,
}

fn cached(check: &Check, row: &VerdictRow, key: String) -> CheckReport {
    CheckReport {
        name: check.name.clone(),
        run: check.run.clone(),
        outcome: row.outcome.to_string(),
        took_ms: u64::try_from(row.took_ms).unwrap_or(0),
        ready_ms: 0,
        cached: true,
        pinned: false,
        tree: row.tree.clone(),
        key,
    }
}

/// Whether a check that failed fails on the target as it is, too: then nobody is to
/// blame. `None` when a person ended it.
fn fails_without<S: Source>(
    job: &mut Job<'_, S>,
    candidate: &S::Candidate,
    check: &Check,
    number: usize,
    environment: &str,
) -> Result<Option<bool>, Error> {
    let Some(tip) = S::without(job, candidate)? else { return Ok(Some(false)) };
    let key = verdict_key(S::seen(job, &tip, true)?, check, environment, 0);
    let outcome = match job.dam.ledger.verdict(&key)? {
        // One that could not be run can be the next time.
        Some(row) if row.outcome != Outcome::Error => row.outcome,
        _ => match run_check(job, &tip, On::Tip, check, number, key)? {
            Some(report) => Outcome::parse(&report.outcome).unwrap_or(Outcome::Error),
            None => return Ok(None),
        },
    };
    Ok(Some(!outcome.passed()))
}

/// Runs one check to its verdict, again when it may fail by chance; `None` when a
/// person ended it.
fn run_check<S: Source>(
    job: &mut Job<'_, S>,
    candidate: &S::Candidate,
    run_on: On,
    check: &Check,
    number: usize,
    key: String,
) -> Result<Option<CheckReport>, Error> {
    let begun = Instant::now();
    let (mut outcome, mut ready) = (Outcome::Error, None);
    for round in 0..=check.retry {
        let Some((said, stood)) = run_once(job, candidate, run_on, check, number)? else {
            return Ok(None);
        };
        ready.get_or_insert(stood);
        outcome = if round > 0 && said == Outcome::Passed { Outcome::FlakyPassed } else { said };
        if outcome != Outcome::Failed {
            break;
        }
    }
    let took_ms = millis(begun.elapsed());
    let row = VerdictRow {
        key: key.clone(),
        tree: S::tree(candidate),
        check: check.name.clone(),
        outcome,
        task: job.id.clone(),
        at_ms: now_ms(),
        took_ms: i64::try_from(took_ms).unwrap_or(i64::MAX),
        detail: serde_json::json!({ "run": check.run }),
    };
    job.dam.ledger.record_verdict(&row, Durability::Normal)?;
    let ready_ms = millis(ready.unwrap_or_default());
    Ok(Some(CheckReport { cached: false, ready_ms, ..cached(check, &row, key) }))
}

/// Runs one check once in a fresh context, and how long it took until its command
/// could start; `None` when a person ended it.
fn run_once<S: Source>(
    job: &mut Job<'_, S>,
    candidate: &S::Candidate,
    run_on: On,
    check: &Check,
    number: usize,
) -> Result<Option<(Outcome, Duration)>, Error> {
    let begun = Instant::now();
    // Both go on while layer and context are made.
    let boundary = boundary::of_level(job.request.level);
    let starter = boundary.start(None)?;
    let name = format!("{}-check", job.id);
    let (most, required) = (&job.request.limits, &job.request.require);
    let limits = limits::apply(&starter, &job.dir, &name, most, required)?;
    let dir = job.dir.checks().join(number.to_string());
    if dir.exists() {
        job.dam.trash.take(&job.dir.checks(), number.to_string()).at("clear", &dir)?;
    }
    let context = S::check_context(job, candidate, dir)?;
    let reporter = job.reporter;
    let told = Told {
        task: job.id.to_string(),
        attempt: job.facts.attempt,
        lessons: job.lessons_inside(),
        feedback: None,
        context: serde_json::json!({
            "version": 1,
            "task": job.id,
            "name": job.name,
            "role": "check",
            "check": check.name,
            "base": S::base(candidate),
            "level": job.request.level,
            "top": boundary.top(&context, &job.place).display().to_string(),
            "network": boundary.network(Network::None),
        }),
    };
    let command =
        ["/bin/sh", "-c"].map(OsString::from).into_iter().chain([check.run.clone().into()]);
    let what = What {
        command: command.collect(),
        cwd: &job.place.top,
        env: &[],
        network: boundary.network(Network::None),
        wall: job.request.wall,
        limits: limits.rest,
        terminal: false,
    };
    let spec = boundary.spec(&context, &job.place, what, &told)?;
    let log = match run_on {
        On::Candidate => format!("check-{number}.log"),
        On::Tip => format!("tip-{number}.log"),
    };
    let log = job.dir.path().join(log);
    let timeout = Some(check.timeout.unwrap_or(CHECK_TIMEOUT));
    let output = job.request.output.unwrap_or(supervise::LOG_CAP);
    let (task_dir, id) = (job.dir.clone(), job.id.clone());
    let plan = Plan {
        spec: &spec,
        context: &context.dir,
        log: &log,
        timeout,
        output,
        limits: &limits,
        end_processes: &|| boundary.end_processes(&task_dir, id.as_str()),
        terminal: None,
    };
    Meter::begin(reporter, "checking");
    let run = supervise::run(starter, &plan, &job.control, None)
        .map_err(|error| job.place.tools.blame(error))?;
    let ready = begun.elapsed().saturating_sub(run.took);
    let outcome = match run.ended {
        Ended::Exited { code: Some(0), .. } => Outcome::Passed,
        // Which is not the candidate's fault.
        Ended::Exited { .. } if disk::is_full(&context.dir) => Outcome::Error,
        Ended::Exited { .. } | Ended::OutOfMemory | Ended::OutOfDisk => Outcome::Failed,
        Ended::TimedOut => Outcome::TimedOut,
        Ended::Interrupted => return Ok(None),
        Ended::NotStarted(_) | Ended::Killed => Outcome::Error,
    };
    if let Some(text) = run.log_lost {
        job.reporter.report(Event::Warning { text });
    }
    if run_on == On::Candidate {
        job.diagnosed(diagnose::failure(job, &context, Role::Check, &plan, run.ended));
    }
    // What the check left is nobody's work.
    job.dam.trash.take(&job.dir.checks(), number.to_string()).at("clear", &context.dir)?;
    if outcome != Outcome::Passed && run_on == On::Candidate {
        let text = tail(&log)?;
        job.reporter.report(Event::CheckLog { name: check.name.clone(), text });
    }
    Ok(Some((outcome, ready)))
}

/// What is told to the next attempt: why this one was rejected, and what the check
/// that said so printed last.
pub(crate) fn feedback<S>(job: &Job<'_, S>, why: &str) -> Result<Vec<u8>, Error> {
    const MOST: u64 = 64 << 10;
    let mut text = format!("{why}\n").into_bytes();
    if let Some((number, check)) =
        job.facts.checks.iter().enumerate().rev().find(|(_, check)| !check.passed())
    {
        text.extend(format!("\n$ {}\n", check.run).into_bytes());
        let log = job.dir.path().join(format!("check-{number}.log"));
        // None when the check was not run: its verdict was known.
        for line in read_tail(&log, MOST)? {
            text.extend(line.text);
            text.push(b'\n');
        }
    }
    Ok(text)
}

/// The last lines that a check printed.
fn tail(log: &std::path::Path) -> Result<String, Error> {
    const LINES: usize = 20;
    let mut lines = std::collections::VecDeque::new();
    read_log(log, |line| {
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(String::from_utf8_lossy(&line.text).into_owned());
    })?;
    Ok(Vec::from(lines).join("\n"))
}

/// The hash under which a verdict is found: of all that a check can see. A person in
/// the context voids what was said before, whatever they did there.
fn verdict_key(
    seen: Vec<(&'static str, serde_json::Value)>,
    check: &Check,
    environment: &str,
    entered: u32,
) -> String {
    let mut parts = serde_json::json!({
        "version": 3,
        "check": check,
        "environment": environment,
        "entered": entered,
    });
    for (name, value) in seen {
        parts[name] = value;
    }
    hex(Sha256::digest(parts.to_string()).as_slice())
}

/// A hash of what checks run in: variables, level, walls, for each entry of PATH the
/// names, link targets, inodes, sizes and times of its programs, and the same of what
/// in a tool home decides which of its tools is used.
fn environment(place: &Place, level: Level, wall: Wall, inputs: &[InputReport]) -> String {
    let mut hash = Sha256::new();
    let mut take = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    take(level.to_string().as_bytes());
    take(if wall == Wall::Nested { b"nested" } else { b"full" });
    take(&place.person.ids.uid.to_le_bytes());
    let variables = boundary::of_level(level).environment(place);
    for (key, value) in &variables {
        take(key.as_bytes());
        take(value.as_bytes());
    }
    let path = variables.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value.as_os_str());
    // `/bin` is `/usr/bin` on most systems, and thousands of programs.
    let mut looked_at: Vec<(u64, u64)> = Vec::new();
    for dir in std::env::split_paths(path.unwrap_or(OsStr::new(""))) {
        take(dir.as_os_str().as_bytes());
        let Ok(meta) = std::fs::metadata(&dir) else { continue };
        let itself = (meta.dev(), meta.ino());
        match looked_at.iter().position(|known| *known == itself) {
            Some(first) => take(&first.to_le_bytes()),
            None => {
                looked_at.push(itself);
                take_entries(&dir, &mut take);
            }
        }
    }
    for input in inputs {
        take(input.dest.as_os_str().as_bytes());
        take(input.fingerprint.as_bytes());
    }
    for module in &place.modules {
        take(&module.path);
    }
    for dir in &place.tools.dirs {
        take(dir.path.as_os_str().as_bytes());
        for state in dir.state.iter().map(|state| dir.source.join(state)) {
            take_entry(&state, &mut take);
            take_entries(&state, &mut take);
        }
    }
    hex(hash.finalize().as_slice())
}

fn take_entries(dir: &Path, take: &mut impl FnMut(&[u8])) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let mut names: Vec<OsString> =
        entries.filter_map(Result::ok).map(|entry| entry.file_name()).collect();
    names.sort();
    for name in names {
        take(name.as_bytes());
        take_entry(&dir.join(&name), take);
    }
}

fn take_entry(path: &Path, take: &mut impl FnMut(&[u8])) {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return };
    for number in [meta.ino(), meta.size()] {
        take(&number.to_le_bytes());
    }
    take(&meta.mtime().to_le_bytes());
    take(&meta.mtime_nsec().to_le_bytes());
    if meta.is_symlink()
        && let Ok(target) = std::fs::read_link(path)
    {
        take(target.as_os_str().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_sandbox::Ids;
    use cofferdam_sandbox::view::Person;

    use super::*;
    use crate::input::Kind;
    use crate::tools::{ToolDir, Tools};

    #[test]
    fn each_part_of_the_environment_counts() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let home = temp.path().to_owned();
        std::fs::write(home.join("settings.toml"), "1").expect("write");
        let tool = ToolDir {
            name: "rust".into(),
            path: home.clone(),
            source: home.clone(),
            variable: None,
            hidden: Vec::new(),
            state: vec!["settings.toml".into()],
        };
        let place = |uid: u32| Place {
            top: "/repo".into(),
            objects: Vec::new(),
            modules: Vec::new(),
            lfs: None,
            person: Person {
                ids: Ids { uid, gid: 7, switch: false },
                name: "ann".into(),
                home: home.clone(),
            },
            identity: None,
            tools: Tools { dirs: vec![tool.clone()], env: Vec::new() },
            files: Vec::new(),
            outputs: Vec::new(),
            hidden: Vec::new(),
        };
        let input = |fingerprint: &str| {
            let (source, dest) = ("/in".into(), "/in".into());
            vec![InputReport { source, dest, kind: Kind::File, fingerprint: fingerprint.into() }]
        };
        let usual = || environment(&place(7), Level::Sandbox, Wall::Full, &input("1"));
        let first = usual();
        assert_eq!(usual(), first);
        assert_ne!(environment(&place(8), Level::Sandbox, Wall::Full, &input("1")), first);
        assert_ne!(environment(&place(7), Level::Worktree, Wall::Full, &input("1")), first);
        assert_ne!(environment(&place(7), Level::Sandbox, Wall::Nested, &input("1")), first);
        assert_ne!(environment(&place(7), Level::Sandbox, Wall::Full, &input("2")), first);
        assert_ne!(environment(&place(7), Level::Sandbox, Wall::Full, &[]), first);
        std::fs::write(home.join("settings.toml"), "22").expect("write");
        assert_ne!(usual(), first);
    }
}

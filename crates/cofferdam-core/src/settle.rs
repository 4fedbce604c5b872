//! The end of a context.
//!
//! A context is removed when nothing can be lost by it, and by nothing less:
//!
//! - its change landed, or there was none;
//! - a person dropped it by command;
//! - its time is over (7 days) *and* its work was saved as a bundle in the
//!   task's directory. When that can't be done, it stays.
//!
//! Removing is a rename into `trash/`; what lies there goes later, gently, in a
//! process of its own: mass deletion makes ext4 slow for whoever creates next.
//! The task's log and receipt stay for 90 days.

use std::collections::HashSet;
use std::process::Stdio;
use std::time::Duration;

use cofferdam_git::harvest::SCRATCH;
use cofferdam_git::lfs;
use cofferdam_ledger::{Filter, State, Task, now_ms};
use cofferdam_tree::{LayerId, Lock, Trash};

use crate::control::Control;
use crate::error::IoContext;
use crate::facts::Facts;
use crate::job::{Job, reopen};
use crate::reconcile::reconcile;
use crate::report::Silent;
use crate::request::{Level, Request};
use crate::source::{Source, of_source};
use crate::{Dam, Error, TaskDir, boundary, files, land, limits};

/// The first argument that makes a binary call [`sweep_main`].
pub const ARGUMENT: &str = "__sweep";

/// How long a context that did not land is kept when nothing is said.
const FAILED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long records, logs and receipts are kept when nothing is said.
const RECORDS_FOR: Duration = Duration::from_secs(90 * 24 * 3600);
/// How often it is looked which records are older, in milliseconds.
const PRUNE_EVERY: i64 = 24 * 3600 * 1000;

/// The moment that lies so long ago, in milliseconds since 1970.
fn ago(duration: Duration) -> i64 {
    now_ms().saturating_sub(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX))
}

/// The moment before which the context of a task that did not land goes. One that was to
/// be kept, or waits for a person, is not what `failed = "log"` is about.
fn kept_since(dam: &Dam, task: &Task) -> i64 {
    let waits = matches!(task.state, State::Ready | State::InDoubt | State::Broken);
    let keep = task.spec.get("keep").and_then(serde_json::Value::as_bool).unwrap_or(false);
    let said = dam.own.settle.failed.unwrap_or(FAILED_FOR);
    ago(if said.is_zero() && (waits || keep) { FAILED_FOR } else { said })
}

/// How long a command may delete by itself. A small context takes a millisecond
/// or two, less than starting a process for it; on a busy machine a few more.
const AT_ONCE: Duration = Duration::from_millis(50);

/// The parts of a task's directory that are its context.
const CONTEXT: &[&str] = &[
    "upper",
    "work",
    "homes",
    "home",
    "tmp",
    "out",
    "inputs",
    "base",
    "results",
    "checks",
    "merge",
    "ns",
    "carried",
    "context.json",
    "feedback",
];

/// What [`housekeeping`] did.
#[derive(Debug, Default)]
pub struct Housekeeping {
    /// What could not be done now, in words.
    pub left: Vec<String>,
    /// Tasks whose contexts went because their time was over.
    pub expired: Vec<String>,
}

/// What every command that may delete begins with.
///
/// # Errors
/// When the ledger can't be read.
pub fn housekeeping(dam: &mut Dam) -> Result<Housekeeping, Error> {
    let mut done = Housekeeping { left: reconcile(dam)?, expired: Vec::new() };
    for task in dam.ledger.tasks(Filter { unsettled_only: true, ..Filter::default() })? {
        if !task.state.is_end() || task.updated_ms >= kept_since(dam, &task) {
            continue;
        }
        match of_source!(&task, expire(dam, &task)) {
            Ok(()) => done.expired.push(task.name.to_string()),
            Err(error) => {
                done.left.push(format!("task `{}` is kept: {}", task.name, land::chain(&error)));
            }
        }
    }
    // Of loops that nobody collects after.
    if let Err(error) = prune_daily(dam) {
        done.left.push(format!("old records are kept: {}", land::chain(&error)));
    }
    Ok(done)
}

/// Forgets the records whose time is over, if that was not done today.
fn prune_daily(dam: &mut Dam) -> Result<(), Error> {
    let path = dam.dir().join("pruned");
    let last = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
    if last.is_some_and(|last: i64| (0..PRUNE_EVERY).contains(&(now_ms() - last))) {
        return Ok(());
    }
    let pruned = prune(dam)?;
    std::fs::write(&path, format!("{}\n", now_ms())).at("write", path)?;
    if pruned > 0 {
        sweep(dam);
    }
    Ok(())
}

/// Forgets the records whose time is over, and what is left of their tasks. Gives how
/// many.
fn prune(dam: &mut Dam) -> Result<u64, Error> {
    let before = ago(dam.own.settle.records.unwrap_or(RECORDS_FOR));
    let mut pruned = 0;
    for id in dam.ledger.prune(before)? {
        pruned += 1;
        let dir = dam.task_dir(&id);
        if let Some(parent) = dir.path().parent()
            && dir.path().is_dir()
        {
            dam.trash.take(parent, id.as_str()).at("move away", dir.path())?;
        }
    }
    files::forget_versions(dam, before)?;
    Ok(pruned)
}

/// After a run: what is no longer needed goes.
pub(crate) fn after<S: Source>(job: &mut Job<'_, S>, task: &Task) -> Result<(), Error> {
    let over = match task.state {
        State::Landed | State::Empty => true,
        // What waits for a person is not failed.
        State::Ready | State::InDoubt | State::Broken => false,
        _ => job.dam.own.settle.failed == Some(Duration::ZERO),
    };
    if over && !job.request.keep {
        remove(job)?;
    }
    Ok(())
}

/// Moves what is a context out of a task's directory.
fn take_context(trash: &Trash, dir: &TaskDir) -> Result<(), Error> {
    limits::forget_groups(dir);
    for name in CONTEXT {
        cofferdam_failpoint::hit(&format!("settle:{name}")).at("move away", dir.path())?;
        match trash.take(dir.path(), name) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).at("move away", dir.path().join(name));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Removes the context of a job whose lock is held, and empties the trash.
pub(crate) fn remove<S: Source>(job: &mut Job<'_, S>) -> Result<(), Error> {
    take_context(&job.dam.trash, &job.dir)?;
    S::release(job, &mut sweep)?;
    cofferdam_failpoint::hit("settle:record").at("settle", job.dir.path())?;
    job.dam.ledger.settle(&job.id)?;
    cofferdam_failpoint::hit("settle:recorded").at("settle", job.dir.path())?;
    Ok(())
}

/// Deletes a task's context because a person said so.
///
/// # Errors
/// [`Error::Live`] while it runs.
pub fn drop_task(dam: &mut Dam, name: &str) -> Result<Task, Error> {
    reconcile(dam)?;
    let find = |dam: &Dam| dam.ledger.find(name)?.ok_or_else(|| Error::NoSuchTask(name.to_owned()));
    let mut task = find(dam)?;
    if task.state.is_live() && !dam.task_dir(&task.id).is_live()? {
        // On a full disk its end can't be written before something has gone.
        make_room(dam, &task)?;
        reconcile(dam)?;
        task = find(dam)?;
    }
    if task.settled {
        return Ok(task);
    }
    if dam.task_dir(&task.id).is_live()? {
        return Err(Error::Live(task.name.to_string()));
    }
    of_source!(&task, drop_of(dam, &task))?;
    dam.ledger.task(&task.id)?.ok_or_else(|| Error::NoSuchTask(task.id.to_string()))
}

fn drop_of<S: Source>(dam: &mut Dam, task: &Task) -> Result<(), Error> {
    match reopen::<S>(dam, task, Control::default(), &Silent) {
        Ok(mut job) => remove(&mut job),
        // Its repository is gone; what is ours can still go.
        Err(Error::Git(_)) => remove_without_repository(dam, task),
        Err(error) => Err(error),
    }
}

/// Deletes the context of a task that nobody supervises and that a person gave up.
fn make_room(dam: &mut Dam, task: &Task) -> Result<(), Error> {
    let dir = dam.task_dir(&task.id);
    let level = serde_json::from_value::<Request>(task.spec.clone())
        .map_or(Level::Sandbox, |request| request.level);
    boundary::of_level(level).end_processes(&dir, task.id.as_str())?;
    take_context(&dam.trash, &dir)?;
    dam.trash.empty(Duration::from_secs(60)).at("empty", dam.trash.dir())?;
    Ok(())
}

fn remove_without_repository(dam: &mut Dam, task: &Task) -> Result<(), Error> {
    let dir = dam.task_dir(&task.id);
    take_context(&dam.trash, &dir)?;
    sweep(dam);
    dam.ledger.settle(&task.id)?;
    Ok(())
}

/// Removes a context whose time is over, its work saved first.
fn expire<S: Source>(dam: &mut Dam, task: &Task) -> Result<(), Error> {
    let mut job = reopen::<S>(dam, task, Control::default(), &Silent)?;
    if !matches!(job.state, State::Landed | State::Empty) {
        S::save(&mut job)?;
    }
    remove(&mut job)
}

/// What a collection did, or would do.
#[derive(Debug, Clone, Default, serde::Serialize, schemars::JsonSchema)]
pub struct GcReport {
    /// Whether nothing was done.
    pub dry_run: bool,
    /// Contexts removed, by task name.
    pub contexts: Vec<String>,
    /// Layers removed.
    pub layers: Vec<String>,
    /// Records forgotten.
    pub records: u64,
    /// Entries of the trash removed.
    pub trash: u64,
    /// What was kept, and why.
    pub kept: Vec<String>,
}

/// Collects what is no longer needed.
///
/// # Errors
/// When the ledger or the layer store can't be read.
pub fn gc(dam: &mut Dam, dry_run: bool) -> Result<GcReport, Error> {
    let mut report = GcReport { dry_run, ..GcReport::default() };
    if dry_run {
        for task in dam.ledger.tasks(Filter { unsettled_only: true, ..Filter::default() })? {
            if leftover(dam, &task)?
                || (task.state.is_end() && task.updated_ms < kept_since(dam, &task))
            {
                report.contexts.push(task.name.to_string());
            }
        }
    } else {
        // First of all: on a full disk everything else needs the room.
        dam.trash.empty(Duration::from_secs(60)).at("empty", dam.trash.dir())?;
        let done = housekeeping(dam)?;
        report.kept = done.left;
        report.contexts = done.expired;
        for task in dam.ledger.tasks(Filter { unsettled_only: true, ..Filter::default() })? {
            if !leftover(dam, &task)? {
                continue;
            }
            let name = task.name.to_string();
            match drop_task(dam, task.id.as_str()) {
                Ok(_) => report.contexts.push(name),
                Err(error) => report.kept.push(format!("task `{name}`: {}", land::chain(&error))),
            }
        }
        match prune(dam) {
            Ok(pruned) => report.records = pruned,
            // What gives room back must not stop at what needs some.
            Err(error) if error.is_for_want_of_room() => {
                report.kept.push(format!("records: {error}"));
            }
            Err(error) => return Err(error),
        }
        orphans(dam, &mut report)?;
        half_written(dam)?;
        redo_records(dam)?;
        terminals(dam)?;
    }
    when_nobody_works(dam, &mut report)?;
    if !dry_run {
        drafts(dam)?;
        dam.layers.sweep().map_err(cofferdam_git::GitError::from)?;
        let emptied = dam.trash.empty(Duration::MAX).at("empty", dam.trash.dir())?;
        report.trash = emptied.removed;
        report.kept.extend(emptied.stuck.iter().map(ToString::to_string));
        match dam.ledger.checkpoint() {
            Err(error) if !error.is_full() => return Err(error.into()),
            // It is as good in its log.
            _ => {}
        }
    }
    Ok(report)
}

/// A landed or empty task whose context was not removed because its supervisor
/// died, not because somebody asked to keep it.
fn leftover(dam: &Dam, task: &Task) -> Result<bool, Error> {
    let keep = task.spec.get("keep").and_then(serde_json::Value::as_bool).unwrap_or(false);
    Ok(matches!(task.state, State::Landed | State::Empty)
        && !keep
        && !dam.task_dir(&task.id).is_live()?)
}

/// Task directories without a record: their supervisor died between making the
/// directory and recording the task, so nothing has ever run in them. One that has
/// been run in lost its record otherwise, and is not ours to judge.
fn orphans(dam: &mut Dam, report: &mut GcReport) -> Result<(), Error> {
    let tasks = dam.tasks_dir();
    for entry in std::fs::read_dir(&tasks).at("read", &tasks)? {
        let name = entry.at("read", &tasks)?.file_name();
        let Ok(id) = cofferdam_ledger::TaskId::parse(&name.to_string_lossy()) else {
            if maker_is_gone(&name, "probe-")? {
                dam.trash.take(&tasks, &name).at("move away", tasks.join(&name))?;
            }
            continue;
        };
        let dir = dam.task_dir(&id);
        if dam.ledger.task(&id)?.is_some() {
            continue;
        }
        if dir.path().join("upper").exists() {
            let path = dir.path().display();
            report.kept.push(format!("`{path}` has work in it, but no record says whose"));
            continue;
        }
        // Below the lock, and the record looked for again: it may be just being born.
        let Some(_lock) = Lock::try_exclusive(&dir.lock())? else { continue };
        if dam.ledger.task(&id)?.is_none() {
            dam.trash.take(&tasks, id.as_str()).at("move away", dir.path())?;
        }
    }
    Ok(())
}

/// Files beside a context that their writer died over.
fn half_written(dam: &Dam) -> Result<(), Error> {
    let tasks = dam.tasks_dir();
    for entry in std::fs::read_dir(&tasks).at("read", &tasks)? {
        let dir = entry.at("read", &tasks)?.path();
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&dir).at("read", &dir)? {
            let name = entry.at("read", &dir)?.file_name();
            if name == "ns.tmp" || name.to_string_lossy().starts_with(".receipt.json.tmp-") {
                found.push(dir.join(name));
            }
        }
        if found.is_empty() {
            continue;
        }
        // Held: it may be the holder's, who is not done.
        let Some(_lock) = Lock::try_exclusive(&dir.join("lock"))? else { continue };
        for path in found {
            std::fs::remove_file(&path).at("remove", &path)?;
        }
    }
    Ok(())
}

/// Redo records of landings that have come to their end.
fn redo_records(dam: &Dam) -> Result<(), Error> {
    let journal = dam.dir().join("journal");
    let entries = match std::fs::read_dir(&journal) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.at("read", &journal)?,
    };
    for entry in entries {
        let path = entry.at("read", &journal)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // What its writer died over is `.TASK.tmp-…`, and was never a record.
        let draft = name.strip_prefix('.').and_then(|name| name.split_once(".tmp-"));
        let id = draft.map_or(name.as_str(), |(id, _)| id);
        let Ok(id) = cofferdam_ledger::TaskId::parse(id) else { continue };
        let over = match dam.ledger.task(&id)? {
            Some(task) if draft.is_some() => task.state.is_end(),
            Some(task) => task.state == State::Landed,
            None => true,
        };
        if over {
            std::fs::remove_file(&path).at("remove", path)?;
        }
    }
    Ok(())
}

/// Sockets of terminals whose supervisor died.
fn terminals(dam: &Dam) -> Result<(), Error> {
    let dir = dam.dir().join("terminals");
    let entries = match std::fs::read_dir(&dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.at("read", &dir)?,
    };
    for entry in entries {
        let name = entry.at("read", &dir)?.file_name();
        if maker_is_gone(&name, "")? {
            let path = dir.join(name);
            std::fs::remove_file(&path).at("remove", path)?;
        }
    }
    Ok(())
}

/// Drafts of stores whose maker died.
fn drafts(dam: &Dam) -> Result<(), Error> {
    let stores = dam.dir().join("store");
    for entry in std::fs::read_dir(&stores).at("read", &stores)? {
        let name = entry.at("read", &stores)?.file_name();
        if maker_is_gone(&name, ".tmp-")? {
            dam.trash.take(&stores, &name).at("move away", stores.join(&name))?;
        }
    }
    Ok(())
}

/// Whether a name is `PREFIX` and the pid of a process that is no more.
fn maker_is_gone(name: &std::ffi::OsStr, prefix: &str) -> Result<bool, Error> {
    let name = name.to_string_lossy();
    let pid = name.strip_prefix(prefix).and_then(|rest| rest.split('-').next()?.parse().ok());
    let Some(pid) = pid else { return Ok(false) };
    Ok(cofferdam_sandbox::process::ProcessName::of(pid).at("read", "/proc")?.is_none())
}

/// Packs our stores, and lets go of objects that nothing has referred to for two
/// days: a landing that is going on has objects without a ref.
fn stores(dam: &Dam, kept_by_lfs: &HashSet<String>, report: &mut GcReport) -> Result<(), Error> {
    let stores = dam.dir().join("store");
    for entry in std::fs::read_dir(&stores).at("read", &stores)? {
        let path = entry.at("read", &stores)?.path();
        if path.extension().is_none_or(|extension| extension != "git") {
            continue;
        }
        // What git leaves where an import failed, on a full disk for instance.
        for entry in std::fs::read_dir(&path).at("read", &path)? {
            let name = entry.at("read", &path)?.file_name();
            let (left, name) = (path.join(&name), name.to_string_lossy().into_owned());
            if name.starts_with("fast_import_crash_") {
                std::fs::remove_file(&left).at("remove", &left)?;
            } else if name.starts_with(SCRATCH) {
                std::fs::remove_dir_all(&left).at("remove", &left)?;
            }
        }
        let git = || cofferdam_git::GitCommand::ours(&path);
        let packed = git()
            .args(["repack", "-A", "-d", "-l", "-q", "--unpack-unreachable=2.days.ago"])
            .run()
            .and_then(|_| git().args(["prune", "--expire=2.days.ago"]).run())
            .and_then(|_| lfs::forget_but(&path, &|oid| kept_by_lfs.contains(oid)));
        // Without its repository there is nothing to borrow from, and nothing to keep.
        if let Err(error) = packed {
            report.kept.push(format!("`{}` can't be packed: {error}", path.display()));
        }
    }
    Ok(())
}

/// What can only be collected while no task is live and none can become so: layers,
/// because a task may be about to stand on one, and our stores, because packing one
/// takes directories away from under a git that is writing there.
fn when_nobody_works(dam: &mut Dam, report: &mut GcReport) -> Result<(), Error> {
    let _collecting = dam.collect_layers()?;
    let (mut used, mut kept_by_lfs) = (Vec::new(), HashSet::new());
    for task in dam.ledger.tasks(Filter { unsettled_only: true, ..Filter::default() })? {
        let facts = Facts::of(&task)?;
        used.extend(facts.stack.into_iter().flat_map(|stack| stack.ids));
        kept_by_lfs.extend(facts.lfs.into_iter().map(|pointer| pointer.oid));
        if task.state.is_live() {
            return Ok(());
        }
    }
    unused_layers(dam, &used, report)?;
    if !report.dry_run {
        stores(dam, &kept_by_lfs, report)?;
    }
    Ok(())
}

/// Layers that no context stands on, but for the newest base of each repository,
/// which the next task will want.
fn unused_layers(dam: &Dam, used: &[LayerId], report: &mut GcReport) -> Result<(), Error> {
    let failed = cofferdam_git::GitError::from;
    cofferdam_failpoint::hit("gc:layers").at("collect", dam.layers.dir())?;
    let mut layers = dam.layers.list().map_err(failed)?;
    layers.sort_by_key(|(_, meta)| std::cmp::Reverse(meta.created_ms));
    let mut newest = HashSet::new();
    let mut unused = Vec::new();
    for (id, meta) in layers {
        let group = meta.key.split_once('-').map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        let is_newest_base = meta.base.is_none() && newest.insert(group);
        if !is_newest_base && !used.contains(&id) {
            unused.push(id);
        }
    }
    unused
        .extend(dam.layers.unusable().map_err(failed)?.into_iter().filter(|id| !used.contains(id)));
    for id in unused {
        if !report.dry_run {
            dam.layers.remove(&id, &dam.trash).map_err(failed)?;
        }
        report.layers.push(id.to_string());
    }
    Ok(())
}

/// Empties a trash that holds next to nothing; starts a process that does so in
/// its own time when there is more.
fn sweep(dam: &Dam) {
    use std::os::unix::process::CommandExt;
    if dam.trash.empty_fast(AT_ONCE).is_ok_and(|emptied| emptied.left == 0) {
        return;
    }
    let spawned = std::process::Command::new("/proc/self/exe")
        .arg0("dam-sweep")
        .arg(ARGUMENT)
        .arg(dam.trash.dir())
        .env_clear()
        .process_group(0)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    // It goes the next time otherwise.
    drop(spawned);
}

/// Is the process that empties the trash; never returns.
pub fn sweep_main() -> ! {
    let dir = std::env::args_os().nth(2).unwrap_or_default();
    let emptied = rustix::process::nice(10)
        .map_err(std::io::Error::from)
        .and_then(|_| cofferdam_tree::Trash::new(dir))
        .and_then(|trash| trash.empty(Duration::from_secs(600)));
    std::process::exit(i32::from(emptied.is_err()))
}

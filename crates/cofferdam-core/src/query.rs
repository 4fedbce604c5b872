//! What a person asks about tasks, and asks of them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_git::{Conversation, GitCommand, PersonConfig, Repository, Store};
use cofferdam_ledger::{Filter, State, Task, TransitionRow};
use cofferdam_sandbox::process::wait_gone;
use cofferdam_tree::Lock;
use cofferdam_tree::target::patch;

use crate::control::Control;
use crate::error::IoContext;
use crate::facts::Facts;
use crate::files::changes;
use crate::files::snapshot::BASE;
use crate::job::reopen;
use crate::reconcile::reconcile;
use crate::repo::{self, Repo};
use crate::report::Silent;
use crate::source::Kind;
use crate::{Dam, Error, TaskDir};

/// The tasks there are, newest first.
///
/// # Errors
/// When the ledger can't be read.
pub fn list(dam: &mut Dam, all: bool, repo: Option<&str>) -> Result<Vec<Task>, Error> {
    reconcile(dam)?;
    let limit = (!all).then_some(50);
    Ok(dam.ledger.tasks(Filter { repo, limit, ..Filter::default() })?)
}

/// A task and the steps it took.
///
/// # Errors
/// [`Error::NoSuchTask`].
pub fn show(dam: &mut Dam, name: &str) -> Result<(Task, Vec<TransitionRow>), Error> {
    reconcile(dam)?;
    let task = find(dam, name)?;
    let history = dam.ledger.history(&task.id)?;
    Ok((task, history))
}

fn find(dam: &Dam, name: &str) -> Result<Task, Error> {
    dam.ledger.find(name)?.ok_or_else(|| Error::NoSuchTask(name.to_owned()))
}

fn store_of(dam: &Dam, facts: &Facts) -> Result<Store, Error> {
    let repo = Repository::find(Facts::need("repository", facts.repo_dir.as_ref())?)?;
    let config = PersonConfig::read(&repo)?;
    dam.store(&repo, &config)
}

/// Writes the change set of a task as a patch, or (`stat`) as a summary.
///
/// # Errors
/// [`Error::WrongState`] while it runs; [`Error::Git`] when the change set is
/// gone. A reader who has seen enough is no error.
pub fn diff(
    dam: &mut Dam,
    name: &str,
    stat: bool,
    color: bool,
    out: &mut dyn Write,
) -> Result<(), Error> {
    reconcile(dam)?;
    let task = find(dam, name)?;
    if task.state.is_live() && dam.task_dir(&task.id).is_live()? {
        return Err(Error::Live(task.name.to_string()));
    }
    if Kind::of(&task) == Kind::Files {
        return diff_of_files(dam, &task, (stat, color), out);
    }
    let facts = Facts::of(&task)?;
    let store = store_of(dam, &facts)?;
    let (old, new) = match (facts.landed_on, facts.landed, facts.base, facts.change) {
        (Some(old), Some(new), ..) | (_, _, Some(old), Some(new))
            if !task.settled || task.state == State::Landed =>
        {
            (old, new)
        }
        _ if task.settled => {
            return Err(Error::WrongState {
                name: task.name.to_string(),
                state: task.state,
                why: "its context is gone".into(),
            });
        }
        _ => {
            let mut job = reopen::<Repo>(dam, &task, Control::default(), &Silent)?;
            if !repo::harvest_again(&mut job)? {
                return Ok(());
            }
            let base = Facts::need("base", job.facts.base.as_ref())?.clone();
            (base, Facts::need("change set", job.facts.change.as_ref())?.clone())
        }
    };
    let color = if color { "--color=always" } else { "--color=never" };
    // Our stores treat what is larger than a buffer as a stream of bytes; a person wants
    // to see of text what git shows of it.
    let git = store.git().setting("core.bigFileThreshold=512m");
    let mut git = git.args(["diff", "--no-ext-diff", "--no-textconv", color]);
    if stat {
        git = git.args(["--stat"]);
    }
    let mut git = git.args([old.as_str(), new.as_str()]).converse()?;
    if !tell(&mut git, out)? {
        return Ok(());
    }
    Ok(git.end()?)
}

/// Passes on what a git prints. Whether the reader wanted all of it.
fn tell(git: &mut Conversation, out: &mut dyn Write) -> Result<bool, Error> {
    let mut patch = git.child.stdout.take().expect("piped");
    let Err(error) = std::io::copy(&mut patch, out).and_then(|_| out.flush()) else {
        return Ok(true);
    };
    let _ = git.child.kill();
    let _ = git.child.wait();
    match error.kind() {
        std::io::ErrorKind::BrokenPipe => Ok(false),
        _ => Err(error).at("write", "the patch"),
    }
}

/// What each output changes in the file that it becomes, as that is now.
fn diff_of_files(
    dam: &Dam,
    task: &Task,
    (stat, color): (bool, bool),
    out: &mut dyn Write,
) -> Result<(), Error> {
    let wrong = |why: &str| Error::WrongState {
        name: task.name.to_string(),
        state: task.state,
        why: why.into(),
    };
    if task.settled {
        return Err(wrong("its context is gone"));
    }
    let facts = Facts::of(task)?;
    if !facts.has_result() {
        return Err(wrong("nothing was taken out of its context"));
    }
    let dir = dam.task_dir(&task.id);
    for output in facts.outputs {
        let base = dir.path().join(BASE);
        if base.is_dir() {
            return diff_of_dir(&dir, (stat, color), out);
        }
        let there = if output.place.exists() { &output.place } else { Path::new("/dev/null") };
        // By its own name: where we keep it says nothing to a person.
        if !between(&dir.results(), [there, &output.from], (stat, color), out)? {
            return Ok(());
        }
    }
    Ok(())
}

/// What git says is between two paths, relative to `dir`. Whether the reader wanted all
/// of it.
fn between(
    dir: &Path,
    paths: [&Path; 2],
    (stat, color): (bool, bool),
    out: &mut dyn Write,
) -> Result<bool, Error> {
    let color = if color { "--color=always" } else { "--color=never" };
    let git = GitCommand::without_repository().current_dir(dir);
    let git = git.args(["diff", "--no-index", "--no-ext-diff", "--no-textconv", color]);
    let git = if stat { git.args(["--stat"]) } else { git };
    let mut git = git.args(["--"]).args(paths).converse()?;
    if !tell(&mut git, out)? {
        return Ok(false);
    }
    // 1: they differ (git-diff(1)).
    let finished = git.finish()?;
    match finished.status.code() {
        Some(0 | 1) => Ok(true),
        _ => Err(finished.failed().into()),
    }
}

/// What a task changed in a directory, each path by itself: git's own is left out.
fn diff_of_dir(
    dir: &TaskDir,
    (stat, color): (bool, bool),
    out: &mut dyn Write,
) -> Result<(), Error> {
    for op in changes::ops_in(dir)? {
        let [before, after] = [BASE, "results/tree"].map(|tree| Path::new(tree).join(&op.path));
        let there = |path: PathBuf| {
            let is_file =
                dir.path().join(&path).symlink_metadata().is_ok_and(|meta| !meta.is_dir());
            if is_file { path } else { PathBuf::from("/dev/null") }
        };
        if stat {
            let kind = match (&op.old, &op.change) {
                (patch::State::Nothing, _) => 'A',
                (_, patch::Change::Remove) => 'D',
                _ => 'M',
            };
            let line = writeln!(out, "{kind} {}", op.path.display());
            if line.is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe) {
                return Ok(());
            }
            continue;
        }
        let mut patch = Renamed { out: &mut *out, header: true, line: Vec::new() };
        if !between(dir.path(), [&there(before), &there(after)], (stat, color), &mut patch)? {
            return Ok(());
        }
        patch.end().at("write", "the patch")?;
    }
    Ok(())
}

/// Passes a patch on with the paths that a person knows: not those of our copies.
struct Renamed<'a> {
    out: &'a mut dyn Write,
    header: bool,
    line: Vec<u8>,
}

impl Renamed<'_> {
    fn end(&mut self) -> std::io::Result<()> {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        self.header &= !text.contains("@@ ");
        if !self.header {
            return self.out.write_all(&line);
        }
        let ours = [
            ("a/base/", "a/"),
            ("b/results/tree/", "b/"),
            ("b/base/", "b/"),
            ("a/results/tree/", "a/"),
        ];
        let known =
            ours.iter().fold(text.into_owned(), |text, (ours, known)| text.replace(ours, known));
        self.out.write_all(known.as_bytes())
    }
}

impl Write for Renamed<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        for byte in bytes {
            self.line.push(*byte);
            if *byte == b'\n' {
                self.end()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Asks a task's supervisor to end it.
///
/// # Errors
/// [`Error::NoSuchTask`]. A task that is not running is no error.
pub fn stop(dam: &mut Dam, name: &str, patience: Option<Duration>) -> Result<Task, Error> {
    reconcile(dam)?;
    let task = find(dam, name)?;
    let dir = dam.task_dir(&task.id);
    if task.state.is_live()
        && let Some(supervisor) = dir.supervisor()
        && let Some(handle) = supervisor.open().at("hold", dir.path())?
    {
        let signal = rustix::process::Signal::TERM;
        match rustix::process::pidfd_send_signal(&handle, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error).at("signal the supervisor of", dir.path()),
        }
        if !wait_gone(&handle, patience).at("wait for", dir.path())? {
            return Err(Error::Live(task.name.to_string()));
        }
    }
    settled(dam, &task)
}

/// The task after it was brought to an end; an error says why it could not be.
fn settled(dam: &mut Dam, task: &Task) -> Result<Task, Error> {
    let left = reconcile(dam)?;
    let task = find(dam, task.id.as_str())?;
    if task.state.is_live() && !dam.task_dir(&task.id).is_live()? {
        let why = left.join("; ");
        return Err(Error::Internal(format!("task `{}` can't be settled: {why}", task.name)));
    }
    Ok(task)
}

/// Waits until nobody is at work on a task any more.
///
/// # Errors
/// [`Error::NoSuchTask`].
pub fn wait(dam: &mut Dam, name: &str) -> Result<Task, Error> {
    let task = find(dam, name)?;
    let dir = dam.task_dir(&task.id);
    if dir.path().is_dir() {
        let lock = Lock::shared(&dir.lock())?;
        drop(lock);
    }
    settled(dam, &task)
}

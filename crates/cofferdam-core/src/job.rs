//! A task in hand: everything that its steps need, and its lock.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cofferdam_git::layer::LayerStack;
use cofferdam_ledger::{Change, Durability, State, Task, TaskId, TaskName};
use cofferdam_sandbox::Ids;
use cofferdam_sandbox::process::{ProcessName, boot_id};
use cofferdam_tree::{Lock, LockError};

use crate::context::{Context, Place};
use crate::control::Control;
use crate::diagnose::Diagnosis;
use crate::error::IoContext;
use crate::facts::Facts;
use crate::files::Output;
use crate::files::snapshot::BASE;
use crate::receipt::Receipt;
use crate::repo::Repo;
use crate::report::{Event, Reporter};
use crate::request::{Request, SourceRef};
use crate::source::Source;
use crate::{Dam, Error, TaskDir, lessons, state_dir};

/// How many things that were left out are told at once.
const LEFT_OUT_TOLD: usize = 5;

/// A task with everything that its steps need. What its files come from decides about
/// some of them.
pub struct Job<'a, S = Repo> {
    pub(crate) dam: &'a mut Dam,
    pub(crate) source: S,
    pub(crate) place: Place,
    pub(crate) ids: Ids,
    pub(crate) request: Request,
    pub(crate) id: TaskId,
    pub(crate) name: TaskName,
    pub(crate) dir: TaskDir,
    pub(crate) state: State,
    pub(crate) facts: Facts,
    pub(crate) reporter: &'a dyn Reporter,
    pub(crate) control: Control,
    pub(crate) lock: Lock,
}

/// A job for a task that exists; its lock must be free.
pub(crate) fn reopen<'a, S: Source>(
    dam: &'a mut Dam,
    task: &Task,
    control: Control,
    reporter: &'a dyn Reporter,
) -> Result<Job<'a, S>, Error> {
    let dir = dam.task_dir(&task.id);
    if !dir.path().is_dir() {
        std::fs::create_dir(dir.path()).at("make", dir.path())?;
    }
    let Some(lock) = try_hold(&dir)? else { return Err(Error::Live(task.name.to_string())) };
    // Read again below the lock: somebody may have been faster.
    let task = dam.ledger.task(&task.id)?.ok_or_else(|| Error::NoSuchTask(task.id.to_string()))?;
    let facts = Facts::of(&task)?;
    let request: Request = serde_json::from_value(task.spec.clone()).map_err(|error| {
        Error::Internal(format!("the request of task `{}` is broken: {error}", task.id))
    })?;
    let ids = *Facts::need("user", facts.ids.as_ref())?;
    let (source, mut place) = S::reopen(dam, &facts, ids)?;
    place.show_inputs(&facts.inputs, &relative_inputs(dam, &dir));
    Ok(Job {
        dam,
        source,
        place,
        ids,
        request,
        id: task.id.clone(),
        name: task.name.clone(),
        dir,
        state: task.state,
        facts,
        reporter,
        control,
        lock,
    })
}

/// Where copies of inputs are, as contexts are told.
pub(crate) fn relative_inputs(dam: &Dam, dir: &TaskDir) -> PathBuf {
    let inputs = dir.inputs();
    inputs.strip_prefix(dam.contexts_dir()).map(Path::to_owned).unwrap_or(inputs)
}

/// Makes a task's directory and takes its lock. A collection that comes in between
/// takes the directory for one whose maker died; then it is made again.
pub(crate) fn claim(dir: &TaskDir) -> Result<Lock, Error> {
    loop {
        match std::fs::create_dir(dir.path()) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(state_dir::not_made(dir.path(), error));
            }
            _ => {}
        }
        cofferdam_failpoint::hit("task:claim").at("lock", dir.path())?;
        match Lock::try_exclusive(&dir.lock()) {
            Ok(Some(lock)) => return describe(lock),
            Ok(None) => std::thread::yield_now(),
            Err(LockError::Open { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn try_hold(dir: &TaskDir) -> Result<Option<Lock>, Error> {
    Lock::try_exclusive(&dir.lock())?.map(describe).transpose()
}

fn describe(lock: Lock) -> Result<Lock, Error> {
    let own = ProcessName::of(std::process::id()).at("read", "/proc")?;
    // Without it (a full disk) nobody can signal us by the task's name; the lock holds.
    let _ = lock.describe(&serde_json::to_string(&own).expect("a name serialises"));
    Ok(lock)
}

impl<S> Job<'_, S> {
    /// The context on disk; none when there is none any more.
    ///
    /// # Errors
    /// When it is from before the machine was restarted.
    pub(crate) fn context(&self) -> Result<Option<Context>, Error> {
        let dir = self.dir.path().to_owned();
        let stack = self.facts.stack.as_ref();
        if !dir.join("upper").is_dir()
            || (stack.is_none() && self.request.source == SourceRef::Repo)
        {
            return Ok(None);
        }
        let mut layers = stack.into_iter().flat_map(|stack| &stack.ids);
        if let Some(id) = layers.find(|id| !self.dam.layers.tree(id).is_dir()) {
            let layer = self.dam.layers.tree(id);
            let why = format!("the layer `{}` that its context stands on is gone", layer.display());
            return Err(Error::Internal(why));
        }
        // Written without syncs: after a power loss it can hold anything.
        let boot = boot_id().at("read", "/proc")?;
        if self.facts.boot.as_ref() != Some(&boot) {
            let why = "its files are from before the machine was restarted";
            return Err(Error::Internal(why.into()));
        }
        Ok(Some(Context {
            dir,
            base: self.dam.contexts_dir(),
            lower: match (&self.request.source, stack) {
                (SourceRef::Dir(_), _) => vec![self.base()],
                (_, stack) => stack.map(LayerStack::lower).unwrap_or_default(),
            },
            ids: self.ids,
            read_only: self.request.read_only,
        }))
    }

    pub(crate) fn interrupted(&self) -> bool {
        self.control.interrupts() > 0
    }

    pub(crate) fn record(&self) -> Result<Task, Error> {
        self.dam.ledger.task(&self.id)?.ok_or_else(|| Error::NoSuchTask(self.id.to_string()))
    }

    /// Writes down the evidence, from the record. Synced for what landed; any other
    /// can be made again.
    pub(crate) fn write_receipt(&self) -> Result<Task, Error> {
        let task = self.record()?;
        let path = self.dir.receipt();
        let text = serde_json::to_vec_pretty(&Receipt::of(&task)?).expect("a receipt serialises");
        let write = match task.state {
            State::Landed => cofferdam_tree::write_atomic,
            _ => cofferdam_tree::replace,
        };
        write(&path, &text, 0o600).at("write", &path)?;
        Ok(task)
    }

    /// Goes into the next state, with everything found out so far.
    pub(crate) fn advance(&mut self, to: State, reason: Option<&str>) -> Result<(), Error> {
        let change = Change { facts: Some(self.facts.to_value()), reason, detail: None };
        self.dam.ledger.transition(&self.id, self.state, to, change, Durability::Normal)?;
        self.state = to;
        Ok(())
    }

    /// Where a command finds the file of its lessons, when they are one of its outputs.
    pub(crate) fn lessons_inside(&self) -> Option<PathBuf> {
        let is_one = |output: &Output| output.from == Path::new(lessons::FILE);
        let has_one = self.request.outputs.iter().any(is_one);
        has_one.then(|| self.place.top.join(lessons::FILE))
    }

    /// The copy of the directory that it is about, as contexts are told.
    pub(crate) fn base(&self) -> String {
        let base = self.dir.path().join(BASE);
        base.strip_prefix(self.dam.contexts_dir()).unwrap_or(&base).display().to_string()
    }

    /// What is to be changed, in words.
    pub(crate) fn target_text(&self) -> String {
        match &self.request.publish {
            Some(publish) => publish.to_string(),
            None => self.facts.target_text().unwrap_or_default(),
        }
    }

    /// Comes to an end.
    pub(crate) fn end(&mut self, state: State, why: &str) -> Result<(), Error> {
        self.advance(state, Some(why))
    }

    /// Writes what was found out, without a change of state.
    pub(crate) fn note(&mut self) -> Result<(), Error> {
        self.dam.ledger.note(&self.id, self.facts.to_value(), Durability::Normal)?;
        Ok(())
    }

    /// Keeps why the command or a check failed, and tells it.
    pub(crate) fn diagnosed(&mut self, diagnosis: Vec<Diagnosis>) {
        for found in &diagnosis {
            self.reporter.report(Event::Diagnosis(found.clone()));
        }
        self.facts.diagnosis = diagnosis;
    }

    /// Keeps what of a context is in no change set, and tells it.
    pub(crate) fn tell_left_out(&mut self, left_out: Vec<String>) {
        for what in left_out.iter().take(LEFT_OUT_TOLD) {
            let text = format!("left out of the change set: {what}");
            self.reporter.report(Event::Warning { text });
        }
        if left_out.len() > LEFT_OUT_TOLD {
            let name = &self.name;
            let text = format!("more was left out of the change set: `dam show {name}` says what");
            self.reporter.report(Event::Warning { text });
        }
        self.facts.left_out = left_out;
    }

    pub(crate) fn took(&mut self, step: &str, begun: Instant) {
        self.facts.steps.push((step.to_owned(), millis(begun.elapsed())));
    }

    pub(crate) fn told(&self, step: &'static str, begun: Instant, text: String) {
        self.reporter.report(Event::Step { step, took_ms: millis(begun.elapsed()), text });
    }

    pub(crate) fn step(&mut self, step: &'static str, begun: Instant, text: String) {
        self.took(step, begun);
        self.told(step, begun, text);
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

//! A task in hand: everything that its steps need, and its lock.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cofferdam_git::gitdir::{self, RefValue, TaskGit};
use cofferdam_git::harvest::{CommitText, Rules};
use cofferdam_git::layer::{LayerMaker, LayerStack};
use cofferdam_git::modules::Module;
use cofferdam_git::publish::Pin;
use cofferdam_git::{CommitId, PersonConfig, Repository, Store};
use cofferdam_ledger::{Change, Durability, State, Task, TaskId, TaskName};
use cofferdam_sandbox::Ids;
use cofferdam_sandbox::process::{ProcessName, boot_id};
use cofferdam_tree::{Lock, LockError};

use crate::context::{Context, Place};
use crate::control::Control;
use crate::diagnose::Diagnosis;
use crate::error::IoContext;
use crate::facts::Facts;
use crate::receipt::Receipt;
use crate::report::{Event, Reporter};
use crate::request::Request;
use crate::target::TargetRef;
use crate::{Dam, Error, TaskDir, boundary, state_dir};

/// Caps of a harvest.
const MOST_ENTRIES: u64 = 2_000_000;
const MOST_BYTES: u64 = 64 << 30;

/// How many things that were left out are told at once.
const LEFT_OUT_TOLD: usize = 5;

/// A task with everything that its steps need.
pub struct Job<'a> {
    pub(crate) dam: &'a mut Dam,
    pub(crate) repo: Repository,
    pub(crate) config: PersonConfig,
    pub(crate) store: Store,
    pub(crate) place: Place,
    pub(crate) ids: Ids,
    pub(crate) excludes: Vec<u8>,
    pub(crate) request: Request,
    pub(crate) id: TaskId,
    pub(crate) name: TaskName,
    pub(crate) dir: TaskDir,
    pub(crate) state: State,
    pub(crate) facts: Facts,
    pub(crate) reporter: &'a dyn Reporter,
    pub(crate) control: Control,
    pub(crate) lock: Lock,
    /// The git that has set the pin and can remove it.
    pub(crate) pin: Option<Pin>,
}

/// A job for a task that exists; its lock must be free.
pub(crate) fn reopen<'a>(
    dam: &'a mut Dam,
    task: Task,
    control: Control,
    reporter: &'a dyn Reporter,
) -> Result<Job<'a>, Error> {
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
    let repo_dir = Facts::need("repository", facts.repo_dir.as_ref())?.clone();
    let repo = Repository::find(&repo_dir)?;
    let config = PersonConfig::read(&repo)?;
    let store = dam.store(&repo, &config)?;
    let ids = *Facts::need("user", facts.ids.as_ref())?;
    let modules = match &facts.base_tree {
        Some(tree) => dam.modules(&repo, &store, tree)?,
        None => Vec::new(),
    };
    let mut place = Place::new(dam, &repo, &config, &store, modules, ids)?;
    place.show_inputs(&facts.inputs, &relative_inputs(dam, &dir));
    let excludes = gitdir::excludes(&repo, &config)?;
    Ok(Job {
        dam,
        repo,
        config,
        store,
        place,
        ids,
        excludes,
        request,
        id: task.id.clone(),
        name: task.name.clone(),
        dir,
        state: task.state,
        facts,
        reporter,
        control,
        lock,
        pin: None,
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

impl Job<'_> {
    pub(crate) fn target(&self) -> &TargetRef {
        self.facts.target.as_ref().expect("every job has a target")
    }

    /// The context on disk; none when there is none any more.
    ///
    /// # Errors
    /// When it is from before the machine was restarted.
    pub(crate) fn context(&self) -> Result<Option<Context>, Error> {
        let dir = self.dir.path().to_owned();
        let Some(stack) = self.facts.stack.clone() else { return Ok(None) };
        if !dir.join("upper").is_dir() {
            return Ok(None);
        }
        if let Some(id) = stack.ids.iter().find(|id| !self.dam.layers.tree(id).is_dir()) {
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
            stack,
            ids: self.ids,
            read_only: self.request.read_only,
        }))
    }

    /// Paths that were carried in.
    pub(crate) fn carried(&self) -> Result<Vec<Vec<u8>>, Error> {
        let path = self.dir.carried();
        match std::fs::read(&path) {
            Ok(bytes) => {
                let paths = bytes.split(|byte| *byte == 0).filter(|path| !path.is_empty());
                Ok(paths.map(<[u8]>::to_vec).collect())
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).at("read", path),
        }
    }

    /// What decides about what is taken out of its context.
    pub(crate) fn rules(&self) -> Result<Rules, Error> {
        Ok(Rules {
            excludes: self.excludes.clone(),
            ignore_case: self.config.is_true("core.ignorecase"),
            ignore_modes: self.config.ignores_modes(),
            began_at: [&self.facts.base, &self.facts.pinned]
                .into_iter()
                .flatten()
                .cloned()
                .collect(),
            carried: self.carried()?,
            modules: self.place.modules.iter().map(|module| module.path.clone()).collect(),
            format: self.repo.format,
            most_entries: MOST_ENTRIES,
            most_bytes: MOST_BYTES,
        })
    }

    /// Makes layers for it.
    pub(crate) fn maker<'m>(&'m self, modules: &'m [Module]) -> LayerMaker<'m> {
        LayerMaker {
            store: &self.store,
            layers: &self.dam.layers,
            owner: self.ids.switch.then_some((self.ids.uid, self.ids.gid)),
            modules,
        }
    }

    /// Writes the private `.git` of a context at `commit`, and those of `modules`.
    pub(crate) fn write_git(
        &self,
        context: &Context,
        commit: &CommitId,
        refs: &[RefValue],
        modules: &[Module],
    ) -> Result<(), Error> {
        let branch = format!("dam/{}", self.name);
        let object_dirs = boundary::of_level(self.request.level).object_dirs(&self.place);
        let git = TaskGit {
            repo: &self.repo,
            config: &self.config,
            branch: Some(&branch),
            commit,
            refs,
            object_dirs: &object_dirs,
            excludes: &self.excludes,
        };
        let mut of_modules = Vec::new();
        for module in modules {
            of_modules.push((module, gitdir::listed_refs(gitdir::list_refs(&module.repo)?)?));
        }
        let of_modules: Vec<(PathBuf, TaskGit<'_>)> = of_modules
            .iter()
            .map(|(module, refs)| {
                let git = TaskGit {
                    repo: &module.repo,
                    config: &module.config,
                    branch: None,
                    commit: &module.commit,
                    refs,
                    ..git
                };
                (module.git_dir(), git)
            })
            .collect();
        context.write_git(&git, &of_modules)
    }

    pub(crate) fn stack(&self) -> Result<&LayerStack, Error> {
        Facts::need("layers", self.facts.stack.as_ref())
    }

    /// While the answer lives, each git that is started holds the task's lock too.
    /// One that outlives us can still move a ref: nobody may judge on which side of
    /// the commit point we died before it has ended.
    pub(crate) fn with_git(&self) -> Result<std::os::fd::OwnedFd, Error> {
        self.lock.lend().at("hold", self.lock.path())
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

    /// Who commits and what the commit says.
    pub(crate) fn commit_text(&self) -> Result<CommitText, Error> {
        let (name, mail) = self
            .config
            .identity()
            .ok_or_else(|| Error::usage("git does not know who you are", None))?;
        let message = self.facts.message.clone().unwrap_or_default();
        Ok(CommitText { name, mail, message })
    }

    /// The commit that pins the base.
    pub(crate) fn pinned(&self) -> Option<&CommitId> {
        self.facts.pinned.as_ref()
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

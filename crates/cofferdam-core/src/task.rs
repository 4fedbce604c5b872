//! The line that a task takes.
//!
//! One function an arrow, in this order:
//!
//! ```text
//! prepare ─► run ─► harvest ─► land (verify ─► publish) ─► settle
//! ```
//!
//! Each state is in the ledger before its step begins. The supervisor holds the
//! task's lock for its whole life; a free lock says that it is gone, and no
//! more. Whatever goes wrong on the way ends the task in a state that says so,
//! with its work still there.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout};
use std::sync::Mutex;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use cofferdam_git::gitdir::{self, TaskGit};
use cofferdam_git::harvest::{CommitText, Refusal, Rules, collect};
use cofferdam_git::layer::{LayerMaker, LayerStack};
use cofferdam_git::remote::RemoteBranch;
use cofferdam_git::{
    CommitId, GitError, PersonConfig, Repository, Started, Store, VersionQuery, merge, publish,
};
use cofferdam_ledger::{Change, Durability, NewTask, State, Task, TaskId, TaskName};
use cofferdam_sandbox::process::{ProcessName, boot_id};
use cofferdam_sandbox::{Ids, Network, Wall, landlock_abi, refuse_delegated};
use cofferdam_tree::{Lock, LockError};

use crate::config::RepoConfig;
use crate::context::{Context, Place, Told, What};
use crate::control::Control;
use crate::error::IoContext;
use crate::facts::{ChangeCounts, Facts};
use crate::receipt::{Isolation, Receipt};
use crate::report::{Event, Reporter};
use crate::request::{Into, Request};
use crate::supervise::{self, Ended, Plan};
use crate::target::TargetRef;
use crate::{Dam, Error, TaskDir, boundary, land, settle};

/// How long a command runs before the checkout is looked at beside it.
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// Caps of a harvest.
const MOST_ENTRIES: u64 = 2_000_000;
const MOST_BYTES: u64 = 64 << 30;

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
    lock: Lock,
}

/// Runs one task to its end and gives its receipt.
///
/// # Errors
/// When the request makes no sense here, or something of ours fails; a task
/// that was begun has a record that says so.
pub fn run(
    dam: &mut Dam,
    dir: &Path,
    request: Request,
    control: Control,
    reporter: &dyn Reporter,
) -> Result<Receipt, Error> {
    boundary::of_level(request.level)?;
    settle::housekeeping(dam)?;
    let (mut job, cwd, refs) = admit(dam, dir, request, control, reporter)?;
    let done = line(&mut job, &cwd, refs);
    finish(job, done)
}

/// The arrows.
fn line(job: &mut Job<'_>, cwd: &Path, refs: Started) -> Result<(), Error> {
    let context = prepare(job, refs)?;
    if !run_command(job, &context, cwd)? {
        return Ok(());
    }
    if !harvest(job, &context)? {
        return Ok(());
    }
    let publish = job.request.land;
    land::land(job, publish)
}

/// Lands a task that waits for a person.
///
/// # Errors
/// [`Error::WrongState`] when there is nothing to land.
pub fn land_again(
    dam: &mut Dam,
    name: &str,
    request: impl FnOnce(&mut Request),
    control: Control,
    reporter: &dyn Reporter,
) -> Result<Receipt, Error> {
    settle::housekeeping(dam)?;
    let task = dam.ledger.find(name)?.ok_or_else(|| Error::NoSuchTask(name.to_owned()))?;
    if task.state == State::Landed || task.state == State::Empty {
        return Receipt::of(&task);
    }
    if task.settled {
        return Err(Error::WrongState {
            name: task.name.to_string(),
            state: task.state,
            why: "its context is gone, dropped or kept for its time".into(),
        });
    }
    let mut job = reopen(dam, task, control, reporter)?;
    request(&mut job.request);
    if job.facts.change.is_none() || !job.state.may_become(State::Verifying) {
        return Err(Error::WrongState {
            name: job.name.to_string(),
            state: job.state,
            why: "there is no change set to land".into(),
        });
    }
    let done = land::land(&mut job, true);
    finish(job, done)
}

/// Ends a job: an error is recorded, a success is settled.
fn finish(mut job: Job<'_>, done: Result<(), Error>) -> Result<Receipt, Error> {
    if let Err(error) = done {
        // The first error is the one to be told.
        let _ = end_with(&mut job, &error);
        return Err(error);
    }
    let task = job.write_receipt()?;
    settle::after(&mut job, &task)?;
    let task = job.record()?;
    Receipt::of(&task)
}

/// Records an error. A change set that was harvested is not lost by it: it waits
/// for another try. A context in which nothing has run goes at once.
fn end_with(job: &mut Job<'_>, error: &Error) -> Result<(), Error> {
    // An open publication is for recovery to judge: the target may have changed,
    // and then there is only the way on.
    let publication = job.dam.ledger.publication_of(&job.id)?;
    let undecided = publication.is_some_and(|publication| publication.state.is_open());
    if undecided || !job.state.is_live() {
        return Ok(());
    }
    let nothing_ran = matches!(job.state, State::Queued | State::Preparing)
        || (job.state == State::Running && matches!(error, Error::Isolation(_)));
    let state = match error {
        _ if job.facts.change.is_some() => State::Ready,
        Error::Isolation(_)
        | Error::Git(GitError::Refused(_))
        | Error::Usage { .. }
        | Error::Config { .. } => State::Failed,
        _ => State::Broken,
    };
    job.end(state, &land::chain(error))?;
    job.write_receipt()?;
    if nothing_ran {
        settle::remove(job)?;
    }
    Ok(())
}

/// Admission: the request is understood, the target known, the name reserved.
/// Gives the job, the working directory, and the refs being listed meanwhile.
fn admit<'a>(
    dam: &'a mut Dam,
    dir: &Path,
    mut request: Request,
    control: Control,
    reporter: &'a dyn Reporter,
) -> Result<(Job<'a>, PathBuf, Started), Error> {
    let version = VersionQuery::start()?;
    let mut found = Repository::discover(dir, request.base.as_deref())?;
    let config = std::mem::take(&mut found.config);
    version.finish()?;
    if config.identity().is_none() {
        return Err(Error::usage(
            "git does not know who you are, and what lands is a commit of yours",
            "`git config --global user.name NAME` and `git config --global user.email ADDRESS`",
        ));
    }
    let refs = gitdir::list_refs(&found.repo)?;
    let store = dam.store(&found.repo, &config)?;
    let head = match &request.base {
        None => Some(found.commit.clone()),
        Some(_) => found.repo.resolve("HEAD")?,
    };
    let at_head = head.as_ref().map(|head| RepoConfig::at(&store, head)).transpose()?;
    if request.into == Into::Current
        && let Some(into) = at_head.as_ref().and_then(|config| config.into.as_ref())
    {
        request.into = Into::Named(into.clone());
    }
    let id = fresh_id()?;
    let name = match &request.name {
        Some(name) => name.clone(),
        None => default_name(&request, &id),
    };
    let target = target(&request, &found, &config, &name)?;
    let tip = match &target {
        TargetRef::Branch { name } if found.branch.as_ref() == Some(name) => head.clone(),
        _ => target.open(&found.repo, &store).fingerprint().map_err(|error| {
            let why = land::chain(&error);
            Error::usage(format!("`{target}` can't be looked at: {why}"), None)
        })?,
    };
    let tip = match (&target, tip) {
        (TargetRef::NewBranch { .. }, Some(_)) => {
            return Err(Error::usage(
                format!("branch `{target}` exists already"),
                "give another `--name`",
            ));
        }
        (TargetRef::NewBranch { .. }, None) => found.commit.clone(),
        (_, Some(tip)) => tip,
        (_, None) => return Err(Error::usage(format!("there is no branch `{target}`"), None)),
    };
    // What the repository asks for is what the target's tip says, whatever the base.
    let asked = match at_head {
        Some(config) if head.as_ref() == Some(&tip) => config,
        _ => RepoConfig::at(&store, &tip)?,
    };
    if let Some(level) = asked.level.filter(|level| *level > request.level) {
        let message = format!("`cofferdam.toml` asks for level `{level}` at least");
        return Err(Error::usage(message, None));
    }
    request.timeout = request.timeout.or(asked.timeout);
    // The base is the target's tip, which need not be what is checked out.
    if request.base.is_none() && tip != found.commit {
        found.tree = merge::tree_of(&store, &tip)?;
        found.commit = tip;
    }
    let owner_of = found.repo.worktree.clone().unwrap_or_else(|| found.repo.common_dir.clone());
    let ids = Ids::for_task(&owner_of).at("look at", &owner_of)?;
    if request.wall == Wall::Nested {
        refuse_delegated(ids).map_err(Error::Isolation)?;
    }
    let place = Place::new(dam, &found.repo, ids)?;
    let excludes = gitdir::excludes(&found.repo, &config)?;
    let cwd = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let cwd = if cwd.starts_with(&place.top) { cwd } else { place.top.clone() };
    for path in &request.carry {
        check_carried(path)?;
    }

    let task_dir = dam.task_dir(&id);
    let lock = claim(&task_dir)?;
    let facts = Facts {
        repo_dir: Some(place.top.clone()),
        target: Some(target),
        base: Some(found.commit.clone()),
        base_tree: Some(found.tree.clone()),
        pinned: Some(found.commit.clone()),
        ids: Some(ids),
        boot: Some(boot_id().at("read", "/proc")?),
        isolation: Some(isolation(&request, ids)),
        ..Facts::default()
    };
    let created = dam.ledger.create_task(NewTask {
        id: id.clone(),
        name: name.clone(),
        repo: found.repo.key(),
        spec: serde_json::to_value(&request).expect("a request serialises"),
        facts: facts.to_value(),
    });
    let task = match created {
        Ok(task) => task,
        Err(error) => {
            drop(lock);
            std::fs::remove_dir_all(task_dir.path()).at("remove", task_dir.path())?;
            return Err(error.into());
        }
    };
    let job = Job {
        dam,
        repo: found.repo,
        config,
        store,
        place,
        ids,
        excludes,
        request,
        id,
        name,
        dir: task_dir,
        state: task.state,
        facts,
        reporter,
        control,
        lock,
    };
    Ok((job, cwd, refs))
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
    let place = Place::new(dam, &repo, ids)?;
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
    })
}

fn isolation(request: &Request, ids: Ids) -> Isolation {
    Isolation {
        level: request.level,
        network: if request.network == Network::Open { "open" } else { "none" }.into(),
        wall: if request.wall == Wall::Nested { "nested" } else { "full" }.into(),
        landlock_abi: landlock_abi(),
        uid: ids.uid,
    }
}

fn fresh_id() -> Result<TaskId, Error> {
    const ALPHABET: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut bytes = [0u8; 8];
    getrandom::fill(&mut bytes).map_err(|error| Error::Internal(error.to_string()))?;
    let text: String = bytes
        .iter()
        .map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]))
        .collect();
    TaskId::parse(&text).map_err(|error| Error::Internal(error.to_string()))
}

fn default_name(request: &Request, id: &TaskId) -> TaskName {
    let program = request.argv.first().map(OsStr::new).unwrap_or_default();
    let stem = Path::new(program).file_stem().unwrap_or(program).to_string_lossy().into_owned();
    let short: String = stem.chars().take(24).collect();
    TaskName::from_words(&format!("{short}-{}", &id.as_str()[..4]))
}

fn check_carried(path: &Path) -> Result<(), Error> {
    use std::path::Component;
    let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !inside || path.as_os_str().is_empty() || path.starts_with(".git") {
        return Err(Error::usage(
            format!(
                "`{}` can't be carried: it is not a path inside the repository",
                path.display()
            ),
            None,
        ));
    }
    Ok(())
}

fn target(
    request: &Request,
    found: &cofferdam_git::Discovered,
    config: &PersonConfig,
    name: &TaskName,
) -> Result<TargetRef, Error> {
    match &request.into {
        Into::NewBranch => {
            let branch = format!("refs/heads/dam/{name}");
            let valid =
                !branch.contains("..") && !branch.ends_with('.') && !branch.ends_with(".lock");
            if valid {
                Ok(TargetRef::NewBranch { name: branch })
            } else {
                Err(Error::usage(
                    format!("`dam/{name}` is no name for a branch"),
                    "give another `--name`",
                ))
            }
        }
        Into::Current if found.repo.worktree.is_none() => Err(Error::usage(
            "this is a bare repository, nothing is checked out to land on",
            "`--into BRANCH` names the branch, `--branch` makes a new one",
        )),
        Into::Current => match &found.branch {
            Some(branch) => Ok(TargetRef::Branch { name: branch.clone() }),
            None => Err(Error::usage(
                "no branch is checked out here (HEAD is detached)",
                "`--into BRANCH` names the branch, `--branch` makes a new one",
            )),
        },
        Into::Named(text) => {
            let branch = format!("refs/heads/{text}");
            if text.starts_with('-') || text.contains("..") {
                return Err(Error::usage(format!("`{text}` is no name of a branch"), None));
            }
            if found.repo.resolve(&branch)?.is_some() {
                return Ok(TargetRef::Branch { name: branch });
            }
            match RemoteBranch::parse(text, config) {
                Some(remote) => Ok(TargetRef::Remote(remote)),
                None => Err(Error::usage(
                    format!("there is no branch `{text}`"),
                    "`--branch` makes a new one from the result",
                )),
            }
        }
    }
}

/// Makes a task's directory and takes its lock. A collection that comes in between
/// takes the directory for one whose maker died; then it is made again.
fn claim(dir: &TaskDir) -> Result<Lock, Error> {
    loop {
        match std::fs::create_dir(dir.path()) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error).at("make", dir.path());
            }
            _ => {}
        }
        cofferdam_failpoint::hit("task:claim").at("lock", dir.path())?;
        match Lock::try_exclusive(&dir.lock()) {
            Ok(Some(lock)) => return describe(lock),
            Ok(None) => std::thread::yield_now(),
            Err(LockError::Open { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(lock_error(error)),
        }
    }
}

fn lock_error(error: LockError) -> Error {
    Error::Internal(error.to_string())
}

fn try_hold(dir: &TaskDir) -> Result<Option<Lock>, Error> {
    Lock::try_exclusive(&dir.lock()).map_err(lock_error)?.map(describe).transpose()
}

fn describe(lock: Lock) -> Result<Lock, Error> {
    let own = ProcessName::of(std::process::id()).at("read", "/proc")?;
    lock.describe(&serde_json::to_string(&own).expect("a name serialises")).map_err(lock_error)?;
    Ok(lock)
}

/// First arrow: layers, directories, private `.git`, the pin of the base.
fn prepare(job: &mut Job<'_>, refs: Started) -> Result<Context, Error> {
    let begun = Instant::now();
    job.advance(State::Preparing, None)?;
    if job.request.carry_dirty {
        carry_dirty(job)?;
    }
    let pinned = Facts::need("base", job.facts.pinned.as_ref())?.clone();
    let pin = match job.target() {
        TargetRef::Remote(_) => None,
        _ => Some(publish::pin(&job.repo, job.id.as_str(), &pinned)?),
    };
    let tree = Facts::need("base's tree", job.facts.base_tree.as_ref())?.clone();
    let maker = LayerMaker {
        store: &job.store,
        layers: &job.dam.layers,
        owner: job.ids.switch.then_some((job.ids.uid, job.ids.gid)),
    };
    let reporter = job.reporter;
    job.dam.pass_collection()?;
    let stack =
        maker.stack(&tree, None, &mut |done, all| reporter.report(Event::Layer { done, all }))?;
    let warm = stack.warm;
    let read_only = job.request.read_only;
    let context =
        Context::create(job.dam, job.dir.path().to_owned(), stack.clone(), job.ids, read_only)?;
    job.facts.stack = Some(stack);
    let refs = gitdir::listed_refs(refs)?;
    context.write_git(&TaskGit {
        repo: &job.repo,
        config: &job.config,
        branch: &format!("dam/{}", job.name),
        commit: &pinned,
        refs: &refs,
        object_dirs: job.place.objects.len(),
        excludes: &job.excludes,
    })?;
    if matches!(job.target(), TargetRef::Remote(_)) {
        // The remote's tip need not be in the person's repository.
        let have: Vec<&str> = refs.iter().map(|value| value.oid.as_str()).collect();
        context.lend_objects(&job.store, &pinned, &have)?;
    }
    let mut carried = Vec::new();
    for path in &job.request.carry {
        for copied in context.carry(&job.place.top, path)? {
            carried.extend(copied.into_os_string().into_encoded_bytes());
            carried.push(0);
        }
    }
    if !carried.is_empty() {
        std::fs::write(job.dir.carried(), carried).at("write", job.dir.carried())?;
    }
    if let Some(pin) = pin {
        publish::pinned(&job.repo, pin)?;
    }
    job.took("prepared", begun);
    job.reporter.report(Event::Started {
        task: job.id.to_string(),
        name: job.name.to_string(),
        base: pinned.0.short().to_owned(),
        target: job.target().to_string(),
        isolation: isolation(&job.request, job.ids),
        warm,
    });
    Ok(context)
}

/// The uncommitted work of the checkout becomes the base: a commit of ours on
/// the person's. The change set is then what the *task* did, and only that lands.
fn carry_dirty(job: &mut Job<'_>) -> Result<(), Error> {
    let Some(top) = job.repo.worktree.clone() else {
        return Err(Error::usage("a bare repository has no uncommitted work to carry", None));
    };
    let head = job.repo.resolve("HEAD")?;
    let base = Facts::need("base", job.facts.base.as_ref())?.clone();
    if head.as_ref() != Some(&base) {
        return Err(Error::usage(
            "`--carry-dirty` takes the checkout along, but the task starts from another commit",
            None,
        ));
    }
    let index = job.dir.path().join("dirty-index");
    cofferdam_git::copy_index(&job.repo.git_dir.join("index"), &index)?;
    let git = || {
        cofferdam_git::GitCommand::persons(&job.repo.git_dir, None)
            .work_tree(&top)
            .env("GIT_INDEX_FILE", &index)
            .env("GIT_OBJECT_DIRECTORY", job.store.dir().join("objects"))
            .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", &job.repo.objects)
            .setting("core.splitIndex=false")
    };
    git().args(["add", "--all"]).run()?;
    let tree = cofferdam_git::TreeId(git().args(["write-tree"]).oid()?);
    std::fs::remove_file(&index).at("remove", &index)?;
    let mut text = job.commit_text()?;
    text.message = format!("Uncommitted work carried into {}\n", job.name);
    let commit = merge::commit(&job.store, &tree, &base, &text)?;
    let reference = format!("refs/dam/{}-base", job.id);
    job.store.git().args(["update-ref", &reference, commit.as_str()]).run()?;
    job.facts.base = Some(commit);
    job.facts.base_tree = Some(tree);
    Ok(())
}

/// Second arrow: the command, in its context. Whether to go on.
fn run_command(job: &mut Job<'_>, context: &Context, cwd: &Path) -> Result<bool, Error> {
    let begun = Instant::now();
    if job.interrupted() {
        job.end(State::Cancelled, "interrupted before it started")?;
        return Ok(false);
    }
    let cwd = if cwd_exists(job, cwd) { cwd } else { job.place.top.as_path() };
    let told = Told {
        task: job.id.to_string(),
        attempt: 1,
        context: serde_json::json!({
            "version": 1,
            "task": job.id,
            "name": job.name,
            "role": "task",
            "base": job.facts.base,
            "target": job.target().to_string(),
            "level": job.request.level,
            "network": job.request.network,
            "wall": job.request.wall,
            "read_only": job.request.read_only,
            "carried": job.request.carry,
            "timeout_s": job.request.timeout.map(|timeout| timeout.as_secs()),
        }),
    };
    let what = What {
        command: job.request.argv.clone(),
        cwd,
        env: &job.request.env,
        network: job.request.network,
        wall: job.request.wall,
    };
    let spec = context.spec(&job.place, what, &told);
    let boundary = boundary::of_level(job.request.level)?;
    job.advance(State::Running, None)?;
    let timeout = job.request.timeout;
    let log = job.dir.log();
    let plan = Plan { spec: &spec, context: &context.dir, log: &log, timeout };
    let run = beside_a_look(job, || {
        supervise::run(boundary.as_ref(), &plan, &job.control, Some(job.reporter))
    })?;
    job.took("ran", begun);
    if run.left_running > 0 {
        let number = run.left_running;
        let text = format!(
            "{number} process{} left running by the command {} ended",
            if number == 1 { "" } else { "es" },
            if number == 1 { "was" } else { "were" }
        );
        job.reporter.report(Event::Warning { text });
    }
    let failed = |job: &mut Job<'_>, state: State, why: String| {
        job.end(state, &why)?;
        Ok(false)
    };
    match run.ended {
        Ended::Exited { code, signal } => {
            job.facts.exit_code = code;
            job.facts.signal = signal;
            match (code, signal) {
                (Some(0), _) => {
                    job.told("ran", begun, "exit 0".into());
                    Ok(true)
                }
                (Some(code), _) => {
                    failed(job, State::Failed, format!("the command ended with exit code {code}"))
                }
                (None, signal) => {
                    let signal = signal.unwrap_or_default();
                    failed(job, State::Failed, format!("the command was ended by signal {signal}"))
                }
            }
        }
        Ended::NotStarted(errno) => {
            let why = not_started(&job.request, errno);
            failed(job, State::Failed, why)
        }
        Ended::TimedOut => {
            let limit = humantime::format_duration(timeout.unwrap_or_default()).to_string();
            failed(job, State::TimedOut, format!("the command was not done within {limit}"))
        }
        Ended::Interrupted => failed(job, State::Cancelled, "interrupted".into()),
        Ended::Killed => failed(job, State::Failed, "the command was killed from outside".into()),
    }
}

/// Runs `run` and meanwhile looks what of the checkout the task does not see. On
/// a large repository that takes longer than many a task: it ends with `run`, and
/// is not begun for one that is over at once.
fn beside_a_look<T>(job: &Job<'_>, run: impl FnOnce() -> T) -> T {
    if job.repo.worktree.is_none() || job.request.carry_dirty {
        return run();
    }
    let (repo, reporter) = (&job.repo, job.reporter);
    let look = &Mutex::new(Look::default());
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_over.recv_timeout(LOOK_AFTER) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let Some(mut out) = begin_look(repo, look) else { return };
            let mut listed = Vec::new();
            let read = out.read_to_end(&mut listed);
            if read.is_err() || look.lock().expect("look").over {
                return;
            }
            let entries = || listed.split(|byte| *byte == 0).filter(|entry| entry.len() > 3);
            let untracked = entries().filter(|entry| entry.starts_with(b"??")).count() as u64;
            let changed = entries().count() as u64 - untracked;
            if changed + untracked > 0 {
                reporter.report(Event::NotInBase { changed, untracked });
            }
        });
        let done = run();
        let mut look = look.lock().expect("look");
        look.over = true;
        if let Some(child) = &mut look.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        drop(over);
        done
    })
}

/// What the two threads of [`beside_a_look`] share.
#[derive(Default)]
struct Look {
    over: bool,
    child: Option<Child>,
}

fn begin_look(repo: &Repository, look: &Mutex<Look>) -> Option<ChildStdout> {
    let mut look = look.lock().expect("look");
    if look.over {
        return None;
    }
    let git = repo.git().args(["status", "--porcelain", "-z", "--ignore-submodules"]);
    let child = look.child.insert(git.converse().ok()?.child);
    child.stdout.take()
}

/// Whether the caller's directory exists in the base.
fn cwd_exists(job: &Job<'_>, cwd: &Path) -> bool {
    let Ok(below) = cwd.strip_prefix(&job.place.top) else { return false };
    let Some(stack) = &job.facts.stack else { return false };
    below.as_os_str().is_empty()
        || stack.ids.iter().any(|id| job.dam.layers.tree(id).join(below).is_dir())
}

fn not_started(request: &Request, errno: i32) -> String {
    let command =
        request.argv.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let error = std::io::Error::from_raw_os_error(errno);
    if error.kind() != std::io::ErrorKind::NotFound {
        return format!("`{command}` could not be started: {error}");
    }
    let outside = std::env::var_os("PATH")
        .into_iter()
        .flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>())
        .map(|dir| dir.join(&command))
        .find(|file| !command.contains('/') && file.is_file());
    match outside {
        Some(file) => format!(
            "`{command}` was not found inside: `{}` is outside of the system directories that a task sees",
            file.display()
        ),
        None => format!("`{command}` was not found"),
    }
}

/// Third arrow: the change set. Whether there is one to land.
fn harvest(job: &mut Job<'_>, context: &Context) -> Result<bool, Error> {
    let begun = Instant::now();
    job.advance(State::Harvesting, None)?;
    if job.request.read_only {
        job.end(State::Empty, "the task was read-only")?;
        return Ok(false);
    }
    if context.is_untouched() {
        job.took("harvested", begun);
        job.end(State::Empty, "nothing changed")?;
        return Ok(false);
    }
    let rules = Rules {
        excludes: job.excludes.clone(),
        ignore_case: job.config.is_true("core.ignorecase"),
        carried: job.carried()?,
        most_entries: MOST_ENTRIES,
        most_bytes: MOST_BYTES,
    };
    job.facts.message = Some(message(job, context));
    let text = job.commit_text()?;
    let base = Facts::need("base", job.facts.base.as_ref())?.clone();
    let base_tree = Facts::need("base's tree", job.facts.base_tree.as_ref())?.clone();
    let attributes = context.stack.attributes(&job.dam.layers);
    let boundary = boundary::of_level(job.request.level)?;
    let mut changes = boundary.changes(context, &rules)?;
    let collected = collect(
        &job.store,
        &job.config,
        (&base, &base_tree),
        &attributes,
        &text,
        job.id.as_str(),
        changes.frames(),
    );
    let ended = changes.end();
    let collected = match (collected, ended) {
        // What the helper itself says explains a cut-off stream. Any other error is
        // why it found nobody who listens.
        (Err(GitError::Refused(Refusal::Helper(_))), Err(helper)) => return Err(helper),
        (collected, ended) => {
            let collected = collected?;
            ended?;
            collected
        }
    };
    job.took("harvested", begun);
    let Some(changes) = collected else {
        job.end(State::Empty, "nothing changed")?;
        return Ok(false);
    };
    for what in &changes.left_out {
        job.reporter.report(Event::Warning { text: format!("left out of the change set: {what}") });
    }
    job.facts.set_change(changes);
    job.note()?;
    let ChangeCounts { added, modified, deleted } = job.facts.counts.unwrap_or_default();
    let text = format!("{added} added, {modified} changed, {deleted} deleted");
    job.told("harvested", begun, text);
    Ok(true)
}

/// The commit message: asked for, said by the task, of its last own commit, or
/// made from name and command; with the trailer that names the task.
fn message(job: &Job<'_>, context: &Context) -> String {
    let text = job
        .request
        .message
        .clone()
        .or_else(|| context.message())
        .or_else(|| context.last_subject())
        .unwrap_or_else(|| format!("{}: {}", job.name, job.request.command()));
    let clean: String = text.chars().filter(|c| *c != '\0').collect();
    format!("{}\n\nDam-Task: {} {}\n", clean.trim_end(), job.id, job.name)
}

impl Job<'_> {
    pub(crate) fn target(&self) -> &TargetRef {
        self.facts.target.as_ref().expect("every job has a target")
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

    /// Writes down the evidence, from the record.
    pub(crate) fn write_receipt(&self) -> Result<Task, Error> {
        let task = self.record()?;
        let path = self.dir.receipt();
        let text = serde_json::to_vec_pretty(&Receipt::of(&task)?).expect("a receipt serialises");
        cofferdam_tree::write_atomic(&path, &text, 0o600).at("write", &path)?;
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

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

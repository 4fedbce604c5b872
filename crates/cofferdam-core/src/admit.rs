//! Admission: a request is understood, its target known, its name reserved.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use cofferdam_git::remote::RemoteBranch;
use cofferdam_git::{Discovered, FoundIn, Objects, Oid, PersonConfig, Repository, gitdir};
use cofferdam_ledger::{Claim, NewTask, Task, TaskId, TaskName};
use cofferdam_sandbox::process::boot_id;
use cofferdam_sandbox::{Ids, Network, Wall, landlock_abi, refuse_delegated};
use cofferdam_tree::Lock;

use crate::boundary::Boundary;
use crate::config::{Asks, Config, FILE, expanded};
use crate::context::Place;
use crate::control::Control;
use crate::error::IoContext;
use crate::facts::Facts;
use crate::input::Input;
use crate::job::{Job, claim};
use crate::limits::{LANDLOCK, tighter};
use crate::repo::{Begun, Repo};
use crate::report::{Event, Reporter};
use crate::request::{Into, Request};
use crate::source::Source;
use crate::supervise::LOG_CAP;
use crate::target::TargetRef;
use crate::{Dam, Error, TaskDir, boundary, land, trust};

/// What came of an admission.
pub(crate) enum Admitted<'a, S: Source> {
    /// The job, and what was begun for it.
    Own(Box<Job<'a, S>>, S::Begun),
    /// Another task is first for the request's key.
    Earlier(Box<Task>),
}

/// Admission: the request is understood, the target known, the name reserved.
pub(crate) fn admit<'a>(
    dam: &'a mut Dam,
    dir: &Path,
    mut found: Discovered,
    mut request: Request,
    control: Control,
    reporter: &'a dyn Reporter,
) -> Result<Admitted<'a, Repo>, Error> {
    refuse_another(&found.repo, dir)?;
    let config = std::mem::take(&mut found.config);
    need_identity(&config)?;
    let refs = gitdir::list_refs(&found.repo)?;
    let store = dam.store(&found.repo, &config)?;
    let head = match &request.base {
        None => Some(found.commit.clone()),
        Some(_) => found.repo.resolve("HEAD")?,
    };
    let mut unconfirmed = false;
    let at_head = match (&head, found.at_head.take()) {
        // HEAD can have moved between two answers.
        (Some(head), Some(at_head)) if at_head.tree == found.tree => {
            unconfirmed = at_head.unconfirmed;
            Some(Config::of(head, at_head.file)?.joined(&dam.own))
        }
        (head, _) => match head {
            Some(head) => Some(Config::at(&mut Objects::start(&store)?, head)?.joined(&dam.own)),
            None => None,
        },
    };
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
            let why = match &error {
                Error::Git(git) if git.is_of_this_machine() => return error,
                Error::Git(git) => git.in_words(),
                other => land::chain(other),
            };
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
        _ => Config::at(&mut Objects::start(&store)?, &tip)?.joined(&dam.own),
    };
    let confirm = found.branch.take_if(|_| unconfirmed && head.as_ref() == Some(&tip));
    if let Some(level) = asked.level.filter(|level| *level > request.level) {
        let message = format!("`cofferdam.toml` asks for level `{level}` at least");
        return Err(Error::usage(message, None));
    }
    limit(dam, &mut request, &asked);
    request.lessons = request.lessons.or_else(|| asked.lessons.clone());
    let top = found.repo.worktree.as_deref().unwrap_or(&found.repo.common_dir);
    give(&dam.own.asks, &mut request, top, reporter)?;
    if trust::is_trusted(&found.repo, &asked.asks)? {
        give(&asked.asks, &mut request, top, reporter)?;
    } else {
        reporter.report(Event::Warning { text: not_given(&asked.asks, &request.into) });
    }
    if request.network_is_default && (asked.offline || dam.own.offline) {
        request.network = Network::None;
    }
    let boundary = boundary::of_level(request.level);
    can_stand(boundary, &request)?;
    // The base is the target's tip, which need not be what is checked out.
    if request.base.is_none() && tip != found.commit {
        found.tree = store.tree_of(&tip)?;
        found.commit.clone_from(&tip);
    }
    refuse_replaced(&found.repo, &config, &[&tip.0, &found.commit.0, &found.tree.0])?;
    let owner_of = found.repo.worktree.clone().unwrap_or_else(|| found.repo.common_dir.clone());
    let ids = ids_of(&owner_of, &request)?;
    let modules = dam.modules(&found.repo, &store, &found.tree)?;
    let place = Place::new(dam, &found.repo, &config, &store, modules, ids)?;
    let excludes = gitdir::excludes(&found.repo, &config)?;
    let cwd = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let cwd = if cwd.starts_with(&place.top) { cwd } else { place.top.clone() };
    for path in &request.carry {
        check_carried(top, path)?;
    }
    for input in &request.inputs {
        place.check_input(input)?;
    }

    let facts = Facts {
        repo_dir: Some(place.top.clone()),
        target: Some(target),
        base: Some(found.commit.clone()),
        base_tree: Some(found.tree.clone()),
        pinned: Some(found.commit.clone()),
        ids: Some(ids),
        cwd: Some(cwd),
        boot: Some(boot_id().at("read", "/proc")?),
        isolation: Some(boundary.isolation(&request, &place)),
        ..Facts::default()
    };
    let source = Repo { repo: found.repo, config, store, excludes, pin: None };
    let key = source.repo.key();
    Ok(match reserve(dam, request, (id, name), facts, &key)? {
        Reserved::Earlier(task) => Admitted::Earlier(task),
        Reserved::Own(own) => {
            let begun = Begun { refs, confirm };
            Admitted::Own(Box::new(own.into_job(dam, source, place, control, reporter)), begun)
        }
    })
}

/// What came of a reservation.
pub(crate) enum Reserved {
    /// A task of the caller's.
    Own(Box<Own>),
    /// Another task is first for the request's key.
    Earlier(Box<Task>),
}

/// A task that was just recorded, and its lock.
pub(crate) struct Own {
    request: Request,
    task: Task,
    facts: Facts,
    dir: TaskDir,
    lock: Lock,
}

impl Own {
    pub(crate) fn into_job<'a, S>(
        self,
        dam: &'a mut Dam,
        source: S,
        place: Place,
        control: Control,
        reporter: &'a dyn Reporter,
    ) -> Job<'a, S> {
        Job {
            dam,
            source,
            ids: place.person.ids,
            place,
            request: self.request,
            id: self.task.id,
            name: self.task.name,
            dir: self.dir,
            state: self.task.state,
            facts: self.facts,
            reporter,
            control,
            lock: self.lock,
        }
    }
}

/// Makes a task's directory and records the task, once for its key.
pub(crate) fn reserve(
    dam: &mut Dam,
    request: Request,
    (id, name): (TaskId, TaskName),
    facts: Facts,
    repo: &str,
) -> Result<Reserved, Error> {
    let task_dir = dam.task_dir(&id);
    let lock = claim(&task_dir)?;
    let new = NewTask {
        id,
        name,
        repo: repo.to_owned(),
        series: request.series.as_ref().map(|series| series.name.to_string()),
        spec: serde_json::to_value(&request).expect("a request serialises"),
        facts: facts.to_value(),
    };
    let created = match &request.key {
        Some(key) => dam.ledger.create_task_once(new, key.as_ledger()),
        None => dam.ledger.create_task(new).map(Claim::Own),
    };
    let task = match created {
        Ok(Claim::Own(task)) => task,
        not_ours => {
            drop(lock);
            std::fs::remove_dir_all(task_dir.path()).at("remove", task_dir.path())?;
            return match not_ours? {
                Claim::Own(task) | Claim::Earlier(task) => Ok(Reserved::Earlier(Box::new(task))),
            };
        }
    };
    Ok(Reserved::Own(Box::new(Own { request, task, facts, dir: task_dir, lock })))
}

/// Refuses what a request wants and its boundary, or the second wall, can't keep.
pub(crate) fn can_stand(boundary: &dyn Boundary, request: &Request) -> Result<(), Error> {
    boundary.admit(request)?;
    if request.require.iter().any(|wanted| wanted == LANDLOCK)
        && (landlock_abi() == 0 || request.wall == Wall::Nested)
    {
        return Err(Error::NoLandlock);
    }
    Ok(())
}

/// As whom a task runs that is about what lies at a path.
pub(crate) fn ids_of(path: &Path, request: &Request) -> Result<Ids, Error> {
    let ids = Ids::for_task(path).at("look at", path)?;
    if request.wall == Wall::Nested {
        refuse_delegated(ids).map_err(Error::Isolation)?;
    }
    Ok(ids)
}

/// Gives a request the limits that hold for it, where `asked` is what its repository says.
pub(crate) fn limit(dam: &Dam, request: &mut Request, asked: &Config) {
    request.timeout = request.timeout.or(asked.timeout);
    let usual = boundary::of_level(request.level).limits();
    let usual = request.limits.or(dam.own.limits).or(usual);
    request.limits = tighter(usual, asked.limits);
    let usual = request.output.or(dam.own.output).unwrap_or(LOG_CAP);
    request.output = Some(asked.output.map_or(usual, |output| output.min(usual)));
}

/// What a repository asks for and does not get, in words.
fn not_given(asks: &Asks, into: &Into) -> String {
    const SHOWN: usize = 5;
    let lines = asks.lines();
    let mut what = lines.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if lines.len() > SHOWN {
        what.push_str(&format!(" and {} more", lines.len() - SHOWN));
    }
    let into = match into {
        Into::Named(into) => format!(" --into {into}"),
        Into::Current | Into::NewBranch => String::new(),
    };
    format!("`{FILE}` asks for {what}, which is not given; `dam trust{into}` shows and allows it")
}

/// Gives a task what a configuration asks for, as far as there is any; what the command
/// line says about the same comes first.
pub(crate) fn give(
    asks: &Asks,
    request: &mut Request,
    top: &Path,
    reporter: &dyn Reporter,
) -> Result<(), Error> {
    for text in &asks.inputs {
        let path = expanded(text).unwrap_or_default();
        let input = Input::parse(&path, Path::new("/"), "task.inputs", None)?;
        if request.inputs.iter().all(|known| known.dest != input.dest) {
            request.inputs.push(input);
        }
    }
    for path in asks.carry.iter().map(PathBuf::from) {
        if top.join(&path).symlink_metadata().is_err() {
            let text = format!("`task.carry`: there is no `{}` to be carried", path.display());
            reporter.report(Event::Warning { text });
        } else if !request.carry.contains(&path) {
            request.carry.push(path);
        }
    }
    for name in &asks.env {
        if let Some(value) = std::env::var_os(name)
            && !request.env_names.contains(name)
        {
            request.env_names.push(name.clone());
            request.env.push((name.into(), value));
        }
    }
    if asks.network && request.network_is_default {
        request.network = Network::Open;
    }
    Ok(())
}

/// Refuses where git would work on another repository than the one that `dir` is in.
/// Nothing else that git's variables say is followed, so nobody is to think that this is.
pub(crate) fn refuse_another(repo: &Repository, dir: &Path) -> Result<(), Error> {
    let Some((name, named)) = repo.named_otherwise(dir) else { return Ok(()) };
    let here = repo.worktree.as_ref().unwrap_or(&repo.git_dir);
    Err(Error::Usage {
        message: format!(
            "`{name}` names `{}`, but the repository here is `{}`",
            named.display(),
            here.display()
        ),
        hint: Some(format!(
            "`dam` works on the repository that it is started in: change there, or unset `{name}`"
        )),
    })
}

/// Refuses where the person's git shows something else than what is there: a checkout
/// that follows would undo it, or be undone by it.
pub(crate) fn refuse_replaced(
    repo: &Repository,
    config: &PersonConfig,
    objects: &[&Oid],
) -> Result<(), Error> {
    let Some(oid) = repo.replaced(config, objects)? else { return Ok(()) };
    Err(Error::Usage {
        message: format!(
            "`refs/replace/{oid}` lets your git show another object in the place of `{oid}`, and \
             `dam` does not follow that"
        ),
        hint: Some(format!("`git replace -d {oid}` ends that; look at `git status` then")),
    })
}

/// Refuses where git does not know who commits, before anything runs.
pub(crate) fn need_identity(config: &PersonConfig) -> Result<(), Error> {
    if config.identity().is_some() {
        return Ok(());
    }
    Err(Error::usage(
        "git does not know who you are, and what lands is a commit of yours",
        "`git config --global user.name NAME` and `git config --global user.email ADDRESS`",
    ))
}

pub(crate) fn fresh_id() -> Result<TaskId, Error> {
    const ALPHABET: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut bytes = [0u8; 8];
    getrandom::fill(&mut bytes).map_err(|error| Error::Internal(error.to_string()))?;
    let text: String = bytes
        .iter()
        .map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]))
        .collect();
    TaskId::parse(&text).map_err(|error| Error::Internal(error.to_string()))
}

pub(crate) fn default_name(request: &Request, id: &TaskId) -> TaskName {
    let program = request.argv.first().map(OsStr::new).unwrap_or_default();
    let stem = match &request.series {
        Some(series) => series.name.to_string(),
        None => Path::new(program).file_stem().unwrap_or(program).to_string_lossy().into_owned(),
    };
    let short: String = stem.chars().take(24).collect();
    TaskName::from_words(&format!("{short}-{}", &id.as_str()[..4]))
}

fn check_carried(top: &Path, path: &Path) -> Result<(), Error> {
    use std::path::Component;
    let refuse = |why: &str| {
        Err(Error::usage(format!("`{}` can't be carried: {why}", path.display()), None))
    };
    let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !inside || path.as_os_str().is_empty() || path.components().any(is_git_dir) {
        return refuse("it is not a path inside the repository");
    }
    let mut above = path.ancestors().skip(1).map(|dir| top.join(dir));
    if above.any(|dir| dir.symlink_metadata().is_ok_and(|meta| !meta.is_dir())) {
        return refuse("a link leads there");
    }
    Ok(())
}

/// Whether this is what git has for itself.
pub(crate) fn is_git_dir(part: std::path::Component<'_>) -> bool {
    part.as_os_str().eq_ignore_ascii_case(".git")
}

fn target(
    request: &Request,
    found: &Discovered,
    config: &PersonConfig,
    name: &TaskName,
) -> Result<TargetRef, Error> {
    match &request.into {
        Into::NewBranch => {
            let branch = format!("refs/heads/dam/{name}");
            let valid =
                !branch.contains("..") && !branch.ends_with('.') && !branch.ends_with(".lock");
            if !valid {
                return Err(Error::usage(
                    format!("`dam/{name}` is no name for a branch"),
                    "give another `--name`",
                ));
            }
            match found.repo.in_the_way_of(&branch)? {
                None => Ok(TargetRef::NewBranch { name: branch }),
                Some(other) => Err(Error::Usage {
                    message: format!(
                        "there can't be a branch `dam/{name}`: the branch `{other}` is in the way"
                    ),
                    hint: Some(format!(
                        "`git branch -m {other} OTHER` gives that one another name; `--into \
                         BRANCH` lands on a branch that exists"
                    )),
                }),
            }
        }
        Into::Current if found.repo.worktree.is_none() => Err(Error::usage(
            match &found.repo.found_in {
                FoundIn::Worktree | FoundIn::Bare => {
                    "this is a bare repository, nothing is checked out to land on".to_owned()
                }
                FoundIn::GitDir => format!(
                    "this is inside of the git directory `{}`, and not in a worktree",
                    found.repo.git_dir.display()
                ),
                FoundIn::Outside(worktree) => format!(
                    "the worktree of this repository is `{}` (`core.worktree`), and this is \
                     outside of it",
                    worktree.display()
                ),
            },
            match found.repo.found_in {
                FoundIn::Worktree | FoundIn::Bare => {
                    "`--into BRANCH` names the branch, `--branch` makes a new one"
                }
                FoundIn::GitDir | FoundIn::Outside(_) => {
                    "change into the worktree; or `--into BRANCH` names the branch, `--branch` \
                     makes a new one"
                }
            },
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
            // Checkouts and other landings have to be found by the ref that moves.
            let behind = found.repo.ref_behind(&branch)?;
            let is_symbolic = behind != branch;
            let target = TargetRef::Branch { name: behind.clone() };
            if is_symbolic && !behind.starts_with("refs/heads/") {
                return Err(Error::usage(
                    format!("`{text}` stands for `{behind}`, which is no branch"),
                    "`--into BRANCH` names another branch",
                ));
            }
            if found.repo.resolve(&behind)?.is_some() {
                return Ok(target);
            }
            if is_symbolic {
                return Err(Error::usage(
                    format!("`{text}` stands for the branch `{target}`, which does not exist"),
                    "`--into BRANCH` names another branch; `git symbolic-ref` shows and changes \
                     what one stands for",
                ));
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

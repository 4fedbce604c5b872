//! The source `repo`: a commit of a repository.
//!
//! A context shows the files of the commit and has a private `.git`; the result is a
//! change set, which becomes a commit on the target's tip.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Mutex;

use cofferdam_git::gitdir::{self, RefValue, TaskGit};
use cofferdam_git::harvest::{CommitText, Rules};
use cofferdam_git::layer::{LayerMaker, LayerStack};
use cofferdam_git::modules::Module;
use cofferdam_git::publish::{Pin, Unpin};
use cofferdam_git::{CommitId, GitError, Objects, PersonConfig, Repository, Started, Store, merge};
use cofferdam_ledger::{Publication, State};
use cofferdam_sandbox::Ids;

use crate::admit::need_identity;
use crate::context::{Context, Place};
use crate::error::IoContext;
use crate::facts::{ChangeCounts, Facts};
use crate::gate::Candidate;
use crate::job::Job;
use crate::lessons::Lessons;
use crate::look::beside_a_look;
use crate::report::{Event, Meter};
use crate::source::{Prepared, Source, TakenOut};
use crate::target::TargetRef;
use crate::{Dam, Error, boundary, config, harvest, land, lessons};

/// So many packs of a store become one while a person waits.
const PACKS: usize = 64;

/// What was begun for a task before it has a record.
pub struct Begun {
    /// The refs that it will see.
    pub(crate) refs: Started,
    /// The branch that has to be where it was for what was read at HEAD to be true.
    pub(crate) confirm: Option<String>,
}

/// A repository that a task's files come from.
pub struct Repo {
    pub(crate) repo: Repository,
    pub(crate) config: PersonConfig,
    pub(crate) store: Store,
    pub(crate) excludes: Vec<u8>,
    /// The git that has set the pin and can remove it.
    pub(crate) pin: Option<Pin>,
}

/// Caps of a harvest.
const MOST_ENTRIES: u64 = 2_000_000;
const MOST_BYTES: u64 = 64 << 30;

impl Source for Repo {
    type Candidate = Candidate;
    type Begun = Begun;

    fn prepare(job: &mut Job<'_>, begun: Begun) -> Result<Prepared, Error> {
        prepare(job, begun)
    }

    fn reopen(dam: &Dam, facts: &Facts, ids: Ids) -> Result<(Repo, Place), Error> {
        let repo = Repository::find(Facts::need("repository", facts.repo_dir.as_ref())?)?;
        let config = PersonConfig::read(&repo)?;
        let store = dam.store(&repo, &config)?;
        let modules = match &facts.base_tree {
            Some(tree) => dam.modules(&repo, &store, tree)?,
            None => Vec::new(),
        };
        let place = Place::new(dam, &repo, &config, &store, modules, ids)?;
        let excludes = gitdir::excludes(&repo, &config)?;
        Ok((Repo { repo, config, store, excludes, pin: None }, place))
    }

    fn can_land(&self) -> Result<(), Error> {
        need_identity(&self.config)
    }

    fn still_there(job: &Job<'_>) -> Result<(), Error> {
        if !job.source.repo.git_dir.is_dir() {
            return Err(GitError::Gone(job.place.top.clone()).into());
        }
        if job.dir.lock().symlink_metadata().is_err() && job.pinned().is_some() {
            // Nobody will know that it is there.
            let unpin = Unpin::start(&job.source.repo, job.id.as_str());
            let _ = unpin.and_then(|unpin| unpin.done(&job.source.repo));
        }
        Ok(())
    }

    /// The base stays; the target's tip is looked at when it lands.
    fn renew(_: &mut Job<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn beside<T>(job: &mut Job<'_>, run: impl FnOnce(&Job<'_>) -> T) -> T {
        let pin = Mutex::new(job.source.pin.take());
        let done = beside_a_look(job, &pin, || run(job));
        job.source.pin = pin.into_inner().expect("pin");
        done
    }

    fn take_out(job: &mut Job<'_>, context: &Context) -> Result<TakenOut, Error> {
        let has_lessons = match lessons::take(job, context)? {
            Lessons::None => false,
            Lessons::Some => true,
            Lessons::Wrong(why) => return Ok(TakenOut::End(State::Failed, why)),
        };
        let untouched = boundary::of_level(job.request.level).is_untouched(context);
        if untouched && !has_lessons {
            return Ok(TakenOut::End(State::Empty, "nothing changed".into()));
        }
        job.facts.message = Some(message(job, context));
        let text = job.commit_text()?;
        let collected = harvest::take(job, context, &text)?;
        job.tell_left_out(collected.left_out);
        let Some(changes) = collected.change else {
            if has_lessons && !collected.aside {
                // Nothing but what was learned: that is added when it lands.
                let base = Facts::need("base", job.facts.base.as_ref())?;
                let tree = Facts::need("base's tree", job.facts.base_tree.as_ref())?;
                let commit = merge::commit(&job.source.store, tree, base, &text)?;
                let reference = format!("refs/dam/{}", job.id);
                job.source.store.git().args(["update-ref", &reference, commit.as_str()]).run()?;
                (job.facts.change, job.facts.change_tree) = (Some(commit), Some(tree.clone()));
                return Ok(TakenOut::Result);
            }
            return Ok(if collected.aside {
                let why = "nothing changed on disk, but its git has work that is not there: ";
                TakenOut::End(State::Failed, format!("{why}{}", job.facts.left_out.join("; ")))
            } else {
                TakenOut::End(State::Empty, "nothing changed".into())
            });
        };
        job.facts.set_change(changes);
        Ok(TakenOut::Result)
    }

    fn in_words(job: &Job<'_>) -> String {
        let ChangeCounts { added, modified, deleted } = job.facts.counts.unwrap_or_default();
        format!("{added} added, {modified} changed, {deleted} deleted")
    }

    fn result(job: &mut Job<'_>, context: &Context) -> Result<bool, Error> {
        if job.facts.message.is_none() {
            job.facts.message = Some(message(job, context));
        }
        let text = job.commit_text()?;
        let collected = harvest::take(job, context, &text)?;
        job.facts.left_out = collected.left_out;
        let Some(change) = collected.change else { return Ok(false) };
        job.facts.set_change(change);
        Ok(true)
    }

    fn land(job: &mut Job<'_>, publish: bool) -> Result<(), Error> {
        land::land(job, publish)
    }

    fn recover(job: &mut Job<'_>, publication: Option<Publication>) -> Result<(), Error> {
        const WHY: &str = "its supervisor died before anything was published";
        let Some(publication) = publication else {
            let Repo { repo, store, .. } = &job.source;
            job.target().open(repo, store).unstage(job.id.as_str())?;
            return job.end(State::Ready, WHY);
        };
        land::finish(job, &publication, WHY)
    }

    fn save(job: &mut Job<'_>) -> Result<(), Error> {
        if job.facts.change.is_none() && !harvest_again(job)? {
            return Ok(());
        }
        let path = job.dir.path().join("saved.bundle");
        let pinned = Facts::need("base", job.facts.pinned.as_ref())?;
        job.source
            .store
            .git()
            .args(["bundle", "create", "--quiet"])
            .args([path.as_os_str()])
            .args([format!("refs/dam/{}", job.id), format!("^{pinned}")])
            .run()?;
        let file = std::fs::File::open(&path).at("open", &path)?;
        file.sync_all().at("sync", &path)?;
        cofferdam_tree::fsync_dir(job.dir.path()).at("sync", job.dir.path())
    }

    fn release(job: &mut Job<'_>, meanwhile: &mut dyn FnMut(&Dam)) -> Result<(), Error> {
        let is_pinned = job.pinned().is_some() && !matches!(job.target(), TargetRef::Remote(_));
        let unpin = match job.source.pin.take() {
            Some(pin) => Some(pin.remove(&job.source.repo)?),
            None if is_pinned => Some(Unpin::start(&job.source.repo, job.id.as_str())?),
            None => None,
        };
        meanwhile(job.dam);
        if let Some(unpin) = unpin {
            unpin.done(&job.source.repo)?;
        }
        if job.facts.change.is_some() || job.request.carry_dirty {
            let input = format!("delete refs/dam/{0}\0\0delete refs/dam/{0}-base\0\0", job.id);
            // Either may be missing; one that stays is collected by gc.
            let git = job.source.store.git().args(["update-ref", "--stdin", "-z"]);
            git.input(input).finish()?;
            // Where no task is long enough for this to be done beside it. Packs that stay
            // cost time and nothing else.
            let _ = job.source.store.gather_packs(PACKS);
        }
        Ok(())
    }

    fn check_context(job: &Job<'_>, candidate: &Candidate, dir: PathBuf) -> Result<Context, Error> {
        let boundary = boundary::of_level(job.request.level);
        let Repo { repo, store, .. } = &job.source;
        let refs = gitdir::list_refs(repo)?;
        let base = job.stack()?.clone();
        let modules = job.dam.modules(repo, store, &candidate.tree)?;
        let maker = job.maker(&modules);
        job.dam.pass_collection()?;
        let mut meter = Meter::begin(job.reporter, "making the files of the check");
        let mut progress = |done, all| meter.at(done, all);
        let stack = boundary.layers(&maker, &candidate.tree, Some(&base), &mut progress)?;
        let homes = boundary.homes(&job.place);
        let context = Context::create(job.dam, dir, stack.lower(), job.ids, false, homes)?;
        boundary.fill(&maker, &context, &candidate.tree, &mut progress)?;
        let refs = gitdir::listed_refs(refs)?;
        let have: Vec<&str> = refs.iter().map(|value| value.oid.as_str()).collect();
        job.write_git(&context, &candidate.commit, &refs, &modules)?;
        context.lend_objects(store, &candidate.commit, &have)?;
        Ok(context)
    }

    fn tree(candidate: &Candidate) -> String {
        candidate.tree.to_string()
    }

    fn base(candidate: &Candidate) -> Option<String> {
        Some(candidate.tip.to_string())
    }

    /// HEAD is the candidate's commit, so what that says counts (its time aside), and so
    /// does the tip it lies on.
    fn seen(
        job: &Job<'_>,
        candidate: &Candidate,
        alone: bool,
    ) -> Result<Vec<(&'static str, serde_json::Value)>, Error> {
        let said = if alone {
            Vec::new()
        } else {
            let text = job.commit_text()?;
            vec![text.name, text.mail, text.message]
        };
        Ok(vec![
            ("tree", candidate.tree.to_string().into()),
            ("tip", candidate.tip.to_string().into()),
            ("commit", said.into()),
        ])
    }

    fn without(job: &Job<'_>, candidate: &Candidate) -> Result<Option<Candidate>, Error> {
        let tip = candidate.tip.clone();
        let tree = job.source.store.tree_of(&tip)?;
        Ok(Some(Candidate { commit: tip.clone(), tip, tree }))
    }
}

/// What only a task in a repository has.
impl Job<'_, Repo> {
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

    /// What decides about what is taken out of its context.
    pub(crate) fn rules(&self) -> Result<Rules, Error> {
        Ok(Rules {
            excludes: self.source.excludes.clone(),
            ignore_case: self.source.config.is_true("core.ignorecase"),
            ignore_modes: self.source.config.ignores_modes(),
            began_at: [&self.facts.base, &self.facts.pinned]
                .into_iter()
                .flatten()
                .cloned()
                .collect(),
            carried: self.carried()?,
            modules: self.place.modules.iter().map(|module| module.path.clone()).collect(),
            format: self.source.repo.format,
            most_entries: MOST_ENTRIES,
            most_bytes: MOST_BYTES,
        })
    }

    /// Makes layers for it.
    pub(crate) fn maker<'m>(&'m self, modules: &'m [Module]) -> LayerMaker<'m> {
        LayerMaker {
            store: &self.source.store,
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
            repo: &self.source.repo,
            config: &self.source.config,
            branch: Some(&branch),
            commit,
            refs,
            object_dirs: &object_dirs,
            excludes: &self.source.excludes,
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

    /// Who commits and what the commit says.
    pub(crate) fn commit_text(&self) -> Result<CommitText, Error> {
        let (name, mail) = self
            .source
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

/// Layers, directories, private `.git`, the pin of the base.
fn prepare(job: &mut Job<'_>, begun: Begun) -> Result<Prepared, Error> {
    if job.request.carry_dirty {
        carry_dirty(job)?;
    }
    let pinned = Facts::need("base", job.facts.pinned.as_ref())?.clone();
    if !matches!(job.target(), TargetRef::Remote(_)) {
        job.source.pin = Some(Pin::start(&job.source.repo, job.id.as_str(), &pinned)?);
    }
    let tree = Facts::need("base's tree", job.facts.base_tree.as_ref())?.clone();
    let maker = job.maker(&job.place.modules);
    let reporter = job.reporter;
    job.dam.pass_collection()?;
    let boundary = boundary::of_level(job.request.level);
    let mut progress = |done, all| reporter.report(Event::Layer { done, all });
    let stack = boundary.layers(&maker, &tree, None, &mut progress)?;
    let warm = stack.warm;
    let read_only = job.request.read_only;
    let context = Context::create(
        job.dam,
        job.dir.path().to_owned(),
        stack.lower(),
        job.ids,
        read_only,
        boundary.homes(&job.place),
    )?;
    boundary.fill(&maker, &context, &tree, &mut progress)?;
    job.facts.stack = Some(stack);
    let refs = gitdir::listed_refs(begun.refs)?;
    if let Some(branch) = &begun.confirm {
        confirm_no_config(job, branch, &refs)?;
    }
    job.write_git(&context, &pinned, &refs, &job.place.modules)?;
    if matches!(job.target(), TargetRef::Remote(_)) {
        // The remote's tip need not be in the person's repository.
        let have: Vec<&str> = refs.iter().map(|value| value.oid.as_str()).collect();
        context.lend_objects(&job.source.store, &pinned, &have)?;
    }
    if job.request.carry_dirty {
        // The index names them.
        let base = Facts::need("base", job.facts.base.as_ref())?;
        context.lend_objects(&job.source.store, base, &[pinned.as_str()])?;
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
    if let Some(pin) = &mut job.source.pin {
        pin.set(&job.source.repo)?;
    }
    Ok(Prepared { context, base: pinned.0.short().to_owned(), warm })
}

/// Makes sure that the base asks for nothing: that it has no configuration was said of
/// HEAD's branch, which can have moved between what its commit is and that.
fn confirm_no_config(job: &Job<'_>, branch: &str, refs: &[RefValue]) -> Result<(), Error> {
    let base = Facts::need("base", job.facts.base.as_ref())?;
    let stays = refs.iter().any(|value| value.name == branch && value.oid == base.0.as_str());
    if stays {
        return Ok(());
    }
    let mut objects = Objects::start(&job.source.store)?;
    let tree = objects.tree_of(base)?;
    if objects.top_file(&tree, config::FILE)?.is_none() {
        return Ok(());
    }
    Err(Error::usage(format!("`{branch}` moved while the task was begun"), "run it again"))
}

/// The uncommitted work of the checkout becomes the base: a commit of ours on
/// the person's. The change set is then what the *task* did, and only that lands.
fn carry_dirty(job: &mut Job<'_>) -> Result<(), Error> {
    let Some(top) = job.source.repo.worktree.clone() else {
        return Err(Error::usage("a bare repository has no uncommitted work to carry", None));
    };
    let head = job.source.repo.resolve("HEAD")?;
    let base = Facts::need("base", job.facts.base.as_ref())?.clone();
    if head.as_ref() != Some(&base) {
        return Err(Error::usage(
            "`--carry-dirty` takes the checkout along, but the task starts from another commit",
            None,
        ));
    }
    let index = job.dir.path().join("dirty-index");
    cofferdam_git::copy_index(&job.source.repo.git_dir.join("index"), &index)?;
    // `git add` cleans what Git LFS keeps; the person's storage is not for us to fill.
    let mut lfs_storage = OsString::from("lfs.storage=");
    lfs_storage.push(job.source.store.lfs.own());
    let git = || {
        cofferdam_git::GitCommand::persons(&job.source.repo.git_dir, None)
            .work_tree(&top)
            .env("GIT_INDEX_FILE", &index)
            .env("GIT_OBJECT_DIRECTORY", job.source.store.dir().join("objects"))
            .env(
                "GIT_ALTERNATE_OBJECT_DIRECTORIES",
                cofferdam_git::alternates::variable(&job.source.repo.objects),
            )
            .setting("core.splitIndex=false")
            .setting(lfs_storage.clone())
    };
    let added = git().args(["add", "--all"]).run();
    added.map_err(|error| not_carried(error.into()))?;
    let tree = cofferdam_git::TreeId(git().args(["write-tree"]).oid()?);
    std::fs::remove_file(&index).at("remove", &index)?;
    let mut text = job.commit_text()?;
    text.message = format!("Uncommitted work carried into {}\n", job.name);
    let commit = merge::commit(&job.source.store, &tree, &base, &text)?;
    let reference = format!("refs/dam/{}-base", job.id);
    job.source.store.git().args(["update-ref", &reference, commit.as_str()]).run()?;
    job.facts.base = Some(commit);
    job.facts.base_tree = Some(tree);
    Ok(())
}

/// Names the file that `git add` could not read; anything else is what it was.
fn not_carried(error: Error) -> Error {
    let Error::Git(GitError::Failed { stderr, .. }) = &error else { return error };
    let unread = stderr.lines().find_map(|line| {
        line.strip_prefix("error: open(\"")?.strip_suffix("\"): Permission denied")
    });
    let Some(path) = unread else { return error };
    Error::usage(
        format!("`{path}` can't be read by you, so `--carry-dirty` can't take it along"),
        "make it readable, or ignore it: `.git/info/exclude` is for you alone",
    )
}

/// The commit message: asked for, said by the task, of its last own commit, or
/// made from name and command; with the trailer that names the task.
pub(crate) fn message(job: &Job<'_>, context: &Context) -> String {
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
/// Reads the change set of a context whose command failed; whether there is one.
///
/// # Errors
/// When it can't be read: from an earlier boot, or refused by name.
pub(crate) fn harvest_again(job: &mut Job<'_>) -> Result<bool, Error> {
    let Some(context) = job.context()? else { return Ok(false) };
    let mut text = job.commit_text()?;
    text.message = format!("{}: unfinished work\n\nDam-Task: {} {0}\n", job.name, job.id);
    let collected = harvest::take(job, &context, &text)?;
    job.facts.left_out = collected.left_out;
    let Some(changes) = collected.change else { return Ok(false) };
    job.facts.set_change(changes);
    Ok(true)
}

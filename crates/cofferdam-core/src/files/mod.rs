//! Tasks that work on files instead of a repository.
//!
//! A context begins empty, but for its inputs, at a place of its own
//! ([`FILES_INSIDE`](crate::context::FILES_INSIDE)). What the command is to make is
//! declared, and nothing else comes out: each [`Output`] is copied by us into the task's
//! directory, where the command can't write, judged there, and published over the file
//! that it stands for.
//!
//! Why not through git: see `docs/design/files.md`.

mod admit;
pub(crate) mod changes;
mod command;
mod patch;
mod place;
mod publish;
mod results;
pub(crate) mod snapshot;
mod versions;

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cofferdam_ledger::{Publication, State};
use cofferdam_sandbox::Ids;
use cofferdam_tree::target::tree::Way;
use cofferdam_tree::{TextOrBytes, hex};
use serde::{Deserialize, Serialize};
use serde_with::As;
use sha2::{Digest, Sha256};

use crate::context::{self, Context};
use crate::error::IoContext;
use crate::facts::{ChangeCounts, Facts};
use crate::input::clean;
use crate::job::Job;
use crate::report::Meter;
use crate::request::SourceRef;
use crate::source::{Prepared, Source, TakenOut};
use crate::{Dam, Error, boundary, lessons, limits};

pub(crate) use admit::admit;
pub use command::PublishCommand;
pub use place::{Content, Mode};
pub use snapshot::{ARGUMENT, main};
pub(crate) use versions::forget_versions;
pub use versions::{Replaced, replaced};

/// A file that a command is to make, and the one that it becomes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Where the command makes it, relative to the top of its context.
    #[serde(with = "As::<TextOrBytes>")]
    pub from: PathBuf,
    /// What it becomes, an absolute path.
    #[serde(with = "As::<TextOrBytes>")]
    pub to: PathBuf,
    /// How it becomes that.
    #[serde(default, skip_serializing_if = "Mode::is_file")]
    pub mode: Mode,
}

impl Output {
    /// An output as a person writes it: `FROM=TO`, where `TO` can be relative to `dir`, and
    /// `FROM/` is a directory.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn parse(text: &OsStr, dir: &Path) -> Result<Output, Error> {
        admit::parse(text, dir, "--output")
    }

    /// The directory that a task is about, as a whole or path by path.
    #[must_use]
    pub fn of_dir(dir: &Path, is_patch: bool) -> Output {
        let mode = if is_patch { Mode::Patch } else { Mode::Tree };
        Output { from: PathBuf::new(), to: dir.to_owned(), mode }
    }

    /// The lessons of a task, which are added to a file of the host's.
    #[must_use]
    pub fn of_lessons(file: &Path, dir: &Path) -> Output {
        Output { from: lessons::FILE.into(), to: clean(&dir.join(file)), mode: Mode::Append }
    }

    /// Records that are to be added to a file of them.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn parse_append(text: &OsStr, dir: &Path) -> Result<Output, Error> {
        let output = admit::parse(text, dir, "--append")?;
        Ok(Output { mode: Mode::Append, ..output })
    }
}

/// An output of a task, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFact {
    /// As [`Output::from`].
    #[serde(with = "As::<TextOrBytes>")]
    pub from: PathBuf,
    /// What it becomes: absolute. No symbolic link leads there; a directory's place can be
    /// one.
    #[serde(with = "As::<TextOrBytes>")]
    pub place: PathBuf,
    /// As [`Output::mode`].
    #[serde(default, skip_serializing_if = "Mode::is_file")]
    pub mode: Mode,
    /// How a directory is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way: Option<Way>,
    /// What was there when the task began; none where nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Content>,
    /// What the command made. Written when it is none, too: a key that is left out keeps
    /// its old value.
    pub result: Option<Content>,
}

/// A file that a command is given which publishes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenFact {
    /// Where it was made, relative to the top of the context.
    #[serde(with = "As::<TextOrBytes>")]
    pub from: PathBuf,
    /// What was made.
    pub result: Content,
}

impl OutputFact {
    /// What the command made, when it is not what is there already.
    fn differing(&self) -> Option<&Content> {
        self.result.as_ref().filter(|result| {
            let same = |before: &Content| before.reads_as(result);
            self.mode == Mode::Append || !self.before.as_ref().is_some_and(same)
        })
    }
}

/// The source of such a task: nothing.
pub struct Files;

/// What would be published.
pub(crate) struct Candidate {
    /// A hash of the results: their places in the context, contents, and whether they are
    /// programs.
    id: String,
}

impl Candidate {
    fn of(facts: &Facts) -> Candidate {
        let mut hash = Sha256::new();
        let outputs = facts.outputs.iter();
        let outputs = outputs.filter_map(|output| Some((&output.from, output.result.as_ref()?)));
        let given = facts.given.iter().map(|given| (&given.from, &given.result));
        for (from, result) in outputs.chain(given) {
            let from = from.as_os_str().as_encoded_bytes();
            hash.update((from.len() as u64).to_le_bytes());
            hash.update(from);
            hash.update(result.hash().as_bytes());
            hash.update([u8::from(result.is_program())]);
        }
        Candidate { id: hex(&hash.finalize()) }
    }
}

/// What was changed of a directory is told, and what can't land as it is to.
fn changes_of(job: &mut Job<'_, Files>) -> Result<TakenOut, Error> {
    let failed = |why: String| Ok(TakenOut::End(State::Failed, why));
    let is_patch = job.facts.outputs.first().is_some_and(|output| output.mode == Mode::Patch);
    let (ops, of_git) = (changes::ops(job)?, changes::of_git(job)?);
    let (counts, paths) = changes::summary(&ops);
    (job.facts.counts, job.facts.paths) = (Some(counts), paths);
    if let Some(first) = of_git.first() {
        let path = first.path.display();
        if !is_patch {
            return failed(format!(
                "`{path}` is git's own, and what it holds is obeyed by the git of whoever works \
                 there: it can't land; `--publish patch` leaves it out"
            ));
        }
        let more = of_git.len() - 1;
        let more = if more == 0 { String::new() } else { format!(" and {more} more of its kind") };
        job.tell_left_out(vec![format!("`{path}`{more}: it is git's own")]);
    }
    if !is_patch {
        return Ok(TakenOut::Result);
    }
    if ops.is_empty() {
        return Ok(TakenOut::End(State::Empty, "nothing changed".into()));
    }
    match ops.iter().find(|op| changes::is_another_kind(op)) {
        Some(op) => failed(format!(
            "`{}` is a directory in the place of a file, or a file in that of a directory, which \
             no patch can change",
            op.path.display()
        )),
        None => Ok(TakenOut::Result),
    }
}

impl Source for Files {
    type Candidate = Candidate;
    type Begun = ();

    fn reopen(dam: &Dam, facts: &Facts, ids: Ids) -> Result<(Files, context::Place), Error> {
        let of_dir = |output: &OutputFact| output.from.as_os_str().is_empty();
        if let Some(output) = facts.outputs.first().filter(|output| of_dir(output)) {
            return Ok((Files, context::Place::of_dir(dam, &output.place, ids)?));
        }
        let mut place = context::Place::of_files(dam, ids)?;
        place.outputs = facts.outputs.iter().map(|output| place.top.join(&output.from)).collect();
        Ok((Files, place))
    }

    fn can_land(&self) -> Result<(), Error> {
        Ok(())
    }

    fn still_there(_: &Job<'_, Files>) -> Result<(), Error> {
        Ok(())
    }

    fn prepare(job: &mut Job<'_, Files>, (): ()) -> Result<Prepared, Error> {
        let boundary = boundary::of_level(job.request.level);
        let mut lower = Vec::new();
        if let SourceRef::Dir(dir) = job.request.source.clone() {
            snapshot::take(job, &dir)?;
            lower.push(job.base());
        }
        let context = Context::create(
            job.dam,
            job.dir.path().to_owned(),
            lower,
            job.ids,
            job.request.read_only,
            boundary.homes(&job.place),
        )?;
        // An input that is an output is one that the command changes.
        for (number, input) in job.facts.inputs.iter().enumerate() {
            if !job.place.outputs.contains(&input.dest) {
                continue;
            }
            let (Ok(below), true) = (input.dest.strip_prefix(&job.place.top), input.is_file())
            else {
                continue;
            };
            let (from, to) =
                (job.dir.inputs().join(number.to_string()), context.upper().join(below));
            context.make_dirs_above(&context.upper(), below)?;
            std::fs::copy(&from, &to).at("copy the input", &input.source)?;
            let source = std::fs::metadata(&input.source).at("look at the input", &input.source)?;
            let mode = std::fs::Permissions::from_mode(0o644 | source.permissions().mode() & 0o111);
            std::fs::set_permissions(&to, mode).at("set the mode of", &to)?;
            context.give(&to)?;
        }
        let base = match &job.request.source {
            SourceRef::Dir(dir) => dir.display().to_string(),
            _ => "nothing".into(),
        };
        Ok(Prepared { context, base, warm: true })
    }

    fn renew(job: &mut Job<'_, Files>) -> Result<(), Error> {
        if matches!(job.request.source, SourceRef::Dir(_)) {
            // What it stands on stays, and is compared with what is there when it lands.
            return Ok(());
        }
        let mut meter = Meter::begin(job.reporter, "looking at what is there");
        for (output, known) in job.request.outputs.iter().zip(&mut job.facts.outputs) {
            *known = admit::look(output, &mut meter, &job.control)?;
        }
        Ok(())
    }

    fn beside<T>(job: &mut Job<'_, Files>, run: impl FnOnce(&Job<'_, Files>) -> T) -> T {
        run(job)
    }

    fn take_out(job: &mut Job<'_, Files>, context: &Context) -> Result<TakenOut, Error> {
        if job.facts.outputs.is_empty() && job.request.publish.is_none() {
            return Ok(TakenOut::End(State::Empty, "there was nothing to be made".into()));
        }
        if !matches!(job.request.source, SourceRef::Dir(_)) {
            return results::take(job, context);
        }
        if context.has_empty_upper() {
            return Ok(TakenOut::End(State::Empty, "nothing changed".into()));
        }
        let taken = snapshot::take_out(job, context)?;
        if matches!(taken, TakenOut::Result) {
            return changes_of(job);
        }
        Ok(taken)
    }

    fn in_words(job: &Job<'_, Files>) -> String {
        if let Some(ChangeCounts { added, modified, deleted }) = job.facts.counts {
            if added + modified + deleted == 0 {
                return "permissions or empty directories, no file's content".into();
            }
            return format!("{added} added, {modified} changed, {deleted} deleted");
        }
        let outputs = job.facts.outputs.iter();
        let outputs = outputs.filter_map(|output| Some((&output.from, output.result.as_ref()?)));
        let given = job.facts.given.iter().map(|given| (&given.from, &given.result));
        let told = outputs
            .chain(given)
            .map(|(from, result)| format!("{} ({})", from.display(), limits::size(result.size())));
        told.collect::<Vec<_>>().join(", ")
    }

    fn result(job: &mut Job<'_, Files>, context: &Context) -> Result<bool, Error> {
        let taken = Files::take_out(job, context)?;
        Ok(matches!(taken, TakenOut::Result))
    }

    fn land(job: &mut Job<'_, Files>, publish: bool) -> Result<(), Error> {
        publish::land(job, publish)
    }

    fn recover(job: &mut Job<'_, Files>, publication: Option<Publication>) -> Result<(), Error> {
        publish::recover(job, publication)
    }

    /// The results are files already, and stay where they are.
    fn save(job: &mut Job<'_, Files>) -> Result<(), Error> {
        results::save(job)
    }

    fn release(job: &mut Job<'_, Files>, meanwhile: &mut dyn FnMut(&Dam)) -> Result<(), Error> {
        meanwhile(job.dam);
        Ok(())
    }

    fn check_context(job: &Job<'_, Files>, _: &Candidate, dir: PathBuf) -> Result<Context, Error> {
        let results = match job.request.source {
            SourceRef::Dir(_) => job.dir.results().join(snapshot::TREE),
            _ => job.dir.results(),
        };
        let lower = results.strip_prefix(job.dam.contexts_dir()).unwrap_or(&results);
        let lower = vec![lower.display().to_string()];
        let homes = boundary::of_level(job.request.level).homes(&job.place);
        Context::create(job.dam, dir, lower, job.ids, false, homes)
    }

    fn tree(candidate: &Candidate) -> String {
        candidate.id.clone()
    }

    fn base(_: &Candidate) -> Option<String> {
        None
    }

    fn seen(
        _: &Job<'_, Files>,
        candidate: &Candidate,
        _: bool,
    ) -> Result<Vec<(&'static str, serde_json::Value)>, Error> {
        Ok(vec![("files", candidate.id.clone().into())])
    }

    /// What is at the target need not pass a check of what is to be there.
    fn without(_: &Job<'_, Files>, _: &Candidate) -> Result<Option<Candidate>, Error> {
        Ok(None)
    }
}

//! The seam to what a task's files come from, and with that to what its result is.
//!
//! | source | a context's files | a result | what is judged |
//! |---|---|---|---|
//! | [`Repo`](crate::job::Repo) | the layers of a commit | a change set, a commit | the change set on the target's tip |
//! | [`Files`](crate::files::Files) | nothing, and inputs | the files that it was to make | these files |
//!
//! All else is the same for both: limits, the boundary, the command, attempts, checks
//! and their verdicts, the record, the end.

use std::path::PathBuf;

use cofferdam_ledger::{Publication, State, Task};
use cofferdam_sandbox::Ids;

use crate::context::{Context, Place};
use crate::facts::Facts;
use crate::job::Job;
use crate::{Dam, Error};

/// See the module.
pub(crate) trait Source: Sized {
    /// What would land, as the gate sees it.
    type Candidate;
    /// What was begun when a task was admitted.
    type Begun;

    /// Makes the context of a task that was admitted.
    ///
    /// # Errors
    /// When it can't be made.
    fn prepare(job: &mut Job<'_, Self>, begun: Self::Begun) -> Result<Prepared, Error>;

    /// Finds it again for a task that exists.
    ///
    /// # Errors
    /// When it is gone.
    fn reopen(dam: &Dam, facts: &Facts, ids: Ids) -> Result<(Self, Place), Error>;

    /// Refuses where nothing could land, before anything runs.
    ///
    /// # Errors
    /// [`Error::Usage`].
    fn can_land(&self) -> Result<(), Error>;

    /// What everything else that went wrong comes from, when somebody has removed it
    /// meanwhile.
    ///
    /// # Errors
    /// That it is gone.
    fn still_there(job: &Job<'_, Self>) -> Result<(), Error>;

    /// Another attempt begins: with what there is now.
    ///
    /// # Errors
    /// When that can't be looked at.
    fn renew(job: &mut Job<'_, Self>) -> Result<(), Error>;

    /// Runs the command, and beside it what a person should know by then.
    fn beside<T>(job: &mut Job<'_, Self>, run: impl FnOnce(&Job<'_, Self>) -> T) -> T;

    /// Takes the result out of a context.
    ///
    /// # Errors
    /// When it can't be taken out.
    fn take_out(job: &mut Job<'_, Self>, context: &Context) -> Result<TakenOut, Error>;

    /// How much the result is, in words.
    fn in_words(job: &Job<'_, Self>) -> String;

    /// As [`Source::take_out`] for a context that nothing is decided about. Whether there
    /// is a result.
    ///
    /// # Errors
    /// When it can't be taken out.
    fn result(job: &mut Job<'_, Self>, context: &Context) -> Result<bool, Error>;

    /// Takes a task with a result to its end. It is in state `harvesting`, or in one from
    /// which a person can land it again.
    ///
    /// # Errors
    /// When something of ours fails; the task's record then says so.
    fn land(job: &mut Job<'_, Self>, publish: bool) -> Result<(), Error>;

    /// Takes a task on whose supervisor died while it was publishing.
    ///
    /// # Errors
    /// When that can't be done now; it can be tried again.
    fn recover(job: &mut Job<'_, Self>, publication: Option<Publication>) -> Result<(), Error>;

    /// Saves what is not in the task's log and receipt before its context goes.
    ///
    /// # Errors
    /// When it can't be saved: the context stays then.
    fn save(job: &mut Job<'_, Self>) -> Result<(), Error>;

    /// Lets go of what is outside of the task's directory; `meanwhile` is called once.
    ///
    /// # Errors
    /// When it can't be.
    fn release(job: &mut Job<'_, Self>, meanwhile: &mut dyn FnMut(&Dam)) -> Result<(), Error>;

    /// Makes the context of a check at `dir`, where nothing is.
    ///
    /// # Errors
    /// When it can't be made.
    fn check_context(
        job: &Job<'_, Self>,
        candidate: &Self::Candidate,
        dir: PathBuf,
    ) -> Result<Context, Error>;

    /// What is judged: a tree's id, or a hash of files.
    fn tree(candidate: &Self::Candidate) -> String;

    /// What a check is told that its files are based on, if on anything.
    fn base(candidate: &Self::Candidate) -> Option<String>;

    /// All that a check can see of a candidate, for the key of its verdict; `alone` when
    /// it is nobody's change.
    ///
    /// # Errors
    /// When it can't be told.
    fn seen(
        job: &Job<'_, Self>,
        candidate: &Self::Candidate,
        alone: bool,
    ) -> Result<Vec<(&'static str, serde_json::Value)>, Error>;

    /// What there is of the target without the change, to tell whose fault a failure is.
    ///
    /// # Errors
    /// When it can't be found out.
    fn without(
        job: &Job<'_, Self>,
        candidate: &Self::Candidate,
    ) -> Result<Option<Self::Candidate>, Error>;
}

/// A context that was made for a task.
pub(crate) struct Prepared {
    /// The context.
    pub(crate) context: Context,
    /// What it begins with, in short.
    pub(crate) base: String,
    /// Whether that was there already.
    pub(crate) warm: bool,
}

/// What came out of a context.
pub(crate) enum TakenOut {
    /// A result to land.
    Result,
    /// None: this is the task's end, and why.
    End(State, String),
}

/// Which source a task has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A repository.
    Repo,
    /// Files.
    Files,
}

impl Kind {
    /// That of a task.
    pub(crate) fn of(task: &Task) -> Kind {
        match task.spec.get("source") {
            None => Kind::Repo,
            Some(source) if source == "repo" => Kind::Repo,
            Some(_) => Kind::Files,
        }
    }
}

/// Calls a function that is generic over the source with the one of a task.
macro_rules! of_source {
    ($task:expr, $function:ident ( $($argument:expr),* $(,)? )) => {
        match $crate::source::Kind::of($task) {
            $crate::source::Kind::Repo => $function::<$crate::repo::Repo>($($argument),*),
            $crate::source::Kind::Files => $function::<$crate::files::Files>($($argument),*),
        }
    };
}
pub(crate) use of_source;

//! Tasks and their transitions.

use rusqlite::{Connection, OptionalExtension, Row, named_params, params};
use serde::Serialize;
use serde_json::Value;

use crate::error::{Fault, LedgerError, Result};
use crate::store::{failpoint, now_ms};
use crate::{Durability, Ledger, PublicationId, State, TaskId, TaskName, row};

/// A task as the ledger has it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Task {
    /// Its place in the order of creation.
    pub seq: i64,
    /// Its id.
    pub id: TaskId,
    /// Its name.
    pub name: TaskName,
    /// The opaque key of its repository; empty when it has none.
    pub repo: String,
    /// The series that it belongs to, if to any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<String>,
    /// Where it is in its life.
    pub state: State,
    /// The request. Never changes.
    pub spec: Value,
    /// What was found out on the way: an object, merged key by key.
    pub facts: Value,
    /// Why it is in its state, for people.
    pub reason: Option<String>,
    /// When it was created, in milliseconds since the epoch.
    pub created_ms: i64,
    /// When its record last changed, in milliseconds since the epoch.
    pub updated_ms: i64,
    /// Whether its context is gone from disk.
    pub settled: bool,
}

/// A task to be.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// Its id.
    pub id: TaskId,
    /// Its name.
    pub name: TaskName,
    /// The opaque key of its repository; empty when it has none.
    pub repo: String,
    /// The series that it belongs to, if to any.
    pub series: Option<String>,
    /// The request.
    pub spec: Value,
    /// What is known from the start: an object, or null for none.
    pub facts: Value,
}

/// What a transition changes beside the state.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Change<'a> {
    /// An object merged into the facts key by key; null removes a key.
    pub facts: Option<Value>,
    /// Why the task is in its new state. None clears the reason of the old one.
    pub reason: Option<&'a str>,
    /// Kept with the transition in the history.
    pub detail: Option<&'a str>,
}

/// Which tasks to list. The default is all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Filter<'a> {
    /// Only those of this repository.
    pub repo: Option<&'a str>,
    /// Only those of this series.
    pub series: Option<&'a str>,
    /// Only those that were created after the one with this [`Task::seq`].
    pub after_seq: Option<i64>,
    /// Only those in a live state.
    pub live_only: bool,
    /// Only those whose context may be on disk.
    pub unsettled_only: bool,
    /// Only those that went a step at this time or later, in milliseconds since the epoch.
    pub stepped_since_ms: Option<i64>,
    /// Only the newest so many.
    pub limit: Option<usize>,
}

impl Filter<'_> {
    /// The rest of a `SELECT` from the tasks, with `:repo` and `:limit` open.
    fn sql(&self) -> String {
        let mut rest = String::from("WHERE (:repo IS NULL OR repo = :repo)");
        // Said so that its index is found; without a series nothing is asked.
        rest +=
            if self.series.is_some() { " AND series = :series" } else { " AND :series IS NULL" };
        if let Some(seq) = self.after_seq {
            rest += &format!(" AND seq > {seq}");
        }
        if self.live_only {
            rest += &format!(" AND state IN ({})", live_states());
        }
        if self.unsettled_only {
            rest += " AND settled = 0";
        }
        if let Some(since) = self.stepped_since_ms {
            rest += &format!(" AND id IN (SELECT task FROM transitions WHERE at_ms >= {since})");
        }
        // Few tasks are live or unsettled, whatever the years have left: those are
        // found by an index and sorted. A bare `seq` makes SQLite read every row
        // in its order instead.
        let order = if self.live_only || self.unsettled_only { "+seq" } else { "seq" };
        rest + &format!(" ORDER BY {order} DESC LIMIT :limit")
    }
}

/// One step of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TransitionRow {
    /// Its place in the order of all steps of all tasks.
    pub seq: i64,
    /// The state before; none for the creation.
    pub from: Option<State>,
    /// The state after.
    pub to: State,
    /// When, in milliseconds since the epoch.
    pub at_ms: i64,
    /// What the change said.
    pub detail: Option<String>,
}

/// The shortest text that [`Ledger::find`] takes for the beginning of an id.
const PREFIX_MIN: usize = 4;
const CANDIDATES_MAX: i64 = 8;

impl Ledger {
    /// Records a new task in state `queued`.
    ///
    /// Failpoints `ledger:queued:before` and `:after`.
    ///
    /// # Errors
    /// [`LedgerError::NameTaken`], [`LedgerError::IdTaken`],
    /// [`LedgerError::NotAnObject`] for the facts.
    pub fn create_task(&mut self, new: NewTask) -> Result<Task> {
        failpoint("ledger", State::Queued.as_str(), "before")?;
        let task = self.write(Durability::Normal, |db| insert(db, new))?;
        failpoint("ledger", State::Queued.as_str(), "after")?;
        Ok(task)
    }

    /// Moves a task from `from` to `to`, if it is in `from`.
    ///
    /// Failpoints `ledger:<to>:before` and `ledger:<to>:after`.
    ///
    /// # Errors
    /// [`LedgerError::Illegal`] when [`State::may_become`] says no,
    /// [`LedgerError::Stale`] when the task is elsewhere,
    /// [`LedgerError::Committed`] when one of its publications is past the commit
    /// point and `to` would deny that (only `landed`, `in-doubt` and `broken` don't),
    /// [`LedgerError::NoSuchTask`], [`LedgerError::NotAnObject`] for the facts.
    pub fn transition(
        &mut self,
        id: &TaskId,
        from: State,
        to: State,
        change: Change<'_>,
        durability: Durability,
    ) -> Result<Task> {
        if !from.may_become(to) {
            return Err(LedgerError::Illegal { from, to });
        }
        failpoint("ledger", to.as_str(), "before")?;
        let task = self.write(durability, |db| {
            if from == State::Publishing
                && !matches!(to, State::Landed | State::InDoubt | State::Broken)
                && let Some(publication) = past_commit_point(db, id)?
            {
                let id = id.clone();
                return Err(LedgerError::Committed { id, publication, to }.into());
            }
            advance(db, id, from, to, change)
        })?;
        failpoint("ledger", to.as_str(), "after")?;
        Ok(task)
    }

    /// Merges `facts`, an object, into those of the task; null removes a key.
    ///
    /// # Errors
    /// [`LedgerError::NoSuchTask`], [`LedgerError::NotAnObject`].
    pub fn note(&mut self, id: &TaskId, facts: Value, durability: Durability) -> Result<()> {
        self.add_facts(id, None, facts, durability)
    }

    /// Like [`Ledger::note`], if the task is in `expected`.
    ///
    /// # Errors
    /// Those of [`Ledger::note`], and [`LedgerError::Stale`].
    pub fn note_if(
        &mut self,
        id: &TaskId,
        expected: State,
        facts: Value,
        durability: Durability,
    ) -> Result<()> {
        self.add_facts(id, Some(expected), facts, durability)
    }

    fn add_facts(
        &mut self,
        id: &TaskId,
        expected: Option<State>,
        facts: Value,
        durability: Durability,
    ) -> Result<()> {
        let facts = row::object(facts, "facts")?;
        self.write(durability, |db| {
            let mut task = existing(db, id)?;
            if let Some(expected) = expected {
                in_state(&task, expected)?;
            }
            row::merge(&mut task.facts, facts)?;
            db.execute(
                "UPDATE tasks SET facts = ?2, updated_ms = ?3 WHERE id = ?1",
                params![id.as_str(), task.facts.to_string(), now_ms()],
            )?;
            Ok(())
        })
    }

    /// Records that the task's context is gone from disk. Its name is free again.
    /// Settling twice is no error.
    ///
    /// # Errors
    /// [`LedgerError::Live`] when the task has not ended, [`LedgerError::NoSuchTask`].
    pub fn settle(&mut self, id: &TaskId) -> Result<()> {
        self.write(Durability::Normal, |db| {
            let task = existing(db, id)?;
            if task.state.is_live() {
                return Err(LedgerError::Live { id: task.id, state: task.state }.into());
            }
            db.execute(
                "UPDATE tasks SET settled = 1, updated_ms = ?2 WHERE id = ?1 AND settled = 0",
                params![id.as_str(), now_ms()],
            )?;
            Ok(())
        })
    }

    /// The task with this id.
    ///
    /// # Errors
    /// What SQLite says, or [`LedgerError::Corrupt`].
    pub fn task(&self, id: &TaskId) -> Result<Option<Task>> {
        self.read(|db| load(db, id))
    }

    /// The task that a person means: the one with this very id; else the newest
    /// with this name, one that is not settled before one that is; else the only
    /// one whose id begins with the text, which must have four characters.
    ///
    /// # Errors
    /// [`LedgerError::Ambiguous`] when several ids begin with the text.
    pub fn find(&self, name_or_id: &str) -> Result<Option<Task>> {
        self.read(|db| {
            let one = "WHERE id = ?1";
            let named = "WHERE name = ?1 ORDER BY settled, seq DESC LIMIT 1";
            for rest in [one, named] {
                if let Some(task) = select(db, rest, [name_or_id])?.pop() {
                    return Ok(Some(task));
                }
            }
            let is_id_char = |c: char| c.is_ascii_digit() || c.is_ascii_lowercase();
            if name_or_id.len() < PREFIX_MIN || !name_or_id.chars().all(is_id_char) {
                return Ok(None);
            }
            // `{` follows `z`.
            let begins = "WHERE id >= ?1 AND id < ?1 || '{' ORDER BY seq DESC LIMIT ?2";
            let mut tasks = select(db, begins, params![name_or_id, CANDIDATES_MAX])?;
            if tasks.len() > 1 {
                return Err(LedgerError::Ambiguous {
                    prefix: name_or_id.to_owned(),
                    candidates: tasks.into_iter().map(|task| task.id).collect(),
                }
                .into());
            }
            Ok(tasks.pop())
        })
    }

    /// The tasks that pass `filter`, newest first.
    ///
    /// # Errors
    /// What SQLite says, or [`LedgerError::Corrupt`].
    pub fn tasks(&self, filter: Filter<'_>) -> Result<Vec<Task>> {
        let rest = filter.sql();
        let limit = filter.limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
        self.read(|db| {
            select(
                db,
                &rest,
                named_params! { ":repo": filter.repo, ":series": filter.series, ":limit": limit },
            )
        })
    }

    /// The steps of a task, oldest first; empty for an unknown one.
    ///
    /// # Errors
    /// What SQLite says, or [`LedgerError::Corrupt`].
    pub fn history(&self, id: &TaskId) -> Result<Vec<TransitionRow>> {
        self.read(|db| {
            db.prepare(
                "SELECT seq, from_state, to_state, at_ms, detail FROM transitions
                 WHERE task = ?1 ORDER BY seq",
            )?
            .query_and_then([id.as_str()], |row| {
                Ok(TransitionRow {
                    seq: row.get("seq")?,
                    from: row::optional_word(row, "from_state")?,
                    to: row::word(row, "to_state")?,
                    at_ms: row.get("at_ms")?,
                    detail: row.get("detail")?,
                })
            })?
            .collect()
        })
    }

    /// Forgets the tasks that have ended, are settled, have no open publication
    /// and last changed before `older_than_ms` (milliseconds since the epoch), with
    /// their steps and publications, and verdicts from before then. Returns the
    /// tasks, oldest first.
    ///
    /// # Errors
    /// What SQLite says, or [`LedgerError::Corrupt`].
    pub fn prune(&mut self, older_than_ms: i64) -> Result<Vec<TaskId>> {
        self.write(Durability::Normal, |db| {
            let ids = db
                .prepare(&format!(
                    "SELECT id FROM tasks
                     WHERE settled = 1 AND updated_ms < ?1 AND state NOT IN ({})
                       AND NOT EXISTS (SELECT 1 FROM publications
                           WHERE task = tasks.id AND publications.state IN ('intent', 'committed'))
                     ORDER BY seq",
                    live_states()
                ))?
                .query_and_then([older_than_ms], |row| row::word::<TaskId>(row, "id"))?
                .collect::<Result<Vec<_>, Fault>>()?;
            let mut delete = db.prepare("DELETE FROM tasks WHERE id = ?1")?;
            for id in &ids {
                delete.execute([id.as_str()])?;
            }
            db.execute("DELETE FROM verdicts WHERE at_ms < ?1", [older_than_ms])?;
            Ok(ids)
        })
    }
}

/// A new task, inside a transaction.
pub(crate) fn insert(db: &Connection, new: NewTask) -> Result<Task, Fault> {
    let facts = Value::Object(row::object(new.facts, "facts")?);
    let NewTask { id, name, repo, series, spec, .. } = new;
    if load(db, &id)?.is_some() {
        return Err(LedgerError::IdTaken { id }.into());
    }
    let holder = db
        .query_row_and_then(
            "SELECT id FROM tasks WHERE name = ?1 AND settled = 0",
            [name.as_str()],
            |row| row::word(row, "id"),
        )
        .map(Some)
        .or_else(absent)?;
    if let Some(holder) = holder {
        return Err(LedgerError::NameTaken { name, holder }.into());
    }
    let now = now_ms();
    db.execute(
        "INSERT INTO tasks (id, name, repo, state, spec, facts, created_ms, updated_ms, series)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8)",
        params![
            id.as_str(),
            name.as_str(),
            repo,
            State::Queued.as_str(),
            spec.to_string(),
            facts.to_string(),
            now,
            series
        ],
    )?;
    let seq = db.last_insert_rowid();
    step(db, &id, None, State::Queued, now, None)?;
    Ok(Task {
        seq,
        id,
        name,
        repo,
        series,
        state: State::Queued,
        spec,
        facts,
        reason: None,
        created_ms: now,
        updated_ms: now,
        settled: false,
    })
}

/// The step from `from` to `to` inside a transaction.
pub(crate) fn advance(
    db: &Connection,
    id: &TaskId,
    from: State,
    to: State,
    change: Change<'_>,
) -> Result<Task, Fault> {
    let mut task = existing(db, id)?;
    in_state(&task, from)?;
    if let Some(facts) = change.facts {
        row::merge(&mut task.facts, row::object(facts, "facts")?)?;
    }
    let now = now_ms();
    db.prepare_cached(
        "UPDATE tasks SET state = ?2, facts = ?3, reason = ?4, updated_ms = ?5 WHERE id = ?1",
    )?
    .execute(params![id.as_str(), to.as_str(), task.facts.to_string(), change.reason, now])?;
    step(db, id, Some(from), to, now, change.detail)?;
    Ok(Task { state: to, reason: change.reason.map(str::to_owned), updated_ms: now, ..task })
}

fn step(
    db: &Connection,
    id: &TaskId,
    from: Option<State>,
    to: State,
    at_ms: i64,
    detail: Option<&str>,
) -> Result<(), Fault> {
    db.prepare_cached(
        "INSERT INTO transitions (task, from_state, to_state, at_ms, detail)
         VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute(params![id.as_str(), from.map(State::as_str), to.as_str(), at_ms, detail])?;
    Ok(())
}

fn past_commit_point(db: &Connection, id: &TaskId) -> Result<Option<PublicationId>, Fault> {
    Ok(db
        .query_row(
            "SELECT id FROM publications
             WHERE task = ?1 AND state IN ('committed', 'done') ORDER BY id DESC LIMIT 1",
            [id.as_str()],
            |row| row.get(0),
        )
        .optional()?
        .map(PublicationId::new))
}

pub(crate) fn existing(db: &Connection, id: &TaskId) -> Result<Task, Fault> {
    load(db, id)?.ok_or_else(|| LedgerError::NoSuchTask { id: id.clone() }.into())
}

fn in_state(task: &Task, expected: State) -> Result<(), LedgerError> {
    if task.state == expected {
        Ok(())
    } else {
        Err(LedgerError::Stale { id: task.id.clone(), expected, found: task.state })
    }
}

pub(crate) fn load(db: &Connection, id: &TaskId) -> Result<Option<Task>, Fault> {
    Ok(select(db, "WHERE id = ?1", [id.as_str()])?.pop())
}

fn select(
    db: &Connection,
    rest: &str,
    parameters: impl rusqlite::Params,
) -> Result<Vec<Task>, Fault> {
    let columns =
        "seq, id, name, repo, series, state, spec, facts, reason, created_ms, updated_ms, settled";
    db.prepare_cached(&format!("SELECT {columns} FROM tasks {rest}"))?
        .query_and_then(parameters, from_row)?
        .collect()
}

fn from_row(row: &Row<'_>) -> Result<Task, Fault> {
    let id: TaskId = row::word(row, "id")?;
    let whose = format!("task `{id}`");
    Ok(Task {
        seq: row.get("seq")?,
        name: row::word(row, "name")?,
        repo: row.get("repo")?,
        series: row.get("series")?,
        state: row::word(row, "state")?,
        spec: row::json(row, "spec", &whose)?,
        facts: row::json(row, "facts", &whose)?,
        reason: row.get("reason")?,
        created_ms: row.get("created_ms")?,
        updated_ms: row.get("updated_ms")?,
        settled: row.get("settled")?,
        id,
    })
}

/// The live states as an SQL list.
fn live_states() -> String {
    let live = State::ALL.iter().filter(|state| state.is_live());
    live.map(|state| format!("'{state}'")).collect::<Vec<_>>().join(", ")
}

fn absent<T>(fault: Fault) -> Result<Option<T>, Fault> {
    match fault {
        Fault::Sql(rusqlite::Error::QueryReturnedNoRows) => Ok(None),
        fault => Err(fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_command_asks_for_reads_no_history() {
        let dir = tempfile::tempdir().expect("dir");
        let ledger = Ledger::open(&dir.path().join("ledger.db")).expect("ledger");
        for filter in [
            Filter { live_only: true, ..Filter::default() },
            Filter { unsettled_only: true, ..Filter::default() },
            Filter { series: Some("s"), after_seq: Some(7), ..Filter::default() },
        ] {
            let plan = ledger
                .read(|db| {
                    let sql = format!("EXPLAIN QUERY PLAN SELECT * FROM tasks {}", filter.sql());
                    Ok(db.query_row(
                        &sql,
                        named_params! { ":repo": None::<&str>, ":series": filter.series, ":limit": -1 },
                        |row| row.get::<_, String>("detail"),
                    )?)
                })
                .expect("plan");
            assert!(plan.contains("USING INDEX"), "{filter:?}: {plan}");
        }
    }
}

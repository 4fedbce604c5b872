//! Publications: the redo journal of a landing.
//!
//! 1. [`Ledger::begin_publication`] writes the intent, with all that recovery
//!    needs to tell old from new. On disk before the target is touched.
//! 2. The caller does the one step that changes the target.
//! 3. [`Ledger::advance_publication`] to `committed` says that it happened.
//! 4. The caller finishes what follows from it (a worktree, an index).
//! 5. [`Ledger::land`] ends publication and task in one transaction.
//!
//! Why this order: a crash between 2 and 3 leaves an intent, and recovery looks
//! at the target to learn on which side of the commit point it was. A crash
//! after 3 can only be rolled forward: [`Ledger::transition`] refuses every end
//! that would deny the change.

use std::fmt;

use rusqlite::{Connection, Row, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Fault, LedgerError, Result};
use crate::store::{failpoint, now_ms};
use crate::{Change, Durability, Ledger, PublicationState, State, Task, TaskId, row, task};

/// The id of a publication. Later ones are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PublicationId(i64);

impl PublicationId {
    pub(crate) const fn new(id: i64) -> Self {
        Self(id)
    }

    /// The id as a number.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for PublicationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A publication to be.
#[derive(Debug, Clone, PartialEq)]
pub struct NewPublication {
    /// The task whose change it is.
    pub task: TaskId,
    /// What is changed.
    pub target: String,
    /// What the target is before; none when it does not exist.
    pub old: Option<String>,
    /// What it is to be.
    pub new: String,
    /// What recovery needs: an object, or null for none.
    pub journal: Value,
}

/// One change of one target, as far as it got.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Publication {
    /// Its id.
    pub id: PublicationId,
    /// The task whose change it is.
    pub task: TaskId,
    /// What is changed.
    pub target: String,
    /// What the target was before; none when it did not exist.
    pub old: Option<String>,
    /// What it is to be.
    pub new: String,
    /// How far it is.
    pub state: PublicationState,
    /// What recovery needs: an object.
    pub journal: Value,
    /// When it began, in milliseconds since the epoch.
    pub created_ms: i64,
    /// When its record last changed, in milliseconds since the epoch.
    pub updated_ms: i64,
}

impl Ledger {
    /// Records the intent to change a target, durably.
    ///
    /// Failpoints `publication:intent:before` and `:after`.
    ///
    /// # Errors
    /// [`LedgerError::NoSuchTask`], [`LedgerError::NotAnObject`] for the journal.
    pub fn begin_publication(&mut self, new: NewPublication) -> Result<PublicationId> {
        let journal = Value::Object(row::object(new.journal, "journal")?);
        let state = PublicationState::Intent.as_str();
        failpoint("publication", state, "before")?;
        let id = self.write(Durability::Full, |db| {
            task::existing(db, &new.task)?;
            db.execute(
                "INSERT INTO publications
                     (task, target, old, new, state, journal, created_ms, updated_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)",
                params![
                    new.task.as_str(),
                    new.target,
                    new.old,
                    new.new,
                    state,
                    journal.to_string(),
                    now_ms()
                ],
            )?;
            Ok(PublicationId(db.last_insert_rowid()))
        })?;
        failpoint("publication", state, "after")?;
        Ok(id)
    }

    /// Moves a publication from `from` to `to`, if it is in `from`.
    ///
    /// Failpoints `publication:<to>:before` and `publication:<to>:after`.
    ///
    /// # Errors
    /// [`LedgerError::IllegalPublication`] when [`PublicationState::may_become`] says
    /// no, [`LedgerError::StalePublication`] when it is elsewhere,
    /// [`LedgerError::NoSuchPublication`].
    pub fn advance_publication(
        &mut self,
        id: PublicationId,
        from: PublicationState,
        to: PublicationState,
        durability: Durability,
    ) -> Result<Publication> {
        if !from.may_become(to) {
            return Err(LedgerError::IllegalPublication { from, to });
        }
        failpoint("publication", to.as_str(), "before")?;
        let publication = self.write(durability, |db| {
            let publication = existing(db, id)?;
            if publication.state != from {
                let found = publication.state;
                return Err(LedgerError::StalePublication { id, expected: from, found }.into());
            }
            set_state(db, publication, to)
        })?;
        failpoint("publication", to.as_str(), "after")?;
        Ok(publication)
    }

    /// Merges `journal`, an object, into that of the publication; null removes a key.
    ///
    /// # Errors
    /// [`LedgerError::NoSuchPublication`], [`LedgerError::NotAnObject`].
    pub fn note_publication(
        &mut self,
        id: PublicationId,
        journal: Value,
        durability: Durability,
    ) -> Result<()> {
        let change = row::object(journal, "journal")?;
        self.write(durability, |db| {
            let mut publication = existing(db, id)?;
            row::merge(&mut publication.journal, change)?;
            db.execute(
                "UPDATE publications SET journal = ?2, updated_ms = ?3 WHERE id = ?1",
                params![id.0, publication.journal.to_string(), now_ms()],
            )?;
            Ok(())
        })
    }

    /// The publications that a crash may have interrupted, oldest first.
    ///
    /// # Errors
    /// What SQLite says, or [`LedgerError::Corrupt`].
    pub fn open_publications(&self) -> Result<Vec<Publication>> {
        self.read(|db| select(db, "WHERE state IN ('intent', 'committed') ORDER BY id", []))
    }

    /// The newest publication of a task.
    ///
    /// # Errors
    /// What SQLite says, or [`LedgerError::Corrupt`].
    pub fn publication_of(&self, task: &TaskId) -> Result<Option<Publication>> {
        self.read(|db| {
            let newest = "WHERE task = ?1 ORDER BY id DESC LIMIT 1";
            Ok(select(db, newest, [task.as_str()])?.pop())
        })
    }

    /// Ends a landing: the publication, `intent` or `committed`, is `done` and the
    /// task, `publishing`, is `landed`; both or neither, durably.
    ///
    /// Failpoints `ledger:landed:before` and `ledger:landed:after`.
    ///
    /// # Errors
    /// [`LedgerError::Stale`], [`LedgerError::StalePublication`],
    /// [`LedgerError::NoSuchTask`], [`LedgerError::NoSuchPublication`] (also when it
    /// is another task's), [`LedgerError::NotAnObject`] for the facts.
    pub fn land(
        &mut self,
        id: &TaskId,
        publication: PublicationId,
        change: Change<'_>,
    ) -> Result<Task> {
        let word = State::Landed.as_str();
        failpoint("ledger", word, "before")?;
        let task = self.write(Durability::Full, |db| {
            let task = task::advance(db, id, State::Publishing, State::Landed, change)?;
            let found = existing(db, publication)?;
            if found.task != *id {
                let task = Some(id.clone());
                return Err(LedgerError::NoSuchPublication { id: publication, task }.into());
            }
            if !found.state.is_open() {
                return Err(LedgerError::StalePublication {
                    id: publication,
                    expected: PublicationState::Committed,
                    found: found.state,
                }
                .into());
            }
            set_state(db, found, PublicationState::Done)?;
            Ok(task)
        })?;
        failpoint("ledger", word, "after")?;
        Ok(task)
    }
}

fn set_state(
    db: &Connection,
    publication: Publication,
    state: PublicationState,
) -> Result<Publication, Fault> {
    let now = now_ms();
    db.execute(
        "UPDATE publications SET state = ?2, updated_ms = ?3 WHERE id = ?1",
        params![publication.id.0, state.as_str(), now],
    )?;
    Ok(Publication { state, updated_ms: now, ..publication })
}

fn existing(db: &Connection, id: PublicationId) -> Result<Publication, Fault> {
    select(db, "WHERE id = ?1", [id.0])?
        .pop()
        .ok_or_else(|| LedgerError::NoSuchPublication { id, task: None }.into())
}

fn select(
    db: &Connection,
    rest: &str,
    parameters: impl rusqlite::Params,
) -> Result<Vec<Publication>, Fault> {
    let columns = "id, task, target, old, new, state, journal, created_ms, updated_ms";
    db.prepare(&format!("SELECT {columns} FROM publications {rest}"))?
        .query_and_then(parameters, from_row)?
        .collect()
}

fn from_row(row: &Row<'_>) -> Result<Publication, Fault> {
    let id = PublicationId(row.get("id")?);
    Ok(Publication {
        id,
        task: row::word(row, "task")?,
        target: row.get("target")?,
        old: row.get("old")?,
        new: row.get("new")?,
        state: row::word(row, "state")?,
        journal: row::json(row, "journal", &format!("publication {id}"))?,
        created_ms: row.get("created_ms")?,
        updated_ms: row.get("updated_ms")?,
    })
}

//! Keys under which something is done once, however often it is asked for.
//!
//! A key belongs to one task at a time, and is claimed in the write that makes the task:
//! of any number of processes that come with the same key at once, one has a task of its
//! own and the others have that one's. A task that comes to an end with nothing done
//! gives its key back; whoever claims it next has it, and the first one can only have it
//! again with [`Ledger::claim_key`].
//!
//! | task | its key |
//! |---|---|
//! | live, or `ready` and not dropped | held |
//! | `landed`, `empty`, `superseded`, `in-doubt` | spent |
//! | anything else | given back |

use rusqlite::{Connection, params};

use crate::error::{Fault, LedgerError, Result};
use crate::task::{existing, insert, load};
use crate::{Durability, Ledger, NewTask, State, Task, TaskId, row, store};

/// What is to be done once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key<'a> {
    /// The name of it.
    pub key: &'a str,
    /// What was asked for under that name, as a hash: under one key only one thing is done.
    pub request: &'a str,
}

/// Whose a key is.
#[derive(Debug, Clone, PartialEq)]
pub enum Claim {
    /// The task's that asks.
    Own(Task),
    /// A task's that was asked for the same and was first. Done, when its state says so.
    Earlier(Task),
}

impl Ledger {
    /// Records a new task, unless one for the same key and request holds or has spent the
    /// key: then it gives that one.
    ///
    /// # Errors
    /// [`LedgerError::KeyOfAnother`] when that one was asked for something else, and as
    /// [`Ledger::create_task`].
    pub fn create_task_once(&mut self, new: NewTask, key: Key<'_>) -> Result<Claim> {
        store::failpoint("ledger", State::Queued.as_str(), "before")?;
        let claim = self.write(Durability::Normal, |db| {
            if let Some(earlier) = holder(db, key)? {
                return Ok(Claim::Earlier(earlier));
            }
            let task = insert(db, new)?;
            take(db, key, &task.id)?;
            Ok(Claim::Own(task))
        })?;
        store::failpoint("ledger", State::Queued.as_str(), "after")?;
        Ok(claim)
    }

    /// The task that holds or has spent the key.
    ///
    /// # Errors
    /// [`LedgerError::KeyOfAnother`] when it was asked for something else.
    pub fn key_holder(&self, key: Key<'_>) -> Result<Option<Task>> {
        self.read(|db| holder(db, key))
    }

    /// Claims the key for a task that had it once: what it did is to be done after all.
    ///
    /// # Errors
    /// [`LedgerError::KeyOfAnother`], [`LedgerError::NoSuchTask`].
    pub fn claim_key(&mut self, id: &TaskId, key: Key<'_>) -> Result<Claim> {
        self.write(Durability::Normal, |db| {
            let task = existing(db, id)?;
            match holder(db, key)? {
                Some(earlier) if earlier.id != *id => Ok(Claim::Earlier(earlier)),
                _ => {
                    take(db, key, id)?;
                    Ok(Claim::Own(task))
                }
            }
        })
    }
}

/// Who holds or has spent the key.
fn holder(db: &Connection, key: Key<'_>) -> Result<Option<Task>, Fault> {
    let found = db
        .prepare_cached("SELECT task, request FROM keys WHERE key = ?1")?
        .query_and_then([key.key], |row| -> Result<_, Fault> {
            Ok((row::word::<TaskId>(row, "task")?, row.get::<_, String>("request")?))
        })?
        .next()
        .transpose()?;
    let Some((id, request)) = found else { return Ok(None) };
    let Some(task) = load(db, &id)?.filter(keeps_its_key) else { return Ok(None) };
    if request != key.request {
        return Err(LedgerError::KeyOfAnother { key: key.key.into(), holder: task.name }.into());
    }
    Ok(Some(task))
}

fn keeps_its_key(task: &Task) -> bool {
    match task.state {
        State::Landed | State::Empty | State::Superseded | State::InDoubt => true,
        // One that was dropped will never land.
        State::Ready => !task.settled,
        state => state.is_live(),
    }
}

fn take(db: &Connection, key: Key<'_>, id: &TaskId) -> Result<(), Fault> {
    db.prepare_cached("INSERT OR REPLACE INTO keys (key, request, task) VALUES (?1, ?2, ?3)")?
        .execute(params![key.key, key.request, id.as_str()])?;
    Ok(())
}

//! Verdicts: a cache under an opaque key that stands for all a verdict depends on.

use rusqlite::{Row, params};
use serde::Serialize;
use serde_json::Value;

use crate::error::{Fault, Result};
use crate::{Durability, Ledger, Outcome, TaskId, row};

/// What a check said about one candidate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VerdictRow {
    /// The hash of everything that the outcome depends on.
    pub key: String,
    /// The candidate's tree.
    pub tree: String,
    /// The check's name.
    pub check: String,
    /// What it said.
    pub outcome: Outcome,
    /// The task whose candidate was checked. It may be forgotten by now.
    pub task: TaskId,
    /// When, in milliseconds since the epoch.
    pub at_ms: i64,
    /// How long it took, in milliseconds.
    pub took_ms: i64,
    /// Whatever else is to be known.
    pub detail: Value,
}

impl Ledger {
    /// The verdict under `key`.
    ///
    /// # Errors
    /// What SQLite says, or [`LedgerError::Corrupt`](crate::LedgerError::Corrupt).
    pub fn verdict(&self, key: &str) -> Result<Option<VerdictRow>> {
        self.read(|db| {
            db.prepare(
                "SELECT key, tree, check_name, outcome, task, at_ms, took_ms, detail
                 FROM verdicts WHERE key = ?1",
            )?
            .query_and_then([key], from_row)?
            .next()
            .transpose()
        })
    }

    /// Records a verdict, in place of an earlier one under the same key.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn record_verdict(&mut self, verdict: &VerdictRow, durability: Durability) -> Result<()> {
        self.write(durability, |db| {
            db.execute(
                "INSERT OR REPLACE INTO verdicts
                     (key, tree, check_name, outcome, task, at_ms, took_ms, detail)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![
                    verdict.key,
                    verdict.tree,
                    verdict.check,
                    verdict.outcome.as_str(),
                    verdict.task.as_str(),
                    verdict.at_ms,
                    verdict.took_ms,
                    verdict.detail.to_string()
                ],
            )?;
            Ok(())
        })
    }

    /// Forgets the verdicts that `task` recorded and returns how many.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn void_verdicts(&mut self, task: &TaskId) -> Result<usize> {
        self.write(Durability::Normal, |db| {
            Ok(db.execute("DELETE FROM verdicts WHERE task = ?1", [task.as_str()])?)
        })
    }
}

fn from_row(row: &Row<'_>) -> Result<VerdictRow, Fault> {
    let key: String = row.get("key")?;
    Ok(VerdictRow {
        tree: row.get("tree")?,
        check: row.get("check_name")?,
        outcome: row::word(row, "outcome")?,
        task: row::word(row, "task")?,
        at_ms: row.get("at_ms")?,
        took_ms: row.get("took_ms")?,
        detail: row::json(row, "detail", &format!("verdict `{key}`"))?,
        key,
    })
}

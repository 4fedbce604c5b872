//! Series: tasks that one loop starts again and again.
//!
//! A task names its series when it is made. What is kept beside that is how far a person
//! has looked at its failures.

use rusqlite::{OptionalExtension, params};

use crate::error::Result;
use crate::{Durability, Ledger};

impl Ledger {
    /// The names of all series that have tasks, in the order of their names.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn series(&self) -> Result<Vec<String>> {
        self.read(|db| {
            let names = "SELECT DISTINCT series FROM tasks WHERE series IS NOT NULL ORDER BY 1";
            db.prepare(names)?.query_and_then([], |row| Ok(row.get(0)?))?.collect()
        })
    }

    /// The last task of a series whose failure does not count any more, by its
    /// [`seq`](crate::Task::seq); 0 when all count.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn resumed(&self, series: &str) -> Result<i64> {
        self.read(|db| {
            let resumed = "SELECT resumed_seq FROM series WHERE name = ?1";
            Ok(db.query_row(resumed, [series], |row| row.get(0)).optional()?.unwrap_or(0))
        })
    }

    /// Lets the failures of a series so far count no more.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn resume(&mut self, series: &str) -> Result<()> {
        self.write(Durability::Normal, |db| {
            db.execute(
                "INSERT OR REPLACE INTO series (name, resumed_seq)
                 SELECT ?1, coalesce(max(seq), 0) FROM tasks WHERE series = ?1",
                params![series],
            )?;
            Ok(())
        })
    }
}

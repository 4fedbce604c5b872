//! The tables, and their version.
//!
//! Compatibility: each version after the first adds its step to [`STEPS`]; a program
//! never touches a ledger newer than it knows, and brings an older one to its own version
//! in one transaction. One that has it open meanwhile goes on: nothing that it knows is
//! changed.
//!
//! | version | what came with it |
//! |---|---|
//! | 1 | tasks, transitions, verdicts, publications |
//! | 2 | keys |
//! | 3 | series |

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, TransactionBehavior};

use crate::error::{Fault, LedgerError};
use crate::store::BUSY_TIMEOUT;

/// `PRAGMA user_version` of the ledgers that this program writes.
pub(crate) const VERSION: i32 = 3;

/// What makes each version of the one before, the first of an empty file.
const STEPS: [&str; VERSION as usize] = [FIRST, KEYS, SERIES];

/// Failures up to `resumed_seq` count no more.
const SERIES: &str = "
ALTER TABLE tasks ADD COLUMN series TEXT;
CREATE INDEX tasks_series ON tasks (series, seq) WHERE series IS NOT NULL;
CREATE TABLE series (
    name        TEXT PRIMARY KEY,
    resumed_seq INTEGER NOT NULL
) STRICT;
";

const KEYS: &str = "
CREATE TABLE keys (
    key     TEXT PRIMARY KEY,
    request TEXT NOT NULL,
    task    TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE
) STRICT;
CREATE INDEX keys_task ON keys (task);
";

/// What lists filter by stands before the JSON, which may overflow the page.
const FIRST: &str = "
CREATE TABLE tasks (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    name       TEXT NOT NULL,
    repo       TEXT NOT NULL,
    state      TEXT NOT NULL,
    settled    INTEGER NOT NULL DEFAULT 0,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    reason     TEXT,
    spec       TEXT NOT NULL,
    facts      TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX tasks_name_unsettled ON tasks (name) WHERE settled = 0;
CREATE INDEX tasks_name ON tasks (name);
CREATE INDEX tasks_state ON tasks (state);

CREATE TABLE transitions (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    task       TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    from_state TEXT,
    to_state   TEXT NOT NULL,
    at_ms      INTEGER NOT NULL,
    detail     TEXT
) STRICT;
CREATE INDEX transitions_task ON transitions (task);

CREATE TABLE verdicts (
    key        TEXT PRIMARY KEY,
    tree       TEXT NOT NULL,
    check_name TEXT NOT NULL,
    outcome    TEXT NOT NULL,
    task       TEXT NOT NULL,
    at_ms      INTEGER NOT NULL,
    took_ms    INTEGER NOT NULL,
    detail     TEXT NOT NULL
) STRICT;
CREATE INDEX verdicts_task ON verdicts (task);

CREATE TABLE publications (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    task       TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    target     TEXT NOT NULL,
    old        TEXT,
    new        TEXT NOT NULL,
    state      TEXT NOT NULL,
    journal    TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX publications_task ON publications (task);
CREATE INDEX publications_open ON publications (id) WHERE state IN ('intent', 'committed');
";

/// Makes sure that the tables are there and of our version. One pragma and no
/// schema statement when they are.
pub(crate) fn prepare(
    connection: &mut Connection,
    path: &Path,
    may_be_new: impl FnOnce() -> bool,
) -> Result<(), Fault> {
    let mut found = version(connection)?;
    if found == 0 && !may_be_new() {
        // Who was faster has made the tables before there was a task.
        found = version(connection)?;
        if found == 0 {
            let what = "it is empty, though there are tasks".to_owned();
            return Err(LedgerError::NotALedger { path: path.to_owned(), what }.into());
        }
    }
    match found {
        VERSION => Ok(()),
        0 => create(connection, path),
        1..VERSION => bring_up(connection, path),
        found => Err(unknown(found, path).into()),
    }
}

/// Makes the tables that are not there yet, whatever another process does meanwhile.
fn bring_up(connection: &mut Connection, path: &Path) -> Result<(), Fault> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = version(&transaction)?;
    let missing = usize::try_from(found).ok().and_then(|found| STEPS.get(found..));
    let Some(missing) = missing else { return Err(unknown(found, path).into()) };
    for step in missing {
        transaction.execute_batch(step)?;
    }
    if !missing.is_empty() {
        transaction.pragma_update(None, "user_version", VERSION)?;
    }
    Ok(transaction.commit()?)
}

fn unknown(found: i32, path: &Path) -> LedgerError {
    if found > VERSION {
        LedgerError::Newer { path: path.to_owned(), found, known: VERSION }
    } else {
        LedgerError::NotALedger { path: path.to_owned(), what: format!("version {found}") }
    }
}

fn version(connection: &Connection) -> Result<i32, Fault> {
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

fn create(connection: &mut Connection, path: &Path) -> Result<(), Fault> {
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    // Another process may have created the tables since the version was read.
    if tables > 0 && version(connection)? == 0 {
        let what = "a database of another program".to_owned();
        return Err(LedgerError::NotALedger { path: path.to_owned(), what }.into());
    }
    enter_wal(connection)?;
    bring_up(connection, path)
}

/// Switches to WAL, which stays with the file. SQLite calls no busy handler for
/// this lock, so two creators have to take turns by themselves.
fn enter_wal(connection: &Connection) -> Result<(), Fault> {
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        match connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(())) {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            other => return Ok(other?),
        }
    }
}

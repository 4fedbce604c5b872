//! The open ledger: one connection, and the only ways to read and write through it.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

use crate::error::{Fault, LedgerError, Result, at};
use crate::schema;

pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the write-ahead log grows before a writer moves it into the database.
/// Who opens a ledger that nobody else has open reads the whole log, about 2 µs a
/// page; each checkpoint costs two fsyncs. A run that lands writes about 50 pages.
const WAL_PAGES: i64 = 200;

/// What the write-ahead log has on disk from the beginning, in bytes: about as much as
/// it grows to, and some writes more.
const RESERVE: u64 = 1 << 20;

/// What a write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The death of the process, at any instruction.
    Normal,
    /// The loss of power too: the write, and every one before it, is on disk
    /// when the call returns. Costs one fsync.
    Full,
}

/// The durable record. One per thread; any number of them on the same file.
#[derive(Debug)]
pub struct Ledger {
    connection: Connection,
    path: PathBuf,
    /// What the connection's `synchronous` is set to.
    synchronous: Durability,
}

impl Ledger {
    /// Opens the ledger at `path`, creating it (mode 0600) when there is none.
    /// The directory must exist.
    ///
    /// # Errors
    /// [`LedgerError::Open`] when the file can't be had, [`LedgerError::NotALedger`]
    /// and [`LedgerError::Damaged`] for other content, [`LedgerError::Newer`] for a
    /// later version of the program. The file is then as it was.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_unless_lost(path, || false)
    }

    /// As [`Ledger::open`], but a file that is there and empty is refused when
    /// `has_tasks`: what it said about them is lost, and a new one must not hide that.
    ///
    /// # Errors
    /// As [`Ledger::open`].
    pub fn open_unless_lost(path: &Path, has_tasks: impl FnOnce() -> bool) -> Result<Self> {
        // An absolute path is also what keeps SQLite from taking it for a URI.
        let path = std::path::absolute(path)
            .map_err(|source| LedgerError::Open { path: path.to_owned(), source })?;
        let (mut connection, is_new) = connect(&path)?;
        prepare(&mut connection, &path, || is_new || !has_tasks())
            .map_err(|fault| fault.at(&path))?;
        keep_room(&path);
        // SQLite's default. Set per write: the pragma is one more statement that
        // a command which only reads need not pay for.
        Ok(Self { connection, path, synchronous: Durability::Full })
    }

    /// The ledger's file, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves what the write-ahead log holds into the database and empties it, as
    /// far as other processes let it: it waits for none. True when all was moved.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn checkpoint(&self) -> Result<bool> {
        self.read(|connection| {
            connection.busy_timeout(Duration::ZERO)?;
            let moved = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
                Ok(row.get::<_, i64>(0)? == 0)
            });
            connection.busy_timeout(BUSY_TIMEOUT)?;
            Ok(moved?)
        })
    }

    pub(crate) fn read<T>(&self, body: impl FnOnce(&Connection) -> Result<T, Fault>) -> Result<T> {
        body(&self.connection).map_err(|fault| fault.at(&self.path))
    }

    /// Runs `body` as one write: all of it is committed, or, on an error, none.
    pub(crate) fn write<T>(
        &mut self,
        durability: Durability,
        body: impl FnOnce(&Transaction<'_>) -> Result<T, Fault>,
    ) -> Result<T> {
        let run = || -> Result<T, Fault> {
            if self.synchronous != durability {
                let level = match durability {
                    Durability::Normal => "NORMAL",
                    Durability::Full => "FULL",
                };
                self.connection.pragma_update(None, "synchronous", level)?;
                self.synchronous = durability;
            }
            // Immediate: a read lock that is upgraded later fails at once when
            // another process has written in between, busy timeout or not.
            let transaction =
                self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let value = body(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        run().map_err(|fault| fault.at(&self.path))
    }
}

/// Opens the file, making an empty one (which SQLite takes for a new database)
/// when there is none.
///
/// One thread at a time: closing any descriptor of a file drops every lock that
/// the process has on it (fcntl(2)), so the one that creates the file must be
/// closed before another thread can have opened it.
///
/// Also says whether there was none.
fn connect(path: &Path) -> Result<(Connection, bool)> {
    static OPENING: Mutex<()> = Mutex::new(());
    let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    let fail = |source| LedgerError::Open { path: path.to_owned(), source };
    let created = match path.symlink_metadata() {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map(|_| true)
            .or_else(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => Ok(true),
                _ => Err(error),
            }),
        Err(error) => Err(error),
    };
    let is_new = created.map_err(fail)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|source| at(path, source))?;
    Ok((connection, is_new))
}

/// Gives the write-ahead log blocks in advance, beyond its end: on a disk that is full
/// by now, what became of the tasks on it can still be written down, and what is to be
/// deleted be forgotten. Where that can't be had, there is no reserve.
fn keep_room(ledger: &Path) {
    use rustix::fs::{FallocateFlags, fallocate};
    let mut log = ledger.as_os_str().to_owned();
    log.push("-wal");
    let taken = |meta: std::fs::Metadata| meta.blocks() * 512;
    if std::fs::metadata(&log).map_or(0, taken) >= RESERVE {
        return;
    }
    // SQLite has no locks on this file that closing it would drop.
    if let Ok(file) = OpenOptions::new().write(true).open(&log) {
        let _ = fallocate(&file, FallocateFlags::KEEP_SIZE, 0, RESERVE);
    }
}

fn prepare(
    connection: &mut Connection,
    path: &Path,
    may_be_new: impl FnOnce() -> bool,
) -> Result<(), Fault> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Else the last process to leave pays an fsync or two in every run.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.pragma_update(None, "wal_autocheckpoint", WAL_PAGES)?;
    schema::prepare(connection, path, may_be_new)
}

/// Visits the failpoint `<record>:<word>:<side>`.
pub(crate) fn failpoint(record: &str, word: &str, side: &str) -> Result<()> {
    cofferdam_failpoint::hit(&format!("{record}:{word}:{side}")).map_err(LedgerError::Injected)
}

/// The wall clock in milliseconds since the epoch; 0 when it is set before that.
#[must_use]
pub fn now_ms() -> i64 {
    if let Some(set) = cofferdam_failpoint::clock_ms() {
        return set;
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

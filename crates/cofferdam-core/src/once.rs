//! Requests that are done once, whoever asks how often: a clock that fires twice, a
//! person who starts again what may have been done.
//!
//! A key belongs to the first task that was asked for it ([`cofferdam_ledger::Claim`]).
//! Whoever comes while that one is at work waits for it and has its outcome, whatever it
//! is; whoever comes later has it when it is final (`landed`, `empty`) or waits for a
//! person (`ready`), and may try again when nothing was done. Of a task whose supervisor
//! died before the commit point nothing was done: one of those who waited goes on in its
//! place.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use cofferdam_ledger::{Key, Task};
use cofferdam_tree::{Lock, LockError, hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::control::Control;
use crate::facts::Facts;
use crate::receipt::Receipt;
use crate::reconcile::reconcile;
use crate::report::{Event, Reporter};
use crate::request::Request;
use crate::{Dam, Error};

/// The longest key, in bytes.
const LONGEST: usize = 200;

/// A key, and what is asked for under it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnceKey {
    /// What a person calls it.
    pub key: String,
    /// A hash of the request: everything that decides what is done, but not what it is
    /// called.
    #[serde(default)]
    pub request: String,
}

impl OnceKey {
    /// A key from the command line; what is asked for is not known yet.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(text: &str) -> Result<OnceKey, String> {
        if text.is_empty() || text.len() > LONGEST || text.chars().any(char::is_control) {
            return Err(format!("a key is text of 1 to {LONGEST} bytes in one line"));
        }
        Ok(OnceKey { key: text.to_owned(), request: String::new() })
    }

    pub(crate) fn as_ledger(&self) -> Key<'_> {
        Key { key: &self.key, request: &self.request }
    }
}

/// A hash for a key, 64 hexadecimal digits.
#[must_use]
pub fn hash(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes).as_slice())
}

/// Completes the key of a request that is made in `dir`, in a repository.
pub(crate) fn complete(request: &mut Request, dir: &Path, repo: &str) {
    if request.key.is_none() {
        return;
    }
    let mut asked = serde_json::to_value(&*request).expect("a request serialises");
    if let Some(fields) = asked.as_object_mut() {
        for is_no_matter in ["name", "keep", "key", "series"] {
            fields.remove(is_no_matter);
        }
    }
    let parts = serde_json::json!({ "version": 1, "request": asked, "repo": repo, "dir": dir });
    if let Some(key) = &mut request.key {
        key.request = hash(parts.to_string().as_bytes());
    }
}

/// The outcome of a task that was first; none when nothing came of it, and the key is to
/// be had again.
///
/// # Errors
/// [`Error::KeyHeld`] when it is at work and is not to be waited for,
/// [`Error::Interrupted`].
pub(crate) fn outcome(
    dam: &mut Dam,
    first: &Task,
    request: &Request,
    control: &Control,
    reporter: &dyn Reporter,
) -> Result<Option<Receipt>, Error> {
    let Some(once) = &request.key else { return Ok(None) };
    let key = once.key.clone();
    let dir = dam.task_dir(&first.id);
    let mut task = first.clone();
    // Of those who waited for one that died each can be who brings it to an end: the others
    // wait for that as well.
    while task.state.is_live() {
        let mut left = Vec::new();
        if dir.is_live()? {
            if !request.wait {
                return Err(Error::KeyHeld { key, name: first.name.clone() });
            }
            let what = format!("the run for the key `{key}`");
            reporter.report(Event::Waiting { what, holder: first.name.to_string() });
            let path = dir.lock();
            if patiently(move || Lock::shared(&path), || control.interrupts() > 0)?.is_none() {
                return Err(Error::Interrupted);
            }
        } else {
            left = reconcile(dam)?;
        }
        match dam.ledger.task(&first.id)? {
            Some(now) => task = now,
            None => return Ok(None),
        }
        if task.state.is_live() && !left.is_empty() && !dir.is_live()? {
            let left = left.join("; ");
            return Err(Error::usage(
                format!("the run for the key `{key}` broke off: {left}"),
                None,
            ));
        }
    }
    if Facts::of(&task)?.died {
        return Ok(None);
    }
    let mut receipt = Receipt::of(&task)?;
    receipt.replayed = true;
    reporter.report(Event::Replayed {
        task: task.id.to_string(),
        name: task.name.to_string(),
        key,
    });
    Ok(Some(receipt))
}

/// Waits for a lock until a person loses patience: `None` then. The kernel serves those
/// who wait in order, but can't be interrupted: a thread waits, and is left behind.
pub(crate) fn patiently(
    lock: impl FnOnce() -> Result<Lock, LockError> + Send + 'static,
    interrupted: impl Fn() -> bool,
) -> Result<Option<Lock>, Error> {
    let (send, receive) = mpsc::channel();
    std::thread::Builder::new().spawn(move || send.send(lock())).map_err(Error::NoThread)?;
    loop {
        match receive.recv_timeout(Duration::from_millis(50)) {
            Ok(lock) => return Ok(Some(lock?)),
            Err(mpsc::RecvTimeoutError::Timeout) if interrupted() => return Ok(None),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(Error::Internal("the wait for a lock broke off".into()));
            }
        }
    }
}

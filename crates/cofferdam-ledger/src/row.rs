//! Columns into values and back. What can't be read is [`LedgerError::Corrupt`].

use rusqlite::Row;
use serde_json::{Map, Value};

use crate::error::{Fault, LedgerError};
use crate::{Outcome, PublicationState, State, TaskId, TaskName};

/// A text column that stands for something.
pub(crate) trait Word: Sized {
    const WHAT: &'static str;
    fn read(text: &str) -> Option<Self>;
}

macro_rules! word {
    ($($type:ty, $what:literal, $read:expr;)+) => {
        $(impl Word for $type {
            const WHAT: &'static str = $what;
            fn read(text: &str) -> Option<Self> {
                $read(text)
            }
        })+
    };
}

word! {
    State, "task state", State::parse;
    PublicationState, "publication state", PublicationState::parse;
    Outcome, "check outcome", Outcome::parse;
    TaskId, "task id", |text| TaskId::parse(text).ok();
    TaskName, "task name", |text| TaskName::parse(text).ok();
}

pub(crate) fn word<T: Word>(row: &Row<'_>, column: &str) -> Result<T, Fault> {
    let text: String = row.get(column)?;
    from_word(&text)
}

pub(crate) fn optional_word<T: Word>(row: &Row<'_>, column: &str) -> Result<Option<T>, Fault> {
    let text: Option<String> = row.get(column)?;
    text.map(|text| from_word(&text)).transpose()
}

fn from_word<T: Word>(text: &str) -> Result<T, Fault> {
    T::read(text).ok_or_else(|| Fault::Corrupt(format!("the unknown {} `{text}`", T::WHAT)))
}

/// The JSON in `column` of the row that `whose` names.
pub(crate) fn json(row: &Row<'_>, column: &str, whose: &str) -> Result<Value, Fault> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text)
        .map_err(|error| Fault::Corrupt(format!("unreadable {column} of {whose}: {error}")))
}

/// `value` as an object; null is the empty one.
pub(crate) fn object(value: Value, what: &'static str) -> Result<Map<String, Value>, LedgerError> {
    match value {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        _ => Err(LedgerError::NotAnObject { what }),
    }
}

/// Puts `change` into `facts` key by key; null removes the key. Values are not
/// merged any deeper.
pub(crate) fn merge(facts: &mut Value, change: Map<String, Value>) -> Result<(), Fault> {
    let Value::Object(facts) = facts else {
        return Err(Fault::Corrupt("facts that are no JSON object".to_owned()));
    };
    for (key, value) in change {
        if value.is_null() {
            facts.remove(&key);
        } else {
            facts.insert(key, value);
        }
    }
    Ok(())
}

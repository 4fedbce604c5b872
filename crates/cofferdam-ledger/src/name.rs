//! How tasks are called: [`TaskId`] by the program, [`TaskName`] by people.

use std::fmt;

use serde::{Deserialize, Serialize};

const ID_LEN: usize = 8;
const NAME_MAX: usize = 63;

/// The id of a task: eight characters of `[0-9a-z]`. Never used twice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TaskId(String);

/// The text is no task id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a task id (eight characters of 0-9 and a-z)")]
pub struct IdError {
    /// The text.
    pub text: String,
}

impl TaskId {
    /// Takes `text` as an id.
    ///
    /// # Errors
    /// [`IdError`] when it isn't eight characters of `[0-9a-z]`.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if text.len() == ID_LEN && text.bytes().all(is_alphanumeric) {
            Ok(Self(text.to_owned()))
        } else {
            Err(IdError { text: text.to_owned() })
        }
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a task: `[a-z0-9][a-z0-9._-]{0,62}`. At most one task that is not
/// settled has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TaskName(String);

/// The text is no task name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// There is nothing.
    #[error("a task name can't be empty")]
    Empty,
    /// It begins with another character than a letter or digit.
    #[error("task name `{name}` must begin with a-z or 0-9")]
    Start {
        /// The text.
        name: String,
    },
    /// It has a character that no name has.
    #[error("task name `{name}` can't contain `{character}` (only a-z, 0-9, `.`, `_` and `-`)")]
    Character {
        /// The text.
        name: String,
        /// The first character that is wrong.
        character: char,
    },
    /// It is longer than 63 characters.
    #[error("task name `{name}` is longer than {NAME_MAX} characters")]
    Long {
        /// The text.
        name: String,
    },
}

impl TaskName {
    /// Takes `text` as a name.
    ///
    /// # Errors
    /// [`NameError`] says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let name = || text.to_owned();
        let Some(first) = text.bytes().next() else { return Err(NameError::Empty) };
        if let Some(character) = text.chars().find(|c| !is_name_char(*c)) {
            return Err(NameError::Character { name: name(), character });
        }
        if !is_alphanumeric(first) {
            return Err(NameError::Start { name: name() });
        }
        if text.len() > NAME_MAX {
            return Err(NameError::Long { name: name() });
        }
        Ok(Self(text.to_owned()))
    }

    /// Makes a name out of any text: lower case, every run of other characters
    /// one `-`, cut at 63; `task` when nothing is left.
    ///
    /// Names become branches, and git refuses `..` and an ending `.` or `.lock`:
    /// the result has none of these.
    #[must_use]
    pub fn from_words(text: &str) -> Self {
        let mut name = String::with_capacity(NAME_MAX);
        for c in text.chars().map(|c| c.to_ascii_lowercase()) {
            if name.len() == NAME_MAX {
                break;
            }
            let c = if is_name_char(c) { c } else { '-' };
            let separator = |c| matches!(c, '-' | '.' | '_');
            if separator(c) && name.chars().last().is_none_or(separator) {
                continue;
            }
            name.push(c);
        }
        loop {
            let kept = name.trim_end_matches(['-', '.', '_']);
            let kept = kept.strip_suffix(".lock").unwrap_or(kept).len();
            if kept == name.len() {
                break;
            }
            name.truncate(kept);
        }
        if name.is_empty() {
            name.push_str("task");
        }
        Self(name)
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_digit() || byte.is_ascii_lowercase()
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_digit() || c.is_ascii_lowercase() || matches!(c, '.' | '_' | '-')
}

macro_rules! text_type {
    ($type:ident, $error:ident) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $type {
            type Err = $error;

            fn from_str(text: &str) -> Result<Self, $error> {
                Self::parse(text)
            }
        }

        impl TryFrom<String> for $type {
            type Error = $error;

            fn try_from(text: String) -> Result<Self, $error> {
                Self::parse(&text)
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.0
            }
        }
    };
}

text_type!(TaskId, IdError);
text_type!(TaskName, NameError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_eight_lower_case_characters() {
        assert_eq!(TaskId::parse("0a1b2c3d").unwrap().to_string(), "0a1b2c3d");
        for bad in ["", "0a1b2c3", "0a1b2c3d4", "0A1b2c3d", "0a1b-c3d", "0a1b2cé"] {
            assert_eq!(TaskId::parse(bad), Err(IdError { text: bad.to_owned() }));
        }
    }

    #[test]
    fn names_follow_the_grammar() {
        for good in ["a", "0", "fix-login", "a.b_c-d", &"x".repeat(63)] {
            assert_eq!(TaskName::parse(good).unwrap().as_ref(), good);
        }
        assert_eq!(TaskName::parse(""), Err(NameError::Empty));
        assert!(matches!(TaskName::parse("-a"), Err(NameError::Start { .. })));
        assert!(matches!(TaskName::parse(&"x".repeat(64)), Err(NameError::Long { .. })));
        for bad in ["A", "a b", "a/b", "ä", "a\n"] {
            assert!(matches!(TaskName::parse(bad), Err(NameError::Character { .. })), "{bad:?}");
        }
    }

    #[test]
    fn any_text_makes_a_legal_name() {
        for (text, name) in [
            ("Fix the login page", "fix-the-login-page"),
            ("  cargo test --locked  ", "cargo-test-locked"),
            ("", "task"),
            ("日本語", "task"),
            ("…", "task"),
            ("../../etc/passwd", "etc-passwd"),
            ("a..b", "a.b"),
            ("Cargo.lock", "cargo"),
            ("a.lock.lock.", "a"),
            ("lock", "lock"),
            (".lock", "lock"),
            ("v1.2_rc", "v1.2_rc"),
        ] {
            assert_eq!(TaskName::from_words(text).as_ref(), name, "{text:?}");
        }
        let long = format!("{} {}", "x".repeat(62), "y".repeat(9));
        assert_eq!(TaskName::from_words(&long).as_ref(), "x".repeat(62));
        for c in (0..=0x2ffu32).filter_map(char::from_u32) {
            for text in [format!("{c}"), format!("{c}a"), format!("a{c}"), format!("a{c}{c}b")] {
                let name = TaskName::from_words(&text);
                assert_eq!(TaskName::parse(name.as_ref()), Ok(name), "{text:?}");
            }
        }
    }

    #[test]
    fn reading_json_checks_the_rules() {
        assert_eq!(
            serde_json::to_string(&TaskId::parse("0a1b2c3d").unwrap()).unwrap(),
            "\"0a1b2c3d\""
        );
        assert!(serde_json::from_str::<TaskId>("\"../etc\"").is_err());
        assert!(serde_json::from_str::<TaskName>("\"a/b\"").is_err());
    }
}

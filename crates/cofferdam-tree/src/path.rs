//! Paths as bytes: shown without ambiguity, accepted only when they stay below
//! the directory they are relative to.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_with::{DeserializeAs, SerializeAs};

/// A path that need not be UTF-8. `Display` escapes control characters,
/// backslashes and bytes that are not UTF-8, so that a hostile name can neither
/// break a line nor drive a terminal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BytePath(pub Vec<u8>);

impl BytePath {
    /// The bytes as they are on disk.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for BytePath {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl fmt::Display for BytePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(".");
        }
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c == '\\' || c.is_control() || is_format_control(c) {
                    write!(f, "{}", c.escape_default())?;
                } else {
                    write!(f, "{c}")?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for BytePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Direction marks and line separators: not control characters for Unicode, yet
/// they change how the rest of a line is shown.
fn is_format_control(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// How a path or a word of a command line is kept in JSON: as text where it is
/// UTF-8, else as its bytes. For `#[serde(with = "As::<…>")]`.
#[derive(Debug)]
pub struct TextOrBytes;

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form<'a> {
    Text(std::borrow::Cow<'a, str>),
    Bytes(Vec<u8>),
}

impl Form<'_> {
    fn into_bytes(self) -> Vec<u8> {
        match self {
            Form::Text(text) => text.into_owned().into_bytes(),
            Form::Bytes(bytes) => bytes,
        }
    }
}

macro_rules! kept_as_text_or_bytes {
    ($owned:ty, $as_os:expr) => {
        impl SerializeAs<$owned> for TextOrBytes {
            fn serialize_as<S: Serializer>(value: &$owned, to: S) -> Result<S::Ok, S::Error> {
                let value: &std::ffi::OsStr = $as_os(value);
                match value.to_str() {
                    Some(text) => Form::Text(text.into()),
                    None => Form::Bytes(value.as_bytes().to_vec()),
                }
                .serialize(to)
            }
        }

        impl<'de> DeserializeAs<'de, $owned> for TextOrBytes {
            fn deserialize_as<D: Deserializer<'de>>(from: D) -> Result<$owned, D::Error> {
                Ok(OsString::from_vec(Form::deserialize(from)?.into_bytes()).into())
            }
        }
    };
}

kept_as_text_or_bytes!(PathBuf, Path::as_os_str);
kept_as_text_or_bytes!(OsString, OsString::as_os_str);

/// The components of a relative path, or `None` when it is empty, absolute, has
/// an empty, `.` or `..` component, or a NUL.
pub(crate) fn components(path: &[u8]) -> Option<Vec<&[u8]>> {
    let parts: Vec<&[u8]> = path.split(|b| *b == b'/').collect();
    parts.iter().all(|part| is_name(part)).then_some(parts)
}

/// Whether `name` can name one entry of a directory.
pub(crate) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_shown_on_one_line() {
        let shown = BytePath(b"a\nb\xff\x1b[31m\xc3\xa9\\\xe2\x80\xae".to_vec()).to_string();
        assert_eq!(shown, "a\\nb\\xff\\u{1b}[31m\u{e9}\\\\\\u{202e}");
        assert_eq!(BytePath(Vec::new()).to_string(), ".");
    }

    #[test]
    fn paths_that_are_no_text_come_back_from_json() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Kept {
            #[serde(with = "serde_with::As::<Vec<TextOrBytes>>")]
            paths: Vec<PathBuf>,
        }
        let paths = [b"/a/\xc3\xa9".as_slice(), b"/b\n\xff"]
            .map(|path| PathBuf::from(OsString::from_vec(path.to_vec())));
        let kept = Kept { paths: paths.to_vec() };
        let text = serde_json::to_string(&kept).unwrap();
        assert_eq!(text, r#"{"paths":["/a/é",[47,98,10,255]]}"#);
        assert_eq!(serde_json::from_str::<Kept>(&text).unwrap(), kept);
    }

    #[test]
    fn only_paths_below_are_accepted() {
        for bad in ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "a\0b"] {
            assert!(components(bad.as_bytes()).is_none(), "{bad:?}");
        }
        assert_eq!(components(b"a/..b/\xff").unwrap().len(), 3);
    }
}

//! Paths as bytes: shown without ambiguity, accepted only when they stay below
//! the directory they are relative to.

use std::fmt;

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
    fn only_paths_below_are_accepted() {
        for bad in ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "a\0b"] {
            assert!(components(bad.as_bytes()).is_none(), "{bad:?}");
        }
        assert_eq!(components(b"a/..b/\xff").unwrap().len(), 3);
    }
}

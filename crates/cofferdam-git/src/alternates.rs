//! Directories of borrowed objects, as git lists them: in a file, a line each, or in
//! a variable, between colons. An entry that would be read otherwise stands in
//! quotes, as a string in C.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::{GitError, IoContext, below};

/// What a file with these directories holds.
pub(crate) fn file_of<'a>(dirs: impl IntoIterator<Item = &'a Path>) -> Vec<u8> {
    let mut text = Vec::new();
    for dir in dirs {
        text.extend(entry(dir, b'\n'));
        text.push(b'\n');
    }
    text
}

/// The value of `GIT_ALTERNATE_OBJECT_DIRECTORIES` for one directory.
#[must_use]
pub fn variable(dir: &Path) -> OsString {
    OsString::from_vec(entry(dir, b':'))
}

/// The directories that an object directory borrows from, relative ones joined to it.
///
/// # Errors
/// When its list is there and can't be read.
pub(crate) fn of(objects: &Path) -> Result<Vec<PathBuf>, GitError> {
    let file = objects.join("info/alternates");
    let text = match std::fs::read(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).at("read", &file),
    };
    Ok(text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty() && !line.starts_with(b"#"))
        .map(|line| {
            let path = unquoted(line).unwrap_or_else(|| line.to_vec());
            below(objects, &path)
        })
        .collect())
}

fn entry(dir: &Path, end: u8) -> Vec<u8> {
    let bytes = dir.as_os_str().as_bytes();
    if bytes.contains(&end) || bytes.starts_with(b"\"") || bytes.starts_with(b"#") {
        quoted(bytes)
    } else {
        bytes.to_vec()
    }
}

/// Bytes as git reads them between quotes, whatever they are.
pub(crate) fn quoted(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![b'"'];
    for byte in bytes {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', *byte]),
            b' '..=b'~' => out.push(*byte),
            other => out.extend(format!("\\{other:03o}").into_bytes()),
        }
    }
    out.push(b'"');
    out
}

/// What stands between quotes; `None` when it is not that.
fn unquoted(text: &[u8]) -> Option<Vec<u8>> {
    let mut rest = text.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let mut out = Vec::with_capacity(rest.len());
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'\\' {
            out.push(*byte);
            continue;
        }
        let (escape, after) = rest.split_first()?;
        rest = after;
        out.push(match escape {
            b'a' => 7,
            b'b' => 8,
            b't' => b'\t',
            b'n' => b'\n',
            b'v' => 11,
            b'f' => 12,
            b'r' => b'\r',
            b'"' | b'\\' => *escape,
            b'0'..=b'3' => {
                let (digits, after) = rest.split_at_checked(2)?;
                rest = after;
                let octal = [*escape, digits[0], digits[1]];
                u8::from_str_radix(std::str::from_utf8(&octal).ok()?, 8).ok()?
            }
            _ => return None,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_quoted_where_they_would_be_read_otherwise() {
        let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
        let plain = path(b"/a b:c\xff");
        assert_eq!(file_of([plain.as_path()]), b"/a b:c\xff\n");
        assert_eq!(variable(&plain), *r#""/a b:c\377""#);
        assert_eq!(file_of([path(b"/a\nb").as_path()]), b"\"/a\\012b\"\n");
    }

    #[test]
    fn quotes_come_off() {
        for bytes in [b"a \"b\"\n\xff\\".as_slice(), b"", b"x"] {
            assert_eq!(unquoted(&quoted(bytes)).as_deref(), Some(bytes));
        }
        assert_eq!(unquoted(br#""a\tb\"""#).as_deref(), Some(b"a\tb\"".as_slice()));
        for no in [br#"plain"#.as_slice(), br#""open"#, br#""\9""#, br#""\37""#, br#""\"#] {
            assert_eq!(unquoted(no), None);
        }
    }
}

//! Names that git must never check out.
//!
//! A file system that folds case, strips trailing dots and spaces (NTFS) or
//! skips invisible characters (HFS+) takes more than `.git` for `.git`. The
//! change may be checked out on one of those later, so the rule is the same
//! everywhere. Source: git's `verify_path`, `is_ntfs_dotgit`, `is_hfs_dotgit`.

/// Why a path component can't land, if it can't.
pub(super) fn forbidden(name: &[u8], symlink: bool) -> Option<&'static str> {
    if name == b".git" {
        return Some("is a repository of its own inside: ignore it, or take its `.git` away");
    }
    let plain = visible(name);
    if is_dot_git(&plain) {
        return Some("has a component that is `.git` on some file systems");
    }
    if symlink && matches!(plain.as_slice(), b".gitmodules" | b".gitattributes" | b".gitignore") {
        return Some("is a symlink in place of one of git's own files");
    }
    if matches!(name, b"." | b"..") || name.contains(&b'\\') && is_dot_git_after_backslash(name) {
        return Some("has a component that leaves the directory");
    }
    None
}

fn is_dot_git(plain: &[u8]) -> bool {
    let stream = plain.split(|byte| *byte == b':').next().unwrap_or(plain);
    let end = stream.iter().rposition(|byte| !matches!(byte, b'.' | b' ')).map_or(0, |at| at + 1);
    matches!(&stream[..end], b".git" | b"git~1")
}

fn is_dot_git_after_backslash(name: &[u8]) -> bool {
    name.split(|byte| *byte == b'\\').any(|part| part == b".." || is_dot_git(&visible(part)))
}

/// Lower case, without what HFS+ ignores.
fn visible(name: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(name)
        .chars()
        .filter(|c| {
            !matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}')
        })
        .flat_map(char::to_lowercase)
        .collect::<String>()
        .into_bytes()
}

/// Whether a symlink at `path` that says `target` stays inside of the
/// repository and out of its `.git`, by its words alone.
pub(super) fn stays_inside(path: &[u8], target: &[u8]) -> bool {
    if target.first() == Some(&b'/') || target.is_empty() {
        return false;
    }
    let mut depth: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    depth.pop();
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                if depth.pop().is_none() {
                    return false;
                }
            }
            name => depth.push(name),
        }
    }
    depth.first().is_none_or(|first| forbidden(first, false).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_dot_git() {
        for name in [
            ".git",
            ".GIT",
            ".Git ",
            ".git...",
            "git~1",
            "GIT~1",
            ".g\u{200c}it",
            ".git::$INDEX_ALLOCATION",
            "a\\.git",
            "..\\x",
        ] {
            assert!(forbidden(name.as_bytes(), false).is_some(), "{name}");
        }
        for name in [".gitignore", ".github", "git", ".gitx", "x.git", "git~10", "a\\b"] {
            assert!(forbidden(name.as_bytes(), false).is_none(), "{name}");
        }
        assert!(forbidden(b".gitmodules", true).is_some());
        assert!(forbidden(b".gitmodules", false).is_none());
    }

    #[test]
    fn links_by_their_words() {
        assert!(stays_inside(b"a/b/link", b"../../c"));
        assert!(!stays_inside(b"a/b/link", b"../../../c"));
        assert!(!stays_inside(b"link", b"/etc/passwd"));
        assert!(!stays_inside(b"link", b".git/config"));
        assert!(!stays_inside(b"a/link", b"../.GIT/config"));
        assert!(stays_inside(b"link", b"a/../b"));
    }
}

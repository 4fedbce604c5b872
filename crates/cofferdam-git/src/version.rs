//! Which git this is.
//!
//! 2.38 brought `merge-tree --write-tree` and `cat-file -z`. Looked at before the first work
//! on a repository, and when git does not know what it was asked.

use crate::{GitCommand, GitError};

/// The oldest git that has what is needed.
pub const OLDEST: (u32, u32) = (2, 38);

/// Which git this is, as it words it.
///
/// # Errors
/// [`GitError::Unsupported`] when it is older than [`OLDEST`].
pub fn query() -> Result<String, GitError> {
    let done = GitCommand::discovering(None).args(["version"]).finish()?;
    let text = String::from_utf8_lossy(&done.stdout).trim().to_owned();
    match parse(&text) {
        _ if !done.status.success() => Err(GitError::Failed {
            command: done.command,
            code: done.status.code(),
            stderr: done.stderr,
        }),
        Some(version) if version >= OLDEST => Ok(text),
        _ => Err(GitError::Unsupported(format!(
            "`{text}` is too old: {}.{} or newer is needed",
            OLDEST.0, OLDEST.1
        ))),
    }
}

/// In the place of an error about a call that git did not understand: that it is too old, if
/// it is.
pub(crate) fn or_too_old(error: GitError) -> GitError {
    match query() {
        Err(too_old @ GitError::Unsupported(_)) => too_old,
        _ => error,
    }
}

fn parse(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.strip_prefix("git version ")?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(parse("git version 2.47.3"), Some((2, 47)));
        assert_eq!(parse("git version 2.39.5 (Apple Git-154)"), Some((2, 39)));
        assert_eq!(parse("git 2"), None);
        assert!(parse("git version 2.9.0") < Some(OLDEST));
    }
}

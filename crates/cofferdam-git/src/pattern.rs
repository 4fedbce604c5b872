//! Patterns of whole paths, as a person writes them in a configuration.

use gix_ignore::glob::wildmatch;

/// Whether `path` is meant by `pattern`: `*` and `?` stop at `/`, `**` does not, and
/// a pattern that names a directory means all that is below it. Case counts.
#[must_use]
pub fn matches(pattern: &str, path: &[u8]) -> bool {
    let pattern = pattern.strip_prefix("./").unwrap_or(pattern).trim_end_matches('/');
    let is_literal = |text: &str| !text.contains(['*', '?', '[', '\\']);
    // The common ones without the general way: a change can have a million paths.
    if is_literal(pattern) {
        let rest = path.strip_prefix(pattern.as_bytes());
        return rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
    }
    if let Some(name) = pattern.strip_prefix("**/").filter(|name| is_literal(name)) {
        let name = name.as_bytes();
        let starts = std::iter::once(0).chain(ends(path).map(|at| at + 1));
        return starts.into_iter().any(|at| {
            let rest = path[at..].strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        });
    }
    let whole = |path: &[u8]| {
        wildmatch(pattern.into(), path.into(), wildmatch::Mode::NO_MATCH_SLASH_LITERAL)
    };
    whole(path) || ends(path).any(|at| whole(&path[..at]))
}

/// Where the names in a path end, but for the last.
fn ends(path: &[u8]) -> impl Iterator<Item = usize> {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_paths_and_what_is_below_them() {
        for (pattern, path, wanted) in [
            ("ci", "ci", true),
            ("./ci/", "ci/run", true),
            ("ci", "src/ci", false),
            ("ci/**", "ci/a/b", true),
            ("ci/*", "ci/a/b", true),
            ("*.mk", "rules.mk", true),
            ("*.mk", "sub/rules.mk", false),
            ("**/*.mk", "rules.mk", true),
            ("**/*.mk", "a/b/rules.mk", true),
            ("**/.cargo/config", ".cargo/config", true),
            ("**/.cargo/config", ".cargo/config.toml", false),
            (".github/workflows", ".github/workflows/ci.yml", true),
            ("**/.cargo/config", "a/.cargo/config", true),
            ("**/.cargo/config", "a.cargo/config", false),
            ("**/tests", "a/tests/b", true),
            ("a?c", "abc/d", true),
            ("Makefile", "makefile", false),
        ] {
            assert_eq!(matches(pattern, path.as_bytes()), wanted, "{pattern} {path}");
        }
    }
}

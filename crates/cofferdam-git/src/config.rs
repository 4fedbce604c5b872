//! The person's git configuration, read by git itself.

use std::path::PathBuf;

use crate::command::Started;
use crate::{GitCommand, GitError, Repository};

/// All settings that are in force in a repository, in git's order.
#[derive(Debug, Clone, Default)]
pub struct PersonConfig {
    entries: Vec<(String, String)>,
}

impl PersonConfig {
    /// Reads them.
    ///
    /// # Errors
    /// [`GitError`] when the configuration is broken.
    pub fn read(repo: &Repository) -> Result<PersonConfig, GitError> {
        PersonConfig::finish(PersonConfig::start(repo.git())?)
    }

    /// Reads those of the repository that git, to be started in it, finds.
    pub(crate) fn start(git: GitCommand) -> Result<Started, GitError> {
        git.args(["config", "--list", "-z", "--includes"]).start()
    }

    pub(crate) fn finish(started: Started) -> Result<PersonConfig, GitError> {
        Ok(PersonConfig::parse(&started.run()?))
    }

    fn parse(out: &[u8]) -> PersonConfig {
        let entries = out
            .split(|byte| *byte == 0)
            .filter(|entry| !entry.is_empty())
            .map(|entry| {
                let text = String::from_utf8_lossy(entry);
                match text.split_once('\n') {
                    Some((key, value)) => (key.to_owned(), value.to_owned()),
                    // A key without `=` is true.
                    None => (text.into_owned(), "true".to_owned()),
                }
            })
            // What our own calls set by `-c` is listed too.
            .filter(|(key, _)| !key.starts_with("core.fsync") && key != "core.hookspath")
            .collect();
        PersonConfig { entries }
    }

    /// The value in force: the last one. Section and key in lower case.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.entries.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Whether a boolean setting is on.
    #[must_use]
    pub fn is_true(&self, key: &str) -> bool {
        matches!(
            self.get(key).map(str::to_ascii_lowercase).as_deref(),
            Some("true" | "yes" | "on" | "1")
        )
    }

    /// Whether the executable bit of files is to be ignored (`core.fileMode`).
    #[must_use]
    pub fn ignores_modes(&self) -> bool {
        self.is_false("core.filemode")
    }

    /// Whether git shows every object as it is, replaced or not (`core.useReplaceRefs`).
    #[must_use]
    pub fn ignores_replacements(&self) -> bool {
        self.is_false("core.usereplacerefs")
    }

    fn is_false(&self, key: &str) -> bool {
        let value = self.get(key).map(str::to_ascii_lowercase);
        matches!(value.as_deref(), Some("false" | "no" | "off" | "0" | ""))
    }

    /// Name and mail address of the person, when configured.
    #[must_use]
    pub fn identity(&self) -> Option<(String, String)> {
        let get = |key: &str| self.get(key).filter(|value| !value.is_empty()).map(str::to_owned);
        let name = get("author.name").or_else(|| get("user.name"))?;
        let mail = get("author.email").or_else(|| get("user.email"))?;
        Some((name, mail))
    }

    /// Names of remotes with their URLs, credentials in them left out.
    #[must_use]
    pub fn remotes(&self) -> Vec<(String, String)> {
        let mut remotes: Vec<(String, String)> = Vec::new();
        for (key, value) in &self.entries {
            if let Some(name) =
                key.strip_prefix("remote.").and_then(|rest| rest.strip_suffix(".url"))
                && !remotes.iter().any(|(known, _)| known == name)
            {
                remotes.push((name.to_owned(), without_credentials(value)));
            }
        }
        remotes
    }

    /// Whether a program is configured for `filter=NAME`.
    #[must_use]
    pub fn has_filter(&self, name: &str) -> bool {
        ["clean", "smudge", "process"]
            .iter()
            .any(|what| self.get(&format!("filter.{name}.{what}")).is_some())
    }

    /// The file that `key` (or git's default below the configuration directory) names.
    #[must_use]
    pub fn file(&self, key: &str, default_name: &str) -> Option<PathBuf> {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        match self.get(key) {
            Some(path) => match path.strip_prefix("~/") {
                Some(rest) => Some(home?.join(rest)),
                None => Some(path.into()),
            },
            None => {
                let dir = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
                Some(dir.or_else(|| Some(home?.join(".config")))?.join("git").join(default_name))
            }
        }
    }

    /// What decides about line endings, as settings for a call on our store.
    #[must_use]
    pub fn conversion_settings(&self) -> Vec<String> {
        ["core.autocrlf", "core.eol"]
            .iter()
            .filter_map(|key| Some(format!("{key}={}", self.get(key)?)))
            .collect()
    }
}

/// A URL without the user and password of `https://user:password@host/`.
fn without_credentials(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        Some((user, host)) if scheme == "ssh" => {
            let user = user.split(':').next().unwrap_or_default();
            format!("{scheme}://{user}@{host}{path}")
        }
        Some((_, host)) => format!("{scheme}://{host}{path}"),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_setting_counts_and_a_bare_key_is_true() {
        let config = PersonConfig::parse(b"user.name\nAnn\0core.autocrlf\0user.name\nBo\0");
        assert_eq!(config.get("user.name"), Some("Bo"));
        assert!(config.is_true("core.autocrlf"));
        assert_eq!(config.identity(), None);
    }

    #[test]
    fn credentials_in_remotes_stay_outside() {
        assert_eq!(
            without_credentials("https://ann:tok@h.example/r.git"),
            "https://h.example/r.git"
        );
        assert_eq!(without_credentials("https://tok@h.example"), "https://h.example");
        assert_eq!(without_credentials("ssh://git:pw@h.example/r"), "ssh://git@h.example/r");
        assert_eq!(without_credentials("git@h.example:r.git"), "git@h.example:r.git");
        assert_eq!(without_credentials("/srv/r.git"), "/srv/r.git");
    }
}

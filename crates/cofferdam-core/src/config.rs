//! `cofferdam.toml`, read from the target's tip and never from a change.
//!
//! Unknown keys are errors that name the nearest known one: a misspelt check
//! would be a check that never runs.

use std::time::Duration;

use cofferdam_git::{CommitId, Store};
use cofferdam_sandbox::Limits;
use toml::{Table, Value};

use crate::Error;
use crate::limits::{parse_cpus, parse_size};
use crate::request::{Check, Level};

/// Most that `check.retry` can say.
const MOST_RETRIES: i64 = 9;

/// The file's name, at the top of the repository.
pub const FILE: &str = "cofferdam.toml";

/// What the file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepoConfig {
    /// `[task] level`: the least that a task must have.
    pub level: Option<Level>,
    /// `[task] into`: the branch to land on.
    pub into: Option<String>,
    /// `[task] timeout`.
    pub timeout: Option<Duration>,
    /// `[[check]]`, in order.
    pub checks: Vec<Check>,
    /// `[limits]`.
    pub limits: Limits,
    /// `[limits] output`.
    pub output: Option<u64>,
    /// `[land] protect`: patterns of paths that a task may not change.
    pub protect: Vec<String>,
}

impl RepoConfig {
    /// Reads the file of a commit; a commit without one gives the defaults.
    ///
    /// # Errors
    /// [`Error::Config`] that names the key, [`Error::Git`].
    pub fn at(store: &Store, commit: &CommitId) -> Result<RepoConfig, Error> {
        RepoConfig::of(commit, store.top_file(commit, FILE)?)
    }

    /// Reads the content of the file of a commit, if it has one.
    ///
    /// # Errors
    /// [`Error::Config`] that names the key.
    pub(crate) fn of(commit: &CommitId, file: Option<Vec<u8>>) -> Result<RepoConfig, Error> {
        let Some(bytes) = file else { return Ok(RepoConfig::default()) };
        RepoConfig::parse(&String::from_utf8_lossy(&bytes))
            .map_err(|message| Error::Config { at: commit.0.short().to_owned(), message })
    }

    /// Reads the text of the file.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn parse(text: &str) -> Result<RepoConfig, String> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        known(&table, "", &["version", "task", "check", "land", "limits"])?;
        match table.get("version") {
            None | Some(Value::Integer(1)) => {}
            Some(other) => {
                return Err(format!("version {other:?} is not known; this program knows 1"));
            }
        }
        let mut config = RepoConfig::default();
        if let Some(task) = table.get("task") {
            let task = task.as_table().ok_or("`task` must be a table, `[task]`")?;
            known(task, "task.", &["level", "into", "timeout"])?;
            config.level = match text_of(task, "task.", "level")? {
                None => None,
                Some("worktree") => Some(Level::Worktree),
                Some("sandbox") => Some(Level::Sandbox),
                Some(other) => {
                    return Err(format!("`task.level` is `{other}`, which is not a level here"));
                }
            };
            config.into = text_of(task, "task.", "into")?.map(str::to_owned);
            config.timeout = duration_of(task, "task.", "timeout")?;
        }
        if let Some(checks) = table.get("check") {
            let checks =
                checks.as_array().ok_or("`check` must be a list of tables, `[[check]]`")?;
            for (number, check) in checks.iter().enumerate() {
                let check =
                    check.as_table().ok_or("`check` must be a list of tables, `[[check]]`")?;
                let keys = ["name", "run", "timeout", "pinned", "retry", "clean"];
                known(check, "check.", &keys)?;
                let run = text_of(check, "check.", "run")?.ok_or("a `[[check]]` lacks `run`")?;
                if run.trim().is_empty() {
                    return Err("`check.run` is empty: it would always pass".into());
                }
                let name = text_of(check, "check.", "name")?;
                config.checks.push(Check {
                    name: name.map_or_else(|| format!("check {}", number + 1), str::to_owned),
                    timeout: duration_of(check, "check.", "timeout")?,
                    pinned: patterns_of(check, "check.", "pinned")?,
                    retry: match check.get("retry") {
                        None => 0,
                        Some(Value::Integer(times @ 0..=MOST_RETRIES)) => *times as u32,
                        Some(_) => {
                            return Err(format!(
                                "`check.retry` must be a number from 0 to {MOST_RETRIES}"
                            ));
                        }
                    },
                    clean: match check.get("clean") {
                        None => false,
                        Some(Value::Boolean(clean)) => *clean,
                        Some(_) => return Err("`check.clean` must be `true` or `false`".into()),
                    },
                    ..Check::new(run)
                });
            }
        }
        if let Some(limits) = table.get("limits") {
            let limits = limits.as_table().ok_or("`limits` must be a table, `[limits]`")?;
            known(limits, "limits.", &["memory", "cpus", "pids", "disk", "output"])?;
            let size = |key: &str| -> Result<Option<u64>, String> {
                let text = text_of(limits, "limits.", key)?;
                text.map(parse_size).transpose().map_err(|why| format!("`limits.{key}`: {why}"))
            };
            config.limits = Limits {
                memory: size("memory")?,
                disk: size("disk")?,
                cpus: match limits.get("cpus") {
                    None => None,
                    Some(Value::Integer(number)) => Some(parse_cpus(&number.to_string())),
                    Some(Value::Float(number)) => Some(parse_cpus(&number.to_string())),
                    Some(_) => return Err("`limits.cpus` must be a number".into()),
                }
                .transpose()
                .map_err(|why| format!("`limits.cpus`: {why}"))?,
                pids: match limits.get("pids") {
                    None => None,
                    Some(Value::Integer(pids @ 1..)) => u64::try_from(*pids).ok(),
                    Some(_) => return Err("`limits.pids` must be a number above 0".into()),
                },
            };
            config.output = size("output")?;
        }
        if let Some(land) = table.get("land") {
            let land = land.as_table().ok_or("`land` must be a table, `[land]`")?;
            known(land, "land.", &["protect"])?;
            config.protect = patterns_of(land, "land.", "protect")?;
        }
        Ok(config)
    }
}

fn known(table: &Table, prefix: &str, names: &[&str]) -> Result<(), String> {
    for key in table.keys() {
        if names.contains(&key.as_str()) {
            continue;
        }
        let nearest = names
            .iter()
            .map(|name| (strsim::damerau_levenshtein(key, name), name))
            .min()
            .filter(|(distance, name)| *distance <= name.len().div_ceil(2));
        return Err(match nearest {
            Some((_, name)) => {
                format!("`{prefix}{key}` is not known; did you mean `{prefix}{name}`?")
            }
            None => format!("`{prefix}{key}` is not known; known are: {}", names.join(", ")),
        });
    }
    Ok(())
}

fn text_of<'a>(table: &'a Table, prefix: &str, key: &str) -> Result<Option<&'a str>, String> {
    match table.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(format!("`{prefix}{key}` must be text, not {}", other.type_str())),
    }
}

fn texts_of(table: &Table, prefix: &str, key: &str) -> Result<Vec<String>, String> {
    let wrong = || format!("`{prefix}{key}` must be a list of texts");
    let Some(value) = table.get(key) else { return Ok(Vec::new()) };
    let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(wrong);
    value.as_array().ok_or_else(wrong)?.iter().map(text).collect()
}

/// Patterns of whole paths; one that can match none is an error.
fn patterns_of(table: &Table, prefix: &str, key: &str) -> Result<Vec<String>, String> {
    let patterns = texts_of(table, prefix, key)?;
    for pattern in &patterns {
        let plain = pattern.strip_prefix("./").unwrap_or(pattern);
        let odd = plain.is_empty()
            || plain.starts_with(['/', '!'])
            || plain.split('/').any(|part| part == "..")
            || plain.trim_end_matches('/').contains("//");
        if odd {
            return Err(format!(
                "`{prefix}{key}`: `{pattern}` matches no path; paths begin at the top of the repository, without `/`"
            ));
        }
    }
    Ok(patterns)
}

fn duration_of(table: &Table, prefix: &str, key: &str) -> Result<Option<Duration>, String> {
    text_of(table, prefix, key)?
        .map(|text| {
            humantime::parse_duration(text).map_err(|error| {
                format!("`{prefix}{key}` is `{text}`: {error}; write it like `20m`")
            })
        })
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_in_order() {
        let config = RepoConfig::parse(
            "version = 1\n[task]\ninto = \"main\"\ntimeout = \"8h\"\n\
             [[check]]\nname = \"test\"\nrun = \"make test\"\ntimeout = \"20m\"\n[[check]]\nrun = \"./lint\"\n",
        )
        .expect("parse");
        assert_eq!(config.into.as_deref(), Some("main"));
        assert_eq!(config.checks[0].timeout, Some(Duration::from_secs(1200)));
        assert_eq!(config.checks[1].name, "check 2");
    }

    #[test]
    fn unknown_keys_name_the_nearest() {
        let error = RepoConfig::parse("[[chekc]]\nrun = \"x\"\n").expect_err("unknown");
        assert!(error.contains("`chekc`") && error.contains("`check`"), "{error}");
        let error = RepoConfig::parse("[[check]]\nrnu = \"x\"\n").expect_err("unknown");
        assert!(error.contains("`check.run`"), "{error}");
        assert!(
            RepoConfig::parse("[task]\ntimeout = 3\n").expect_err("type").contains("task.timeout")
        );
        assert!(RepoConfig::parse("version = 2\n").is_err());
        assert!(RepoConfig::parse("not toml").is_err());
    }
}

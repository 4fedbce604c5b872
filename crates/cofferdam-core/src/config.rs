//! `cofferdam.toml`, read from the target's tip and never from a change, and the
//! person's own configuration, which has the same keys and more.
//!
//! The command line comes first, then the repository's file, then the person's. What
//! the repository's limits it can only tighten; what it asks of the host ([`Asks`])
//! counts once the person has said so ([`crate::trust`]).
//!
//! Unknown keys are errors that name the nearest known one: a misspelt check
//! would be a check that never runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_git::{CommitId, Objects};
use cofferdam_sandbox::Limits;
use schemars::JsonSchema;
use serde::Serialize;
use toml::{Table, Value};

use crate::Error;
use crate::admit::is_git_dir;
use crate::limits::{parse_cpus, parse_size};
use crate::request::{Check, Level};

/// Most things of a kind that can be asked of the host: a person has to read them.
const MOST_ASKED: usize = 50;
/// Most that `check.retry` can say.
const MOST_RETRIES: i64 = 9;

/// The file's name, at the top of the repository.
pub const FILE: &str = "cofferdam.toml";

/// Whose file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// `cofferdam.toml`.
    Repository,
    /// The person's own.
    Person,
}

/// What a file asks of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Asks {
    /// `[task] inputs`: as for `--input`, absolute or below `~/`.
    pub inputs: Vec<String>,
    /// `[task] carry`: paths of the checkout that are not in the base.
    pub carry: Vec<String>,
    /// `[task] env`: names of variables.
    pub env: Vec<String>,
    /// `[network] task`: whether it is `open`.
    pub network: bool,
}

impl Asks {
    /// Whether it asks for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Asks::default()
    }

    /// A line for each thing that is asked for.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let all = |what: &str, names: &[String]| -> Vec<String> {
            names.iter().map(|name| format!("{what} `{name}`")).collect()
        };
        let mut lines = all("input", &self.inputs);
        lines.extend(all("a copy of", &self.carry));
        lines.extend(all("variable", &self.env));
        lines.extend(self.network.then(|| "the host's network".to_owned()));
        lines
    }
}

/// What a file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    /// `[task] level`: the least that a task must have; of the person's, the one it has
    /// when nothing is said.
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
    /// `[lessons] file`: what lessons are added to, relative to the top of the repository.
    pub lessons: Option<String>,
    /// `[network] task = "none"`, said and not left out.
    pub offline: bool,
    /// What it asks of the host.
    pub asks: Asks,
    /// `state_dir`, of the person's alone: where the state is.
    pub state_dir: Option<PathBuf>,
    /// `[settle]`, of the person's alone.
    pub settle: Settle,
}

/// How long what is left of tasks is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settle {
    /// `failed`: the contexts of those that did not land; zero for `"log"`, where their
    /// logs and records alone are kept.
    pub failed: Option<Duration>,
    /// `records`: records, logs and receipts.
    pub records: Option<Duration>,
}

/// Where the person's own configuration is, when there is a place for it.
#[must_use]
pub fn own_dir() -> Option<PathBuf> {
    let from = |name: &str, rest: &str| {
        let dir = PathBuf::from(std::env::var_os(name)?);
        dir.is_absolute().then(|| dir.join(rest))
    };
    from("XDG_CONFIG_HOME", "cofferdam").or_else(|| from("HOME", ".config/cofferdam"))
}

/// A path as a configuration says it: absolute, or below `~/`.
#[must_use]
pub(crate) fn expanded(text: &str) -> Option<PathBuf> {
    let path = match text.strip_prefix("~/") {
        Some(below) => Path::new(&std::env::var_os("HOME")?).join(below),
        None => PathBuf::from(text),
    };
    path.is_absolute().then_some(path)
}

impl Config {
    /// Reads the file of a commit; a commit without one gives the defaults.
    ///
    /// # Errors
    /// [`Error::Config`] that names the key, [`Error::Git`].
    pub fn at(objects: &mut Objects, commit: &CommitId) -> Result<Config, Error> {
        let tree = objects.tree_of(commit)?;
        Config::of(commit, objects.top_file(&tree, FILE)?)
    }

    /// Reads the content of the file of a commit, if it has one.
    ///
    /// # Errors
    /// [`Error::Config`] that names the key.
    pub(crate) fn of(commit: &CommitId, file: Option<Vec<u8>>) -> Result<Config, Error> {
        let Some(bytes) = file else { return Ok(Config::default()) };
        Config::parse(&String::from_utf8_lossy(&bytes), Whose::Repository).map_err(|message| {
            Error::Config { file: format!("`{FILE}` at {}", commit.0.short()), message }
        })
    }

    /// Reads the person's own; without one there are the defaults.
    ///
    /// # Errors
    /// [`Error::Config`] that names the key.
    pub fn of_person() -> Result<Config, Error> {
        let Some(path) = own_dir().map(|dir| dir.join("config.toml")) else {
            return Ok(Config::default());
        };
        let wrong =
            |message: String| Error::Config { file: format!("`{}`", path.display()), message };
        match std::fs::read_to_string(&path) {
            Ok(text) => Config::parse(&text, Whose::Person).map_err(wrong),
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(Config::default())
            }
            Err(error) => Err(wrong(error.to_string())),
        }
    }

    /// This, of a repository, with what the person's own adds: its checks and protected
    /// paths, and what is left open here.
    #[must_use]
    pub fn joined(mut self, own: &Config) -> Config {
        self.into = self.into.or_else(|| own.into.clone());
        self.timeout = self.timeout.or(own.timeout);
        self.checks.extend(own.checks.iter().cloned());
        self.lessons = self.lessons.or_else(|| own.lessons.clone());
        self.protect.extend(own.protect.iter().cloned());
        self
    }

    /// Reads the text of the file.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn parse(text: &str, whose: Whose) -> Result<Config, String> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        let mut keys = vec!["version", "task", "check", "land", "limits", "network", "lessons"];
        if whose == Whose::Person {
            keys.extend(["state_dir", "settle"]);
        }
        known(&table, "", &keys)?;
        match table.get("version") {
            None | Some(Value::Integer(1)) => {}
            Some(other) => {
                let other = other
                    .as_integer()
                    .map_or_else(|| "that is no number".into(), |n| n.to_string());
                return Err(format!("version {other} is not known; this program knows 1"));
            }
        }
        let mut config = Config::default();
        if let Some(task) = table.get("task") {
            let task = task.as_table().ok_or("`task` must be a table, `[task]`")?;
            known(task, "task.", &["level", "into", "timeout", "inputs", "carry", "env"])?;
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
            config.asks.inputs = texts_of(task, "task.", "inputs")?;
            config.asks.carry = texts_of(task, "task.", "carry")?;
            config.asks.env = texts_of(task, "task.", "env")?;
            for (key, asked) in [
                ("inputs", &config.asks.inputs),
                ("carry", &config.asks.carry),
                ("env", &config.asks.env),
            ] {
                if asked.len() > MOST_ASKED {
                    return Err(format!("`task.{key}` asks for more than {MOST_ASKED} things"));
                }
            }
            let inside = |path: &&String| {
                Path::new(path).components().any(|part| {
                    !matches!(part, std::path::Component::Normal(_)) || is_git_dir(part)
                }) || path.is_empty()
            };
            if let Some(path) = config.asks.carry.iter().find(inside) {
                return Err(format!("`task.carry`: `{path}` is not a path inside the repository"));
            }
            let placed = |input: &&String| {
                let dest = input.rsplit_once(':').map_or("/", |(_, dest)| dest);
                let source = input.starts_with('/') || input.starts_with("~/");
                !source || !dest.starts_with('/')
            };
            if let Some(input) = config.asks.inputs.iter().find(placed) {
                return Err(format!(
                    "`task.inputs`: `{input}` must be absolute or begin with `~/`, and its place \
                     inside must be absolute"
                ));
            }
            let odd = |name: &&String| {
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
                name.is_empty() || !name.chars().all(plain) || name.starts_with("DAM_")
            };
            if let Some(name) = config.asks.env.iter().find(odd) {
                return Err(format!(
                    "`task.env`: `{name}` is no name of a variable that can be given"
                ));
            }
        }
        if let Some(network) = table.get("network") {
            let network = network.as_table().ok_or("`network` must be a table, `[network]`")?;
            known(network, "network.", &["task"])?;
            match text_of(network, "network.", "task")? {
                None => {}
                Some("none") => config.offline = true,
                Some("open") => config.asks.network = true,
                Some(other) => {
                    return Err(format!("`network.task` is `{other}`; it can be `none` or `open`"));
                }
            }
        }
        if let Some(lessons) = table.get("lessons") {
            let lessons = lessons.as_table().ok_or("`lessons` must be a table, `[lessons]`")?;
            known(lessons, "lessons.", &["file"])?;
            let file = text_of(lessons, "lessons.", "file")?;
            config.lessons = file.map(lessons_file).transpose()?;
        }
        if let Some(settle) = table.get("settle") {
            let settle = settle.as_table().ok_or("`settle` must be a table, `[settle]`")?;
            known(settle, "settle.", &["failed", "records"])?;
            config.settle.failed = match text_of(settle, "settle.", "failed")? {
                Some("log") => Some(Duration::ZERO),
                _ => duration_of(settle, "settle.", "failed")?,
            };
            config.settle.records = duration_of(settle, "settle.", "records")?;
        }
        if let Some(dir) = text_of(&table, "", "state_dir")? {
            let path = expanded(dir);
            let wrong = || format!("`state_dir`: `{dir}` must be absolute or begin with `~/`");
            config.state_dir = Some(path.ok_or_else(wrong)?);
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
                    name: name.map_or_else(
                        || match whose {
                            Whose::Repository => format!("check {}", number + 1),
                            Whose::Person => format!("your check {}", number + 1),
                        },
                        str::to_owned,
                    ),
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

/// The file of lessons, as a person names it.
///
/// # Errors
/// What is wrong with it, in words.
pub fn lessons_file(text: &str) -> Result<String, String> {
    let path = Path::new(text);
    let plain = |part| matches!(part, std::path::Component::Normal(_)) && !is_git_dir(part);
    if text.is_empty() || !path.components().all(plain) || path == Path::new(FILE) {
        return Err(format!("`{text}` can't be the file of lessons: a path in the repository can"));
    }
    let clean: std::path::PathBuf = path.components().collect();
    Ok(clean.to_string_lossy().into_owned())
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

    fn repository(text: &str) -> Result<Config, String> {
        Config::parse(text, Whose::Repository)
    }

    #[test]
    fn checks_in_order() {
        let config = repository(
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
        let error = repository("[[chekc]]\nrun = \"x\"\n").expect_err("unknown");
        assert!(error.contains("`chekc`") && error.contains("`check`"), "{error}");
        let error = repository("[[check]]\nrnu = \"x\"\n").expect_err("unknown");
        assert!(error.contains("`check.run`"), "{error}");
        assert!(repository("[task]\ntimeout = 3\n").expect_err("type").contains("task.timeout"));
        assert!(repository("version = 2\n").is_err());
        assert!(repository("not toml").is_err());
    }

    #[test]
    fn what_a_file_asks_of_the_host() {
        let text = "[task]\ninputs = [\"~/playbooks:/srv/p\"]\ncarry = [\".env\"]\nenv = [\"LANG\"]\n\
             [network]\ntask = \"open\"\n";
        let asks = repository(text).expect("parse").asks;
        assert_eq!(
            asks.lines(),
            [
                "input `~/playbooks:/srv/p`",
                "a copy of `.env`",
                "variable `LANG`",
                "the host's network"
            ]
        );
        assert!(repository("[network]\ntask = \"none\"\n").expect("parse").asks.is_empty());
        for (text, word) in [
            ("[task]\ninputs = [\"playbooks\"]\n", "absolute"),
            ("[task]\nenv = [\"DAM_TASK\"]\n", "DAM_TASK"),
            ("[task]\nenv = [\"A=1\"]\n", "A=1"),
            ("[network]\ntask = \"allow\"\n", "`none` or `open`"),
            ("[network]\ncheck = \"open\"\n", "known are: task"),
            ("state_dir = \"/x\"\n", "`state_dir` is not known"),
        ] {
            let error = repository(text).expect_err("refused");
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn the_persons_own_adds_to_the_repositorys() {
        let own = "state_dir = \"/srv/state\"\n[task]\ntimeout = \"1h\"\ninto = \"dev\"\n\
             [[check]]\nrun = \"true\"\n[land]\nprotect = [\"a\"]\n[limits]\nmemory = \"1GiB\"\n";
        let own = Config::parse(own, Whose::Person).expect("parse");
        assert_eq!(own.state_dir.as_deref(), Some(Path::new("/srv/state")));
        let theirs =
            "[task]\ntimeout = \"2h\"\n[[check]]\nrun = \"make\"\n[land]\nprotect = [\"b\"]\n";
        let joined = repository(theirs).expect("parse").joined(&own);
        assert_eq!(joined.timeout, Some(Duration::from_secs(7200)));
        assert_eq!(joined.into.as_deref(), Some("dev"));
        let names: Vec<&str> = joined.checks.iter().map(|check| check.name.as_str()).collect();
        assert_eq!(names, ["check 1", "your check 1"]);
        assert_eq!(joined.protect, ["b", "a"]);
        // What the person's limits is a default, not a bound.
        assert_eq!(joined.limits, Limits::default());
    }
}

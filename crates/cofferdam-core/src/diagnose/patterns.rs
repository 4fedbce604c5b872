//! The patterns of the data file, and how one is compared with what was printed.

use std::collections::BTreeMap;
use std::sync::{LazyLock, OnceLock};

use cofferdam_sandbox::{Network, Wall};
use regex_lite::Regex;
use serde::Deserialize;

use crate::request::Level;

use super::{Diagnosis, Failure, Host, Line, Role, Where, fill};

/// The version of the data file's form.
const VERSION: u32 = 1;
/// The longest text that a placeholder stands for: more is nothing to be read.
const LONGEST_WORD: usize = 300;

/// What the placeholders stand for.
pub(super) type Words = BTreeMap<String, String>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DataFile {
    version: u32,
    pattern: Vec<Pattern>,
}

/// A cause, and what is printed because of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pattern {
    pub(super) id: String,
    #[serde(default = "sandbox")]
    pub(super) level: Level,
    #[serde(default = "last")]
    last: usize,
    #[serde(default)]
    variables: Vec<String>,
    #[serde(default)]
    pub(super) idle: bool,
    find: Option<Find>,
    lines: Vec<Form>,
    say: Vec<Say>,
}

fn sandbox() -> Level {
    Level::Sandbox
}

fn last() -> usize {
    40
}

/// What must be so outside and not inside.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Find {
    Program(String),
    File(String),
    Port(String),
}

/// What a line looks like.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    has: String,
    #[serde(default)]
    without: Vec<String>,
    #[serde(default)]
    form: Option<Expression>,
}

/// A regular expression that is made when a line could have its form: all of them
/// together take longer than most commands.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
struct Expression {
    text: String,
    #[serde(skip)]
    made: OnceLock<Regex>,
}

impl Expression {
    fn get(&self) -> &Regex {
        self.made.get_or_init(|| Regex::new(&self.text).expect("the data file is tested"))
    }
}

/// What is told, and when.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Say {
    role: Option<Role>,
    network: Option<Network>,
    wall: Option<Wall>,
    read_only: Option<bool>,
    #[serde(rename = "where")]
    places: Option<Vec<Where>>,
    disk_full: Option<bool>,
    message: String,
    hint: String,
}

/// All patterns, the most specific first.
pub(super) fn all() -> &'static [Pattern] {
    static PATTERNS: LazyLock<Vec<Pattern>> = LazyLock::new(|| {
        parse(include_str!("../../../data/diagnosis.toml")).expect("the data file is tested")
    });
    &PATTERNS
}

pub(super) fn parse(text: &str) -> Result<Vec<Pattern>, String> {
    let file: DataFile = toml::from_str(text).map_err(|error| error.to_string())?;
    if file.version != VERSION {
        return Err(format!("version {} is not known", file.version));
    }
    Ok(file.pattern)
}

#[cfg(test)]
impl Pattern {
    /// Fails when one of its expressions is none.
    pub(super) fn check(&self) {
        let forms = self.lines.iter().filter_map(|line| line.form.as_ref());
        forms.for_each(|form| {
            form.get();
        });
    }
}

impl Pattern {
    /// What is told of the last line that matches, and which that is.
    pub(super) fn look(
        &self,
        failure: &Failure<'_>,
        lines: &[&Line],
        host: &dyn Host,
    ) -> Option<(usize, Diagnosis)> {
        let near_the_end =
            lines.iter().enumerate().rev().filter(|(_, line)| line.after < self.last);
        near_the_end
            .filter_map(|(at, line)| {
                Some((at, self.lines.iter().find_map(|form| form.words(&line.text))?))
            })
            .find_map(|(at, words)| Some((at, self.told(words, failure, host)?)))
    }

    fn told(&self, mut words: Words, failure: &Failure<'_>, host: &dyn Host) -> Option<Diagnosis> {
        let mut variables = self.variables.iter().filter_map(|name| fill(name, &words));
        if variables.any(|name| failure.env.iter().any(|(given, _)| *given == *name)) {
            return None;
        }
        if let Some(find) = &self.find {
            let found = find.outside(&words, host)?;
            words.insert("found".to_owned(), found);
        }
        let path = words.get("found").or_else(|| words.get("path"));
        let place = Where::of(path.map(String::as_str), failure, host);
        let says = self.say.iter().filter(|say| say.applies(failure, place, host));
        says.filter_map(|say| Some((fill(&say.message, &words)?, fill(&say.hint, &words)?)))
            .map(|(message, hint)| Diagnosis { id: self.id.clone(), message, hint })
            .next()
    }
}

impl Find {
    /// What is outside and not inside, in words.
    fn outside(&self, words: &Words, host: &dyn Host) -> Option<String> {
        let path = match self {
            Find::Program(name) => host.program(&fill(name, words)?)?,
            Find::File(path) => host.file(&fill(path, words)?)?,
            Find::Port(port) => {
                let port = fill(port, words)?;
                return host.listens(port.parse().ok()?).then_some(port);
            }
        };
        Some(path.display().to_string())
    }
}

impl Form {
    /// The named groups of a line that has this form.
    fn words(&self, line: &str) -> Option<Words> {
        if !line.contains(&self.has) || self.without.iter().any(|text| line.contains(text)) {
            return None;
        }
        let Some(form) = &self.form else { return Some(Words::new()) };
        let form = form.get();
        let captures = form.captures(line)?;
        let named = form.capture_names().flatten().filter_map(|name| {
            let value = captures.name(name)?.as_str();
            (value.len() <= LONGEST_WORD).then(|| (name.to_owned(), value.to_owned()))
        });
        Some(named.collect())
    }
}

impl Say {
    fn applies(&self, failure: &Failure<'_>, place: Where, host: &dyn Host) -> bool {
        self.role.is_none_or(|role| role == failure.role)
            && self.network.is_none_or(|network| network == failure.network)
            && self.wall.is_none_or(|wall| wall == failure.wall)
            && self.read_only.is_none_or(|read_only| read_only == failure.read_only)
            && self.places.as_ref().is_none_or(|places| places.contains(&place))
            && self.disk_full.is_none_or(|full| full == host.disk_is_full())
    }
}

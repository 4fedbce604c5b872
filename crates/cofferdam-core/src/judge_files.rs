//! Files of the repository that decide what a check says.
//!
//! Two kinds. *Pinned* files are the check itself: programs and scripts that its
//! command names, and what its `pinned` patterns mean. A check runs with those of the target's tip,
//! whatever the change made of them. Others are obeyed by a runner (`conftest.py`,
//! the scripts in `package.json`): `judge.toml` lists them. A change to either kind
//! never lands by itself.

use std::path::{Component, Path};
use std::sync::LazyLock;

use cofferdam_git::layer::{self, Difference};
use cofferdam_git::{Store, TreeId, merge, pattern};
use serde::Deserialize;

use crate::Error;
use crate::error::IoContext;
use crate::gate::Candidate;
use crate::job::Job;
use crate::request::Check;

const DATA: &str = include_str!("../../data/judge.toml");

static LIST: LazyLock<List> =
    LazyLock::new(|| toml::from_str(DATA).expect("the list is read by a test"));

/// A larger file is not read for its keys: it counts as a whole.
const LARGEST: usize = 4 << 20;
/// How many links in a row are followed.
const LINKS: usize = 8;
/// Words of a command that are looked for in the tree.
const WORDS: usize = 64;

const TYPE: u32 = 0o170_000;
const LINK: u32 = 0o120_000;
const DIR: u32 = 0o040_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    version: u32,
    runner: Vec<Runner>,
    keyed: Vec<Keyed>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Runner {
    #[expect(dead_code, reason = "for the reader of the list")]
    name: String,
    files: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keyed {
    file: String,
    format: Format,
    keys: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    Json,
    Toml,
}

/// What a candidate does to files that decide what a check says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JudgeFiles {
    /// The candidate with the pinned files of the tip; none when those are the same.
    pub(crate) pinned: Option<Candidate>,
    /// The changed paths of both kinds, in words.
    pub(crate) changed: Vec<String>,
}

/// The paths that the candidate changes and a task may not change at all.
pub(crate) fn protected(differences: &[Difference], patterns: &[String]) -> Vec<String> {
    differences
        .iter()
        .filter(|difference| {
            patterns.iter().any(|pattern| pattern::matches(pattern, &difference.path))
        })
        .map(|difference| String::from_utf8_lossy(&difference.path).into_owned())
        .collect()
}

/// Looks what of a candidate decides what `checks` say. `differences` are those from
/// the tip's tree to the candidate's.
///
/// # Errors
/// [`Error::Git`] when the trees can't be read.
pub(crate) fn look(
    job: &Job<'_>,
    candidate: &Candidate,
    tip_tree: &TreeId,
    differences: &[Difference],
    checks: &[Check],
) -> Result<JudgeFiles, Error> {
    debug_assert_eq!(LIST.version, 1);
    let mut files = JudgeFiles { pinned: None, changed: Vec::new() };
    if checks.is_empty() || differences.is_empty() {
        return Ok(files);
    }
    let words: Vec<Word> =
        checks.iter().flat_map(|check| words(&check.run, &job.place.top)).collect();
    let named = named(&job.store, tip_tree, &words)?;
    let patterns = || checks.iter().flat_map(|check| &check.pinned);
    let mut back = Vec::new();
    for difference in differences {
        let path = &difference.path;
        let shown = String::from_utf8_lossy(path);
        if named.contains(path) || patterns().any(|pattern| pattern::matches(pattern, path)) {
            back.push(difference);
            files.changed.push(format!("`{shown}`"));
        } else if words.iter().any(|word| word.script && word.path == *path) {
            // The tip has none to put in its place.
            files.changed.push(format!("`{shown}`"));
        } else if let Some(what) = obeyed(&job.store, difference)? {
            files.changed.push(format!("`{shown}`{what}"));
        }
    }
    if !back.is_empty() {
        let scratch = job.dir.path().join("merge");
        std::fs::create_dir_all(&scratch).at("make", &scratch)?;
        let tree = merge::undone(&job.store, &candidate.tree, back, &scratch);
        std::fs::remove_dir_all(&scratch).at("remove", &scratch)?;
        let (tip, tree) = (candidate.tip.clone(), tree?);
        let commit = merge::commit(&job.store, &tree, &tip, &job.commit_text()?)?;
        files.pinned = Some(Candidate { tip, commit, tree });
    }
    Ok(files)
}

/// A word of a command that could be a path of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Word {
    path: Vec<u8>,
    /// Whether it stands where a program or a script does. What stands elsewhere may
    /// be what is checked: it is pinned only if it is a program itself.
    script: bool,
}

/// What runs the file that is named next.
const INTERPRETERS: &[&str] = &[
    ".", "bash", "bun", "dash", "deno", "exec", "julia", "ksh", "lua", "node", "perl", "php",
    "python", "python2", "python3", "ruby", "sh", "source", "tclsh", "ts-node", "tsx", "zsh",
];
/// What runs every file that is named after it.
const RUNNERS: &[&str] = &[
    "ava", "bats", "jest", "mocha", "nox", "phpunit", "prove", "py.test", "pytest", "rspec", "tox",
    "vitest",
];

/// Words of a command that could be paths, relative to `top`. Not a parser of shells:
/// quotes are gaps, and what is quoted is read as commands, too.
fn words(run: &str, top: &Path) -> Vec<Word> {
    let apart = |c: char| ";&|(){}`\n".contains(c);
    let gap = |c: char| c.is_whitespace() || "\"'$=,:<>".contains(c);
    let mut words: Vec<Word> = Vec::new();
    for command in run.split(apart) {
        let mut next_is_script = true;
        let mut all_are_scripts = false;
        for word in command.split(gap).filter(|word| !word.is_empty()) {
            let program = word.rsplit('/').next().unwrap_or(word);
            let script = next_is_script || all_are_scripts;
            all_are_scripts |= RUNNERS.contains(&program);
            // An option, or a variable in front, leaves the next one in its place.
            if INTERPRETERS.contains(&program) {
                next_is_script = true;
            } else if !word.starts_with('-') {
                next_is_script = false;
            }
            let path = Path::new(word);
            let path = path.strip_prefix(top).unwrap_or(path);
            let Some(path) = clean(path) else { continue };
            if let Some(known) = words.iter_mut().find(|known| known.path == path) {
                known.script |= script;
            } else if words.len() < WORDS {
                words.push(Word { path, script });
            }
        }
    }
    words
}

/// A relative path without `.` and `..`; none when it leads out.
fn clean(path: &Path) -> Option<Vec<u8>> {
    let mut names: Vec<&[u8]> = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push(name.as_encoded_bytes()),
            Component::CurDir => {}
            Component::ParentDir => drop(names.pop()?),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!names.is_empty()).then(|| names.join(&b'/'))
}

/// The programs and scripts that `words` name in a tree, also below a directory that
/// one of them names (`cd sub && ./ci`), and the links that lead to them.
fn named(store: &Store, tree: &TreeId, words: &[Word]) -> Result<Vec<Vec<u8>>, Error> {
    const EXECUTABLE: u32 = 0o100_755;
    /// A path to be looked at, and the links that led to it.
    type Asked = (Word, Vec<Vec<u8>>);
    let mut files: Vec<Vec<u8>> = Vec::new();
    let mut ask: Vec<Asked> = words.iter().map(|word| (word.clone(), Vec::new())).collect();
    for round in 0..LINKS {
        if ask.is_empty() {
            break;
        }
        let paths: Vec<Vec<u8>> = ask.iter().map(|(word, _)| word.path.clone()).collect();
        let mut next: Vec<Asked> = Vec::new();
        for (path, mode, object) in merge::entries(store, tree, &paths)? {
            let Some((word, links)) = ask.iter().find(|(word, _)| word.path == path) else {
                continue;
            };
            match mode & TYPE {
                DIR if round == 0 => next.extend(words.iter().map(|word| {
                    let path = [path.as_slice(), b"/", &word.path].concat();
                    (Word { path, script: word.script }, Vec::new())
                })),
                DIR => {}
                LINK => {
                    if let Some(target) = target(store, &path, object.as_str())? {
                        let links = [links.as_slice(), &[path]].concat();
                        next.push((Word { path: target, script: word.script }, links));
                    } else if word.script {
                        files.push(path);
                    }
                }
                _ if word.script || mode == EXECUTABLE => {
                    files.extend(links.iter().cloned());
                    files.push(path);
                }
                _ => {}
            }
        }
        next.retain(|(word, _)| !files.contains(&word.path));
        ask = next;
    }
    Ok(files)
}

/// Where a link in a tree leads, when that is in the tree.
fn target(store: &Store, link: &[u8], object: &str) -> Result<Option<Vec<u8>>, Error> {
    use std::os::unix::ffi::OsStrExt;
    let text = store.git().args(["cat-file", "blob", object]).run()?;
    let dir = Path::new(std::ffi::OsStr::from_bytes(link)).parent().unwrap_or(Path::new(""));
    let text = Path::new(std::ffi::OsStr::from_bytes(&text));
    Ok(if text.is_absolute() { None } else { clean(&dir.join(text)) })
}

/// Whether a runner obeys what a difference changes: which part of it, in words.
fn obeyed(store: &Store, difference: &Difference) -> Result<Option<String>, Error> {
    let path = &difference.path;
    let files = LIST.runner.iter().flat_map(|runner| &runner.files);
    if files.into_iter().any(|file| pattern::matches(file, path)) {
        return Ok(Some(String::new()));
    }
    let Some(keyed) = LIST.keyed.iter().find(|keyed| pattern::matches(&keyed.file, path)) else {
        return Ok(None);
    };
    let read = |mode: u32, object: &str| -> Result<Option<Vec<u8>>, Error> {
        match mode & TYPE {
            0 => Ok(Some(Vec::new())),
            0o100_000 => Ok(Some(store.git().args(["cat-file", "blob", object]).run()?)),
            // A link, or a submodule: it leads to another file.
            _ => Ok(None),
        }
    };
    let old = read(difference.old_mode, difference.old.as_str())?;
    let new = read(difference.new_mode, difference.new.as_str())?;
    let (Some(old), Some(new)) = (old, new) else { return Ok(Some(String::new())) };
    let changed = match (keyed.format.read(&old), keyed.format.read(&new)) {
        (Some(old), Some(new)) => {
            let differs = |key: &&String| at(&old, key) != at(&new, key);
            keyed.keys.iter().filter(differs).map(|key| format!("`{key}`")).collect()
        }
        _ => return Ok(Some(String::new())),
    };
    let changed: Vec<String> = changed;
    Ok((!changed.is_empty()).then(|| format!(" ({})", changed.join(", "))))
}

impl Format {
    fn read(&self, bytes: &[u8]) -> Option<serde_json::Value> {
        if bytes.len() > LARGEST {
            return None;
        }
        let text = std::str::from_utf8(bytes).ok()?;
        if text.trim().is_empty() {
            return Some(serde_json::Value::Null);
        }
        match self {
            Format::Json => serde_json::from_str(text).ok(),
            Format::Toml => {
                let table: toml::Table = text.parse().ok()?;
                serde_json::to_value(table).ok()
            }
        }
    }
}

/// The value at `a.b`.
fn at<'a>(value: &'a serde_json::Value, key: &str) -> Option<&'a serde_json::Value> {
    key.split('.').try_fold(value, |value, part| value.get(part))
}

/// The differences from the tip to a candidate.
///
/// # Errors
/// [`Error::Git`].
pub(crate) fn differences(
    store: &Store,
    tip_tree: &TreeId,
    candidate: &Candidate,
) -> Result<Vec<Difference>, Error> {
    Ok(layer::diff(store, tip_tree, &candidate.tree, false)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(run: &str) -> (Vec<String>, Vec<String>) {
        let words = words(run, Path::new("/home/ann/repo"));
        let (scripts, others): (Vec<_>, Vec<_>) = words.into_iter().partition(|word| word.script);
        let texts = |words: Vec<Word>| {
            let text = |word: Word| String::from_utf8(word.path).expect("UTF-8");
            words.into_iter().map(text).collect::<Vec<_>>()
        };
        (texts(scripts), texts(others))
    }

    #[test]
    fn words_that_can_be_programs_and_others() {
        for (run, scripts, others) in [
            ("./ci", &["ci"][..], &[][..]),
            ("! grep -q bad a.txt", &["!"], &["grep", "-q", "bad", "a.txt"]),
            ("sh -e ./ci/run docs/a.md", &["sh", "-e", "ci/run"], &["docs/a.md"]),
            ("cd sub/./dir && ./check out", &["cd", "check"], &["sub/dir", "out"]),
            ("sh -c \"exec 'src/check' a\"", &["sh", "-c", "exec", "src/check"], &["a"]),
            ("pytest -q t/a.py t/b.py", &["pytest", "-q", "t/a.py", "t/b.py"], &[]),
            ("/home/ann/repo/ci; /usr/bin/true .", &["ci"], &[]),
            (
                "python3 tools/validate.py report.csv",
                &["python3", "tools/validate.py"],
                &["report.csv"],
            ),
        ] {
            let (found, rest) = texts(run);
            assert_eq!(found, scripts, "{run}");
            assert_eq!(rest, others, "{run}");
        }
    }

    #[test]
    fn the_list_can_be_read() {
        assert_eq!(LIST.version, 1);
        assert!(LIST.runner.iter().all(|runner| !runner.files.is_empty()));
    }

    #[test]
    fn only_some_keys_of_a_file_count() {
        let read = |text: &str| Format::Json.read(text.as_bytes());
        let old = read("{\"scripts\": {\"test\": \"jest\"}, \"version\": \"1\"}").expect("json");
        let new = read("{\"scripts\": {\"test\": \"jest\"}, \"version\": \"2\"}").expect("json");
        assert_ne!(old, new);
        assert_eq!(at(&old, "scripts"), at(&new, "scripts"));
        assert_eq!(at(&old, "scripts.test"), Some(&serde_json::json!("jest")));
        assert_eq!(at(&old, "scripts.test.more"), None);
        assert_eq!(read("{"), None);
        let toml = Format::Toml.read(b"[lib]\ntest = false\n").expect("toml");
        assert_eq!(at(&toml, "lib.test"), Some(&serde_json::json!(false)));
    }
}

//! Files of the repository that decide what a check says.
//!
//! Two kinds. *Pinned* files are the check itself: programs and scripts that its
//! command names, and what its `pinned` patterns mean. A check runs with those of the target's tip,
//! whatever the change made of them. Others are obeyed by a runner (`conftest.py`,
//! the scripts in `package.json`): `judge.toml` lists them. A change to either kind
//! never lands by itself.

use std::collections::BTreeSet;
use std::path::{Component, Path};
use std::sync::LazyLock;

use cofferdam_git::difference::{Changes, Difference};
use cofferdam_git::harvest::NAMED;
use cofferdam_git::mode::{DIR, EXECUTABLE, FILE, LINK, TYPE};
use cofferdam_git::{GitError, Objects, Oid, Told, TreeId, merge, pattern};
use serde::Deserialize;

use crate::Error;
use crate::error::IoContext;
use crate::gate::Candidate;
use crate::job::Job;
use crate::request::Check;

mod shadow;

const DATA: &str = include_str!("../../data/judge.toml");

static LIST: LazyLock<List> =
    LazyLock::new(|| toml::from_str(DATA).expect("the list is read by a test"));

/// A larger file is not read for its keys: it counts as a whole.
const LARGEST: u64 = 4 << 20;
/// A link's target can't be longer, in bytes (`PATH_MAX`).
const LONGEST_PATH: u64 = 4096;
/// How many links in a row are followed.
const LINKS: usize = 8;
/// Words of a command that are looked for in the tree.
const WORDS: usize = 64;

/// How many directories git is asked about at once.
const AT_ONCE: usize = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    version: u32,
    runner: Vec<Runner>,
    keyed: Vec<Keyed>,
    shadow: Vec<shadow::Shadow>,
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
    /// The changed paths of both kinds: the first of them.
    pub(crate) changed: Vec<String>,
    /// All of them, in words.
    pub(crate) told: Told,
}

/// How many paths a reason names.
const TOLD: usize = 5;

/// The paths that the candidate changes and a task may not change at all.
///
/// # Errors
/// [`Error::Git`] when the trees can't be compared.
pub(crate) fn protected(changes: &Changes<'_>, patterns: &[String]) -> Result<Told, Error> {
    let mut protected = Told::new(TOLD);
    changes.each(|change| {
        if patterns.iter().any(|pattern| pattern::matches(pattern, &change.path)) {
            protected.push(|| format!("`{}`", String::from_utf8_lossy(&change.path)));
        }
        Ok::<_, GitError>(())
    })?;
    Ok(protected)
}

/// Looks what of a candidate decides what `checks` say. `changes` are those from the
/// tip's tree to the candidate's.
///
/// # Errors
/// [`Error::Git`] when the trees can't be read.
pub(crate) fn look(
    job: &Job<'_>,
    objects: &mut Objects,
    candidate: &Candidate,
    tip_tree: &TreeId,
    changes: &Changes<'_>,
    checks: &[Check],
) -> Result<JudgeFiles, Error> {
    debug_assert_eq!(LIST.version, 1);
    let mut files = JudgeFiles { pinned: None, changed: Vec::new(), told: Told::new(TOLD) };
    if checks.is_empty() || changes.is_empty() {
        return Ok(files);
    }
    let top = &job.place.top;
    let words: Vec<Word> = checks.iter().flat_map(|check| words(&check.run, top)).collect();
    let named = named(objects, tip_tree, &words)?;
    let spoken_of: BTreeSet<&[u8]> =
        words.iter().flat_map(|word| [word.path.as_slice(), parent(&word.path)]).collect();
    let trees = [tip_tree, &candidate.tree];
    let linked = linked(objects, trees, changes, &spoken_of)?;
    let shadows = shadow::find(objects, trees, changes, checks, &spoken_of)?;
    let patterns = || checks.iter().flat_map(|check| &check.pinned);
    let is_pinned = |change: &Difference| {
        let path = &change.path;
        named.contains(path) || patterns().any(|pattern| pattern::matches(pattern, path))
    };
    let mut any_pinned = false;
    changes.each(|change| {
        let path = &change.path;
        let pinned = is_pinned(change);
        any_pinned |= pinned;
        let part = if pinned
            || words.iter().any(|word| word.script && word.path == *path)
            || checks.iter().any(|check| is_mentioned(&check.run, change))
            || linked.iter().any(|target| below(path, target))
            || shadows.contains(path)
            || patterns().any(|pattern| shadow::runs_before(path, pattern))
        {
            Some(String::new())
        } else {
            obeyed(objects, change)?
        };
        if let Some(part) = part {
            let path = String::from_utf8_lossy(path).into_owned();
            files.told.push(|| format!("`{path}`{part}"));
            if files.changed.len() < NAMED {
                files.changed.push(path);
            }
        }
        Ok::<_, Error>(())
    })?;
    if any_pinned {
        let scratch = job.dir.path().join("merge");
        std::fs::create_dir_all(&scratch).at("make", &scratch)?;
        let tree = merge::undone(&job.source.store, &candidate.tree, changes, is_pinned, &scratch);
        std::fs::remove_dir_all(&scratch).at("remove", &scratch)?;
        let (tip, tree) = (candidate.tip.clone(), tree?);
        let commit = merge::commit(&job.source.store, &tree, &tip, &job.commit_text()?)?;
        files.pinned = Some(Candidate { tip, commit, tree });
    }
    Ok(files)
}

/// A word of a command that could be a path of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Word {
    path: Vec<u8>,
    /// Whether an interpreter or a test runner is told to run it.
    script: bool,
    /// Whether it was written with a slash, as a program of the repository has to be.
    slash: bool,
}

/// What runs the file that is named next.
const INTERPRETERS: &[&str] = &[
    "bash", "bun", "dash", "deno", "julia", "ksh", "lua", "node", "perl", "php", "pypy3", "python",
    "python2", "python3", "ruby", "sh", "tclsh", "ts-node", "tsx", "zsh",
];
/// The same, where it is the first word of a command.
const SOURCES: &[&str] = &[".", "source"];
/// What runs every file that is named after it.
const RUNNERS: &[&str] = &[
    "ava", "bats", "jest", "mocha", "nox", "phpunit", "prove", "py.test", "pytest", "rspec", "tox",
    "vitest",
];
/// With these an interpreter only looks at the file.
const ONLY_LOOKED_AT: &[&str] = &["-n", "--check", "-l"];

/// Words of a command that could be paths, relative to `top`. Not a parser of shells:
/// quotes are gaps, and what is quoted is read as commands, too.
fn words(run: &str, top: &Path) -> Vec<Word> {
    let apart = |c: char| ";&|(){}`\n".contains(c);
    let gap = |c: char| c.is_whitespace() || "\"'$=,:<>!".contains(c);
    let mut words: Vec<Word> = Vec::new();
    for command in run.split(apart) {
        let (mut next_is_script, mut all_are_scripts) = (false, false);
        for (number, word) in command.split(gap).filter(|word| !word.is_empty()).enumerate() {
            let program = word.rsplit('/').next().unwrap_or(word);
            let script = next_is_script || all_are_scripts;
            all_are_scripts |= RUNNERS.contains(&program);
            if INTERPRETERS.contains(&program)
                || program.starts_with("python3.")
                || (number == 0 && SOURCES.contains(&word))
            {
                next_is_script = true;
            } else if !word.starts_with('-') || ONLY_LOOKED_AT.contains(&word) {
                // Any other option leaves the next one in its place.
                next_is_script = false;
            }
            let slash = word.contains('/');
            let path = Path::new(word);
            let path = path.strip_prefix(top).unwrap_or(path);
            // Behind a variable (`$PWD/ci`) or from another directory (`../ci`) it is
            // taken to begin at the top.
            let Some(whole) = clean(path) else { continue };
            let tail =
                whole.iter().position(|byte| *byte == b'/').map(|at| whole[at + 1..].to_vec());
            for path in std::iter::once(whole).chain(tail) {
                if let Some(known) = words.iter_mut().find(|known| known.path == path) {
                    known.script |= script;
                    known.slash |= slash;
                } else if words.len() < WORDS {
                    words.push(Word { path, script, slash });
                }
            }
        }
    }
    words
}

/// Endings of files that an interpreter runs.
const SCRIPTS: &[&str] = &[
    "awk", "bash", "cjs", "jl", "js", "lua", "mjs", "php", "pl", "py", "r", "rb", "sed", "sh",
    "tcl", "ts", "zsh",
];
/// What stands for its directory when that is run or imported.
const DIRECTORYS_OWN: &[&str] = &["__init__", "__main__", "index"];

/// Whether a command speaks of a changed file that it could run, in whatever way it
/// puts the path together: then somebody has to look.
fn is_mentioned(run: &str, difference: &Difference) -> bool {
    let runs = |mode: u32| mode == EXECUTABLE || mode & TYPE == LINK;
    let program = runs(difference.old_mode) || runs(difference.new_mode);
    let path = String::from_utf8_lossy(&difference.path);
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", &path));
    let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
    let is_script = SCRIPTS.contains(&ending.to_ascii_lowercase().as_str());
    if !program && !is_script {
        return false;
    }
    let plain: String = run.chars().filter(|c| !"\\\"'".contains(*c)).collect();
    let said = |name: &str| has_word(run, name) || has_word(&plain, name);
    let tokens = || plain.split(|c: char| c.is_whitespace() || ";&|(){}<>=,".contains(c));
    let by_pattern = || {
        tokens().any(|token| {
            let last = token.rsplit('/').next().unwrap_or(token);
            last.contains(['*', '?', '[']) && pattern::matches(last, name.as_bytes())
        })
    };
    if program {
        return said(name) || by_pattern();
    }
    let interpreted = tokens().any(|token| {
        let program = token.rsplit('/').next().unwrap_or(token);
        let known = [INTERPRETERS, RUNNERS, SOURCES, &["awk", "coverage", "sed", "uv"]];
        known.iter().any(|list| list.contains(&program)) || program.starts_with("python3.")
    });
    let own = DIRECTORYS_OWN.contains(&stem)
        && said(dir.rsplit('/').next().filter(|dir| !dir.is_empty()).unwrap_or(name));
    // As a module or without its ending, not as the beginning of another name.
    let by_stem = || has_word_before(&plain, stem, |after| !matches!(after, '.' | '/'));
    interpreted && (said(name) || by_stem() || own || by_pattern())
}

/// Whether `text` has this name in it, not as a part of a longer one.
fn has_word(text: &str, name: &str) -> bool {
    has_word_before(text, name, |_| true)
}

/// As [`has_word`], where what follows the name, if anything does, may do so.
fn has_word_before(text: &str, name: &str, may_follow: impl Fn(char) -> bool) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + name.len()..].chars().next();
        !before.is_some_and(part) && !after.is_some_and(|c| part(c) || !may_follow(c))
    })
}

/// Whether a path is `dir` or lies below it.
fn below(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// The directory of a path; empty for the top.
fn parent(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    &path[..end]
}

/// The last name of a path.
fn name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// The patterns of the list.
fn listed() -> impl Iterator<Item = &'static String> {
    let files = LIST.runner.iter().flat_map(|runner| &runner.files);
    files.chain(LIST.keyed.iter().map(|keyed| &keyed.file))
}

/// Whether a runner looks for a file or directory of this name (`Makefile`, `.cargo`).
fn is_looked_for(name: &[u8]) -> bool {
    let mut parts = listed().flat_map(|file| file.split('/')).filter(|part| *part != "**");
    parts.any(|part| pattern::matches(part, name))
}

/// Where links lead whose names a runner looks for, of those at the top, around what
/// changes, and in directories that a command speaks of. Not of all: a tree can have a
/// million directories.
fn linked(
    objects: &mut Objects,
    trees: [&TreeId; 2],
    changes: &Changes<'_>,
    spoken_of: &BTreeSet<&[u8]>,
) -> Result<Vec<Vec<u8>>, Error> {
    let mut found = [Vec::new(), Vec::new()];
    let mut look_in = |some: &[Vec<u8>]| -> Result<(), Error> {
        for (tree, found) in trees.iter().zip(&mut found) {
            objects.each_entry(tree, some, |path, mode, object| {
                if mode & TYPE == LINK && is_looked_for(name(path)) {
                    found.push((path.to_vec(), mode, object));
                }
            })?;
        }
        Ok(())
    };
    let dirs = spoken_of.iter().filter(|dir| !dir.is_empty());
    let mut first: Vec<Vec<u8>> = dirs.map(|dir| [dir, &b"/"[..]].concat()).collect();
    for file in listed() {
        let file = file.trim_start_matches("**/");
        let name = file.split('/').next().unwrap_or_default();
        if !name.contains(['*', '?']) {
            first.push(name.into());
        }
        let dir = parent(file.as_bytes());
        if !dir.is_empty() {
            first.push([dir, b"/"].concat());
        }
    }
    first.sort();
    first.dedup();
    // What is below a directory comes in one go, so a directory is new when the path
    // before was not in it.
    let (mut last, mut some): (Vec<u8>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
    changes.each(|change| {
        let mut dir = parent(&change.path);
        while !dir.is_empty() {
            let ask = [dir, b"/"].concat();
            if last.starts_with(&ask) {
                break;
            }
            if first.binary_search(&ask).is_err() {
                some.push(ask);
            }
            dir = parent(dir);
        }
        last.clear();
        last.extend(&change.path);
        if some.len() >= AT_ONCE {
            look_in(&std::mem::take(&mut some))?;
        }
        Ok::<_, Error>(())
    })?;
    some.extend(first);
    for some in some.chunks(AT_ONCE) {
        look_in(some)?;
    }
    let mut targets = Vec::new();
    for (tree, mut found) in trees.into_iter().zip(found) {
        for _ in 0..LINKS {
            let mut next = Vec::new();
            for (path, mode, object) in found {
                if mode & TYPE == LINK {
                    next.extend(target(objects, &path, &object)?);
                }
            }
            if next.is_empty() {
                break;
            }
            found = Vec::new();
            for some in next.chunks(AT_ONCE) {
                found.extend(objects.entries(tree, some)?);
            }
            targets.extend(next);
        }
    }
    Ok(targets)
}

/// A relative path without `.` and `..`; none when nothing is left of it.
fn clean(path: &Path) -> Option<Vec<u8>> {
    let mut names: Vec<&[u8]> = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push(name.as_encoded_bytes()),
            Component::CurDir => {}
            // Above the top is where the command stands.
            Component::ParentDir => drop(names.pop()),
            Component::RootDir => {}
            Component::Prefix(_) => return None,
        }
    }
    (!names.is_empty()).then(|| names.join(&b'/'))
}

/// The programs and scripts that `words` name in a tree, also below a directory that
/// one of them names (`cd sub && ./ci`), and the links that lead to them.
fn named(objects: &mut Objects, tree: &TreeId, words: &[Word]) -> Result<Vec<Vec<u8>>, Error> {
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
        for (path, mode, object) in objects.entries(tree, &paths)? {
            let Some((word, links)) = ask.iter().find(|(word, _)| word.path == path) else {
                continue;
            };
            match mode & TYPE {
                DIR if round == 0 => next.extend(words.iter().map(|word| {
                    let path = [path.as_slice(), b"/", &word.path].concat();
                    (Word { path, ..word.clone() }, Vec::new())
                })),
                DIR => {}
                LINK => {
                    if let Some(target) = target(objects, &path, &object)? {
                        let links = [links.as_slice(), &[path]].concat();
                        next.push((Word { path: target, ..word.clone() }, links));
                    } else if word.script {
                        files.push(path);
                    }
                }
                _ if word.script || (word.slash && mode == EXECUTABLE) => {
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
fn target(objects: &mut Objects, link: &[u8], object: &Oid) -> Result<Option<Vec<u8>>, Error> {
    use std::os::unix::ffi::OsStrExt;
    let Some(text) = objects.blob(object, LONGEST_PATH)? else { return Ok(None) };
    let dir = Path::new(std::ffi::OsStr::from_bytes(link)).parent().unwrap_or(Path::new(""));
    let text = Path::new(std::ffi::OsStr::from_bytes(&text));
    Ok(if text.is_absolute() { None } else { clean(&dir.join(text)) })
}

/// Whether a runner obeys what a difference changes: which part of it, in words.
fn obeyed(objects: &mut Objects, difference: &Difference) -> Result<Option<String>, Error> {
    let path = &difference.path;
    let files = LIST.runner.iter().flat_map(|runner| &runner.files);
    if files.into_iter().any(|file| pattern::matches(file, path)) {
        return Ok(Some(String::new()));
    }
    // A link in the place of a directory that a runner looks into.
    if difference.new_mode & TYPE == LINK && is_looked_for(name(path)) {
        return Ok(Some(String::new()));
    }
    let Some(keyed) = LIST.keyed.iter().find(|keyed| pattern::matches(&keyed.file, path)) else {
        return Ok(None);
    };
    let mut read = |mode: u32, object: &Oid| -> Result<Option<Vec<u8>>, Error> {
        match mode & TYPE {
            0 => Ok(Some(Vec::new())),
            FILE => Ok(objects.blob(object, LARGEST)?),
            // A link, or a submodule: it leads to another file.
            _ => Ok(None),
        }
    };
    let old = read(difference.old_mode, &difference.old)?;
    let new = read(difference.new_mode, &difference.new)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_git::mode::PLAIN;

    fn scripts(run: &str) -> Vec<String> {
        let words = words(run, Path::new("/home/ann/repo")).into_iter();
        let text = |word: Word| String::from_utf8(word.path).expect("UTF-8");
        words.filter(|word| word.script && !word.path.starts_with(b"-")).map(text).collect()
    }

    #[test]
    fn what_an_interpreter_or_a_runner_is_told_to_run() {
        for (run, wanted) in [
            ("sh -e ./ci/run docs/a.md", &["ci/run", "run"][..]),
            ("cd sub && sh ../ci", &["ci"]),
            ("sh \"$PWD/ci\"", &["PWD/ci", "ci"]),
            ("if . gate/lib; then true; fi", &[]),
            (". gate/lib; check", &["gate/lib", "lib"]),
            ("pytest -q t/a.py b.py", &["t/a.py", "a.py", "b.py"]),
            ("python3.11 tools/validate.py report.csv", &["tools/validate.py", "validate.py"]),
            ("sh /home/ann/repo/ci", &["ci"]),
            ("! grep -q bad a.txt", &[]),
            ("exec grep -q . data && wc data", &[]),
            ("jq . data || bash -n data", &[]),
        ] {
            assert_eq!(scripts(run), wanted, "{run}");
        }
    }

    #[test]
    fn a_command_speaks_of_what_it_could_run() {
        let change = |path: &str, mode: u32| {
            let object = cofferdam_git::Oid::parse(&"1".repeat(40)).expect("id");
            let (old, path) = (object.clone(), path.as_bytes().to_vec());
            Difference { old_mode: mode, new_mode: mode, old, new: object, path }
        };
        for (run, path) in [
            ("cd tests && ../ci", "ci"),
            ("\"./my check\"", "my check"),
            ("./my\\ check", "my check"),
            ("tools/check", "scripts/check"),
            ("D=sub; $D/check", "sub/check"),
            ("for f in tools/*; do $f; done", "scripts/check"),
            ("./c?", "ci"),
            ("./c\\i", "ci"),
            ("awk 'BEGIN { system(\"sub/check\") }'", "sub/check"),
            ("if [ -x ci-local ]; then ./ci-local; else ./ci; fi", "ci-local"),
        ] {
            assert!(is_mentioned(run, &change(path, EXECUTABLE)), "{run} {path}");
            assert!(!is_mentioned("cargo test", &change(path, EXECUTABLE)), "{path}");
        }
        for (run, path) in [
            ("python3 -m unittest tests.test_a", "tests/test_a.py"),
            ("python3 -m chk", "chk.py"),
            ("python3 tools", "tools/__main__.py"),
            ("node chk", "chk.js"),
            ("node tools", "tools/index.js"),
            ("python3 -W error tests/chk.py", "tests/chk.py"),
            ("awk -f chk.awk in", "chk.awk"),
            ("for f in tools/*.sh; do sh $f; done", "tools/a.sh"),
        ] {
            assert!(is_mentioned(run, &change(path, PLAIN)), "{run} {path}");
        }
        for (run, path, mode) in [
            ("grep -q x notes.txt", "notes.txt", PLAIN),
            ("npm test", "src/main.js", PLAIN),
            ("ruff check src/app.py", "src/app.py", PLAIN),
            ("./ci-fast", "ci", EXECUTABLE),
            ("python3 tools/run.py", "src/app.py", PLAIN),
            ("node build.js", "src/build.ts", PLAIN),
            ("python3 tools/run.py", "tools.py", PLAIN),
        ] {
            assert!(!is_mentioned(run, &change(path, mode)), "{run} {path}");
        }
    }

    #[test]
    fn the_list_can_be_read() {
        assert_eq!(LIST.version, 1);
        assert!(LIST.runner.iter().all(|runner| !runner.files.is_empty()));
        assert!(LIST.shadow.iter().all(|shadow| !shadow.modules.is_empty()));
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

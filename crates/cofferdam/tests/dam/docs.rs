//! The documents say what is so: promises name tests that exist, commands and
//! options are those of the program, links lead somewhere.
//!
//! A word for what is not there yet is allowed where the paragraph says so, in
//! these very words: "not there yet".

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::support::{World, source};

const NOT_YET: &str = "not there yet";
const TOP: &[&str] = &["README.md", "CONTRIBUTING.md", "CHANGELOG.md"];

/// Files below `dir` with this ending.
fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap_or_else(|_| panic!("read {}", dir.display())) {
            let entry = entry.expect("entry");
            if entry.file_type().expect("type").is_dir() {
                dirs.push(entry.path());
            } else if entry.path().to_string_lossy().ends_with(ending) {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

fn documents() -> Vec<(PathBuf, String)> {
    let mut paths: Vec<PathBuf> = TOP.iter().map(|name| source().join(name)).collect();
    paths.extend(files(&source().join("docs"), ".md"));
    paths
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            (path, text)
        })
        .collect()
}

#[test]
fn every_promise_names_tests_that_exist() {
    let guarantees = source().join("docs/guarantees.md");
    let text = std::fs::read_to_string(&guarantees).expect("guarantees");
    let mut promises: Vec<(String, Vec<String>)> = Vec::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let promise = heading
                .strip_prefix('P')
                .and_then(|rest| rest.split_once(' '))
                .and_then(|(number, _)| number.parse::<usize>().ok());
            match promise {
                Some(number) => {
                    assert_eq!(number, promises.len() + 1, "promises are numbered: `{line}`");
                    promises.push((heading.to_owned(), Vec::new()));
                }
                None => assert_eq!(heading, "Not promised yet"),
            }
        } else if let Some(test) = line.strip_prefix("- test: ") {
            let name = test.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
            let name = name.unwrap_or_else(|| panic!("`{line}` is not `- test: `module::name``"));
            promises.last_mut().expect("a promise above").1.push(name.to_owned());
        }
    }
    assert!(!promises.is_empty(), "no promises in {}", guarantees.display());
    let mut sources: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in files(&source().join("crates"), ".rs") {
        let module = path.file_stem().expect("stem").to_string_lossy().into_owned();
        sources.entry(module).or_default().push(std::fs::read_to_string(path).expect("source"));
    }
    let exists = |module: &str, name: &str| {
        let head = format!("fn {name}(");
        sources.get(module).is_some_and(|texts| {
            texts.iter().any(|text| {
                text.match_indices(&head).any(|(at, _)| {
                    let above = text[..at].lines().rev().skip_while(|line| line.trim().is_empty());
                    above
                        .take_while(|line| line.trim_start().starts_with("#["))
                        .any(|line| line.trim() == "#[test]")
                })
            })
        })
    };
    for (promise, tests) in promises {
        assert!(!tests.is_empty(), "`{promise}` names no test");
        for test in tests {
            let (module, name) = test.split_once("::").unwrap_or_else(|| panic!("`{test}`"));
            assert!(exists(module, name), "`{promise}` names `{test}`, which does not exist");
        }
    }
}

/// What `dam` offers, as its help says.
struct Offer {
    /// Options of each command; those of all commands under the empty name.
    options: BTreeMap<String, BTreeSet<String>>,
}

impl Offer {
    fn ask() -> Offer {
        let world = World::empty();
        let help = world.dam(["--help"]).expect_code(0).stdout.clone();
        let mut options = BTreeMap::from([(String::new(), long_options(&help))]);
        let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        let listed = commands.take_while(|line| line.starts_with("  "));
        let names = listed.filter_map(|line| line.split_whitespace().next());
        // Hidden, but a stable part of what scripts use.
        for name in names.chain(["schema"]) {
            let found = match name {
                "help" => BTreeSet::new(),
                // Of its one command.
                "schedule" => {
                    long_options(&world.dam([name, "print", "--help"]).expect_code(0).stdout)
                }
                name => long_options(&world.dam([name, "--help"]).expect_code(0).stdout),
            };
            options.insert(name.to_owned(), found);
        }
        assert!(options.contains_key("run") && options.len() > 10, "the help was not understood");
        Offer { options }
    }

    fn anywhere(&self, option: &str) -> bool {
        self.options.values().any(|options| options.contains(option))
    }

    /// What is wrong with a call of `dam`, given without its first word.
    fn fault(&self, words: &[&str]) -> Option<String> {
        let mut command = String::new();
        let mut format_next = false;
        for word in words {
            let word = word.trim_end_matches(|c: char| ",.;:)\"'".contains(c));
            if std::mem::take(&mut format_next) {
                continue;
            }
            // The command's own words, or the shell's.
            if matches!(word, "--" | "|" | "&" | "&&" | ">" | "…") || word.starts_with(';') {
                return None;
            }
            if let Some(name) = word.strip_prefix("--") {
                let option = format!("--{}", name.split('=').next().unwrap_or(name));
                if !self.options[&command].contains(&option) {
                    return Some(format!("`dam {command}` has no option `{option}`"));
                }
                format_next = command.is_empty() && option == "--format";
            } else if command.is_empty() && !word.starts_with('-') {
                if !self.options.contains_key(word) {
                    return Some(format!("there is no command `dam {word}`"));
                }
                word.clone_into(&mut command);
            }
        }
        None
    }
}

fn long_options(help: &str) -> BTreeSet<String> {
    help.split(|c: char| c.is_whitespace() || ",[]<>".contains(c))
        .filter(|word| word.starts_with("--") && word.len() > 2)
        .map(|word| word.split('=').next().unwrap_or(word).trim_end_matches('.').to_owned())
        .collect()
}

/// Paragraphs; in lists and tables, lines.
fn paragraphs(text: &str) -> Vec<&str> {
    text.split("\n\n")
        .flat_map(|paragraph| {
            let by_line = paragraph.lines().any(|line| line.starts_with(['-', '|']));
            if by_line { paragraph.lines().collect() } else { vec![paragraph] }
        })
        .collect()
}

/// Code of a paragraph: spans between backticks, and lines of code blocks.
fn code(paragraph: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in paragraph.lines() {
        if line.starts_with("    ") {
            found.push(line.trim_start().trim_start_matches("$ "));
        } else {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}

#[test]
fn commands_and_options_in_the_documents_exist() {
    let offer = Offer::ask();
    let mut wrong = Vec::new();
    for (path, text) in documents() {
        let said = paragraphs(&text).into_iter().filter(|said| !said.contains(NOT_YET));
        for paragraph in said {
            for code in code(paragraph) {
                let words: Vec<&str> = code.split_whitespace().collect();
                // After an assignment of the shell as well.
                let starts = |at: usize| {
                    at == 0
                        || matches!(words[at - 1], "setsid" | "do" | "nohup" | "sudo")
                        || words[at - 1].contains('=')
                };
                let calls =
                    words.iter().enumerate().filter(|(at, word)| **word == "dam" && starts(*at));
                for (at, _) in calls {
                    if let Some(fault) = offer.fault(&words[at + 1..]) {
                        wrong.push(format!("{}: {fault} (`{code}`)", path.display()));
                    }
                }
                let option = words.first().filter(|word| word.starts_with("--") && word.len() > 2);
                if let Some(option) = option
                    && !offer.anywhere(option.split('=').next().unwrap_or(option))
                {
                    wrong.push(format!("{}: no command has `{option}`", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_wrong_command_or_option_would_be_found() {
    let offer = Offer::ask();
    let fault = |code: &str| offer.fault(&code.split_whitespace().collect::<Vec<_>>());
    assert_eq!(fault("run --check ./ci -- tool --nonsense"), None);
    assert_eq!(fault("--format json list --all"), None);
    assert!(fault("run --chekc ./ci -- true").is_some());
    assert!(fault("list --check").is_some());
    assert!(fault("enqueue").is_some());
    assert!(fault("setup --nonsense").is_some());
    assert!(code("see `dam setup`, or\n    $ dam run -- true").contains(&"dam setup"));
}

#[test]
fn the_readme_has_the_two_commands() {
    let text = std::fs::read_to_string(source().join("README.md")).expect("readme");
    for command in ["cargo run --release -- demo", "./test.sh"] {
        let shown = text.lines().any(|line| line.strip_prefix("    ") == Some(command));
        assert!(shown, "README.md does not show `{command}`");
    }
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for (path, text) in documents() {
        for rest in text.split("](").skip(1) {
            let target = rest.split(')').next().unwrap_or_default();
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            if !path.parent().expect("parent").join(file).exists() {
                broken.push(format!("{}: `{target}`", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_dependency_is_accounted_for() {
    let manifest = std::fs::read_to_string(source().join("Cargo.toml")).expect("manifest");
    let listed = std::fs::read_to_string(source().join("docs/dependencies.md")).expect("listed");
    let section = manifest.split("[workspace.dependencies]").nth(1).expect("section");
    let section = section.split("\n[").next().expect("section");
    let names = section.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name);
    let missing: Vec<&str> = names
        .filter(|name| !name.starts_with("cofferdam-") && !listed.contains(&format!("`{name}`")))
        .collect();
    assert!(missing.is_empty(), "not in docs/dependencies.md: {}", missing.join(", "));
}

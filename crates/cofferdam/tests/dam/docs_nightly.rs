//! The page of the nightly report: every command on it is run, and prints what it shows.
//!
//! A block of `sh` is run, a block of `text` after it has lines that it printed, in this
//! order. In a line `…` stands for anything; durations are free; the first time that a name
//! which `dam` made up is shown, it stands for the one that was made up here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::support::{World, dam_binary, source};

/// Where the page lets others read.
const READ_BY_OTHERS: &str = "/srv/reports";
/// How a name begins that `dam` makes up on the page.
const MADE_UP: &str = "build-report-";

/// What is run, and what the page shows of what it prints.
struct Step {
    script: String,
    shown: Vec<String>,
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut kind = None;
    for line in page.lines() {
        match (kind, line) {
            (None, "```sh") => {
                steps.push(Step { script: String::new(), shown: Vec::new() });
                kind = Some("sh");
            }
            (None, "```text") => kind = Some("text"),
            (None, line) => assert!(!line.starts_with("```"), "neither sh nor text: {line}"),
            (Some(_), "```") => kind = None,
            (Some("sh"), line) => {
                let script = &mut steps.last_mut().expect("a step").script;
                script.push_str(line);
                script.push('\n');
            }
            (Some(_), line) => steps.last_mut().expect("a step").shown.push(line.to_owned()),
        }
    }
    assert_eq!(kind, None, "a block has no end");
    steps
}

/// Names that `dam` made up: those of the page, and what they are here.
#[derive(Default)]
struct Names(BTreeMap<String, String>);

impl Names {
    fn as_here(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (page, here)| text.replace(page, here))
    }

    /// Whether the page shows what was printed; a name that is new is learnt then.
    fn shows(&mut self, shown: &str, printed: &str) -> bool {
        let shown = self.as_here(shown);
        if shown.contains('…') {
            return has_parts(&shown, printed);
        }
        let ours: Vec<&str> = shown.split_whitespace().collect();
        let theirs: Vec<&str> = printed.split_whitespace().collect();
        if ours.len() != theirs.len() {
            return false;
        }
        let mut learnt = BTreeMap::new();
        for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            let is_number = |word: &str| word.parse::<u64>().is_ok();
            let is_time = before_a_unit(&shown, at) && is_number(ours) && is_number(theirs);
            let is_id = |word: &str| word.len() == 10 && word.starts_with('(');
            if ours == theirs || is_time || (is_id(ours) && is_id(theirs)) {
                continue;
            }
            match (made_up(ours), made_up(theirs)) {
                (Some(page), Some(here))
                    if !self.0.values().any(|known| known == here || known == page)
                        && ours.replace(page, here) == **theirs =>
                {
                    learnt.insert(page.to_owned(), here.to_owned());
                }
                _ => return false,
            }
        }
        self.0.extend(learnt);
        true
    }
}

/// Whether the word at this place is followed by a unit of time.
fn before_a_unit(line: &str, at: usize) -> bool {
    matches!(line.split_whitespace().nth(at + 1), Some("ms" | "s"))
}

/// The made-up name in a word.
fn made_up(word: &str) -> Option<&str> {
    let name = &word[word.find(MADE_UP)?..];
    let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(name.len());
    (end == MADE_UP.len() + 4).then(|| &name[..end])
}

/// Whether a line has what is between each `…`, in this order, and nothing else at its ends.
fn has_parts(shown: &str, printed: &str) -> bool {
    let parts: Vec<&str> = shown.split('…').collect();
    let mut rest = printed;
    for (number, part) in parts.iter().enumerate() {
        let found = match number {
            0 => rest.starts_with(part).then_some(0),
            last if last == parts.len() - 1 => {
                rest.ends_with(part).then(|| rest.len() - part.len())
            }
            _ => rest.find(part),
        };
        let Some(at) = found else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

/// Runs a script in a directory; gives all that it printed, and where it ended.
fn run(world: &World, bin: &Path, dir: &Path, script: &str) -> (String, PathBuf) {
    let ended = world.dir().join("ended");
    let path = std::env::var("PATH").expect("PATH");
    let whole = format!("exec 2>&1\n{script}pwd > '{}'\n", ended.display());
    let mut command = world.command("sh");
    command.current_dir(dir).env("PATH", format!("{}:{path}", bin.display()));
    let output = command.args(["-ec", &whole]).output().expect("sh");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}:\n{script}\n{printed}", output.status);
    let dir = std::fs::read_to_string(ended).expect("where it ended");
    (printed, dir.trim_end().into())
}

#[test]
fn every_command_does_what_the_page_shows() {
    let page = std::fs::read_to_string(source().join("docs/nightly.md")).expect("page");
    let world = World::empty();
    let place = |name: &str| {
        let dir = world.dir().join(name);
        std::fs::create_dir(&dir).expect("mkdir");
        dir
    };
    let (bin, reports, mut dir) = (place("bin"), place("reports"), place("desk"));
    std::os::unix::fs::symlink(dam_binary(), bin.join("dam")).expect("link");
    let reports = reports.to_str().expect("UTF-8");
    let steps = steps(&page);
    assert!(steps.len() > 10 && steps.iter().filter(|step| !step.shown.is_empty()).count() > 8);
    let mut names = Names::default();
    for step in &steps {
        let script = names.as_here(&step.script).replace(READ_BY_OTHERS, reports);
        let (printed, ended) = run(&world, &bin, &dir, &script);
        dir = ended;
        let printed = printed.replace(reports, READ_BY_OTHERS);
        let mut lines = printed.lines();
        for shown in step.shown.iter().filter(|line| line.trim() != "…") {
            let found = lines.any(|line| names.shows(shown, line));
            assert!(found, "after the lines before, no `{shown}` in:\n{printed}");
        }
    }
}

#[test]
fn a_page_that_shows_something_else_would_be_found() {
    let mut names = Names::default();
    assert!(names.shows("  ran   67 ms  exit 0", "  ran  5 ms  exit 0"));
    assert!(!names.shows("  ran   67 ms  exit 0", "  ran  67 ms  exit 1"));
    assert!(names.shows("landed build-report-aaaa", "landed build-report-x1y2"));
    assert!(names.shows("`build-report-aaaa`:", "`build-report-x1y2`:"));
    assert!(!names.shows("landed build-report-aaaa", "landed build-report-zzzz"));
    assert!(!names.shows("landed build-report-bbbb", "landed build-report-x1y2"));
    assert!(names.shows("dropped a (6rdn6llb)", "dropped a (aaaaaaaa)"));
    assert!(names.shows("Directory=…/desk", "Directory=/home/desk"));
    assert!(!names.shows("Directory=…/desk", "Directory=/home/desk2"));
    assert_eq!(steps("```sh\na\n```\n\n```text\nb\n```\n")[0].shown, ["b"]);
}

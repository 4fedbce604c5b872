//! `dam demo`: everything once, in a throw-away repository.
//!
//! Eight tasks at the same time on one repository: six that do good work, one
//! whose check fails, one that tries to write outside. Each is a `dam run` of
//! its own, as a person would type it. Then the demo looks whether everything
//! is as it was promised, and says so or fails.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use cofferdam_core::receipt::Receipt;
use cofferdam_core::{Dam, Error, ExitCode};

use super::list::table;
use crate::args::Demo;
use crate::output::{self, BOLD, DIM, GOOD};
use crate::table::duration;

const CI: &str = "#!/bin/sh\nset -e\nfor test in tests/*.sh; do sh \"$test\"; done\n";

/// Name, operator, and arguments with their result, of the six good tasks.
const GOOD_TASKS: [(&str, &str, &str); 6] = [
    ("add", "$1 + $2", "2 3 5"),
    ("sub", "$1 - $2", "7 3 4"),
    ("mul", "$1 * $2", "6 7 42"),
    ("div", "$1 / $2", "9 3 3"),
    ("mod", "$1 % $2", "9 4 1"),
    ("max", "$1 > $2 ? $1 : $2", "4 8 8"),
];

/// The script of a task that adds an operation and its test.
fn operation(name: &str, expression: &str, example: &str) -> String {
    let mut words = example.split(' ');
    let (a, b, result) = (words.next(), words.next(), words.next());
    let (a, b, result) = (a.unwrap_or(""), b.unwrap_or(""), result.unwrap_or(""));
    format!(
        "set -e\n\
         echo 'echo $(( {expression} ))' > lib/{name}.sh\n\
         echo '[ \"$(sh lib/{name}.sh {a} {b})\" = {result} ]' > tests/{name}.sh\n\
         git add --all && git commit --quiet --message 'Add {name}'\n"
    )
}

/// A repository and a state directory that go when this does.
struct Place {
    dir: PathBuf,
    keep: bool,
}

impl Place {
    fn new(keep: bool) -> Result<Place, Error> {
        // Beside the real state: on the file system that will carry real contexts.
        let parent = Dam::default_dir()?.parent().map_or_else(std::env::temp_dir, Path::to_owned);
        let dir = parent.join(format!("cofferdam-demo-{}", std::process::id()));
        let path = dir.clone();
        std::fs::create_dir_all(dir.join("repo"))
            .and_then(|()| std::fs::create_dir_all(dir.join("repo/lib")))
            .and_then(|()| std::fs::create_dir_all(dir.join("repo/tests")))
            .map_err(|source| Error::Io { step: "make", path, source })?;
        Ok(Place { dir, keep })
    }

    fn repo(&self) -> PathBuf {
        self.dir.join("repo")
    }

    fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    fn precious(&self) -> PathBuf {
        self.dir.join("precious.txt")
    }

    fn write(&self, path: &Path, text: &str) -> Result<(), Error> {
        std::fs::write(path, text).map_err(|source| Error::Io {
            step: "write",
            path: path.into(),
            source,
        })
    }

    fn git(&self, args: &[&str]) -> Result<String, Error> {
        self.output(Command::new("git").args(args))
    }

    fn dam(&self, args: &[&str]) -> Result<String, Error> {
        self.output(self.dam_command().args(args))
    }

    fn dam_command(&self) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.env("COFFERDAM_STATE", self.state());
        command
    }

    fn output(&self, command: &mut Command) -> Result<String, Error> {
        let done = command.current_dir(self.repo()).stdin(Stdio::null()).output();
        let done = done.map_err(|error| Error::Internal(error.to_string()))?;
        if !done.status.success() {
            return Err(Error::Internal(format!(
                "the demo's {command:?} failed: {}",
                String::from_utf8_lossy(&done.stderr)
            )));
        }
        String::from_utf8(done.stdout).map_err(|error| Error::Internal(error.to_string()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (Some(parent), Some(name)) = (self.dir.parent(), self.dir.file_name()) else { return };
        if self.keep {
            return;
        }
        let removed =
            std::fs::File::open(parent).map_err(|error| error.to_string()).and_then(|dir| {
                cofferdam_core::remove_tree(std::os::fd::AsFd::as_fd(&dir), name)
                    .map_err(|error| error.to_string())
            });
        if let Err(error) = removed {
            output::note(&format!("{} could not be removed: {error}\n", self.dir.display()));
        }
    }
}

/// Shows it all, and checks that it is so.
pub fn demo(args: &Demo) -> Result<ExitCode, Error> {
    let place = Place::new(args.keep)?;
    set_up(&place)?;
    let outside = place.precious();
    let mut tasks: Vec<(String, String)> = GOOD_TASKS
        .iter()
        .map(|(name, expression, example)| {
            ((*name).to_owned(), operation(name, expression, example))
        })
        .collect();
    tasks.push(("wrong".into(), operation("half", "$1 / $2", "9 2 5")));
    tasks.push(("escape".into(), escape(&outside)));

    output::note(&format!("{BOLD}eight tasks at once on {}{BOLD:#}\n", place.repo().display()));
    let begun = Instant::now();
    let receipts = std::thread::scope(|scope| {
        let runs: Vec<_> = tasks
            .iter()
            .map(|(name, script)| {
                let place = &place;
                let one = move || run(place, name, script);
                std::thread::Builder::new().spawn_scoped(scope, one).map_err(Error::NoThread)
            })
            .collect();
        let panicked = |_| Err(Error::Internal("a run panicked".into()));
        runs.into_iter()
            .map(|run| run?.join().unwrap_or_else(panicked))
            .collect::<Result<Vec<Receipt>, Error>>()
    })?;
    let took = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    output::note(&format!("\n{DIM}$ dam list{DIM:#}\n{}", table(&receipts)));
    let history = place.git(&["log", "--oneline"])?;
    output::note(&format!("\n{DIM}$ git log --oneline{DIM:#}\n{history}"));
    verify(&place, &receipts)?;
    fire_twice(&place)?;
    place.dam(&["drop", "wrong", "escape"])?;
    place.dam(&["gc"])?;
    expect(place.git(&["for-each-ref", "refs/dam"])?.is_empty(), "no ref of ours is left")?;
    output::note(&format!(
        "\n{GOOD}as promised{GOOD:#}: six landed one by one, each verified on the state it landed on; the wrong \
         one\nwas rejected, nothing was written outside, a report whose clock fired twice was written\n\
         once, and nothing is left behind ({})\n",
        duration(took)
    ));
    if place.keep {
        output::note(&format!("kept: {}\n", place.dir.display()));
    }
    Ok(ExitCode::Done)
}

fn set_up(place: &Place) -> Result<(), Error> {
    place.git(&["init", "--quiet", "--initial-branch=main"])?;
    place.git(&["config", "user.name", "Demo"])?;
    place.git(&["config", "user.email", "demo@example.com"])?;
    place.write(&place.repo().join("ci"), CI)?;
    place.write(&place.repo().join("lib/id.sh"), "echo $(( $1 ))\n")?;
    place.write(&place.repo().join("tests/id.sh"), "[ \"$(sh lib/id.sh 7)\" = 7 ]\n")?;
    place.write(&place.precious(), "precious\n")?;
    place.git(&["add", "--all"])?;
    place.git(&["update-index", "--chmod=+x", "ci"])?;
    place.git(&["commit", "--quiet", "--message", "A small calculator"])?;
    place.git(&["checkout", "--quiet", "--", "."])?;
    place.git(&["reset", "--quiet", "--hard"]).map(drop)
}

/// The script of a task that tries to get out, and fails at each try.
fn escape(outside: &Path) -> String {
    let outside = outside.display();
    format!(
        "for file in '{outside}' /etc/dam-demo /usr/dam-demo /proc/1/mem; do\n\
         (echo escaped > \"$file\") 2>/dev/null && echo \"wrote $file\"\n\
         done\n\
         kill -9 -1 2>/dev/null\n\
         exit 1\n"
    )
}

fn run(place: &Place, name: &str, script: &str) -> Result<Receipt, Error> {
    let done = place
        .dam_command()
        .args([
            "--format", "json", "run", "--name", name, "--check", "sh ./ci", "--", "sh", "-c",
            script,
        ])
        .current_dir(place.repo())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::Internal(error.to_string()))?;
    let receipt: Receipt = serde_json::from_slice(&done.stdout).map_err(|error| {
        let said = String::from_utf8_lossy(&done.stdout);
        Error::Internal(format!("task `{name}` gave no receipt: {error}: {said}"))
    })?;
    let style = super::style_of(receipt.state());
    let reason = receipt.reason.as_deref().unwrap_or_default();
    output::note(&format!(
        "  {style}{:<9}{style:#} {name:<8} {DIM}{reason}{DIM:#}\n",
        receipt.state
    ));
    Ok(receipt)
}

/// A report that others read, started by a clock that fires twice.
fn fire_twice(place: &Place) -> Result<(), Error> {
    let report = place.dir.join("report.csv");
    let output = format!("--output=report.csv={}", report.display());
    let numbers = format!("--input={}:numbers", place.dir.join("numbers").display());
    place.write(&place.dir.join("numbers"), "1\n2\n3\n")?;
    output::note(&format!("\n{BOLD}a report, started by a clock that fires twice{BOLD:#}\n"));
    let fire = || -> Result<Receipt, Error> {
        let run = ["--format", "json", "run", "--scratch", "--key", "report-monday", &numbers];
        let make = "awk '{ sum += $1 } END { print \"sum,\" sum }' numbers > report.csv";
        let rest = [&output, "--check", "grep -qx sum,6 report.csv", "--", "sh", "-c", make];
        let said = place.dam(&[&run[..], &rest].concat())?;
        serde_json::from_str(&said).map_err(|error| Error::Internal(error.to_string()))
    };
    let fired = std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| std::thread::Builder::new().spawn_scoped(scope, fire));
        let panicked = |_| Err(Error::Internal("a run panicked".into()));
        threads.map(|thread| thread.map_err(Error::NoThread)?.join().unwrap_or_else(panicked))
    });
    let fired = fired.into_iter().collect::<Result<Vec<Receipt>, Error>>()?;
    for receipt in &fired {
        let how = if receipt.replayed { "replayed: the other one did it" } else { "" };
        let (state, style) = (&receipt.state, super::style_of(receipt.state()));
        output::note(&format!("  {style}{state:<9}{style:#} {} {DIM}{how}{DIM:#}\n", receipt.name));
    }
    expect(fired[0].task == fired[1].task, "one task did it")?;
    expect(fired.iter().filter(|receipt| receipt.replayed).count() == 1, "one was replayed")?;
    expect(
        std::fs::read_to_string(&report).is_ok_and(|text| text == "sum,6\n"),
        "the report is whole",
    )
}

/// Whether everything is as promised.
fn verify(place: &Place, receipts: &[Receipt]) -> Result<(), Error> {
    for receipt in receipts {
        let wanted = match receipt.name.as_str() {
            "wrong" => "rejected",
            "escape" => "failed",
            _ => "landed",
        };
        expect(receipt.state == wanted, &format!("task `{}` is {wanted}", receipt.name))?;
        let ran: Vec<_> = receipt.checks.iter().filter(|check| !check.cached).collect();
        expect(
            ran.len() == usize::from(wanted != "failed"),
            "each change was checked exactly once",
        )?;
    }
    let landed = receipts.iter().filter_map(|receipt| receipt.landed.as_deref());
    let on_main = place.git(&["log", "--format=%H"])?;
    for commit in landed {
        expect(on_main.contains(commit), "what landed is on main")?;
    }
    let commits = on_main.lines().count();
    expect(commits == 1 + GOOD_TASKS.len(), "one landing, one commit")?;
    expect(
        place.git(&["status", "--porcelain"])?.is_empty(),
        "the checkout followed and is clean",
    )?;
    let precious = std::fs::read_to_string(place.precious()).unwrap_or_default();
    expect(precious == "precious\n", "the file outside is untouched")?;
    for path in ["/etc/dam-demo", "/usr/dam-demo"] {
        expect(!Path::new(path).exists(), "nothing was written outside")?;
    }
    place.output(Command::new("sh").arg("./ci")).map(drop)
}

fn expect(holds: bool, what: &str) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Internal(format!("the demo expected that {what}"))) }
}

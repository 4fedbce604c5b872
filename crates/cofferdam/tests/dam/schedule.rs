//! What is printed for a scheduler does what it should where nothing of the caller's is.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::support::{Done, World, dam_binary};

/// 2026-11-30 06:00 UTC.
const SIX: i64 = 1_796_018_400;
const ODD: &str = r#"it's 100% "$HOME" `x` $(y) ${{ z }} \n \\ %% ;"#;

/// A directory with a name that needs quotes, and a clock that tests set.
struct Desk {
    world: World,
    here: PathBuf,
    bin: PathBuf,
}

/// What a scheduler starts, as it understood it.
struct Start {
    words: Vec<String>,
    dir: Option<String>,
    env: Vec<(String, String)>,
}

impl Desk {
    fn new() -> Desk {
        let world = World::empty();
        let (here, bin) = (world.dir().join("it's 100% $mine"), world.dir().join("bin"));
        std::fs::create_dir(&here).expect("mkdir");
        std::fs::create_dir(&bin).expect("mkdir");
        let date = "#!/bin/sh\ncase \"$*\" in *'-d '*) exec /bin/date \"$@\";; \
                    *) exec /bin/date -d \"@$NOW\" \"$@\";; esac\n";
        std::fs::write(bin.join("date"), date).expect("write");
        world.sh("chmod +x ../bin/date");
        Desk { world, here, bin }
    }

    fn dam(&self, args: &[&str]) -> Done {
        let mut command = self.world.command(dam_binary());
        Done::from(command.current_dir(&self.here).args(args).output().expect("dam"))
    }

    /// The files that are printed for a run at 06:00.
    #[track_caller]
    fn files(&self, scheduler: &str, options: &[&str], run: &[&str]) -> Vec<(String, String)> {
        let print = ["--format=json", "schedule", "print", scheduler, "--name=inventory"];
        let at: &[&str] = if options.is_empty() { &["--at=06:00"] } else { options };
        let done = self.dam(&[&print, at, &["--"], run].concat());
        let report: Value = serde_json::from_str(&done.expect_code(0).stdout).expect("JSON");
        assert_eq!(report["version"], 1);
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let files = report["files"].as_array().expect("files").iter();
        files.map(|file| (text(&file["name"]), text(&file["content"]))).collect()
    }

    fn start(&self, scheduler: &str, options: &[&str], run: &[&str]) -> Start {
        let files = self.files(scheduler, options, run);
        let text = &files[0].1;
        match scheduler {
            "systemd" => systemd(text),
            "cron" => {
                let command = crontab(text, |command| command.replace(r"\%", "%"));
                shell(command)
            }
            "github" => github(text),
            _ => kubernetes(text),
        }
    }

    /// Starts it with nothing of this environment, as if it were this moment.
    fn fire(&self, start: &Start, now: i64) -> Done {
        let mut path = OsString::from(&self.bin);
        path.push(":/usr/bin:/bin");
        let mut command = Command::new("env");
        command.args(["-i", "TZ=UTC0", &format!("NOW={now}")]);
        // What is said comes after what the scheduler has; the clock stays ours.
        let mut clock = OsString::from("PATH=");
        clock.push(&path);
        command.arg(clock);
        for (name, value) in &start.env {
            let value = if name == "PATH" {
                format!("{}:{value}", self.bin.display())
            } else {
                value.clone()
            };
            command.arg(format!("{name}={value}"));
        }
        command.args(&start.words).current_dir(start.dir.as_deref().unwrap_or("/"));
        Done::from(command.output().expect("env"))
    }

    /// The key that a start at this moment has.
    fn key(&self, scheduler: &str, options: &[&str], now: i64) -> String {
        let mut start = self.start(scheduler, options, &["--no-check", "--", "true"]);
        let dam = dam_binary().canonicalize().expect("dam").display().to_string();
        for word in &mut start.words {
            *word = word.replace(&dam, "echo");
        }
        let said = self.fire(&start, now);
        let words: Vec<&str> = said.expect_code(0).stdout.split_whitespace().collect();
        assert_eq!(words[..2], ["run", "--key"]);
        words[2].to_owned()
    }
}

fn shell(script: String) -> Start {
    let words = ["sh".to_owned(), "-c".to_owned(), script].to_vec();
    Start { words, dir: None, env: Vec::new() }
}

/// The command of the one line that is no comment, as a cron reads it.
fn crontab(text: &str, unescaped: impl Fn(&str) -> String) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let [line] = lines[..] else { panic!("not one line: {text}") };
    let fields: Vec<&str> = line.splitn(6, ' ').collect();
    assert!(fields[..5].iter().all(|field| field.bytes().all(|b| b == b'*' || b.is_ascii_digit())));
    assert!(!fields[5].replace(r"\%", "").contains('%'), "a `%` ends the command: {line}");
    unescaped(fields[5])
}

/// Words between white space and double quotes (systemd.syntax(7)), `%%` and, where they
/// are a command, `$$` made one.
fn unit_words(text: &str, is_command: bool) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quoted, mut any) = (String::new(), false, false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => word.push(chars.next().filter(|c| "\\\"".contains(*c)).expect("an escape")),
            '"' => (quoted, any) = (!quoted, true),
            ' ' if !quoted => {
                if std::mem::take(&mut any) || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            '%' => {
                assert_eq!(chars.next(), Some('%'), "a specifier in: {text}");
                word.push('%');
            }
            '$' if is_command => {
                assert_eq!(chars.next(), Some('$'), "a variable in: {text}");
                word.push('$');
            }
            other => word.push(other),
        }
    }
    assert!(!quoted, "{text}");
    words.push(word);
    words
}

fn systemd(text: &str) -> Start {
    let mut start = Start { words: Vec::new(), dir: None, env: Vec::new() };
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("ExecStart=") {
            start.words = unit_words(command, true);
        } else if let Some(assignment) = line.strip_prefix("Environment=") {
            let [word] = &unit_words(assignment, false)[..] else { panic!("{line}") };
            let (name, value) = word.split_once('=').expect("an assignment");
            start.env.push((name.into(), value.into()));
        } else if let Some(dir) = line.strip_prefix("WorkingDirectory=") {
            start.dir = Some(dir.replace("%%", "%"));
        }
    }
    start
}

fn scalar(text: &str) -> String {
    serde_json::from_str(text).unwrap_or_else(|_| panic!("not a quoted scalar: {text}"))
}

fn github(text: &str) -> Start {
    let plain = |text: &str| text.replace("${{ '${{' }}", "${{");
    let (head, script) = text.split_once("        run: |\n").expect("a script");
    let (_, env) = head.split_once("        env:\n").expect("variables");
    let env = env.lines().map(|line| {
        let (name, value) = line.trim_start().split_once(": ").expect("a variable");
        (name.to_owned(), plain(&scalar(value)))
    });
    let script = script.lines().map(|line| line.strip_prefix("          ").expect("indented"));
    let script: Vec<String> = script.map(plain).collect();
    Start { env: env.collect(), ..shell(script.join("\n")) }
}

fn kubernetes(text: &str) -> Start {
    let plain = |text: &str| {
        assert!(!text.replace("$$", "").contains('$'), "a variable in: {text}");
        text.replace("$$", "$")
    };
    let mut start = Start { words: Vec::new(), dir: None, env: Vec::new() };
    for line in text.lines().map(str::trim_start) {
        if let Some(word) = line.strip_prefix("- ").filter(|word| word.starts_with('"')) {
            start.words.push(plain(&scalar(word)));
        } else if let Some(dir) = line.strip_prefix("workingDir: ") {
            start.dir = Some(scalar(dir));
        } else if let Some(name) = line.strip_prefix("- name: ") {
            start.env.push((name.to_owned(), String::new()));
        } else if let Some(value) = line.strip_prefix("value: ") {
            start.env.last_mut().expect("a name").1 = plain(&scalar(value));
        }
    }
    start.env.retain(|(_, value)| !value.is_empty());
    start
}

const SCHEDULERS: &[&str] = &["systemd", "cron", "github", "kubernetes"];

#[test]
fn a_start_lands_a_report_and_the_second_of_a_slot_is_told_of_the_first() {
    let desk = Desk::new();
    std::fs::write(desk.here.join("sales.db"), "sales\n").expect("write");
    let report = desk.world.dir().join("what's read 5%.csv");
    for (day, scheduler) in (0_i64..).zip(SCHEDULERS) {
        let output = format!("--output=report.csv={}", report.display());
        let script = "cat sales.db > report.csv; printf '%s\\n' \"$M\" >> report.csv";
        let env = format!("--env=M={ODD} {scheduler}");
        let run = ["--scratch", "--input", "sales.db", &output, &env];
        let rest = ["--check", "grep -q sales report.csv", "--", "sh", "-c", script];
        let start = desk.start(scheduler, &[], &[&run[..], &rest].concat());
        let now = SIX + day * 86_400;
        desk.fire(&start, now).expect_code(0).says("landed");
        let text = std::fs::read_to_string(&report).expect("read");
        assert_eq!(text, format!("sales\n{ODD} {scheduler}\n"));
        let again = desk.fire(&start, now + 60);
        again.expect_code(0).says("replayed: ");
        let task = desk.world.task(again.stderr.split('`').nth(1).expect("a name"));
        let date = ["2026-11-30", "2026-12-01", "2026-12-02", "2026-12-03"][day as usize];
        assert_eq!(task["key"], format!("inventory-{date}"));
    }
    let list = desk.dam(&["--format", "json", "list"]);
    let tasks: Value = serde_json::from_str(&list.expect_code(0).stdout).expect("JSON");
    assert_eq!(tasks.as_array().expect("tasks").len(), SCHEDULERS.len());
}

#[test]
fn every_cron_reads_the_line_alike() {
    let desk = Desk::new();
    let files = desk.files("cron", &[], &["--no-check", "--", "echo", ODD, ""]);
    let dam = dam_binary().canonicalize().expect("dam").display().to_string();
    let readings: [&dyn Fn(&str) -> String; 3] = [
        // crontab(5) of most; of some a doubled backslash is one; of others nothing is said.
        &|text| text.replace(r"\%", "%"),
        &|text| text.replace(r"\\", "\u{1}").replace(r"\%", "%").replace('\u{1}', r"\"),
        &str::to_owned,
    ];
    for reading in readings {
        let command = crontab(&files[0].1, reading);
        let command = command.replace(&format!(" {dam} run "), " /usr/bin/printf '%s\\n' ");
        let said = desk.fire(&shell(command), SIX);
        let wanted = format!("--key\ninventory-2026-11-30\n--no-check\n--\necho\n{ODD}\n\n");
        assert_eq!(said.expect_code(0).stdout, wanted);
    }
}

#[test]
fn a_start_that_is_late_or_repeated_has_the_key_of_its_slot() {
    let desk = Desk::new();
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    for scheduler in ["systemd", "github", "kubernetes"] {
        for (after, key) in [
            (-6 * MINUTE, "inventory-2026-11-29"),
            (-4 * MINUTE, "inventory-2026-11-30"),
            (0, "inventory-2026-11-30"),
            // Caught up the next morning, before that morning's own.
            (21 * HOUR, "inventory-2026-11-30"),
            (24 * HOUR, "inventory-2026-12-01"),
        ] {
            assert_eq!(desk.key(scheduler, &[], SIX + after), key, "{scheduler} {after}");
        }
    }
    let midnight = ["--at=00:00", "--key-prefix=shop/night"];
    assert_eq!(desk.key("systemd", &midnight, SIX - 6 * HOUR - 1), "shop/night-2026-11-30");
    let hourly = ["--every=hour", "--at=:15"];
    for (after, key) in [(9, "05"), (11, "06"), (15, "06"), (69, "06"), (75, "07")] {
        let key = format!("inventory-2026-11-30T{key}");
        assert_eq!(desk.key("systemd", &hourly, SIX + after * MINUTE), key, "{after}");
    }
    // cron starts what is due now, or never.
    assert_eq!(desk.key("cron", &hourly, SIX + 15 * MINUTE), "inventory-2026-11-30T06");
}

#[test]
fn systemd_takes_the_units() {
    let desk = Desk::new();
    let missing = !Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_ok_and(|done| done.status.success());
    for options in [&["--at=06:00"][..], &["--every=hour", "--at=:15"]] {
        let files = desk.files("systemd", options, &["--no-check", "--", "echo", ODD, ";"]);
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["inventory.service", "inventory.timer"]);
        for line in ["Type=oneshot", "Restart=on-failure"] {
            assert!(files[0].1.lines().any(|found| found == line), "{}", files[0].1);
        }
        let never = "RestartPreventExitStatus=2 3 4 5 6 8 130";
        assert!(files[0].1.lines().any(|found| found == never), "{}", files[0].1);
        assert!(files[1].1.contains("\nPersistent=true\n"), "{}", files[1].1);
        for (name, text) in &files {
            std::fs::write(desk.world.dir().join(name), text).expect("write");
        }
        if missing {
            eprintln!("systemd-analyze is not here: the units were not given to it");
            continue;
        }
        let mut verify = Command::new("systemd-analyze");
        verify.arg("verify").args(names).current_dir(desk.world.dir());
        let done = Done::from(verify.output().expect("systemd-analyze"));
        done.expect_code(0);
        // What it does not know it tells, and goes on.
        let ours: Vec<&str> =
            done.stderr.lines().filter(|line| line.contains("inventory.")).collect();
        assert!(ours.is_empty(), "{}", done.stderr);
    }
}

#[test]
fn a_workflow_and_a_cron_job_run_one_at_a_time() {
    let desk = Desk::new();
    let run = ["--no-check", "--", "true"];
    let has = |scheduler: &str, name: &str, lines: &[&str]| {
        let files = desk.files(scheduler, &[], &run);
        assert_eq!((files.len(), files[0].0.as_str()), (1, name));
        for line in lines {
            let found = files[0].1.lines().any(|found| found.trim_start() == *line);
            assert!(found, "no `{line}` in:\n{}", files[0].1);
        }
        // No tabs, and nothing further in than a level below the line above.
        let mut above = 0;
        for line in files[0].1.lines().filter(|line| !line.trim_start().starts_with('#')) {
            let within = line.len() - line.trim_start().len();
            assert!(within % 2 == 0 && within <= above + 4 && !line.contains('\t'), "{line}");
            above = within;
        }
    };
    let cron = "- cron: \"0 6 * * *\"";
    let group = ["group: \"inventory\"", "cancel-in-progress: false", "runs-on: self-hosted"];
    has("github", "inventory.yml", &[&["schedule:", cron, "concurrency:"][..], &group].concat());
    let state = format!("mountPath: \"{}\"", desk.world.state().display());
    let once = ["concurrencyPolicy: Forbid", "startingDeadlineSeconds: 36000", "timeZone: Etc/UTC"];
    let rest = ["schedule: \"0 6 * * *\"", "claimName: inventory-state", &state];
    has("kubernetes", "inventory.yaml", &[&once[..], &rest].concat());
}

#[test]
fn the_surroundings_are_written_down() {
    let desk = Desk::new();
    let start = desk.start("systemd", &[], &["--no-check", "--", "true"]);
    assert_eq!(start.dir.as_deref(), desk.here.to_str());
    let value = |name: &str| {
        let found = start.env.iter().find(|(found, _)| found == name);
        found.unwrap_or_else(|| panic!("no {name}")).1.clone()
    };
    assert_eq!(value("COFFERDAM_STATE"), desk.world.state().display().to_string());
    assert_eq!(value("HOME"), desk.world.home().display().to_string());
    let path = std::env::var("PATH").expect("PATH");
    let absolute: Vec<&str> = path.split(':').filter(|dir| dir.starts_with('/')).collect();
    assert_eq!(value("PATH"), absolute.join(":"));
    assert_eq!(start.words[3], dam_binary().canonicalize().expect("dam").display().to_string());
}

#[test]
fn what_could_not_be_started_is_refused() {
    let desk = Desk::new();
    let at = ["--name=n", "--at=06:00"];
    let run = ["--no-check", "--", "true"];
    for (scheduler, options, run, why) in [
        ("cron", &at[..], &["--key", "k", "--", "true"][..], "has a `--key` already"),
        ("systemd", &at, &["--key=k", "--", "true"], "has a `--key` already"),
        ("cron", &at, &["--name=x", "--", "true"], "has a `--name`"),
        ("cron", &at, &["--detach", "--", "true"], "a scheduler has no terminal"),
        ("systemd", &at, &["-i", "--", "true"], "leave out `--detach` and `--interactive`"),
        ("cron", &at, &["--chekc", "x", "--", "true"], "unexpected argument '--chekc'"),
        ("cron", &at, &["--output=a=b", "--", "true"], "--scratch"),
        ("cron", &at, &["true"], "unexpected argument 'true'"),
        ("cron", &at, &["--scratch"], "<CMD>"),
        ("cron", &at, &["--help"], "it asks for help"),
        ("cron", &at, &["-m", "two\nlines", "--", "true"], "has a line end"),
        ("cron", &["--name=N", "--at=06:00"], &run, "task name `N` can't contain `N`"),
        ("cron", &["--name=n", "--at=noon"], &run, "`--at noon` is no such time"),
        ("cron", &["--name=n", "--at=06:00", "--every=hour"], &run, "is no such time"),
        ("cron", &["--name=n", "--at=:15"], &run, "is no such time"),
        ("cron", &["--name=n", "--at=6:00", "--key-prefix=a b"], &run, "can't begin a key"),
        ("kubernetes", &["--name=a_b", "--at=06:00"], &run, "the name of a CronJob"),
        ("launchd", &at, &run, "invalid value 'launchd'"),
    ] {
        let args = [&["schedule", "print", scheduler], options, &["--"], run].concat();
        let done = desk.dam(&args);
        done.expect_code(2).says(why);
        assert_eq!(done.stdout, "");
    }
    // The command's own words are its own.
    desk.files("cron", &[], &["--no-check", "--", "tool", "--key", "k"]);
    assert!(!desk.world.state().exists(), "to print makes no state");
}

//! `dam schedule`: what a person puts into a scheduler so that it starts `dam run`.
//!
//! A scheduler can start a slot twice, late, or again after a failure, so every start has a
//! key, and the key is that of its slot, not of the moment. Where the scheduler counts in
//! UTC, the slot of a start is the one that began last, counted with [`EARLY`] to spare for
//! clocks that differ: a start that was caught up the next morning has yesterday's key, and
//! does not take today's away. cron counts in local time and catches nothing up, so there
//! it is the local date: the UTC date of a local time can be the same two days running when
//! the clocks change.
//!
//! Nothing of the caller's environment is there when the clock fires, so all that decides
//! which state, tools and configuration a run finds is written down.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::Parser;
use clap::error::ErrorKind;
use cofferdam_core::{Dam, Error, ExitCode, TaskName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{Args, Command, Every, Format, SchedulePrint, Scheduler};
use crate::{output, quote};

/// How many seconds before a slot a start can come and still be that slot's.
const EARLY: i64 = 300;

/// Exit codes of `dam run` that come again when nobody does anything: usage, rejected,
/// conflict, held, no isolation, ready, interrupted.
const NEEDS_A_PERSON: &[u8] = &[2, 3, 4, 5, 6, 8, 130];

/// Debian's cron takes no longer command.
const LONGEST_IN_CRON: usize = 998;

/// What a scheduler needs.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ScheduleReport {
    /// Version of this format.
    pub version: u32,
    /// The files, in the order in which they are printed.
    pub files: Vec<ScheduleFile>,
}

/// A file that a person gives to a scheduler.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ScheduleFile {
    /// Its name, without a directory.
    pub name: String,
    /// What is in it.
    pub content: String,
}

/// What is to be started, when, and in which surroundings.
struct Plan {
    name: String,
    prefix: String,
    slot: Slot,
    dir: String,
    dam: String,
    env: Vec<(&'static str, String)>,
    /// Arguments of `dam run`.
    run: Vec<String>,
}

/// A time of each day, or of each hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot {
    every: Every,
    hour: u8,
    minute: u8,
}

/// Prints what a scheduler needs.
pub fn print(args: &SchedulePrint, dir: &Path, format: Format) -> Result<ExitCode, Error> {
    let plan = plan(args, dir)?;
    let files = match args.scheduler {
        Scheduler::Systemd => systemd(&plan)?,
        Scheduler::Cron => cron(&plan),
        Scheduler::Github => github(&plan),
        Scheduler::Kubernetes => kubernetes(&plan)?,
    };
    let report = ScheduleReport { version: 1, files };
    match format {
        Format::Text => {
            let parts: Vec<&str> = report.files.iter().map(|file| file.content.as_str()).collect();
            output::text(&parts.join("\n"));
        }
        Format::Json => output::json(&report),
        Format::Jsonl => output::json_line(&report),
    }
    Ok(ExitCode::Done)
}

fn refused(message: impl Into<String>, hint: &str) -> Error {
    Error::Usage { message: message.into(), hint: Some(hint.into()) }
}

fn plan(args: &SchedulePrint, dir: &Path) -> Result<Plan, Error> {
    let name = TaskName::parse(&args.name)
        .map_err(|error| Error::Usage { message: error.to_string(), hint: None })?
        .to_string();
    let prefix = args.key_prefix.clone().unwrap_or_else(|| name.clone());
    let in_key = |c: char| c.is_ascii_alphanumeric() || "._-:/@+".contains(c);
    if prefix.is_empty() || prefix.len() > 150 || !prefix.chars().all(in_key) {
        return Err(refused(
            format!("`--key-prefix {prefix}` can't begin a key here"),
            "letters, digits and `._-:/@+`, at most 150 of them",
        ));
    }
    let slot = Slot::parse(&args.at, args.every)?;
    accepted_by_run(&args.run)?;
    let said = |path: &Path, what| text(path.as_os_str(), what);
    Ok(Plan {
        name,
        prefix,
        slot,
        dir: said(dir, "the current directory")?,
        dam: said(&super::setup::binary()?, "the path of `dam`")?,
        env: surroundings()?,
        run: args.run.iter().map(|word| text(word, "an argument")).collect::<Result<_, _>>()?,
    })
}

/// Whether `dam run` would take these arguments together with a key.
fn accepted_by_run(run: &[OsString]) -> Result<(), Error> {
    for word in run.iter().take_while(|word| *word != "--") {
        let given = |option: &str| {
            let word = word.to_string_lossy();
            word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        if given("--key") {
            return Err(refused(
                "the run has a `--key` already, which would be the same for every slot",
                "leave it out; `--key-prefix` says what keys begin with",
            ));
        }
        if given("--name") {
            return Err(refused(
                "the run has a `--name`, which a task that failed keeps: the next could not start",
                "leave it out; each task gets a name from its command",
            ));
        }
    }
    let words = ["dam", "run", "--key=slot"].map(OsString::from).into_iter();
    let error = match Args::try_parse_from(words.chain(run.iter().cloned())) {
        Err(error) => error,
        Ok(Args { command: Command::Run(run), .. }) if run.detach || run.interactive => {
            return Err(refused(
                "a scheduler has no terminal, and waits for what it starts",
                "leave out `--detach` and `--interactive`",
            ));
        }
        Ok(_) => return Ok(()),
    };
    let why = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => "it asks for help".to_owned(),
        _ => {
            let text = error.render().to_string();
            let first: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
            first.join(" ").trim_start_matches("error: ").to_owned()
        }
    };
    Err(refused(
        format!("`dam run` would refuse these arguments: {why}"),
        "what comes after the first `--` is what `dam run` gets, its own `--` and command included",
    ))
}

/// Text that can be in one line of a file.
fn text(word: &OsStr, what: &str) -> Result<String, Error> {
    let fault = |why: &str| {
        let message = format!("{what} {why}: `{}`", crate::table::plain(&word.to_string_lossy()));
        refused(message, "a script of its own can hold it")
    };
    let text = word.to_str().ok_or_else(|| fault("is not UTF-8"))?;
    if text.chars().any(char::is_control) {
        return Err(fault("has a line end or another control character"));
    }
    Ok(text.to_owned())
}

/// The variables that decide which state, tools and configuration a run finds.
fn surroundings() -> Result<Vec<(&'static str, String)>, Error> {
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    let home = home.ok_or_else(|| refused("there is no home", "set `HOME`"))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    // What is relative would be looked for somewhere else.
    let dirs = std::env::split_paths(&path).filter(|dir| dir.is_absolute());
    let path = std::env::join_paths(dirs).expect("no entry has a colon");
    let mut env = vec![
        ("COFFERDAM_STATE", text(Dam::default_dir()?.as_os_str(), "the state directory")?),
        ("HOME", text(home.as_os_str(), "`HOME`")?),
        ("PATH", text(&path, "`PATH`")?),
    ];
    if let Some(config) = std::env::var_os("XDG_CONFIG_HOME").filter(|dir| !dir.is_empty()) {
        env.push(("XDG_CONFIG_HOME", text(&config, "`XDG_CONFIG_HOME`")?));
    }
    Ok(env)
}

impl Slot {
    fn parse(at: &str, every: Every) -> Result<Slot, Error> {
        let number = |text: &str, below: u8| {
            let digits = (1..=2).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
            text.parse().ok().filter(|number: &u8| digits && *number < below)
        };
        let (hour, minute) = at.split_once(':').unwrap_or((at, ""));
        let minute = number(minute, 60).filter(|_| minute.len() == 2);
        let found = match (every, number(hour, 24), minute) {
            (Every::Day, Some(hour), Some(minute)) => Some((hour, minute)),
            (Every::Hour, None, Some(minute)) if hour.is_empty() => Some((0, minute)),
            _ => None,
        };
        let hint = match every {
            Every::Day => "a time of the day, like `06:00`",
            Every::Hour => "minutes after each hour, like `:15`",
        };
        let (hour, minute) =
            found.ok_or_else(|| refused(format!("`--at {at}` is no such time"), hint))?;
        Ok(Slot { every, hour, minute })
    }

    /// The five fields of cron.
    fn fields(self) -> String {
        let Slot { hour, minute, .. } = self;
        match self.every {
            Every::Day => format!("{minute} {hour} * * *"),
            Every::Hour => format!("{minute} * * * *"),
        }
    }

    /// How `date` writes the slot.
    fn shape(self) -> &'static str {
        match self.every {
            Every::Day => "%Y-%m-%d",
            Every::Hour => "%Y-%m-%dT%H",
        }
    }
}

impl Plan {
    /// Prints the key of the slot that began last; for a scheduler that counts in UTC.
    fn key(&self) -> String {
        let after_midnight = i64::from(self.slot.hour) * 3600 + i64::from(self.slot.minute) * 60;
        let back = match after_midnight - EARLY {
            back @ 0.. => format!("- {back}"),
            back => format!("+ {}", -back),
        };
        let (prefix, shape) = (&self.prefix, self.slot.shape());
        format!(r#"$(date -u -d "@$(($(date +%s) {back}))" +{prefix}-{shape})"#)
    }

    /// A script that gets the path of `dam` and the arguments of `dam run`.
    fn script(&self) -> String {
        format!(r#"exec "$0" run --key "{}" "$@""#, self.key())
    }

    fn file(&self, ending: &str, lines: &[String]) -> ScheduleFile {
        ScheduleFile { name: format!("{}.{ending}", self.name), content: lines.join("\n") + "\n" }
    }
}

/// A service and a timer.
fn systemd(plan: &Plan) -> Result<Vec<ScheduleFile>, Error> {
    let name = &plan.name;
    if plan.dir.ends_with([' ', '\\']) {
        return Err(refused(
            format!("`WorkingDirectory=` can't end as `{}` does", plan.dir),
            "start from another directory",
        ));
    }
    let (units, call) = match rustix::process::geteuid().is_root() {
        true => ("/etc/systemd/system", "systemctl"),
        false => ("~/.config/systemd/user", "systemctl --user"),
    };
    // Of one slot four starts; those of the slot before are no longer counted.
    let (window, pause) = match plan.slot.every {
        Every::Day => ("20h", "10min"),
        Every::Hour => ("50min", "5min"),
    };
    let words = ["-c", &plan.script(), &plan.dam].map(quote::exec_start);
    let run = plan.run.iter().map(|word| quote::exec_start(word));
    let exec: Vec<String> = words.into_iter().chain(run).collect();
    let mut service = vec![
        format!("# {units}/{name}.service"),
        "[Unit]".into(),
        format!("Description=dam run: {name}"),
        format!("StartLimitIntervalSec={window}"),
        "StartLimitBurst=4".into(),
        String::new(),
        "[Service]".into(),
        "Type=oneshot".into(),
        format!("WorkingDirectory={}", quote::percent(&plan.dir)),
    ];
    let variables = plan.env.iter().map(|(name, value)| format!("{name}={value}"));
    service.extend(variables.map(|text| format!("Environment={}", quote::assignment(&text))));
    service.extend([
        "# The key is that of the slot that began last, with five minutes to spare.".into(),
        format!("ExecStart=/bin/sh {}", exec.join(" ")),
        "KillMode=mixed".into(),
        "# What can go better by itself is started again, at most three times.".into(),
        "Restart=on-failure".into(),
        format!("RestartSec={pause}"),
        format!("RestartPreventExitStatus={}", codes(" ")),
    ]);
    let Slot { hour, minute, .. } = plan.slot;
    let when = match plan.slot.every {
        Every::Day => format!("{hour:02}:{minute:02}:00"),
        Every::Hour => format!("*:{minute:02}:00"),
    };
    let mut timer = vec![
        format!("# {units}/{name}.timer"),
        format!("# Then: {call} daemon-reload && {call} enable --now {name}.timer"),
    ];
    if call != "systemctl" {
        timer.push("# So that it fires when you are not logged in: loginctl enable-linger".into());
    }
    timer.extend([
        "[Unit]".into(),
        format!("Description=when to start {name}"),
        String::new(),
        "[Timer]".into(),
        format!("OnCalendar=*-*-* {when} UTC"),
        "Persistent=true".into(),
        String::new(),
        "[Install]".into(),
        "WantedBy=timers.target".into(),
    ]);
    Ok(vec![plan.file("service", &service), plan.file("timer", &timer)])
}

fn codes(between: &str) -> String {
    NEEDS_A_PERSON.iter().map(u8::to_string).collect::<Vec<_>>().join(between)
}

/// One line of a crontab.
fn cron(plan: &Plan) -> Vec<ScheduleFile> {
    let shape = format!("{}-{}", plan.prefix, plan.slot.shape()).replace('%', r"\%");
    let date = match plan.slot.every {
        Every::Day => format!("date +{shape}"),
        Every::Hour => format!("date -u +{shape}"),
    };
    let env = plan.env.iter().map(|(name, value)| format!("{name}={}", quote::cron(value)));
    let run: Vec<String> = plan.run.iter().map(|word| quote::cron(word)).collect();
    let command = format!(
        r#"cd {} && {} {} run --key "$({date})" {}"#,
        quote::cron(&plan.dir),
        env.collect::<Vec<_>>().join(" "),
        quote::cron(&plan.dam),
        run.join(" ")
    );
    let mut lines = vec![format!(
        "# {}: for `crontab -e`. The time is local, and so is a day's key.",
        plan.name
    )];
    if command.len() > LONGEST_IN_CRON {
        lines.push(format!(
            "# Some crons take no command of more than {LONGEST_IN_CRON} bytes: this one has {}.",
            command.len()
        ));
    }
    lines.push(format!("{} {command}", plan.slot.fields()));
    vec![plan.file("cron", &lines)]
}

/// A workflow for GitHub Actions.
fn github(plan: &Plan) -> Vec<ScheduleFile> {
    let name = &plan.name;
    let run: Vec<String> = plan.run.iter().map(|word| quote::sh(word)).collect();
    let script = [
        format!("cd {}", quote::sh(&plan.dir)),
        format!(r#"exec {} run --key "{}" {}"#, quote::sh(&plan.dam), plan.key(), run.join(" ")),
    ];
    let mut lines = vec![
        format!("# .github/workflows/{name}.yml"),
        "# For a runner of your own, on this machine: state and files are here. Times are UTC."
            .into(),
        format!("name: {}", quote::yaml(name)),
        "on:".into(),
        "  schedule:".into(),
        format!("    - cron: {}", quote::yaml(&plan.slot.fields())),
        "  workflow_dispatch:".into(),
        "permissions: {}".into(),
        "concurrency:".into(),
        format!("  group: {}", quote::yaml(name)),
        "  cancel-in-progress: false".into(),
        "jobs:".into(),
        "  run:".into(),
        "    runs-on: self-hosted".into(),
        "    steps:".into(),
        "      - shell: sh".into(),
        "        env:".into(),
    ];
    let value = |text: &str| quote::yaml(&quote::github(text));
    lines.extend(plan.env.iter().map(|(name, text)| format!("          {name}: {}", value(text))));
    lines.push("        run: |".into());
    lines.extend(script.iter().map(|line| format!("          {}", quote::github(line))));
    vec![plan.file("yml", &lines)]
}

/// A CronJob, and a claim for its state.
fn kubernetes(plan: &Plan) -> Result<Vec<ScheduleFile>, Error> {
    let name = &plan.name;
    if name.len() > 52 || name.contains(['.', '_']) || name.ends_with('-') {
        return Err(refused(
            format!("`{name}` can't be the name of a CronJob"),
            "letters, digits and `-`, at most 52, the last no `-`",
        ));
    }
    let late = match plan.slot.every {
        Every::Day => 36_000,
        Every::Hour => 1_800,
    };
    let value = |text: &str| quote::yaml(&quote::kubernetes(text));
    let state = &plan.env[0].1;
    let mut lines = vec![
        format!("# {name}.yaml, for `kubectl apply -f`"),
        "# IMAGE is one with `dam` and the task's programs and files at the paths below, which"
            .into(),
        "# are those of where this was printed. What the outputs become needs a volume as well."
            .into(),
        "apiVersion: v1".into(),
        "kind: PersistentVolumeClaim".into(),
        "metadata:".into(),
        format!("  name: {name}-state"),
        "spec:".into(),
        "  accessModes: [\"ReadWriteOnce\"]".into(),
        "  resources:".into(),
        "    requests:".into(),
        "      storage: 20Gi".into(),
        "---".into(),
        "apiVersion: batch/v1".into(),
        "kind: CronJob".into(),
        "metadata:".into(),
        format!("  name: {}", quote::yaml(name)),
        "spec:".into(),
        format!("  schedule: {}", quote::yaml(&plan.slot.fields())),
        "  timeZone: Etc/UTC".into(),
        "  concurrencyPolicy: Forbid".into(),
        format!("  startingDeadlineSeconds: {late}"),
        "  jobTemplate:".into(),
        "    spec:".into(),
        "      backoffLimit: 3".into(),
        "      # These come again when nobody does anything.".into(),
        "      podFailurePolicy:".into(),
        "        rules:".into(),
        "          - action: FailJob".into(),
        "            onExitCodes:".into(),
        "              operator: In".into(),
        format!("              values: [{}]", codes(", ")),
        "      template:".into(),
        "        spec:".into(),
        "          restartPolicy: Never".into(),
        "          automountServiceAccountToken: false".into(),
        "          containers:".into(),
        "            - name: dam".into(),
        "              image: IMAGE".into(),
        format!("              workingDir: {}", quote::yaml(&plan.dir)),
        "              command:".into(),
    ];
    let (script, words) = (plan.script(), ["/bin/sh", "-c"]);
    let words = words.into_iter().chain([script.as_str(), plan.dam.as_str()]);
    let words = words.chain(plan.run.iter().map(String::as_str));
    lines.extend(words.map(|word| format!("                - {}", value(word))));
    lines.push("              env:".into());
    for (name, text) in &plan.env {
        lines.push(format!("                - name: {name}"));
        lines.push(format!("                  value: {}", value(text)));
    }
    lines.extend([
        "              volumeMounts:".into(),
        "                - name: state".into(),
        format!("                  mountPath: {}", quote::yaml(state)),
        "          volumes:".into(),
        "            - name: state".into(),
        "              persistentVolumeClaim:".into(),
        format!("                claimName: {name}-state"),
    ]);
    Ok(vec![plan.file("yaml", &lines)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_a_time_of_the_day_or_of_the_hour() {
        let parse = |at, every| Slot::parse(at, every).map(|slot| (slot.hour, slot.minute)).ok();
        assert_eq!(parse("06:00", Every::Day), Some((6, 0)));
        assert_eq!(parse("6:05", Every::Day), Some((6, 5)));
        assert_eq!(parse(":15", Every::Hour), Some((0, 15)));
        for at in ["", "6", "24:00", "06:60", "06:0", "+6:00", "06:00:00", ":15", "noon"] {
            assert_eq!(parse(at, Every::Day), None, "{at}");
        }
        for at in ["", ":", "15", ":5", ":60", "06:15"] {
            assert_eq!(parse(at, Every::Hour), None, "{at}");
        }
    }
}

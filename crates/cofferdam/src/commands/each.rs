//! `dam run --each`: a batch, a task for each row of a file.
//!
//! Each row is a `dam run` of its own, so one that fails or is killed stops no other. It
//! has a key, its own or one made of what is asked for, so that the same file again does
//! what is not done yet.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cofferdam_core::control::Control;
use cofferdam_core::receipt::Receipt;
use cofferdam_core::{Error, ExitCode, TaskName, query};
use serde_json::Value;

use crate::args::{Format, Run};
use crate::output::{self, BAD, BOLD, DIM};
use crate::{signals, table};

/// One row.
#[derive(Debug, Default, PartialEq, Eq)]
struct Row {
    name: Option<TaskName>,
    key: Option<String>,
    args: Vec<String>,
    env: Vec<(String, String)>,
    /// What `{FIELD}` in the command and its options stands for; of a line of text, `{}`.
    fields: Vec<(String, String)>,
}

/// What came of a row.
enum Came {
    /// A task, and what it came to.
    To(Box<Receipt>),
    /// No task: why, and its exit code.
    Nothing(String, u8),
}

impl Came {
    fn code(&self) -> u8 {
        match self {
            Came::To(receipt) => receipt.exit_code,
            Came::Nothing(_, code) => *code,
        }
    }
}

/// Runs a task for each row of a file.
pub fn each(args: &Run, file: &Path, dir: &Path, format: Format) -> Result<ExitCode, Error> {
    let rows = rows(&read(file, dir)?, file)?;
    each_its_own(&args.outputs, &rows)?;
    let own = own_options(std::env::args_os().skip(1));
    let jobs = args.jobs.map_or_else(
        || std::thread::available_parallelism().map_or(1, usize::from),
        |jobs| jobs as usize,
    );
    let batch = Batch {
        prefix: args.key.as_ref().map(|key| key.key.clone()),
        own,
        command: args.command.clone(),
        dir,
        format,
        control: signals::control(),
        at_work: Mutex::default(),
        of: rows.len(),
        done: AtomicUsize::new(0),
    };
    let (next, over) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let came: Vec<Mutex<Option<Came>>> = rows.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| -> Result<(), Error> {
        let workers = jobs.min(rows.len());
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(row) = rows.get(at) else { break };
                if batch.control.interrupts() > 0 {
                    break;
                }
                let result = batch.run(row);
                batch.tell(row, &result);
                *came[at].lock().expect("row") = Some(result);
            }
            over.fetch_add(1, Ordering::Relaxed);
        };
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work);
        let threads: Vec<_> =
            (0..workers).map(spawn).collect::<Result<_, _>>().map_err(Error::NoThread)?;
        let mut passed_on = 0;
        while over.load(Ordering::Relaxed) < threads.len() {
            std::thread::sleep(Duration::from_millis(20));
            let interrupts = batch.control.interrupts();
            if interrupts > passed_on {
                passed_on = interrupts;
                batch.interrupt_all();
            }
        }
        Ok(())
    })?;
    let came: Vec<Option<Came>> =
        came.into_iter().map(|came| came.into_inner().expect("row")).collect();
    Ok(summary(&came, format))
}

fn usage(message: String) -> Error {
    Error::Usage { message, hint: None }
}

fn read(file: &Path, dir: &Path) -> Result<String, Error> {
    let mut text = String::new();
    let done = if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text)
    } else {
        std::fs::File::open(dir.join(file)).and_then(|mut open| open.read_to_string(&mut text))
    };
    done.map_err(|error| usage(format!("`--each {}`: {error}", file.display())))?;
    Ok(text)
}

/// Refuses outputs that two rows would make: the last would be what is left.
fn each_its_own(outputs: &[OsString], rows: &[Row]) -> Result<(), Error> {
    for output in outputs {
        let mut seen = HashSet::new();
        if let Some(twice) = rows.iter().find(|row| !seen.insert(row.filled(output))) {
            return Err(Error::Usage {
                message: format!(
                    "more than one row would make `--output {}`",
                    twice.filled(output).display()
                ),
                hint: Some("`{FIELD}` in it stands for what the row has there".into()),
            });
        }
    }
    Ok(())
}

/// The rows of a text: a JSON object a line, or plain lines, as the first of them is.
fn rows(text: &str, file: &Path) -> Result<Vec<Row>, Error> {
    let mut rows: Vec<Row> = Vec::new();
    let is_json = text.trim_start().starts_with('{');
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |why: &str| usage(format!("{}:{}: {why}", file.display(), number + 1));
        let row = if is_json {
            of_json(line).map_err(|why| wrong(&why))?
        } else {
            Row { fields: vec![(String::new(), line.to_owned())], ..Row::default() }
        };
        if row.has_nul() {
            return Err(wrong("a NUL byte can't be told to any command"));
        }
        if row.name.is_some() && rows.iter().any(|other| other.name == row.name) {
            return Err(wrong("another row has that name"));
        }
        rows.push(row);
    }
    Ok(rows)
}

fn of_json(line: &str) -> Result<Row, String> {
    let fields: serde_json::Map<String, Value> =
        serde_json::from_str(line).map_err(|error| error.to_string())?;
    let mut row = Row::default();
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(yes) => Some(yes.to_string()),
        _ => None,
    };
    for (field, value) in &fields {
        let said = text(value);
        let needed = || said.clone().ok_or_else(|| format!("`{field}` has to be text"));
        match field.as_str() {
            "name" => {
                let name = needed()?;
                row.name = Some(TaskName::parse(&name).map_err(|error| error.to_string())?);
            }
            "key" => row.key = Some(needed()?),
            "args" => {
                let args = value.as_array().and_then(|args| args.iter().map(text).collect());
                row.args = args.ok_or("`args` has to be a list of texts")?;
            }
            "env" => {
                let env = value.as_object().and_then(|env| {
                    env.iter().map(|(name, value)| Some((name.clone(), text(value)?))).collect()
                });
                row.env = env.ok_or("`env` has to be an object of texts")?;
            }
            _ => {}
        }
        if let Some(said) = said {
            row.fields.push((field.clone(), said));
        }
    }
    Ok(row)
}

impl Row {
    fn has_nul(&self) -> bool {
        let pairs = self.env.iter().chain(&self.fields);
        pairs
            .flat_map(|(name, value)| [name, value])
            .chain(&self.args)
            .any(|text| text.contains('\0'))
    }

    /// A word of the command, or an option, with what its `{FIELD}`s stand for.
    fn filled(&self, word: &OsStr) -> OsString {
        let mut bytes = Vec::new();
        let mut rest = word.as_bytes();
        while let Some(first) = rest.first() {
            let found = self.fields.iter().find_map(|(field, value)| {
                let after = rest.strip_prefix(b"{")?.strip_prefix(field.as_bytes())?;
                Some((value, after.strip_prefix(b"}")?))
            });
            rest = match found {
                Some((value, after)) => {
                    bytes.extend(value.bytes());
                    after
                }
                None => {
                    bytes.push(*first);
                    &rest[1..]
                }
            };
        }
        OsString::from_vec(bytes)
    }
}

/// The options of this `dam run` that each of its rows has as well.
fn own_options(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    const OURS: [&str; 4] = ["--each", "--jobs", "--key", "--format"];
    let mut own = Vec::new();
    let mut is_run = false;
    let mut args = args.take_while(|arg| arg != "--");
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        if OURS.contains(&text.as_ref()) {
            args.next();
        } else if OURS.iter().any(|name| text.starts_with(&format!("{name}="))) {
        } else if !is_run && text == "run" {
            is_run = true;
        } else {
            own.push(arg);
        }
    }
    own
}

struct Batch<'a> {
    prefix: Option<String>,
    own: Vec<OsString>,
    command: Vec<OsString>,
    dir: &'a Path,
    format: Format,
    control: Control,
    /// The processes of the rows that are at work.
    at_work: Mutex<Vec<u32>>,
    of: usize,
    done: AtomicUsize,
}

impl Batch<'_> {
    fn run(&self, row: &Row) -> Came {
        let nothing = |why: String| Came::Nothing(why, ExitCode::Internal as u8);
        let words: Vec<OsString> = self
            .command
            .iter()
            .map(|word| row.filled(word))
            .chain(row.args.iter().map(OsString::from))
            .collect();
        let mut options: Vec<OsString> = self.own.iter().map(|word| row.filled(word)).collect();
        for (name, value) in &row.env {
            options.push(format!("--env={name}={value}").into());
        }
        let key = self.key(row, &options, &words);
        options.push(format!("--key={key}").into());
        match row.name.as_ref().map(free_name).transpose() {
            Ok(Some(name)) => options.push(format!("--name={name}").into()),
            Ok(None) => {}
            Err(error) => return nothing(error.to_string()),
        }
        let child = Command::new("/proc/self/exe")
            .args(["--format", "json", "run"])
            .args(options)
            .arg("--")
            .args(words)
            .current_dir(self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // What interrupts us is passed on once.
            .process_group(0)
            .spawn();
        let child = match child {
            Ok(child) => child,
            Err(error) => return nothing(format!("`dam run` can't be started: {error}")),
        };
        let id = child.id();
        self.at_work.lock().expect("rows").push(id);
        let output = child.wait_with_output();
        self.at_work.lock().expect("rows").retain(|known| *known != id);
        let output = match output {
            Ok(output) => output,
            Err(error) => return nothing(error.to_string()),
        };
        if let Ok(receipt) = serde_json::from_slice::<Receipt>(&output.stdout) {
            return Came::To(Box::new(receipt));
        }
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        let error: Option<Value> = serde_json::from_str(&said).ok();
        let why = error.as_ref().and_then(|error| error["error"].as_str());
        let code = output.status.code().and_then(|code| u8::try_from(code).ok());
        let why = why.map_or_else(|| said.trim().to_owned(), ToOwned::to_owned);
        Came::Nothing(why, code.unwrap_or(ExitCode::Internal as u8))
    }

    /// The key of a row: what it says, else a hash of all that is asked for.
    fn key(&self, row: &Row, options: &[OsString], words: &[OsString]) -> String {
        let own = row.key.clone().unwrap_or_else(|| {
            let mut asked = Vec::new();
            for word in options.iter().chain(words).map(|word| word.as_bytes()) {
                asked.extend((word.len() as u64).to_le_bytes());
                asked.extend(word);
            }
            asked.extend(self.dir.as_os_str().as_bytes());
            cofferdam_core::once::hash(&asked)
        });
        match &self.prefix {
            Some(prefix) => format!("{prefix}/{own}"),
            None if row.key.is_some() => own,
            None => format!("each/{own}"),
        }
    }

    fn interrupt_all(&self) {
        for id in self.at_work.lock().expect("rows").iter() {
            let pid = i32::try_from(*id).ok().and_then(rustix::process::Pid::from_raw);
            if let Some(pid) = pid {
                // It was not waited for yet, so it is still that process.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
            }
        }
    }

    fn tell(&self, row: &Row, came: &Came) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        match (self.format, came) {
            (Format::Json, _) => {}
            (Format::Jsonl, Came::To(receipt)) => output::json_line(receipt),
            (Format::Jsonl, Came::Nothing(why, code)) => {
                output::json_line(&serde_json::json!({ "error": why, "exit_code": code }));
            }
            (Format::Text, Came::To(receipt)) => {
                let style = super::style_of(receipt.state());
                let why = receipt.reason.as_deref().map(table::plain).unwrap_or_default();
                let how = if receipt.replayed { "replayed " } else { "" };
                output::note(&format!(
                    "{DIM}{done:>4}/{}{DIM:#}  {style}{:<10}{style:#} {}  {DIM}{how}{why}{DIM:#}\n",
                    self.of, receipt.state, receipt.name
                ));
            }
            (Format::Text, Came::Nothing(why, _)) => {
                let name = row.name.as_ref().map_or_else(String::new, ToString::to_string);
                output::note(&format!(
                    "{DIM}{done:>4}/{}{DIM:#}  {BAD}{:<10}{BAD:#} {name}  {}\n",
                    self.of,
                    "error",
                    table::plain(why)
                ));
            }
        }
    }
}

/// A name that no task has whose context is there: of one that failed it still is.
fn free_name(name: &TaskName) -> Result<TaskName, Error> {
    let mut dam = super::open()?;
    let mut free = name.clone();
    for number in 2.. {
        match query::show(&mut dam, free.as_ref()) {
            Ok((task, _)) if !task.settled && task.name == free => {}
            Ok(_) | Err(Error::NoSuchTask(_)) => break,
            Err(error) => return Err(error),
        }
        free = TaskName::from_words(&format!("{name}-{number}"));
    }
    Ok(free)
}

/// The last words: how many came to what. The exit code is that of the first row that did
/// not go well.
fn summary(came: &[Option<Came>], format: Format) -> ExitCode {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for came in came {
        let what = match came {
            Some(Came::To(receipt)) if receipt.replayed => format!("{} before", receipt.state),
            Some(Came::To(receipt)) => receipt.state.clone(),
            Some(Came::Nothing(..)) => "error".to_owned(),
            None => "not begun".to_owned(),
        };
        match counts.iter_mut().find(|(known, _)| *known == what) {
            Some((_, count)) => *count += 1,
            None => counts.push((what, 1)),
        }
    }
    match format {
        Format::Json => {
            let receipts: Vec<Value> = came
                .iter()
                .flatten()
                .map(|came| match came {
                    Came::To(receipt) => serde_json::to_value(receipt).expect("a receipt"),
                    Came::Nothing(why, code) => {
                        serde_json::json!({ "error": why, "exit_code": code })
                    }
                })
                .collect();
            output::json(&receipts);
        }
        Format::Jsonl => {}
        Format::Text => {
            let counts: Vec<String> =
                counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
            output::note(&format!("{BOLD}{} rows{BOLD:#}: {}\n", came.len(), counts.join(", ")));
        }
    }
    if came.iter().any(Option::is_none) {
        return ExitCode::Interrupted;
    }
    let first = came.iter().flatten().map(Came::code).find(|code| *code != 0);
    first.map_or(ExitCode::Done, ExitCode::of_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Row>, String> {
        rows(text, Path::new("rows")).map_err(|error| error.to_string())
    }

    #[test]
    fn rows_are_objects_or_lines() {
        let lines = parse("one two\n\n{three}\n").expect("rows");
        assert_eq!(lines[0].filled("{} and {n}".as_ref()), "one two and {n}");
        assert_eq!(lines[1].filled("{}".as_ref()), "{three}");
        let all = parse("\n{\"name\": \"a\", \"n\": 3, \"args\": [\"x\", 1]}\n").expect("rows");
        assert_eq!(all[0].filled("{name}{n}{n} {} {other}".as_ref()), "a33 {} {other}");
        assert_eq!(all[0].args, ["x", "1"]);
        // What a value holds is not looked at again.
        let row = &parse("{\"a\": \"{b}\", \"b\": \"c\"}").expect("rows")[0];
        assert_eq!(row.filled("{a}".as_ref()), "{b}");
    }

    #[test]
    fn what_is_wrong_with_a_row_is_told_with_its_line() {
        for (text, why) in [
            ("{\"n\": 1}\n{\"name\": \"x\"\n", "rows:2: EOF"),
            ("{\"n\": 1}\n\nplain", "rows:3: expected"),
            ("{\"args\": [\"a\\u0000b\"]}", "rows:1: a NUL byte"),
            ("one\ntw\0o", "rows:2: a NUL byte"),
            ("{\"name\": \"A b\"}", "rows:1: "),
            ("{\"args\": \"x\"}", "rows:1: `args` has to be a list of texts"),
            ("{\"env\": [1]}", "rows:1: `env` has to be an object of texts"),
            ("{\"name\": \"x\"}\n{\"name\": \"x\"}", "rows:2: another row has that name"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn options_of_the_batch_are_not_those_of_its_rows() {
        let args = [
            "--format", "json", "run", "--each", "f", "--jobs=2", "--check", "run", "--key=k",
            "--", "x",
        ];
        assert_eq!(own_options(args.iter().map(OsString::from)), ["--check", "run"]);
    }
}

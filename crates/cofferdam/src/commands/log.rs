//! `dam log`.

use std::io::{BufRead, BufReader, Write};
use std::time::{Duration, SystemTime};

use cofferdam_core::{Error, ExitCode, LogLine, query, read_log};

use crate::args::Log;
use crate::output;

/// Prints what a task's command printed, each stream to its own.
pub fn log(args: &Log) -> Result<ExitCode, Error> {
    let mut dam = super::open()?;
    let (task, _) = query::show(&mut dam, &args.name)?;
    let dir = dam.task_dir(&task.id);
    let path = match args.check {
        Some(number) => dir.path().join(format!("check-{}.log", number.wrapping_sub(1))),
        None => dir.log(),
    };
    if args.check.is_some() && !path.exists() {
        return Err(Error::Usage {
            message: format!("task `{}` has no such check", task.name),
            hint: Some("checks are numbered from 1".into()),
        });
    }
    if !args.follow || args.check.is_some() {
        read_log(&path, |line| print(&line, args.timestamps))?;
        return Ok(ExitCode::Done);
    }
    let unreadable = |source| Error::Io { step: "read", path: path.clone(), source };
    while !path.exists() && dir.is_live()? {
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut file = BufReader::new(std::fs::File::open(&path).map_err(unreadable)?);
    let mut bytes = Vec::new();
    loop {
        // Asked before reading: what comes after a "no" is the last of it.
        let live = dir.is_live()?;
        while file.read_until(b'\n', &mut bytes).map_err(unreadable)? > 0 {
            if bytes.last() != Some(&b'\n') {
                break;
            }
            if let Some(line) = LogLine::parse(&bytes) {
                print(&line, args.timestamps);
            }
            bytes.clear();
        }
        if !live {
            return Ok(ExitCode::Done);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn print(line: &LogLine, timestamps: bool) {
    let mut bytes = Vec::new();
    if timestamps {
        let at =
            SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(line.at_ms).unwrap_or(0));
        bytes.extend(format!("{} ", humantime::format_rfc3339_millis(at)).into_bytes());
    }
    bytes.extend(&line.text);
    bytes.push(b'\n');
    match line.stream.as_str() {
        "out" => output::bytes(&bytes),
        _ => drop(std::io::stderr().write_all(&bytes)),
    }
}

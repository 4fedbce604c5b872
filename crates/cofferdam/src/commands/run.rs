//! `dam run`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use cofferdam_core::config::{Config, lessons_file};
use cofferdam_core::context::FILES_INSIDE;
use cofferdam_core::files::{Output, PublishCommand};
use cofferdam_core::input::Input;
use cofferdam_core::receipt::Receipt;
use cofferdam_core::report::Reporter;
use cofferdam_core::request::{Check, Into, Level, Request, SourceRef};
use cofferdam_core::series::{OfSeries, Overlap};
use cofferdam_core::supervise::Terminal;
use cofferdam_core::{Error, ExitCode, Limits, Network, TaskName, Wall, task};

use super::detach;
use crate::args::{self, Format, Net, Run};
use crate::render::Renderer;
use crate::{signals, terminal};

/// Runs a task to its end, for the repository that `dir` is in.
pub fn run(args: Run, dir: &Path, format: Format) -> Result<ExitCode, Error> {
    if let Some(rows) = &args.each {
        return super::each::each(&args, rows, dir, format);
    }
    if args.detach {
        return detach::detach(dir, format);
    }
    Ok(super::conclude(&to_its_end(args, dir, format)?, format))
}

/// Runs a task to its end, and says nothing of what that is.
pub fn to_its_end(args: Run, dir: &Path, format: Format) -> Result<Receipt, Error> {
    if args.as_detached {
        detach::leave_session()?;
    }
    let (detached, interactive) = (args.as_detached, args.interactive);
    let mut request = request(args, dir)?;
    if detached {
        request.timeout = request.timeout.or(Some(detach::TIMEOUT));
    }
    let base = request.base.clone();
    let look = match request.source {
        SourceRef::Repo => Some(task::look(dir, base.as_deref())?),
        SourceRef::Scratch | SourceRef::Dir(_) => None,
    };
    let mut dam = super::open()?;
    let control = signals::control();
    let pty = if interactive && !detached { Some(terminal::of_caller()?) } else { None };
    let served = match interactive && detached {
        true => Some(detach::served(&dam)?),
        false => None,
    };
    let own = pty.as_ref().map(|pty| pty as &dyn Terminal);
    let own = own.or(served.as_ref().map(|served| served as &dyn Terminal));
    let announcer = detached.then(detach::Announcer::default);
    let renderer = Renderer::new(format);
    let reporter: &dyn Reporter = match &announcer {
        Some(announcer) => announcer,
        None => &renderer,
    };
    let attended = (control, own);
    let receipt = match look {
        Some(look) => task::run(&mut dam, dir, look, request, attended, reporter)?,
        None => task::run_on_files(&mut dam, dir, request, attended, reporter)?,
    };
    drop(renderer);
    Ok(receipt)
}

fn usage(message: String) -> Error {
    Error::Usage { message, hint: None }
}

fn request(args: Run, dir: &Path) -> Result<Request, Error> {
    let name = args
        .name
        .as_deref()
        .map(|name| TaskName::parse(name).map_err(|error| usage(error.to_string())))
        .transpose()?;
    let env = variables(&args.env)?;
    let env_names = env.iter().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    let into = match (args.branch, args.into) {
        (true, _) => Into::NewBranch,
        (false, Some(branch)) => Into::Named(branch),
        (false, None) => Into::Current,
    };
    let level = match args.level {
        Some(level) => level,
        None if args.scratch || args.dir.is_some() => Level::Sandbox,
        None => Config::of_person()?.level.unwrap_or(Level::Sandbox),
    };
    let source = args.dir.as_deref().map(source_dir).transpose()?;
    let is_patch = args.publish.as_deref() == Some("patch");
    if is_patch && source.is_none() {
        return Err(usage("`--publish patch` is for the directory of `--dir`".into()));
    }
    if args.publish.is_some() && !is_patch && !args.scratch {
        let hint = if source.is_some() { "; for `--dir` there is `--publish patch`" } else { "" };
        return Err(usage(format!("`--publish command:CMD` is for `--scratch`{hint}")));
    }
    let (lessons, outside) = match args.lessons {
        Some(file) if args.scratch => (None, Some(file)),
        Some(file) => (Some(lessons(&file)?), None),
        None => (None, None),
    };
    let top = args.scratch.then(|| Path::new(FILES_INSIDE));
    Ok(Request {
        argv: args.command,
        source: match &source {
            Some(dir) => SourceRef::Dir(dir.clone()),
            None if args.scratch => SourceRef::Scratch,
            None => SourceRef::Repo,
        },
        outputs: source
            .iter()
            .map(|dir| Ok(Output::of_dir(dir, is_patch)))
            .chain(args.outputs.iter().map(|output| Output::parse(output, dir)))
            .chain(args.appends.iter().map(|output| Output::parse_append(output, dir)))
            .chain(outside.iter().map(|file| Ok(Output::of_lessons(file, dir))))
            .collect::<Result<_, _>>()?,
        publish: args
            .publish
            .filter(|_| !is_patch)
            .map(|text| PublishCommand::parse(&text, dir, args.publish_again))
            .transpose()?,
        base: args.base,
        into,
        checks: checks(&args.checks)?,
        no_check: args.no_check,
        carry: args.carry.iter().map(|path| carried(path, dir)).collect::<Result<_, _>>()?,
        inputs: args
            .inputs
            .iter()
            .map(|input| Input::parse(input, dir, "--input", top))
            .collect::<Result<_, _>>()?,
        carry_dirty: args.carry_dirty,
        env_names,
        env,
        network: match (args.net, level) {
            (Some(Net::None), _) | (None, Level::Sandbox) => Network::None,
            (Some(Net::Open), _) | (None, Level::Worktree) => Network::Open,
        },
        network_is_default: args.net.is_none(),
        wall: if args.nested { Wall::Nested } else { Wall::Full },
        timeout: args.timeout,
        name,
        message: args.message.filter(|message| !message.trim().is_empty()),
        land: !args.no_land,
        limits: Limits { memory: args.memory, cpus: args.cpus, pids: args.pids, disk: args.disk },
        require: args.require,
        output: args.log_size,
        lessons,
        attempts: args.attempts,
        allow_check_changes: args.allow_check_changes,
        keep: args.keep,
        read_only: args.read_only,
        level,
        key: args.key,
        series: args.series.map(|name| OfSeries {
            name,
            overlap: match args.overlap {
                args::Overlap::Skip => Overlap::Skip,
                args::Overlap::Wait => Overlap::Wait,
                args::Overlap::Allow => Overlap::Allow,
            },
            stop_after: args.stop_after,
        }),
        wait: !args.no_wait,
    })
}

fn lessons(file: &Path) -> Result<String, Error> {
    let text = file.to_str().ok_or_else(|| usage("`--lessons`: it is not UTF-8".into()))?;
    lessons_file(text).map_err(|why| usage(format!("`--lessons`: {why}")))
}

/// The directory that a task is about.
fn source_dir(dir: &Path) -> Result<PathBuf, Error> {
    let wrong = |why: String| usage(format!("`--dir {}`: {why}", dir.display()));
    let found = std::fs::canonicalize(dir).map_err(|error| wrong(error.to_string()))?;
    if !found.is_dir() {
        return Err(wrong("it is not a directory".into()));
    }
    if found.to_str().is_none() {
        return Err(wrong("its path is not UTF-8".into()));
    }
    Ok(found)
}

/// The variables of `--env`, with their values.
pub fn variables(items: &[OsString]) -> Result<Vec<(OsString, OsString)>, Error> {
    let mut env: Vec<(OsString, OsString)> = Vec::new();
    for item in items {
        let bytes = item.as_bytes();
        let (name, value) = match bytes.iter().position(|byte| *byte == b'=') {
            Some(at) => {
                let (name, value) = (&bytes[..at], &bytes[at + 1..]);
                (OsString::from_vec(name.to_vec()), OsString::from_vec(value.to_vec()))
            }
            None => match std::env::var_os(item) {
                Some(value) => (item.clone(), value),
                None => {
                    return Err(usage(format!(
                        "`--env {}`: it is not set",
                        item.to_string_lossy()
                    )));
                }
            },
        };
        if name.is_empty() || name.as_bytes().starts_with(b"DAM_") {
            return Err(usage(format!(
                "`--env {}`: that name can't be set",
                item.to_string_lossy()
            )));
        }
        env.push((name, value));
    }
    Ok(env)
}

/// Checks from the command line are named by what they run.
pub fn checks(commands: &[String]) -> Result<Vec<Check>, Error> {
    if commands.iter().any(|run| run.trim().is_empty()) {
        return Err(usage("`--check` is empty: it would always pass".into()));
    }
    Ok(commands.iter().map(|run| Check::new(run)).collect())
}

/// A path to be carried, relative to the top of the repository that `dir` is in.
fn carried(path: &Path, dir: &Path) -> Result<PathBuf, Error> {
    let absolute = dir.join(path);
    let mut clean = PathBuf::new();
    for part in absolute.components() {
        match part {
            Component::ParentDir => drop(clean.pop()),
            Component::CurDir => {}
            other => clean.push(other),
        }
    }
    let clean = match (clean.parent().map(std::fs::canonicalize), clean.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => clean,
    };
    if clean.symlink_metadata().is_err() {
        return Err(usage(format!("`--carry {}`: it does not exist", path.display())));
    }
    let top = dir.ancestors().find(|dir| dir.join(".git").exists()).unwrap_or(dir);
    let top = std::fs::canonicalize(top).unwrap_or_else(|_| top.to_owned());
    clean.strip_prefix(&top).map(Path::to_owned).map_err(|_| {
        usage(format!("`--carry {}`: it is outside of the repository", path.display()))
    })
}

//! Measures contexts made through the library, many in one process.
//!
//! For each line of the standard input that names a command (words divided by spaces),
//! one context, as `dam run` makes it: the same directories, private `.git`,
//! namespaces, mounts, limits, Landlock and seccomp, by the same functions. For each,
//! one line of JSON with times in microseconds from the start of the context:
//!
//! - `first`: the first instruction of the command. It is the command that says so: it
//!   prints the monotonic clock in nanoseconds, as `benches/first.c` does. 0 when it
//!   prints nothing.
//! - `ended`: the command and every other process of its namespace is gone.
//! - `gone`: and the context is deleted.
//!
//! Not in there is what `dam run` does once before a context: opening the state
//! directory, asking git about the repository, the task's record; and after it: the
//! receipt. The layer must be warm: `dam run` has made it before.
//!
//! ```text
//! context STATE_DIR REPOSITORY < commands
//! ```

use std::ffi::OsString;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use cofferdam_core::boundary::{Boundary, Sandbox};
use cofferdam_core::context::{Context, Place, Told, What};
use cofferdam_core::control::Control;
use cofferdam_core::report::{Event, Reporter};
use cofferdam_core::supervise::{self, Ended, Plan};
use cofferdam_core::{Dam, Network, Wall, config, disk, init, limits};
use cofferdam_git::gitdir::{self, RefValue, TaskGit};
use cofferdam_git::layer::LayerMaker;
use cofferdam_git::{Discovered, Discovery, Store};
use cofferdam_sandbox::Ids;
use rustix::time::{ClockId, clock_gettime};

type Failed = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    // The process that becomes the task is this program, started again.
    match std::env::args_os().nth(1).as_deref().and_then(std::ffi::OsStr::to_str) {
        Some(init::ARGUMENT) => init::main(),
        Some(disk::ARGUMENT) => disk::main(),
        _ => {}
    }
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("context: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), Failed> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(state), Some(repo), None) = (args.next(), args.next(), args.next()) else {
        return Err("usage: context STATE_DIR REPOSITORY < commands".into());
    };
    let dam = Dam::open(&state)?;
    let found = Discovery::start(&repo, None, config::FILE)?.finish()?;
    let ids = Ids::for_task(&repo)?;
    let store = dam.store(&found.repo, &found.config)?;
    let bed = Bed {
        place: Place::new(&dam, &found.repo, &found.config, &store, Vec::new(), ids)?,
        store,
        refs: gitdir::listed_refs(gitdir::list_refs(&found.repo)?)?,
        excludes: gitdir::excludes(&found.repo, &found.config)?,
        dam,
        found,
        ids,
    };
    for (number, line) in std::io::stdin().lock().lines().enumerate() {
        let command = line?.split_whitespace().map(OsString::from).collect();
        let times = bed.one(&format!("m{number:07}"), command)?;
        println!("{times}");
    }
    Ok(())
}

/// What all contexts have in common.
struct Bed {
    dam: Dam,
    found: Discovered,
    store: Store,
    place: Place,
    refs: Vec<RefValue>,
    excludes: Vec<u8>,
    ids: Ids,
}

impl Bed {
    fn one(&self, name: &str, command: Vec<OsString>) -> Result<serde_json::Value, Failed> {
        let (begun, clock) = (Instant::now(), now_ns());
        let dir = self.dam.tasks_dir().join(name);
        std::fs::create_dir(&dir)?;
        let task_dir = self.dam.task_dir(&cofferdam_core::TaskId::parse(name)?);
        // It starts while the context is written, as in `dam run`.
        let starter = Sandbox.start(None)?;
        let limits = limits::apply(&starter, &task_dir, name, &Sandbox.limits(), &[])?;
        let context = self.context(name, &dir)?;
        let told = Told { task: name.to_owned(), ..Told::default() };
        let what = What {
            command,
            cwd: &self.place.top,
            env: &[],
            network: Network::None,
            wall: Wall::Full,
            limits: limits.rest,
            terminal: false,
        };
        let spec = Sandbox.spec(&context, &self.place, what, &told)?;
        let plan = Plan {
            spec: &spec,
            context: &dir,
            log: &dir.join("log"),
            timeout: None,
            output: supervise::LOG_CAP,
            limits: &limits,
            end_processes: &|| Sandbox.end_processes(&task_dir, name),
            terminal: None,
        };
        let said = Said::default();
        let run = supervise::run(starter, &plan, &Control::default(), Some(&said))?;
        let ended = begun.elapsed();
        if run.ended != (Ended::Exited { code: Some(0), signal: None }) {
            return Err(format!("the command ended otherwise: {:?}", run.ended).into());
        }
        drop(limits);
        self.dam.trash.take(&self.dam.tasks_dir(), name)?;
        self.dam.trash.empty_fast(Duration::from_secs(5))?;
        let gone = begun.elapsed();
        let text = said.0.into_inner().expect("output");
        let first = text.trim().parse::<u64>().map_or(0, |at| at.saturating_sub(clock) / 1000);
        Ok(serde_json::json!({
            "first": first,
            "ended": ended.as_micros(),
            "gone": gone.as_micros(),
        }))
    }

    fn context(&self, name: &str, dir: &Path) -> Result<Context, Failed> {
        let maker = LayerMaker {
            store: &self.store,
            layers: &self.dam.layers,
            owner: self.ids.switch.then_some((self.ids.uid, self.ids.gid)),
            modules: &[],
        };
        let mut cold = false;
        let stack =
            Sandbox.layers(&maker, &self.found.tree, None, &mut |_, all| cold |= all > 0)?;
        if cold {
            return Err("the layer is not warm".into());
        }
        let homes = Sandbox.homes(&self.place);
        let context =
            Context::create(&self.dam, dir.into(), stack.lower(), self.ids, false, homes)?;
        let git = TaskGit {
            repo: &self.found.repo,
            config: &self.found.config,
            branch: Some(&format!("dam/{name}")),
            commit: &self.found.commit,
            refs: &self.refs,
            object_dirs: &Sandbox.object_dirs(&self.place),
            excludes: &self.excludes,
        };
        context.write_git(&git, &[])?;
        Ok(context)
    }
}

/// What a command printed.
#[derive(Default)]
struct Said(Mutex<String>);

impl Reporter for Said {
    fn report(&self, event: Event) {
        if let Event::Output { text, .. } = event {
            self.0.lock().expect("output").push_str(&text);
        }
    }
}

/// The monotonic clock, which is the same inside.
fn now_ns() -> u64 {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(0)
}

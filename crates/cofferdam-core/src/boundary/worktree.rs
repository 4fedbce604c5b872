//! Level `worktree`: a checkout of its own, and little else.
//!
//! For people and editors, and for machines that let nobody have a namespace. The
//! files are a whole checkout outside of the repository, with the same private `.git`
//! as at every level: refs, stash, index, hooks and configuration are the context's
//! own. The command runs as the caller, on the caller's network, among the caller's
//! processes; it can read whatever the caller can. Where the kernel has Landlock it
//! can write in its context alone. Where not, that is a convention.
//!
//! A command that root started would be root's, whom nothing here holds: refused.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cofferdam_git::harvest::Rules;
use cofferdam_git::layer::{LayerMaker, LayerStack};
use cofferdam_git::{GitError, TreeId};
use cofferdam_sandbox::probe::{self, Ability};
use cofferdam_sandbox::process::wait_gone;
use cofferdam_sandbox::view;
use cofferdam_sandbox::{
    Command, Ids, Limits, Network, Spec, View, Wall, end_marked, landlock_abi,
};

use super::{Boundary, Changes, PATIENCE, Progress, end_first_processes};
use crate::context::{Context, Place, Told, What, with};
use crate::disk::DISK;
use crate::error::IoContext;
use crate::harvest::{self, From};
use crate::receipt::Isolation;
use crate::request::{Level, Request};
use crate::tools::ToolDir;
use crate::{Error, TaskDir};

/// A checkout of its own.
#[derive(Debug, Clone, Copy)]
pub struct Worktree;

impl Boundary for Worktree {
    fn probe(&self, scratch: &Path, ids: Ids) -> Result<Ability, Error> {
        not_as_root()?;
        probe::run_in_hosts_view(scratch, ids).map_err(Error::Isolation)
    }

    fn admit(&self, request: &Request) -> Result<(), Error> {
        not_as_root()?;
        let refuse = |what: &str, why: &str| {
            let message = format!("{what} can't be had at level `worktree`: {why}");
            Err(Error::usage(message, "level `sandbox` has it"))
        };
        if !request.inputs.is_empty() {
            return refuse("an input", "a command sees the original, which can change");
        }
        if request.network == Network::None {
            return refuse("to be without a network", "its network is yours");
        }
        if request.read_only {
            return refuse("`--read-only`", "there is one checkout, which it can write");
        }
        if request.limits.pids.is_some() {
            return refuse("a limit on processes", "its processes are counted with all of yours");
        }
        Ok(())
    }

    fn limits(&self) -> Limits {
        Limits { disk: Some(DISK), ..Limits::default() }
    }

    fn network(&self, _: Network) -> Network {
        Network::Open
    }

    fn isolation(&self, request: &Request, place: &Place) -> Isolation {
        let walled = landlock_abi() > 0 && request.wall == Wall::Full;
        Isolation {
            level: request.level,
            top: None,
            network: "open".into(),
            wall: if walled { "landlock" } else { "none" }.into(),
            landlock_abi: landlock_abi(),
            uid: place.person.ids.uid,
            tools: Vec::new(),
            limits: Vec::new(),
        }
    }

    fn environment(&self, place: &Place) -> Vec<(OsString, OsString)> {
        let mut variables = view::hosts_environment(std::env::vars_os());
        variables.extend(place.tools.env.iter().cloned());
        variables.sort();
        variables
    }

    fn homes<'a>(&self, _: &'a Place) -> &'a [ToolDir] {
        &[]
    }

    fn object_dirs(&self, place: &Place) -> Vec<PathBuf> {
        place.objects.clone()
    }

    fn top(&self, context: &Context, _: &Place) -> PathBuf {
        context.upper()
    }

    fn layers(
        &self,
        maker: &LayerMaker<'_>,
        tree: &TreeId,
        near: Option<&LayerStack>,
        progress: Progress<'_>,
    ) -> Result<LayerStack, GitError> {
        match near {
            None => maker.whole(tree, progress),
            // Its files are its own, and with nothing is it ever compared.
            Some(_) => Ok(LayerStack { tree: tree.clone(), ids: Vec::new(), warm: false }),
        }
    }

    fn fill(
        &self,
        maker: &LayerMaker<'_>,
        context: &Context,
        tree: &TreeId,
        progress: Progress<'_>,
    ) -> Result<(), GitError> {
        maker.check_out(&context.upper(), tree, None, progress).map(drop)
    }

    fn spec(
        &self,
        context: &Context,
        place: &Place,
        what: What<'_>,
        told: &Told,
    ) -> Result<Spec, Error> {
        let What { command, cwd, env, network: _, wall, limits, terminal } = what;
        let dir = &context.dir;
        let put = |name: &str, content: &[u8]| {
            let path = dir.join(name);
            std::fs::write(&path, content).at("write", path)
        };
        put("context.json", &told.context_json())?;
        if let Some(feedback) = &told.feedback {
            put("feedback", feedback)?;
        }
        let top = context.upper();
        let mut environment = self.environment(place);
        environment.extend(told.variables(dir));
        environment.push(("TMPDIR".into(), dir.join("tmp").into()));
        environment.push(("XDG_CACHE_HOME".into(), dir.join("home").into()));
        let cwd = cwd.strip_prefix(&place.top).map_or_else(|_| top.clone(), |cwd| top.join(cwd));
        Ok(Spec {
            ids: context.ids,
            base_dir: context.base.clone(),
            view: View::Host,
            wall,
            writable: ["upper", "tmp", "home", "out"].map(|name| dir.join(name)).to_vec(),
            limits,
            command: Command {
                argv: command,
                env: with(environment, env),
                cwd,
                else_cwd: top,
                umask: 0o022,
                terminal,
            },
        })
    }

    /// pid 1 hears of its supervisor's end and ends them. When it was killed itself,
    /// they are known by their environment alone.
    fn end_processes(&self, dir: &TaskDir, task: &str) -> Result<(), Error> {
        for process in dir.processes() {
            if let Some(handle) = process.open().at("look for the processes of", dir.path())? {
                wait_gone(&handle, Some(PATIENCE * 2))
                    .at("wait for the processes of", dir.path())?;
            }
        }
        end_first_processes(dir)?;
        match end_marked("DAM_TASK", task, PATIENCE) {
            0 => Ok(()),
            left => Err(Error::Internal(format!("{left} processes of task `{task}` do not end"))),
        }
    }

    fn is_untouched(&self, _: &Context) -> bool {
        false
    }

    fn changes(&self, context: &Context, rules: &Rules) -> Result<Changes, Error> {
        Ok(Changes(harvest::start(context, From::Copy, rules)?))
    }
}

fn not_as_root() -> Result<(), Error> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Error::LevelNotAvailable {
        level: Level::Worktree,
        why: "a command runs as its caller there, and no task may be root".into(),
    })
}

//! Level `sandbox`: own namespaces, own root view.
//!
//! Inside, the overlay lies at the repository's own path. Where paths nest (a
//! repository below the home directory or `/tmp`), the outer one is mounted
//! first; the mount point that this makes lies in a private directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cofferdam_git::gitdir::{self, LFS_INSIDE, OBJECTS_INSIDE};
use cofferdam_git::harvest::Rules;
use cofferdam_git::layer::{LayerMaker, LayerStack};
use cofferdam_git::{GitError, TreeId};
use cofferdam_sandbox::probe::{self, Ability};
use cofferdam_sandbox::view::{self, SYSTEM_DIRS};
use cofferdam_sandbox::{Command, Ids, Limits, Mount, Network, Spec, View, Wall, landlock_abi};

use super::{Boundary, Changes, Progress, end_first_processes};
use crate::context::{Context, Place, Told, What, home_of, with};
use crate::disk::DISK;
use crate::harvest::{self, From};
use crate::limits::PIDS;
use crate::receipt::Isolation;
use crate::request::Request;
use crate::tools::ToolDir;
use crate::{Error, TaskDir};

/// Where a task finds what it has to be told.
const DAM_INSIDE: &str = "/run/dam";

/// What git's configuration for everybody is, inside.
const GIT_CONFIG: &str = "/etc/gitconfig";

/// Own namespaces.
#[derive(Debug, Clone, Copy)]
pub struct Sandbox;

impl Boundary for Sandbox {
    fn probe(&self, scratch: &Path, ids: Ids) -> Result<Ability, Error> {
        probe::run(scratch, ids).map_err(Error::Isolation)
    }

    fn admit(&self, _: &Request) -> Result<(), Error> {
        Ok(())
    }

    fn limits(&self) -> Limits {
        Limits { pids: Some(PIDS), disk: Some(DISK), ..Limits::default() }
    }

    fn network(&self, asked: Network) -> Network {
        asked
    }

    fn isolation(&self, request: &Request, place: &Place) -> Isolation {
        Isolation {
            level: request.level,
            top: None,
            network: if request.network == Network::Open { "open" } else { "none" }.into(),
            wall: if request.wall == Wall::Nested { "nested" } else { "full" }.into(),
            landlock_abi: landlock_abi(),
            uid: place.person.ids.uid,
            tools: place.tools.describe(&place.person.home),
            limits: Vec::new(),
        }
    }

    fn environment(&self, place: &Place) -> Vec<(OsString, OsString)> {
        let granted = |dir: &Path| place.tools.show(dir);
        let mut variables = view::environment(&place.person, std::env::vars_os(), granted);
        variables.extend(place.tools.env.iter().cloned());
        // Wherever the git inside would look for it: there is one.
        variables.push(("GIT_CONFIG_SYSTEM".into(), GIT_CONFIG.into()));
        variables.sort();
        variables
    }

    fn homes<'a>(&self, place: &'a Place) -> &'a [ToolDir] {
        &place.tools.dirs
    }

    fn object_dirs(&self, place: &Place) -> Vec<PathBuf> {
        (0..place.objects.len())
            .map(|number| Path::new(OBJECTS_INSIDE).join(number.to_string()))
            .collect()
    }

    fn top(&self, _: &Context, place: &Place) -> PathBuf {
        place.top.clone()
    }

    fn layers(
        &self,
        maker: &LayerMaker<'_>,
        tree: &TreeId,
        near: Option<&LayerStack>,
        progress: Progress<'_>,
    ) -> Result<LayerStack, GitError> {
        maker.stack(tree, near, progress)
    }

    /// They show through from the layers.
    fn fill(
        &self,
        _: &LayerMaker<'_>,
        _: &Context,
        _: &TreeId,
        _: Progress<'_>,
    ) -> Result<(), GitError> {
        Ok(())
    }

    fn spec(
        &self,
        context: &Context,
        place: &Place,
        what: What<'_>,
        told: &Told,
    ) -> Result<Spec, Error> {
        let What { command, cwd, env, network, wall, limits, terminal } = what;
        let person = &place.person;
        let mut mounts = view::system(person, network);
        for hidden in &place.hidden {
            if SYSTEM_DIRS.iter().any(|system| hidden.starts_with(system)) {
                mounts.push(Mount::Tmpfs { dest: hidden.clone(), mode: 0o755, size: 4096 });
            }
        }
        let own = |name: &str, dest: PathBuf| Mount::Bind {
            source: context.relative(name).into(),
            dest,
            writable: true,
            executable: true,
        };
        let tmp = PathBuf::from("/tmp");
        let var_tmp = PathBuf::from("/var/tmp");
        let mut places = vec![("tmp", &tmp), ("home", &person.home)];
        // A link can't hold the mount points of what lies below it.
        let given = place.tools.dirs.iter().map(|dir| &dir.path);
        let given = given.chain(place.files.iter().map(|(_, dest)| dest));
        let mut inside = given.chain([&place.top, &person.home]);
        if inside.any(|path| path.starts_with(&var_tmp)) {
            places.insert(0, ("tmp", &var_tmp));
        } else {
            mounts.push(Mount::Symlink { dest: var_tmp.clone(), target: tmp.clone() });
        }
        places.sort_by_key(|(_, dest)| dest.components().count());
        mounts.extend(places.into_iter().map(|(name, dest)| own(name, dest.clone())));
        // What is given can lie in the top, where that is about no repository.
        let mut below = Vec::new();
        let mut give = |dest: &Path, mount: Mount| {
            if dest.starts_with(&place.top) { below.push(mount) } else { mounts.push(mount) }
        };
        for dir in &place.tools.dirs {
            let home = home_of(dir);
            let private = Mount::Private {
                source: dir.source.clone(),
                hidden: dir.hidden.clone(),
                upper: context.relative(&format!("{home}/upper")),
                work: context.relative(&format!("{home}/work")),
                dest: dir.path.clone(),
            };
            give(&dir.path, private);
        }
        for (copy, dest) in &place.files {
            let file = Mount::Bind {
                source: copy.clone(),
                dest: dest.clone(),
                writable: false,
                executable: true,
            };
            give(dest, file);
        }
        let (lower, upper) = context.lowers();
        mounts.push(if lower.is_empty() {
            own("upper", place.top.clone())
        } else if context.read_only {
            let lower = std::iter::once(upper).chain(lower).collect();
            Mount::Overlay { lower, upper: None, work: None, dest: place.top.clone() }
        } else {
            let work = Some(context.relative("work"));
            Mount::Overlay { lower, upper: Some(upper), work, dest: place.top.clone() }
        });
        mounts.extend(below);
        for (number, source) in place.objects.iter().enumerate() {
            mounts.push(Mount::Bind {
                source: source.clone(),
                dest: Path::new(OBJECTS_INSIDE).join(number.to_string()),
                writable: false,
                executable: false,
            });
        }
        if let Some(source) = &place.lfs {
            mounts.push(Mount::Bind {
                source: source.clone(),
                dest: LFS_INSIDE.into(),
                writable: false,
                executable: false,
            });
        }
        if let Some((name, mail)) = &place.identity {
            mounts.push(Mount::File {
                dest: GIT_CONFIG.into(),
                content: gitdir::identity_config(name, mail).into_bytes(),
            });
        }
        let dam = Path::new(DAM_INSIDE);
        mounts.push(own("out", dam.join("out")));
        mounts.push(Mount::File { dest: dam.join("context.json"), content: told.context_json() });
        if let Some(feedback) = &told.feedback {
            mounts.push(Mount::File { dest: dam.join("feedback"), content: feedback.clone() });
        }
        let mut writable = vec![person.home.clone(), tmp.clone(), dam.join("out")];
        writable.extend(place.tools.dirs.iter().map(|dir| dir.path.clone()));
        if !context.read_only {
            writable.push(place.top.clone());
        }
        let mut environment = self.environment(place);
        environment.extend(told.variables(dam));
        Ok(Spec {
            ids: context.ids,
            base_dir: context.base.clone(),
            view: View::Own { mounts, network },
            wall,
            writable,
            limits,
            command: Command {
                argv: command,
                env: with(environment, env),
                cwd: cwd.into(),
                else_cwd: place.top.clone(),
                umask: 0o022,
                terminal,
            },
        })
    }

    /// The end of pid 1 comes after that of the last process of its namespace.
    fn end_processes(&self, dir: &TaskDir, _: &str) -> Result<(), Error> {
        end_first_processes(dir)
    }

    fn is_untouched(&self, context: &Context) -> bool {
        context.has_empty_upper()
    }

    fn changes(&self, context: &Context, rules: &Rules) -> Result<Changes, Error> {
        Ok(Changes(harvest::start(context, From::Overlay, rules)?))
    }
}

//! Tool homes: what of the person's home directory a task sees.
//!
//! A list of places, not of rules: what is not in `tool-homes.toml` is not there.
//! Each appears at its own path through an overlay of the context's own, so a
//! package is unpacked and a lock taken without anybody outside noticing, and
//! credential files in it are taken out by whiteouts, which also hide one that is
//! written later.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use cofferdam_sandbox::SandboxError;
use cofferdam_sandbox::view::SYSTEM_DIRS;
use serde::Deserialize;

use crate::Error;

const DATA: &str = include_str!("../../data/tool-homes.toml");

static LIST: LazyLock<List> =
    LazyLock::new(|| toml::from_str(DATA).expect("the list is read by a test"));

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    version: u32,
    home: Vec<Home>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Home {
    name: String,
    dir: Vec<Dir>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dir {
    path: PathBuf,
    env: Option<String>,
    #[serde(default)]
    only: Vec<PathBuf>,
    #[serde(default)]
    hide: Vec<PathBuf>,
    #[serde(default)]
    state: Vec<PathBuf>,
    #[serde(default)]
    follow: Vec<PathBuf>,
}

/// Directories that no tool home is or holds, beside those of the system.
const APART: &[&str] = &[
    "/boot",
    "/etc",
    "/home",
    "/media",
    "/mnt",
    "/root",
    "/run",
    "/srv",
    "/tmp",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/run",
    "/var/tmp",
];
/// Directories in which none lies.
const NEVER: &[&str] = &["/boot", "/dev", "/etc", "/proc", "/run", "/sys"];

/// What a directory is called that is an input and no tool home.
pub(crate) const INPUT: &str = "input";

/// A directory that a task sees through a private overlay, at its own path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolDir {
    /// What it belongs to: `rust`.
    pub name: String,
    /// Where it is, by its name and inside.
    pub path: PathBuf,
    /// Where that name leads on the host.
    pub source: PathBuf,
    /// The variable that can name another place for it.
    pub variable: Option<String>,
    /// Credential files in it, relative, that the task does not see.
    pub hidden: Vec<PathBuf>,
    /// Files and directories in it that decide which tool answers to a name.
    pub state: Vec<PathBuf>,
}

/// What of the person's tools a task sees.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tools {
    /// The directories, none inside of another.
    pub dirs: Vec<ToolDir>,
    /// Variables that name them.
    pub env: Vec<(OsString, OsString)>,
}

impl Tools {
    /// Those below `home`, and those that variables name. Left out is what holds or
    /// lies in one of `apart`: the repository has its own place inside, and the
    /// state directory none.
    #[must_use]
    pub fn find(home: &Path, var: impl Fn(&str) -> Option<OsString>, apart: &[PathBuf]) -> Tools {
        debug_assert_eq!(LIST.version, 1);
        let mut tools = Tools::default();
        // In each of them: one directory can stand for several.
        let mut all_hidden: Vec<PathBuf> =
            LIST.home.iter().flat_map(|home| &home.dir).flat_map(|dir| dir.hide.clone()).collect();
        all_hidden.sort();
        all_hidden.dedup();
        for known in &LIST.home {
            for dir in &known.dir {
                let named = dir.env.as_deref().and_then(|name| Some((name, var(name)?)));
                let elsewhere = named.as_ref().map(|(_, value)| PathBuf::from(value));
                // A relative one means another place in every directory.
                let base = elsewhere
                    .filter(|path| path.is_absolute())
                    .unwrap_or_else(|| home.join(&dir.path));
                let parts = match dir.only.as_slice() {
                    [] => vec![base.clone()],
                    only => only.iter().map(|part| base.join(part)).collect(),
                };
                let before = tools.dirs.len();
                let found = |path: PathBuf| ToolDir {
                    name: known.name.clone(),
                    source: path.clone(),
                    path,
                    variable: None,
                    hidden: Vec::new(),
                    state: Vec::new(),
                };
                for path in parts {
                    let (variable, hidden) = (dir.env.clone(), all_hidden.clone());
                    let state = dir.state.clone();
                    tools.add(ToolDir { variable, hidden, state, ..found(path) }, home, apart);
                }
                if let Some((name, value)) = named
                    && tools.dirs.len() > before
                {
                    tools.env.push((name.into(), value));
                }
                for path in linked(&base, home, &dir.follow) {
                    tools.add(found(path), home, apart);
                }
            }
        }
        tools
    }

    fn add(&mut self, mut found: ToolDir, home: &Path, apart: &[PathBuf]) {
        // Most are not there: one look tells, and to follow a path takes one for each part.
        if !found.path.is_dir() {
            return;
        }
        let Ok(source) = std::fs::canonicalize(&found.path) else { return };
        // The links in there are inside as well: it appears where they lead.
        if SYSTEM_DIRS.iter().any(|dir| found.path.starts_with(dir)) {
            found.path.clone_from(&source);
        }
        let path = &found.path;
        let overlap = |one: &Path, other: &Path| one.starts_with(other) || other.starts_with(one);
        let free = |place: &Path| {
            !home.starts_with(place) && !apart.iter().any(|other| overlap(place, other))
        };
        let system = |place: &Path| {
            let apart =
                APART.iter().chain(SYSTEM_DIRS).any(|dir| Path::new(dir).starts_with(place));
            apart || NEVER.iter().any(|dir| place.starts_with(dir))
        };
        if !free(path) || !free(&source) || system(path) || system(&source) {
            return;
        }
        for other in &mut self.dirs {
            // It is seen already, as a part of another.
            if let Ok(below) = path.strip_prefix(&other.path) {
                other.hidden.extend(found.hidden.iter().map(|hide| below.join(hide)));
                return;
            }
        }
        if !self.dirs.iter().any(|other| overlap(path, &other.path)) {
            self.dirs.push(ToolDir { source, ..found });
        }
    }

    /// Whether a path lies in one of them.
    #[must_use]
    pub fn hold(&self, path: &Path) -> bool {
        self.dirs.iter().any(|dir| path.starts_with(&dir.path))
    }

    /// Refuses what can't be handed over to the process that builds the boundary.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        let odd = |path: &Path| path.to_str().is_none();
        match self.dirs.iter().find(|dir| odd(&dir.path) || odd(&dir.source)) {
            None => Ok(()),
            Some(dir) => Err(Error::Usage {
                message: format!("{} can't be had inside: its path is not UTF-8", dir.called()),
                hint: Some(dir.remedy()),
            }),
        }
    }

    /// Names the tool home that was in the way of a boundary, when one was.
    pub(crate) fn blame(&self, error: Error) -> Error {
        let source = match error {
            Error::Isolation(source) => source,
            other => return other,
        };
        let SandboxError::Setup { path: Some(path), .. } = &source else {
            return Error::Isolation(source);
        };
        if source.is_for_want_of_room() {
            return Error::Isolation(source);
        }
        let tools = self.dirs.iter().filter(|dir| dir.name != INPUT);
        match tools.into_iter().find(|dir| *path == dir.source || *path == dir.path) {
            Some(dir) => Error::ToolHome { home: dir.called(), remedy: dir.remedy(), source },
            None => Error::Isolation(source),
        }
    }

    /// Where a task sees what lies at this path of the host's, if it does.
    #[must_use]
    pub fn show(&self, path: &Path) -> Option<PathBuf> {
        if self.hold(path) {
            return Some(path.to_owned());
        }
        let mut below =
            self.dirs.iter().filter_map(|dir| Some((dir, path.strip_prefix(&dir.source).ok()?)));
        below.next().map(|(dir, below)| dir.path.join(below))
    }

    /// What the first lines of a run say: `rust (~/.cargo, ~/.rustup)`.
    #[must_use]
    pub fn describe(&self, home: &Path) -> Vec<String> {
        let mut said: Vec<(String, Vec<String>)> = Vec::new();
        for dir in self.dirs.iter().filter(|dir| dir.name != INPUT) {
            let shown = match dir.path.strip_prefix(home) {
                Ok(below) => format!("~/{}", below.display()),
                Err(_) => dir.path.display().to_string(),
            };
            match said.iter_mut().find(|(name, _)| *name == dir.name) {
                Some((_, dirs)) => dirs.push(shown),
                None => said.push((dir.name.clone(), vec![shown])),
            }
        }
        said.into_iter().map(|(name, dirs)| format!("{name} ({})", dirs.join(", "))).collect()
    }
}

impl ToolDir {
    fn called(&self) -> String {
        format!("the tool home `{}` ({})", self.path.display(), self.name)
    }

    /// How a person gets on without it.
    fn remedy(&self) -> String {
        match &self.variable {
            Some(name) => format!(
                "`{name}` can name another directory; one that does not exist leaves it out"
            ),
            None => "move or rename it: what is not there is left out".into(),
        }
    }
}

/// Where the links in `dir` lead, as the directories right below one of `roots`.
fn linked(dir: &Path, home: &Path, roots: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if roots.is_empty() {
        return found;
    }
    for entry in std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
        let Ok(target) = std::fs::canonicalize(entry.path()) else { continue };
        for root in roots {
            let root = home.join(root);
            let first = target.strip_prefix(&root).ok().and_then(|below| below.iter().next());
            if let Some(first) = first.filter(|first| *first != OsStr::new("..")) {
                found.push(root.join(first));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home_with(dirs: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().expect("temporary directory");
        let home = std::fs::canonicalize(temp.path()).expect("canonical").join("home");
        for dir in dirs {
            std::fs::create_dir_all(home.join(dir)).expect("make");
        }
        (temp, home)
    }

    fn paths(tools: &Tools, home: &Path) -> Vec<String> {
        tools
            .dirs
            .iter()
            .map(|dir| {
                dir.path.strip_prefix(home).unwrap_or(&dir.path).to_string_lossy().into_owned()
            })
            .collect()
    }

    #[test]
    fn only_what_exists_appears() {
        let (_temp, home) = home_with(&[".cargo", ".ssh", "go/src", "go/pkg"]);
        let tools = Tools::find(&home, |_| None, &[]);
        assert_eq!(paths(&tools, &home), [".cargo", "go/pkg"]);
        assert!(tools.env.is_empty());
        assert_eq!(tools.describe(&home), ["rust (~/.cargo)", "go (~/go/pkg)"]);
        assert!(tools.hold(&home.join(".cargo/bin")) && !tools.hold(&home.join(".ssh")));
    }

    #[test]
    fn variables_name_other_places() {
        let (_temp, home) = home_with(&[".cargo", "elsewhere/cargo"]);
        let cargo = home.join("elsewhere/cargo");
        let var = |name: &str| match name {
            "CARGO_HOME" => Some(cargo.clone().into_os_string()),
            "RUSTUP_HOME" => Some("relative".into()),
            "GOCACHE" => Some("/nowhere/at/all".into()),
            _ => None,
        };
        let tools = Tools::find(&home, var, &[]);
        assert_eq!(paths(&tools, &home), ["elsewhere/cargo"]);
        assert_eq!(tools.env, [("CARGO_HOME".into(), cargo.into_os_string())]);
        assert!(tools.dirs[0].hidden.contains(&"credentials".into()));
    }

    #[test]
    fn neither_the_home_nor_what_is_kept_apart_is_granted() {
        let (_temp, home) = home_with(&[".cargo/registry/src/repo", ".rustup", ".npm"]);
        let var = |name: &str| (name == "npm_config_cache").then(|| home.clone().into_os_string());
        let apart = [home.join(".cargo/registry/src/repo"), home.join(".rustup")];
        assert_eq!(Tools::find(&home, var, &apart), Tools::default());
    }

    #[test]
    fn credentials_are_hidden_where_homes_are_one_or_lie_in_each_other() {
        let (_temp, home) = home_with(&["tools/gradle", ".bun"]);
        std::os::unix::fs::symlink("tools", home.join(".cargo")).expect("link");
        let var = |name: &str| match name {
            "RUSTUP_HOME" => Some(home.join("tools").into_os_string()),
            "GRADLE_USER_HOME" => Some(home.join("tools/gradle").into_os_string()),
            _ => None,
        };
        let tools = Tools::find(&home, var, &[]);
        assert_eq!(paths(&tools, &home), [".cargo", "tools", ".bun"]);
        for dir in &tools.dirs {
            assert!(dir.hidden.contains(&"credentials.toml".into()), "{}", dir.path.display());
        }
        assert!(tools.dirs[1].hidden.contains(&"gradle/gradle.properties".into()));
    }

    #[test]
    fn no_directory_of_the_system_is_a_tool_home() {
        let (_temp, home) = home_with(&[]);
        for odd in [
            "/", "/etc", "/etc/ssl", "/proc", "/sys", "/dev", "/usr", "/run", "/tmp", "/var",
            "/home", "/root",
        ] {
            let var = |name: &str| (name == "CARGO_HOME").then(|| odd.into());
            assert_eq!(Tools::find(&home, var, &[]), Tools::default(), "{odd}");
        }
    }

    #[test]
    fn what_links_in_local_bin_lead_to_appears() {
        let (_temp, home) = home_with(&[
            ".local/bin",
            ".local/share/agent/versions",
            ".local/share/keyrings",
            ".ssh",
        ]);
        let link = |target: &str, name: &str| {
            std::os::unix::fs::symlink(home.join(target), home.join(".local/bin").join(name))
                .expect("link");
        };
        std::fs::write(home.join(".local/share/agent/versions/1.0"), "").expect("write");
        link(".local/share/agent/versions/1.0", "agent");
        link(".ssh", "odd");
        link("nowhere", "dangling");
        let tools = Tools::find(&home, |_| None, &[]);
        assert_eq!(paths(&tools, &home), [".local/bin", ".local/share/agent"]);
    }

    #[test]
    fn credentials_in_tool_homes_are_hidden() {
        #[derive(Deserialize)]
        struct Credentials {
            version: u32,
            files: Vec<PathBuf>,
        }
        let known: Credentials =
            toml::from_str(include_str!("../../data/credentials.toml")).expect("read");
        assert!(known.version == 1 && known.files.len() >= 40);
        let dirs = || LIST.home.iter().flat_map(|home| &home.dir);
        for file in &known.files {
            for dir in dirs().filter(|dir| file.starts_with(&dir.path)) {
                let below = file.strip_prefix(&dir.path).expect("below");
                let seen =
                    dir.only.is_empty() || dir.only.iter().any(|part| below.starts_with(part));
                let hidden = dir.hide.iter().any(|hide| below.starts_with(hide));
                assert!(!seen || hidden, "`{}` would be readable", file.display());
            }
        }
        for dir in dirs() {
            for hide in &dir.hide {
                let inside = dir.path.join(hide);
                let known = known.files.iter().any(|file| file.starts_with(&inside));
                let alike = hide == Path::new("settings-security4.xml");
                assert!(known || alike, "`{}` is not in credentials.toml", inside.display());
            }
        }
    }
}

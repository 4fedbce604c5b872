//! `dam setup`: the AppArmor profile that lets ordinary users have level `sandbox`.
//!
//! Since Ubuntu 23.10, AppArmor takes the rights that a user namespace gives away from
//! every program that has no profile with the rule `userns`. [`plan`] finds out whether
//! that is so here and what is to be done about it, [`unplan`] what would undo it;
//! neither changes anything. [`Plan::check`] lets `apparmor_parser` read the profile,
//! and [`Plan::perform`] does what was planned:
//!
//! 1. The binary's place is looked at first ([`place`]): the profile gives a right to
//!    whatever lies at that path, so nobody but root and the owner may put something
//!    there.
//! 2. The file is written under another name and renamed, onto a free name or onto a
//!    file of ours. Ours is one whose first line says so. A file that is not ours is
//!    never written, loaded or deleted.
//! 3. It is loaded last, from where the next boot will load it. When that fails, the
//!    file is put back as it was: the boot would fail in the same way.
//!
//! Undoing goes the other way round: the parser needs the file to know what to unload.
//!
//! The root directory is a parameter for tests: `/` for everybody else.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use schemars::JsonSchema;
use serde::Serialize;

use crate::Error;
use crate::error::IoContext;

mod place;
#[cfg(test)]
mod tests;

/// Where the profile is.
pub const PROFILE: &str = "/etc/apparmor.d/dam";
/// Name of the profile in the kernel.
const NAME: &str = "dam";
/// Each file of ours begins with this; the rest of the line is for people.
const MARK: &str = "# Written by `dam setup` (version 1)";
/// 1 where AppArmor restricts them.
const RESTRICTED: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
/// What is loaded, for root to read.
const LOADED: &str = "/sys/kernel/security/apparmor/profiles";
/// Where the parser is. `PATH` is not asked: root is going to run it.
const PARSERS: [&str; 2] = ["/usr/sbin/apparmor_parser", "/sbin/apparmor_parser"];

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Write the profile and load it.
    Write,
    /// Load the profile that is there.
    Load,
    /// Unload the profile and delete its file.
    Remove,
    /// Delete the file of a profile that is not loaded.
    Delete,
}

/// What `dam setup` found and would do.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Plan {
    /// What is to be done.
    pub action: Action,
    /// Why.
    pub why: String,
    /// The program that the profile is for.
    pub binary: String,
    /// The profile's file.
    pub path: String,
    /// The profile, where it is written or loaded.
    pub profile: Option<String>,
    /// What the file holds now, where it is replaced or deleted.
    pub before: Option<String>,
    /// What is run, with its arguments.
    pub command: Option<Vec<String>>,
    /// What the profile allows, to whom.
    pub allows: Option<String>,
}

/// What is at the profile's path.
enum Present {
    Nothing,
    Ours(String),
    Foreign,
}

/// Whether AppArmor keeps this program from user namespaces, and a profile for it would
/// help: it has none, and no other one confines it.
#[must_use]
pub fn is_missing(root: &Path) -> bool {
    restricts(root) && matches!(label(root).as_str(), "" | "unconfined")
}

/// The call of `dam setup` that works for the caller: the path that root has need not
/// be the caller's.
#[must_use]
pub fn call(binary: &Path) -> String {
    let path = binary.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+~@,:=%".contains(c);
    let path =
        if path.chars().all(plain) { path } else { format!("'{}'", path.replace('\'', "'\\''")) };
    let sudo = if rustix::process::geteuid().is_root() { "" } else { "sudo " };
    format!("{sudo}{path} setup")
}

/// Finds out what there is to be set up for the program at `binary`, an absolute path
/// without links.
///
/// # Errors
/// [`Error::Usage`] when a profile for this path, or at [`PROFILE`], would be wrong.
pub fn plan(root: &Path, binary: &Path) -> Result<Plan, Error> {
    let nothing = |why: String| Ok(Plan::new(Action::Nothing, why, binary));
    if !restricts(root) {
        return nothing("AppArmor does not restrict user namespaces here".into());
    }
    let label = label(root);
    let profile = profile(binary)?;
    let (name, mode) = label.split_once(" (").unwrap_or((&label, ""));
    let in_force = name == NAME;
    let present = present(root)?;
    match &present {
        Present::Ours(text) if in_force && *text == profile => {
            return nothing(format!("`{PROFILE}` is there and in force for this program"));
        }
        Present::Foreign | Present::Nothing if in_force => {
            return nothing(format!(
                "a profile `{NAME}` that `dam setup` did not write is in force for this program"
            ));
        }
        Present::Foreign => return Err(foreign()),
        _ => {}
    }
    if !in_force && !matches!(name, "" | "unconfined") && mode != "unconfined)" {
        return Err(Error::Usage {
            message: format!("this process is confined by the AppArmor profile `{name}`"),
            hint: Some(
                "in a container, its own security profile decides; `dam setup` is for the host"
                    .into(),
            ),
        });
    }
    let owner = place::owner_alone(root, binary)?;
    let parser = parser(root).map_or(PARSERS[0], |(shown, _)| shown);
    let why = "AppArmor restricts user namespaces here".to_owned();
    let (action, before) = match present {
        Present::Ours(text) if text == profile => (Action::Load, None),
        Present::Ours(text) => (Action::Write, Some(text)),
        Present::Nothing | Present::Foreign => (Action::Write, None),
    };
    Ok(Plan {
        profile: Some(profile),
        before,
        command: Some([parser, "-r", PROFILE].map(str::to_owned).to_vec()),
        allows: Some(format!(
            "the program at `{}`, and what it starts, may make user namespaces; it allows and \
             forbids nothing else. Every user who can run that file has this, and whoever can \
             write it ({owner}) can give it to any program",
            binary.display()
        )),
        ..Plan::new(action, why, binary)
    })
}

/// Finds out what there is to be undone.
///
/// # Errors
/// [`Error::Usage`] when the file at [`PROFILE`] is not ours.
pub fn unplan(root: &Path, binary: &Path) -> Result<Plan, Error> {
    let text = match present(root)? {
        Present::Nothing => {
            let why = format!("there is no `{PROFILE}`");
            return Ok(Plan::new(Action::Nothing, why, binary));
        }
        Present::Foreign => return Err(foreign()),
        Present::Ours(text) => text,
    };
    let loaded = loaded(root);
    let action = if loaded { Action::Remove } else { Action::Delete };
    let parser = parser(root).map_or(PARSERS[0], |(shown, _)| shown);
    Ok(Plan {
        before: Some(text),
        command: loaded.then(|| [parser, "-R", PROFILE].map(str::to_owned).to_vec()),
        ..Plan::new(action, format!("`dam setup` wrote `{PROFILE}`"), binary)
    })
}

impl Plan {
    fn new(action: Action, why: String, binary: &Path) -> Plan {
        Plan {
            action,
            why,
            binary: binary.display().to_string(),
            path: PROFILE.into(),
            profile: None,
            before: None,
            command: None,
            allows: None,
        }
    }

    /// Lets the parser read the profile: nothing is loaded, and nothing is cached.
    ///
    /// # Errors
    /// [`Error::Usage`] when there is no parser, [`Error::AppArmor`] when it refuses.
    pub fn check(&self, root: &Path) -> Result<(), Error> {
        match &self.profile {
            Some(profile) => run(root, &["-Q", "-K"], Some(profile)).map(drop),
            None if self.command.is_some() => need_parser(root).map(drop),
            None => Ok(()),
        }
    }

    /// Does it, as root.
    ///
    /// # Errors
    /// [`Error::AppArmor`] when the parser refuses: then the file is as it was before.
    pub fn perform(&self, root: &Path) -> Result<(), Error> {
        let path = under(root, PROFILE);
        match (self.action, &self.profile) {
            (Action::Write, Some(profile)) => {
                self.check(root)?;
                self.write(root, profile)?;
                load(root).inspect_err(|_| {
                    // The error that is told is why.
                    let _ = match &self.before {
                        Some(text) => cofferdam_tree::write_atomic(&path, text.as_bytes(), 0o644)
                            .map_err(std::io::Error::from),
                        None => std::fs::remove_file(&path),
                    };
                })
            }
            (Action::Load, _) => {
                self.check(root)?;
                self.still_as_planned(root)?;
                load(root)
            }
            (Action::Remove | Action::Delete, _) => {
                self.still_as_planned(root)?;
                if self.action == Action::Remove {
                    run(root, &["-R", &path.to_string_lossy()], None)?;
                }
                std::fs::remove_file(&path).at("delete", PROFILE)
            }
            _ => Ok(()),
        }
    }

    /// Onto a free name, or onto what was there when this was planned.
    fn write(&self, root: &Path, profile: &str) -> Result<(), Error> {
        let path = under(root, PROFILE);
        if self.before.is_some() {
            self.still_as_planned(root)?;
            return cofferdam_tree::write_atomic(&path, profile.as_bytes(), 0o644)
                .at("write", PROFILE);
        }
        // The parser and the boot pass over names with a dot in front.
        let aside = path.with_file_name(format!(".dam.new-{}", std::process::id()));
        cofferdam_tree::write_atomic(&aside, profile.as_bytes(), 0o644).at("write", PROFILE)?;
        let (cwd, once) = (rustix::fs::CWD, rustix::fs::RenameFlags::NOREPLACE);
        if let Err(errno) = rustix::fs::renameat_with(cwd, &aside, cwd, &path, once) {
            let _ = std::fs::remove_file(&aside);
            return Err(errno).at("write", PROFILE);
        }
        let dir = path.parent().unwrap_or(root);
        cofferdam_tree::fsync_dir(dir).at("sync the directory of", PROFILE)
    }

    /// Time has passed since: a person was asked.
    fn still_as_planned(&self, root: &Path) -> Result<(), Error> {
        let planned = self.before.as_ref().or(self.profile.as_ref());
        match present(root)? {
            Present::Ours(text) if Some(&text) == planned => Ok(()),
            _ => Err(Error::Usage {
                message: format!("`{PROFILE}` has changed in the meantime; nothing was done"),
                hint: Some("say it again".into()),
            }),
        }
    }
}

fn under(root: &Path, path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn restricts(root: &Path) -> bool {
    std::fs::read_to_string(under(root, RESTRICTED)).is_ok_and(|text| text.trim() == "1")
}

/// What AppArmor calls this process: `unconfined`, or a profile's name and mode. Empty
/// when it does not say.
fn label(root: &Path) -> String {
    ["/proc/self/attr/apparmor/current", "/proc/self/attr/current"]
        .iter()
        .find_map(|path| std::fs::read_to_string(under(root, path)).ok())
        .map(|text| text.trim_matches(['\0', '\n', ' ']).to_owned())
        .unwrap_or_default()
}

/// Whether a profile of our name is loaded, as far as one may know; it is tried if not.
fn loaded(root: &Path) -> bool {
    match std::fs::read_to_string(under(root, LOADED)) {
        Ok(text) => text.lines().any(|line| line.split(" (").next() == Some(NAME)),
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

fn present(root: &Path) -> Result<Present, Error> {
    let path = under(root, PROFILE);
    match std::fs::symlink_metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Present::Nothing),
        Err(error) => return Err(error).at("look at", PROFILE),
        Ok(file) if !file.is_file() => return Ok(Present::Foreign),
        Ok(_) => {}
    }
    let bytes = std::fs::read(&path).at("read", PROFILE)?;
    Ok(match String::from_utf8(bytes) {
        Ok(text) if text.starts_with(MARK) => Present::Ours(text),
        _ => Present::Foreign,
    })
}

fn foreign() -> Error {
    Error::Usage {
        message: format!("`{PROFILE}` is there, and `dam setup` did not write it"),
        hint: Some(
            "look what it is for; when it is for this program, `apparmor_parser -r` loads it, \
             else give it another name"
                .into(),
        ),
    }
}

/// The profile for the program at this path.
///
/// The path is a pattern there (apparmor.d(5)), in quotes for spaces and `#`.
fn profile(binary: &Path) -> Result<String, Error> {
    let refused = |why: &str| Error::Usage {
        message: format!("there can be no AppArmor profile for {binary:?}: its path {why}"),
        hint: Some("install `dam` in another directory".into()),
    };
    let path = binary.to_str().ok_or_else(|| refused("is not UTF-8"))?;
    if !path.starts_with('/') {
        return Err(refused("does not begin at the root directory"));
    }
    if path.contains(['"', '\'', '\\']) || path.contains(char::is_control) {
        return Err(refused("has a quote, a backslash or a control character"));
    }
    let mut pattern = String::new();
    for c in path.chars() {
        if "*?[]{}^".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    Ok(format!(
        "{MARK}; `dam setup --remove` unloads and deletes it.\n\
         abi <abi/4.0>,\n\n\
         profile {NAME} \"{pattern}\" flags=(unconfined) {{\n  userns,\n}}\n"
    ))
}

/// As it is told, and where it is.
fn parser(root: &Path) -> Option<(&'static str, PathBuf)> {
    PARSERS.into_iter().map(|path| (path, under(root, path))).find(|(_, path)| path.is_file())
}

fn need_parser(root: &Path) -> Result<PathBuf, Error> {
    parser(root).map(|(_, path)| path).ok_or_else(|| Error::Usage {
        message: "there is no `apparmor_parser` here, which loads and unloads profiles".into(),
        hint: Some("install the package `apparmor`".into()),
    })
}

fn load(root: &Path) -> Result<(), Error> {
    run(root, &["-r", &under(root, PROFILE).to_string_lossy()], None).map(drop)
}

/// Runs the parser; gives what it said.
fn run(root: &Path, args: &[&str], stdin: Option<&str>) -> Result<String, Error> {
    let parser = need_parser(root)?;
    let mut child = Command::new(&parser)
        .args(args)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C.UTF-8")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .at("start", &parser)?;
    if let Some(mut pipe) = child.stdin.take() {
        // One that does not read to the end says why.
        let _ = pipe.write_all(stdin.unwrap_or_default().as_bytes());
    }
    let done = child.wait_with_output().at("wait for", &parser)?;
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    if done.status.success() {
        return Ok(said);
    }
    Err(Error::AppArmor { command: format!("apparmor_parser {}", args.join(" ")), said })
}

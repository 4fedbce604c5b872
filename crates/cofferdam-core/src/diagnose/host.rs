//! What the host has and a task has not.
//!
//! The names come from what the command printed, so only places are looked at
//! that the command could not choose: the directories of the caller's PATH, the
//! checkout and the home. A path elsewhere could be one that acts when it is
//! looked at, such as an automounter's.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use cofferdam_sandbox::view::SYSTEM_DIRS;

use super::Host;
use crate::context::Context;
use crate::job::Job;
use crate::tools::ToolDir;

/// Programs that a project installs for itself, relative to its top.
const PROJECT_PROGRAMS: &[&str] = &["node_modules/.bin", ".venv/bin", "venv/bin"];
/// With less than this many bytes left a disk counts as full: what failed may have
/// removed what it had written.
const FULL: u64 = 32 << 20;

/// The caller's side of a context.
pub(super) struct Outside<'a> {
    /// The caller's PATH.
    pub(super) search: OsString,
    /// Where the command ran.
    pub(super) cwd: &'a Path,
    pub(super) top: &'a Path,
    pub(super) home: &'a Path,
    /// What lies at the top inside: the upper and the layers.
    pub(super) repository: Vec<PathBuf>,
    /// What lies at the home inside.
    pub(super) private: PathBuf,
    /// What of the home or elsewhere is seen as well.
    pub(super) tools: &'a [ToolDir],
}

impl<'a> Outside<'a> {
    pub(super) fn of<S>(job: &'a Job<'_, S>, context: &Context, cwd: &'a Path) -> Outside<'a> {
        let layers = context.lower.iter().map(|lower| context.base.join(lower));
        Outside {
            search: std::env::var_os("PATH").unwrap_or_default(),
            cwd,
            top: &job.place.top,
            home: &job.place.person.home,
            repository: std::iter::once(context.upper()).chain(layers).collect(),
            private: context.dir.join("home"),
            tools: &job.place.tools.dirs,
        }
    }

    /// Whether a task sees a path of the checkout or of the home; `None` for any
    /// other.
    fn inside(&self, path: &Path) -> Option<bool> {
        let there = |place: &PathBuf, path: &Path| place.join(path).symlink_metadata().is_ok();
        if let Ok(path) = path.strip_prefix(self.top) {
            // The task's `.git` is one of its own.
            let own = path.starts_with(".git");
            return Some(own || self.repository.iter().any(|place| there(place, path)));
        }
        for tool in self.tools {
            if let Ok(below) = path.strip_prefix(&tool.path) {
                return Some(!tool.hidden.iter().any(|hidden| below.starts_with(hidden)));
            }
        }
        path.strip_prefix(self.home).ok().map(|path| there(&self.private, path))
    }
}

impl Host for Outside<'_> {
    fn program(&self, name: &str) -> Option<PathBuf> {
        if name.contains('/') {
            return self.file(name);
        }
        let own = PROJECT_PROGRAMS.iter().map(|dir| self.top.join(dir));
        let places: Vec<PathBuf> = std::env::split_paths(&self.search)
            .filter(|dir| dir.is_absolute())
            .chain(own)
            .map(|dir| dir.join(name))
            .filter(|file| file.is_file())
            .collect();
        // One that a task sees was not what could not be found.
        let seen = places.iter().any(|file| {
            SYSTEM_DIRS.iter().any(|dir| file.starts_with(dir)) || self.inside(file) == Some(true)
        });
        if seen { None } else { places.into_iter().next() }
    }

    fn file(&self, path: &str) -> Option<PathBuf> {
        let path = match path.strip_prefix("~/") {
            Some(below) => self.home.join(below),
            None => self.cwd.join(path),
        };
        if path.components().any(|part| part == Component::ParentDir) {
            return None;
        }
        let path: PathBuf = path.components().collect();
        let outside = self.inside(&path) == Some(false) && path.symlink_metadata().is_ok();
        outside.then_some(path)
    }

    fn listens(&self, port: u16) -> bool {
        ["/proc/net/tcp", "/proc/net/tcp6"]
            .iter()
            .filter_map(|table| std::fs::read_to_string(table).ok())
            .any(|table| table.lines().any(|line| is_listener(line, port)))
    }

    fn can_write(&self, path: &Path) -> bool {
        use rustix::fs::{Access, access};
        let mut there = path.ancestors().filter(|path| path.symlink_metadata().is_ok());
        there.next().is_some_and(|path| access(path, Access::WRITE_OK).is_ok())
    }

    fn disk_is_full(&self) -> bool {
        rustix::fs::statvfs(&self.private).is_ok_and(|disk| {
            disk.f_bavail.saturating_mul(disk.f_frsize) < FULL
                || (disk.f_files > 0 && disk.f_favail == 0)
        })
    }
}

/// Whether a line of `/proc/net/tcp` (proc_net_tcp(5)) is a listener on a port:
/// the second field is the local address, the fourth the state.
fn is_listener(line: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let mut fields = line.split_whitespace().skip(1);
    let local = fields.next().and_then(|local| local.rsplit_once(':'));
    local.and_then(|(_, local)| u16::from_str_radix(local, 16).ok()) == Some(port)
        && fields.nth(1) == Some(LISTEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        dir: tempfile::TempDir,
    }

    impl Fixture {
        fn new(files: &[&str]) -> Fixture {
            let dir = tempfile::tempdir().expect("dir");
            for name in files {
                let path = dir.path().join(name);
                std::fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
                std::fs::write(path, "").expect("write");
            }
            Fixture { dir }
        }

        fn at(&self, path: &str) -> PathBuf {
            self.dir.path().join(path)
        }

        /// Asks with these directories as PATH.
        fn ask<T>(&self, path: &[&str], ask: impl FnOnce(&Outside<'_>) -> T) -> T {
            let (top, home) = (self.at("home/repo"), self.at("home"));
            let dirs = path.iter().map(|dir| self.at(dir));
            ask(&Outside {
                search: std::env::join_paths(dirs).expect("PATH"),
                cwd: &top.join("src"),
                top: &top,
                home: &home,
                repository: vec![self.at("upper"), self.at("layer")],
                private: self.at("private"),
                tools: &[],
            })
        }
    }

    #[test]
    fn a_program_is_named_when_only_the_caller_has_it() {
        let host = Fixture::new(&["bin/tool", "home/repo/node_modules/.bin/vite"]);
        let found = host.ask(&["none", "bin"], |outside| outside.program("tool"));
        assert_eq!(found, Some(host.at("bin/tool")));
        assert_eq!(host.ask(&["bin"], |outside| outside.program("nothing")), None);
        let found = host.ask(&[], |outside| outside.program("vite"));
        assert_eq!(found, Some(host.at("home/repo/node_modules/.bin/vite")));
        // What a relative entry means depends on where one stands.
        let relative = host.ask(&[], |outside| {
            let (repository, private) = (Vec::new(), PathBuf::new());
            Outside { search: "src".into(), repository, private, ..*outside }.program("lib.rs")
        });
        assert_eq!(relative, None);
        // `sh` is in a system directory as well.
        let sh = Fixture::new(&["bin/sh"]);
        assert_eq!(sh.ask(&["bin", "/bin"], |outside| outside.program("sh")), None);
        let seen = Fixture::new(&["home/repo/tools/x", "layer/tools/x"]);
        assert_eq!(seen.ask(&["home/repo/tools"], |outside| outside.program("x")), None);
    }

    #[test]
    fn a_file_is_named_when_it_lies_in_checkout_or_home_and_not_inside() {
        let host = Fixture::new(&[
            "home/repo/.env",
            "home/repo/src/data.csv",
            "home/repo/a.txt",
            "home/repo/made.txt",
            "home/repo/.git/config",
            "home/.nvm/nvm.sh",
            "home/.cache/x",
            "elsewhere/x",
            "layer/a.txt",
            "upper/made.txt",
            "private/.cache/x",
        ]);
        let file = |path: &str| host.ask(&[], |outside| outside.file(path));
        let full = |path: &str| host.at(path).to_str().expect("utf-8").to_owned();
        assert_eq!(file(&full("home/repo/.env")), Some(host.at("home/repo/.env")));
        assert_eq!(file("./data.csv"), Some(host.at("home/repo/src/data.csv")));
        assert_eq!(file("~/.nvm/nvm.sh"), Some(host.at("home/.nvm/nvm.sh")));
        for path in [
            "nothing",
            "../.env",
            "~/.cache/x",
            &full("home/repo/a.txt"),
            &full("home/repo/made.txt"),
            &full("home/repo/.git/config"),
            &full("elsewhere/x"),
        ] {
            assert_eq!(file(path), None, "{path}");
        }
    }

    #[test]
    fn what_lies_in_a_tool_home_is_there_but_for_what_is_hidden() {
        let host = Fixture::new(&["home/.cargo/bin/x", "home/.cargo/credentials", "home/.ssh/id"]);
        let tools = [ToolDir {
            name: "rust".into(),
            path: host.at("home/.cargo"),
            source: host.at("home/.cargo"),
            variable: None,
            hidden: vec!["credentials".into()],
            state: Vec::new(),
        }];
        let file = |path: &str| {
            host.ask(&[], |outside| {
                let (repository, private) = (Vec::new(), host.at("private"));
                let search = OsString::new();
                Outside { search, repository, private, tools: &tools, ..*outside }.file(path)
            })
        };
        assert_eq!(file("~/.cargo/bin/x"), None);
        assert!(file("~/.cargo/credentials").is_some() && file("~/.ssh/id").is_some());
    }

    #[test]
    fn a_listener_is_seen_and_gone_when_it_is_closed() {
        let host = Fixture::new(&[]);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("address").port();
        assert!(host.ask(&[], |outside| outside.listens(port)));
        // State 01 is an established connection.
        let line = "  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000";
        assert!(is_listener(line, 8080) && !is_listener(line, 8081));
        assert!(!is_listener(&line.replace(" 0A ", " 01 "), 8080));
    }
}

//! Tasks that work on files instead of a repository.

mod attempt;
mod background;
mod command;
mod crash;
mod database;
mod dir;
mod each;
mod kinds;
mod line;
mod report;
mod series;
mod trace;
mod undo;
mod year;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::bed::walk;
use crate::support::{Done, World, dam_binary};

/// A directory that is no repository, and one that others read.
struct Desk {
    world: World,
    /// Where the person stands.
    here: PathBuf,
    /// What others read.
    shared: PathBuf,
}

impl Desk {
    fn new() -> Desk {
        let world = World::empty();
        let (here, shared) = (world.dir().join("desk"), world.dir().join("shared"));
        std::fs::create_dir(&here).expect("mkdir");
        std::fs::create_dir(&shared).expect("mkdir");
        Desk { world, here, shared }
    }

    fn put(&self, path: &str, text: &str) -> PathBuf {
        let path = self.here.join(path);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
        std::fs::write(&path, text).expect("write");
        path
    }

    fn script(&self, path: &str, body: &str) {
        self.put(path, &format!("#!/bin/sh\n{body}\n"));
        self.world.sh_in(&self.here, &format!("chmod +x {path}"));
    }

    /// A file that others read.
    fn shared(&self, name: &str) -> String {
        String::from_utf8(std::fs::read(self.shared.join(name)).expect("read")).expect("UTF-8")
    }

    fn share(&self, name: &str, text: &str) {
        std::fs::write(self.shared.join(name), text).expect("write");
    }

    /// `--output FILE=SHARED`.
    fn output(&self, from: &str, to: &str) -> String {
        format!("--output={from}={}", self.shared.join(to).display())
    }

    /// `dam run --scratch OPTIONS -- sh -c SCRIPT`.
    fn command(&self, options: &[&str], script: &str) -> Command {
        let run = ["run", "--scratch"];
        self.dam_command(&[&run, options, &["--", "sh", "-c", script]].concat())
    }

    fn dam_command(&self, args: &[&str]) -> Command {
        let mut command = self.world.command(dam_binary());
        command.current_dir(&self.here).args(args);
        command
    }

    fn run(&self, options: &[&str], script: &str) -> Done {
        Done::from(self.command(options, script).output().expect("dam"))
    }

    fn dam(&self, args: &[&str]) -> Done {
        Done::from(self.dam_command(args).output().expect("dam"))
    }

    /// Runs `dam` at a terminal of its own, where a person types `keys`, as slowly as one.
    fn at_a_terminal(&self, args: &[&str], keys: &str) -> Done {
        let program = "
import os, pty, sys
status = pty.spawn(sys.argv[1:], lambda fd: os.read(fd, 1024))
sys.exit(os.waitstatus_to_exitcode(status))
";
        let mut command = self.world.command("python3");
        command.current_dir(&self.here).args(["-c", program]).arg(dam_binary()).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("python3");
        let mut stdin = child.stdin.take().expect("piped");
        for key in keys.bytes() {
            std::thread::sleep(Duration::from_millis(100));
            stdin.write_all(&[key]).expect("write");
        }
        Done::from(child.wait_with_output().expect("python3"))
    }

    /// All that is in a directory, by path: mode, owner and content.
    fn tree(dir: &Path) -> BTreeMap<PathBuf, String> {
        let mut tree = BTreeMap::new();
        walk(dir, &mut |path, meta| {
            let content = match meta.is_file() {
                true => String::from_utf8_lossy(&std::fs::read(path).expect("read")).into_owned(),
                false => String::new(),
            };
            let what = format!("{:o} {} {content}", meta.mode(), meta.uid());
            tree.insert(path.to_owned(), what);
        });
        tree
    }
}

//! A landing under strace: what it does to the repository, and in which order.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::bed::{Bed, Target};

/// One line of a trace.
pub struct Call {
    pub pid: String,
    pub text: String,
}

impl Call {
    /// The name of the failpoint that is visited here.
    pub fn failpoint(&self) -> Option<&str> {
        let (_, rest) = self.text.strip_prefix("write(")?.split_once("/failpoints>, \"")?;
        rest.split("\\n").next()
    }

    /// Whether it adds, replaces or removes a name, or opens a file to write.
    pub fn mutates(&self) -> bool {
        if self.text.contains(" = -1 E") {
            return false;
        }
        let name = self.text.split('(').next().unwrap_or_default();
        match name {
            "openat" | "openat2" | "open" | "creat" => {
                ["O_WRONLY", "O_RDWR", "O_CREAT"].iter().any(|flag| self.text.contains(flag))
            }
            "rename" | "renameat" | "renameat2" | "unlink" | "unlinkat" | "rmdir" | "mkdir"
            | "mkdirat" | "link" | "linkat" | "symlink" | "symlinkat" => true,
            _ => false,
        }
    }

    /// Whether a path below `dir` is named; a working directory is not, where the
    /// path beside it is absolute.
    pub fn names(&self, dir: &str) -> bool {
        let mut parts = self.text.split("AT_FDCWD<");
        parts.next().is_some_and(|part| part.contains(dir))
            || parts.any(|part| match part.split_once(">, ") {
                Some((_, rest)) if rest.starts_with("\"/") => rest.contains(dir),
                _ => part.contains(dir),
            })
    }

    pub fn syncs(&self, path: &str) -> bool {
        let call = ["fsync(", "fdatasync("].iter().any(|call| self.text.starts_with(call));
        call && self.text.split_once('<').is_some_and(|(_, rest)| {
            rest.split('>').next().is_some_and(|synced| synced.ends_with(path))
        })
    }
}

/// The calls of a landing, in order.
fn trace(bed: &Bed) -> Vec<Call> {
    trace_of(&bed.run_command(), bed.world.dir())
}

/// The calls of a command that ends well, in order; what it visits is named in them.
pub fn trace_of(run: &Command, dir: &Path) -> Vec<Call> {
    let out = dir.join("trace");
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-y", "-qq", "-s", "200", "-o"])
        .arg(&out)
        .arg("--trace=rename,renameat,renameat2,unlink,unlinkat,openat,openat2,open,creat,fsync,fdatasync,syncfs,rmdir,mkdir,mkdirat,link,linkat,symlink,symlinkat,write,pwrite64,execve")
        .arg(run.get_program())
        .args(run.get_args())
        .current_dir(run.get_current_dir().expect("a directory"))
        .env_clear()
        .env("COFFERDAM_FAILPOINT_LOG", dir.join("failpoints"));
    for (name, value) in run.get_envs() {
        strace.env(name, value.unwrap_or_default());
    }
    let done = strace.output().expect("strace");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = std::fs::read(&out).expect("trace");
    String::from_utf8_lossy(&text)
        .lines()
        .filter_map(|line| {
            let (pid, text) = line.split_once(' ')?;
            let text = text.trim_start();
            (!text.starts_with("<...")).then(|| Call { pid: pid.into(), text: text.into() })
        })
        .collect()
}

#[test]
fn every_change_of_the_repository_stands_between_two_failpoints() {
    let bed = Bed::new(Target::CheckedOut);
    let calls = trace(&bed);
    let main = calls.first().expect("calls").pid.clone();
    let others: BTreeSet<&str> = calls
        .iter()
        .filter(|call| call.text.starts_with("execve(") && call.pid != main)
        .map(|call| call.pid.as_str())
        .collect();
    let repo = bed.world.repo.to_str().expect("utf-8");
    let begin = calls.iter().position(|call| call.failpoint() == Some("ledger:publishing:after"));
    let mut since: Vec<&str> = Vec::new();
    let mut seen = 0;
    let mut failpoint = "";
    for call in &calls[begin.expect("publishing")..] {
        if let Some(name) = call.failpoint() {
            failpoint = name;
            since.clear();
        } else if call.mutates() && call.names(repo) {
            // A git is one step, whatever it does: it is not ours to stop in between.
            let step = if others.contains(call.pid.as_str()) { &call.pid } else { &call.text };
            if since.last() != Some(&step.as_str()) {
                since.push(step);
                seen += 1;
            }
            assert!(since.len() < 2, "after `{failpoint}`, without another between: {since:#?}");
        }
    }
    // Pack, draft, lock, copy, dry run, ref, update, lock file, index, copy, pin.
    assert!(seen >= 11, "only {seen} steps were seen");
    let last = calls.iter().rposition(|call| call.mutates() && call.names(repo));
    let after = &calls[last.expect("a change")..];
    assert!(after.iter().any(|call| call.failpoint().is_some()), "none after the last change");
}

#[test]
fn what_lands_is_on_disk_before_the_ledger_says_so() {
    let bed = Bed::new(Target::CheckedOut);
    let calls = trace(&bed);
    let find = |what: &str, from: usize, test: &dyn Fn(&Call) -> bool| {
        let at = calls[from..].iter().position(test);
        from + at.unwrap_or_else(|| panic!("no {what} after call {from}"))
    };
    let at = |name: &'static str| find(name, 0, &|call| call.failpoint() == Some(name));
    let synced = |from: usize, path: &str| find(path, from, &|call| call.syncs(path));
    let named = |from: usize, path: &str| {
        find(path, from, &|call| {
            (call.text.starts_with("rename") || call.text.starts_with("link"))
                && call.text.contains(path)
        })
    };

    // The pack: content, then name, then directories, all before the ref.
    let pack = find("synced pack", at("publish:pack:before"), &|call| {
        call.text.starts_with("fsync(") && call.text.contains("/objects/pack/tmp_pack")
    });
    let pack_named = named(pack, "/objects/pack/pack-");
    let pack_dir = synced(pack_named, "/.git/objects/pack");
    let objects_dir = synced(pack_dir, "/.git/objects");

    // The intent: in the ledger and synced before the lock is taken.
    let intent = at("publication:intent:before");
    assert!(objects_dir < at("publish:ref:before"));
    assert!(intent < at("follow:lock:before"));
    let intent_synced = synced(intent, "/ledger.db-wal");
    assert!(intent_synced < at("publication:intent:after"));

    // The ref: content, then name, then directories.
    let ref_synced = synced(at("publish:ref:before"), "/.git/refs/heads/main.lock");
    let ref_named = named(ref_synced, "/.git/refs/heads/main.lock");
    let heads = synced(ref_named, "/.git/refs/heads");
    let refs = synced(heads, "/.git/refs");
    let git_dir = synced(refs, "/.git");

    // The index, then the record that it landed.
    let index = synced(git_dir, "/.git/index.lock");
    let landed = at("ledger:landed:before");
    assert!(index < landed);
    let record = synced(landed, "/ledger.db-wal");
    assert!(record < at("ledger:landed:after"));
    assert!(
        calls[landed..record]
            .iter()
            .any(|call| call.text.starts_with("pwrite64(") && call.text.contains("/ledger.db-wal")),
        "nothing was written before that sync"
    );
}

//! SIGKILL and errors at every step of a publication over files.

use std::sync::Mutex;

use super::Desk;
use crate::bed::{for_each, kill_at, visits};

const OLD: &str = "old\n";
const NEW: &str = "new\n";

/// Outputs of a task: over a file that is there, where nothing is, and both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outputs {
    Over,
    New,
    Several,
    Append,
    Tree,
    NewTree,
    Link,
    Dir,
    Patch,
}

pub(super) struct Bed {
    pub(super) desk: Desk,
    outputs: Outputs,
}

impl Bed {
    pub(super) fn new(outputs: Outputs) -> Bed {
        let desk = Desk::new();
        desk.share("over", OLD);
        match outputs {
            Outputs::Append => desk.share("records", "{\"id\":\"1\"}\n"),
            Outputs::Tree | Outputs::Dir | Outputs::Patch => {
                std::fs::create_dir(desk.shared.join("tree")).expect("mkdir");
                desk.share("tree/file", OLD);
                desk.share("tree/gone", OLD);
            }
            Outputs::Link => {
                std::fs::create_dir(desk.shared.join("first")).expect("mkdir");
                desk.share("first/file", OLD);
                std::os::unix::fs::symlink("first", desk.shared.join("tree")).expect("link");
            }
            _ => {}
        }
        Bed { desk, outputs }
    }

    pub(super) fn run(&self) -> std::process::Command {
        if matches!(self.outputs, Outputs::Dir | Outputs::Patch) {
            let dir = self.desk.shared.join("tree").display().to_string();
            let publish = ["--publish", "patch"];
            let publish = if self.outputs == Outputs::Patch { &publish[..] } else { &[] };
            let run = ["run", "--name", "t", "--no-check", "--dir", &dir];
            let work = ["--", "sh", "-c", "echo new > file; rm gone; echo new > other"];
            return self.desk.dam_command(&[&run, publish, &work].concat());
        }
        let mut options = vec!["--name=t".to_owned(), "--no-check".into()];
        if matches!(self.outputs, Outputs::Over | Outputs::Several) {
            options.push(self.desk.output("a", "over"));
        }
        if matches!(self.outputs, Outputs::New | Outputs::Several) {
            options.push(self.desk.output("b", "made"));
        }
        match self.outputs {
            Outputs::Append => {
                let to = self.desk.shared.join("records");
                options.push(format!("--append=c={}", to.display()));
            }
            Outputs::Tree | Outputs::NewTree | Outputs::Link => {
                options.push(self.desk.output("d/", "tree"));
            }
            _ => {}
        }
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let script = "echo new > a; echo new > b; echo '{\"id\":\"2\"}' > c; \
                      mkdir d; echo new > d/file; echo new > d/other";
        self.desk.command(&options, script)
    }

    /// What each place holds.
    fn places(&self) -> Vec<Option<String>> {
        let read = |name: &str| std::fs::read_to_string(self.desk.shared.join(name)).ok();
        ["over", "made", "records", "tree/file", "tree/gone", "tree/other"].map(read).to_vec()
    }

    /// Every place old, or every place new; and nothing of ours beside them.
    pub(super) fn assert_sound(&self) -> String {
        let some = |text: &str| Some(text.to_owned());
        let is_tree = matches!(
            self.outputs,
            Outputs::Tree | Outputs::Link | Outputs::NewTree | Outputs::Dir | Outputs::Patch
        );
        let mut old = vec![some(OLD), None, None, None, None, None];
        match self.outputs {
            Outputs::Append => old[2] = some("{\"id\":\"1\"}\n"),
            Outputs::Tree | Outputs::Dir | Outputs::Patch => {
                (old[3], old[4]) = (some(OLD), some(OLD));
            }
            Outputs::Link => old[3] = some(OLD),
            _ => {}
        }
        let mut new = old.clone();
        if matches!(self.outputs, Outputs::Over | Outputs::Several) {
            new[0] = some(NEW);
        }
        if matches!(self.outputs, Outputs::New | Outputs::Several) {
            new[1] = some(NEW);
        }
        if self.outputs == Outputs::Append {
            new[2] = some("{\"id\":\"1\"}\n{\"id\":\"2\"}\n");
        }
        if is_tree {
            (new[3], new[4], new[5]) = (some(NEW), None, some(NEW));
        }
        let list = self.desk.dam(&["--format", "json", "list"]);
        let tasks: serde_json::Value =
            serde_json::from_str(&list.expect_code(0).stdout).expect("JSON");
        let state = tasks[0]["state"].as_str().unwrap_or("none").to_owned();
        let places = self.places();
        let wanted = if state == "landed" { &new } else { &old };
        assert_eq!(&places, wanted, "{state}: {}", tasks[0]["reason"]);
        assert!(
            ["landed", "ready", "failed", "none"].contains(&state.as_str()),
            "{state}: {}",
            tasks[0]["reason"]
        );
        let names = std::fs::read_dir(&self.desk.shared).expect("list");
        for name in names.map(|entry| entry.expect("entry").file_name()) {
            let name = name.to_string_lossy().into_owned();
            // What was replaced is a version, once.
            let is_ours = name.starts_with(".dam") || name.contains(".dam-probe");
            assert!(!is_ours, "{name:?} is left: {}", self.desk.world.sh("ls -A ../shared"));
        }
        state
    }

    fn assert_recovers(&self) {
        let state = self.assert_sound();
        assert_eq!(self.assert_sound(), state);
        self.desk.dam(&["gc"]).expect_code(0);
        assert_eq!(self.assert_sound(), state);
        match state.as_str() {
            "ready" => {
                self.desk.dam(&["land", "t"]).expect_code(0);
                assert_eq!(self.assert_sound(), "landed");
            }
            "failed" => {
                self.desk.dam(&["drop", "t"]).expect_code(0);
            }
            _ => {}
        }
        self.desk.dam(&["gc"]).expect_code(0);
        assert_eq!(self.desk.world.sh("find ../state/contexts/tasks ../state/trash -name 'upper*' -o -name 'results*' -o -name '*.tmp'"), "");
    }
}

fn places(outputs: Outputs) -> Vec<String> {
    let bed = Bed::new(outputs);
    let places = visits(bed.run(), bed.desk.world.dir());
    assert_eq!(bed.assert_sound(), "landed", "{places:?}");
    places
}

#[test]
fn killed_at_every_step_of_a_landing_over_a_file() {
    let places = places(Outputs::Over);
    for step in ["create", "copy", "attributes", "sync", "compare", "rename", "sync-dir", "done"] {
        let place = format!("target:file:{step}@1");
        assert!(places.contains(&place), "{place} is not in {places:?}");
    }
    for_each(places, |place| {
        let bed = Bed::new(Outputs::Over);
        kill_at(bed.run(), place);
        bed.assert_recovers();
    });
}

fn publishing(outputs: Outputs) -> Vec<String> {
    let places = places(outputs);
    let first = places.iter().position(|place| place == "ledger:publishing:before@1");
    let last = places.iter().position(|place| place == "ledger:landed:after@1");
    places[first.expect("publishing")..=last.expect("landed")].to_vec()
}

#[test]
fn killed_at_every_step_of_a_landing_where_nothing_was() {
    for_each(publishing(Outputs::New), |place| {
        let bed = Bed::new(Outputs::New);
        kill_at(bed.run(), place);
        bed.assert_recovers();
    });
}

#[test]
fn records_are_there_once_wherever_it_is_killed() {
    for_each(publishing(Outputs::Append), |place| {
        let bed = Bed::new(Outputs::Append);
        kill_at(bed.run(), place);
        bed.assert_recovers();
    });
}

#[test]
fn a_directory_is_the_old_or_the_new_one_wherever_it_is_killed() {
    for outputs in [Outputs::Tree, Outputs::NewTree, Outputs::Link, Outputs::Dir] {
        for_each(publishing(outputs), |place| {
            let bed = Bed::new(outputs);
            kill_at(bed.run(), place);
            bed.assert_recovers();
        });
    }
}

#[test]
fn a_patch_is_rolled_forward_wherever_it_is_killed() {
    let places = publishing(Outputs::Patch);
    for_each(places, |place| {
        let bed = Bed::new(Outputs::Patch);
        kill_at(bed.run(), place);
        bed.assert_recovers();
        assert_eq!(bed.desk.world.sh("ls -A ../state/journal 2> /dev/null || true"), "");
    });
}

#[test]
fn several_change_all_or_none_wherever_it_is_killed() {
    let places = publishing(Outputs::Several);
    assert!(places.contains(&"publication:committed:after@1".to_owned()), "{places:?}");
    for_each(places, |place| {
        let bed = Bed::new(Outputs::Several);
        kill_at(bed.run(), place);
        bed.assert_recovers();
    });
}

#[test]
fn recovery_of_files_is_killed_at_every_step_too() {
    let halfway = [
        (Outputs::Over, "publication:intent:after@1"),
        (Outputs::Over, "target:file:sync-dir@1"),
        (Outputs::New, "target:file:sync-dir@1"),
        (Outputs::Several, "publication:intent:after@1"),
        (Outputs::Several, "publication:committed:after@1"),
        (Outputs::Several, "target:file:sync-dir@1"),
        (Outputs::Several, "ledger:landed:before@1"),
        (Outputs::Append, "target:file:sync-dir@1"),
        (Outputs::Tree, "publication:intent:after@1"),
        (Outputs::Tree, "target:tree:done@1"),
        (Outputs::NewTree, "target:tree:done@1"),
        (Outputs::Link, "target:tree:done@1"),
        (Outputs::Patch, "publication:intent:after@1"),
        (Outputs::Patch, "target:patch:apply@1"),
        (Outputs::Patch, "target:patch:apply@2"),
        (Outputs::Patch, "target:patch:done@1"),
        (Outputs::Patch, "ledger:landed:before@1"),
    ];
    let pairs = Mutex::new(Vec::new());
    let number = |at: usize| at.to_string();
    for_each((0..halfway.len()).map(number).collect(), |at| {
        let (outputs, first) = halfway[at.parse::<usize>().expect("number")];
        let bed = Bed::new(outputs);
        kill_at(bed.run(), first);
        let places = visits(bed.desk.dam_command(&["list"]), bed.desk.world.dir());
        bed.assert_recovers();
        let mut pairs = pairs.lock().expect("pairs");
        pairs.extend(places.into_iter().map(|place| format!("{at} {place}")));
    });
    let pairs = pairs.into_inner().expect("pairs");
    assert!(pairs.len() > 20, "{pairs:?}");
    for_each(pairs, |pair| {
        let (at, second) = pair.split_once(' ').expect("two");
        let (outputs, first) = halfway[at.parse::<usize>().expect("number")];
        let bed = Bed::new(outputs);
        kill_at(bed.run(), first);
        kill_at(bed.desk.dam_command(&["list"]), second);
        bed.assert_recovers();
    });
}

#[test]
fn an_error_at_any_step_leaves_the_target_as_it_was_and_is_told_with_path_and_step() {
    let all = [Outputs::Over, Outputs::Several, Outputs::Append, Outputs::Tree, Outputs::Patch];
    for outputs in all {
        let places = publishing(outputs);
        let steps = places.into_iter().filter(|place| place.starts_with("target:"));
        let steps = steps.flat_map(|place| {
            ["enospc", "eio", "erofs", "einval", "exdev"].map(|error| format!("{place}={error}"))
        });
        // Past the commit point, a path that something is mounted on is left alone and told.
        let steps = steps.filter(|fault| {
            outputs != Outputs::Patch || !fault.contains(":rename") || !fault.ends_with("=exdev")
        });
        for_each(steps.collect(), |fault| {
            let bed = Bed::new(outputs);
            let output = bed.run().env("COFFERDAM_FAILPOINT", fault).output().expect("dam");
            let done = crate::support::Done::from(output);
            let state = bed.assert_sound();
            let told = format!("{}{}", done.stdout, done.stderr);
            if state == "landed" {
                return;
            }
            assert_eq!(state, "ready", "{told}");
            assert!(told.contains(&bed.desk.shared.display().to_string()), "{told}");
            bed.assert_recovers();
        });
    }
}

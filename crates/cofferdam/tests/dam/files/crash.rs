//! SIGKILL and errors at every step of a publication over files.

use std::sync::Mutex;

use super::Desk;
use crate::bed::{for_each, kill_at, visits};

const OLD: &str = "old\n";
const NEW: &str = "new\n";

/// Outputs of a task: over a file that is there, where nothing is, and both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outputs {
    Over,
    New,
    Several,
}

struct Bed {
    desk: Desk,
    outputs: Outputs,
}

impl Bed {
    fn new(outputs: Outputs) -> Bed {
        let desk = Desk::new();
        desk.share("over", OLD);
        Bed { desk, outputs }
    }

    fn run(&self) -> std::process::Command {
        let mut options = vec!["--name=t".to_owned(), "--no-check".into()];
        if self.outputs != Outputs::New {
            options.push(self.desk.output("a", "over"));
        }
        if self.outputs != Outputs::Over {
            options.push(self.desk.output("b", "made"));
        }
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        self.desk.command(&options, "echo new > a; echo new > b")
    }

    /// What each place holds.
    fn places(&self) -> Vec<Option<String>> {
        let read = |name: &str| std::fs::read_to_string(self.desk.shared.join(name)).ok();
        vec![read("over"), read("made")]
    }

    /// Every place old, or every place new; and nothing of ours beside them.
    fn assert_sound(&self) -> String {
        let (over, made) = match self.outputs {
            Outputs::Over => (NEW, None),
            Outputs::New => (OLD, Some(NEW)),
            Outputs::Several => (NEW, Some(NEW)),
        };
        let new = vec![Some(over.to_owned()), made.map(str::to_owned)];
        let old = vec![Some(OLD.to_owned()), None];
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
            assert!(!name.to_string_lossy().starts_with(".dam"), "{name:?} is left");
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
    for outputs in [Outputs::Over, Outputs::Several] {
        let places = publishing(outputs);
        let steps = places.into_iter().filter(|place| place.starts_with("target:"));
        let steps = steps.flat_map(|place| {
            ["enospc", "eio", "erofs", "einval", "exdev"].map(|error| format!("{place}={error}"))
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

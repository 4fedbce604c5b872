//! The ledger through its public interface, on real files.

mod failpoint;
mod file;
mod key;
mod landing;
mod steps;
mod task;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use cofferdam_ledger::{
    Change, Durability, Ledger, NewPublication, NewTask, State, Task, TaskId, TaskName,
};
use serde_json::json;
use tempfile::TempDir;

const NORMAL: Durability = Durability::Normal;
const FULL: Durability = Durability::Full;

fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.db");
    (dir, path)
}

fn id(text: &str) -> TaskId {
    TaskId::parse(text).unwrap()
}

fn new_task(id_text: &str, name: &str) -> NewTask {
    NewTask {
        series: None,
        id: id(id_text),
        name: TaskName::parse(name).unwrap(),
        repo: "repo-1".to_owned(),
        spec: json!({"command": ["true"]}),
        facts: json!({"base": "b0"}),
    }
}

fn step(ledger: &mut Ledger, id: &TaskId, from: State, to: State) -> Task {
    ledger.transition(id, from, to, Change::default(), NORMAL).unwrap()
}

/// Some legal way from `queued` to `end`.
fn way_to(end: State) -> Vec<State> {
    let mut ways = vec![vec![State::Queued]];
    let mut seen = HashSet::from([State::Queued]);
    while let Some(way) = ways.pop() {
        let last = *way.last().unwrap();
        if last == end {
            return way;
        }
        for &next in State::ALL {
            if last.may_become(next) && seen.insert(next) {
                ways.push([way.as_slice(), &[next]].concat());
            }
        }
    }
    panic!("no way to {end}");
}

fn task_in(ledger: &mut Ledger, id_text: &str, state: State) -> TaskId {
    let task = ledger.create_task(new_task(id_text, id_text)).unwrap();
    for pair in way_to(state).windows(2) {
        step(ledger, &task.id, pair[0], pair[1]);
    }
    task.id
}

fn publication(task: &TaskId) -> NewPublication {
    NewPublication {
        task: task.clone(),
        target: "branch main".to_owned(),
        old: Some("aaa".to_owned()),
        new: "bbb".to_owned(),
        journal: json!({"pack": "p1"}),
    }
}

fn raw(path: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(path).unwrap()
}

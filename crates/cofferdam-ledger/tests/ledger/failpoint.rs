//! Errors and deaths around each write, in child processes.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use cofferdam_ledger::{Change, Ledger, LedgerError, PublicationState, State};
use serde_json::{Value, json};

use crate::{FULL, NORMAL, id, new_task, place, publication, task_in};

/// What a child does under a failpoint, on the ledger in `LEDGER_TEST_PATH`.
#[test]
fn child() {
    let Some(path) = std::env::var_os("LEDGER_TEST_PATH") else { return };
    let mut ledger = Ledger::open(Path::new(&path)).unwrap();
    let task = id("aaaaaaaa");
    let run = |ledger: &mut Ledger| -> cofferdam_ledger::Result<()> {
        ledger.create_task(new_task("bbbbbbbb", "child"))?;
        ledger.transition(&task, State::Verifying, State::Publishing, Change::default(), NORMAL)?;
        let publication = ledger.begin_publication(publication(&task))?;
        let (intent, committed) = (PublicationState::Intent, PublicationState::Committed);
        ledger.advance_publication(publication, intent, committed, FULL)?;
        ledger.land(&task, publication, Change::default())?;
        Ok(())
    };
    let error = run(&mut ledger).unwrap_err();
    assert!(matches!(error, LedgerError::Injected(_)), "{error}");
}

#[test]
fn failpoints_stand_on_both_sides_of_each_write() {
    if !cfg!(debug_assertions) {
        eprintln!("SKIPPED: failpoints are compiled out of release builds");
        return;
    }
    // What is in the ledger past each point: child task, task, publication.
    let steps = [
        ("ledger:queued", [Value::Null, json!("verifying"), Value::Null]),
        ("ledger:publishing", [json!("queued"), json!("verifying"), Value::Null]),
        ("publication:intent", [json!("queued"), json!("publishing"), Value::Null]),
        ("publication:committed", [json!("queued"), json!("publishing"), json!("intent")]),
        ("ledger:landed", [json!("queued"), json!("publishing"), json!("committed")]),
        ("", [json!("queued"), json!("landed"), json!("done")]),
    ];
    for pair in steps.windows(2) {
        let (point, before) = &pair[0];
        for (side, expected) in [("before", before), ("after", &pair[1].1)] {
            for action in ["eio", "kill"] {
                let (_dir, path) = place();
                task_in(&mut Ledger::open(&path).unwrap(), "aaaaaaaa", State::Verifying);
                let plan = format!("{point}:{side}={action}");
                let status = Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "failpoint::child", "--test-threads=1"])
                    .env("LEDGER_TEST_PATH", &path)
                    .env("COFFERDAM_FAILPOINT", &plan)
                    .output()
                    .unwrap()
                    .status;
                match action {
                    "kill" => assert_eq!(status.signal(), Some(9), "{plan}"),
                    _ => assert!(status.success(), "{plan}"),
                }
                let ledger = Ledger::open(&path).unwrap();
                let state = |text| ledger.task(&id(text)).unwrap().map(|task| task.state);
                let publication = ledger.publication_of(&id("aaaaaaaa")).unwrap();
                let found = json!([
                    state("bbbbbbbb"),
                    state("aaaaaaaa"),
                    publication.map(|publication| publication.state)
                ]);
                assert_eq!(found, json!(expected), "{plan}");
            }
        }
    }
}

//! Publications over files under strace: what they do to what others read, and in which
//! order.

use super::crash::{Bed, Outputs};
use crate::trace::{Call, trace_of};

fn calls(outputs: Outputs) -> (Bed, Vec<Call>) {
    let bed = Bed::new(outputs);
    let calls = trace_of(&bed.run(), bed.desk.world.dir());
    assert_eq!(bed.assert_sound(), "landed");
    (bed, calls)
}

/// Where the first call from `from` on is that passes a test.
fn find(calls: &[Call], from: usize, what: &str, test: impl Fn(&Call) -> bool) -> usize {
    let at = calls[from..].iter().position(test);
    from + at.unwrap_or_else(|| panic!("no {what} after call {from}"))
}

fn visit(calls: &[Call], from: usize, name: &str) -> usize {
    find(calls, from, name, |call| call.failpoint() == Some(name))
}

fn rename(calls: &[Call], from: usize, text: &str) -> usize {
    find(calls, from, text, |call| {
        (call.text.starts_with("rename") || call.text.starts_with("link"))
            && call.text.contains(text)
            && !call.text.contains(" = -1 E")
    })
}

fn sync(calls: &[Call], from: usize, path: &str) -> usize {
    find(calls, from, path, |call| call.syncs(path) || call.text.starts_with("syncfs("))
}

const ALL: [Outputs; 9] = [
    Outputs::Over,
    Outputs::New,
    Outputs::Several,
    Outputs::Append,
    Outputs::Tree,
    Outputs::NewTree,
    Outputs::Link,
    Outputs::Dir,
    Outputs::Patch,
];

#[test]
fn each_change_that_others_see_stands_between_two_failpoints() {
    for outputs in ALL {
        let (bed, calls) = calls(outputs);
        let shared = bed.desk.shared.to_str().expect("UTF-8");
        let begin = visit(&calls, 0, "ledger:publishing:after");
        let mut seen = 0;
        let mut since: Vec<&str> = Vec::new();
        let mut failpoint = "";
        for call in &calls[begin..] {
            if let Some(name) = call.failpoint() {
                failpoint = name;
                since.clear();
                continue;
            }
            // What is staged nobody sees, and goes as one.
            let staged = call.text.contains(".dam-") && !call.text.starts_with("rename");
            if call.mutates() && call.names(shared) && !staged && !call.text.starts_with("openat") {
                since.push(&call.text);
                seen += 1;
            }
            assert!(
                since.len() < 2,
                "{outputs:?}: after `{failpoint}`, without another between: {since:#?}"
            );
        }
        assert!(seen > 0, "{outputs:?}: nothing was seen");
    }
}

#[test]
fn a_file_is_durable_before_it_has_its_name_and_its_name_before_it_has_landed() {
    for outputs in [Outputs::Over, Outputs::New, Outputs::Append] {
        let (_, calls) = calls(outputs);
        let begin = visit(&calls, 0, "ledger:publishing:after");
        let content = sync(&calls, begin, "-0");
        assert!(calls[content].text.contains(".dam-"), "{}", calls[content].text);
        let intent =
            sync(&calls, visit(&calls, content, "publication:intent:before"), "ledger.db-wal");
        let named = rename(&calls, intent, ".dam-");
        let dir = sync(&calls, named, "/shared");
        let landed = visit(&calls, dir, "ledger:landed:before");
        let record = sync(&calls, landed, "ledger.db-wal");
        assert!(record < visit(&calls, landed, "ledger:landed:after"), "{outputs:?}");
    }
}

#[test]
fn of_several_all_are_durable_with_their_names_before_the_record_and_it_before_the_first_changes() {
    let (_, calls) = calls(Outputs::Several);
    let begin = visit(&calls, 0, "ledger:publishing:after");
    let first = sync(&calls, begin, "-0");
    let second = sync(&calls, first, "-1");
    let intent = visit(&calls, second, "publication:intent:after");
    let names = sync(&calls, intent, "/shared");
    let record = visit(&calls, names, "publication:committed:before");
    let committed = sync(&calls, record, "ledger.db-wal");
    assert!(committed < visit(&calls, record, "publication:committed:after"));
    let one = rename(&calls, begin, ".dam-");
    assert!(one > committed, "{} before the record", calls[one].text);
    let last = rename(&calls, rename(&calls, committed, "-0") + 1, "-1");
    let landed = visit(&calls, sync(&calls, last, "/shared"), "ledger:landed:before");
    sync(&calls, landed, "ledger.db-wal");
}

#[test]
fn a_directory_is_durable_before_the_exchange_and_that_before_it_has_landed() {
    for outputs in [Outputs::Tree, Outputs::NewTree, Outputs::Link, Outputs::Dir] {
        let (_, calls) = calls(outputs);
        let begin = visit(&calls, 0, "ledger:publishing:after");
        let copied = visit(&calls, begin, "target:tree:copy");
        let content = sync(&calls, copied, "file");
        let intent = visit(&calls, content, "publication:intent:before");
        let intent = sync(&calls, intent, "ledger.db-wal");
        let swapped = rename(&calls, intent, ".dam-");
        let dir = sync(&calls, swapped, "/shared");
        let landed = visit(&calls, dir, "ledger:landed:before");
        let record = sync(&calls, landed, "ledger.db-wal");
        assert!(record < visit(&calls, landed, "ledger:landed:after"), "{outputs:?}");
    }
}

#[test]
fn a_patch_is_durable_before_its_record_and_that_before_the_first_path_changes() {
    let (bed, calls) = calls(Outputs::Patch);
    let begin = visit(&calls, 0, "ledger:publishing:after");
    let staged = visit(&calls, begin, "target:patch:stage");
    let content = sync(&calls, staged, "");
    let record = find(&calls, content, "redo record", |call| {
        call.text.starts_with("rename") && call.text.contains("/journal")
    });
    let before =
        calls[content..record].iter().any(|call| call.syncs("") && call.text.contains("/journal/"));
    assert!(before, "the record has its name before its content is on disk");
    let durable = sync(&calls, record, "/journal");
    let first = rename(&calls, begin, "/tree");
    assert!(first > durable, "{} before the record", calls[first].text);
    let tree = bed.desk.shared.join("tree").display().to_string();
    let changes =
        |call: &Call| call.mutates() && call.names(&tree) && !call.text.starts_with("openat");
    let last = calls.iter().rposition(changes).expect("changes");
    let dir = sync(&calls, last, "/tree");
    assert!(dir < visit(&calls, last, "ledger:landed:before"), "it is not synced before it landed");
}

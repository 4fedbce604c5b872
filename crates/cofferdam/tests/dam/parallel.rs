//! Many at once.

use std::collections::BTreeSet;
use std::process::Stdio;

use crate::support::{Done, World};

/// Starts so many tasks at once, each with a file of its own and the check
/// `./ci`, and gives their receipts. Meanwhile `beside` is called again and again.
fn run_at_once(world: &World, count: usize, mut beside: impl FnMut()) -> Vec<serde_json::Value> {
    let start = |number: usize| {
        let script = format!("echo {number} > file-{number}.txt");
        let args = ["--format", "json", "run", "--check", "./ci", "--", "sh", "-c", &script];
        let mut run = world.dam_command(args);
        run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("dam")
    };
    let mut children: Vec<_> = (0..count).map(start).collect();
    while children.iter_mut().any(|child| child.try_wait().expect("wait").is_none()) {
        beside();
    }
    children
        .into_iter()
        .map(|child| {
            let done = Done::from(child.wait_with_output().expect("wait"));
            done.expect_code(0);
            serde_json::from_str(&done.stdout).expect("json")
        })
        .collect()
}

fn all_landed(world: &World, receipts: &[serde_json::Value]) {
    let count = receipts.len();
    for receipt in receipts {
        assert_eq!(receipt["state"], "landed", "{receipt}");
    }
    let landed: BTreeSet<&str> =
        receipts.iter().map(|receipt| receipt["landed"].as_str().expect("commit")).collect();
    let commits = world.git(["log", "--first-parent", "--format=%H", "main"]);
    let commits: BTreeSet<&str> = commits.lines().collect();
    assert_eq!(commits.len(), count + 1);
    assert!(landed.is_subset(&commits));
    assert_eq!(world.git(["status", "--porcelain"]), "");
    for number in 0..count {
        assert_eq!(world.read(&format!("file-{number}.txt")), format!("{number}\n"));
    }
    assert_eq!(world.git(["for-each-ref", "refs/dam"]), "");
}

#[test]
fn eight_that_finish_together_are_checked_once_each_and_land() {
    let world = World::new();
    let receipts = run_at_once(&world, 8, std::thread::yield_now);
    all_landed(&world, &receipts);
    // Each on the very tree that landed, none twice, none on another's verdict.
    let mut trees = BTreeSet::new();
    for receipt in &receipts {
        let [check] = receipt["checks"].as_array().expect("checks").as_slice() else {
            panic!("not one check: {receipt}");
        };
        assert_eq!(
            (check["cached"].as_bool(), check["outcome"].as_str()),
            (Some(false), Some("passed"))
        );
        let landed = receipt["landed"].as_str().expect("commit");
        let tree = check["tree"].as_str().expect("tree").to_owned();
        assert_eq!(world.git(["rev-parse", &format!("{landed}^{{tree}}")]), tree);
        trees.insert(tree);
    }
    assert_eq!(trees.len(), 8);
}

#[test]
fn sixteen_at_once_with_collections_in_between_all_land() {
    let world = World::new();
    let receipts = run_at_once(&world, 16, || {
        world.dam(["gc"]).expect_code(0);
        world.dam(["list"]).expect_code(0);
    });
    all_landed(&world, &receipts);
}

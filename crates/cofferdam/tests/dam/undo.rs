//! Taking back what landed.

use crate::support::World;

fn landed(world: &World, name: &str, script: &str) {
    world.run(&["--name", name, "--no-check"], script).expect_code(0);
}

#[test]
fn what_landed_is_taken_back_and_what_came_after_it_stays() {
    let world = World::new();
    let before = world.read("a.txt");
    landed(&world, "first", "echo first >> a.txt; echo new > new.txt; rm src/b.txt");
    landed(&world, "second", "echo second > other.txt");
    world.dam(["undo", "first", "--no-check"]).expect_code(0).says("landed undo-first");
    assert_eq!((world.read("a.txt"), world.read("other.txt")), (before, "second\n".into()));
    assert!(!world.path("new.txt").exists() && world.path("src/b.txt").exists());
    assert_eq!(world.git(["status", "--porcelain"]), "");
    let commit = world.task("first")["landed"].as_str().expect("a commit").to_owned();
    let message = world.git(["log", "-1", "--format=%B", "main"]);
    let wanted = format!("Undo first\n\nThis reverts commit {commit}.\n");
    assert!(message.starts_with(&wanted), "{message}");
    // Once.
    let tip = world.git(["rev-parse", "main"]);
    world.dam(["undo", "first", "--no-check"]).expect_code(0).says("replayed: `undo-first`");
    assert_eq!(world.git(["rev-parse", "main"]), tip);
    // And the undoing can be undone.
    world.dam(["undo", "undo-first", "--no-check"]).expect_code(0);
    assert_eq!(world.read("new.txt"), "new\n");
}

#[test]
fn an_undoing_passes_the_gate_like_any_change() {
    let world = World::new();
    landed(&world, "first", "echo needed > needed.txt");
    let tip = world.git(["rev-parse", "main"]);
    world.dam(["undo", "first", "--check", "test -e needed.txt"]).expect_code(3);
    // No check at all: it waits, as a run does.
    world.dam(["drop", "undo-first"]).expect_code(0);
    world.dam(["undo", "first"]).expect_code(8);
    assert_eq!(world.git(["rev-parse", "main"]), tip);
}

#[test]
fn what_is_in_the_way_of_an_undoing_is_left() {
    let world = World::new();
    landed(&world, "first", "echo first > a.txt");
    landed(&world, "second", "echo second > a.txt");
    let tip = world.git(["rev-parse", "main"]);
    let done = world.dam(["undo", "first", "--no-check"]);
    done.expect_code(1).says("failed undo-first");
    assert!((done.stdout + &done.stderr).contains("CONFLICT"));
    assert_eq!((world.git(["rev-parse", "main"]), world.read("a.txt")), (tip, "second\n".into()));
    // Solved by hand, it lands.
    let solve = "echo solved > a.txt; git add a.txt; git revert --continue --no-edit || git commit -qm solved";
    world.dam(["enter", "undo-first", "--", "sh", "-c", solve]).expect_code(0);
    world.dam(["land", "undo-first", "--no-check"]).expect_code(0);
    assert_eq!(world.read("a.txt"), "solved\n");
}

#[test]
fn what_has_not_landed_can_not_be_undone() {
    let world = World::new();
    world.run(&["--name", "waits"], "echo x > a.txt").expect_code(8);
    world.dam(["undo", "waits"]).expect_code(2).says("`waits` can't be undone: it has not landed");
    world.dam(["undo", "nobody"]).expect_code(2).says("there is no task `nobody`");
}

//! What a landing makes of a task's work: the tree that `git add -A` and
//! `git commit` would have made of it, or a refusal that names the path.
//!
//! The oracle is git itself: the same script runs in a context and in a plain
//! copy of the repository, and the trees are compared. Each case runs over a base
//! layer, over a delta layer on the commit before its setup, and, for who can have
//! it, in a checkout at level `worktree`.

mod big;
mod ignored;
mod inside;
mod kinds;
mod lines;
mod names;
mod random;

use crate::support::{Done, World, levels};

/// The tree that git makes of the same script outside.
#[track_caller]
pub fn outside(world: &World, script: &str) -> String {
    let copy = world.dir().join("outside");
    world.sh(&format!("cp -a . {}", copy.display()));
    world.sh_in(&copy, script);
    world.sh_in(
        &copy,
        "git add -A; git commit --quiet --allow-empty -m outside; git rev-parse 'HEAD^{tree}'",
    )
}

/// The tree of a commit of the person's.
#[track_caller]
pub fn tree(world: &World, revision: &str) -> String {
    world.git(["rev-parse", &format!("{revision}^{{tree}}")])
}

/// Whether a layer of this kind is in the store.
pub fn has_layer(world: &World, kind: &str) -> bool {
    let layers = std::fs::read_dir(world.state().join("contexts/layers")).expect("layers");
    layers.filter_map(Result::ok).any(|entry| {
        std::fs::read_to_string(entry.path().join("meta.json"))
            .is_ok_and(|meta| meta.contains(&format!("\"{kind}\"")))
    })
}

/// A world whose next context has a base layer, or a delta layer below it.
/// `before` is done ahead of everything, `setup` is what is committed last.
#[track_caller]
pub fn prepared(before: &str, setup: &str, delta: bool) -> World {
    let world = World::new();
    world.sh(before);
    if delta {
        world.run(&["--no-check"], "true").expect_code(0);
    }
    world.git(["update-ref", "refs/test/warm", "HEAD"]);
    world.sh(setup);
    world.commit("setup");
    world
}

/// Each level that the caller can have, with and without a layer below.
pub fn ways() -> Vec<(&'static str, bool)> {
    let both = levels().iter().flat_map(|level| [(*level, false), (*level, true)]);
    both.filter(|way| *way != ("worktree", true)).collect()
}

/// Both worlds end with the same tree, and the person's checkout is clean.
#[track_caller]
pub fn same(setup: &str, script: &str) {
    same_after("true", setup, script);
}

/// As [`same`], with something to be done before the first layer is made.
#[track_caller]
pub fn same_after(before: &str, setup: &str, script: &str) {
    for (level, delta) in ways() {
        let mut world = prepared(before, setup, delta);
        world.at_level(level);
        let wanted = outside(&world, script);
        let differs = tree(&world, "HEAD") != tree(&world, "refs/test/warm");
        lands_as(&world, script, &wanted);
        assert_eq!(has_layer(&world, "delta"), delta && differs, "the layers are not as planned");
    }
}

/// The script's work lands as this tree, or is empty when nothing differs.
#[track_caller]
pub fn lands_as(world: &World, script: &str, wanted: &str) -> Done {
    let head = world.git(["rev-parse", "HEAD"]);
    let changes = tree(world, "HEAD") != wanted;
    let done = world.run(&["--no-check", "--name", "t"], script);
    done.expect_code(0);
    let landed = tree(world, "main");
    if landed != wanted {
        let diff =
            world.sh("cd ../outside; git fetch -q ../repo main; git diff --stat HEAD FETCH_HEAD");
        panic!("the landed tree is another:\n{diff}\n{}", done.stderr);
    }
    assert_eq!(world.git(["status", "--porcelain"]), "", "the checkout has not followed");
    assert_eq!(world.git(["rev-parse", "HEAD"]) != head, changes);
    done
}

/// The task is refused, with these words, and nothing has changed.
#[track_caller]
pub fn refused(setup: &str, script: &str, words: &str) {
    for (level, delta) in ways() {
        let mut world = prepared("true", setup, delta);
        world.at_level(level);
        let head = world.git(["rev-parse", "HEAD"]);
        let done = world.run(&["--no-check", "--name", "t"], script);
        done.expect_code(1).says(words);
        assert_eq!(world.state_of("t"), "failed");
        assert_eq!(world.git(["rev-parse", "main"]), head);
        assert_eq!(world.git(["status", "--porcelain"]), "");
    }
}

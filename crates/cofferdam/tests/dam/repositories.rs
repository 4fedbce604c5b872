//! The repositories that people really have: each kind goes through the whole line, at
//! each level, or is refused with its reason.

mod kinds;
mod lfs;
mod refused;
mod submodules;

use std::path::Path;

use crate::support::{World, levels};

/// A world whose home knows who commits, so that every repository in it can.
fn world() -> World {
    let world = World::new();
    std::fs::write(
        world.home().join(".gitconfig"),
        "[user]\n\tname = Ann\n\temail = ann@example.com\n[init]\n\tdefaultBranch = main\n\
         [protocol \"file\"]\n\tallow = always\n[gc]\n\tauto = 0\n",
    )
    .expect("write");
    world
}

/// Makes `dir` what `world` works on.
fn at(world: &mut World, dir: impl AsRef<Path>) {
    world.repo = world.dir().join(dir);
}

/// A task changes `a.txt`, adds a file and deletes `src/b.txt`; a check sees that, it
/// lands, and neither the checkout nor the context has anything to tell.
#[track_caller]
fn lands(world: &mut World) {
    for (round, level) in levels().iter().enumerate() {
        world.at_level(level);
        let (new, gone) = (format!("new{round}"), format!("gone{round}"));
        world.write(&gone, "going\n");
        world.commit("one that goes");
        let check = format!(
            "grep -q inside{round} a.txt && test -f {new} && test ! -e {gone} && test -z \"$(git status --short)\" && git log -1 --format=%H"
        );
        let task = format!(
            "test -z \"$(git status --short)\"; git log --oneline | grep -q .; \
             echo inside{round} >> a.txt; echo n > {new}; rm {gone}; git diff --stat | grep -q a.txt"
        );
        world.run(&["--check", &check], &format!("set -e; {task}")).expect_code(0);
        assert!(world.read("a.txt").contains(&format!("inside{round}")), "level {level}");
        assert!(world.path(&new).exists() && !world.path(&gone).exists(), "level {level}");
        assert_eq!(world.git(["status", "--porcelain"]), "", "level {level}");
        world.git(["fsck", "--no-dangling"]);
    }
}

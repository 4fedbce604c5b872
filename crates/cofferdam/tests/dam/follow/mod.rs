//! What a landing leaves alone in the checkout that has the branch: everything
//! of the person's. Either the checkout follows, or the task ends `ready` (exit
//! code 8), names what is in the way, and nothing at all has changed.

mod indexes;
mod meanwhile;
mod places;
mod ways;

use crate::support::{Done, World};

/// Everything of the checkout and of its `.git`: content, modes, times, inodes.
/// Directories without their times (lock files come and go), our pin of a kept
/// task's base and its objects aside.
pub fn snapshot(world: &World) -> String {
    world.sh(
        r#"find . \( -path ./.git/refs/dam -o -path ./.git/objects \) -prune -o -type d -printf '%p %m\n' -o -printf '%p %m %s %T@ %i %l\n' | sort
           find . \( -path ./.git/refs/dam -o -path ./.git/objects \) -prune -o -type f -print0 | sort -z | xargs -0 sha256sum"#,
    )
}

/// The task ends `ready` with these words and has changed nothing. Gives the
/// world back for what comes next.
#[track_caller]
pub fn waits(world: &World, script: &str, words: &str) -> Done {
    let before = snapshot(world);
    let done = world.run(&["--no-check", "--name", "t"], script);
    done.expect_code(8).says(words);
    assert_eq!(world.state_of("t"), "ready");
    let after = snapshot(world);
    assert!(before == after, "changed:\n{before}\n---\n{after}");
    done
}

/// The task lands and `git status` says this.
#[track_caller]
pub fn lands(world: &World, script: &str, status: &str) {
    world.run(&["--no-check"], script).expect_code(0);
    assert_eq!(world.git(["status", "--porcelain"]), status);
}

//! Everything that can lie in a directory, and what takes the place of what.

use super::{lands_as, outside, prepared, refused, same, tree, ways};
use crate::support::World;

#[test]
fn modes() {
    same(
        "echo x > tool; chmod 755 tool; echo y > plain",
        "chmod 644 tool; chmod 755 plain; echo n > new; chmod 700 new; echo r > readonly; chmod 444 readonly; chmod 711 ci",
    );
}

#[test]
fn what_a_task_makes_unreadable_lands_all_the_same() {
    let setup = "mkdir -p sub/deep; echo s > sub/deep/s; echo 1 > sub/gone";
    let work = "echo n > sub/deep/n; rm sub/gone; echo f > closed; mkdir ignored; \
                echo '*.skip' > sub/.gitignore; echo x > sub/x.skip; echo /ignored >> .gitignore";
    let close = "chmod 000 closed .gitignore sub/deep/* sub/.gitignore sub/x.skip; \
                 chmod 000 sub/deep ignored; chmod 000 sub; chmod 000 .";
    for (level, delta) in ways() {
        let mut world = prepared("true", setup, delta);
        world.at_level(level);
        let wanted = outside(&world, work);
        lands_as(&world, &format!("{work}; {close}"), &wanted);
    }
}

#[test]
fn links_new_changed_retargeted_dangling_and_to_directories() {
    same(
        "ln -s a.txt link; ln -s src dir; ln -s a.txt becomes-file; ln -s a.txt goes",
        "ln -sfn src/b.txt link; ln -sfn . dir; rm becomes-file goes; echo f > becomes-file; ln -s nowhere dangling; ln -s ../a.txt src/up; ln -sf b.txt src/b.txt",
    );
}

#[test]
fn a_link_of_the_base_may_point_outside_when_it_stays() {
    same(
        "ln -s /etc/hostname abs; ln -s ../../outside out",
        "echo x > a.txt; rm abs; ln -s /etc/hostname abs",
    );
}

#[test]
fn new_links_that_point_outside_are_refused() {
    refused("true", "ln -s /etc/passwd evil", "`evil` is a symlink that points outside");
    refused("true", "ln -s ../../x src/evil", "`src/evil` is a symlink that points outside");
    refused(
        "ln -s /etc/hostname abs",
        "ln -sf /etc/passwd abs",
        "`abs` is a symlink that points outside",
    );
    refused("true", "ln -s .git/config evil", "`evil` is a symlink that points outside");
}

#[test]
fn a_link_of_the_base_that_is_copied_elsewhere_is_a_new_one() {
    refused(
        "ln -s /etc/hostname abs",
        "cp -P abs other",
        "`other` is a symlink that points outside",
    );
}

#[test]
fn deletions() {
    same("mkdir -p d/e; echo 1 > d/e/f; echo 2 > d/g; echo 3 > d/e/h", "rm d/e/f a.txt; rm -r src");
}

#[test]
fn everything_deleted_is_the_empty_tree() {
    let world = prepared("true", "mkdir -p d/e; echo 1 > d/e/f; ln -s x l", false);
    lands_as(&world, "rm -rf * .gitignore", "4b825dc642cb6eb9a060e54bf8d69288fbee4904");
    // And a task on the empty tree.
    let world = prepared("true", "rm -rf *; rm .gitignore", true);
    let wanted = super::outside(&world, "echo back > a.txt; mkdir d; echo x > d/x");
    lands_as(&world, "echo back > a.txt; mkdir d; echo x > d/x", &wanted);
}

#[test]
fn a_directory_becomes_a_file_and_a_link() {
    same(
        "mkdir -p d/e l/m; echo 1 > d/e/f; echo 2 > l/m/n",
        "rm -r d l; echo file > d; ln -s src l",
    );
}

#[test]
fn files_and_links_become_directories() {
    same(
        "echo f > f; ln -s a.txt l; ln -s src s",
        "rm f l s; mkdir -p f/g l s; echo 1 > f/g/h; echo 2 > l/x; echo 3 > s/b.txt",
    );
}

#[test]
fn a_file_becomes_an_empty_directory() {
    same("echo f > f", "rm f; mkdir f");
}

#[test]
fn lower_directories_are_renamed() {
    same(
        "mkdir -p d/e; echo 1 > d/e/f; ln -s f d/e/l; echo 2 > d/g; chmod 755 d/g",
        "mv d moved; mv src d; mv moved/e d/e2; mv d/e2/f d/e2/h",
    );
}

#[test]
fn renames_within_the_upper() {
    same(
        "mkdir d; echo 1 > d/f",
        "mkdir -p n/o; echo 1 > n/o/p; mv n m; mv m/o q; mv q/p d/p; mv d/f d/r; mv d/r d/f",
    );
}

#[test]
fn a_name_that_differs_in_case_only() {
    same(
        "mkdir Dir; echo 1 > Dir/File; echo 2 > README",
        "mv README readme; mv Dir dir; mv dir/File dir/file",
    );
}

#[test]
fn two_names_exchange_their_places() {
    same(
        "mkdir d e; echo 1 > d/x; echo 2 > e/y",
        "mv d t; mv e d; mv t e; mv a.txt t; mv ci a.txt; mv t ci",
    );
}

/// Claude Code's `rm -r d; mkdir d` gave wrong commits in another tool:
/// <https://github.com/binpash/try/issues/163>.
#[test]
fn try_163_a_directory_is_made_again() {
    same(
        "mkdir -p d/e; echo 1 > d/old; echo 2 > d/e/old; echo 3 > d/same",
        "rm -r d; mkdir d; echo n > d/new; echo 3 > d/same",
    );
    same(
        "mkdir -p d/e/f; echo 1 > d/e/f/g; echo 2 > d/e/h",
        "rm -r d; mkdir -p d/e/f; echo 9 > d/e/f/n; rm -r d/e/f; mkdir d/e/f; echo 8 > d/e/f/o",
    );
}

#[test]
fn deletions_below_directories_made_again() {
    same(
        "mkdir -p d/e; echo 1 > d/e/a; echo 2 > d/e/b",
        "rm -r d/e; mkdir d/e; echo 1 > d/e/a; echo 2 > d/e/b; rm d/e/b; touch d/e/c; rm d/e/c",
    );
}

#[test]
fn empty_directories_are_nothing() {
    same("mkdir d; echo 1 > d/f", "mkdir -p empty/deep; rm d/f");
}

#[test]
fn touched_and_changed_back_is_no_change() {
    let world = prepared("true", "mkdir d; echo 1 > d/f; ln -s f d/l", true);
    let wanted = tree(&world, "HEAD");
    let script = "touch a.txt; chmod 755 a.txt; chmod 644 a.txt; chmod 600 src/b.txt; mv d/f x; mv x d/f; rm d/l; ln -s f d/l; mkdir n; rmdir n; rm ci; cp -p a.txt ci; printf '#!/bin/sh\\n! grep -q bad a.txt\\n' > ci; chmod 755 ci";
    let done = lands_as(&world, script, &wanted);
    assert_eq!(world.state_of("t"), "empty", "{}", done.stderr);
}

#[test]
fn hard_links_are_files() {
    same(
        "true",
        "ln a.txt b; ln src/b.txt src/c; echo x >> src/c; ln -f ci src/d; echo new > n; ln n m",
    );
}

#[test]
fn a_sparse_file_is_its_bytes() {
    same(
        "true",
        "truncate -s 3M sparse; printf x | dd of=sparse bs=1 seek=1M conv=notrunc status=none",
    );
}

#[test]
fn special_files_are_left_out_when_nothing_is_tracked_there() {
    let make = "mkfifo main.rs; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'; echo x > a.txt";
    same("true", make);
    let world = prepared("true", "true", false);
    world
        .run(&["--no-check"], make)
        .expect_code(0)
        .says("`main.rs` is a fifo")
        .says("`sock` is a socket");
}

#[test]
fn special_files_in_place_of_tracked_ones_are_refused() {
    refused("true", "rm a.txt; mkfifo a.txt", "`a.txt` is a fifo in place of a tracked file");
    refused("true", "rm -r src; mkfifo src", "`src` is a fifo in place of a tracked file");
    refused(
        "true",
        "rm a.txt; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"a.txt\")'",
        "`a.txt` is a socket in place of a tracked file",
    );
}

#[test]
fn setuid_and_setgid_files_are_refused() {
    refused("true", "echo x > s; chmod 4755 s", "`s` has the setuid or setgid bit");
    refused("true", "chmod 4755 ci", "`ci` has the setuid or setgid bit");
    refused("true", "echo x > s; chmod 2755 s", "`s` has the setuid or setgid bit");
}

#[test]
fn what_nobody_may_read_is_taken_all_the_same() {
    let world = prepared("true", "mkdir d; echo 1 > d/f", true);
    let readable =
        "echo 2 > d/f; echo n > d/n; mkdir c; echo m > c/m; echo x > zero; echo r > src/b.txt";
    let wanted = super::outside(&world, readable);
    lands_as(&world, &format!("{readable}; chmod 000 d/n zero d c; chmod 555 src"), &wanted);
}

#[test]
fn directories_without_write_permission_are_no_hindrance() {
    same("mkdir d; echo 1 > d/f", "echo 2 > d/f; chmod 555 d; mkdir e; echo x > e/x; chmod 555 e");
}

#[test]
fn marks_of_an_overlay_that_a_task_sets_itself_mean_nothing() {
    same(
        "mkdir d; echo 1 > d/f",
        "python3 -c 'import os\nfor n in (\"user.overlay.opaque\", \"user.overlay.whiteout\", \"user.overlay.redirect\", \"user.overlay.metacopy\"):\n  for p in (\"d\", \"d/f\", \"src\"):\n    try: os.setxattr(p, n, b\"y\")\n    except OSError: pass'; echo 2 > d/g; echo 3 > src/c",
    );
}

#[test]
fn a_file_that_is_not_in_its_encoding_is_refused_by_name() {
    // One by one, and so many that they go through an index.
    for many in [0, 5000] {
        let world = World::new();
        world.write(".gitattributes", "*.u16 text working-tree-encoding=UTF-16LE\n");
        world.commit("an encoding");
        let script =
            format!("for n in $(seq {many}); do echo $n > $n.txt; done; printf odd > g.u16");
        world
            .run(&["--no-check", "--name", "t"], &script)
            .expect_code(1)
            .says("`g.u16` can't be read as UTF-16LE")
            .says("`dam enter t` goes in");
        assert_eq!(world.state_of("t"), "failed");
        assert!(world.task("t")["context_kept"].as_bool().expect("kept"));
    }
}

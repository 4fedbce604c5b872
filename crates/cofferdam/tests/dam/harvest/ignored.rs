//! What is ignored, and who says so.

use super::{prepared, refused, same, same_after};

#[test]
fn patterns_nest_and_negate() {
    same(
        "printf '*.tmp\\n/top\\nlogs/\\n!keep.tmp\\n' > .gitignore; mkdir -p d; printf '*.o\\n!*.tmp\\n' > d/.gitignore",
        "echo 1 > x.tmp; echo 2 > keep.tmp; echo 3 > d/x.tmp; echo 4 > d/x.o; echo 5 > top; mkdir d/top logs d/logs; echo 6 > d/top/x; echo 7 > logs/x; echo 8 > d/logs/keep.tmp",
    );
}

#[test]
fn patterns_that_a_task_writes_count() {
    same(
        "echo 'gen/' >> .gitignore",
        "printf '*.bak\\n!*.log\\n' > .gitignore; echo 1 > a.bak; echo 2 > a.log; mkdir gen e; echo 3 > gen/x; echo '*' > e/.gitignore; echo 4 > e/x",
    );
    same(
        "mkdir d; echo '*.x' > d/.gitignore; echo '*.y' > .gitignore",
        "rm d/.gitignore .gitignore; echo 1 > d/a.x; echo 2 > d/a.y; echo 3 > a.log",
    );
}

#[test]
fn tracked_files_are_seen_though_ignored() {
    same(
        "mkdir build; echo 1 > build/tracked; echo 2 > build/goes; echo 3 > kept.log; echo 'build/' >> .gitignore; git add -f build kept.log",
        "echo 9 > build/tracked; rm build/goes; echo 9 > kept.log; echo n > new.log",
    );
}

#[test]
fn new_files_beside_tracked_ones_in_an_ignored_directory_stay_out() {
    same(
        "mkdir -p build/sub; echo 1 > build/tracked; echo 2 > build/sub/tracked; echo 'build/' >> .gitignore; git add -f build",
        "echo 9 > build/new; echo 9 > build/sub/new; mkdir build/other; echo 9 > build/other/new; echo 9 > build/sub/tracked",
    );
}

#[test]
fn a_negation_below_an_ignored_directory_does_not_count() {
    same(
        "mkdir build; echo 1 > build/tracked; printf 'build/\\n!build/wanted\\n' >> .gitignore; git add -f build",
        "echo 9 > build/wanted; echo '!*' > build/.gitignore; echo 9 > build/x; echo 8 > build/tracked",
    );
}

#[test]
fn links_in_a_loop_in_place_of_tracked_files_are_refused() {
    let words = "`x.log` is an ignored link in a loop, in place of a tracked directory";
    let setup = "mkdir -p x.log/b; echo 1 > x.log/a; echo 2 > x.log/b/c; git add -f x.log";
    refused(setup, "rm -r x.log; ln -s y x.log; ln -s x.log y", words);
    refused(setup, "rm -r x.log; mkdir y; ln -s y x.log; ln -s b y/b", words);
}

#[test]
fn what_is_ignored_may_take_the_place_of_what_was_tracked() {
    // A tracked file becomes an ignored directory, and the other way round.
    same(
        "echo 1 > out; mkdir cache; echo 2 > cache/tracked; printf 'out/\\ncache\\n' >> .gitignore; git add -f out cache",
        "rm out; mkdir out; echo 9 > out/x; rm -r cache; echo 9 > cache",
    );
    // A link in place of a tracked directory: what was below is gone, wherever it leads.
    same(
        "mkdir -p x.log/b y; echo 1 > x.log/a; echo 2 > x.log/b/c; echo 3 > y/a; git add -f x.log",
        "rm -r x.log; ln -s y x.log",
    );
    // A link in place of a tracked file is still that path.
    same("echo 1 > kept.log; git add -f kept.log", "rm kept.log; ln -s a.txt kept.log");
}

#[test]
fn an_ignored_directory_made_again() {
    same(
        "mkdir -p build; echo 1 > build/tracked; echo 'build/' >> .gitignore; git add -f build",
        "rm -r build; mkdir build; echo 9 > build/new",
    );
    same(
        "mkdir -p build; echo 1 > build/tracked; echo 'build/' >> .gitignore; git add -f build",
        "rm -r build; mkdir build; echo 9 > build/new; echo 8 > build/tracked",
    );
}

#[test]
fn rules_of_the_person_count() {
    same_after(
        "mkdir -p .git/info; echo '*.mine' >> .git/info/exclude; printf '*.global\\n!*.log\\n' > ../home/excl; git config core.excludesFile ../home/excl; echo '*.mine' > /dev/null",
        "true",
        "echo 1 > a.mine; echo 2 > a.global; echo 3 > a.log; echo 4 > b.txt",
    );
    same_after(
        "mkdir -p ../home/.config/git; echo '*.xdg' > ../home/.config/git/ignore; printf '*\\n!*.txt\\n!*/\\n' >> .git/info/exclude",
        "true",
        "echo 1 > a.xdg; echo 2 > b.txt; echo 3 > c; mkdir d; echo 4 > d/e.txt; echo 5 > d/e",
    );
}

#[test]
fn odd_patterns() {
    same(
        "printf 'trail \\nesc\\\\ \\n**/deep/*.x\\na/**/z\\n[abc].q\\n\\\\#h\\n\\\\!b\\nfoo?bar\\n\\303\\251\\n' > .gitignore; printf 'crlf\\r\\n' >> .gitignore",
        "touch trail 'trail ' 'esc ' '#h' '!b' a.q d.q fooxbar foo-bar crlf \"$(printf '\\303\\251')\"; mkdir -p n/deep a/m/n a/z; touch n/deep/i.x n/i.x a/m/n/z a/z/f",
    );
    same("printf '\\357\\273\\277*.bom\\n' > .gitignore", "echo 1 > a.bom; echo 2 > a.txt");
}

#[test]
fn what_the_task_added_by_force_is_taken_along() {
    same("true", "echo 1 > a.log; git add -f a.log");
    same("true", "echo 1 > a.log; echo 2 > b.log; git add -f a.log; git commit -qm forced");
    same(
        "true",
        "mkdir -p out.log/sub; echo 1 > out.log/sub/f; echo 2 > out.log/other; git add -f out.log/sub/f; git commit -qm forced; rm -rf src",
    );
}

#[test]
fn an_index_that_is_broken_takes_nothing_along_and_is_named() {
    let world = prepared("true", "true", false);
    let done = world.run(
        &["--no-check", "--name", "t"],
        "echo 1 > a.log; echo 2 > b.txt; git add -f a.log; printf 'DIRC\\0\\0\\0\\2\\0\\0\\377\\377' > .git/index",
    );
    done.expect_code(0).says("`.git/index` is unreadable");
    assert_eq!(world.git(["ls-files", "a.log", "b.txt"]), "b.txt");
}

#[test]
fn what_is_only_out_of_the_index_stays() {
    let world = prepared("true", "true", false);
    world
        .run(&["--no-check", "--name", "t"], "git rm -q --cached a.txt; git commit -qm gone")
        .expect_code(0);
    assert_eq!(world.state_of("t"), "empty");
}

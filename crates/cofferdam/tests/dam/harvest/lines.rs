//! Line endings, encodings, and the attributes that decide about them.

use super::{lands_as, outside, prepared, refused, same, same_after, tree};
use crate::support::World;

const CRLF: &str = r"printf 'one\r\ntwo\r\n' >";

#[test]
fn text_auto_makes_lf_of_new_and_changed_files() {
    same(
        r"echo '* text=auto' > .gitattributes; printf 'a\nb\n' > old.txt",
        &format!(
            "{CRLF} new.txt; {CRLF} old.txt; printf 'a\\0b\\r\\n' > binary; printf 'lone\\rcr\\r\\n' > lone"
        ),
    );
}

#[test]
fn eol_crlf_files_are_lf_in_the_repository() {
    same(
        r"echo '*.txt eol=crlf' > .gitattributes; printf 'a\r\nb\r\n' > old.txt",
        &format!("printf 'c\\r\\n' >> old.txt; {CRLF} new.txt; {CRLF} new.md; echo lf > lf.txt"),
    );
}

#[test]
fn no_text_keeps_every_byte() {
    same(
        "printf '* text=auto\\n*.raw -text\\n*.bin binary\\n' > .gitattributes",
        &format!("{CRLF} a.raw; {CRLF} b.bin; {CRLF} c.txt"),
    );
}

#[test]
fn a_file_that_is_committed_with_crlf_keeps_it_under_text_auto() {
    same_after(
        r"printf 'one\r\ntwo\r\n' > old.txt; printf 'one\r\n' > forced.txt; git add -A; git commit -qm crlf",
        "printf '* text=auto\\nforced.txt text\\n' > .gitattributes; git rm -q --cached forced.txt; git add forced.txt",
        r"printf 'three\r\n' >> old.txt; printf 'two\r\n' >> forced.txt; printf 'x\r\n' > other.txt",
    );
}

#[test]
fn a_binary_file_that_becomes_text_is_converted_under_text_auto() {
    same_after(
        r"printf 'one\r\n\0' > was-binary; printf 'lone\rcr\r\n' > was-lone; git add -A; git commit -qm crlf",
        "echo '* text=auto' > .gitattributes",
        r"printf 'now text\r\n' > was-binary; printf 'now text\r\n' > was-lone",
    );
}

#[test]
fn a_long_file_that_is_committed_with_crlf_keeps_it_under_text_auto() {
    same_after(
        r"yes 'a line that ends in CR LF' | sed 's/$/\r/' | head -c 9000028 > long.txt; git add -A; git commit -qm long",
        "echo '* text=auto' > .gitattributes",
        r"printf 'more\r\n' >> long.txt; sed 's/a line/the line/' long.txt > new.txt",
    );
}

#[test]
fn autocrlf_true_and_input_decide_without_attributes() {
    for value in ["true", "input"] {
        same_after(
            &format!(
                r"printf 'kept\r\n' > kept.txt; git add -A; git commit -qm crlf; git config core.autocrlf {value}"
            ),
            r"printf 'a\nb\n' > old.txt",
            &format!(
                "{CRLF} new.txt; {CRLF} old.txt; printf 'x\\r\\n' >> kept.txt; printf '\\0\\r\\n' > bin"
            ),
        );
    }
}

#[test]
fn core_eol_and_attributes_together() {
    same_after(
        "git config core.eol crlf",
        "printf '*.txt text\\nraw.txt -text\\nlf.txt eol=lf\\nold.x crlf=input\\n' > .gitattributes; echo a > a.txt; echo b > lf.txt",
        &format!("{CRLF} a.txt; {CRLF} raw.txt; {CRLF} lf.txt; {CRLF} old.x; {CRLF} none"),
    );
}

#[test]
fn ident_is_taken_back() {
    same(
        r"printf '*.c ident\n' > .gitattributes; printf '/* $Id$ */\n' > a.c",
        r"echo more >> a.c; printf '$Id: nonsense $\n' > b.c; printf '$Id: x $\n' > b.h",
    );
}

#[test]
fn other_encodings_are_utf_8_in_the_repository() {
    same(
        r"printf '*.u16 text working-tree-encoding=UTF-16\n' > .gitattributes; printf 'caf\303\251\n' | iconv -f UTF-8 -t UTF-16 > a.u16",
        r"printf 'th\303\251\r\n' | iconv -f UTF-8 -t UTF-16 > b.u16; printf 'changed\n' | iconv -f UTF-8 -t UTF-16 > a.u16",
    );
}

#[test]
fn attributes_files_nest_and_negate() {
    same(
        "mkdir -p d/e; printf '*.txt text\\n' > .gitattributes; printf '*.txt -text\\n' > d/.gitattributes; printf '*.txt !text\\n' > d/e/.gitattributes",
        &format!("{CRLF} a.txt; {CRLF} d/a.txt; {CRLF} d/e/a.txt; mkdir -p d/f; {CRLF} d/f/a.txt"),
    );
}

#[test]
fn attributes_outside_of_the_tree_count() {
    same_after(
        "mkdir -p .git/info; echo '*.txt text' > .git/info/attributes; echo '*.md text' > ../home/attributes; git config core.attributesFile ~/attributes",
        "echo a > a.txt",
        &format!("{CRLF} a.txt; {CRLF} b.md; {CRLF} c.c"),
    );
}

/// The base's attributes decide what a file becomes. One that others in the same change
/// would make something else of is refused, and lands when they have landed.
#[test]
fn attributes_that_a_task_writes_count_from_the_next_task_on() {
    let crlf = |name: &str| format!("{CRLF} {name}");
    let refused = |world: &World, script: &str, words: &str| {
        let head = world.git(["rev-parse", "main"]);
        world.run(&["--no-check"], script).expect_code(1).says(words);
        assert_eq!(world.git(["rev-parse", "main"]), head);
        assert_eq!(world.git(["status", "--porcelain"]), "");
    };
    let world = prepared("true", "true", false);
    let adds = "echo '*.txt text' > .gitattributes";
    refused(&world, &format!("{adds}; {}", crlf("a.txt")), "`a.txt` is to have other line endings");
    let (plain, next) = ("echo lf > n.txt", crlf("b.txt"));
    lands_as(
        &world,
        &format!("{adds}; {plain}; {}", crlf("c.c")),
        &outside(&world, &format!("{adds}; {plain}; {}", crlf("c.c"))),
    );
    world.sh("rm -rf ../outside");
    let wanted = outside(&world, &next);
    world.run(&["--no-check"], &next).expect_code(0);
    assert_eq!(tree(&world, "main"), wanted);
    let removes = "rm .gitattributes";
    refused(
        &world,
        &format!("{removes}; {}", crlf("d.txt")),
        "`d.txt` is to be converted otherwise",
    );
    world.run(&["--no-check"], &format!("{removes}; echo lf > d.txt")).expect_code(0);
    world.run(&["--no-check"], &crlf("d.txt")).expect_code(0);
    assert_eq!(world.git(["cat-file", "-s", "main:d.txt"]), "10");
}

/// A program of the host does not get what a task wrote by way of its attributes either.
#[test]
fn attributes_of_the_same_change_lead_through_no_filter() {
    let world = prepared(
        "git config filter.up.clean 'tr a-z A-Z'; git config filter.up.smudge 'tr A-Z a-z'",
        "true",
        false,
    );
    let script = "echo '*.q filter=up' > .gitattributes; echo AbC > n.q";
    world
        .run(&["--no-check"], script)
        .expect_code(1)
        .says("`n.q` would have to pass through the filter `up`");
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

#[test]
fn a_touched_file_under_conversion_is_no_change() {
    let world = prepared(
        "true",
        r"printf '* text=auto eol=crlf\n' > .gitattributes; printf 'a\r\nb\r\n' > a.txt",
        false,
    );
    let wanted = tree(&world, "HEAD");
    lands_as(&world, "touch a.txt; cat a.txt > b; cat b > a.txt; rm b", &wanted);
}

#[test]
fn a_path_under_a_filter_program_is_refused_by_name() {
    for delta in [false, true] {
        let world = prepared(
            "git config filter.up.clean 'tr a-z A-Z'; git config filter.up.smudge cat",
            "echo '*.up filter=up' > .gitattributes; echo text > a.up",
            delta,
        );
        world.run(&["--no-check"], "echo x > b.txt").expect_code(0);
        world
            .run(&["--no-check"], "echo x > b.up")
            .expect_code(1)
            .says("`b.up`")
            .says("filter `up`");
    }
    // No such program: git takes the bytes as they are.
    same(
        "echo '*.up filter=gone' > .gitattributes; echo text > a.up",
        "echo x > a.up; echo y > b.up",
    );
}

#[test]
fn an_attributes_file_that_is_a_link_is_refused() {
    refused(
        "true",
        "ln -s a.txt .gitattributes",
        "`.gitattributes` is a symlink in place of one of git's own files",
    );
}

//! Taking back what landed over a file.

use std::os::unix::fs::PermissionsExt;

use super::Desk;

#[test]
fn what_was_replaced_comes_back_whole_and_the_undo_can_be_undone() {
    let desk = Desk::new();
    desk.share("a", "old a\n");
    desk.share("b", "old b\n");
    let mode = |bits| std::fs::Permissions::from_mode(bits);
    std::fs::set_permissions(desk.shared.join("b"), mode(0o750)).expect("chmod");
    let options = ["--no-check", "--name=t", &desk.output("x", "a"), &desk.output("y", "b")];
    desk.run(&options, "echo new a > x; echo new b > y").expect_code(0);
    desk.dam(&["undo", "t", "--check", "grep -q new x"]).expect_code(3);
    desk.dam(&["drop", "undo-t"]).expect_code(0);
    desk.dam(&["undo", "t", "--check", "grep -q old x && test -x y"]).expect_code(0);
    assert_eq!((desk.shared("a"), desk.shared("b")), ("old a\n".into(), "old b\n".into()));
    let now = desk.shared.join("b").metadata().expect("stat").permissions().mode() & 0o7777;
    assert_eq!(now, 0o750);
    // Done once; and a change of mind is no other thing.
    desk.dam(&["undo", "t", "--no-check"]).expect_code(2).says("is what it was before already");
    desk.dam(&["undo", "undo-t", "--no-check"]).expect_code(0);
    assert_eq!(desk.shared("a"), "new a\n");
}

#[test]
fn what_can_not_be_taken_back_is_told_and_stays() {
    let desk = Desk::new();
    let run = |name: &str, text: &str| {
        let name = format!("--name={name}");
        let options = ["--no-check", &name, &desk.output("x", "a")];
        desk.run(&options, &format!("echo {text} > x")).expect_code(0);
    };
    run("made", "1");
    desk.dam(&["undo", "made", "--no-check"]).expect_code(2).says("was not there before");
    run("second", "2");
    desk.share("a", "theirs\n");
    desk.dam(&["undo", "second", "--no-check"]).expect_code(4).says("has changed since it landed");
    assert_eq!(desk.shared("a"), "theirs\n");
    // The last three are kept, and the disk does not fill with them.
    for number in 3..9 {
        run(&format!("run-{number}"), &number.to_string());
    }
    let kept = desk.world.sh("ls ../state/versions/*");
    assert_eq!(kept.lines().count(), 3, "{kept}");
    desk.dam(&["undo", "run-8", "--no-check"]).expect_code(0);
    assert_eq!(desk.shared("a"), "7\n");
    run("again", "2");
    desk.dam(&["undo", "second", "--no-check"]).expect_code(2).says("is not kept any more");
}

#[test]
fn a_directory_comes_back_too() {
    let desk = Desk::new();
    let run = |name: &str, script: &str| {
        let name = format!("--name={name}");
        desk.run(&["--no-check", &name, &desk.output("site/", "www")], script).expect_code(0);
    };
    run("one", "mkdir -p site/sub; echo 1 > site/sub/page; ln -s sub/page site/link");
    run("two", "mkdir site; echo 2 > site/page");
    desk.dam(&["undo", "one", "--no-check"]).expect_code(2).says("was not there before");
    desk.dam(&["undo", "two", "--check", "grep -q 1 site/link"]).expect_code(0);
    assert_eq!(desk.shared("www/link"), "1\n");
    assert!(!desk.shared.join("www/page").exists());
}

//! Outputs that are more than a file: records, directories.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::Desk;
use crate::support::Done;

fn append(desk: &Desk, script: &str) -> Done {
    let option = format!("--append=new={}", desk.shared.join("log").display());
    desk.run(&["--no-check", &option], script)
}

#[test]
fn records_are_added_once_by_their_ids() {
    let desk = Desk::new();
    append(&desk, "echo '{\"id\":\"a\",\"n\":1}' > new").expect_code(0);
    append(&desk, "echo '{\"id\":\"a\",\"n\":1}' > new; echo '{\"id\":\"b\"}' >> new")
        .expect_code(0);
    let all = "{\"id\":\"a\",\"n\":1}\n{\"id\":\"b\"}\n";
    assert_eq!(desk.shared("log"), all);
    append(&desk, "echo '{\"id\":\"b\"}' > new").expect_code(0).says("is there already");
    append(&desk, "true").expect_code(0);
    append(&desk, "echo 'no record' > new").expect_code(1).says("line 1");
    assert_eq!(desk.shared("log"), all);
    assert_eq!(std::fs::read_dir(&desk.shared).expect("list").count(), 1);
}

#[test]
fn of_many_that_append_at_once_each_has_its_records_there_once() {
    let desk = Desk::new();
    std::thread::scope(|scope| {
        for number in 0..16 {
            let desk = &desk;
            scope.spawn(move || {
                let script =
                    format!("for i in 1 2 3; do echo '{{\"id\":\"'{number}-$i'\"}}'; done > new");
                append(desk, &script).expect_code(0);
            });
        }
    });
    let text = desk.shared("log");
    let mut lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 48, "{text}");
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 48, "{text}");
}

#[test]
fn a_directory_is_replaced_as_one_step_and_keeps_its_last_versions() {
    let desk = Desk::new();
    let run = |script: &str| {
        desk.run(&["--check=test -e site/index", &desk.output("site/", "www")], script)
    };
    run("mkdir site; echo 1 > site/index; echo x > site/old; chmod 755 site/old").expect_code(0);
    assert_eq!(desk.shared("www/index"), "1\n");
    let mode = |name: &str| desk.shared.join(name).metadata().expect("stat").mode() & 0o7777;
    assert_eq!((mode("www/old"), mode("www/index")), (0o755, 0o644));
    std::fs::set_permissions(desk.shared.join("www"), std::fs::Permissions::from_mode(0o750))
        .expect("chmod");
    run("mkdir -p site/sub; echo 2 > site/index; ln -s index site/link; echo y > site/sub/y")
        .expect_code(0);
    assert!(!desk.shared.join("www/old").exists());
    assert_eq!((desk.shared("www/link"), desk.shared("www/sub/y")), ("2\n".into(), "y\n".into()));
    assert_eq!(mode("www"), 0o750);
    run("mkdir site; echo 3 > site/wrong").expect_code(3);
    run("mkdir site; echo 3 > site/index; mkfifo site/pipe")
        .expect_code(1)
        .says("`pipe` is a named pipe");
    run("echo 3 > site").expect_code(1).says("is not a directory");
    assert_eq!(desk.shared("www/index"), "2\n");
    for number in 4..10 {
        run(&format!("mkdir site; echo {number} > site/index")).expect_code(0);
    }
    // What readers see, and three versions.
    assert_eq!(std::fs::read_dir(&desk.shared).expect("list").count(), 4);
    // The same again is not written again.
    let inode = desk.shared.join("www").metadata().expect("stat").ino();
    run("mkdir site; echo 9 > site/index").expect_code(0).says("is there already");
    assert_eq!(desk.shared.join("www").metadata().expect("stat").ino(), inode);
}

#[test]
fn a_directory_that_somebody_changed_meanwhile_is_not_replaced() {
    let desk = Desk::new();
    std::fs::create_dir_all(desk.shared.join("www/deep")).expect("mkdir");
    desk.share("www/deep/page", "old\n");
    let options = ["--name=t", &desk.output("site/", "www")];
    desk.run(&options, "mkdir site; echo new > site/index").expect_code(8);
    desk.share("www/deep/page", "odd\n");
    desk.dam(&["land", "t", "--no-check"]).expect_code(4).says("has changed since the task began");
    assert_eq!(desk.shared("www/deep/page"), "odd\n");
    desk.run(&["--no-check", &desk.output("a/", "www"), &desk.output("b", "x")], "true")
        .expect_code(2)
        .says("a directory lands as one step");
    desk.run(&["--no-check", &desk.output("site", "www")], "echo x > site")
        .expect_code(2)
        .says("is a directory");
}

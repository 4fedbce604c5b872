//! What a task has learned lands with its change, once.

use crate::support::World;

const LEARN: &str = "echo '{\"id\":\"one\",\"text\":\"x\"}' > $DAM_LESSONS";

#[test]
fn lessons_are_in_the_commit_of_the_change_and_a_check_sees_them() {
    let world = World::new();
    let options = ["--lessons=docs/lessons.jsonl", "--check=grep -q one docs/lessons.jsonl"];
    world.run(&options, &format!("echo new > a.txt; {LEARN}")).expect_code(0);
    assert_eq!(world.git(["show", "main:docs/lessons.jsonl"]), "{\"id\":\"one\",\"text\":\"x\"}");
    assert_eq!(
        world.git(["show", "--format=", "--name-only", "main"]),
        "a.txt\ndocs/lessons.jsonl"
    );
    assert_eq!(world.git(["status", "--porcelain"]), "");
    // The same again, and another: it is there once.
    let both = format!("{LEARN}; echo '{{\"id\":\"two\"}}' >> $DAM_LESSONS; echo newer > a.txt");
    world.run(&options, &both).expect_code(0);
    let all = world.git(["show", "main:docs/lessons.jsonl"]);
    assert_eq!(all, "{\"id\":\"one\",\"text\":\"x\"}\n{\"id\":\"two\"}");
}

#[test]
fn lessons_alone_land_and_what_is_known_already_is_nothing() {
    let world = World::new();
    world.write("cofferdam.toml", "[lessons]\nfile = \"lessons.jsonl\"\n");
    world.commit("config");
    world.run(&["--no-check"], LEARN).expect_code(0).says("landed");
    let tip = world.git(["rev-parse", "main"]);
    world.run(&["--no-check"], LEARN).expect_code(0).says("holds the whole change already");
    assert_eq!(world.git(["rev-parse", "main"]), tip);
    assert_eq!(world.read("lessons.jsonl"), "{\"id\":\"one\",\"text\":\"x\"}\n");
}

#[test]
fn tasks_that_learn_at_once_are_in_no_conflict() {
    let world = World::new();
    std::thread::scope(|scope| {
        for number in 0..6 {
            let world = &world;
            scope.spawn(move || {
                let script = format!(
                    "echo '{{\"id\":\"{number}\"}}' > $DAM_LESSONS; echo {number} > file-{number}"
                );
                world.run(&["--no-check", "--lessons=lessons.jsonl"], &script).expect_code(0);
            });
        }
    });
    let text = world.read("lessons.jsonl");
    assert_eq!(text.lines().count(), 6, "{text}");
    assert_eq!(world.git(["log", "--oneline"]).lines().count(), 7);
}

#[test]
fn what_is_no_lesson_is_told_and_nothing_lands() {
    let world = World::new();
    let lessons = ["--no-check", "--lessons=lessons.jsonl", "--name=t"];
    for (script, why) in [
        ("echo no > $DAM_LESSONS", "line 1"),
        ("echo '{\"n\":1}' > $DAM_LESSONS", "line 1"),
        ("ln -s /etc/passwd $DAM_LESSONS", "is not a file"),
        ("mkdir $DAM_LESSONS", "is not a file"),
    ] {
        let script = format!("echo bad > a.txt; {script}");
        world.run(&lessons, &script).expect_code(1).says(why);
        world.dam(["drop", "t"]).expect_code(0);
    }
    world.run(&["--no-check"], LEARN).expect_code(1).says("no file was named");
    for file in ["../x", "/x", ".git/x", "cofferdam.toml", ""] {
        let option = format!("--lessons={file}");
        world.run(&["--no-check", &option], LEARN).expect_code(2);
    }
    world.run(&["--no-check", "--lessons=src"], LEARN).expect_code(4).says("it is no file there");
    world.run(&["--no-check", "--lessons=a.txt/x"], LEARN).expect_code(4);
    assert_eq!(world.subjects("main"), ["first"]);
}

#[test]
fn without_a_repository_they_go_to_a_file_of_the_hosts() {
    let world = World::new();
    let file = world.dir().join("lessons.jsonl");
    let option = format!("--lessons={}", file.display());
    let run = ["run", "--scratch", &option, "--check", "grep -q one $DAM_LESSONS", "--"];
    for _ in 0..2 {
        world.dam([&run[..], &["sh", "-c", LEARN]].concat()).expect_code(0);
    }
    let text = std::fs::read_to_string(&file).expect("read");
    assert_eq!(text, "{\"id\":\"one\",\"text\":\"x\"}\n");
}

//! Outside data that a task may read.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};

use crate::support::{Done, World};

/// A process of the host that keeps a database in WAL mode open and writes to it. One
/// row is committed, another is not.
pub struct Writer(Child);

impl Writer {
    pub fn on(path: &std::path::Path) -> Writer {
        let program = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=0)
db.execute('PRAGMA journal_mode = WAL')
db.execute('PRAGMA wal_autocheckpoint = 0')
db.execute('CREATE TABLE pairs (a, b)')
db.execute('INSERT INTO pairs VALUES (1, 1)')
db.execute('BEGIN IMMEDIATE')
db.execute('INSERT INTO pairs VALUES (2, NULL)')
print('open', flush=True)
sys.stdin.readline()
db.execute('COMMIT')
# Busy when anybody reads or writes, for it does not wait.
assert db.execute('PRAGMA wal_checkpoint(TRUNCATE)').fetchone() == (0, 0, 0)
";
        let mut child = Command::new("python3")
            .args(["-c", program])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("read");
        assert_eq!(line, "open\n");
        Writer(child)
    }

    /// Commits and brings everything into the database; fails when it would have to wait
    /// for somebody.
    pub fn end(mut self) {
        let _ = self.0.stdin.take().expect("piped").write_all(b"\n");
        assert!(self.0.wait().expect("wait").success());
    }
}

#[test]
fn a_file_is_what_it_was_when_the_task_started() {
    let world = World::new();
    world.write("../data/in.txt", "first\n");
    let path = world.dir().join("data/in.txt").display().to_string();
    // Somebody changes it after the command and before the check.
    let check = format!("grep -q first {path}");
    world
        .run(
            &["--name", "t", "--no-land", "--input", &path, "--check", &check],
            &format!("cp {path} a.txt; ! echo x >> {path}"),
        )
        .expect_code(8);
    world.write("../data/in.txt", "second\n");
    world.dam(["land", "t"]).expect_code(0);
    assert_eq!(world.read("a.txt"), "first\n");
    let input = &world.task("t")["inputs"][0];
    assert_eq!((&input["kind"], &input["dest"]), (&"file".into(), &path.as_str().into()));
    // At another place, and nowhere when it was not asked for.
    let option = format!("{path}:/srv/in");
    world
        .run(&["--no-check", "--input", &option], &format!("cp /srv/in a.txt; test ! -e {path}"))
        .expect_code(0);
    assert_eq!(world.read("a.txt"), "second\n");
}

#[test]
fn a_database_in_wal_mode_shows_a_committed_state_and_nothing_appears_beside_it() {
    let world = World::new();
    std::fs::create_dir(world.dir().join("data")).expect("mkdir");
    let path = world.dir().join("data/sales.db");
    let writer = Writer::on(&path);
    let listed = || world.sh("ls -l --full-time ../data");
    let before = listed();
    let program = format!(
        "import sqlite3; db = sqlite3.connect('file:{}?mode=ro', uri=True); print(db.execute('SELECT a, b FROM pairs').fetchall())",
        path.display()
    );
    let done = world.dam([
        "run",
        "--name",
        "t",
        "--no-check",
        "--input",
        path.to_str().expect("UTF-8"),
        "--",
        "python3",
        "-c",
        &program,
    ]);
    done.expect_code(0);
    assert_eq!(done.stdout, "[(1, 1)]\n");
    assert_eq!(listed(), before);
    assert_eq!(world.task("t")["inputs"][0]["kind"], "database");
    writer.end();
}

#[test]
fn a_directory_is_seen_through_an_overlay() {
    let world = World::new();
    world.write("../books/one.md", "1\n");
    world.write("../books/two/two.md", "2\n");
    let books = world.dir().join("books").display().to_string();
    let script = format!(
        "cat {books}/one.md {books}/two/two.md > a.txt; rm {books}/one.md; echo 3 > {books}/three.md"
    );
    // A check sees it as it is on the host, not as the task left it.
    let check = format!("test -e {books}/one.md && test ! -e {books}/three.md");
    world.run(&["--name", "t", "--input", &books, "--check", &check], &script).expect_code(0);
    assert_eq!(world.read("a.txt"), "1\n2\n");
    assert_eq!(world.sh("ls ../books"), "one.md\ntwo");
    assert_eq!(world.task("t")["isolation"]["tools"], serde_json::json!([]));
}

#[test]
fn a_directory_that_changed_waits_for_a_person() {
    let world = World::new();
    world.write("../books/one.md", "1\n");
    let books = world.dir().join("books").display().to_string();
    let options = ["--name", "t", "--no-land", "--input", &books, "--check", "true"];
    world.run(&options, "echo 1 > a.txt").expect_code(8);
    world.write("../books/one.md", "2\n");
    world.dam(["land", "t"]).expect_code(8).says("has changed since");
    assert_eq!(world.read("a.txt"), "hello\n");
}

#[test]
fn locks_on_an_input_are_the_tasks_own() {
    let world = World::new();
    world.write("../books/one.md", "1\n");
    world.write("../in", "1\n");
    let (books, file) = (world.dir().join("books"), world.dir().join("in"));
    let program = format!(
        "
import fcntl, time
held = [open('{0}/one.md', 'a'), open('{1}')]
for file in held: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print('locked', flush=True)
time.sleep(600)
",
        books.display(),
        file.display()
    );
    let mut task = world
        .dam_command([
            "run",
            "--no-check",
            "--input",
            books.to_str().expect("UTF-8"),
            "--input",
            file.to_str().expect("UTF-8"),
            "--",
            "python3",
            "-c",
            &program,
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("dam");
    let mut line = String::new();
    BufReader::new(task.stdout.take().expect("piped")).read_line(&mut line).expect("read");
    assert_eq!(line, "locked\n");
    world.sh("flock -n ../books/one.md true; flock -n ../in true");
    task.kill().expect("kill");
    task.wait().expect("wait");
}

#[test]
fn what_can_not_be_an_input_is_refused() {
    let world = World::new();
    world.write("../in", "1\n");
    world.write("../home/.cargo/x", "1\n");
    let dir = world.dir().display().to_string();
    for (input, words) in [
        (format!("{dir}/nothing"), "No such file"),
        (format!("{dir}/in:relative"), "has to be an absolute path"),
        (format!("{dir}/in:/etc/passwd"), "the home directory's or the system's"),
        (format!("{dir}/in:{dir}/home"), "the home directory's or the system's"),
        (format!("{dir}/in:{dir}/repo/in"), "its place inside is the repository's"),
        (format!("{dir}/in:{dir}/home/.cargo/y"), "a tool home's"),
        (dir.clone(), "it holds, or lies in, the repository"),
        (format!("{dir}/repo/a.txt"), "see `--carry`"),
        ("/dev/null:/srv/null".into(), "neither a file nor a directory"),
    ] {
        world.run(&["--no-check", "--input", &input], "true").expect_code(2).says(words);
    }
    let odd = world.dir().join(OsStr::from_bytes(b"\xff"));
    std::fs::write(&odd, "1").expect("write");
    let mut command = world.dam_command(["run", "--no-check", "--input"]);
    let output = command.arg(odd).args(["--", "true"]).output().expect("dam");
    Done::from(output).expect_code(2).says("its path is not UTF-8");
    world.write("../broken.db", "SQLite format 3\0 and nothing more");
    world
        .run(&["--no-check", "--input", "../broken.db"], "true")
        .expect_code(2)
        .says("can't be read");
}

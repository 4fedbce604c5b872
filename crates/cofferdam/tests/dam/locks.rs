//! Many tasks that lock whatever they can, for ever: nobody outside waits for them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use crate::inputs::Writer;
use crate::support::{World, fingerprint};
use crate::tools::{a_crate, toolchain};

/// Reads the database in its first argument, locks each file in it and in the other
/// arguments in both ways that there are, and stays.
const PROGRAM: &str = "
import fcntl, os, resource, sqlite3, sys, time
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
database = sqlite3.connect(f'file:{sys.argv[1]}?mode=ro', uri=True)
rows = database.execute('SELECT a, b FROM pairs').fetchall()
database.close()
files = {}
for place in sys.argv[1:]:
    found = [place] if os.path.isfile(place) else []
    for top, dirs, names in os.walk(place):
        found += [os.path.join(top, name) for name in names]
    assert found, place
    for path in found:
        if not os.path.islink(path):
            at = os.stat(path)
            files[at.st_dev, at.st_ino] = open(path, 'rb')
for file in files.values():
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
print('locked', rows, flush=True)
time.sleep(100000)
";

/// Supervisors, which are killed when the test fails.
struct Tasks(Vec<Child>);

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &mut self.0 {
            let _ = task.kill();
            let _ = task.wait();
        }
    }
}

#[test]
fn thirty_two_tasks_that_lock_everything_keep_nobody_waiting() {
    const TASKS: usize = 32;
    let mut world = World::new();
    toolchain(&world);
    world.prefer(&world.home().join(".cargo/bin").display().to_string());
    a_crate(&world);
    // What cargo and SQLite lock is there already.
    world.write("../home/.cargo/.package-cache", "");
    world.write("../books/one.md", "1\n");
    std::fs::create_dir(world.dir().join("data")).expect("mkdir");
    let database = world.dir().join("data/sales.db");
    let writer = Writer::on(&database);
    let data = || world.sh("ls -l --full-time ../data");
    let (data_before, books_before) = (data(), fingerprint(&world.dir().join("books")));

    let path = |below: &str| world.dir().join(below).display().to_string();
    let (database, books) = (path("data/sales.db"), path("books"));
    let (cargo, rustup) = (path("home/.cargo"), path("home/.rustup"));
    let start = |number: usize| {
        let name = format!("t{number}");
        let options =
            ["run", "--no-check", "--name", &name, "--input", &database, "--input", &books];
        let command = ["--", "python3", "-c", PROGRAM, &database, &books, &cargo, &rustup];
        let mut run = world.dam_command([&options[..], &command].concat());
        run.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("dam")
    };
    let mut tasks = Tasks((0..TASKS).map(start).collect());
    for task in &mut tasks.0 {
        let mut line = String::new();
        BufReader::new(task.stdout.take().expect("piped")).read_line(&mut line).expect("read");
        assert_eq!(line, "locked [(1, 1)]\n");
    }
    assert_eq!(data(), data_before);

    // It ends at all, and says when it has to wait for a lock.
    let said = world.sh("timeout 300 cargo build --offline 2>&1");
    assert!(said.contains("Finished") && !said.contains("Blocking"), "{said}");
    writer.end();
    // Another writer, in the mode in which readers of the database are in the way.
    world.write(
        "../writer.py",
        "import sqlite3, sys\n\
         db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=0)\n\
         db.execute('PRAGMA journal_mode = DELETE')\n\
         db.execute('INSERT INTO pairs VALUES (3, 3)')\n\
         print(db.execute('SELECT count(*) FROM pairs').fetchone()[0])\n",
    );
    assert_eq!(world.sh(&format!("python3 ../writer.py '{database}'; ls ../data")), "3\nsales.db");
    let cargo_before = fingerprint(cargo.as_ref());

    for number in 0..TASKS {
        world.dam(["stop", &format!("t{number}")]).expect_code(0);
    }
    for task in &mut tasks.0 {
        assert_eq!(task.wait().expect("wait").code(), Some(130));
    }
    assert_eq!(world.sh("ls ../data"), "sales.db");
    assert_eq!(fingerprint(&world.dir().join("books")), books_before);
    assert_eq!(fingerprint(cargo.as_ref()), cargo_before);
}

//! The nightly report: a database that others write to, a file that others read, and a
//! clock that fires 32 times.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use super::Desk;
use crate::support::Done;

/// A process that has a database in WAL mode open and commits to it again and again. It
/// never waits: whoever keeps it from writing, or from bringing its log into the database,
/// makes it fail.
struct Sales(Child);

impl Sales {
    fn on(path: &std::path::Path) -> Sales {
        let program = "
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=0)
db.execute('PRAGMA journal_mode = WAL')
db.execute('CREATE TABLE sales (item, number)')
number = 0
while True:
    db.execute('BEGIN IMMEDIATE')
    # Both or none: their sum is 0 in every committed state.
    db.execute('INSERT INTO sales VALUES (?, ?)', ('a', number))
    db.execute('INSERT INTO sales VALUES (?, ?)', ('b', -number))
    db.execute('COMMIT')
    if number % 50 == 20:
        busy, _, _ = db.execute('PRAGMA wal_checkpoint(PASSIVE)').fetchone()
        assert busy == 0
    if number == 0:
        print('open', flush=True)
    number += 1
    time.sleep(0.002)
";
        let mut child = Command::new("python3")
            .args(["-c", program])
            .arg(path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("read");
        assert_eq!(line, "open\n");
        Sales(child)
    }

    fn is_at_work(&mut self) -> bool {
        self.0.try_wait().expect("wait").is_none()
    }
}

impl Drop for Sales {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const BUILD_REPORT: &str = "exec python3 - \"$1\" <<'END'
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
rows = db.execute('SELECT item, count(*), sum(number) FROM sales GROUP BY item').fetchall()
with open('report.csv', 'w') as report:
    report.write('item,count,sum\\n')
    for row in rows:
        report.write('%s,%d,%d\\n' % row)
END";

const VALIDATE: &str = "test \"$(head -n 1 \"$1\")\" = item,count,sum &&
awk -F, 'NR > 1 { sum += $3; rows += 1 } END { exit !(rows == 2 && sum == 0) }' \"$1\"";

fn fire(desk: &Desk, key: &str) -> Done {
    let output = desk.output("report.csv", "inventory.csv");
    let run = ["run", "--scratch", "--key", key, "--input", "sales.db", "--input", "./tools:tools"];
    let check = ["--check", "./tools/validate report.csv"];
    let rest = ["--", "./tools/build-report", "sales.db"];
    desk.dam(&[&run[..], &[&output], &check, &rest].concat())
}

#[test]
fn a_report_fired_by_32_at_once_is_written_once_and_readers_see_whole_ones() {
    let desk = Desk::new();
    desk.script("tools/build-report", BUILD_REPORT);
    desk.script("tools/validate", VALIDATE);
    desk.share("inventory.csv", "item,count,sum\na,0,0\nb,0,0\n");
    let mut sales = Sales::on(&desk.here.join("sales.db"));
    let path = desk.shared.join("inventory.csv");
    let over = AtomicBool::new(false);
    let done: Vec<Done> = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !over.load(Ordering::Relaxed) {
                let text = std::fs::read_to_string(&path).expect("it is always there");
                let lines: Vec<&str> = text.lines().collect();
                assert_eq!((lines.len(), lines[0]), (3, "item,count,sum"), "{text}");
                assert!(text.ends_with('\n'), "{text}");
                reads += 1;
            }
            reads
        });
        let fired: Vec<_> =
            (0..32).map(|_| scope.spawn(|| fire(&desk, "inventory-2026-11-30"))).collect();
        let done = fired.into_iter().map(|thread| thread.join().expect("run")).collect();
        // The next days.
        for day in 1..4 {
            fire(&desk, &format!("inventory-2026-12-0{day}")).expect_code(0);
        }
        over.store(true, Ordering::Relaxed);
        assert!(reader.join().expect("reader") > 100);
        done
    });
    for done in &done {
        done.expect_code(0);
    }
    let replayed = done.iter().filter(|done| done.stderr.contains("replayed: ")).count();
    assert_eq!(replayed, 31);
    assert!(sales.is_at_work(), "a writer had to wait");
    let list = desk.dam(&["--format", "json", "list"]);
    let tasks: serde_json::Value = serde_json::from_str(&list.stdout).expect("JSON");
    let tasks = tasks.as_array().expect("tasks");
    assert_eq!(tasks.len(), 4);
    assert!(tasks.iter().all(|task| task["state"] == "landed"), "{tasks:?}");
    // Nothing appeared beside the database or the report.
    let names = |dir: &std::path::Path| {
        let list = std::fs::read_dir(dir).expect("list");
        let mut names: Vec<String> = list
            .map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(&desk.here), ["sales.db", "sales.db-shm", "sales.db-wal", "tools"]);
    assert_eq!(names(&desk.shared), ["inventory.csv"]);
}

#[test]
fn a_report_that_is_wrong_is_never_seen_by_a_reader() {
    let desk = Desk::new();
    desk.script("tools/build-report", "echo half > report.csv");
    desk.script("tools/validate", VALIDATE);
    desk.put("sales.db", "");
    desk.share("inventory.csv", "yesterday's\n");
    fire(&desk, "monday").expect_code(3).says("check `./tools/validate report.csv` failed");
    assert_eq!(desk.shared("inventory.csv"), "yesterday's\n");
    // Nothing was done, so the same key can be tried again, mended.
    desk.script("tools/build-report", "printf 'item,count,sum\\na,1,2\\nb,1,-2\\n' > report.csv");
    fire(&desk, "monday").expect_code(0);
    assert!(desk.shared("inventory.csv").ends_with("b,1,-2\n"));
}

//! A database per task.

use super::Desk;
use crate::inputs::Writer;

const ADD: &str = "python3 -c \"
import sqlite3
db = sqlite3.connect('shop.db')
db.execute('INSERT INTO items VALUES (2)')
db.commit()
print(db.execute('SELECT count(*) FROM items').fetchone()[0])
db.close()\"";

/// A database that nobody has open.
fn shop(desk: &Desk) {
    desk.world.sh_in(
        &desk.shared,
        "python3 -c \"
import sqlite3
db = sqlite3.connect('shop.db')
db.execute('CREATE TABLE items (number)')
db.execute('INSERT INTO items VALUES (1)')
db.commit()\"",
    );
}

fn count(desk: &Desk) -> String {
    let script = "python3 -c \"import sqlite3; \
                  print(sqlite3.connect('shop.db').execute('SELECT count(*) FROM items').fetchone()[0])\"";
    desk.world.sh_in(&desk.shared, script)
}

#[test]
fn a_copy_of_a_database_is_worked_on_and_swapped_in() {
    let desk = Desk::new();
    shop(&desk);
    let input = format!("--input={}:shop.db", desk.shared.join("shop.db").display());
    let options = ["--name=t", &input, &desk.output("shop.db", "shop.db")];
    let done = desk.run(&options, ADD);
    done.expect_code(8);
    assert_eq!((done.stdout.as_str(), count(&desk).as_str()), ("2\n", "1"));
    desk.dam(&["land", "t", "--check", "test -s shop.db"]).expect_code(0);
    assert_eq!(count(&desk), "2");
    // What somebody wrote meanwhile is not lost.
    desk.run(&options, ADD).expect_code(8);
    desk.world.sh_in(&desk.shared, &ADD.replace("VALUES (2)", "VALUES (9)"));
    desk.dam(&["land", "t", "--no-check"]).expect_code(4).says("has changed since the task began");
    assert_eq!(count(&desk), "3");
    assert_eq!(std::fs::read_dir(&desk.shared).expect("list").count(), 1);
}

#[test]
fn a_database_that_is_in_use_is_never_replaced() {
    let desk = Desk::new();
    let writer = Writer::on(&desk.shared.join("shop.db"));
    let input = format!("--input={}:shop.db", desk.shared.join("shop.db").display());
    let work = "cp shop.db mine.db; mv mine.db shop.db; true";
    let output = desk.output("shop.db", "shop.db");
    desk.run(&["--no-check", &input, &output], work).expect_code(2).says("a database in use");
    // It is opened while the task runs.
    let other = Desk::new();
    shop(&other);
    let input = format!("--input={}:shop.db", other.shared.join("shop.db").display());
    let output = other.output("shop.db", "shop.db");
    other.run(&["--name=t", &input, &output], ADD).expect_code(8);
    std::fs::write(other.shared.join("shop.db-wal"), "a log").expect("write");
    other.dam(&["land", "t", "--no-check"]).expect_code(4).says("a database in use");
    writer.end();
}

/// The recipe of the guide: a server on a loopback of its own, from a directory that a
/// person has prepared once.
#[test]
fn a_server_runs_in_a_context_from_a_directory_that_stays_as_it_was() {
    let programs = ["initdb", "pg_ctl", "psql"];
    let desk = Desk::new();
    let find = |name: &str| {
        desk.world.sh(&format!("command -v {name} || ls /usr/lib/postgresql/*/bin/{name} 2> /dev/null | tail -n 1 || true"))
    };
    if programs.iter().any(|name| find(name).is_empty()) {
        println!("PostgreSQL is not installed here: nothing was tried");
        return;
    }
    let bin = std::path::PathBuf::from(find("pg_ctl"));
    let bin = std::fs::canonicalize(&bin).expect("pg_ctl");
    let bin = bin.parent().expect("a directory").display().to_string();
    // A server refuses to be root's; inside nobody is.
    let prepare = desk.run(
        &["--no-check", &desk.output("template/", "template")],
        &format!(
            "{bin}/initdb -D template -U postgres -A trust > log 2>&1 || {{ cat log; exit 1; }}"
        ),
    );
    prepare.expect_code(0);
    let template = desk.shared.join("template");
    let input = format!("--input={}:db", template.display());
    let serve = format!(
        "set -e; mkdir $HOME/data; cp -a db/. $HOME/data; chmod 700 $HOME/data
         {bin}/pg_ctl -D $HOME/data -o \"-k /tmp -c listen_addresses=127.0.0.1\" -w -l $HOME/log start > out 2>&1 || {{ cat out $HOME/log; exit 1; }}
         {bin}/psql -h 127.0.0.1 -U postgres -qAtc 'create table t (n int); insert into t values (1), (2); select sum(n) from t' > r
         {bin}/pg_ctl -D $HOME/data -m fast stop > out 2>&1"
    );
    let before = Desk::tree(&template);
    // Two at once: each has a port 5432 of its own.
    std::thread::scope(|scope| {
        for name in ["one", "two"] {
            let (desk, input, serve) = (&desk, &input, &serve);
            scope.spawn(move || {
                desk.run(&["--no-check", input, &desk.output("r", name)], serve).expect_code(0);
            });
        }
    });
    assert_eq!((desk.shared("one"), desk.shared("two")), ("3\n".into(), "3\n".into()));
    assert_eq!(Desk::tree(&template), before);
}

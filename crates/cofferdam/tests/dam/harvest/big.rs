//! Much and large.

use super::{prepared, same};
use crate::support::Done;

#[test]
fn five_thousand_changed_files() {
    same(
        "mkdir m; for i in $(seq 2500); do echo $i > m/$i; done",
        "python3 -c 'import os\nfor i in range(1, 2501):\n  open(f\"m/{i}\", \"a\").write(\"more\\n\")\nos.makedirs(\"n/o\")\nfor i in range(2500): open(f\"n/o/{i}\", \"w\").write(f\"{i}\\n\")'",
    );
}

/// Streams all the way: `dam` never holds a file, nor what it becomes.
#[test]
fn a_large_file_takes_no_memory() {
    const LARGE: usize = 300_000_000;
    const MOST_KIB: u64 = 100 << 10;
    let world = prepared("true", "true", false);
    let mut command = world.dam_command(["run", "--no-check", "--", "sh", "-c"]);
    command.arg(format!("head -c {LARGE} /dev/urandom > large"));
    let child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("dam");
    // Looked at again and again while it runs: the mark only grows.
    let status = format!("/proc/{}/status", child.id());
    let watch = std::thread::spawn(move || {
        let mut peak = 0;
        while let Some(mark) = std::fs::read_to_string(&status).ok().as_deref().and_then(high_water)
        {
            peak = mark.max(peak);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        peak
    });
    let done = Done::from(child.wait_with_output().expect("dam"));
    let peak = watch.join().expect("watch");
    done.expect_code(0);
    assert_eq!(world.git(["cat-file", "-s", "main:large"]), LARGE.to_string());
    assert!((1..MOST_KIB).contains(&peak), "{peak} KiB");
}

/// The most memory that a process has had, in KiB; none once it has ended.
fn high_water(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

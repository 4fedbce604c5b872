//! What a publication costs. Prints JSON: microseconds of each round, bytes.
//!
//! - `publish file DIR BYTES ROUNDS`: over a file, beside what a person would write by
//!   hand: temporary file, fsync, rename, fsync of the directory. Once over a file that
//!   nobody touched for some seconds, and again over the one written by that, which has to
//!   be read twice.
//! - `publish tree DIR FILES ROUNDS`: the commit of a directory of so many files, when all
//!   of it is staged: over one of ten files, and over one of as many; and what it would be
//!   by hand, an exchange of the names and a sync.
//! - `publish sparse DIR BYTES` and `publish entries DIR ENTRIES`: the largest resident set
//!   of this process when it published a file that is one hole, or a directory.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cofferdam_tree::target::file::Content;
use cofferdam_tree::target::tree::{Keep, Owners, SetId, Tree};
use cofferdam_tree::{FileTarget, TreeTarget};
use rustix::fs::{RenameFlags, renameat_with};

type Failed = Box<dyn std::error::Error>;

const USAGE: &str = "usage: publish file|tree|sparse|entries DIR NUMBER [ROUNDS]";

/// After so long a file counts as one that nobody touches.
const SETTLES: Duration = Duration::from_millis(3200);

fn main() -> Result<(), Failed> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (what, dir, number, rounds) = match args[..] {
        [what, dir, number] => (what, dir, number.parse()?, 1),
        [what, dir, number, rounds] => (what, dir, number.parse()?, rounds.parse()?),
        _ => return Err(USAGE.into()),
    };
    let dir = std::fs::canonicalize(dir)?;
    let found = match what {
        "file" => files(&dir, number, rounds)?,
        "tree" => trees(&dir, number, rounds)?,
        "sparse" => {
            File::create(dir.join("result"))?.set_len(number as u64)?;
            publish(&dir.join("result"), &dir.join("sparse"))?;
            serde_json::json!({ "resident": resident()? })
        }
        "entries" => {
            fill(&dir.join("result"), number)?;
            commit(&dir.join("entries"), &dir.join("result"))?;
            serde_json::json!({ "resident": resident()? })
        }
        _ => return Err(USAGE.into()),
    };
    println!("{found}");
    Ok(())
}

fn timed(step: impl FnOnce() -> Result<(), Failed>) -> Result<u64, Failed> {
    let begun = Instant::now();
    step()?;
    Ok(u64::try_from(begun.elapsed().as_micros())?)
}

fn files(dir: &Path, bytes: usize, rounds: usize) -> Result<serde_json::Value, Failed> {
    let content: Vec<u8> = (0_u8..251).cycle().take(bytes).collect();
    let result = dir.join("result");
    std::fs::write(&result, &content)?;
    let places = |kind: &str| -> Vec<PathBuf> {
        (0..rounds).map(|round| dir.join(format!("{kind}-{round}"))).collect()
    };
    let (ours, by_hand) = (places("ours"), places("by-hand"));
    for place in ours.iter().chain(&by_hand) {
        std::fs::write(place, &content)?;
    }
    rustix::fs::syncfs(File::open(dir)?)?;
    std::thread::sleep(SETTLES);
    let mut took = [const { Vec::new() }; 4];
    // Taken in turns: whatever else the machine does hits all.
    for (ours, by_hand) in ours.iter().zip(&by_hand) {
        took[0].push(timed(|| publish(&result, ours))?);
        took[1].push(timed(|| write(&content, dir, by_hand))?);
        took[2].push(timed(|| publish(&result, ours))?);
        took[3].push(timed(|| write(&content, dir, by_hand))?);
    }
    let [ours, by_hand, ours_again, by_hand_again] = took;
    Ok(serde_json::json!({
        "ours": ours,
        "by hand": by_hand,
        "ours, again": ours_again,
        "by hand, again": by_hand_again,
    }))
}

/// All that a landing does with the place: it is looked at, staged beside, looked at
/// again, replaced.
fn publish(result: &Path, place: &Path) -> Result<(), Failed> {
    let target = FileTarget::open(place)?;
    let file = File::open(result)?;
    let content = Content { file: &file, executable: false, umask: 0o022 };
    let (old, _) = target.look_and_stage(".staged".as_ref(), content, &mut |_| true)?;
    let (fingerprint, stamp) = old.map(|old| (old.fingerprint.clone(), old.stamp())).unzip();
    target.commit_seen(".staged".as_ref(), fingerprint.as_ref(), stamp.flatten())?;
    Ok(())
}

fn write(content: &[u8], dir: &Path, place: &Path) -> Result<(), Failed> {
    let temp = dir.join(".by-hand.tmp");
    let mut file = File::create(&temp)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&temp, place)?;
    File::open(dir)?.sync_all()?;
    Ok(())
}

fn trees(dir: &Path, files: usize, rounds: usize) -> Result<serde_json::Value, Failed> {
    let result = dir.join("result");
    fill(&result, files)?;
    let (same, one, other) = (dir.join("same"), dir.join("one"), dir.join("other"));
    for place in [&same, &one, &other] {
        fill(place, files)?;
    }
    let mut took = [const { Vec::new() }; 3];
    for round in 0..rounds {
        let few = dir.join(format!("few-{round}"));
        fill(&few, 10)?;
        took[0].push(commit(&few, &result)?);
        took[1].push(commit(&same, &result)?);
        took[2].push(timed(|| {
            let open = File::open(dir)?;
            renameat_with(&open, &one, &open, &other, RenameFlags::EXCHANGE)?;
            Ok(open.sync_all()?)
        })?);
    }
    let [few, same, by_hand] = took;
    Ok(serde_json::json!({ "over ten": few, "over as many": same, "by hand": by_hand }))
}

/// Stages a directory and commits it; tells how long the commit took.
fn commit(place: &Path, result: &Path) -> Result<u64, Failed> {
    let target = TreeTarget::open(place)?;
    let dir = File::open(result)?;
    let keep = Keep { owners: Owners::Ours, set_id: SetId::Dropped, sync: true };
    let tree = Tree { dir: dir.as_fd(), keep, like_old: false, umask: 0o022 };
    let staged = OsStr::new(".staged");
    let old = target.look(&mut |_| true)?;
    let new = target.stage(staged, tree, old.as_ref(), &mut |_| true)?;
    let old = old.map(|old| old.fingerprint);
    timed(|| Ok(target.commit(staged, old.as_ref(), &new)?))
}

/// A new directory with so many small files, a hundred in each of its directories.
fn fill(dir: &Path, files: usize) -> Result<(), Failed> {
    std::fs::create_dir(dir)?;
    for number in 0..files {
        let group = dir.join(format!("of{}", number / 100));
        if number % 100 == 0 {
            std::fs::create_dir(&group)?;
        }
        std::fs::write(group.join(format!("file{number}")), format!("{number}\n"))?;
    }
    Ok(())
}

/// The largest resident set of this process, in bytes.
fn resident() -> Result<u64, Failed> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? * 1024)
}

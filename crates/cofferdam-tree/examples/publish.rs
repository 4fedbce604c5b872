//! What a publication over a file costs, beside what a person would write by hand:
//! temporary file, fsync, rename, fsync of the directory. Prints JSON, microseconds each,
//! as medians and ninth deciles: over a file that nobody touched for some seconds, and
//! over one that was written just now, which has to be read twice.
//!
//! `publish DIR BYTES ROUNDS`

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cofferdam_tree::FileTarget;
use cofferdam_tree::target::file::Content;

type Failed = Box<dyn std::error::Error>;

/// After so long a file counts as one that nobody touches.
const SETTLES: Duration = Duration::from_millis(3200);

fn main() -> Result<(), Failed> {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().ok_or("usage: publish DIR BYTES ROUNDS");
    let dir = std::fs::canonicalize(next()?)?;
    let (bytes, rounds): (usize, usize) = (next()?.parse()?, next()?.parse()?);
    let content: Vec<u8> = (0_u8..251).cycle().take(bytes).collect();
    let result = dir.join("result");
    std::fs::write(&result, &content)?;
    let places = |kind: &str| -> Vec<PathBuf> {
        (0..rounds).map(|round| dir.join(format!("{kind}-{round}"))).collect()
    };
    let (ours, by_hand) = (places("ours"), places("by-hand"));
    for place in ours.iter().chain(&by_hand) {
        File::create(place)?.write_all(&content)?;
    }
    rustix::fs::syncfs(File::open(&dir)?)?;
    std::thread::sleep(SETTLES);
    let mut took = [const { Vec::new() }; 4];
    // Taken in turns: whatever else the machine does hits all.
    for (ours, by_hand) in ours.iter().zip(&by_hand) {
        took[0].push(timed(|| publish(&result, ours))?);
        took[1].push(timed(|| write(&content, &dir, by_hand))?);
        took[2].push(timed(|| publish(&result, ours))?);
        took[3].push(timed(|| write(&content, &dir, by_hand))?);
    }
    let [ours, by_hand, ours_again, by_hand_again] = took;
    let found = serde_json::json!({
        "bytes": bytes,
        "ours_us": ours,
        "by_hand_us": by_hand,
        "ours_again_us": ours_again,
        "by_hand_again_us": by_hand_again,
    });
    println!("{found}");
    Ok(())
}

fn timed(step: impl FnOnce() -> Result<(), Failed>) -> Result<u64, Failed> {
    let begun = Instant::now();
    step()?;
    Ok(u64::try_from(begun.elapsed().as_micros())?)
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

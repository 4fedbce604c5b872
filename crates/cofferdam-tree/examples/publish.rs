//! What a publication over a file costs, beside what a person would write by hand:
//! temporary file, fsync, rename, fsync of the directory. Prints JSON, microseconds each.
//!
//! `publish DIR BYTES ROUNDS`

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use cofferdam_tree::FileTarget;
use cofferdam_tree::target::file::Content;

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().ok_or("usage: publish DIR BYTES ROUNDS");
    let dir = std::fs::canonicalize(next()?)?;
    let (bytes, rounds): (usize, usize) = (next()?.parse()?, next()?.parse()?);
    let content: Vec<u8> = (0_u8..251).cycle().take(bytes).collect();
    let result = dir.join("result");
    std::fs::write(&result, &content)?;
    let (mut ours, mut by_hand) = (Vec::new(), Vec::new());
    // Taken in turns: whatever else the machine does hits both.
    for _ in 0..rounds {
        ours.push(timed(|| publish(&result, &dir.join("ours")))?);
        by_hand.push(timed(|| write(&content, &dir, "by-hand"))?);
    }
    let (ours, by_hand) = (median(ours), median(by_hand));
    println!("{}", serde_json::json!({ "bytes": bytes, "ours_us": ours, "by_hand_us": by_hand }));
    Ok(())
}

fn timed(step: impl FnOnce() -> Result<(), Failed>) -> Result<u64, Failed> {
    let begun = Instant::now();
    step()?;
    Ok(u64::try_from(begun.elapsed().as_micros())?)
}

fn median(mut all: Vec<u64>) -> u64 {
    all.sort_unstable();
    all[all.len() / 2]
}

/// All that a landing does with the place: it is looked at, staged beside, looked at
/// again, replaced.
fn publish(result: &Path, place: &Path) -> Result<(), Failed> {
    let target = FileTarget::open(place)?;
    let old = target.look(&mut |_| true)?;
    let file = File::open(result)?;
    let content = Content { file: &file, executable: false, umask: 0o022 };
    target.stage(".staged".as_ref(), content, old.as_ref(), &mut |_| true)?;
    target.commit(".staged".as_ref(), old.as_ref().map(|old| &old.fingerprint))?;
    Ok(())
}

fn write(content: &[u8], dir: &Path, name: &str) -> Result<(), Failed> {
    let temp = dir.join(".by-hand.tmp");
    let mut file = File::create(&temp)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&temp, dir.join(name))?;
    File::open(dir)?.sync_all()?;
    Ok(())
}

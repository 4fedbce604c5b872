//! Lessons: records that a task wants remembered, for the next run of a loop.
//!
//! The command writes them to `$DAM_LESSONS`, JSON objects with an `id`, a line each. They
//! land with its change, in one commit: neither can be there without the other, whatever
//! crashes. They are added to what the file of lessons holds *on the target's tip of now*,
//! by their ids, so two tasks that have both learned something are in no conflict, and
//! nothing is there twice.

use std::fs::File;

use cofferdam_git::mode::{FILE as REGULAR, TYPE};
use cofferdam_git::{Objects, TreeId, merge};
use cofferdam_tree::target::append::Records;
use cofferdam_tree::target::copy_content;
use cofferdam_tree::walk::open_file_below;
use cofferdam_tree::{FileTarget, WalkError};

use crate::Error;
use crate::context::Context;
use crate::error::IoContext;
use crate::job::Job;

/// What `$DAM_LESSONS` is called.
pub(crate) const FILE: &str = "lessons.jsonl";
/// Where the records of a task are, in its directory.
const TAKEN: &str = "lessons";
/// More a task does not learn, in bytes.
const MOST: u64 = 16 << 20;

/// What a context holds.
pub(crate) enum Lessons {
    /// Nothing.
    None,
    /// Records.
    Some,
    /// Something that is none, and why.
    Wrong(String),
}

/// Takes the lessons out of a context.
pub(crate) fn take(job: &Job<'_>, context: &Context) -> Result<Lessons, Error> {
    let taken = job.dir.path().join(TAKEN);
    match std::fs::remove_file(&taken) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).at("remove", taken);
        }
        _ => {}
    }
    let out = context.dir.join("out");
    let wrong = |why: &str| Ok(Lessons::Wrong(format!("`$DAM_LESSONS` {why}")));
    let file = match open_file_below(File::open(&out).at("open", &out)?, FILE.as_bytes()) {
        Ok(None) => return Ok(Lessons::None),
        Ok(Some(file)) => file,
        Err(WalkError::NotAFile { .. }) => return wrong("is not a file"),
        Err(error) => return wrong(&format!("can't be read: {error}")),
    };
    match file.metadata().at("look at", &out)?.len() {
        0 => return Ok(Lessons::None),
        size if size > MOST => return wrong("is larger than 16 MiB"),
        _ => {}
    }
    let Some(place) = &job.request.lessons else {
        return wrong("has records, and no file was named that they go to; see `--lessons`");
    };
    if let Err(error) = Records::read(&file, place.as_ref(), &mut |_| true) {
        return wrong(&format!("can't be appended: {error}"));
    }
    let copy = File::create(&taken).at("make", &taken)?;
    copy_content(&file, &copy, &mut |_| true).at("copy to", taken)?;
    Ok(Lessons::Some)
}

/// A candidate's tree with the lessons of the task; in words, why that can't be.
pub(crate) fn added(
    job: &Job<'_>,
    objects: &mut Objects,
    tree: TreeId,
) -> Result<Result<TreeId, String>, Error> {
    let taken = job.dir.path().join(TAKEN);
    let (Some(place), true) = (&job.request.lessons, taken.exists()) else { return Ok(Ok(tree)) };
    let records = File::open(&taken).at("open", &taken)?;
    let path = place.as_bytes().to_vec();
    let mut wanted = vec![path.clone()];
    wanted.extend(above(&path));
    let mut mode = REGULAR | 0o644;
    let mut old = None;
    for (found, found_mode, oid) in objects.entries(&tree, &wanted)? {
        let is_dir = found_mode & TYPE == cofferdam_git::mode::DIR;
        match (found == path, found_mode & TYPE == REGULAR) {
            (true, true) => (mode, old) = (found_mode, objects.blob(&oid, u64::MAX)?),
            (false, false) if is_dir => {}
            _ => return Ok(Err(format!("`{place}` can't hold lessons: it is no file there"))),
        }
    }
    let scratch = job.dir.path().join("merge");
    std::fs::create_dir_all(&scratch).at("make", &scratch)?;
    let added = add(job, &tree, (place, mode), old.as_deref(), &records, &scratch);
    std::fs::remove_dir_all(&scratch).at("remove", &scratch)?;
    Ok(Ok(added?.unwrap_or(tree)))
}

/// The directories above a path.
fn above(path: &[u8]) -> Vec<Vec<u8>> {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    slashes.map(|(at, _)| path[..at].to_vec()).collect()
}

/// The tree with the records added; none when all are there.
fn add(
    job: &Job<'_>,
    tree: &TreeId,
    (place, mode): (&str, u32),
    old: Option<&[u8]>,
    records: &File,
    scratch: &std::path::Path,
) -> Result<Option<TreeId>, Error> {
    const NEW: &str = "new";
    let file = scratch.join("lessons");
    if let Some(old) = old {
        std::fs::write(&file, old).at("write", &file)?;
    }
    let target = FileTarget::open(&file)?;
    let records = Records::read(records, place.as_ref(), &mut |_| true)?;
    let staged = records.stage(&target, NEW.as_ref(), 0o022, &mut |_| true)?;
    if staged.new.is_none() {
        return Ok(None);
    }
    let new = std::fs::read(scratch.join(NEW)).at("read", &file)?;
    Ok(Some(merge::with_file(&job.source.store, tree, (place, mode), new, scratch)?))
}

//! Attributes that come in the same change as files which they would convert.
//!
//! The base's attributes decide how a file becomes a blob: git is started with no
//! attributes that a task could have written. Where a change brings others along, git
//! would have made another blob of some of its files: a pointer of Git LFS, other line
//! endings. Such a change is refused by name rather than landed as something else.

use std::path::Path;

use super::Refusal;
use crate::attributes::{AttributeReader, OfPath, Text, is_attributes};
use crate::difference::diff;
use crate::mode::{FILE, TYPE};
use crate::{GitError, Objects, Oid, PersonConfig, Store, TreeId, lfs, merge};

/// Looks for a file of the change from `base` to `tree` that git would have made another
/// blob of by the attributes in `tree`. `before` are the base's, alone in a directory;
/// `converted` is what these have made another blob of.
///
/// # Errors
/// [`Refusal`] that names it; [`GitError`] otherwise.
pub(super) fn look(
    store: &Store,
    config: &PersonConfig,
    (base, tree): (&TreeId, &TreeId),
    before: &Path,
    converted: &[Vec<u8>],
) -> Result<(), GitError> {
    let scratch = super::commit::Scratch::new(store.dir())?;
    merge::tip_attributes(store, base, tree, before, scratch.path())?;
    let mut before = AttributeReader::start(store, before)?;
    let mut after = AttributeReader::start(store, scratch.path())?;
    let mut objects = Objects::start(store)?;
    for difference in diff(store, base, tree, false)? {
        let difference = difference?;
        let path = difference.path.as_slice();
        if difference.new_mode & TYPE != FILE || is_attributes(path) {
            continue;
        }
        let (was, is) = (before.of(path)?, after.of(path)?);
        let by_old_rules = was != is && converted.contains(&difference.path);
        let has_cr = || has_cr(&mut objects, &difference.new);
        if let Some(why) = differs(&was, &is, config, by_old_rules, has_cr)? {
            let why = format!(
                "{why} by attributes that come in the same change: land `.gitattributes` first"
            );
            return Err(Refusal::path(path, why).into());
        }
    }
    before.end()?;
    after.end()?;
    objects.end()
}

/// What would have become of a file, in words, when that is something else.
fn differs(
    was: &OfPath,
    is: &OfPath,
    config: &PersonConfig,
    by_old_rules: bool,
    has_cr: impl FnOnce() -> Result<bool, GitError>,
) -> Result<Option<String>, GitError> {
    let kept_by_lfs = |of_path: &OfPath| of_path.filter.as_deref() == Some(lfs::FILTER);
    let runs = is.filter.as_ref().filter(|name| config.has_filter(name));
    Ok(if kept_by_lfs(is) && !kept_by_lfs(was) {
        Some("is to be kept by Git LFS".into())
    } else if kept_by_lfs(was) && !kept_by_lfs(is) {
        Some("is to be kept by Git LFS no more".into())
    } else if let Some(filter) = runs.filter(|_| was.filter != is.filter) {
        Some(format!("would have to pass through the filter `{filter}`"))
    } else if by_old_rules || (is.always && !was.always) {
        Some("is to be converted otherwise".into())
    } else if matches!(is.text, Text::Yes | Text::Auto) && was.text != is.text && has_cr()? {
        Some("is to have other line endings".into())
    } else {
        None
    })
}

fn has_cr(objects: &mut Objects, blob: &Oid) -> Result<bool, GitError> {
    use std::io::BufRead;
    let mut bytes = std::io::BufReader::with_capacity(1 << 16, objects.open(blob, b"")?);
    loop {
        let some = bytes.fill_buf().map_err(crate::objects::broken)?;
        match some.len() {
            0 => return Ok(false),
            _ if some.contains(&b'\r') => return Ok(true),
            count => bytes.consume(count),
        }
    }
}

//! Files that a runner imports in place of a module of its own (`tests/json.py`), and
//! those that it runs before a pinned one.

use std::collections::BTreeSet;

use cofferdam_git::difference::{Changes, Difference};
use cofferdam_git::{GitError, Objects, TreeId, pattern};
use serde::Deserialize;

use super::{AT_ONCE, LINK, LIST, TYPE, below, name, parent};
use crate::Error;
use crate::request::Check;

/// What a language imports by name, from the directory of what it runs first.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shadow {
    #[expect(dead_code, reason = "for the reader of the list")]
    name: String,
    programs: Vec<String>,
    marks: Vec<String>,
    endings: Vec<String>,
    package: String,
    pub(super) modules: Vec<String>,
}

impl Shadow {
    /// The directory in which a new file is one of the modules. A link is one whatever it
    /// leads to: a directory is a module as well.
    fn dir_of<'a>(&self, new: &'a Difference) -> Option<&'a [u8]> {
        let (mut dir, mut file) = (parent(&new.path), name(&new.path));
        if new.new_mode & TYPE == LINK {
            file = file.split(|byte| *byte == b'.').next()?;
        } else if file == self.package.as_bytes() {
            (dir, file) = (parent(dir), name(dir));
        } else {
            let ending = file.rsplit(|byte| *byte == b'.').next()?;
            if !self.endings.iter().any(|known| known.as_bytes() == ending) {
                return None;
            }
            file = file.split(|byte| *byte == b'.').next()?;
        }
        self.modules.iter().any(|module| module.as_bytes() == file).then_some(dir)
    }

    /// Whether a check's command or a file at the top speaks of the language.
    fn is_used(
        &self,
        objects: &mut Objects,
        tip: &TreeId,
        checks: &[Check],
    ) -> Result<bool, Error> {
        let gap = |c: char| !(c.is_alphanumeric() || "._-".contains(c));
        let mut words = checks.iter().flat_map(|check| check.run.split(gap));
        let known =
            |word: &str| self.programs.iter().any(|known| pattern::matches(known, word.as_bytes()));
        if words.any(known) {
            return Ok(true);
        }
        let marks: Vec<Vec<u8>> = self.marks.iter().map(|mark| mark.clone().into()).collect();
        Ok(!objects.entries(tip, &marks)?.is_empty())
    }
}

/// The new files that are imported in place of a module. One in a package is not: it
/// has a longer name. What was a package on the tip counts, and what comes as a whole,
/// for a directory that was there can be one that is imported from.
pub(super) fn find(
    objects: &mut Objects,
    [tip, candidate]: [&TreeId; 2],
    changes: &Changes<'_>,
    checks: &[Check],
    spoken_of: &BTreeSet<&[u8]>,
) -> Result<BTreeSet<Vec<u8>>, Error> {
    let mut found = BTreeSet::new();
    for shadow in &LIST.shadow {
        let mut new: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        changes.each(|change| {
            let is_new = change.old_mode == 0
                || (change.new_mode & TYPE == LINK && change.old_mode & TYPE != LINK);
            if is_new && let Some(dir) = shadow.dir_of(change) {
                new.push((dir.to_vec(), change.path.clone()));
            }
            Ok::<_, GitError>(())
        })?;
        if new.is_empty() || !shadow.is_used(objects, tip, checks)? {
            continue;
        }
        let dirs: BTreeSet<&[u8]> = new.iter().map(|(dir, _)| dir.as_slice()).collect();
        let package = |dir: &[u8]| match dir {
            b"" => shadow.package.clone().into_bytes(),
            _ => [dir, b"/", shadow.package.as_bytes()].concat(),
        };
        // What is in each of them; of the top only what makes it a package.
        let ask: Vec<Vec<u8>> = dirs
            .iter()
            .map(|dir| if dir.is_empty() { package(dir) } else { [dir, &b"/"[..]].concat() })
            .collect();
        // The directories that are there, and what makes packages of them.
        let mut list = |tree: &TreeId| -> Result<[BTreeSet<Vec<u8>>; 2], Error> {
            let [mut there, mut packages] = [BTreeSet::new(), BTreeSet::new()];
            for some in ask.chunks(AT_ONCE) {
                objects.each_entry(tree, some, |path, _, _| {
                    if !there.contains(parent(path)) {
                        there.insert(parent(path).to_vec());
                    }
                    if name(path) == shadow.package.as_bytes() {
                        packages.insert(path.to_vec());
                    }
                })?;
            }
            Ok([there, packages])
        };
        let ([there, before], [_, after]) = (list(tip)?, list(candidate)?);
        let is_package = |dir: &[u8]| {
            let was_there = dir.is_empty() || there.contains(dir);
            before.contains(&package(dir)) || (!was_there && after.contains(&package(dir)))
        };
        let imported = |dir: &[u8]| spoken_of.contains(dir) || !is_package(dir);
        found.extend(new.into_iter().filter(|(dir, _)| imported(dir)).map(|(_, path)| path));
    }
    Ok(found)
}

/// Whether a file makes a package of a directory that holds files which are pinned by
/// `pattern`: it runs before them.
pub(super) fn runs_before(path: &[u8], pattern: &str) -> bool {
    let is_package = LIST.shadow.iter().any(|shadow| shadow.package.as_bytes() == name(path));
    let literal = pattern.find(['*', '?', '[', '\\']).map_or(pattern, |end| &pattern[..end]);
    let pinned = parent(literal.strip_prefix("./").unwrap_or(literal).as_bytes());
    is_package && !pinned.is_empty() && below(pinned, parent(path))
}

//! Few packs in a store, however many tasks there were.
//!
//! Each harvest leaves a pack, and each git that looks for an object opens the index of
//! every pack on its way to it: 180 packs make a call take three times as long. What a
//! collection repacks, in full, is for when nobody works; this is for in between. Small
//! packs become one, with everything that was in them.

use std::io::ErrorKind;
use std::path::Path;

use cofferdam_tree::{Lock, fsync_dir};

use crate::{GitError, IoContext, Store};

/// A pack of this many bytes or more is left as it is: to copy it would take time.
const LARGE: u64 = 4 << 20;

impl Store {
    /// Makes one pack of the small ones when there are at least `many`. Whoever reads
    /// meanwhile finds every object: git looks again where a pack is gone.
    ///
    /// # Errors
    /// [`GitError`]; the packs are all there then.
    pub fn gather_packs(&self, many: usize) -> Result<(), GitError> {
        let dir = self.dir().join("objects/pack");
        if small_packs(&dir)?.len() < many {
            return Ok(());
        }
        let lock = self.dir().join("gather.lock");
        let taken = Lock::try_exclusive(&lock).map_err(std::io::Error::other).at("lock", &lock)?;
        let Some(_lock) = taken else { return Ok(()) };
        // Somebody else can have done it just now.
        let packs = small_packs(&dir)?;
        if packs.len() < many {
            return Ok(());
        }
        let names: String = packs.iter().map(|name| format!("{name}.pack\n")).collect();
        // No deltas are looked for: that is for the collection.
        let git = self.git().args(["pack-objects", "--stdin-packs", "--window=0", "-q"]);
        let made = git.args([dir.join("pack")]).input(names).run()?;
        fsync_dir(&dir).at("sync", &dir)?;
        let made = format!("pack-{}", String::from_utf8_lossy(&made).trim());
        for name in packs.iter().filter(|name| **name != made) {
            // Without its index nobody looks for a pack.
            for ending in ["idx", "rev", "pack"] {
                let file = dir.join(format!("{name}.{ending}"));
                match std::fs::remove_file(&file) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(error).at("remove", file);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// The names of packs that are whole and small, without an ending.
fn small_packs(dir: &Path) -> Result<Vec<String>, GitError> {
    let mut packs = Vec::new();
    for entry in std::fs::read_dir(dir).at("read", dir)? {
        let name = entry.at("read", dir)?.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".idx")) else { continue };
        match std::fs::metadata(dir.join(format!("{name}.pack"))) {
            Ok(meta) if meta.len() < LARGE => packs.push(name.to_owned()),
            // Another process has removed it.
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).at("read", dir),
            _ => {}
        }
    }
    Ok(packs)
}

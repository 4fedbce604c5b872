//! Objects that the person's git shows another one for (`git replace`).
//!
//! No git of ours follows that: what lands has to be what its name says.

use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;

use crate::{GitError, IoContext, Oid, PersonConfig, Repository};

const PREFIX: &str = "refs/replace/";

impl Repository {
    /// The first of `objects` that is replaced by another one. Where refs are files they
    /// are read here, which spares the start of a git.
    ///
    /// # Errors
    /// [`GitError`].
    pub fn replaced<'o>(
        &self,
        config: &PersonConfig,
        objects: &[&'o Oid],
    ) -> Result<Option<&'o Oid>, GitError> {
        if config.ignores_replacements() {
            return Ok(None);
        }
        let is_named = |name: &str| objects.iter().find(|oid| oid.as_str() == name).copied();
        if self.has_reftables() {
            let out = self
                .git()
                .args(["for-each-ref", "--format=%(refname:strip=2)"])
                .args(objects.iter().map(|oid| format!("{PREFIX}{oid}")))
                .run()?;
            return Ok(String::from_utf8_lossy(&out).lines().find_map(is_named));
        }
        let dir = self.common_dir.join(PREFIX);
        for oid in objects {
            if dir.join(oid.as_str()).symlink_metadata().is_ok() {
                return Ok(Some(oid));
            }
        }
        packed(&self.common_dir.join("packed-refs"), is_named)
    }
}

/// The first packed ref of a replacement that is looked for.
fn packed<'o>(
    file: &Path,
    is_named: impl Fn(&str) -> Option<&'o Oid>,
) -> Result<Option<&'o Oid>, GitError> {
    let mut lines = match std::fs::File::open(file) {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).at("read", file),
    };
    let (mut line, mut sorted) = (Vec::new(), false);
    loop {
        line.clear();
        if lines.read_until(b'\n', &mut line).at("read", file)? == 0 {
            return Ok(None);
        }
        if line.starts_with(b"#") {
            sorted |= line.windows(8).any(|word| word == b" sorted ");
            continue;
        }
        let Some(at) = line.iter().position(|byte| *byte == b' ') else { continue };
        let name = line[at + 1..].trim_ascii_end();
        if let Some(name) = name.strip_prefix(PREFIX.as_bytes()) {
            let found = std::str::from_utf8(name).ok().and_then(&is_named);
            if found.is_some() {
                return Ok(found);
            }
        } else if sorted && name > PREFIX.as_bytes() {
            return Ok(None);
        }
    }
}

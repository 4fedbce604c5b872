//! Records with ids, each added once to a file of JSON lines.
//!
//! A record is a line that holds a JSON object with an `id`, a string or an integer. What
//! is in the file stays byte for byte, whatever it is; behind it come those records whose
//! id none of its lines has. So adding the same records again changes nothing, and it is
//! no drift when the file has grown since the task began: what counts is what is there
//! when the records are added, under the target's landing lock.
//!
//! 1. [`Records::read`] looks at each line of what is to be added and refuses all of it
//!    for one that is no record.
//! 2. [`Records::stage`] reads what is there now, and makes beside it, by
//!    [`FileTarget`]'s means, the same file (as a reflink where the file system has them)
//!    with the missing records behind it.
//! 3. The caller writes down what was staged, and [`FileTarget::commit`] replaces `old`,
//!    which is what was read in step 2, by it. [`FileTarget::recover`] tells after a crash.
//!
//! Somebody who writes to the file and takes no lock is noticed up to the commit, which
//! then says that it has drifted: steps 2 and 3 can be done again. A program that keeps
//! the file open and appends to it goes on writing to the replaced one.
//!
//! Memory goes with the number of new records, about 100 bytes for each, and not with
//! what is there, which can be gigabytes: it is read once, a line at a time. For a
//! record there is a hash of its id, 16 bytes, so that long ids cost no more than short
//! ones. It is a part of SHA-256, because ids come out of a context: by a hash that can
//! be aimed at, one record could pass for another and never be added.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use cofferdam_failpoint::hit;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::copy::BUFFER;
use super::file::{GoOn, Making, Seen, TRIES};
use super::{FileTarget, Fingerprint, Step, TargetError, copy};

/// Length of a record at most, in bytes, without its line's end.
pub const LONGEST: usize = 1 << 20;

/// Records that are to be added.
#[derive(Debug)]
pub struct Records<'a> {
    file: &'a File,
    /// In their order.
    list: Vec<Record>,
    /// Where in `list` the one with this id is.
    by_id: HashMap<Hash, usize>,
}

/// The first half of a SHA-256.
type Hash = [u8; 16];

#[derive(Debug)]
struct Record {
    /// Where it begins in its file, in bytes.
    at: u64,
    length: usize,
    content: Hash,
    /// Its line, from 1.
    line: u64,
}

/// What was put beside the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    /// What was there, and is to be replaced.
    pub old: Option<Fingerprint>,
    /// What is to be there; none when all records are there already, and nothing was staged.
    pub new: Option<Fingerprint>,
    /// What becomes of the records.
    pub merged: Merged,
}

/// What becomes of records, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Merged {
    /// Records that are added.
    pub added: u64,
    /// Records that are there already.
    pub present: u64,
    /// Records whose id is there already, with other content: that stays.
    pub differing: u64,
    /// Lines of the file that are no records, as they have no id that can be told. They stay.
    pub unreadable: u64,
}

/// What the file has of a record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Present {
    No,
    OtherContent,
    Yes,
}

impl<'a> Records<'a> {
    /// Reads the records in `file`, which must not change any more; `path` is the target,
    /// for messages. A record that is there twice counts once. `go_on` is told how many
    /// bytes were read.
    ///
    /// # Errors
    /// [`TargetError::Record`] for a line that is no record or longer than [`LONGEST`], and
    /// for two records with one id; [`TargetError::Io`] with
    /// [`io::ErrorKind::Interrupted`] when `go_on` said no.
    pub fn read(
        file: &'a File,
        path: &Path,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Records<'a>, TargetError> {
        hit("target:append:read").step("read the records for", path)?;
        let mut records = Records { file, list: Vec::new(), by_id: HashMap::new() };
        let mut number = 0;
        let read = each_line(file, go_on, |at, line| {
            number += 1;
            let refused =
                |how: String| TargetError::Record { path: path.into(), line: number, how };
            let line = line.ok_or_else(|| refused("is longer than 1 MiB".into()))?;
            let id = id_of(line).map_err(|how| refused(how.into()))?;
            let text = line.trim_ascii();
            let indent = line.len() - line.trim_ascii_start().len();
            let content = hash(text);
            match records.by_id.entry(id) {
                Entry::Vacant(entry) => {
                    entry.insert(records.list.len());
                    let at = at + indent as u64;
                    records.list.push(Record { at, length: text.len(), content, line: number });
                }
                Entry::Occupied(entry) => {
                    let first = &records.list[*entry.get()];
                    if first.content != content {
                        let how = format!("has the id of line {} and other content", first.line);
                        return Err(refused(how));
                    }
                }
            }
            Ok(())
        });
        read.step("read the records for", path)??;
        Ok(records)
    }

    /// Makes `temp`, which must not be there, beside the target: what is there now, and the
    /// records that are missing in it, synced. A new file has the permissions that `umask` leaves. `go_on` is told
    /// how many bytes were copied or read.
    ///
    /// # Errors
    /// As those of [`FileTarget::look`] and [`FileTarget::stage`]; `temp` is gone then.
    pub fn stage(
        &self,
        target: &FileTarget,
        temp: &OsStr,
        umask: u32,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Staged, TargetError> {
        for _ in 0..TRIES {
            let old = target.look(go_on)?;
            let (missing, merged) = self.find(old.as_ref(), target.path(), go_on)?;
            let new = if missing.is_empty() {
                None
            } else {
                let executable = old.as_ref().is_some_and(|old| old.fingerprint.mode & 0o111 != 0);
                let size = old.as_ref().map_or(0, |old| old.fingerprint.size);
                let old = old.as_ref().map(|old| &old.file);
                let making = Making { temp, old, size, executable, umask, sync: true };
                let write = &mut |made: &File, go_on: GoOn<'_>| {
                    self.write(old, &missing, made, target.path(), go_on)
                };
                Some(target.make(making, write, go_on)?)
            };
            // What was merged has to be what has the fingerprint.
            if target.version()? == old.as_ref().map(|old| old.version) {
                return Ok(Staged { old: old.map(|old| old.fingerprint), new, merged });
            }
            target.unstage(temp)?;
        }
        Err(target.drifted("is being written to"))
    }

    /// The records that are missing in `old`.
    fn find(
        &self,
        old: Option<&Seen>,
        path: &Path,
        go_on: GoOn<'_>,
    ) -> Result<(Vec<&Record>, Merged), TargetError> {
        hit("target:append:find").step("read", path)?;
        let mut present = vec![Present::No; self.list.len()];
        let mut merged = Merged::default();
        if let Some(old) = old {
            let read = each_line(&old.file, go_on, |_, line| {
                let Some((line, id)) = line.and_then(|line| Some((line, id_of(line).ok()?))) else {
                    merged.unreadable += 1;
                    return Ok(());
                };
                if let Some(&index) = self.by_id.get(&id) {
                    let same = hash(line.trim_ascii()) == self.list[index].content;
                    let found = if same { Present::Yes } else { Present::OtherContent };
                    present[index] = present[index].max(found);
                }
                Ok(())
            });
            read.step("read", path)??;
        }
        let count = |wanted| present.iter().filter(|found| **found == wanted).count() as u64;
        merged.added = count(Present::No);
        merged.differing = count(Present::OtherContent);
        merged.present = count(Present::Yes);
        let missing = self.list.iter().zip(&present).filter(|(_, found)| **found == Present::No);
        Ok((missing.map(|(record, _)| record).collect(), merged))
    }

    /// Writes what is in `old`, and the missing records, to an empty file.
    fn write(
        &self,
        old: Option<&File>,
        missing: &[&Record],
        made: &File,
        path: &Path,
        go_on: GoOn<'_>,
    ) -> Result<(), TargetError> {
        const STEP: &str = "add records to";
        hit("target:append:write").step(STEP, path)?;
        let mut to = BufWriter::with_capacity(BUFFER, made);
        if let Some(old) = old {
            copy::content(old, made, go_on).step(STEP, path)?;
            let end = to.seek(SeekFrom::End(0)).step(STEP, path)?;
            let mut last = [b'\n'];
            if end > 0 {
                old.read_exact_at(&mut last, end - 1).step(STEP, path)?;
            }
            if last != *b"\n" {
                to.write_all(b"\n").step(STEP, path)?;
            }
        }
        let mut text = Vec::new();
        for record in missing {
            text.resize(record.length, 0);
            self.file.read_exact_at(&mut text, record.at).step(STEP, path)?;
            // The promise itself: what was looked at is what is added.
            if hash(&text) != record.content {
                let how = "has changed since it was read".into();
                return Err(TargetError::Record { path: path.into(), line: record.line, how });
            }
            text.push(b'\n');
            to.write_all(&text).step(STEP, path)?;
        }
        to.flush().step(STEP, path)
    }
}

/// Calls `each` with the lines of a file, without their ends: where one begins, in bytes,
/// and the line itself unless it is longer than [`LONGEST`].
fn each_line(
    mut file: &File,
    go_on: GoOn<'_>,
    mut each: impl FnMut(u64, Option<&[u8]>) -> Result<(), TargetError>,
) -> io::Result<Result<(), TargetError>> {
    file.rewind()?;
    let mut reader = BufReader::with_capacity(BUFFER, file);
    let mut line = Vec::new();
    let mut at = 0;
    loop {
        line.clear();
        let most = LONGEST as u64 + 1;
        let mut read = reader.by_ref().take(most).read_until(b'\n', &mut line)? as u64;
        if read == 0 {
            return Ok(Ok(()));
        }
        line.pop_if(|last| *last == b'\n');
        let told = if line.len() > LONGEST {
            read += skip_line(&mut reader)?;
            each(at, None)
        } else {
            each(at, Some(&line))
        };
        if told.is_err() {
            return Ok(told);
        }
        at += read;
        if !go_on(read) {
            return Err(io::ErrorKind::Interrupted.into());
        }
    }
}

/// Skips what is left of a line. Gives its length with its end, in bytes.
fn skip_line(reader: &mut impl BufRead) -> io::Result<u64> {
    let mut skipped = 0;
    let mut part = Vec::new();
    while part.last() != Some(&b'\n') {
        part.clear();
        match reader.by_ref().take(BUFFER as u64).read_until(b'\n', &mut part)? {
            0 => break,
            read => skipped += read as u64,
        }
    }
    Ok(skipped)
}

/// The hash of a record's id, or what is wrong with it, as a fragment.
fn id_of(line: &[u8]) -> Result<Hash, &'static str> {
    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(borrow)]
        id: Id<'a>,
    }

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Id<'a> {
        Text(#[serde(borrow)] Cow<'a, str>),
        Integer(i64),
        Large(u64),
    }

    const NO_OBJECT: &str = "is not a JSON object";
    let text = std::str::from_utf8(line).map_err(|_| "is not UTF-8")?;
    // A list would be taken for one by the order of its fields.
    if !text.trim_ascii_start().starts_with('{') {
        return Err(NO_OBJECT);
    }
    let parsed = serde_json::from_str(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => "has no single `id`, a string or an integer",
        _ => NO_OBJECT,
    });
    let Line { id } = parsed?;
    Ok(match id {
        Id::Text(text) => hash(format!("text {text}").as_bytes()),
        Id::Integer(number) => hash(format!("integer {number}").as_bytes()),
        Id::Large(number) => hash(format!("integer {number}").as_bytes()),
    })
}

fn hash(bytes: &[u8]) -> Hash {
    let whole = Sha256::digest(bytes);
    std::array::from_fn(|index| whole[index])
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    struct Bed {
        dir: tempfile::TempDir,
    }

    const TEMP: &str = ".staged";

    impl Bed {
        fn new() -> Bed {
            Bed { dir: tempfile::tempdir().expect("temporary directory") }
        }

        fn path(&self) -> PathBuf {
            self.dir.path().join("log.jsonl")
        }

        fn put(&self, content: impl AsRef<[u8]>) {
            std::fs::write(self.path(), content).expect("write");
        }

        /// Another file in its place. Times are too coarse to tell a quick change of the same.
        fn replace(&self, content: impl AsRef<[u8]>) {
            let other = self.dir.path().join("other");
            std::fs::write(&other, content).expect("write");
            std::fs::rename(other, self.path()).expect("rename");
        }

        fn now(&self) -> String {
            std::fs::read_to_string(self.path()).expect("read")
        }

        fn target(&self) -> FileTarget {
            FileTarget::open(&self.path()).expect("target")
        }

        /// As a task's result.
        fn result(&self, records: impl AsRef<[u8]>) -> File {
            let path = self.dir.path().join("result");
            std::fs::write(&path, records).expect("write");
            File::open(path).expect("open")
        }

        fn stage(&self, records: impl AsRef<[u8]>) -> Staged {
            let (file, target) = (self.result(records), self.target());
            let records = Records::read(&file, target.path(), &mut |_| true).expect("records");
            records.stage(&target, TEMP.as_ref(), 0o022, &mut |_| true).expect("stage")
        }

        fn append(&self, records: impl AsRef<[u8]>) -> Merged {
            let staged = self.stage(records);
            if staged.new.is_some() {
                self.target().commit(TEMP.as_ref(), staged.old.as_ref()).expect("commit");
                let now = self.target().look(&mut |_| true).expect("look");
                assert_eq!(now.map(|now| now.fingerprint), staged.new);
            }
            assert!(!self.dir.path().join(TEMP).exists());
            staged.merged
        }

        fn refused(&self, records: impl AsRef<[u8]>) -> String {
            let file = self.result(records);
            let read = Records::read(&file, &self.path(), &mut |_| true);
            read.expect_err("a bad line").to_string()
        }
    }

    fn merged(added: u64, present: u64, differing: u64, unreadable: u64) -> Merged {
        Merged { added, present, differing, unreadable }
    }

    #[test]
    fn each_record_is_added_once_and_in_order() {
        let bed = Bed::new();
        let records = "{\"id\":\"b\",\"n\":1}\n {\"n\":2,\"id\":7}\r\n{\"id\":\"a\"}";
        assert_eq!(bed.append(records), merged(3, 0, 0, 0));
        let all = "{\"id\":\"b\",\"n\":1}\n{\"n\":2,\"id\":7}\n{\"id\":\"a\"}\n";
        assert_eq!(bed.now(), all);
        let inode = std::os::unix::fs::MetadataExt::ino(&bed.path().metadata().expect("stat"));
        assert_eq!(bed.append(records), merged(0, 3, 0, 0));
        assert_eq!(bed.append(all), merged(0, 3, 0, 0));
        assert_eq!(bed.now(), all);
        let after = std::os::unix::fs::MetadataExt::ino(&bed.path().metadata().expect("stat"));
        assert_eq!(after, inode);
        // Some old, some new, one twice; a number is not the text of its digits.
        let more = "{\"id\":\"c\"}\n{\"id\":\"a\"}\n{\"id\":\"7\"}\n{\"id\":\"c\"}\n";
        assert_eq!(bed.append(more), merged(2, 1, 0, 0));
        assert_eq!(bed.now(), format!("{all}{{\"id\":\"c\"}}\n{{\"id\":\"7\"}}\n"));
        assert_eq!(bed.append(""), merged(0, 0, 0, 0));
    }

    #[test]
    fn what_is_there_stays_byte_for_byte() {
        let bed = Bed::new();
        let long = format!("{{\"id\":\"{}\"}}", "x".repeat(LONGEST));
        let mut old = b"no json\n\n[\"a\"]\n  {\"id\":\"b\"}  \r\n\xff\n{\"id\":1.5}\n".to_vec();
        old.extend_from_slice(long.as_bytes());
        old.extend_from_slice(
            b"\n{\"id\":\"a\",\"theirs\":true}\n{\"id\":\"b\",\"later\":1}\n{\"id\":\"cut off",
        );
        bed.put(&old);
        let records = "{\"id\":\"a\"}\n{\"id\":\"b\"}\n{\"id\":\"c\"}\n";
        assert_eq!(bed.append(records), merged(1, 1, 1, 7));
        old.extend_from_slice(b"\n{\"id\":\"c\"}\n");
        assert!(std::fs::read(bed.path()).expect("read") == old);
        // Without anything to add, its end is not mended either.
        bed.put("{\"id\":\"a\"}");
        assert_eq!(bed.append("{\"id\":\"a\"}\n"), merged(0, 1, 0, 0));
        assert_eq!(bed.now(), "{\"id\":\"a\"}");
        bed.put("");
        assert_eq!(bed.append("{\"id\":\"a\"}\n"), merged(1, 0, 0, 0));
        assert_eq!(bed.now(), "{\"id\":\"a\"}\n");
    }

    #[test]
    fn a_bad_line_is_refused_by_its_number() {
        let bed = Bed::new();
        bed.put("{\"id\":\"old\"}\n");
        let long = format!("{{\"id\":\"{}\"}}", "x".repeat(LONGEST));
        let longest = format!("{{\"id\":\"{}\"}}", "x".repeat(LONGEST - 9));
        assert_eq!(longest.len(), LONGEST);
        assert_eq!(bed.append(&longest), merged(1, 0, 0, 0));
        let no_id = "has no single `id`, a string or an integer";
        for (line, how) in [
            (&b""[..], "is not a JSON object"),
            (b"text", "is not a JSON object"),
            (b"[\"a\"]", "is not a JSON object"),
            (b"{\"id\":\"b\"", "is not a JSON object"),
            (b"{\"id\":\"b\"} {\"id\":\"c\"}", "is not a JSON object"),
            (b"{\"id\":\"b\",\"x\":\"\xff\"}", "is not UTF-8"),
            (b"{}", no_id),
            (b"{\"id\":null}", no_id),
            (b"{\"id\":1.5}", no_id),
            (b"{\"id\":[\"b\"]}", no_id),
            (b"{\"id\":\"b\",\"id\":\"c\"}", no_id),
            (long.as_bytes(), "is longer than 1 MiB"),
            (b"{\"id\":\"a\",\"n\":1}", "has the id of line 1 and other content"),
        ] {
            let records = [b"{\"id\":\"a\"}\n", line, b"\n{\"id\":\"d\"}\n"].concat();
            let error = bed.refused(records);
            assert!(error.starts_with("line 2 of the records for `"), "{error}");
            assert!(error.ends_with(how), "{how}: {error}");
        }
        assert!(bed.refused([long.as_bytes(), b"\ntext\n"].concat()).starts_with("line 1 "));
    }

    #[test]
    fn growth_before_it_is_staged_is_kept_and_growth_after_it_is_noticed() {
        let bed = Bed::new();
        bed.put("{\"id\":1}\n");
        let grow = |text: &str| {
            let mut file = File::options().append(true).open(bed.path()).expect("open");
            file.write_all(text.as_bytes()).expect("write");
        };
        let file = bed.result("{\"id\":2}\n{\"id\":3}\n");
        let target = bed.target();
        let records = Records::read(&file, target.path(), &mut |_| true).expect("records");
        grow("{\"id\":2}\n");
        // Once while it is read for ids: that reading does not count.
        let mut grown = false;
        let mut go_on = |_| {
            if !std::mem::replace(&mut grown, true) {
                grow("{\"id\":4}\n");
            }
            true
        };
        let staged = records.stage(&target, TEMP.as_ref(), 0, &mut go_on).expect("stage");
        assert_eq!(staged.merged, merged(1, 1, 0, 0));
        grow("{\"id\":3}\n");
        let error = target.commit(TEMP.as_ref(), staged.old.as_ref()).expect_err("drift");
        assert!(matches!(error, TargetError::Drifted { .. }), "{error}");
        target.unstage(TEMP.as_ref()).expect("unstage");
        assert_eq!(bed.append("{\"id\":2}\n{\"id\":3}\n"), merged(0, 2, 0, 0));
        assert_eq!(bed.now(), "{\"id\":1}\n{\"id\":2}\n{\"id\":4}\n{\"id\":3}\n");
    }

    #[test]
    fn a_file_that_changes_between_its_two_readings_is_read_again() {
        let bed = Bed::new();
        bed.put("{\"id\":1}\n");
        let (file, target) = (bed.result("{\"id\":2}\n"), bed.target());
        let records = Records::read(&file, target.path(), &mut |_| true).expect("records");
        // The first call is of the look, the second of the reading for ids.
        let mut calls = 0;
        let mut go_on = |_| {
            calls += 1;
            if calls == 2 {
                bed.replace("{\"id\":9}\n");
            }
            true
        };
        let staged = records.stage(&target, TEMP.as_ref(), 0, &mut go_on).expect("stage");
        target.commit(TEMP.as_ref(), staged.old.as_ref()).expect("commit");
        assert_eq!(bed.now(), "{\"id\":9}\n{\"id\":2}\n");
        // One that never rests.
        let mut always = |_| {
            bed.replace(crate::random_name(8).expect("random"));
            true
        };
        let error = records.stage(&target, TEMP.as_ref(), 0, &mut always).expect_err("busy");
        assert!(error.to_string().ends_with("is being written to"), "{error}");
        assert!(!bed.dir.path().join(TEMP).exists());
    }

    #[test]
    fn records_that_changed_after_they_were_read_are_not_added() {
        let bed = Bed::new();
        bed.put("");
        let (file, target) = (bed.result("{\"id\":1}\n{\"id\":2}\n"), bed.target());
        let records = Records::read(&file, target.path(), &mut |_| true).expect("records");
        bed.result("{\"id\":1}\n{\"id\":3}\n");
        let error = records.stage(&target, TEMP.as_ref(), 0, &mut |_| true).expect_err("changed");
        assert!(error.to_string().starts_with("line 2 "), "{error}");
        assert!(!bed.dir.path().join(TEMP).exists());
    }
}

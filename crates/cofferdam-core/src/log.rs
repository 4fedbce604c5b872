//! What a command printed, kept within a cap.
//!
//! A line of the file is the time (milliseconds since 1970), `out` or `err`, and
//! the text; a piece without a line end is written when it is long or its
//! stream ends. Past half of the cap, lines go in turn to two more files, the
//! older of which is started anew when the newer is full: so the beginning and
//! the end are kept and the middle is lost. At the end they are put together
//! with a line that says how much is missing.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::error::IoContext;

const LONGEST_PIECE: usize = 8192;

/// One stream of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

impl Stream {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Stream::Out => "out",
            Stream::Err => "err",
        }
    }
}

pub(crate) struct LogWriter {
    path: PathBuf,
    head: BufWriter<File>,
    head_left: u64,
    ring: Option<Ring>,
    segment: u64,
    lost: u64,
    pending: [Vec<u8>; 2],
    /// The first thing that went wrong.
    failed: Option<String>,
}

struct Ring {
    current: BufWriter<File>,
    /// Bytes in the current file.
    used: u64,
    /// Bytes of output among them.
    said: u64,
    second: bool,
    /// Bytes of output in the older file.
    older: u64,
}

impl LogWriter {
    /// A log of at most about `cap` bytes at `path`.
    pub(crate) fn create(path: &Path, cap: u64) -> Result<LogWriter, Error> {
        let file = File::create(path).at("create", path)?;
        Ok(LogWriter {
            path: path.to_owned(),
            head: BufWriter::new(file),
            head_left: cap / 2,
            ring: None,
            segment: cap / 4,
            lost: 0,
            pending: [Vec::new(), Vec::new()],
            failed: None,
        })
    }

    /// Takes what was read from a stream and lets those who follow see it. What can't
    /// be written is missing; [`LogWriter::finish`] says why.
    pub(crate) fn take(&mut self, stream: Stream, bytes: &[u8]) {
        if let Err(error) = self.write(stream, bytes).and_then(|()| self.flush()) {
            self.pending[stream as usize].clear();
            self.failed.get_or_insert_with(|| error.to_string());
        }
    }

    fn part(&self, second: bool) -> PathBuf {
        self.path.with_extension(if second { "b" } else { "a" })
    }

    fn write(&mut self, stream: Stream, bytes: &[u8]) -> std::io::Result<()> {
        // One time for all that was read at once.
        let prefix = format!("{} {} ", cofferdam_ledger::now_ms(), stream.name()).into_bytes();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line = &rest[..end];
            rest = &rest[end + 1..];
            if self.pending[stream as usize].is_empty() {
                self.line(&prefix, line)?;
            } else {
                let mut whole = std::mem::take(&mut self.pending[stream as usize]);
                whole.extend(line);
                self.line(&prefix, &whole)?;
            }
        }
        self.pending[stream as usize].extend(rest);
        while self.pending[stream as usize].len() >= LONGEST_PIECE {
            let tail = self.pending[stream as usize].split_off(LONGEST_PIECE);
            let piece = std::mem::replace(&mut self.pending[stream as usize], tail);
            self.line(&prefix, &piece)?;
        }
        Ok(())
    }

    fn line(&mut self, prefix: &[u8], text: &[u8]) -> std::io::Result<()> {
        let put = |to: &mut BufWriter<File>| {
            to.write_all(prefix)?;
            to.write_all(text)?;
            to.write_all(b"\n")
        };
        let said = text.len() as u64 + 1;
        let len = prefix.len() as u64 + said;
        if self.ring.is_none() {
            if len <= self.head_left {
                self.head_left -= len;
                return put(&mut self.head);
            }
            let current = BufWriter::new(File::create(self.part(false))?);
            self.ring = Some(Ring { current, used: 0, said: 0, second: false, older: 0 });
        }
        let (segment, next) = (self.segment, self.ring.as_ref().is_some_and(|ring| !ring.second));
        let next_path = self.part(next);
        let ring = self.ring.as_mut().expect("made above");
        if ring.used + len > segment && ring.used > 0 {
            ring.current.flush()?;
            self.lost += ring.older;
            ring.older = ring.said;
            ring.current = BufWriter::new(File::create(next_path)?);
            ring.second = next;
            (ring.used, ring.said) = (0, 0);
        }
        ring.used += len;
        ring.said += said;
        put(&mut ring.current)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.head.flush()?;
        self.ring.as_mut().map_or(Ok(()), |ring| ring.current.flush())
    }

    /// Puts the parts together. Says why the log is not whole, if it is not.
    pub(crate) fn finish(mut self) -> Option<String> {
        let path = self.path.display().to_string();
        let joined = self.join();
        let failed = self.failed.take().or_else(|| joined.err().map(|error| error.to_string()));
        failed.map(|why| format!("`{path}` is not complete: {why}"))
    }

    fn join(&mut self) -> std::io::Result<()> {
        for stream in [Stream::Out, Stream::Err] {
            let rest = std::mem::take(&mut self.pending[stream as usize]);
            if !rest.is_empty() {
                let prefix = format!("{} {} ", cofferdam_ledger::now_ms(), stream.name());
                self.line(prefix.as_bytes(), &rest)?;
            }
        }
        self.flush()?;
        let Some(ring) = self.ring.take() else { return Ok(()) };
        drop(ring.current);
        if self.lost > 0 {
            let text = format!(
                "{} cut {} bytes of output are left out here\n",
                cofferdam_ledger::now_ms(),
                self.lost
            );
            self.head.write_all(text.as_bytes())?;
        }
        for second in [!ring.second, ring.second] {
            let part = self.part(second);
            match File::open(&part) {
                Ok(mut file) => {
                    std::io::copy(&mut file, &mut self.head)?;
                    std::fs::remove_file(&part)?;
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        self.head.flush()
    }
}

/// One line of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Milliseconds since 1970.
    pub at_ms: i64,
    /// `out`, `err` or `cut`.
    pub stream: String,
    /// What was printed, without the line end.
    pub text: Vec<u8>,
}

impl LogLine {
    /// Reads a line of a log file.
    #[must_use]
    pub fn parse(line: &[u8]) -> Option<LogLine> {
        let mut parts = line.splitn(3, |byte| *byte == b' ');
        let at_ms = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
        let stream = std::str::from_utf8(parts.next()?).ok()?.to_owned();
        let text = parts.next()?;
        Some(LogLine { at_ms, stream, text: text.strip_suffix(b"\n").unwrap_or(text).to_vec() })
    }
}

/// Reads a log.
///
/// # Errors
/// When it can't be read; a missing log is empty.
pub fn read_log(path: &Path, mut line: impl FnMut(LogLine)) -> Result<(), Error> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).at("read", path),
    };
    for bytes in BufReader::new(file).split(b'\n') {
        if let Some(parsed) = LogLine::parse(&bytes.at("read", path)?) {
            line(parsed);
        }
    }
    Ok(())
}

/// The last lines of a log: those that begin in its last `most` bytes.
///
/// # Errors
/// When it can't be read; a missing log is empty.
pub(crate) fn read_tail(path: &Path, most: u64) -> Result<Vec<LogLine>, Error> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).at("read", path),
    };
    let size = file.metadata().at("read", path)?.len();
    let mut reader = if size > most {
        // One byte more: a line that begins just there is whole.
        file.seek(SeekFrom::Start(size - most - 1)).at("read", path)?;
        let mut reader = BufReader::new(file);
        reader.skip_until(b'\n').at("read", path)?;
        reader
    } else {
        BufReader::new(file)
    };
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut bytes).at("read", path)?;
    Ok(bytes.split(|byte| *byte == b'\n').filter_map(LogLine::parse).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(path: &Path) -> Vec<String> {
        let mut texts = Vec::new();
        read_log(path, |line| {
            texts.push(format!("{} {}", line.stream, String::from_utf8_lossy(&line.text)));
        })
        .expect("read");
        texts
    }

    #[test]
    fn pieces_become_lines() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("log");
        let mut log = LogWriter::create(&path, 1 << 20).expect("create");
        log.write(Stream::Out, b"a").expect("write");
        log.write(Stream::Err, b"x\ny").expect("write");
        log.write(Stream::Out, b"b\nc\n").expect("write");
        assert_eq!(log.finish(), None);
        assert_eq!(texts(&path), ["err x", "out ab", "out c", "err y"]);
    }

    #[test]
    fn the_middle_is_cut_out_and_the_size_is_bounded() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("log");
        let mut log = LogWriter::create(&path, 4000).expect("create");
        for number in 0..10_000 {
            log.write(Stream::Out, format!("line {number}\n").as_bytes()).expect("write");
        }
        assert_eq!(log.finish(), None);
        let texts = texts(&path);
        assert_eq!(texts.first().map(String::as_str), Some("out line 0"));
        assert_eq!(texts.last().map(String::as_str), Some("out line 9999"));
        assert_eq!(texts.iter().filter(|text| text.starts_with("cut ")).count(), 1);
        assert!(std::fs::metadata(&path).expect("meta").len() < 4200);
        assert_eq!(std::fs::read_dir(dir.path()).expect("dir").count(), 1);
    }

    #[test]
    fn the_last_lines_are_read_whole() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("log");
        assert_eq!(read_tail(&path, 100).expect("read"), []);
        std::fs::write(&path, b"1 out a\n2 err b\xc3\n3 out c\n").expect("write");
        let texts = |most| -> Vec<Vec<u8>> {
            read_tail(&path, most).expect("read").into_iter().map(|line| line.text).collect()
        };
        assert_eq!(texts(8), [b"c"]);
        assert_eq!(texts(16), [b"c"]);
        assert_eq!(texts(17).len(), 2);
        assert_eq!(texts(1000).len(), 3);
    }
}

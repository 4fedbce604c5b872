//! A terminal that people go to and leave: that of a command in the background.
//!
//! Its supervisor holds our end, keeps the last of what was printed, and listens on a
//! socket in the state directory, which is the person's alone. Whoever comes sees what was
//! printed and then what is, and types; Ctrl-] leaves. What they say comes as frames:
//!
//! | first byte | then |
//! |---|---|
//! | 0 | two bytes of length, what was typed |
//! | 1 | two bytes of rows, two of columns: the size of their window |

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_core::supervise::Terminal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::termios::{Winsize, tcgetwinsize, tcsetwinsize};

use super::{Pty, Raw, wait};

/// How much of what was printed somebody who comes sees, in bytes.
const KEPT: usize = 256 << 10;
/// Who reads no more for so long is let go.
const PATIENCE: Duration = Duration::from_secs(2);
/// Ctrl-].
const LEAVE: u8 = 0x1d;
const TYPED: u8 = 0;
const SIZE: u8 = 1;

/// See the module.
pub struct Served {
    pty: Pty,
    listener: UnixListener,
    path: PathBuf,
}

/// The directory of sockets, and what lets their names be short enough for the kernel.
fn dir_of(state: &Path) -> (PathBuf, io::Result<OwnedFd>) {
    let dir = state.join("terminals");
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::open(&dir, flags, Mode::empty()).map_err(io::Error::from);
    (dir, open)
}

fn short(dir: &OwnedFd, pid: u32) -> String {
    format!("/proc/self/fd/{}/{pid}", dir.as_raw_fd())
}

impl Served {
    /// One of this process.
    ///
    /// # Errors
    /// When the kernel gives none, or the state directory can't be written.
    pub fn open(state: &Path) -> io::Result<Served> {
        let pty = Pty::new(Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 })?;
        let flags = rustix::fs::fcntl_getfl(&pty.ours)?;
        rustix::fs::fcntl_setfl(&pty.ours, flags | OFlags::NONBLOCK)?;
        std::fs::create_dir_all(state.join("terminals"))?;
        let (dir, open) = dir_of(state);
        let pid = std::process::id();
        let path = dir.join(pid.to_string());
        // Of a process that had our number.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(short(&open?, pid))?;
        Ok(Served { pty, listener, path })
    }

    fn serve(&self) -> io::Result<()> {
        let mut ours = std::fs::File::from(self.pty.ours.try_clone()?);
        let mut kept: VecDeque<u8> = VecDeque::new();
        let mut people: Vec<UnixStream> = Vec::new();
        let mut buffer = vec![0; 16 << 10];
        loop {
            let mut watched = vec![
                PollFd::new(&self.pty.ours, PollFlags::IN),
                PollFd::new(&self.listener, PollFlags::IN),
            ];
            watched.extend(people.iter().map(|person| PollFd::new(person, PollFlags::IN)));
            match poll(&mut watched, None) {
                Err(rustix::io::Errno::INTR) => continue,
                other => drop(other?),
            }
            let ready: Vec<bool> = watched.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready[0] {
                match ours.read(&mut buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    // EIO: nobody has the other end any more.
                    Ok(0) | Err(_) => return Ok(()),
                    Ok(read) => {
                        kept.extend(&buffer[..read]);
                        kept.drain(..kept.len().saturating_sub(KEPT));
                        people.retain_mut(|person| person.write_all(&buffer[..read]).is_ok());
                    }
                }
            }
            let mut at = 2;
            people.retain_mut(|person| {
                at += 1;
                ready.get(at - 1) != Some(&true) || self.hear(person, &mut ours).is_ok()
            });
            if ready[1]
                && let Ok((mut person, _)) = self.listener.accept()
            {
                let (first, last) = kept.as_slices();
                let told = person
                    .set_write_timeout(Some(PATIENCE))
                    .and_then(|()| person.set_read_timeout(Some(PATIENCE)))
                    .and_then(|()| person.write_all(first))
                    .and_then(|()| person.write_all(last));
                if told.is_ok() {
                    people.push(person);
                }
            }
        }
    }

    /// Does what a person's next frame says.
    fn hear(&self, person: &mut UnixStream, ours: &mut std::fs::File) -> io::Result<()> {
        let mut head = [0; 3];
        person.read_exact(&mut head)?;
        let number = u16::from_be_bytes([head[1], head[2]]);
        match head[0] {
            TYPED => {
                let mut typed = vec![0; usize::from(number)];
                person.read_exact(&mut typed)?;
                // What a command does not read is lost, as on any terminal.
                let _ = ours.write_all(&typed);
                Ok(())
            }
            SIZE => {
                let mut columns = [0; 2];
                person.read_exact(&mut columns)?;
                let columns = u16::from_be_bytes(columns);
                let size = Winsize { ws_row: number, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
                Ok(tcsetwinsize(&self.pty.ours, size)?)
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Terminal for Served {
    fn other_end(&self) -> io::Result<OwnedFd> {
        self.pty.other_end()
    }

    fn converse(&self) {
        // Whatever ends it, the command goes on to its own end.
        let _ = self.serve();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// How a visit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The command has ended, or there is no terminal.
    ItEnded,
    /// The person has left it to itself.
    They,
}

/// Goes to the terminal that process `pid` holds. None when it holds none.
///
/// # Errors
/// When the person's own terminal can't be read or written.
pub fn go_to(state: &Path, pid: u32) -> io::Result<Option<Left>> {
    let Ok(dir) = dir_of(state).1 else { return Ok(None) };
    let Ok(mut there) = UnixStream::connect(short(&dir, pid)) else { return Ok(None) };
    let stdin = io::stdin();
    let sits = stdin.is_terminal();
    let _raw = sits.then(Raw::begin);
    let mut typing = sits;
    let mut size = None;
    let mut buffer = vec![0; 16 << 10];
    loop {
        if sits {
            let now = tcgetwinsize(&stdin)?;
            if size != Some((now.ws_row, now.ws_col)) {
                size = Some((now.ws_row, now.ws_col));
                let [rows, columns] = [now.ws_row, now.ws_col].map(u16::to_be_bytes);
                let frame = [&[SIZE], rows.as_slice(), columns.as_slice()].concat();
                if there.write_all(&frame).is_err() {
                    return Ok(Some(Left::ItEnded));
                }
            }
        }
        let Some(ready) = wait(&there, typing)? else { continue };
        if ready.there {
            match there.read(&mut buffer) {
                Ok(0) | Err(_) => return Ok(Some(Left::ItEnded)),
                Ok(read) => {
                    let mut out = io::stdout().lock();
                    out.write_all(&buffer[..read])?;
                    out.flush()?;
                }
            }
        }
        if ready.typed {
            let read = match rustix::io::read(stdin.as_fd(), &mut buffer) {
                Ok(0) => {
                    typing = false;
                    continue;
                }
                Err(rustix::io::Errno::INTR) => continue,
                read => read?,
            };
            let typed = &buffer[..read];
            let leave = typed.iter().position(|key| *key == LEAVE);
            let typed = &typed[..leave.unwrap_or(read)];
            let length = u16::try_from(typed.len()).unwrap_or(u16::MAX).to_be_bytes();
            let frame = [&[TYPED], length.as_slice(), typed].concat();
            if there.write_all(&frame).is_err() {
                return Ok(Some(Left::ItEnded));
            }
            if leave.is_some() {
                return Ok(Some(Left::They));
            }
        }
    }
}

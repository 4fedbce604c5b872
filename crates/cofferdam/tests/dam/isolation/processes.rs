//! Processes, their memory, descriptors and signals.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use super::{holds, inside, literal, marker, os, processes_with};
use crate::support::{Done, World, dam_binary};

/// A process of the host that waits until it is dropped.
struct Bystander(Child);

impl Bystander {
    fn new(name: &str) -> Bystander {
        let mut child = Command::new("sh")
            .args(["-c", "echo; read line", name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh");
        // It has its command line by then.
        child.stdout.take().expect("pipe").read_exact(&mut [0]).expect("up");
        Bystander(child)
    }

    /// Neither ended nor stopped.
    fn is_well(&mut self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()));
        let stopped = status.expect("status").lines().any(|line| line.starts_with("State:\tT"));
        self.0.try_wait().expect("wait").is_none() && !stopped
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.0.stdin.take();
        let _ = self.0.wait();
    }
}

#[test]
fn no_process_of_the_host_is_visible() {
    let world = World::new();
    let name = marker("bystander");
    let _bystander = Bystander::new(&name);
    assert_eq!(processes_with(&name).len(), 1);
    holds(
        &world,
        &[],
        "
found = pids()
assert found == [1, os.getpid()], found
assert read('/proc/1/cmdline').split(b'\\0')[0] == b'dam-init', read('/proc/1/cmdline')
for pid in range(2, 70000):
    if pid != os.getpid():
        try: os.kill(pid, 0)
        except ProcessLookupError: continue
        raise AssertionError(f'process {pid} can be signalled')
",
    );
}

#[test]
fn the_supervisors_environment_is_in_no_process_and_pid_1_can_not_be_opened() {
    let world = World::new();
    let mut command = inside(
        &world,
        &[],
        "
for pid in pids():
    if pid != 1:
        assert b'hunter2' not in read(f'/proc/{pid}/environ')
    assert b'hunter2' not in read(f'/proc/{pid}/cmdline').replace(b'python3', b'') or pid == os.getpid()
assert 'SECRET' not in os.environ and 'SSH_AUTH_SOCK' not in os.environ, os.environ
denied = errno.EACCES, errno.EPERM
for name in 'environ mem maps smaps auxv pagemap stack syscall io personality clear_refs'.split():
    for flags in os.O_RDONLY, os.O_WRONLY:
        refused(name, lambda: read_some(os.open(f'/proc/1/{name}', flags)), *denied)
for name in 'root', 'cwd', 'exe', 'ns/mnt', 'ns/user', 'fd/0', 'fd/3', 'fd/4', 'fd/5':
    refused(name, lambda: os.readlink(f'/proc/1/{name}'), *denied)
    refused(name, lambda: os.open(f'/proc/1/{name}', os.O_RDONLY), *denied)
for name in 'fd', 'map_files', 'task/1/fd', 'root/', 'cwd/':
    refused(name, lambda: os.listdir(f'/proc/1/{name}'), *denied)
buffer = ctypes.create_string_buffer(8)
vector = struct.pack('QQ', ctypes.addressof(buffer), 8)
for attach in 16, 0x4206:
    error_is('ptrace', call('ptrace', attach, 1, 0, 0), errno.EPERM)
error_is('read memory', call('process_vm_readv', 1, vector, 1, vector, 1, 0), errno.EPERM)
error_is('write memory', call('process_vm_writev', 1, vector, 1, vector, 1, 0), errno.EPERM)
pidfd = call('pidfd_open', 1, 0)
for fd in range(6):
    error_is('take a descriptor', call('pidfd_getfd', pidfd, fd, 0), errno.EPERM)
error_is('enter', call('setns', pidfd, 0x20000), errno.EPERM)
"
        .replace("read_some", "(lambda fd: os.read(fd, 1))")
        .as_str(),
    );
    command.env("SECRET", "hunter2").env("SSH_AUTH_SOCK", "/hunter2");
    Done::from(command.output().expect("dam")).expect_code(0);
}

#[test]
fn descriptors_that_dam_inherited_are_closed() {
    let world = World::new();
    let secret = world.dir().join("secret");
    std::fs::write(&secret, "hunter2").expect("secret");
    let program = format!(
        "{}\nsecret = {}\n{}",
        super::PRELUDE,
        literal(&secret),
        "
for pid in pids():
    if pid == 1: continue
    fds = sorted(int(fd) for fd in os.listdir(f'/proc/{pid}/fd'))
    fds = [fd for fd in fds if os.path.lexists(f'/proc/{pid}/fd/{fd}')]
    assert fds == [0, 1, 2], (pid, fds)
for fd in range(3, 4096):
    refused(fd, lambda: os.fstat(fd), errno.EBADF)
assert not os.path.exists(secret) and not os.path.exists(os.path.dirname(secret) + '/home/x')
",
    );
    // Three to five are the numbers that the handover to pid 1 uses.
    let script =
        "exec 3<\"$SECRET\" 4<\"${SECRET%/*}\" 5<>\"$SECRET\" 6</ 9<\"${SECRET%/*}\"; exec \"$@\"";
    let mut command = world.dam_command(["run"]);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", script, "sh"])
        .arg(dam_binary())
        .args(["run", "--", "python3", "-c", &program]);
    shell.current_dir(&world.repo).env_clear().env("SECRET", &secret).stdin(Stdio::null());
    shell.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    Done::from(shell.output().expect("sh")).expect_code(0);
    command = shell;
    command.stdin(Stdio::piped());
    Done::from(command.output().expect("sh")).expect_code(0);
}

#[test]
fn no_descriptor_lies_on_a_mount_of_the_host() {
    let world = World::new();
    holds(
        &world,
        &[],
        "
mounts = {line.split()[0] for line in open('/proc/self/mountinfo')}
for fd in 0, 1, 2:
    info = dict(line.split(':', 1) for line in open(f'/proc/self/fdinfo/{fd}') if ':' in line)
    target = os.readlink(f'/proc/self/fd/{fd}')
    assert target.startswith('pipe:') or info['mnt_id'].strip() in mounts, (fd, target, info)
",
    );
}

#[test]
fn signals_inside_harm_nobody() {
    let world = World::new();
    let mut bystander = Bystander::new(&marker("signals"));
    world.run(&[], "kill -9 1; kill -STOP 1; kill -TERM 1; kill -9 -1; true").expect_code(0);
    let done = world.run(&["--name", "group"], "kill -9 0");
    done.expect_code(1);
    holds(
        &world,
        &[],
        "
for who in 1, -1:
    for number in range(1, 65):
        if number in (signal.SIGKILL, signal.SIGSTOP) and who == -1: continue
        try: os.kill(who, number)
        except OSError: pass
assert read('/proc/1/stat')
",
    );
    assert!(bystander.is_well());
}

#[test]
fn a_daemon_that_was_left_behind_is_gone_after_the_run() {
    let world = World::new();
    let name = marker("daemon");
    holds(
        &world,
        &[],
        &format!(
            "
def daemon():
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.execvp('sh', ['sh', '-c', 'trap \"\" TERM HUP; echo up >&7; while :; do read x; done </dev/zero', '{name}'])
up, told = os.pipe()
os.dup2(told, 7)
in_child(daemon)
assert os.read(up, 3) == b'up\\n'
"
        ),
    );
    assert_eq!(processes_with(&name), []);
}

#[test]
fn nothing_runs_on_when_the_supervisor_is_killed() {
    let world = World::new();
    let name = marker("orphan");
    let script = format!(
        "for i in 1 2 3; do setsid sh -c 'trap \"\" TERM HUP; echo ready; exec 2>&1; tail -f /dev/null; :' {name} & done; wait"
    );
    let mut dam = world.dam_command(["run", "--name", "k", "--", "sh", "-c", &script]);
    let mut dam = dam.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("dam");
    let lines = BufReader::new(dam.stdout.take().expect("pipe")).lines();
    assert_eq!(
        lines.take(3).filter(|line| line.as_ref().is_ok_and(|line| line == "ready")).count(),
        3
    );
    let held: Vec<_> = processes_with(&name)
        .into_iter()
        .filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
        .collect();
    assert!(held.len() >= 4, "{}", held.len());
    dam.kill().expect("kill");
    assert_eq!(dam.wait().expect("wait").signal(), Some(9));
    for fd in &held {
        let longest = Timespec { tv_sec: 60, tv_nsec: 0 };
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&longest)).expect("poll"), 1, "a process lives on");
    }
    assert_eq!(world.git(["status", "--porcelain"]), "");
}

/// Two tasks at once: the first makes one of each, the second looks for them.
#[test]
fn two_tasks_share_no_process_no_tmp_no_memory_and_no_queue() {
    two_tasks_share_nothing(&[]);
}

/// Where the second wall does not help.
#[test]
fn two_nested_tasks_share_no_process_no_tmp_no_memory_and_no_queue() {
    two_tasks_share_nothing(&["--nested"]);
}

fn two_tasks_share_nothing(options: &[&str]) {
    let world = World::new();
    let name = marker("neighbour");
    let make = format!(
        "
open('/tmp/{name}', 'w').write('x'); open('/dev/shm/{name}', 'w').write('x')
open(os.environ['HOME'] + '/{name}', 'w').write('x'); open('{name}', 'w').write('x')
open('/run/dam/out/{name}', 'w').write('x')
assert libc.shmget(4242, 4096, 0o1666) >= 0 and libc.msgget(4242, 0o1666) >= 0
assert libc.semget(4242, 1, 0o1666) >= 0
# Landlock knows no place for a message queue.
assert libc.mq_open(b'/{name}', os.O_CREAT | os.O_RDWR, 0o666, None) >= 0 or not {nested}
hole = socket.socket(socket.AF_UNIX); hole.bind('\\0{name}'); hole.listen()
port = socket.create_server(('127.0.0.1', 42420))
print('ready', flush=True)
signal.pause()
",
        nested = if options.is_empty() { "False" } else { "True" },
    );
    let mut first = inside(&world, &[options, &["--name", "first"]].concat(), &make);
    let mut first = first.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("dam");
    let mut out = first.stdout.take().expect("pipe");
    let mut line = [0; 6];
    out.read_exact(&mut line).expect("ready");
    assert_eq!(os(&line), os(b"ready\n"));
    holds(
        &world,
        &[options, &["--name", "second"]].concat(),
        &format!(
            "
for place in '/tmp/', '/dev/shm/', os.environ['HOME'] + '/', '', '/run/dam/out/':
    assert not os.path.lexists(place + '{name}'), place
    assert '{name}' not in os.listdir(place or '.')
assert pids() == [1, os.getpid()]
for get in (libc.shmget, 4242, 0, 0), (libc.msgget, 4242, 0), (libc.semget, 4242, 0, 0):
    assert get[0](*get[1:]) == -1
assert libc.mq_open(b'/{name}', os.O_RDWR, 0, None) == -1
for kind in 'shm', 'msg', 'sem':
    assert len(open('/proc/sysvipc/' + kind).readlines()) == 1
refused('abstract', lambda: socket.socket(socket.AF_UNIX).connect('\\0{name}'), errno.ECONNREFUSED)
refused('port', lambda: socket.create_connection(('127.0.0.1', 42420)), errno.ECONNREFUSED)
for line in open('/proc/self/mountinfo'):
    assert {first} not in line, line
",
            first = literal(super::task_dirs(&world)[0].file_name().expect("name")),
        ),
    );
    world.dam(["stop", "first"]).expect_code(0);
    first.wait().expect("wait");
}

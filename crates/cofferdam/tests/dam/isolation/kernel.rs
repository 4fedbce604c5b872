//! Privileges, system calls, devices and the kernel's own files.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use super::{holds, inside, task_dirs};
use crate::support::{Done, World, is_root};

/// Everything of `/proc` but the processes, and of `/sys`, can't be written.
const NOTHING_IN_PROC_IS_WRITABLE: &str = "
opened = []
for top in '/proc', '/sys':
    for where, dirs, files in os.walk(top):
        if where == '/proc':
            dirs[:] = [name for name in dirs if not name.isdigit() and name not in ('self', 'thread-self')]
        for name in files:
            path = os.path.join(where, name)
            # A pressure trigger tells its owner something and changes nothing; the
            # last pid is the namespace's own, and to write it takes a capability.
            if os.path.islink(path) or where == '/proc/pressure': continue
            if name == 'ns_last_pid':
                refused(path, lambda: os.write(os.open(path, os.O_WRONLY), b'1'), errno.EPERM, errno.EACCES, errno.EROFS)
                continue
            try: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError: continue
            if os.stat(path).st_rdev != os.stat('/dev/null').st_rdev: opened.append(path)
assert not opened, opened
assert os.path.exists('/proc/sys/kernel/core_pattern')
";

#[test]
fn core_pattern_and_every_other_kernel_setting_can_not_be_written() {
    let world = World::new();
    let settings = || {
        ["kernel/core_pattern", "kernel/hostname", "vm/drop_caches", "kernel/modprobe"]
            .map(|name| std::fs::read(format!("/proc/sys/{name}")).unwrap_or_default())
    };
    let before = settings();
    for options in [&[][..], &["--nested"], &["--net", "open"]] {
        holds(&world, options, NOTHING_IN_PROC_IS_WRITABLE);
        holds(
            &world,
            options,
            "
for name in 'kernel/core_pattern', 'kernel/modprobe', 'kernel/hostname', 'vm/drop_caches':
    refused(name, lambda: open('/proc/sys/' + name, 'w').write('|/tmp/x'))
    refused(name, lambda: os.chmod('/proc/sys/' + name, 0o666))
",
        );
    }
    assert_eq!(settings(), before);
}

#[test]
fn no_capability_no_group_and_no_new_privileges() {
    let world = World::new();
    let program = "
status = dict(line.rstrip('\\n').split(':\\t', 1) for line in open('/proc/self/status') if ':\\t' in line)
for kind in 'CapInh CapPrm CapEff CapBnd CapAmb'.split():
    assert int(status[kind], 16) == 0, (kind, status[kind])
assert status['NoNewPrivs'] == '1' and status['Seccomp'] == '2', status
assert 0 not in os.getresuid() + os.getresgid(), os.getresuid()
for file, own in ('uid_map', os.getuid()), ('gid_map', os.getgid()):
    assert read('/proc/self/' + file).split() == [b'%d' % own] * 2 + [b'1'], read('/proc/self/' + file)
assert read('/proc/self/setgroups') == b'deny\\n'
refused('become root', lambda: os.setuid(0))
refused('become another', lambda: os.setuid(1))
refused('groups', lambda: os.setgroups([0]))
";
    holds(&world, &[], program);
    holds(&world, &["--nested"], program);
    if is_root() {
        holds(&world, &[], "assert os.getgroups() == [], os.getgroups()");
    }
}

#[test]
fn a_task_is_never_the_hosts_root() {
    let world = World::new();
    let done = world.run(
        &["--name", "w", "--no-land"],
        "id -u > id; echo x > $HOME/own; echo x > /tmp/own; mkdir d; touch d/f; ln -s d/f link",
    );
    done.expect_code(8);
    let dir = task_dirs(&world).remove(0);
    for path in ["upper/id", "upper/d", "upper/d/f", "upper/link", "home/own", "tmp/own"] {
        let owner = std::fs::symlink_metadata(dir.join(path)).expect("written").uid();
        assert_ne!(owner, 0, "{path}");
        if !is_root() {
            assert_eq!(owner, rustix::process::geteuid().as_raw(), "{path}");
        }
    }
}

/// Those of setuid programs that a system has, and one of its own.
#[test]
fn setuid_programs_give_nothing() {
    let world = World::new();
    holds(
        &world,
        &[],
        "
import shutil
for program in ['su', 'root', '-c', 'id -u'], ['mount', '-t', 'tmpfs', 'x', '/mnt'], ['umount', '/usr'], ['passwd', '-d', 'root']:
    if shutil.which(program[0]):
        done = subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True)
        assert done.returncode != 0 and done.stdout.strip() != b'0', (program, done)
shutil.copy('/usr/bin/id', '/tmp/id')
os.chmod('/tmp/id', 0o6755)
assert subprocess.check_output(['/tmp/id', '-u']) == b'%d\\n' % os.getuid()
",
    );
}

#[test]
fn calls_that_administer_the_kernel_or_leave_the_namespaces_are_denied() {
    let world = World::new();
    holds(
        &world,
        &[],
        "
for name in '''acct add_key bpf chroot clock_settime delete_module fanotify_init finit_module fsconfig
        fsmount fsopen fspick init_module kexec_load keyctl mount mount_setattr move_mount
        open_by_handle_at open_tree open_tree_attr perf_event_open pivot_root quotactl reboot request_key setns
        settimeofday swapoff swapon syslog umount2 unshare userfaultfd vhangup'''.split():
    error_is(name, call(name, 0, 0, 0, 0, 0, 0), errno.EPERM)
for name in 'clone3', 'io_uring_setup', 'io_uring_enter', 'io_uring_register':
    error_is(name, call(name, 0, 0, 0, 0, 0, 0), errno.ENOSYS)
NEW = {'ns': 0x20000, 'cgroup': 0x2000000, 'uts': 0x4000000, 'ipc': 0x8000000, 'user': 0x10000000,
       'pid': 0x20000000, 'net': 0x40000000}
for name, flag in NEW.items():
    error_is('clone ' + name, call('clone', flag | signal.SIGCHLD, 0, 0, 0, 0), errno.EPERM)
    error_is('unshare ' + name, call('unshare', flag), errno.EPERM)
    # The kernel looks at the low half of the flags only (CVE-2019-10063 was an ioctl's).
    error_is('clone', call('clone', ctypes.c_ulong(flag | 0xdead << 32), 0, 0, 0, 0), errno.EPERM)
for name in os.listdir('/proc/self/ns'):
    fd = os.open('/proc/self/ns/' + name, os.O_RDONLY)
    error_is('setns ' + name, call('setns', fd, 0), errno.EPERM)
assert in_child(lambda: None) == 0
",
    );
}

/// With a limit of 0 the kernel still starts a handler that is a program
/// (`|/usr/share/apport/apport`), as the host's root; with 1 it does not.
#[test]
fn a_crash_inside_does_not_start_the_hosts_handler() {
    let world = World::new();
    for options in [&[][..], &["--nested"]] {
        let done = inside(
            &world,
            options,
            "
import resource
core = resource.RLIMIT_CORE
for limit in (0, 0), (1, 1), (resource.RLIM_INFINITY,) * 2, (0, 1):
    resource.setrlimit(core, limit)
    assert resource.getrlimit(core) == (1, 1), resource.getrlimit(core)
    pair = struct.pack('QQ', *(value & (1 << 64) - 1 for value in limit))
    libc.syscall(ctypes.c_long(160 if X86 else 164), core, pair)
    resource.prlimit(os.getppid(), core, limit) if os.getppid() > 1 else None
    assert resource.getrlimit(core) == (1, 1), resource.getrlimit(core)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (64, 64)
assert os.WTERMSIG(in_child(lambda: os.abort())) == signal.SIGABRT
os.kill(os.getpid(), signal.SIGSEGV)
",
        )
        .output()
        .expect("dam");
        Done::from(done).expect_code(1).says("signal 11");
    }
}

/// Every namespace is another one than the host's.
#[test]
fn every_namespace_is_the_tasks_own() {
    let world = World::new();
    let host: Vec<String> = ["user", "mnt", "pid", "ipc", "uts", "net", "cgroup"]
        .iter()
        .map(|name| std::fs::read_link(format!("/proc/self/ns/{name}")).expect("ns"))
        .map(|link| link.to_string_lossy().into_owned())
        .collect();
    holds(
        &world,
        &[],
        &format!(
            "
for host in {host:?}:
    name = host.split(':')[0]
    assert os.readlink('/proc/self/ns/' + name) != host, host
assert socket.gethostname() == 'dam'
refused('name the host', lambda: socket.sethostname('x'), errno.EPERM)
"
        ),
    );
}

#[cfg(target_arch = "x86_64")]
#[test]
fn calls_under_another_architectures_numbers_do_not_slip_through() {
    let world = World::new();
    for options in [&[][..], &["--nested"]] {
        holds(
            &world,
            options,
            "
import mmap
def run(code):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    return function()
# mov eax, 39; syscall; ret: the control, getpid.
assert run(b'\\xb8\\x27\\0\\0\\0\\x0f\\x05\\xc3') == os.getpid()
# mov eax, 20; int 0x80; ret: getpid of i386. Killed, or no such thing in this kernel.
status = in_child(lambda: run(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3'))
assert os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGSYS, signal.SIGSEGV), status
# x32: the same calls with bit 30.
for number in 39, 165, 272:
    got = run(b'\\xb8' + struct.pack('I', 0x40000000 | number) + b'\\x0f\\x05\\xc3')
    assert got == -errno.ENOSYS, (number, got)
",
        );
    }
}

#[test]
fn nothing_can_be_typed_into_a_terminal() {
    let world = World::new();
    holds(
        &world,
        &[],
        "
import fcntl, termios
main, side = os.openpty()
for fd in main, side:
    refused('TIOCSTI', lambda: fcntl.ioctl(fd, termios.TIOCSTI, b'x'), errno.EPERM)
    refused('TIOCLINUX', lambda: fcntl.ioctl(fd, 0x541c, b'\\x03'), errno.EPERM)
    error_is('TIOCSTI', libc.ioctl(fd, ctypes.c_ulong(0xdead00000000 | termios.TIOCSTI), b'x') and -ctypes.get_errno(), errno.EPERM)
os.write(main, b'typed\\n')
assert os.read(side, 6) == b'typed\\n'
",
    );
}

/// `dam` started on a terminal, as its foreground process.
#[test]
fn the_callers_terminal_can_not_be_opened() {
    let world = World::new();
    let dam = inside(
        &world,
        &[],
        "
refused('/dev/tty', lambda: os.open('/dev/tty', os.O_RDWR), errno.ENXIO)
assert not any(os.isatty(fd) for fd in range(3))
assert os.listdir('/dev/pts') == ['ptmx']
assert os.getsid(0) == os.getpid()
",
    );
    let host = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
    let mut terminal = Command::new("python3");
    terminal.args(["-c", host]).arg(dam.get_program()).args(dam.get_args());
    terminal.current_dir(&world.repo).env_clear().stdin(std::process::Stdio::null());
    terminal.envs(dam.get_envs().filter_map(|(key, value)| Some((key, value?))));
    Done::from(terminal.output().expect("python3")).expect_code(0);
}

#[test]
fn dev_holds_what_is_expected_and_no_device_can_be_made() {
    let world = World::new();
    holds(
        &world,
        &[],
        "
expected = 'fd full null ptmx pts random shm stderr stdin stdout tty urandom zero'.split()
assert sorted(os.listdir('/dev')) == expected, os.listdir('/dev')
os.makedirs('below')
for place in '/tmp', '/dev/shm', os.environ['HOME'], 'below', '/dev', '/run/dam/out', '/run', '/':
    for kind in stat.S_IFCHR, stat.S_IFBLK:
        for major, minor in (1, 3), (1, 1), (10, 200), (8, 0), (254, 0):
            refused((place, kind), lambda: os.mknod(place + '/node', kind | 0o666, os.makedev(major, minor)))
os.rmdir('below')
for name in 'null', 'zero', 'full', 'random', 'urandom', 'tty':
    path = '/dev/' + name
    refused(name, lambda: os.chmod(path, 0o666))
    refused(name, lambda: os.utime(path, (1, 1)))
    refused(name, lambda: os.utime(path), errno.EROFS, errno.EPERM)
    refused(name, lambda: os.unlink(path))
open('/dev/null', 'w').write('x')
",
    );
}

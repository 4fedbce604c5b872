//! `--nested`: for programs that bring their own sandbox. The mount wall stands
//! without the second one.

use super::{holds, literal};
use crate::support::{World, is_root};

#[test]
fn a_program_can_make_its_own_sandbox() {
    let world = World::new();
    world.run(&["--nested"], "unshare --user --map-root-user true").expect_code(0);
    let proc = if is_root() { "" } else { "--mount-proc" };
    world
        .run(
            &["--nested"],
            &format!(
                "unshare --user --map-root-user --mount --pid --fork --net --ipc --uts {proc} sh -euc '
                 mount -t tmpfs none /mnt; echo x > /mnt/x; mkdir /mnt/l /mnt/u /mnt/w /mnt/m
                 mount -t overlay none -o lowerdir=/mnt/l,upperdir=/mnt/u,workdir=/mnt/w,userxattr /mnt/m
                 mount --bind /tmp /mnt/m; [ $$ = 1 ]'"
            ),
        )
        .expect_code(0);
    world.run(&[], "unshare --user true").expect_code(1);
}

/// As root of a user namespace of its own, with a mount namespace of its own.
const INSIDE_OUT: &str = "
uid, gid = os.getuid(), os.getgid()
assert call('unshare', 0x10000000 | 0x20000 | 0x2000000 | 0x8000000 | 0x40000000) == 0
open('/proc/self/setgroups', 'w').write('deny')
open('/proc/self/uid_map', 'w').write(f'0 {uid} 1'); open('/proc/self/gid_map', 'w').write(f'0 {gid} 1')
assert os.getuid() == 0
MS = {'rdonly': 1, 'nosuid': 2, 'nodev': 4, 'remount': 32, 'bind': 4096, 'rec': 16384, 'private': 1 << 18}
def mount(source, target, kind, flags, data=None):
    text = lambda value: ctypes.c_char_p(os.fsencode(value)) if value is not None else ctypes.c_void_p()
    return call('mount', text(source), text(target), text(kind), flags, text(data))
";

#[test]
fn read_only_mounts_stay_read_only_and_covered_files_stay_covered() {
    let world = World::new();
    let secret = world.dir().join("secret");
    std::fs::write(&secret, "hunter2").expect("write");
    holds(
        &world,
        &["--nested"],
        &format!(
            "{INSIDE_OUT}
secret = {}
error = errno.EPERM, errno.EINVAL, errno.EACCES, errno.EBUSY
table = [line.split() for line in open('/proc/self/mountinfo')]
assert len(table) > 20
os.mkdir('/tmp/place')
for fields in table:
    place, options = fields[4], fields[5].split(',')
    if 'ro' in options:
        error_is('remount ' + place, mount(None, place, None, MS['remount'] | MS['bind']), *error)
        error_is('remount ' + place, mount(None, place, None, MS['remount']), *error)
        attr = struct.pack('QQQQ', 0, 1, 0, 0)
        error_is('setattr ' + place, call('mount_setattr', -100, os.fsencode(place), 0, attr, 32), *error)
    for bit, name in (2, 'nosuid'), (4, 'nodev'), (8, 'noexec'):
        if name in options:
            attr = struct.pack('QQQQ', 0, bit, 0, 0)
            error_is(name + place, call('mount_setattr', -100, os.fsencode(place), 0, attr, 32), *error)
    error_is('umount ' + place, call('umount2', os.fsencode(place), 2), *error)
    if place != '/':
        # A bind without what is mounted below would uncover it.
        if any(other[4].startswith(place + '/') for other in table):
            error_is('bind ' + place, mount(place, '/tmp/place', None, MS['bind']), *error)
        if os.path.isdir(place) and 'ro' in options and place.startswith(('/usr', '/etc', '/run/dam/objects')):
            assert mount(place, '/tmp/place', None, MS['bind'] | MS['rec']) == 0, place
            error_is('remount copy of ' + place, mount(None, '/tmp/place', None, MS['remount'] | MS['bind']), *error)
            refused(place, lambda: open('/tmp/place/dam-new', 'w'), errno.EROFS)
            assert call('umount2', b'/tmp/place', 2) == 0
# A whole copy of the tree, and its bare root.
assert mount('/', '/tmp/place', None, MS['bind'] | MS['rec']) == 0
refused('usr', lambda: open('/tmp/place/usr/dam-new', 'w'), errno.EROFS)
error_is('uncover', call('umount2', b'/tmp/place/proc/sys', 2), *error) if os.path.ismount('/proc/sys') else None
assert not os.path.exists('/tmp/place' + secret)
tree = call('open_tree', -100, b'/', 1)
error_is('tree', tree, *error)
# What needs the file system's own namespace.
for kind in 'ext4', 'xfs', 'btrfs', 'devtmpfs', 'debugfs', 'tracefs', 'securityfs', 'nfs':
    got = mount('/dev/vda', '/mnt', kind, 0)
    assert got < 0, (kind, got)
if {root}:
    error_is('proc', mount('proc', '/mnt', 'proc', 0), errno.EPERM)
error_is('sysfs', mount('sysfs', '/mnt', 'sysfs', 0), errno.EPERM)
refused('node', lambda: os.mknod('/tmp/node', 0o20666, os.makedev(1, 3)), errno.EPERM)
",
            literal(&secret),
            root = if is_root() { "True" } else { "False" },
        ),
    );
}

#[test]
fn nothing_of_the_host_is_reached_from_a_sandbox_inside() {
    let world = World::new();
    let pattern = std::fs::read("/proc/sys/kernel/core_pattern").expect("core_pattern");
    holds(
        &world,
        &["--nested"],
        &format!(
            "{INSIDE_OUT}
for name in 'kernel/core_pattern', 'kernel/modprobe', 'vm/drop_caches', 'kernel/sysrq':
    refused(name, lambda: open('/proc/sys/' + name, 'w'))
refused('sysrq', lambda: open('/proc/sysrq-trigger', 'w'))
for name in 'environ', 'mem', 'maps', 'auxv':
    refused(name, lambda: read('/proc/1/' + name))
for name in 'root', 'cwd', 'exe', 'ns/mnt', 'fd/4':
    refused(name, lambda: os.readlink('/proc/1/' + name))
for attach in 16, 0x4206:
    error_is('ptrace', call('ptrace', attach, 1, 0, 0), errno.EPERM)
pidfd = call('pidfd_open', 1, 0)
for kind in 0x20000, 0x10000000, 0x20000000, 0x40000000, 0x30020000:
    error_is('setns', call('setns', pidfd, kind), errno.EPERM)
for name in '''add_key bpf init_module keyctl kexec_load open_by_handle_at perf_event_open reboot request_key swapon
        syslog userfaultfd'''.split():
    error_is(name, call(name, 0, 0, 0, 0, 0, 0), errno.EPERM)
error_is('io_uring', call('io_uring_setup', 0, 0), errno.ENOSYS)
for number in signal.SIGKILL, signal.SIGSTOP:
    try: os.kill(1, number)
    except PermissionError: pass
assert [name for _, name in socket.if_nameindex()] == ['lo']
refused('vsock', lambda: socket.socket(40, socket.SOCK_STREAM), errno.EAFNOSUPPORT)
"
        ),
    );
    assert_eq!(std::fs::read("/proc/sys/kernel/core_pattern").expect("core_pattern"), pattern);
}

/// Nobody inside can ask for a key. With its own `/proc` a nested program sees
/// what keys of its user are called, as every program of that user does.
#[test]
fn the_persons_keys_can_not_be_used() {
    let world = World::new();
    let join = "
import ctypes, os, sys
libc = ctypes.CDLL(None)
keyctl, add = (250, 248) if os.uname().machine == 'x86_64' else (219, 217)
libc.syscall(keyctl, 1, b'dam-session')
key = libc.syscall(add, b'user', b'dam-hunter2', b'x', ctypes.c_size_t(1), ctypes.c_int(-3))
assert key > 0 and 'dam-hunter2' in open('/proc/keys').read()
os.execv(sys.argv[1], sys.argv[1:-1] + [f'KEY = {key}\\n' + sys.argv[-1]])
";
    for options in [&[][..], &["--nested"]] {
        let dam = super::inside(
            &world,
            options,
            "
buffer = ctypes.create_string_buffer(64)
for operation in 0, 1, 5, 6, 8, 10, 11, 16, 22:
    error_is('keyctl', call('keyctl', operation, KEY, buffer, 64, 0), errno.EPERM)
for operation in 0, 6, 10, 11:
    error_is('keyctl', call('keyctl', operation, -3, buffer, 64, 0), errno.EPERM)
error_is('request', call('request_key', b'user', b'dam-hunter2', 0, 0), errno.EPERM)
error_is('add', call('add_key', b'user', b'x', b'x', 1, -3), errno.EPERM)
if os.path.ismount('/proc/keys'): assert read('/proc/keys') == b''
",
        );
        let mut command = std::process::Command::new("python3");
        command.args(["-c", join]).arg(dam.get_program()).args(dam.get_args());
        command.current_dir(&world.repo).env_clear().stdin(std::process::Stdio::null());
        command.envs(dam.get_envs().filter_map(|(key, value)| Some((key, value?))));
        crate::support::Done::from(command.output().expect("python3")).expect_code(0);
    }
}

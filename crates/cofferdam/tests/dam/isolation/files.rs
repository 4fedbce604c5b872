//! What of the host's files a task sees, and that it can write none of them.

use std::os::unix::fs::PermissionsExt;

use super::{contents, holds, inside, literal, marker, public_dir, task_dirs, unchanged};
use crate::support::{Done, World, is_root};

/// Tries to write in every way that names a path; `PATHS` has to be set.
const NOTHING_CAN_BE_WRITTEN: &str = "
def ways(path):
    yield 'create', lambda: os.close(os.open(path + '/dam-new', os.O_CREAT | os.O_WRONLY))
    yield 'mkdir', lambda: os.mkdir(path + '/dam-new')
    yield 'symlink', lambda: os.symlink('x', path + '/dam-new')
    yield 'fifo', lambda: os.mkfifo(path + '/dam-new')
    yield 'socket', lambda: socket.socket(socket.AF_UNIX).bind(path + '/dam-new')
    yield 'link', lambda: os.link('/tmp/own', path + '/dam-new')
    yield 'unnamed', lambda: os.open(path, os.O_TMPFILE | os.O_WRONLY)
    yield 'chmod', lambda: os.chmod(path, 0o777)
    yield 'chown', lambda: os.chown(path, os.getuid(), os.getgid())
    yield 'touch', lambda: os.utime(path, (1, 1))
    yield 'xattr', lambda: os.setxattr(path, 'user.dam', b'x')
    yield 'rename', lambda: os.rename(path, path + '-dam')
    yield 'replace', lambda: os.rename('/tmp/own', path + '/dam-new')
    yield 'rmdir', lambda: os.rmdir(path)
open('/tmp/own', 'w').close()
for path in PATHS:
    for name, way in ways(path):
        refused((path, name), way)
    for name in sorted(os.listdir(path))[:20]:
        name = os.path.join(path, name)
        if os.path.isfile(name) and not os.path.islink(name):
            for flags in os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND:
                refused((name, flags), lambda: os.open(name, flags))
            refused(name, lambda: os.truncate(name, 0))
            refused(name, lambda: os.unlink(name))
            refused(name, lambda: os.chmod(name, 0o777))
            refused(name, lambda: os.rename(name, '/tmp/taken'))
            refused(name, lambda: os.link(name, '/tmp/linked'))
";

#[test]
fn nothing_of_the_system_can_be_written() {
    let world = World::new();
    for options in [&[][..], &["--nested"]] {
        holds(
            &world,
            options,
            &format!(
                "
PATHS = ['/', '/usr', '/usr/bin', '/usr/lib', '/usr/local', '/usr/local/bin', '/etc', '/dev', '/proc', '/sys/devices/system/cpu',
         '/mnt', '/srv', '/var', '/var/lib', '/var/log', '/var/cache', '/etc/ssl', '/etc/alternatives', '/run/dam/objects/0']
PATHS += [path for path in ('/opt', '/usr/src', '/sys/fs/cgroup') if os.path.isdir(path)]
{NOTHING_CAN_BE_WRITTEN}
"
            ),
        );
    }
}

#[test]
fn the_root_holds_what_is_expected_and_no_secret() {
    let world = World::new();
    holds(
        &world,
        &[],
        "
expected = set('bin dev etc lib lib32 lib64 libx32 mnt nix gnu opt proc run sbin srv sys tmp usr var home'.split())
assert set(os.listdir('/')) <= expected, os.listdir('/')
for path in '''/etc/shadow /etc/shadow- /etc/gshadow /etc/sudoers /etc/sudoers.d /etc/ssh /etc/machine-id /etc/crontab
        /etc/fstab /etc/docker /etc/kubernetes /etc/NetworkManager /etc/krb5.keytab /etc/passwd- /root /boot /var/lib/dpkg
        /var/spool /var/mail /run/docker.sock /run/user /run/systemd /run/dbus /var/run/docker.sock /sys/kernel
        /sys/firmware /sys/class /sys/block /dev/mem /dev/kmsg /dev/kvm /dev/fuse /dev/vsock /dev/mapper'''.split():
    assert not os.path.lexists(path), path
assert set(os.listdir('/run')) == {'dam'} and set(os.listdir('/run/dam')) == {'context.json', 'objects', 'out'}
assert os.listdir('/tmp') == os.listdir('/var/tmp') and len(os.listdir('/tmp')) == 1
assert os.listdir('/dev/shm') == [] and os.listdir('/run/dam/out') == []
for name in 'kcore', 'kallsyms', 'keys', 'key-users', 'kmsg', 'timer_list':
    path = '/proc/' + name
    assert not os.path.exists(path) or read(path) == b'', path
accounts = [line.split(':') for line in open('/etc/passwd')]
assert {account[0] for account in accounts} <= {'root', 'nobody', os.environ['USER']} and len(accounts) == 3
",
    );
}

#[test]
fn the_persons_home_is_empty_inside_and_what_is_written_there_stays() {
    let world = World::new();
    let home = world.home();
    for (name, text) in [
        (".ssh/id_ed25519", "hunter2"),
        (".netrc", "machine x password hunter2"),
        (".aws/credentials", "hunter2"),
        (".config/gh/hosts.yml", "hunter2"),
        (".git-credentials", "https://a:hunter2@x"),
        (".bash_history", "hunter2"),
    ] {
        let path = home.join(name);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
        std::fs::write(path, text).expect("write");
    }
    let before = contents(&home);
    holds(
        &world,
        &[],
        &format!(
            "
home = {}
assert os.environ['HOME'] == home == os.path.expanduser('~')
assert os.listdir(home) == [], os.listdir(home)
os.makedirs(home + '/.ssh')
open(home + '/.ssh/authorized_keys', 'w').write('evil')
open(home + '/.bashrc', 'w').write('evil')
",
            literal(&home)
        ),
    );
    unchanged(&home, &before);
}

/// Beside the repository, in the state directory, in `/tmp`, in a shared home.
#[test]
fn files_of_the_host_outside_the_view_do_not_exist_inside() {
    let world = World::new();
    world.run(&["--name", "other", "--no-land"], "echo hunter2 > a.txt").expect_code(8);
    let tmp = public_dir("/tmp");
    let mut hidden = vec![
        world.dir().join("beside"),
        tmp.path().join("file"),
        world.state(),
        world.state().join("ledger.db"),
        task_dirs(&world)[0].join("upper/a.txt"),
    ];
    std::fs::write(&hidden[0], "hunter2").expect("write");
    std::fs::write(&hidden[1], "hunter2").expect("write");
    assert!(hidden.iter().all(|path| path.exists()), "{hidden:?}");
    hidden.push(world.state().join("contexts/layers"));
    let list: Vec<String> = hidden.iter().map(literal).collect();
    let top = literal(world.dir());
    for options in [&[][..], &["--nested"]] {
        holds(
            &world,
            options,
            &format!(
                "
for path in [{}]:
    assert not os.path.lexists(path), path
assert sorted(os.listdir({top})) == ['home', 'repo'], os.listdir({top})
assert os.listdir('/tmp') == [os.path.basename({top})], os.listdir('/tmp')
",
                list.join(", "),
            ),
        );
    }
    let name = marker("tmp");
    world.run(&[], &format!("echo x > /tmp/{name}")).expect_code(0);
    assert!(!std::path::Path::new("/tmp").join(&name).exists());
}

/// Only the task's own control group: its path is `/`, and with version 2 its
/// limits can be read. The host's groups name its services and containers.
#[test]
fn no_control_group_of_the_host_is_visible() {
    let world = World::new();
    holds(
        &world,
        &[],
        "
assert all(line.rstrip().split(':')[2] == '/' for line in open('/proc/self/cgroup'))
for line in open('/proc/self/mountinfo'):
    left, right = line.split(' - ')
    if right.startswith('cgroup'):
        assert right.startswith('cgroup2 ') and left.split()[3:5] == ['/', '/sys/fs/cgroup'], line
        own = {int(pid) for pid in read('/sys/fs/cgroup/cgroup.procs').split()} - {0}
        assert own <= set(pids()), own
        assert os.path.exists('/sys/fs/cgroup/cgroup.type')
        refused('write', lambda: open('/sys/fs/cgroup/cgroup.procs', 'w'), errno.EROFS, errno.EACCES)
        refused('make', lambda: os.mkdir('/sys/fs/cgroup/x'), errno.EROFS, errno.EACCES)
if os.path.isdir('/sys/fs/cgroup'): assert os.path.ismount('/sys/fs/cgroup')
",
    );
}

/// Field 4 of a bind is the directory's path on its own file system, and no
/// mount option can hide that; an overlay shows what it was told.
#[test]
fn the_mount_table_names_no_file_of_the_host_but_what_was_granted() {
    let world = World::new();
    world.run(&["--name", "other", "--no-land"], "echo x > a.txt").expect_code(8);
    let other = task_dirs(&world).remove(0);
    holds(
        &world,
        &[],
        &format!(
            "
state, other = {}, {}
own = []
for line in open('/proc/self/mountinfo'):
    left, right = line.rstrip('\\n').split(' - ')
    root, place = left.split()[3:5]
    kind, source, options = right.split(' ', 2)
    assert other not in line, line
    if kind == 'overlay':
        assert source == 'dam' and state not in line, line
        for option in options.split(','):
            name, _, value = option.partition('=')
            if name in ('lowerdir', 'upperdir', 'workdir'):
                assert all(re.match('(layers|tasks)/[a-z0-9]+/(tree|upper|work)$', part) for part in value.split(':')), line
    elif root != '/' and 'contexts/tasks/' in root:
        own.append((root.rsplit('/', 1)[1], place))
        assert root.split('/')[-2] == os.environ['DAM_TASK'], line
    if not place.startswith(('/proc', '/dev', '/tmp', '/var/tmp', '/run', os.environ['HOME'])) and kind != 'overlay':
        assert 'ro' in left.split()[5].split(','), line
    assert 'nosuid' in left.split()[5].split(','), line
    assert 'shared:' not in left and 'master:' not in left and 'propagate_from:' not in left, line
assert sorted(own) == sorted([('home', os.environ['HOME']), ('tmp', '/tmp'), ('tmp', '/var/tmp'), ('out', '/run/dam/out')]), own
for file in '/proc/self/mounts', '/proc/self/mountstats':
    assert state not in read(file).decode() and other not in read(file).decode(), file
",
            literal(world.state()),
            literal(other.file_name().expect("name")),
        ),
    );
}

/// Links that a task leaves where `dam` itself reads are not followed.
#[test]
fn headlong_72_links_left_for_the_host_are_not_followed() {
    let world = World::new();
    let secret = world.dir().join("secret");
    std::fs::write(&secret, "hunter2\tcommit: hunter2\n").expect("write");
    let secret = secret.to_str().expect("utf-8");
    for (place, script) in [
        ("message", format!("ln -s {secret} $DAM_MESSAGE")),
        ("log", format!("rm -rf .git/logs; mkdir .git/logs; ln -s {secret} .git/logs/HEAD")),
        ("directory", "rm -rf .git; ln -s /proc/self .git".to_owned()),
        ("out", format!("mkdir $DAM_MESSAGE; ln -s {secret} $DAM_MESSAGE/message")),
        (
            "fifo",
            "mkfifo $DAM_MESSAGE; rm -rf .git/logs; mkdir .git/logs; mkfifo .git/logs/HEAD"
                .to_owned(),
        ),
    ] {
        let done = world.run(&["--no-check"], &format!("echo {place} > a.txt; {script}"));
        assert!(!done.stdout.contains("hunter2") && !done.stderr.contains("hunter2"), "{done:?}");
    }
    assert!(!world.git(["log", "--all", "--format=%B"]).contains("hunter2"));
}

/// A repository below the private home, where a task could have left links for
/// the next assembly of the root view.
#[test]
fn links_in_the_private_home_and_tmp_lead_nowhere() {
    let world = World::new();
    let secret = world.dir().join("secret");
    std::fs::write(&secret, "hunter2").expect("write");
    holds(
        &world,
        &[],
        &format!(
            "
secret = {}
for place in os.environ['HOME'], '/tmp', '/dev/shm', '/run/dam/out':
    for target in secret, '/proc/1/root', '/proc/self/root' + secret, '/proc/self/cwd/../secret', '../' * 20 + secret[1:]:
        link = place + '/link'
        os.symlink(target, link)
        refused(target, lambda: os.open(link, os.O_RDONLY))
        refused(target, lambda: os.listdir(link + '/var/tmp/..' + os.path.dirname(secret) if '/1/' in target else link))
        os.unlink(link)
root = os.open('/', os.O_PATH)
for path in '..', '../..', '.' + secret, '../' * 9 + secret[1:]:
    refused(path, lambda: os.stat(path, dir_fd=root)) if 'secret' in path else None
assert os.stat('/..').st_ino == os.stat('/').st_ino
",
            literal(&secret)
        ),
    );
}

#[test]
fn layers_are_never_written_through_an_overlay() {
    let world = World::new();
    world.script("tool", "exit 0");
    world.write("big.bin", vec![7; 300_000]);
    world.write("deep/er/file", "deep\n");
    std::os::unix::fs::symlink("a.txt", world.path("link")).expect("symlink");
    world.git(["add", "--all"]);
    world.git(["commit", "--quiet", "--message", "more"]);
    world.run(&["--name", "warm"], "true").expect_code(0);
    let layers = world.state().join("contexts/layers");
    let before = contents(&layers);
    assert!(before.len() > 8, "{before:?}");
    let attack = "
import mmap
with open('big.bin', 'r+b') as file:
    shared = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED)
    shared[:4] = b'evil'; shared.flush()
# Opened before the copy, written after it.
early = os.open('a.txt', os.O_RDONLY)
os.chmod('a.txt', 0o777)
for fd in early,:
    refused('write', lambda: os.write(fd, b'x'))
    refused('truncate', lambda: os.ftruncate(fd, 0))
again = os.open(f'/proc/self/fd/{early}', os.O_RDWR); os.write(again, b'evil')
os.fchmod(early, 0o4777); os.utime(early, (1, 1))
os.truncate('tool', 0); os.chmod('tool', 0)
os.link('src/b.txt', 'hard'); open('hard', 'w').write('evil')
os.rename('big.bin', 'moved'); os.rename('link', 'relink')
for name in 'user.x', 'user.overlay.opaque', 'user.overlay.redirect', 'user.overlay.metacopy', 'user.overlay.origin':
    for path in 'src', 'src/b.txt', '.':
        try: os.setxattr(path, name, b'y')
        except OSError: pass
assert os.path.exists('deep/er/file')
os.setxattr('deep', 'user.overlay.opaque', b'y') if False else None
import shutil
shutil.rmtree('deep'); os.mkdir('deep'); os.chmod('.', 0o700)
for name in os.listdir('.git'):
    path = '.git/' + name
    shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
try: os.chown('src', os.getuid(), os.getgid())
except OSError: pass
os.open('.', os.O_TMPFILE | os.O_RDWR)
sys.exit(3)
";
    for options in [&[][..], &["--nested"]] {
        Done::from(inside(&world, options, attack).output().expect("dam"))
            .expect_code(1)
            .says("exit code 3");
        unchanged(&layers, &before);
    }
}

#[test]
fn borrowed_objects_are_read_only() {
    let world = World::new();
    let objects = world.path(".git/objects");
    let before = contents(&objects);
    let own = std::fs::metadata(&objects).expect("objects").permissions().mode();
    holds(
        &world,
        &["--nested"],
        &format!(
            "
PATHS = ['/run/dam/objects/0', '/run/dam/objects/0/pack', '/run/dam/objects/0/info']
PATHS += [where for where, _, files in os.walk('/run/dam/objects/0') if files][:3]
{NOTHING_CAN_BE_WRITTEN}
subprocess.run(['git', 'gc', '--prune=now', '--quiet'], check=True)
subprocess.run(['git', 'cat-file', 'commit', 'HEAD'], check=True, stdout=subprocess.DEVNULL)
refused('exec', lambda: os.execv('/run/dam/objects/0/info', ['x']))
"
        ),
    );
    unchanged(&objects, &before);
    assert_eq!(std::fs::metadata(&objects).expect("objects").permissions().mode(), own);
}

/// Directories that are granted to every task: what of the person's lies there
/// is covered.
#[test]
fn a_state_directory_in_a_granted_directory_is_hidden() {
    if !is_root() {
        // Only root can make one there.
        std::fs::create_dir("/opt/dam-test").expect_err("an ordinary user can write in /opt");
        return;
    }
    let world = World::new();
    let opt = public_dir("/opt");
    let link = world.dir().join("link");
    std::os::unix::fs::symlink(opt.path(), &link).expect("symlink");
    for (state, options) in [
        (opt.path().join("state"), &[][..]),
        (opt.path().join("state"), &["--nested"]),
        (link.join("linked"), &[]),
    ] {
        let program = format!(
            "
state = {}
assert os.path.isdir(os.path.dirname(state)) and os.listdir(state) == [], os.listdir(state)
assert not os.path.exists(state + '/ledger.db')
",
            literal(opt.path().join(state.file_name().expect("name")))
        );
        let mut command = inside(&world, options, &program);
        command.env("COFFERDAM_STATE", &state);
        Done::from(command.output().expect("dam")).expect_code(0);
        assert!(state.join("ledger.db").exists());
    }
}

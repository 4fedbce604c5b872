//! The seccomp deny-list, assembled by hand.
//!
//! By hand because three things here are beyond what filter libraries give:
//! a different error per call, the guard against x32 numbers (the same calls
//! under other numbers, which a deny-list by number would let through), and
//! argument tests on `clone`, `socket` and `ioctl`.
//!
//! What is denied is what reaches the kernel's administration or leaves the
//! namespaces; ordinary programs, debuggers among them, notice nothing.
//! `clone3` and `io_uring` answer ENOSYS, so that callers fall back: the flags
//! of the one and the operations of the other can't be seen by a filter.

use std::io;

use crate::Wall;

type Insn = libc::sock_filter;

const LD_W_ABS: u16 = 0x20;
const JEQ_K: u16 = 0x15;
const JGE_K: u16 = 0x35;
const JSET_K: u16 = 0x45;
const RET_K: u16 = 0x06;

const OFF_NR: u32 = 0;
const OFF_ARCH: u32 = 4;
const fn off_arg_low(index: u32) -> u32 {
    // Both supported architectures are little-endian.
    16 + 8 * index
}
const fn off_arg_high(index: u32) -> u32 {
    off_arg_low(index) + 4
}

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_KILL_PROCESS: u32 = 0x8000_0000;
const fn ret_errno(errno: i32) -> u32 {
    0x0005_0000 | errno as u32
}

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xC000_00B7;

#[cfg(target_arch = "x86_64")]
const X32_BIT: u32 = 0x4000_0000;

/// `open_tree` and `mount_setattr` in one, of Linux 6.15; the same number everywhere.
const OPEN_TREE_ATTR: libc::c_long = 467;

/// Families whose sockets reach past every network namespace: the hypervisor,
/// and the other processors of a Qualcomm board (`net/qrtr/af_qrtr.c`).
const AF_QIPCRTR: libc::c_int = 42;
const BEYOND_NAMESPACES: [libc::c_int; 2] = [libc::AF_VSOCK, AF_QIPCRTR];

const CLONE_NEW_ANY: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// Denied always.
const DENIED: &[(libc::c_long, i32)] = &[
    (libc::SYS_acct, libc::EPERM),
    (libc::SYS_add_key, libc::EPERM),
    (libc::SYS_bpf, libc::EPERM),
    (libc::SYS_clock_adjtime, libc::EPERM),
    (libc::SYS_clock_settime, libc::EPERM),
    (libc::SYS_delete_module, libc::EPERM),
    (libc::SYS_fanotify_init, libc::EPERM),
    (libc::SYS_finit_module, libc::EPERM),
    (libc::SYS_init_module, libc::EPERM),
    (libc::SYS_io_uring_enter, libc::ENOSYS),
    (libc::SYS_io_uring_register, libc::ENOSYS),
    (libc::SYS_io_uring_setup, libc::ENOSYS),
    (libc::SYS_kexec_file_load, libc::EPERM),
    (libc::SYS_kexec_load, libc::EPERM),
    (libc::SYS_keyctl, libc::EPERM),
    (libc::SYS_open_by_handle_at, libc::EPERM),
    (libc::SYS_perf_event_open, libc::EPERM),
    (libc::SYS_quotactl, libc::EPERM),
    (libc::SYS_quotactl_fd, libc::EPERM),
    (libc::SYS_reboot, libc::EPERM),
    (libc::SYS_request_key, libc::EPERM),
    (libc::SYS_settimeofday, libc::EPERM),
    (libc::SYS_swapoff, libc::EPERM),
    (libc::SYS_swapon, libc::EPERM),
    (libc::SYS_syslog, libc::EPERM),
    (libc::SYS_userfaultfd, libc::EPERM),
    (libc::SYS_vhangup, libc::EPERM),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_ioperm, libc::EPERM),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_iopl, libc::EPERM),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_uselib, libc::ENOSYS),
];

/// Denied unless the task brings its own sandbox.
const DENIED_UNLESS_NESTED: &[(libc::c_long, i32)] = &[
    (libc::SYS_chroot, libc::EPERM),
    (libc::SYS_clone3, libc::ENOSYS),
    (libc::SYS_fsconfig, libc::EPERM),
    (libc::SYS_fsmount, libc::EPERM),
    (libc::SYS_fsopen, libc::EPERM),
    (libc::SYS_fspick, libc::EPERM),
    (libc::SYS_mount, libc::EPERM),
    (libc::SYS_mount_setattr, libc::EPERM),
    (libc::SYS_move_mount, libc::EPERM),
    (libc::SYS_open_tree, libc::EPERM),
    (OPEN_TREE_ATTR, libc::EPERM),
    (libc::SYS_pivot_root, libc::EPERM),
    (libc::SYS_setns, libc::EPERM),
    (libc::SYS_umount2, libc::EPERM),
    (libc::SYS_unshare, libc::EPERM),
];

const fn stmt(code: u16, k: u32) -> Insn {
    Insn { code, jt: 0, jf: 0, k }
}

const fn jump(code: u16, k: u32, jt: u8, jf: u8) -> Insn {
    Insn { code, jt, jf, k }
}

/// What each filter begins with: other architectures and other numbers for the same
/// calls are no way past it. The number of the call is loaded then.
fn beginning() -> Vec<Insn> {
    let mut code = vec![
        stmt(LD_W_ABS, OFF_ARCH),
        jump(JEQ_K, AUDIT_ARCH, 1, 0),
        stmt(RET_K, RET_KILL_PROCESS),
        stmt(LD_W_ABS, OFF_NR),
    ];
    #[cfg(target_arch = "x86_64")]
    code.extend([jump(JGE_K, X32_BIT, 0, 1), stmt(RET_K, ret_errno(libc::ENOSYS))]);
    code
}

/// The filter as the kernel takes it.
fn program(wall: Wall) -> Vec<Insn> {
    let mut code = beginning();
    let unless_nested = if wall == Wall::Nested { &[][..] } else { DENIED_UNLESS_NESTED };
    for (number, errno) in DENIED.iter().chain(unless_nested) {
        code.extend([jump(JEQ_K, *number as u32, 0, 1), stmt(RET_K, ret_errno(*errno))]);
    }
    if wall != Wall::Nested {
        code.extend([
            jump(JEQ_K, libc::SYS_clone as u32, 0, 4),
            stmt(LD_W_ABS, off_arg_low(0)),
            jump(JSET_K, CLONE_NEW_ANY, 0, 1),
            stmt(RET_K, ret_errno(libc::EPERM)),
            stmt(RET_K, RET_ALLOW),
        ]);
    }
    code.extend([
        jump(JEQ_K, libc::SYS_socket as u32, 0, 5),
        stmt(LD_W_ABS, off_arg_low(0)),
        jump(JEQ_K, BEYOND_NAMESPACES[0] as u32, 1, 0),
        jump(JEQ_K, BEYOND_NAMESPACES[1] as u32, 0, 1),
        stmt(RET_K, ret_errno(libc::EAFNOSUPPORT)),
        stmt(RET_K, RET_ALLOW),
    ]);
    // Typing into the terminal of whoever started the run.
    code.extend([
        jump(JEQ_K, libc::SYS_ioctl as u32, 0, 5),
        stmt(LD_W_ABS, off_arg_low(1)),
        jump(JEQ_K, libc::TIOCSTI as u32, 1, 0),
        jump(JEQ_K, libc::TIOCLINUX as u32, 0, 1),
        stmt(RET_K, ret_errno(libc::EPERM)),
        stmt(RET_K, RET_ALLOW),
    ]);
    // The limit that keeps a crash from the host's handler stays as it is; who
    // sets it, to 0 more often than not, is told that it was done.
    code.extend([
        jump(JEQ_K, libc::SYS_setrlimit as u32, 0, 4),
        stmt(LD_W_ABS, off_arg_low(0)),
        jump(JEQ_K, libc::RLIMIT_CORE, 0, 1),
        stmt(RET_K, ret_errno(0)),
        stmt(RET_K, RET_ALLOW),
        jump(JEQ_K, libc::SYS_prlimit64 as u32, 0, 8),
        stmt(LD_W_ABS, off_arg_low(1)),
        jump(JEQ_K, libc::RLIMIT_CORE, 0, 4),
        stmt(LD_W_ABS, off_arg_low(2)),
        jump(JEQ_K, 0, 0, 3),
        stmt(LD_W_ABS, off_arg_high(2)),
        jump(JEQ_K, 0, 0, 1),
        stmt(RET_K, RET_ALLOW),
        stmt(RET_K, ret_errno(0)),
    ]);
    code.push(stmt(RET_K, RET_ALLOW));
    code
}

/// Puts the filter on the calling thread and what it starts; `no_new_privs`
/// must be set.
///
/// # Errors
/// What the kernel says; the task must not start then.
pub(crate) fn restrict(wall: Wall) -> io::Result<()> {
    load(program(wall))
}

/// As [`restrict`], for who sees the host's processes: Landlock keeps signals from
/// them, and nothing but this keeps limits from them, of which one kills.
///
/// # Errors
/// As [`restrict`].
pub(crate) fn restrict_in_hosts_view() -> io::Result<()> {
    load(hosts_program())
}

fn hosts_program() -> Vec<Insn> {
    let mut code = beginning();
    code.extend([
        jump(JEQ_K, libc::SYS_prlimit64 as u32, 0, 7),
        // Its own.
        stmt(LD_W_ABS, off_arg_low(0)),
        jump(JEQ_K, 0, 5, 0),
        // No new limit: only a question.
        stmt(LD_W_ABS, off_arg_low(2)),
        jump(JEQ_K, 0, 0, 2),
        stmt(LD_W_ABS, off_arg_high(2)),
        jump(JEQ_K, 0, 1, 0),
        stmt(RET_K, ret_errno(libc::EPERM)),
        stmt(RET_K, RET_ALLOW),
    ]);
    code
}

fn load(mut code: Vec<Insn>) -> io::Result<()> {
    let filter = libc::sock_fprog {
        len: u16::try_from(code.len()).expect("a short program"),
        filter: code.as_mut_ptr(),
    };
    // SAFETY: the kernel copies the program during the call; `code` outlives it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0u32,
            std::ptr::from_ref(&filter),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel would.
    fn verdict(wall: Wall, arch: u32, nr: u32, args: [u64; 6]) -> u32 {
        run(&program(wall), arch, nr, args)
    }

    fn run(code: &[Insn], arch: u32, nr: u32, args: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend(nr.to_le_bytes());
        data.extend(arch.to_le_bytes());
        data.extend(0u64.to_le_bytes());
        args.iter().for_each(|arg| data.extend(arg.to_le_bytes()));
        let (mut at, mut acc) = (0usize, 0u32);
        loop {
            let insn = &code[at];
            at += 1;
            let take = |yes: bool| usize::from(if yes { insn.jt } else { insn.jf });
            match insn.code {
                LD_W_ABS => {
                    let off = insn.k as usize;
                    acc = u32::from_le_bytes(data[off..off + 4].try_into().expect("word"));
                }
                JEQ_K => at += take(acc == insn.k),
                JGE_K => at += take(acc >= insn.k),
                JSET_K => at += take(acc & insn.k != 0),
                RET_K => return insn.k,
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    fn call(wall: Wall, nr: libc::c_long, args: [u64; 6]) -> u32 {
        verdict(wall, AUDIT_ARCH, nr as u32, args)
    }

    #[test]
    fn every_denied_call_is_denied() {
        for (nr, errno) in DENIED.iter().chain(DENIED_UNLESS_NESTED) {
            assert_eq!(call(Wall::Full, *nr, [0; 6]), ret_errno(*errno), "{nr}");
        }
        for (nr, _) in DENIED_UNLESS_NESTED {
            assert_eq!(call(Wall::Nested, *nr, [0; 6]), RET_ALLOW, "{nr}");
        }
        for nr in [libc::SYS_read, libc::SYS_execve, libc::SYS_openat, libc::SYS_ptrace] {
            assert_eq!(call(Wall::Full, nr, [0; 6]), RET_ALLOW, "{nr}");
        }
    }

    #[test]
    fn arguments_decide_for_clone_socket_ioctl() {
        let arg0 = |value| [value, 0, 0, 0, 0, 0];
        let arg1 = |value| [0, value, 0, 0, 0, 0];
        let denied = ret_errno(libc::EPERM);
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWPID, libc::CLONE_NEWNET]
        {
            let args = arg0(flag as u64 | libc::SIGCHLD as u64);
            assert_eq!(call(Wall::Full, libc::SYS_clone, args), denied);
            assert_eq!(call(Wall::Nested, libc::SYS_clone, args), RET_ALLOW);
        }
        let thread = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u64;
        assert_eq!(call(Wall::Full, libc::SYS_clone, arg0(thread)), RET_ALLOW);
        for family in BEYOND_NAMESPACES {
            let args = arg0(family as u64);
            assert_eq!(call(Wall::Full, libc::SYS_socket, args), ret_errno(libc::EAFNOSUPPORT));
        }
        assert_eq!(call(Wall::Full, libc::SYS_socket, arg0(libc::AF_UNIX as u64)), RET_ALLOW);
        for request in [libc::TIOCSTI, libc::TIOCLINUX] {
            assert_eq!(call(Wall::Full, libc::SYS_ioctl, arg1(request)), denied);
            // The kernel looks at the low 32 bits only (CVE-2019-10063).
            let high = arg1(request | 0xdead_0000_0000);
            assert_eq!(call(Wall::Full, libc::SYS_ioctl, high), denied);
        }
        assert_eq!(call(Wall::Full, libc::SYS_ioctl, arg1(libc::TIOCGWINSZ)), RET_ALLOW);
    }

    #[test]
    fn the_core_limit_can_be_read_and_not_set() {
        let core = u64::from(libc::RLIMIT_CORE);
        let done = ret_errno(0);
        for wall in [Wall::Full, Wall::Nested] {
            assert_eq!(call(wall, libc::SYS_setrlimit, [core, 1, 0, 0, 0, 0]), done);
            assert_eq!(call(wall, libc::SYS_setrlimit, [7, 1, 0, 0, 0, 0]), RET_ALLOW);
            assert_eq!(call(wall, libc::SYS_prlimit64, [0, core, 0, 1, 0, 0]), RET_ALLOW);
            assert_eq!(call(wall, libc::SYS_prlimit64, [0, 7, 1, 1, 0, 0]), RET_ALLOW);
            for new in [1, 1 << 32, 0x7fff_0000_0000] {
                assert_eq!(call(wall, libc::SYS_prlimit64, [0, core, new, 0, 0, 0]), done);
            }
        }
    }

    #[test]
    fn other_architectures_and_x32_do_not_slip_through() {
        assert_eq!(verdict(Wall::Full, 0x4000_0003, 3, [0; 6]), RET_KILL_PROCESS);
        #[cfg(target_arch = "x86_64")]
        assert_eq!(
            verdict(Wall::Full, AUDIT_ARCH, X32_BIT | libc::SYS_mount as u32, [0; 6]),
            ret_errno(libc::ENOSYS)
        );
    }

    #[test]
    fn in_the_hosts_view_limits_are_ones_own() {
        let code = hosts_program();
        let ask = |nr: libc::c_long, args| run(&code, AUDIT_ARCH, nr as u32, args);
        let limit = libc::SYS_prlimit64;
        assert_eq!(ask(limit, [0, 0, 0x7f00_0000_1000, 0, 0, 0]), RET_ALLOW);
        assert_eq!(ask(limit, [42, 0, 0, 0x1000, 0, 0]), RET_ALLOW);
        for pointer in [0x1000, 0x7f00_0000_0000] {
            assert_eq!(ask(limit, [42, 0, pointer, 0, 0, 0]), ret_errno(libc::EPERM));
        }
        assert_eq!(ask(libc::SYS_mount, [42, 0, 1, 0, 0, 0]), RET_ALLOW);
        assert_eq!(run(&code, 0, limit as u32, [0; 6]), RET_KILL_PROCESS);
    }
}

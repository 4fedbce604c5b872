import ctypes, errno, os, platform, re, signal, socket, stat, struct, subprocess, sys

libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
# Numbers of x86_64 and of the generic table; from 424 on they are the same.
NR = {
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "chroot": (161, 51),
    "clock_settime": (227, 112), "clone": (56, 220), "clone3": (435, 435),
    "delete_module": (176, 106), "fanotify_init": (300, 262), "finit_module": (313, 273),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433),
    "init_module": (175, 105), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "kcmp": (312, 272), "kexec_load": (246, 104),
    "keyctl": (250, 219), "listmount": (458, 458), "mknodat": (259, 33), "mount": (165, 40),
    "mount_setattr": (442, 442), "move_mount": (429, 429), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434),
    "pivot_root": (155, 41), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "ptrace": (101, 117), "quotactl": (179, 60), "reboot": (169, 142), "request_key": (249, 218),
    "setns": (308, 268), "settimeofday": (164, 170), "swapoff": (168, 225), "swapon": (167, 224),
    "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}


def call(name, *args):
    """The result of a system call, or its error number, negative."""
    number = NR[name][0 if X86 else 1]
    args = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *args)
    return -ctypes.get_errno() if result == -1 else result


def refused(what, action, *errors):
    """`action` must fail, with one of `errors` if any are named."""
    try:
        got = action()
    except OSError as error:
        assert not errors or error.errno in errors, f"{what}: {error!r}"
    else:
        raise AssertionError(f"{what} was possible: {got!r}")


def error_is(what, result, *errors):
    """A result of `call` must be one of `errors`."""
    assert -result in errors, f"{what}: {result} ({os.strerror(-result) if result < 0 else 'done'})"


def read(path):
    with open(path, "rb") as file:
        return file.read()


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def in_child(action):
    """Runs `action` in a child; its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(99)
    return os.waitpid(pid, 0)[1]

"""What people would use instead, as far as this machine has it."""

import os
import pathlib
import shutil
import signal
import subprocess
import time

import own
from bed import Missing

WORKERS = (1, 2, 4, 8)


# A place of one's own for the files of a task.


def checkouts(bed, rounds, with_jj):
    """Each peer once a round at each size. What they make stays until the end: after
    many files were deleted, a file system can be slow for whoever makes new ones."""
    copies = Copies(bed)
    try:
        for size in bed.sizes:
            cases = [(own.cold, bed, size), (worktree, bed, size), (clone, bed, size)]
            cases.append((copy, bed, size))
            if bed.with_reason("jj workspace add", jj_repository, bed, size, with_jj):
                cases.append((jj_workspace, bed, size, with_jj))
            for kind in (Reflink, Snapshot):
                filesystem = bed.with_reason(kind.row, copies.of, kind, size)
                if filesystem:
                    cases.append((filesystem.copy, bed, size))
            bed.rounds(rounds, cases)
    finally:
        copies.end()


def new_path(bed, kind, size):
    number = bed.facts.setdefault("_made", {})
    number[kind] = number.get(kind, 0) + 1
    return str(bed.place / f"{kind}-{size}-{number[kind]}")


def worktree(bed, size):
    """The first round tries how many workers are best, later ones take those. What was
    added goes after the last was added, for a deletion slows down who adds next."""
    best = f"worktree workers {size}"
    numbers = [bed.facts[best]] if best in bed.facts else WORKERS
    removals = []
    for workers in numbers:
        path = new_path(bed, "worktree", size)
        git = ["git", "-c", f"checkout.workers={workers}", "worktree"]
        add = [*git, "add", "--detach", path]
        bed.timed(f"worktree add {workers} {size}", add, bed.repo(size))
        removals.append((f"worktree remove {workers} {size}", [*git, "remove", "--force", path]))
    for row, remove in removals:
        bed.timed(row, remove, bed.repo(size))
    if best not in bed.facts:
        first = {workers: bed.median(f"worktree add {workers} {size}") for workers in WORKERS}
        bed.facts[best] = min(first, key=first.get)


def clone(bed, size):
    path = new_path(bed, "clone", size)
    bed.timed(
        f"clone --shared {size}", ["git", "clone", "-q", "--shared", str(bed.repo(size)), path]
    )


def copy(bed, size):
    path = new_path(bed, "copy", size)
    bed.timed(f"cp -a {size}", ["cp", "-a", str(bed.repo(size)), path])


def jj_repository(bed, size, program):
    program = program or shutil.which("jj")
    if not program:
        raise Missing("there is no `jj`; `benches/run.sh --with-jj` builds it")
    place = bed.place / f"jj-{size}"
    if not place.exists():
        bed.run(["git", "clone", "-q", "--shared", str(bed.repo(size)), str(place)])
        bed.run([program, "git", "init", "--colocate"], cwd=place)
        bed.facts["jj"] = bed.run([program, "--version"]).strip()
    return place


def jj_workspace(bed, size, program):
    argv = [program or "jj", "workspace", "add", new_path(bed, "jj-workspace", size)]
    bed.timed(f"jj workspace add {size}", argv, bed.place / f"jj-{size}")


class Copies:
    """File systems in images of their own, for copies that this one can't make."""

    def __init__(self, bed):
        self.bed = bed
        self.mounted = {}

    def of(self, kind, size):
        if kind.row not in self.mounted:
            if not self.bed.is_root:
                raise Missing("only root can mount an image")
            program = f"mkfs.{kind.name}"
            if not shutil.which(program):
                raise Missing(f"there is no `{program}`")
            image, at = self.bed.place / f"{kind.name}.img", self.bed.place / kind.name
            with open(image, "wb") as file:
                file.truncate(8 << 30)
            self.bed.run([program, "-q", str(image)])
            at.mkdir()
            self.bed.run(["mount", "-o", "loop", str(image), str(at)])
            self.mounted[kind.row] = kind(at)
        self.mounted[kind.row].fill(self.bed, size)
        return self.mounted[kind.row]

    def end(self):
        for filesystem in self.mounted.values():
            subprocess.run(["umount", str(filesystem.at)], check=False)


class Reflink:
    """A copy of a checkout that shares its blocks."""

    name, row = "xfs", "reflink copy (XFS)"

    def __init__(self, at):
        self.at = at

    def fill(self, bed, size):
        bed.run(["cp", "-a", str(bed.repo(size)), str(self.at / f"repo-{size}")])
        bed.run(["sync", "-f", str(self.at)])

    def copy(self, bed, size):
        to = self.at / pathlib.Path(new_path(bed, self.name, size)).name
        source = str(self.at / f"repo-{size}")
        bed.timed(f"{self.row} {size}", ["cp", "-a", "--reflink=always", source, str(to)])


class Snapshot(Reflink):
    """A checkout that is a subvolume, and snapshots of it."""

    name, row = "btrfs", "snapshot (btrfs)"

    def fill(self, bed, size):
        top = self.at / f"repo-{size}"
        bed.run(["btrfs", "subvolume", "create", str(top)])
        bed.run(["cp", "-a", f"{bed.repo(size)}/.", str(top)])
        bed.run(["sync", "-f", str(self.at)])

    def copy(self, bed, size):
        to = self.at / pathlib.Path(new_path(bed, self.name, size)).name
        source = str(self.at / f"repo-{size}")
        bed.timed(f"{self.row} {size}", ["btrfs", "subvolume", "snapshot", source, str(to)])


# A boundary for the processes of a task.


def engines(bed, rounds):
    """`podman run` and `docker run` of an image that holds one small program."""
    cases, ends = [], []
    try:
        for row, open_engine in (("podman run", podman), ("docker run", docker)):
            argv = bed.with_reason(row, open_engine, bed, ends)
            if argv:
                cases.append((bed.timed, row, argv))
        if cases:
            cases.append((bed.timed, "bwrap (beside engines)", own.BWRAP))
            own_argv = [bed.dam, *own.RUN, "true"]
            where = bed.repo(bed.sizes[-1])
            cases.append((bed.timed, "dam (beside engines)", own_argv, where))
        bed.rounds(rounds, cases)
    finally:
        for end in reversed(ends):
            end()


def image(bed):
    if not bed.first:
        raise Missing("`first.c` was not built")
    tar = bed.place / "image.tar"
    if not tar.exists():
        top = pathlib.Path(bed.first).parent
        bed.run(["tar", "-C", str(top), "-cf", str(tar), pathlib.Path(bed.first).name])
    return str(tar)


def podman(bed, ends):
    if not shutil.which("podman"):
        raise Missing("there is no `podman`")
    top = bed.place / "podman"
    base = ["podman", "--root", str(top / "root"), "--runroot", str(top / "run")]
    run = ["run", "--rm", "--network", "none"]
    usual = [*base, *run, "bench", "/first"]
    # Where the runtime that it would take can't cope with this machine's control groups.
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000"]
    with_runc = [*base, "--runtime", "runc", *run, *limits, "bench", "/first"]
    ends.append(lambda: subprocess.run([*base, "rmi", "-fa"], env=bed.env, capture_output=True))
    bed.run([*base, "import", image(bed), "bench"])
    try:
        bed.run(usual)
        return usual
    except Missing:
        bed.run(with_runc)
        bed.facts["podman run"] = "--runtime runc"
        return with_runc


def docker(bed, ends):
    if not shutil.which("docker"):
        raise Missing("there is no `docker`")
    client = ["docker"]
    if subprocess.run([*client, "info"], env=bed.env, capture_output=True).returncode != 0:
        client = own_docker(bed, ends)
    bed.run([*client, "import", image(bed), "dam-bench"])
    ends.append(
        lambda: subprocess.run(
            [*client, "rmi", "-f", "dam-bench"], env=bed.env, capture_output=True
        )
    )
    argv = [*client, "run", "--rm", "--network", "none", "dam-bench", "/first"]
    bed.run(argv)
    return argv


def own_docker(bed, ends):
    """A daemon that nobody else uses, ended with the bench."""
    if not bed.is_root or not shutil.which("dockerd"):
        raise Missing("no daemon answers, and none can be started here")
    top = bed.place / "docker"
    top.mkdir()
    host = f"unix://{top}/socket"
    argv = ["dockerd", "--host", host, "--data-root", f"{top}/data", "--exec-root", f"{top}/exec"]
    argv += ["--pidfile", f"{top}/pid", "--bridge=none", "--iptables=false"]
    argv += ["--ip-forward=false", "--ip-masq=false"]
    with open(top / "log", "wb") as log:
        daemon = subprocess.Popen(argv, env=os.environ, stdin=bed.out, stdout=log, stderr=log)

    def end():
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()

    ends.append(end)
    client = ["docker", "--host", host]
    for _ in range(100):
        if subprocess.run([*client, "info"], env=bed.env, capture_output=True).returncode == 0:
            return client
        if daemon.poll() is not None:
            break
        time.sleep(0.2)
    lines = (top / "log").read_text(errors="replace").splitlines()
    raise Missing(f"`dockerd` does not answer: {' '.join(lines[-1:])}")

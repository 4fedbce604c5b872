"""Where everything is measured: repositories, environment, clocks, what was found."""

import json
import os
import pathlib
import random
import select
import shutil
import statistics
import subprocess
import sys
import time

WORDS = "tide dam wall river gate layer stone water level branch tree merge file".split()
RUN = "run --no-check --no-land --".split()


class Missing(Exception):
    """What can't be measured here, and why."""


class Bed:
    """Everything is made below `place`; nothing else is touched. The machine may be
    busy with other things: what counts are the ratios of medians of the same run."""

    def __init__(self, args):
        self.dam = str(args.dam.resolve())
        self.library = args.library and str(args.library.resolve())
        self.first = args.first and str(args.first.resolve())
        self.publication = args.publication and str(args.publication.resolve())
        self.overlay_bwrap = args.bwrap
        self.place = args.place.resolve()
        self.sizes = sorted(int(size) for size in args.sizes.split(","))
        self.is_root = os.geteuid() == 0
        self.state = self.place / "state"
        self.out = os.open("/dev/null", os.O_RDWR)
        home = self.place / "home"
        home.mkdir()
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LC_ALL": "C",
            "COFFERDAM_STATE": str(self.state),
        }
        (home / ".gitconfig").write_text(
            "[user]\n\tname = Bench\n\temail = bench@example.com\n"
            "[gc]\n\tauto = 0\n[advice]\n\tdetachedHead = false\n"
        )
        self.times = {}
        self.facts = {}
        self.skipped = {}

    # What is measured on.

    def repo(self, size):
        return self.place / f"repo-{size}"

    def make_repository(self, size):
        """`size` files of 40 B to 4 KB, a hundred a directory; the same each time."""
        chance = random.Random(size)

        def files():
            for number in range(size):
                length = chance.randint(40, 4096)
                line = " ".join(chance.choices(WORDS, k=8)) + f" {number}\n"
                yield path_of(number), (line * (length // len(line) + 1))[:length].encode()
            if self.first:
                yield "first", pathlib.Path(self.first).read_bytes()

        self.commit(self.repo(size), files())

    def commit(self, top, files):
        """Makes a repository with one commit of these files, checked out."""
        subprocess.run(["git", "init", "-q", "-b", "main", top], env=self.env, check=True)
        fast_import = subprocess.Popen(
            ["git", "fast-import", "--quiet"], cwd=top, env=self.env, stdin=subprocess.PIPE
        )
        put = fast_import.stdin.write
        put(b"commit refs/heads/main\ncommitter Bench <bench@example.com> 1700000000 +0000\n")
        put(b"data 5\nfiles\n")
        for path, text in files:
            mode = 100755 if path == "first" else 100644
            put(f"M {mode} inline {path}\ndata {len(text)}\n".encode() + text + b"\n")
        put(b"done\n")
        fast_import.stdin.close()
        if fast_import.wait() != 0:
            sys.exit("git fast-import failed")
        self.run(["git", "reset", "-q", "--hard", "main"], cwd=top)

    # How it is measured.

    def run(self, argv, cwd="/", env=None):
        """Runs what is not timed; gives what it printed. A failure is a reason."""
        done = subprocess.run(
            argv, cwd=cwd, env=env or self.env, capture_output=True, stdin=self.out, text=True
        )
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.strip()]
            raise Missing(f"`{argv[0]}` ended with {done.returncode}: {' '.join(said[-1:])}")
        return done.stdout

    def timed(self, name, argv, cwd="/", env=None):
        """Runs `argv`; nothing of what is timed is the harness's own work."""
        program = argv[0] if "/" in argv[0] else shutil.which(argv[0])
        os.chdir(cwd)
        said = os.open(self.place / "said", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        ends = ((self.out, 0), (self.out, 1), (said, 2))
        actions = [(os.POSIX_SPAWN_DUP2, *end) for end in ends]
        begun = time.perf_counter_ns()
        pid = os.posix_spawn(program, argv, env or self.env, file_actions=actions)
        status = os.waitpid(pid, 0)[1]
        took = (time.perf_counter_ns() - begun) / 1e6
        text = os.pread(said, 1 << 16, 0).decode(errors="replace")
        os.close(said)
        os.chdir("/")
        if status != 0:
            sys.exit(f"{' '.join(argv)} in {cwd} ended with status {status:#x}:\n{text}")
        self.took(name, took)

    def took(self, name, milliseconds):
        self.times.setdefault(name, []).append(milliseconds)

    def rounds(self, number, cases):
        """Each case once a round, a function and its arguments, each time from another."""
        for at in range(number):
            shift = at % max(1, len(cases))
            for function, *args in cases[shift:] + cases[:shift]:
                function(*args)

    def with_reason(self, what, function, *args):
        """Runs `function`; what is missing for it is in the output, by name."""
        try:
            return function(*args)
        except Missing as why:
            self.skipped[what] = str(why)
            return None

    # What `dam` says.

    def dam_json(self, where, *args):
        argv = [self.dam, "--format", "json", *args]
        done = subprocess.run(argv, cwd=where, env=self.env, capture_output=True, stdin=self.out)
        try:
            return json.loads(done.stdout)
        except ValueError:
            sys.exit(f"{' '.join(argv)}:\n{done.stderr.decode(errors='replace')}")

    def median(self, name):
        return statistics.median(self.times[name]) if name in self.times else None


def path_of(number):
    group = number // 100
    return f"part{group // 40}/of{group % 40}/file{number}.txt"


class Library:
    """The example `context` of cofferdam-core: one process that makes a context a line."""

    def __init__(self, bed, size):
        self.child = subprocess.Popen(
            [bed.library, str(bed.state), str(bed.repo(size))],
            env=bed.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def context(self, command):
        self.child.stdin.write(command + "\n")
        self.child.stdin.flush()
        if not select.select([self.child.stdout], [], [], 60)[0]:
            sys.exit("the example `context` does not answer")
        line = self.child.stdout.readline()
        if not line:
            sys.exit("the example `context` has ended")
        return json.loads(line)

    def end(self):
        self.child.stdin.close()
        self.child.wait()

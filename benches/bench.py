#!/usr/bin/env python3
"""Measures `dam` beside bwrap and `git worktree`, interleaved, in one run.

The machine may be busy with other things: what counts are the ratios of medians
of the same run. Everything is made below --place; nothing else is touched.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time

WORDS = "tide dam wall river gate layer stone water level branch tree merge file".split()
BWRAP = "bwrap --unshare-all --ro-bind / / --proc /proc --dev /dev true".split()
RUN = "run --no-check --no-land --".split()
GOAL_RATIO, GOAL_GROWTH = 3.5, 1.2


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dam", required=True, type=pathlib.Path, help="the program")
    parser.add_argument("--place", required=True, type=pathlib.Path, help="an empty directory")
    parser.add_argument("--rounds", type=int, default=60, help="of what is quick")
    parser.add_argument("--slow-rounds", type=int, default=3, help="of what takes seconds")
    parser.add_argument("--sizes", default="1000,100000", help="files in a repository")
    parser.add_argument("--json", metavar="DIR", type=pathlib.Path, help="write a file there too")
    args = parser.parse_args()
    bench = Bench(args)
    for size in bench.sizes:
        bench.make_repository(size)
    bench.quick(args.rounds)
    bench.slow(args.slow_rounds)
    result = bench.result()
    print(table(result))
    text = json.dumps(result, indent=2)
    print(text)
    if args.json:
        who = "root" if os.geteuid() == 0 else "user"
        (args.json / f"bench-{who}.json").write_text(text + "\n")


class Bench:
    def __init__(self, args):
        self.dam = str(args.dam.resolve())
        self.place = args.place.resolve()
        self.sizes = [int(size) for size in args.sizes.split(",")]
        self.home = self.place / "home"
        self.home.mkdir()
        self.out = os.open("/dev/null", os.O_RDWR)
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LC_ALL": "C",
            "COFFERDAM_STATE": str(self.place / "state"),
        }
        (self.home / ".gitconfig").write_text(
            "[user]\n\tname = Bench\n\temail = bench@example.com\n"
            "[gc]\n\tauto = 0\n[advice]\n\tdetachedHead = false\n"
        )
        self.times = {}
        self.facts = {}

    def repo(self, size):
        return self.place / f"repo-{size}"

    def make_repository(self, size):
        """`size` files of 40 B to 4 KB, a hundred a directory; the same each time."""
        chance = random.Random(size)
        top = self.repo(size)
        subprocess.run(["git", "init", "-q", "-b", "main", top], env=self.env, check=True)
        fast_import = subprocess.Popen(
            ["git", "fast-import", "--quiet"], cwd=top, env=self.env, stdin=subprocess.PIPE
        )
        put = fast_import.stdin.write
        put(b"commit refs/heads/main\ncommitter Bench <bench@example.com> 1700000000 +0000\n")
        put(b"data 5\nfiles\n")
        for number in range(size):
            length = chance.randint(40, 4096)
            line = " ".join(chance.choices(WORDS, k=8)) + f" {number}\n"
            text = (line * (length // len(line) + 1))[:length].encode()
            group = number // 100
            path = f"part{group // 40}/of{group % 40}/file{number}.txt"
            put(f"M 100644 inline {path}\ndata {len(text)}\n".encode() + text + b"\n")
        put(b"done\n")
        fast_import.stdin.close()
        if fast_import.wait() != 0:
            sys.exit("git fast-import failed")
        self.git(size, "reset", "-q", "--hard", "main")

    def git(self, size, *args):
        subprocess.run(["git", *args], cwd=self.repo(size), env=self.env, check=True, stdout=self.out)

    def timed(self, name, argv, cwd="/", env=None):
        """Runs `argv`; nothing of what is timed is the harness's own work."""
        env = env or self.env
        program = argv[0] if "/" in argv[0] else shutil.which(argv[0])
        os.chdir(cwd)
        said = os.open(self.place / "said", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        ends = ((self.out, 0), (self.out, 1), (said, 2))
        actions = [(os.POSIX_SPAWN_DUP2, *end) for end in ends]
        begun = time.perf_counter_ns()
        pid = os.posix_spawn(program, argv, env, file_actions=actions)
        status = os.waitpid(pid, 0)[1]
        took = (time.perf_counter_ns() - begun) / 1e6
        if status != 0:
            text = os.pread(said, 1 << 16, 0).decode()
            sys.exit(f"{' '.join(argv)} in {cwd} ended with status {status:#x}:\n{text}")
        os.close(said)
        self.times.setdefault(name, []).append(took)

    def dam_json(self, size, *args):
        argv = [self.dam, "--format", "json", *args]
        done = subprocess.run(argv, cwd=self.repo(size), env=self.env, capture_output=True)
        return json.loads(done.stdout)

    def quick(self, rounds):
        for size in self.sizes:
            self.dam_json(size, *RUN, "true")
        for number in range(rounds):
            cases = [("true", ["true"], "/"), ("bwrap", BWRAP, "/")]
            for size in self.sizes:
                cases.append((f"dam {size}", [self.dam, *RUN, "true"], self.repo(size)))
            shift = number % len(cases)
            for name, argv, cwd in cases[shift:] + cases[:shift]:
                self.timed(name, argv, cwd)

    def slow(self, rounds):
        for size in self.sizes:
            self.idle_context(size)
        self.memory(self.sizes[-1])
        for number in range(rounds):
            for size in self.sizes:
                self.ten_files(size, number)
        for number in range(rounds):
            for size in self.sizes:
                cases = [self.cold, *(self.worktree_with(w) for w in {1, os.cpu_count()})]
                shift = number % len(cases)
                for case in cases[shift:] + cases[:shift]:
                    case(size, number)

    def worktree_with(self, workers):
        def worktree(size, number):
            path = str(self.place / f"worktree-{workers}-{number}")
            git = ["git", "-c", f"checkout.workers={workers}", "worktree"]
            add = [*git, "add", "--detach", path]
            self.timed(f"worktree add {workers} {size}", add, self.repo(size))
            remove = [*git, "remove", "--force", path]
            self.timed(f"worktree remove {workers} {size}", remove, self.repo(size))

        return worktree

    def cold(self, size, number):
        state = self.place / f"cold-{size}-{number}"
        env = {**self.env, "COFFERDAM_STATE": str(state)}
        self.timed(f"cold {size}", [self.dam, *RUN, "true"], self.repo(size), env)

    def ten_files(self, size, number):
        """A task that changes ten files, and a check on the result that says at
        once when it begins: what is timed are the steps of the receipt."""
        edit = "for n in 0 1 2 3 4 5 6 7 8 9; do echo $0 >> part0/of$n/file${n}00.txt; done"
        name = f"ten-{size}-{number}"
        begun = time.time()
        receipt = self.dam_json(
            size, "run", "--name", name, "--no-land", "--check", "true", "--", "sh", "-c", edit, name
        )
        took = (time.time() - begun) * 1e3
        if receipt.get("state") != "ready" or len(receipt["paths"]) != 10:
            sys.exit(f"ten files: {receipt}")
        for step in receipt["steps"]:
            self.times.setdefault(f"ten: {step['step']} {size}", []).append(step["took_ms"])
        check = receipt["checks"][0]["took_ms"]
        self.times.setdefault(f"ten: check whole {size}", []).append(check)
        self.times.setdefault(f"ten: whole {size}", []).append(took)
        self.dam_json(size, "drop", name)

    def idle_context(self, size):
        """What a context takes on disk when its task did nothing."""
        name = f"idle-{size}"
        receipt = self.dam_json(size, "run", "--name", name, "--no-check", "--keep", "--", "true")
        task = self.place / "state/contexts/tasks" / receipt["task"]
        du = subprocess.run(["du", "-s", "-B", "1", task], capture_output=True, check=False)
        self.facts[f"idle context, bytes on disk, {size}"] = int(du.stdout.split()[0])
        self.dam_json(size, "drop", name)

    def memory(self, size):
        """The largest resident set of the supervisor while its task sleeps."""
        argv = [self.dam, *RUN, "sleep", "1"]
        child = subprocess.Popen(argv, cwd=self.repo(size), env=self.env, stderr=self.out)
        time.sleep(0.5)
        status = pathlib.Path(f"/proc/{child.pid}/status").read_text()
        child.wait()
        for field, name in (("VmHWM", "largest"), ("RssAnon", "anonymous")):
            kib = next(line.split()[1] for line in status.splitlines() if line.startswith(field))
            self.facts[f"supervisor, resident bytes, {name}"] = int(kib) * 1024

    def result(self):
        median = {name: statistics.median(times) for name, times in self.times.items()}
        small, large = self.sizes[0], self.sizes[-1]
        ratios = {}
        for size in self.sizes:
            ratios[f"dam {size} / bwrap"] = median[f"dam {size}"] / median["bwrap"]
            if f"cold {size}" not in median:
                continue
            for what in ("add", "remove"):
                best = min(median[f"worktree {what} {w} {size}"] for w in {1, os.cpu_count()})
                median[f"worktree {what} {size}"] = best
            add = median[f"worktree add {size}"]
            whole = add + median[f"worktree remove {size}"]
            ratios[f"worktree add and remove {size} / dam"] = whole / median[f"dam {size}"]
            ratios[f"cold {size} / worktree add"] = median[f"cold {size}"] / add
        ratios["growth of dam"] = median[f"dam {large}"] / median[f"dam {small}"]
        return {
            "who": "root" if os.geteuid() == 0 else "user",
            "cpus": os.cpu_count(),
            "kernel": os.uname().release,
            "medians_ms": {name: round(value, 3) for name, value in sorted(median.items())},
            "p90_ms": {
                name: round(sorted(times)[min(len(times) - 1, len(times) * 9 // 10)], 3)
                for name, times in sorted(self.times.items())
            },
            "rounds": {name: len(times) for name, times in sorted(self.times.items())},
            "ratios": {name: round(value, 3) for name, value in ratios.items()},
            "facts": self.facts,
            "goals": {
                "dam / bwrap": max(ratios[f"dam {s} / bwrap"] for s in self.sizes) <= GOAL_RATIO,
                "growth of dam": ratios["growth of dam"] <= GOAL_GROWTH,
            },
        }


def table(result):
    bwrap = result["medians_ms"]["bwrap"]
    lines = [
        f"as {result['who']}, {result['cpus']} cores, kernel {result['kernel']}",
        "",
        "| what | median, ms | p90, ms | of bwrap |",
        "|---|---:|---:|---:|",
    ]
    for name, value in result["medians_ms"].items():
        p90 = result["p90_ms"].get(name)
        p90 = "" if p90 is None else f"{p90:.1f}"
        lines.append(f"| {name} | {value:.1f} | {p90} | {value / bwrap:.2f} |")
    lines += ["", "| ratio or size | |", "|---|---:|"]
    for name, value in result["ratios"].items():
        lines.append(f"| {name} | {value:.2f} |")
    for name, value in result["facts"].items():
        lines.append(f"| {name} | {value:,} |")
    for name, met in result["goals"].items():
        lines.append(f"| goal: {name} | {'met' if met else 'missed'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

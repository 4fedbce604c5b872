"""What work costs inside of a context, against outside of it.

The same script measures in both places: `outside` in a plain clone, `inside` under
`dam run`. It prints one JSON object of milliseconds, or of microseconds a call.
"""

import json
import shutil
import subprocess
import sys

from bed import RUN, Missing, path_of

CALLS = 2000
SOURCES = 24

FILES = """
import json, os, sys, time
paths = sys.argv[1].split()
fresh = sys.argv[2].split()
def each(call, paths):
    begun = time.perf_counter_ns()
    for path in paths:
        call(path)
    return (time.perf_counter_ns() - begun) / 1e3 / len(paths)
def open_close(path):
    os.close(os.open(path, os.O_RDONLY))
def append(path):
    out = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(out, b"more\\n")
    os.close(out)
each(os.stat, paths)
found = {"stat, us": each(os.stat, paths), "open, us": each(open_close, paths)}
found["first append, us"] = each(append, fresh)
found["second append, us"] = each(append, fresh)
print(json.dumps(found))
"""

PROGRAMS = """
import json, subprocess, sys, time
found = {}
for name, argv, cold in json.loads(sys.argv[1]):
    for again in (True, False):
        if again and cold:
            continue
        begun = time.perf_counter()
        done = subprocess.run(argv, capture_output=True)
        took = (time.perf_counter() - begun) * 1e3
        if done.returncode != 0:
            sys.exit(f"{argv}: {done.stderr}")
        found[name] = took
print(json.dumps(found))
"""


def measure(bed, rounds, build_rounds):
    size = bed.sizes[-1]
    python = "/usr/bin/python3"
    if not shutil.which(python):
        raise Missing(f"there is no `{python}`, which a context would have too")
    number = min(CALLS, size)
    paths = [path_of(size * at // number) for at in range(number)]
    fresh = paths[:: max(1, number // 200)]
    files = [python, "-c", FILES, " ".join(paths), " ".join(fresh)]
    programs = [["git status, ms", ["git", "status", "--porcelain"], False]]
    if shutil.which("rg", path="/usr/local/bin:/usr/bin:/bin"):
        programs.append(["rg, ms", ["rg", "--count", "cofferdam|water 77", "."], False])
    else:
        bed.skipped["rg"] = "there is no `rg`; `git grep` is measured"
        programs.append(["git grep, ms", ["git", "grep", "-c", "-e", "water 77"], False])
    search = [python, "-c", PROGRAMS, json.dumps(programs)]
    appended, searched = Sides(bed, bed.repo(size), "files"), Sides(bed, bed.repo(size), "search")
    bed.rounds(rounds, [(appended.both, files), (searched.both, search)])
    bed.with_reason("build", measure_build, bed, build_rounds, python)


def measure_build(bed, rounds, python):
    if not shutil.which("cc") or not shutil.which("make"):
        raise Missing("there is no `cc` or no `make`")
    top = bed.place / "build"
    bed.commit(top, sources())
    make = [["build, ms", ["make", "-s", "-j2"], True]]
    bed.dam_json(top, *RUN, "true")
    argv = [python, "-c", PROGRAMS, json.dumps(make)]
    for number in range(rounds):
        # Each time from the sources alone.
        Sides(bed, top, f"build-{number}").both(argv, inside_first=number % 2 == 1)


class Sides:
    """A repository, seen from inside and from outside."""

    def __init__(self, bed, repo, name):
        self.bed, self.repo, self.name = bed, repo, name
        self.number = 0
        self.place = bed.place / f"outside-{name}"
        bed.run(["git", "clone", "-q", "--shared", str(repo), str(self.place)])

    def both(self, argv, inside_first=None):
        self.number += 1
        if inside_first is None:
            inside_first = self.number % 2 == 0
        sides = [("outside", self.outside), ("inside", self.inside)]
        for side, run in reversed(sides) if inside_first else sides:
            for name, value in json.loads(run(argv)).items():
                self.bed.took(f"{side}: {name}", value)

    def outside(self, argv):
        return self.bed.run(argv, cwd=self.place)

    def inside(self, argv):
        name = f"inside-{self.name}-{self.number}"
        run = [self.bed.dam, "--format", "jsonl", "run", "--no-check", "--no-land", "--name", name]
        done = subprocess.run(
            [*run, "--", *argv], cwd=self.repo, env=self.bed.env, capture_output=True, text=True
        )
        events = [json.loads(line) for line in done.stdout.splitlines()]
        output = [event for event in events if event["event"] == "output"]
        text = "".join(event["text"] for event in output if event["stream"] == "out")
        if not text:
            sys.exit(f"{argv[:2]} inside: {output} {done.stderr}")
        self.bed.dam_json(self.repo, "drop", name)
        return text


def sources():
    """A small program in C, the same each time: enough to be a real build."""
    objects = " ".join(f"part{number}.o" for number in range(SOURCES))
    yield ".gitignore", b"*.o\nprogram\n"
    make = f"CFLAGS = -O2\nprogram: main.o {objects}\n\t$(CC) -o $@ $^\n%.o: %.c part.h\n"
    yield "Makefile", (make + "\t$(CC) $(CFLAGS) -c -o $@ $<\n").encode()
    header = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n"
    names = [f"part{number}" for number in range(SOURCES)]
    yield "part.h", (header + "".join(f"long {name}(long);\n" for name in names)).encode()
    calls = "".join(f"    sum += {name}(sum);\n" for name in names)
    main = f'#include "part.h"\nint main(void)\n{{\n    long sum = 1;\n{calls}'
    yield "main.c", (main + '    printf("%ld\\n", sum);\n    return 0;\n}\n').encode()
    for name in names:
        text = ['#include "part.h"\n']
        for number in range(60):
            text.append(
                f"static long step{number}(long value)\n{{\n    char text[64];\n    long at;\n"
                f'    snprintf(text, sizeof text, "{name} %ld", value);\n'
                f"    for (at = 0; at < (long)strlen(text); at++)\n"
                f"        value = value * {number * 2 + 3} + text[at] % {number + 2};\n"
                "    return value;\n}\n"
            )
        body = "".join(f"    value = step{number}(value);\n" for number in range(60))
        text.append(f"long {name}(long value)\n{{\n{body}    return value;\n}}\n")
        yield f"{name}.c", "".join(text).encode()

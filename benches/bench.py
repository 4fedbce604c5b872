#!/usr/bin/env python3
"""Measures `dam` beside what people would use instead, interleaved, in one run.

`run.sh` builds what is measured and calls this; see docs/performance.md. What is
missing on a machine is skipped, by name and with the reason.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

import inside
import own
import peers
import publish
import report
from bed import Bed, Missing

PARTS = ("start", "own", "publish", "inside", "engines", "checkouts", "entries")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dam", required=True, type=pathlib.Path, help="the program")
    parser.add_argument("--library", type=pathlib.Path, help="the example `context`")
    parser.add_argument("--first", type=pathlib.Path, help="`first.c`, built")
    parser.add_argument("--publication", type=pathlib.Path, help="the example `publish`")
    parser.add_argument("--place", required=True, type=pathlib.Path, help="an empty directory")
    parser.add_argument("--rounds", type=int, default=60, help="of what takes milliseconds")
    parser.add_argument("--slow-rounds", type=int, default=3, help="of what takes seconds")
    parser.add_argument("--sizes", default="100,1000,10000,100000", help="files in a repository")
    parser.add_argument("--parts", default=",".join(PARTS), help="what to measure")
    parser.add_argument("--bwrap", metavar="PROGRAM", help="one with `--tmp-overlay`")
    parser.add_argument("--jj", metavar="PROGRAM", help="where it is, if not in PATH")
    parser.add_argument("--again", action="store_true", help="another user was measured before")
    parser.add_argument("--out", type=pathlib.Path, help="a directory for the results")
    args = parser.parse_args()
    parts = args.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    bed = Bed(args)
    load = [os.getloadavg()[0]]
    say(f"as {who(bed)}: repositories of {args.sizes} files")
    for size in bed.sizes:
        bed.make_repository(size)
        bed.dam_json(bed.repo(size), *own.RUN, "true")
    measures = {
        "start": lambda: own.start(bed, args.rounds),
        "own": lambda: measure_own(bed, args),
        "publish": lambda: measure_publish(bed),
        "inside": lambda: bed.with_reason(
            "inside", inside.measure, bed, max(3, args.rounds // 10), args.slow_rounds
        ),
        "engines": lambda: peers.engines(bed, max(1, args.rounds // 4)),
        "checkouts": lambda: peers.checkouts(bed, args.slow_rounds, args.jj),
        # The last: what it deletes slows down whoever makes files after it.
        "entries": lambda: bed.with_reason("entries", measure_entries, bed, args),
    }
    for part in PARTS:
        if part in parts:
            say(f"as {who(bed)}: {part}")
            begun = time.monotonic()
            measures[part]()
            say(f"as {who(bed)}: {part} took {time.monotonic() - begun:.0f} s")
    found = result(bed, [*load, os.getloadavg()[2]])
    print(report.tables([found]))
    text = json.dumps(found, indent=2) + "\n"
    if args.out:
        (args.out / f"bench-{found['who']}.json").write_text(text)
    else:
        print(text)


def measure_own(bed, args):
    own.idle_context(bed)
    own.memory(bed)
    own.ten_files(bed, max(3, args.rounds // 3))
    own.at_once(bed, max(3, args.rounds // 6))


def measure_entries(bed, args):
    if args.again:
        raise Missing("it was measured as another user")
    publish.entries(bed)


def measure_publish(bed):
    publish.replays(bed)
    bed.with_reason("publish", publish.measure, bed)


def who(bed):
    return "root" if bed.is_root else "user"


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def result(bed, load):
    def p90(times):
        return sorted(times)[min(len(times) - 1, len(times) * 9 // 10)]

    return {
        "version": 1,
        "who": who(bed),
        "cpus": os.cpu_count(),
        "kernel": os.uname().release.split("-")[0],
        "load": [round(number, 2) for number in load],
        "sizes": bed.sizes,
        "unit": "ms, unless the name says otherwise",
        "medians": {name: round(statistics.median(t), 3) for name, t in sorted(bed.times.items())},
        "p90": {name: round(p90(times), 3) for name, times in sorted(bed.times.items())},
        "rounds": {name: len(times) for name, times in sorted(bed.times.items())},
        "facts": {name: value for name, value in bed.facts.items() if not name.startswith("_")},
        "skipped": bed.skipped,
    }


if __name__ == "__main__":
    main()

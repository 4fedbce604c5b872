"""What is measured of `dam` itself, beside the small things it is compared with."""

import pathlib
import shutil
import subprocess
import sys
import time

from bed import RUN, Library, Missing, path_of

BWRAP = "bwrap --unshare-all --ro-bind / / --proc /proc --dev /dev true".split()
AT_ONCE = 16
CHANGED = 10


def start(bed, rounds):
    """From nothing to the end of `true`, by different means, whatever the size."""
    for size in bed.sizes:
        bed.dam_json(bed.repo(size), *RUN, "true")
    cases = [(bed.timed, "true", ["true"]), (bed.timed, "bwrap", BWRAP)]
    for size in bed.sizes:
        cases.append((bed.timed, f"dam {size}", [bed.dam, *RUN, "true"], bed.repo(size)))
    library = bed.with_reason("library", open_library, bed)
    if library:
        cases.append((in_library, bed, library))
    overlay = bed.with_reason("bwrap --overlay", bwrap_overlay, bed)
    if overlay:
        cases.append((bed.timed, "bwrap --overlay", overlay))
    bed.rounds(rounds, cases)
    if library:
        library.end()


def open_library(bed):
    if not bed.library or not bed.first:
        raise Missing("the example `context` or `first.c` was not built")
    return Library(bed, bed.sizes[-1])


def in_library(bed, library):
    times = library.context("./first")
    bed.took("library: first instruction", times["first"] / 1e3)
    times = library.context("true")
    bed.took("library: `true` ended", times["ended"] / 1e3)
    bed.took("library: context gone", times["gone"] / 1e3)


def bwrap_overlay(bed):
    """The nearest that bwrap itself has to a context: an overlay in memory."""
    program = bed.overlay_bwrap or shutil.which("bwrap")
    if "--tmp-overlay" not in bed.run([program, "--help"]):
        version = bed.run([program, "--version"]).strip()
        raise Missing(f"`bwrap --tmp-overlay` came with 0.11, this is {version}")
    repo = str(bed.repo(bed.sizes[-1]))
    over = ["--overlay-src", repo, "--tmp-overlay", repo]
    argv = [program, *BWRAP[1:5], *over, *BWRAP[5:]]
    bed.run(argv)
    return argv


def ten_files(bed, rounds):
    """A task that changes ten files, with one check: the steps as its receipt tells."""
    bed.rounds(rounds, [(change_ten, bed, size) for size in ends(bed.sizes)])


def ends(sizes):
    """Of all sizes those that are compared: 1,000 and the largest."""
    small = 1000 if 1000 in sizes else sizes[0]
    return sorted({small, sizes[-1]})


def change_ten(bed, size):
    number = len(bed.times.get(f"ten: whole {size}", []))
    name = f"ten-{size}-{number}"
    step = max(1, size // CHANGED)
    paths = " ".join(path_of(number) for number in range(0, step * CHANGED, step))
    edit = f"for path in {paths}; do echo {name} >> $path; done"
    begun = time.perf_counter()
    words = f"run --name {name} --no-land --check true -- sh -c".split()
    receipt = bed.dam_json(bed.repo(size), *words, edit)
    bed.took(f"ten: whole {size}", (time.perf_counter() - begun) * 1e3)
    if receipt.get("state") != "ready" or len(receipt["paths"]) != CHANGED:
        sys.exit(f"ten files: {receipt}")
    steps = {step["step"]: step["took_ms"] for step in receipt["steps"]}
    for step, took in steps.items():
        bed.took(f"ten: {step} {size}", took)
    check = receipt["checks"][0]
    bed.took(f"ten: harvested and candidate {size}", steps["harvested"] + steps["candidate"])
    # From the candidate on; what is not the check itself was before its context.
    ready = steps["verified"] - check["took_ms"] + check["ready_ms"]
    bed.took(f"ten: check context ready {size}", ready)
    bed.dam_json(bed.repo(size), "drop", name)


def at_once(bed, rounds):
    """Sixteen tasks on one repository, one after the other and all at once."""
    size = bed.sizes[-1]
    argv = [bed.dam, *RUN, "true"]

    def begin():
        return subprocess.Popen(
            argv, cwd=bed.repo(size), env=bed.env, stdin=bed.out, stdout=bed.out, stderr=bed.out
        )

    def whole(name, run):
        begun = time.perf_counter()
        codes = run()
        bed.took(name, (time.perf_counter() - begun) * 1e3)
        if any(codes):
            sys.exit(f"{name}: {codes}")

    def parallel():
        return [child.wait() for child in [begin() for _ in range(AT_ONCE)]]

    def serial():
        return [begin().wait() for _ in range(AT_ONCE)]

    cases = [(whole, f"{AT_ONCE} in turn", serial), (whole, f"{AT_ONCE} at once", parallel)]
    bed.rounds(rounds, cases)


def cold(bed, size):
    """The first layer of a repository: an empty state directory."""
    number = len(bed.times.get(f"cold {size}", []))
    env = {**bed.env, "COFFERDAM_STATE": str(bed.place / f"cold-{size}-{number}")}
    bed.timed(f"cold {size}", [bed.dam, *RUN, "true"], bed.repo(size), env)


def idle_context(bed):
    """What a context takes on disk when its task did nothing."""
    for size in ends(bed.sizes):
        name = f"idle-{size}"
        receipt = bed.dam_json(
            bed.repo(size), "run", "--name", name, "--no-check", "--keep", "--", "true"
        )
        task = bed.state / "contexts/tasks" / receipt["task"]
        # In a user namespace: the kernel's work directories are closed even to their owner.
        own_rights = [] if bed.is_root else ["unshare", "--map-root-user"]
        du = bed.run([*own_rights, "du", "-s", "-B", "1", str(task)])
        bed.facts[f"idle context, bytes on disk, {size}"] = int(du.split()[0])
        bed.dam_json(bed.repo(size), "drop", name)


def memory(bed):
    """The largest resident set of the supervisor while its task sleeps."""
    argv = [bed.dam, *RUN, "sleep", "2"]
    child = subprocess.Popen(argv, cwd=bed.repo(bed.sizes[-1]), env=bed.env, stderr=bed.out)
    time.sleep(1.5)
    status = pathlib.Path(f"/proc/{child.pid}/status").read_text()
    child.wait()
    for field, name in (("VmHWM", "largest"), ("RssAnon", "anonymous")):
        kib = next(line.split()[1] for line in status.splitlines() if line.startswith(field))
        bed.facts[f"supervisor, resident bytes, {name}"] = int(kib) * 1024

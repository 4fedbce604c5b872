"""What a publication costs: of a file, of a directory, and when it was done already."""

import json
import shutil
import sys
import time

from bed import Missing

# Bytes, and in how many rounds.
FILES = {1_000: 100, 100_000: 100, 1_000_000: 60, 20_000_000: 13}
# Files, and in how many rounds.
TREES = {10: 15, 1_000: 7, 10_000: 3}
REPLAYS = 100
SPARSE = 5_000_000_000
ENTRIES = 200_000


def measure(bed):
    if not bed.publication:
        raise Missing("the example `publish` was not built")
    for size, rounds in FILES.items():
        for name, times in example(bed, "file", size, rounds).items():
            for took in times:
                bed.took(f"file: {name} {size}", took / 1e3)
    for size, rounds in TREES.items():
        for name, times in example(bed, "tree", size, rounds).items():
            for took in times:
                bed.took(f"tree: commit {name} {size}", took / 1e3)
    found = example(bed, "sparse", SPARSE)
    bed.facts["published 5 GB of holes, resident bytes, largest"] = found["resident"]


def entries(bed):
    """Takes minutes on some file systems; what it tells is the same for every user."""
    if not bed.publication:
        raise Missing("the example `publish` was not built")
    found = example(bed, "entries", ENTRIES)
    bed.facts["published 200,000 entries, resident bytes, largest"] = found["resident"]


def example(bed, what, *numbers):
    place = bed.place / f"publish-{what}"
    place.mkdir()
    numbers = [str(number) for number in numbers]
    found = json.loads(bed.run([bed.publication, what, str(place), *numbers]))
    shutil.rmtree(place)
    return found


def replays(bed):
    """The same key again and again: each answers with what the first one did."""
    place = bed.place / "replays"
    place.mkdir()
    words = f"run --scratch --key replay --no-check --output made={place}/made -- ".split()
    argv = [*words, "sh", "-c", "echo done > made"]
    receipt = bed.dam_json(place, *argv)
    if receipt.get("state") != "landed":
        sys.exit(f"replays: {receipt}")
    before = (place / "made").stat().st_ino
    begun = time.perf_counter()
    for _ in range(REPLAYS):
        bed.timed("replay of a key", [bed.dam, *argv], place)
    bed.facts["keyed replays a second"] = round(REPLAYS / (time.perf_counter() - begun))
    if (place / "made").stat().st_ino != before:
        sys.exit("replays: it was published again")

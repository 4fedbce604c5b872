"""From results to goals and tables.

report.py RESULT.json … > tables.md
"""

import argparse
import json
import pathlib

import own
import publish

MIB_GOAL = 96 << 10
MB_GOAL = 10_000_000
PUBLISH_GOAL = 50_000_000
FEW, MANY = min(publish.TREES), max(publish.TREES)

# In the order of the table: name, unit, whether less is better, goal.
GOALS = [
    ("library, context start to first instruction / `bwrap`", "", "<=", 1.2),
    ("`dam run … true` / `bwrap`", "", "<=", 3.5),
    ("`dam run … true`, largest repository / 1,000 files", "", "<=", 1.2),
    ("`git worktree add` and `remove` at their best / `dam run`", "", ">=", 100),
    ("ten changed files: harvest and candidate", "ms", "<=", 50),
    ("ten changed files: check context ready after that", "ms", "<=", 60),
    (f"{own.AT_ONCE} at once / {own.AT_ONCE} in turn", "", "<=", 1.0),
    ("idle context on disk", "B", "<=", MIB_GOAL),
    ("supervisor, largest resident set", "B", "<=", MB_GOAL),
    ("full build, inside / outside", "", "<=", 1.1),
    *((f"file of {size:,} bytes published / by hand", "", "<=", 1.3) for size in publish.FILES),
    (f"commit of {MANY:,} staged files / of {FEW}, over a directory of ten", "", "<=", 1.3),
    ("replays of a key", "a second", ">=", 50),
    ("5 GB of holes published, largest resident set", "B", "<=", PUBLISH_GOAL),
    ("200,000 entries published, largest resident set", "B", "<=", PUBLISH_GOAL),
]


def measured(found):
    """What the goals speak of, in their order; `None` where it was not measured."""
    medians, facts, sizes = found["medians"], found["facts"], found["sizes"]
    small, large = own.ends(sizes)[0], sizes[-1]

    def over(one, other):
        return medians[one] / medians[other] if one in medians and other in medians else None

    idle = [value for name, value in facts.items() if name.startswith("idle context")]
    best = worktree(found, large)
    dam = medians.get(f"dam {large}")
    return [
        over("library: first instruction", "bwrap"),
        over(f"dam {large}", "bwrap"),
        over(f"dam {large}", f"dam {small}"),
        sum(best) / dam if best and dam else None,
        medians.get(f"ten: harvested and candidate {large}"),
        medians.get(f"ten: check context ready {large}"),
        over(f"{own.AT_ONCE} at once", f"{own.AT_ONCE} in turn"),
        max(idle) if idle else None,
        facts.get("supervisor, resident bytes, largest"),
        over("inside: build, ms", "outside: build, ms"),
        *(over(f"file: ours {size}", f"file: by hand {size}") for size in publish.FILES),
        over(f"tree: commit over ten {MANY}", f"tree: commit over ten {FEW}"),
        facts.get("keyed replays a second"),
        facts.get("published 5 GB of holes, resident bytes, largest"),
        facts.get("published 200,000 entries, resident bytes, largest"),
    ]


def worktree(found, size):
    """The medians of add and remove with the number of workers that was best."""
    workers = found["facts"].get(f"worktree workers {size}")
    if workers is None:
        return None
    return [found["medians"][f"worktree {what} {workers} {size}"] for what in ("add", "remove")]


def number(value, unit=""):
    if value is None:
        return "not measured"
    text = f"{value:,.0f}" if unit == "B" or value >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".strip()


def tables(results):
    return f"{goals(results)}\n{rows(results)}"


def goals(results):
    heads = [found["who"] for found in results]
    lines = []
    for found in results:
        sizes = ", ".join(f"{size:,}" for size in found["sizes"])
        before, after = found["load"]
        lines.append(
            f"As {found['who']}: {found['cpus']} cores, kernel {found['kernel']}, {sizes} files; "
            f"load average before {before:.1f}, of the last 15 minutes {after:.1f}.\n"
        )
    lines += ["", row("goal", "", *(f"{who} | met" for who in heads)), rule(2 + 2 * len(heads))]
    values = [measured(found) for found in results]
    for at, (name, unit, sign, goal) in enumerate(GOALS):
        cells = []
        for found in values:
            value = found[at]
            met = value is not None and (value <= goal if sign == "<=" else value >= goal)
            cells.append(f"{number(value, unit)} | {verdict(value, met)}")
        lines.append(row(name, f"{'≤' if sign == '<=' else '≥'} {number(goal, unit)}", *cells))
    return "\n".join(lines) + "\n"


def rows(results):
    heads = [found["who"] for found in results]
    lines = [row("median, p90; ms", *heads), rule(1 + len(heads))]
    names = sorted({name for found in results for name in found["medians"]}, key=in_order)
    for name in names:
        lines.append(row(name, *(times(found, name) for found in results)))
    for name in sorted({name for found in results for name in found["facts"]}, key=in_order):
        cells = [found["facts"].get(name) for found in results]
        lines.append(
            row(name, *(f"{cell:,}" if isinstance(cell, int) else cell or "" for cell in cells))
        )
    skipped = [
        (name, found["who"], why) for found in results for name, why in found["skipped"].items()
    ]
    if skipped:
        lines += [
            "",
            row("skipped", "as", "why"),
            "|---|---|---|",
            *(row(*cells) for cells in sorted(skipped)),
        ]
    return "\n".join(lines) + "\n"


def times(found, name):
    if name not in found["medians"]:
        return ""
    return f"{number(found['medians'][name])}, {number(found['p90'][name])}"


def verdict(value, met):
    return "" if value is None else "yes" if met else "**no**"


def in_order(name):
    """Rows of one kind by size, not by digits."""
    head, _, last = name.rpartition(" ")
    return (head, int(last)) if last.isdigit() else (name, 0)


def row(*cells):
    return f"| {' | '.join(cells)} |"


def rule(columns):
    return f"|---|{'---:|' * (columns - 1)}"


def put_into(document, text):
    """Replaces what stands between the marks of a document."""
    begin, end = "<!-- tables: begin -->\n", "<!-- tables: end -->"
    head, _, rest = document.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}{text}{end}{tail}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=pathlib.Path, help="a document with marks")
    parser.add_argument("results", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    results = [json.loads(path.read_text()) for path in args.results]
    if args.into:
        args.into.write_text(put_into(args.into.read_text(), goals(results)))
    print(tables(results), end="")


if __name__ == "__main__":
    main()

"""Draws the results of a run: `plots.py DIR RESULT.json …`, as root's if there are.

The same results give the same bytes. Text stays text, and the colours can be read on
a light and on a dark page.
"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

import report  # noqa: E402

GREY, FAINT = "#7d8590", "#7d859055"
BLUE, ORANGE, GREEN, RED, VIOLET, TEAL, BROWN = (
    "#2f81f7 #d9822b #3fa45b #d1495b #9a6dd7 #2a9d9d #a1764b".split()
)
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dam",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def main():
    out = pathlib.Path(sys.argv[1])
    results = [json.loads(pathlib.Path(path).read_text()) for path in sys.argv[2:]]
    found = next((found for found in results if found["who"] == "root"), results[0])
    with plt.rc_context(STYLE):
        for name, draw in (("size", by_size), ("start", starts), ("inside", inside)):
            figure = draw(found)
            if figure:
                figure.savefig(
                    out / f"{name}.svg",
                    transparent=True,
                    bbox_inches="tight",
                    metadata={"Date": None, "Creator": None},
                )
                plt.close(figure)


def by_size(found):
    """How long it takes until a task has its files, by the size of the repository."""
    sizes, medians = found["sizes"], found["medians"]

    def of(name):
        return lambda size: medians.get(f"{name} {size}")

    def whole_worktree(size):
        both = report.worktree(found, size)
        return sum(both) if both else None

    lines = [
        ("dam run … true, whole", of("dam"), BLUE, "o-", 2.5),
        ("dam run, first layer", of("cold"), BLUE, "o:", 1.5),
        ("git worktree add + remove", whole_worktree, ORANGE, "s-", 1.5),
        ("git clone --shared", of("clone --shared"), GREEN, "^-", 1.5),
        ("cp -a", of("cp -a"), RED, "v-", 1.5),
        ("jj workspace add", of("jj workspace add"), VIOLET, "D-", 1.5),
        ("reflink copy (XFS)", of("reflink copy (XFS)"), TEAL, "P-", 1.5),
        ("snapshot (btrfs)", of("snapshot (btrfs)"), BROWN, "X-", 1.5),
    ]
    figure, axes = plt.subplots(figsize=(7.5, 4.6))
    for label, value, colour, marks, width in lines:
        points = [(size, value(size)) for size in sizes if value(size) is not None]
        if points:
            axes.plot(
                *zip(*points), marks, color=colour, label=label, linewidth=width, markersize=5
            )
    axes.set(xscale="log", yscale="log", xlabel="files in the repository", ylabel="ms")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.minorticks_off()
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), labelcolor=GREY)
    axes.set_title("A place for the files of one task", loc="left", fontsize=12)
    return figure


def starts(found):
    """From nothing to the end of one small program."""
    large = found["sizes"][-1]
    rows = [
        ("true", "true", GREY),
        ("bwrap", "bwrap", ORANGE),
        ("bwrap --overlay", "bwrap --overlay", ORANGE),
        ("library: to the first instruction", "library: first instruction", BLUE),
        ("library: context gone", "library: context gone", BLUE),
        (f"dam run, {large:,} files", f"dam {large}", BLUE),
        ("podman run", "podman run", GREEN),
        ("docker run", "docker run", GREEN),
    ]
    title = "From nothing to the end of a small program"
    values = [(label, found["medians"].get(name), colour) for label, name, colour in rows]
    return bars([row for row in values if row[1] is not None], "ms", title)


def inside(found):
    """Work inside of a context, in multiples of the same work outside."""
    medians, rows = found["medians"], []
    for name, value in medians.items():
        what = name.removeprefix("inside: ")
        if name != what and f"outside: {what}" in medians:
            rows.append((what.rpartition(",")[0], value / medians[f"outside: {what}"], BLUE))
    title = "The same work inside of a context"
    figure = bars(rows, "times what it takes outside", title, "{:.2f}".format)
    if figure:
        figure.axes[0].axvline(1, color=GREY, linewidth=0.8, linestyle="--")
    return figure


def bars(rows, unit, title, form=report.number):
    if not rows:
        return None
    figure, axes = plt.subplots(figsize=(7.5, 0.42 * len(rows) + 1))
    labels, values, colours = zip(*reversed(rows))
    drawn = axes.barh(labels, values, color=colours, height=0.62)
    axes.bar_label(drawn, [form(value) for value in values], padding=4, color=GREY)
    axes.set_xlabel(unit)
    axes.margins(x=0.12)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(title, loc="left", fontsize=12)
    return figure


if __name__ == "__main__":
    main()

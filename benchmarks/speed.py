"""Write the tables of docs/speed.md from the ratios that benchmarks store.

    python -m benchmarks.speed

A mark in the page names the benchmark of its table; the text between marks is written by hand.
Nothing is measured here. The planner's errors are computed from its present predictions.
"""

import re
from collections.abc import Mapping, Sequence

from benchmarks.entry import enter
from benchmarks.ledger.sections import table_line
from benchmarks.marked import split_marked
from benchmarks.planning.planner_accuracy import predicted_ratios
from benchmarks.ratios import Ratio, read_ratios
from command.arguments import ROOT

PAGE = ROOT / "docs" / "speed.md"
WRITER = "python -m benchmarks.speed"
SUMMARY, COMPUTED = "summary", "planner_accuracy"
LANDMARK = re.compile(rf"^## (.+)$|^<!-- (\w+): written by `{WRITER}` -->$", re.MULTILINE)
HEAD = """
| Case | Peer | Ratio (95 % interval) | Target | Processor | Date |
|---|---|---:|---|---|---|
"""


def titles_of(page: str) -> dict[str, str]:
    """Return the title of the section of each benchmark in a page."""
    titles, title = {}, ""
    for heading, benchmark in LANDMARK.findall(page):
        title = heading or title
        if benchmark and benchmark != SUMMARY:
            titles[benchmark] = title
    return titles


def read_all(page: str) -> dict[str, list[Ratio]]:
    """Read the ratios of each benchmark in a page."""
    return {
        name: predicted_ratios() if name == COMPUTED else read_ratios(name)
        for name in titles_of(page)
    }


def render(page: str, ratios: Mapping[str, Sequence[Ratio]]) -> str:
    """Fill a page with the ratios of its benchmarks."""
    texts = {name: table(ratios[name]) for name in titles_of(page)}
    for part, text in {SUMMARY: summary(page, ratios), **texts}.items():
        head, _, tail = split_marked(page, part, WRITER)
        page = f"{head}{text}\n{tail}"
    return page


def summary(page: str, ratios: Mapping[str, Sequence[Ratio]]) -> str:
    """Count the targets, and list those that are missed."""
    aimed = sum(ratio.has_target for rows in ratios.values() for ratio in rows)
    lines = [
        f"- {link(title)}, {ratio.case} (peer: {ratio.peer}): **{ratio.figure}**, "
        f"target {ratio.target}, {ratio.processor}.\n"
        for name, title in titles_of(page).items()
        for ratio in ratios[name]
        if not ratio.met
    ]
    text = f"\n{aimed} figures have a target; {aimed - len(lines)} reach it."
    return f"{text} These do not:\n\n{''.join(lines)}" if lines else f"{text}\n"


def link(title: str) -> str:
    """Link to a section."""
    anchor = "".join(c for c in title.lower() if c.isalnum() or c in " -").replace(" ", "-")
    return f"[{title}](#{anchor})"


def table(ratios: Sequence[Ratio]) -> str:
    """Write a row for each ratio; those of one case on several processors are adjacent."""
    cases = [(ratio.case, ratio.peer) for ratio in ratios]
    ordered = sorted(ratios, key=lambda ratio: cases.index((ratio.case, ratio.peer)))
    return HEAD + "".join(map(row, ordered))


def row(ratio: Ratio) -> str:
    """Write a row; what misses its target is bold."""
    figure = ratio.figure if ratio.met else f"**{ratio.figure}**"
    target = ratio.target if ratio.met else f"{ratio.target}: **missed**"
    return table_line([ratio.case, ratio.peer, figure, target, ratio.processor, ratio.date])


def main() -> int:
    """Write the page."""
    page = PAGE.read_text("utf-8")
    PAGE.write_text(render(page, read_all(page)), "utf-8")
    return 0


if __name__ == "__main__":
    enter(lambda words: main(), most=0)

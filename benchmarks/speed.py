"""Write the tables of docs/speed.md from the ratios that benchmarks store.

    python -m benchmarks.speed

A comment in the page names the benchmark of each table; the text between tables is written by
hand. This script measures nothing. It computes the planner's errors from today's predictions.
"""

import re
from collections.abc import Mapping, Sequence

from benchmarks.entry import run_script
from benchmarks.generated_section import replace_section, table_line
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
    """Return the section title of each benchmark in a page."""
    titles, title = {}, ""
    for heading, benchmark in LANDMARK.findall(page):
        title = heading or title
        if benchmark and benchmark != SUMMARY:
            titles[benchmark] = title
    return titles


def read_page_ratios(page: str) -> dict[str, list[Ratio]]:
    """Read the ratios of each benchmark in a page."""
    return {
        name: predicted_ratios() if name == COMPUTED else read_ratios(name)
        for name in titles_of(page)
    }


def render_page(page: str, ratios: Mapping[str, Sequence[Ratio]]) -> str:
    """Replace the tables of a page by the ratios of its benchmarks."""
    texts = {name: render_table(ratios[name]) for name in titles_of(page)}
    for part, text in {SUMMARY: render_summary(page, ratios), **texts}.items():
        page = replace_section(page, part, WRITER, f"{text}\n")
    return page


def render_summary(page: str, ratios: Mapping[str, Sequence[Ratio]]) -> str:
    """Return the number of targets and a list of missed targets."""
    num_targets = sum(ratio.has_target for rows in ratios.values() for ratio in rows)
    lines = [
        f"- {section_link(title)}, {ratio.case} (peer: {ratio.peer}): **{ratio.figure}**, "
        f"target {ratio.target}, {ratio.processor}.\n"
        for name, title in titles_of(page).items()
        for ratio in ratios[name]
        if not ratio.met
    ]
    text = f"\n{num_targets} figures have a target; {num_targets - len(lines)} reach it."
    return f"{text} These do not:\n\n{''.join(lines)}" if lines else f"{text}\n"


def section_link(title: str) -> str:
    """Return a link to a section."""
    anchor = "".join(c for c in title.lower() if c.isalnum() or c in " -").replace(" ", "-")
    return f"[{title}](#{anchor})"


def render_table(ratios: Sequence[Ratio]) -> str:
    """Return a row per ratio; rows of one case on several processors are adjacent."""
    cases = [(ratio.case, ratio.peer) for ratio in ratios]
    ordered = sorted(ratios, key=lambda ratio: cases.index((ratio.case, ratio.peer)))
    return HEAD + "".join(map(render_row, ordered))


def render_row(ratio: Ratio) -> str:
    """Return a row of a ratio; a missed target is bold."""
    figure = ratio.figure if ratio.met else f"**{ratio.figure}**"
    target = ratio.target if ratio.met else f"{ratio.target}: **missed**"
    return table_line([ratio.case, ratio.peer, figure, target, ratio.processor, ratio.date])


def main() -> int:
    """Write the page."""
    page = PAGE.read_text("utf-8")
    PAGE.write_text(render_page(page, read_page_ratios(page)), "utf-8")
    return 0


if __name__ == "__main__":
    run_script(lambda words: main(), max_words=0)

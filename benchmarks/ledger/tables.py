"""Write docs/tables.md: each table and figure of the works, its command, ours beside published.

    python -m benchmarks.ledger.tables          # from what is kept
    python -m benchmarks.ledger.tables plan     # plans every study anew before, some minutes

`benchmarks/data/published_tables.yaml` lists them. Ours come from the plans of studies, the
plans of recipes, and figures that benchmarks have kept.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import yaml

from benchmarks.entry import enter
from benchmarks.kept import RESULTS, here_and_now
from benchmarks.ledger.proofs import plan_at_home
from benchmarks.ledger.sections import table_line
from benchmarks.marked import split_marked
from command.arguments import ROOT
from command.study.listed import plan_points
from command.study.request import ask
from command.study.schema import OUT_OF_MEMORY, ListedStudy

LISTED = ROOT / "benchmarks" / "data" / "published_tables.yaml"
KEPT = RESULTS / "tables.json"
PAGE = ROOT / "docs" / "tables.md"
WRITER = "python -m benchmarks.ledger.tables"
MOST_APART = 0.15  # beyond which a row says why
HEAD = """\
| Table or figure | Command | Kind | Published | Compared | Median | Worst | Why |
|---|---|---|---:|---:|---:|---:|---|
"""
Tree = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RowFigures:
    """How many figures are published, and how far ours are from those that have one.

    ``told`` are figures of ours without a published one of the same kind beside them.
    """

    published: int
    deviations: Sequence[float]
    told: Sequence[str] = ()

    @property
    def worst(self) -> float | None:
        """The deviation that is largest without its sign."""
        return max(self.deviations, key=abs, default=None)


def plan_studies() -> Tree:
    """Plan every point of each listed study; nothing is run."""
    names = {row["study"] for _, row in rows_of(read_listed()) if "study" in row}
    return {name: _planned(name) for name in sorted(names)}


def _planned(name: str) -> Tree:
    """Set a study's plans beside what is published of its points."""
    asked = ask([f"study={name}", "action=plan"])
    study = asked.study
    if not isinstance(study, ListedStudy):
        return {"published": 1, "deviations": []}
    every = [(one, quote) for one in plan_points(asked, study) for quote in one.quotes]
    figures = [(one, quote) for one, quote in every if quote.value != OUT_OF_MEMORY]
    found = [one.deviation(quote) for one, quote in figures]
    return {
        "published": len(study.published.values),
        "deviations": [round(one, 4) for one in found if one is not None],
    }


def read_listed() -> Tree:
    """Read the works, each with its title and its rows."""
    tree: Tree = yaml.safe_load(LISTED.read_text("utf-8"))
    return tree


def rows_of(listed: Tree) -> Iterator[tuple[str, Tree]]:
    """Go through all rows, each behind the name of its work."""
    for work, told in listed.items():
        yield from ((work, row) for row in told["rows"])


def compared(row: Tree, studies: Tree) -> RowFigures:
    """Find a row's figures: of its study, of its recipes' plans, of a kept result."""
    told = [_of_result(**one) for one in row.get("kept", ())]
    if "study" in row:
        return RowFigures(**studies[row["study"]], told=told)
    if "recipes" in row:
        return _of_recipes(row["recipes"], row["keys"])
    return RowFigures(published=row.get("published", 0), deviations=[], told=told)


def _of_recipes(names: Sequence[str], keys: Sequence[str]) -> RowFigures:
    """Take published figures and predictions from the plans of recipes."""
    plans = [plan_at_home(name)["published"] for name in names]
    found = [figures[key] for figures in plans for key in keys if key in figures]
    apart = [one["deviation"] for one in found if one.get("deviation") is not None]
    return RowFigures(published=len(found), deviations=apart)


def _of_result(file: str, at: Sequence[Any], says: str) -> str:
    """Read one number of a kept result and say what it is."""
    value = json.loads((RESULTS / file).read_text("utf-8"))
    for step in at:
        value = value[step]
    return says.format(value)


def command_of(row: Tree) -> str:
    """Write the one command that gives the row."""
    if "command" in row:
        return str(row["command"])
    if "study" in row:
        return f"python run.py -m study={row['study']} action=plan"
    return f"python run.py recipe={row['recipes'][0]} scale=full action=plan"


def kind_of(row: Tree, figures: RowFigures) -> str:
    """Say what stands beside the published figures: planned, or what the row itself says."""
    if "kind" in row:
        return str(row["kind"])
    return "exact" if "recipes" in row and not any(figures.deviations) else "planned"


def page(text: str) -> str:
    """Put the counts and a table of each work between the marks of the page."""
    listed, studies = read_listed(), json.loads(KEPT.read_text("utf-8"))["studies"]
    head, _, tail = split_marked(text, "tables", WRITER)
    found = [(row, compared(row, studies)) for _, row in rows_of(listed)]
    parts = [_counts(found)]
    for told in listed.values():
        lines = (_line(row, compared(row, studies)) for row in told["rows"])
        parts.append(f"## {told['title']}\n\n{HEAD}{''.join(lines)}")
    return f"{head}\n" + "\n".join(parts) + f"\n{tail}"


def _counts(found: Sequence[tuple[Tree, RowFigures]]) -> str:
    """Count tables and figures, those with a command, and those with ours beside published."""
    commands = sum(row.get("kind") != "none" for row, _ in found)
    beside = sum(bool(figures.deviations) for _, figures in found)
    own = sum(bool(figures.told) for _, figures in found)
    return (
        f"{len(found)} tables and figures; {commands} have a command, {beside} a planned or "
        f"exact figure beside a published one, {own} a measured one of a miniature.\n"
    )


def _line(row: Tree, figures: RowFigures) -> str:
    """Lay out a row."""
    deviations = [abs(one) for one in figures.deviations]
    return table_line([
        f"{row['place']}: {row['shows']}",
        f"`{command_of(row)}`" if row.get("kind") != "none" else "",
        kind_of(row, figures),
        str(figures.published or ""),
        str(len(deviations) or "") or "; ".join(figures.told),
        f"{median(deviations):.1%}" if deviations else "",
        "" if figures.worst is None else f"{figures.worst:+.1%}",
        str(row.get("why", "")),
    ])


def main(words: Sequence[str]) -> int:
    """Plan if asked to, and write the page."""
    if words:
        kept = {"studies": plan_studies(), **here_and_now(())}
        KEPT.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    enter(main, most=1)

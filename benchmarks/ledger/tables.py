"""Write docs/tables.md: published tables and figures, their commands, and our figures.

    python -m benchmarks.ledger.tables          # from the stored plans and results
    python -m benchmarks.ledger.tables plan     # plans every study again first, some minutes

`benchmarks/data/published_tables.yaml` lists the tables and figures. Our figures come from the
plans of studies, the plans of recipes, and the stored results of benchmarks.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import yaml

from benchmarks.entry import run_script
from benchmarks.generated_section import replace_section, table_line
from benchmarks.ledger.proofs import plan_at_home
from benchmarks.results_store import RESULTS, run_environment, save_tree
from command.arguments import ROOT
from command.study.listed import plan_points
from command.study.request import read_study_request
from command.study.schema import OUT_OF_MEMORY, ListedStudy

LISTED = ROOT / "benchmarks" / "data" / "published_tables.yaml"
STORED = RESULTS / "tables.json"
PAGE = ROOT / "docs" / "tables.md"
WRITER = "python -m benchmarks.ledger.tables"
MOST_DEVIATION = 0.15  # a row with a larger deviation needs a reason
HEAD = """\
| Table or figure | Command | Kind | Published | Compared | Median | Worst | Why |
|---|---|---|---:|---:|---:|---:|---|
"""
JsonTree = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RowFigures:
    """The number of published figures, the deviations of ours, and other figures of ours.

    ``unmatched`` are our figures without a published figure of the same kind.
    """

    published: int
    deviations: Sequence[float]
    unmatched: Sequence[str] = ()

    @property
    def worst(self) -> float | None:
        """The deviation with the largest absolute value."""
        return max(self.deviations, key=abs, default=None)


def plan_studies() -> JsonTree:
    """Plan every point of each listed study, without a run."""
    names = {row["study"] for row in list_rows(read_works()) if "study" in row}
    return {name: _plan_study(name) for name in sorted(names)}


def _plan_study(name: str) -> JsonTree:
    """Compare the plans of a study with its published figures."""
    request = read_study_request([f"study={name}", "action=plan"])
    study = request.study
    if not isinstance(study, ListedStudy):
        return {"published": 1, "deviations": []}
    deviations = [
        point.plan_deviation(quote)
        for point in plan_points(request, study)
        for quote in point.quotes
        if quote.value != OUT_OF_MEMORY
    ]
    return {
        "published": len(study.published.values),
        "deviations": [round(value, 4) for value in deviations if value is not None],
    }


def read_works() -> JsonTree:
    """Read the works with their titles and rows."""
    tree: JsonTree = yaml.safe_load(LISTED.read_text("utf-8"))
    return tree


def list_rows(works: JsonTree) -> list[JsonTree]:
    """List the rows of all works."""
    return [row for work in works.values() for row in work["rows"]]


def read_figures(row: JsonTree, studies: JsonTree) -> RowFigures:
    """Return a row's figures: from its study, its recipes' plans or stored results."""
    unmatched = [_read_result(**result) for result in row.get("results", ())]
    if "study" in row:
        return RowFigures(**studies[row["study"]], unmatched=unmatched)
    if "recipes" in row:
        return _read_plans(row["recipes"], row["keys"])
    return RowFigures(published=row.get("published", 0), deviations=[], unmatched=unmatched)


def _read_plans(names: Sequence[str], keys: Sequence[str]) -> RowFigures:
    """Return published figures and predictions from the plans of recipes."""
    plans = [plan_at_home(name)["published"] for name in names]
    figures = [plan[key] for plan in plans for key in keys if key in plan]
    deviations = [row["deviation"] for row in figures if row.get("deviation") is not None]
    return RowFigures(published=len(figures), deviations=deviations)


def _read_result(file: str, path: Sequence[Any], text: str) -> str:
    """Read a number of a stored result and format it."""
    value = json.loads((RESULTS / file).read_text("utf-8"))
    for key in path:
        value = value[key]
    return text.format(value)


def command_of(row: JsonTree) -> str:
    """Return the command that reproduces a row."""
    if "command" in row:
        return str(row["command"])
    if "study" in row:
        return f"python run.py -m study={row['study']} action=plan"
    return f"python run.py recipe={row['recipes'][0]} scale=full action=plan"


def kind_of(row: JsonTree, figures: RowFigures) -> str:
    """Return the kind of our figures: the row's own kind, exact or planned."""
    if "kind" in row:
        return str(row["kind"])
    return "exact" if "recipes" in row and not any(figures.deviations) else "planned"


def render_page(text: str) -> str:
    """Replace the generated section of the page: the counts, and a table per work."""
    works, studies = read_works(), json.loads(STORED.read_text("utf-8"))["studies"]
    rows = [(row, read_figures(row, studies)) for row in list_rows(works)]
    parts = [_count_rows(rows)]
    for work in works.values():
        lines = (_table_row(row, read_figures(row, studies)) for row in work["rows"])
        parts.append(f"## {work['title']}\n\n{HEAD}{''.join(lines)}")
    return replace_section(text, "tables", WRITER, "\n" + "\n".join(parts) + "\n")


def _count_rows(rows: Sequence[tuple[JsonTree, RowFigures]]) -> str:
    """Count the rows, those with a command, and those with figures of ours."""
    commands = sum(row.get("kind") != "none" for row, _ in rows)
    compared = sum(bool(figures.deviations) for _, figures in rows)
    measured = sum(bool(figures.unmatched) for _, figures in rows)
    return (
        f"{len(rows)} tables and figures: {commands} have a command, {compared} have a planned "
        f"or exact figure to compare, {measured} have a measured figure of a miniature.\n"
    )


def _table_row(row: JsonTree, figures: RowFigures) -> str:
    """Return the table row of a published table or figure."""
    deviations = [abs(value) for value in figures.deviations]
    return table_line([
        f"{row['place']}: {row['shows']}",
        f"`{command_of(row)}`" if row.get("kind") != "none" else "",
        kind_of(row, figures),
        str(figures.published or ""),
        str(len(deviations) or "") or "; ".join(figures.unmatched),
        f"{median(deviations):.1%}" if deviations else "",
        "" if figures.worst is None else f"{figures.worst:+.1%}",
        str(row.get("why", "")),
    ])


def main(words: Sequence[str]) -> int:
    """Plan the studies if requested, and write the page."""
    if words:
        save_tree(STORED, {"studies": plan_studies(), **run_environment(())})
    PAGE.write_text(render_page(PAGE.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    run_script(main, max_words=1)

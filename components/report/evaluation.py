"""What checkpoints were found to be worth by ``action=evaluate``, as tables."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from components.report import numbers
from components.report.outcome import ReportEntry, Tree
from components.report.tables import Grid, TableRow, row_labels, run_column
from components.run.records import read_checked
from components.run.reported import EvaluationRecord

_TEXTS = ("text", "loss", "perplexity", "bits/byte", "tokens", "documents")
_TASKS = ("task", "metric", "value", "standard error", "samples", "shots")
AGAIN = "delete it and evaluate again"
Cells = tuple[str, ...]
Found = Sequence[tuple[Cells, Tree]]  # results, each behind the cells that lead its rows


def evaluation_grids(entries: Sequence[ReportEntry]) -> dict[str, Grid]:
    """Lay out every checkpoint that was evaluated, those of a run in the order of tokens.

    Raises:
        RecipeError: a result file that cannot be read.
    """
    found = [
        ((*label, tree["checkpoint"]), tree)
        for entry, label in zip(entries, row_labels(entries), strict=True)
        for tree in _results(entry.run.folder)
    ]
    lead = (*run_column(entries), "checkpoint")
    return {
        "evaluated_texts": text_grid(found, lead=lead),
        "evaluated_tasks": task_grid(found, lead=lead),
    }


def text_grid(found: Found, *, lead: Cells) -> Grid:
    """Lay out a row a source, language or text."""
    rows = [
        TableRow(cells=(*before, name, *_figures(figures)))
        for before, tree in found
        for name, figures in _texts(tree)
    ]
    return Grid(columns=(*lead, *_TEXTS), rows=tuple(rows), text_columns=len(lead) + 1)


def task_grid(found: Found, *, lead: Cells) -> Grid:
    """Lay out a row a metric of each task."""
    rows = [
        TableRow(cells=(*before, name, *cells))
        for before, tree in found
        for name, task in tree.get("tasks", {}).items()
        for cells in _metrics(task)
    ]
    return Grid(columns=(*lead, *_TASKS), rows=tuple(rows), text_columns=len(lead) + 2)


def _results(run: Path) -> Iterator[Tree]:
    for file in sorted((run / "evaluation").glob("*.json")):
        yield read_checked(file, EvaluationRecord, finite=False, remedy=AGAIN)


def _texts(tree: Tree) -> Iterator[tuple[str, Tree]]:
    held_out: Tree = tree.get("held_out", {})
    yield from held_out.get("by_source", {}).items()
    for language, figures in held_out.get("by_language", {}).items():
        yield f"language {language}", figures
    if held_out:
        yield "all held-out tokens", held_out["all"]
    yield from tree.get("texts", {}).items()


def _figures(figures: Tree) -> Cells:
    return (
        numbers.loss(figures["loss"]),
        _fixed(figures["perplexity"], 2),
        _fixed(figures["bits_per_byte"], 3),
        numbers.exact(figures["tokens"]),
        numbers.exact(figures["documents"]),
    )


def _metrics(task: Tree) -> Iterator[Cells]:
    """Set each metric beside its standard error, which lm-eval names after it."""
    found: Mapping[str, float] = task["metrics"]
    shape = (numbers.exact(task["samples"]), numbers.exact(task["num_fewshot"]))
    for metric, value in found.items():
        base, comma, filtered = metric.partition(",")
        if not base.endswith("_stderr"):
            error = found.get(f"{base}_stderr{comma}{filtered}")
            yield (metric, _fixed(value, 4), _fixed(error, 4), *shape)


def _fixed(value: float | None, digits: int) -> str:
    return numbers.ABSENT if value is None else f"{value:,.{digits}f}"

"""Tables of measurements outside training: evaluated checkpoints and profiled steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from components.report import numbers
from components.report.held_out import AS_MIXTURE, PLAIN_MEAN
from components.report.outcome import JsonTree, ReportEntry
from components.report.tables import Cells, Grid, build_run_column, grid_by_name
from components.run.records import read_checked
from components.run.reported import EvaluationRecord, Profile

_TEXTS = {  # by heading, the key and its format
    "loss": ("loss", ".3f"),
    "perplexity": ("perplexity", ",.2f"),
    "bits/byte": ("bits_per_byte", ",.3f"),
    "tokens": ("tokens", ","),
    "documents": ("documents", ","),
}
_TASKS = ("task", "metric", "value", "standard error", "samples", "shots")
_SCORES = (
    *("list", "task", "metric", "shots", "samples"),
    *("score, %", "standard error", "published", "difference"),
)
MEAN = "mean"  # of a list of tasks
_DIRECTIONS = ("forward", "backward", "recomputed")
_PARTS = ("part", "per step", "share", *_DIRECTIONS)
_MEANS = ((AS_MIXTURE, "weighted_as_mixture"), (PLAIN_MEAN, "mean_over_sources"))
EVALUATE_AGAIN = "delete it and evaluate again"


def evaluation_grids(entries: Sequence[ReportEntry]) -> dict[str, Grid]:
    """Return the tables of all evaluated checkpoints, each run's in the order of tokens."""
    tables = {"evaluated_scores": score_grid, "evaluated_texts": text_grid}
    tables["evaluated_tasks"] = task_grid
    return _joined(entries, "checkpoint", read_evaluations, tables)


def profile_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Return the table of the profiles of all runs, rank by rank."""
    return _joined(entries, "rank", read_profiles, {"parts": parts_grid})["parts"]


def _joined(
    entries: Sequence[ReportEntry],
    key: str,
    read: Callable[[Path], list[JsonTree]],
    tables: Mapping[str, Callable[[JsonTree], Grid]],
) -> dict[str, Grid]:
    """Join each table over all files. Rows start with their run and their file's ``key``."""
    run, runs = build_run_column(entries)
    heads = (*run, key)
    records = [
        ((*cell, str(tree[key])), tree) for e, cell in runs for tree in read(e.run.folder)
    ]
    joined = {}
    for name, lay_out in tables.items():
        shape, rows = Grid(columns=heads, text_columns=len(heads)), []
        for lead, tree in records:
            grid = lay_out(tree)
            columns, text_columns = (*heads, *grid.columns), len(heads) + grid.text_columns
            # A table of several runs is long, so a page may fold it.
            fold = "rows" if run else ""
            shape = replace(grid, columns=columns, text_columns=text_columns, fold=fold)
            rows += [(*lead, *row) for row in grid.rows]
        joined[name] = replace(shape, rows=rows)
    return joined


def read_evaluations(run: Path) -> list[JsonTree]:
    """Read the result files of a run folder, in the order of tokens."""
    files, kind = sorted((run / "evaluation").glob("*.json")), EvaluationRecord
    return [read_checked(file, kind, finite=False, remedy=EVALUATE_AGAIN) for file in files]


def text_grid(tree: JsonTree) -> Grid:
    """Return the table of one checkpoint's losses, one row per source, language or text."""
    held_out: JsonTree = tree.get("held_out", {})
    unknown = dict.fromkeys(key for key, _ in _TEXTS.values())  # absent for a mean of losses
    languages = held_out.get("by_language", {}).items()
    items = [
        *held_out.get("by_source", {}).items(),
        *((f"language {language}", figures) for language, figures in languages),
        *([("all held-out tokens", held_out["all"])] if held_out else []),
        *(
            (name, unknown | {"loss": held_out[key]})
            for name, key in _MEANS
            if held_out.get(key)
        ),
        *tree.get("texts", {}).items(),
    ]
    return grid_by_name("text", items, _TEXTS)


def task_grid(tree: JsonTree) -> Grid:
    """Return the table of each task's metrics with their standard errors from lm-eval."""
    rows: list[Cells] = []
    for name, task in tree.get("tasks", {}).items():
        metrics: Mapping[str, float] = task["metrics"]
        shape = [numbers.format_exact(task[key]) for key in ("samples", "num_fewshot")]
        for metric, value in metrics.items():
            base, comma, filtered = metric.partition(",")
            if not base.endswith("_stderr"):
                error = metrics.get(f"{base}_stderr{comma}{filtered}")
                written = (numbers.format_value(number, ",.4f") for number in (value, error))
                rows.append((name, metric, *written, *shape))
    return Grid(columns=_TASKS, rows=rows, text_columns=2, kind="figures")


def score_grid(tree: JsonTree) -> Grid:
    """Return the table of one checkpoint's scores, one row per task and per mean of a list."""
    rows: list[Cells] = []
    for name, scores in tree.get("scores", {}).items():
        for task, figures in scores["tasks"].items():
            shape = [numbers.format_exact(figures[key]) for key in ("num_fewshot", "samples")]
            rows.append((name, task, figures["metric"], *shape, *_score_cells(figures)))
        mean = {"score": scores["mean"], "published": scores.get("published")}
        rows.append((name, MEAN, "", "", "", *_score_cells(mean)))
    return Grid(columns=_SCORES, rows=rows, text_columns=3, kind="figures")


def _score_cells(entry: JsonTree) -> Cells:
    score, published = entry["score"], entry.get("published")
    away = None if published is None or score is None else score - published
    return (
        numbers.format_value(score, ".2f"),
        numbers.format_value(entry.get("standard_error"), ".2f"),
        numbers.format_value(published, ".1f"),
        numbers.format_value(away, "+.1f"),
    )


def read_profiles(run: Path) -> list[JsonTree]:
    """Read the profiles of a run folder, in the order of ranks."""
    files, again = (run / "profile").glob("rank-*[0-9].json"), "delete it and profile again"
    trees = [read_checked(file, Profile, remedy=again) for file in files]
    return sorted(trees, key=lambda tree: int(tree["rank"]))


def parts_grid(tree: JsonTree) -> Grid:
    """Return a table with one row per part of the step that took any time, and their sum."""
    whole = tree["step_seconds"]
    rows: list[Cells] = []
    for part, times in tree["parts"].items():
        if times["seconds"]:
            directions = (times.get(f"{name}_seconds") for name in _DIRECTIONS)
            share = f"{times['seconds'] / whole:.1%}"
            rows.append((part, _span(times["seconds"]), share, *map(_span, directions)))
    rows.append(("step", _span(whole), "100.0%", *("",) * len(_DIRECTIONS)))
    return Grid(columns=_PARTS, rows=rows, kind="figures times")


def _span(seconds: float | None) -> str:
    """Format a part of a step. The cell is empty if there is none."""
    return numbers.format_step_seconds(seconds) if seconds else ""

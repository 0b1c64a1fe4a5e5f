"""Tables of what was measured beside training: checkpoints evaluated, steps profiled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from components.report import numbers
from components.report.held_out import AS_MIXTURE, PLAIN_MEAN
from components.report.outcome import ReportEntry, Tree
from components.report.tables import Cells, Grid, grid_by_name, labelled
from components.run.records import read_checked
from components.run.reported import EvaluationRecord, Profile

_TEXTS = {  # by heading, the key of the figures and its format
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
_PARTS = ("part", "a step", "share", *_DIRECTIONS)
_PRODUCTS = ("products of", "FLOP a step", "reached", "FLOP/byte", "limit", "of the limit")
_WAITS = ("call", "part", "direction", "times a step", "a step", "line")
_MEANS = ((AS_MIXTURE, "weighted_as_mixture"), (PLAIN_MEAN, "mean_over_sources"))
EVALUATE_AGAIN = "delete it and evaluate again"


def evaluation_grids(entries: Sequence[ReportEntry]) -> dict[str, Grid]:
    """Lay out every checkpoint that was evaluated, those of a run in the order of tokens.

    Raises:
        RecipeError: a result file that cannot be read.
    """
    tables = {"evaluated_scores": score_grid, "evaluated_texts": text_grid}
    tables["evaluated_tasks"] = task_grid
    return _joined(entries, "checkpoint", read_evaluations, tables)


def profile_grids(entries: Sequence[ReportEntry]) -> dict[str, Grid]:
    """Lay out the profiles of all runs, rank by rank.

    Raises:
        RecipeError: a profile that cannot be read.
    """
    tables = {"profile_parts": parts_grid, "profile_products": products_grid}
    return _joined(entries, "rank", read_profiles, tables | {"profile_waits": waits_grid})


def _joined(
    entries: Sequence[ReportEntry],
    key: str,
    read: Callable[[Path], list[Tree]],
    tables: Mapping[str, Callable[[Tree], Grid]],
) -> dict[str, Grid]:
    """Join each table of all files, every row behind its run and its file's ``key``."""
    run, runs = labelled(entries)
    heads = (*run, key)
    found = [((*cell, str(tree[key])), tree) for e, cell in runs for tree in read(e.run.folder)]
    joined = {}
    for name, lay_out in tables.items():
        shape, rows = Grid(columns=heads, text_columns=len(heads)), []
        for lead, tree in found:
            grid = lay_out(tree)
            columns, text_columns = (*heads, *grid.columns), len(heads) + grid.text_columns
            # A table of several runs is long, so that a page may fold it.
            fold = "rows" if run else ""
            shape = replace(grid, columns=columns, text_columns=text_columns, fold=fold)
            rows += [(*lead, *row) for row in grid.rows]
        joined[name] = replace(shape, rows=rows)
    return joined


def read_evaluations(run: Path) -> list[Tree]:
    """Read the result files of a run folder, in the order of tokens.

    Raises:
        RecipeError: one of them cannot be read.
    """
    files, kind = sorted((run / "evaluation").glob("*.json")), EvaluationRecord
    return [read_checked(file, kind, finite=False, remedy=EVALUATE_AGAIN) for file in files]


def text_grid(tree: Tree) -> Grid:
    """Lay out the losses of one checkpoint, a row a source, language or text."""
    held_out: Tree = tree.get("held_out", {})
    unknown = dict.fromkeys(key for key, _ in _TEXTS.values())  # of a mean of losses
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


def task_grid(tree: Tree) -> Grid:
    """Lay out each metric of a task beside its standard error, which lm-eval names after it."""
    rows: list[Cells] = []
    for name, task in tree.get("tasks", {}).items():
        found: Mapping[str, float] = task["metrics"]
        shape = (numbers.exact(task["samples"]), numbers.exact(task["num_fewshot"]))
        for metric, value in found.items():
            base, comma, filtered = metric.partition(",")
            if not base.endswith("_stderr"):
                error = found.get(f"{base}_stderr{comma}{filtered}")
                written = (numbers.written(one, ",.4f") for one in (value, error))
                rows.append((name, metric, *written, *shape))
    return Grid(columns=_TASKS, rows=rows, text_columns=2, kind="figures")


def score_grid(tree: Tree) -> Grid:
    """Lay out the scores of one checkpoint, a row a task and one for the mean of each list."""
    rows: list[Cells] = []
    for name, found in tree.get("scores", {}).items():
        for task, one in found["tasks"].items():
            shape = (numbers.exact(one["num_fewshot"]), numbers.exact(one["samples"]))
            rows.append((name, task, one["metric"], *shape, *_score_cells(one)))
        mean = {"score": found["mean"], "published": found.get("published")}
        rows.append((name, MEAN, "", "", "", *_score_cells(mean)))
    return Grid(columns=_SCORES, rows=rows, text_columns=3, kind="figures")


def _score_cells(one: Tree) -> Cells:
    score, published = one["score"], one.get("published")
    away = None if published is None or score is None else score - published
    return (
        numbers.written(score, ".2f"),
        numbers.written(one.get("standard_error"), ".2f"),
        numbers.written(published, ".1f"),
        numbers.written(away, "+.1f"),
    )


def read_profiles(run: Path) -> list[Tree]:
    """Read the profiles of a run folder, in the order of ranks.

    Raises:
        RecipeError: one of them cannot be read.
    """
    files, again = (run / "profile").glob("rank-*[0-9].json"), "delete it and profile again"
    trees = [read_checked(file, Profile, remedy=again) for file in files]
    return sorted(trees, key=lambda tree: int(tree["rank"]))


def parts_grid(tree: Tree) -> Grid:
    """Lay out a row a part of the step that took any time, and their sum."""
    whole = tree["step_seconds"]
    rows: list[Cells] = []
    for part, times in tree["parts"].items():
        if times["seconds"]:
            directions = (times.get(f"{name}_seconds") for name in _DIRECTIONS)
            share = f"{times['seconds'] / whole:.1%}"
            rows.append((part, _span(times["seconds"]), share, *map(_span, directions)))
    rows.append(("step", _span(whole), "100.0%", *("",) * len(_DIRECTIONS)))
    return Grid(columns=_PARTS, rows=rows, kind="figures times")


def products_grid(tree: Tree) -> Grid:
    """Lay out what products and attention reach, beside what the machine allows them."""
    rows = [
        (
            part,
            numbers.rate(figures["flops"], "FLOP"),
            numbers.rate(figures["flops_per_second"], "FLOP/s"),
            numbers.measured(figures["flops_per_byte"]),
            numbers.rate(figures.get("limit_flops_per_second"), "FLOP/s"),
            numbers.written(figures.get("limit_fraction"), ".1%"),
        )
        for part, figures in tree["products"].items()
    ]
    return Grid(columns=_PRODUCTS, rows=rows, kind="figures times")


def waits_grid(tree: Tree) -> Grid:
    """Lay out what makes the host wait for its device, or would on a device."""
    rows = []
    for wait in tree["waits"]:
        place, times = (wait["call"], wait["part"], wait["direction"]), f"{wait['times']:.3g}"
        rows.append((*place, times, _span(wait["seconds"]), wait["line"]))
    return Grid(columns=_WAITS, rows=rows, text_columns=3, kind="times")


def _span(seconds: float | None) -> str:
    """Write a part of a step; a cell stays empty where there is none."""
    return numbers.brief(seconds) if seconds else ""

"""Outcomes of a study's points: the figures from their runs, or the reasons for none."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from command.outcome import ActionResult, Status, call_and_report
from command.study.request import StudyRequest
from command.study.schema import ListedStudy, Point, SearchStudy
from components.errors import RecipeError
from components.json_file import read_mapping
from components.run.ownership import check_links
from components.run.records import HeldOutRecord, StatedResults, read_checked

_HELD_OUT = ("held_out.final", "held_out.final_unweighted")
COUNTS = "fertility.json"  # of a point that is a tokenizer


@dataclass(frozen=True)
class PointOutcome:
    """The outcome of a point: its figure, or the reason for none, and all results.

    ``status`` is the status of a failed point. A point without a figure may have run well.
    """

    figure: float | None
    why: str
    run_results: Mapping[str, Any] = field(default_factory=dict, compare=False)
    status: Status = Status.DONE


PENDING = PointOutcome(None, "")
Poll = Callable[[], PointOutcome | None]  # a run's outcome, None until it ends
PointValue = TypeVar("PointValue")


def attempt_point(
    act: Callable[[], PointValue], request: StudyRequest, point: Point
) -> PointValue | PointOutcome:
    """Call ``act`` for a point. An error is printed and ends only this point."""
    results: list[PointValue] = []

    def act_once() -> ActionResult:
        results.append(act())
        return ActionResult()

    ended = call_and_report(act_once, request.words, request.folder_of(point).name)
    if ended.status >= Status.INTERRUPTED:
        raise KeyboardInterrupt
    return results[0] if results else PointOutcome(None, ended.why, status=ended.status)


def read_figure(tree: Mapping[str, Any], key: str, where: str) -> float:
    """Read a number in a tree by its dotted key; RecipeError if there is no such number."""
    figure = read_figure_or_none(tree, key, where)
    if figure is None:
        raise _no_number(key, where)
    return figure


def read_figure_or_none(tree: Mapping[str, Any], key: str, where: str) -> float | None:
    """Read a number, or None for null. Keys joined with `` + `` are added."""
    if " + " in key:
        parts = [read_figure_or_none(tree, part, where) for part in key.split(" + ")]
        return None if None in parts else sum(filter(None, parts))
    node: Any = tree
    for step in key.split("."):
        if node is None:
            return None
        if not isinstance(node, Mapping) or step not in node:
            raise _no_number(key, where)
        node = node[step]
    if node is None:
        return None
    if isinstance(node, bool) or not isinstance(node, int | float):
        raise _no_number(key, where)
    return float(node)


def _no_number(key: str, where: str) -> RecipeError:
    return RecipeError(where, f"{key} is not a number there", "choose another key")


def measures_tokenizers(study: SearchStudy | ListedStudy) -> bool:
    """Return whether the points are tokenizers, not runs."""
    return isinstance(study, ListedStudy) and study.measures == "tokenizers"


def result_in(request: StudyRequest, point: Point) -> PointOutcome | None:
    """Read the figure of a point's run, or None if the run has not finished."""
    run, key = request.folder_of(point), str(request.study.objective.measured)
    if measures_tokenizers(request.study):
        return counted_in(run, key)
    file = run / "results.json"
    if not file.is_file():
        return None
    check_links(run, "run")
    results = read_checked(file, StatedResults, finite=False)
    if results["status"] != "finished":
        return None
    diverged = f"{key} is not a finite number: the run diverged"
    if key in results.get("not_finite", ()):  # records of earlier versions lack this list
        return PointOutcome(None, diverged, results, Status.DOES_NOT_HOLD)
    if key in _HELD_OUT:
        ending = _held_out_in(results, key)
    else:
        ending = PointOutcome(read_figure(results, key, "objective.measured"), "", results)
    if ending.figure is not None and not math.isfinite(ending.figure):
        return PointOutcome(None, diverged, results, Status.DOES_NOT_HOLD)
    return ending


def _held_out_in(results: Mapping[str, Any], key: str) -> PointOutcome:
    """Read a held-out loss. An untrained model's loss or another mean does not replace it."""
    held_out = HeldOutRecord.model_validate(results.get("held_out") or {})
    figure = getattr(held_out, key.removeprefix("held_out."))
    if figure is not None:
        return PointOutcome(figure, "", results)
    if held_out.by_source:  # a record of an earlier version
        why = f"{key} was not measured; held_out.final_unweighted was"
        return PointOutcome(None, why, results)
    return PointOutcome(None, f"{key}: no evaluation since step 0", results)


def counted_in(folder: Path, key: str) -> PointOutcome | None:
    """Read a tokenizer point's counts, or None if it was not counted."""
    if not (folder / COUNTS).is_file():
        return None
    check_links(folder, "run")
    counts = read_mapping(folder / COUNTS)
    return PointOutcome(read_figure(counts, key, "objective.measured"), "", counts)

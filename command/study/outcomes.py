"""Outcomes of a study's points: figures that their runs left, or why there are none."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    """What became of a point: its figure, or why there is none, and all that was found."""

    figure: float | None
    why: str
    found: Mapping[str, Any] = field(default_factory=dict, compare=False)


PENDING = PointOutcome(None, "")
Poll = Callable[[], PointOutcome | None]  # how a run ended; nothing as long as it has not


def refused(error: RecipeError) -> PointOutcome:
    """Return the ending of a point that cannot be."""
    return PointOutcome(None, f"{error.path}: {error.problem}")


def read_figure(tree: Mapping[str, Any], key: str, where: str) -> float:
    """Read a number of a tree by its dotted key.

    Raises:
        RecipeError: there is none.
    """
    figure = read_figure_or_none(tree, key, where)
    if figure is None:
        raise _no_number(key, where)
    return figure


def read_figure_or_none(tree: Mapping[str, Any], key: str, where: str) -> float | None:
    """Read a number, or nothing where the tree has null; keys with `` + `` between are added.

    Raises:
        RecipeError: there is no such key, or no number.
    """
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
    return RecipeError(where, f"{key} is no number there", "name another key")


def measures_tokenizers(study: SearchStudy | ListedStudy) -> bool:
    """Whether the points are tokenizers, not runs."""
    return isinstance(study, ListedStudy) and study.measures == "tokenizers"


def result_in(request: StudyRequest, point: Point) -> PointOutcome | None:
    """Read the figure of a point's run that has finished; nothing of one that has not.

    Raises:
        RecipeError: it finished without such a figure.
    """
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
    diverged = f"{key} is no finite number: the run diverged"
    if key in results.get("not_finite", ()):  # earlier versions have no such list
        return PointOutcome(None, diverged)
    if key in _HELD_OUT:
        ending = _held_out_in(results, key)
    else:
        ending = PointOutcome(read_figure(results, key, "objective.measured"), "", results)
    if ending.figure is not None and not math.isfinite(ending.figure):
        return PointOutcome(None, diverged)
    return ending


def _held_out_in(results: Mapping[str, Any], key: str) -> PointOutcome:
    """Read a held-out loss; an untrained model's or another mean stands for none."""
    held_out = HeldOutRecord.model_validate(results.get("held_out") or {})
    figure = getattr(held_out, key.removeprefix("held_out."))
    if figure is not None:
        return PointOutcome(figure, "", results)
    if held_out.by_source:  # an earlier version's
        return PointOutcome(None, f"{key} was not measured; held_out.final_unweighted was")
    return PointOutcome(None, f"{key}: no evaluation since step 0")


def counted_in(folder: Path, key: str) -> PointOutcome | None:
    """Read what was counted of a point; nothing if it was not.

    Raises:
        RecipeError: the study compares what is not counted.
    """
    if not (folder / COUNTS).is_file():
        return None
    check_links(folder, "run")
    found = read_mapping(folder / COUNTS)
    return PointOutcome(read_figure(found, key, "objective.measured"), "", found)

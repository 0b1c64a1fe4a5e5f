"""Three ways to try a point of a study: plan it, train it here, or submit it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Protocol

from command.actions.plan import as_json
from command.arguments import Arguments
from command.compose import compose_recipe
from components.errors import RecipeError
from components.planner.plan import plan_recipe
from components.run.links import check_links
from components.run.records import Ending, read_checked
from components.spec.study_fields import Value

Point = Mapping[str, Value]
Ask = Callable[[Point], Arguments]
Folder = Callable[[Point], Path]


@dataclass(frozen=True)
class Ended:
    """What became of a point: its figure, or why there is none."""

    figure: float | None
    why: str


class Runner(Protocol):
    """Makes runs of points and tells how they are."""

    def start(self, point: Point) -> None:
        """Begin the point's run; one that is there already is left as it is.

        Raises:
            RecipeError: the point cannot be.
        """
        ...

    def look(self, point: Point) -> Ended | None:
        """Tell how the run ended; nothing as long as it has not."""
        ...


class Planned:
    """Points that are planned and never run: their figures are there at once."""

    def __init__(self, *, ask: Ask, key: str) -> None:
        self._ask = ask
        self._key = key
        self._trees: dict[frozenset[tuple[str, Value]], dict[str, Any]] = {}

    def start(self, point: Point) -> None:
        recipe = compose_recipe(self._ask(point))
        self._trees[frozenset(point.items())] = as_json(recipe, plan_recipe(recipe))

    def look(self, point: Point) -> Ended:
        tree = self._trees[frozenset(point.items())]
        memory = tree["memory"]
        if memory["verdict"] == "does_not_fit":
            gib = memory["peak_bytes"] / 2**30
            return Ended(None, f"does not fit: {gib:.1f} GiB a device")
        return Ended(self.figure(point), "")

    def figure(self, point: Point) -> float:
        """Return what the plan says, also of a layout that does not fit."""
        tree = self._trees[frozenset(point.items())]
        return figure_of(tree, self._key, "objective.planned")


class Trained:
    """Points that are trained on this machine, one after the other."""

    def __init__(
        self, *, ask: Ask, folder: Folder, key: str, train: Callable[[Arguments], None]
    ) -> None:
        self._ask = ask
        self._folder = folder
        self._key = key
        self._train = train

    def start(self, point: Point) -> None:
        if result_in(self._folder(point), self._key) is None:
            self._train(self._ask(point))

    def look(self, point: Point) -> Ended:
        ended = result_in(self._folder(point), self._key)
        return ended or Ended(None, "did not finish")


def result_in(run: Path, key: str) -> Ended | None:
    """Read the figure of a run that has finished; nothing of one that has not.

    Raises:
        RecipeError: it finished without such a figure.
    """
    file = run / "results.json"
    if not file.is_file():
        return None
    check_links(run, "run")
    results = read_checked(file, Ending, finite=False)
    if results["status"] != "finished":
        return None
    if key in results.get("not_finite", ()):  # earlier versions have no such list
        return Ended(None, f"{key} is no finite number: the run diverged")
    return Ended(figure_of(results, key, "objective.measured"), "")


def figure_of(tree: Mapping[str, Any], key: str, where: str) -> float:
    """Follow a dotted key.

    Raises:
        RecipeError: it leads nowhere, or to no number.
    """
    figure = reduce(_inside, key.split("."), tree)
    if isinstance(figure, bool) or not isinstance(figure, int | float):
        raise RecipeError(where, f"{key} is no number there", "name another key")
    return float(figure)


def _inside(node: Any, step: str) -> Any:
    return node.get(step) if isinstance(node, Mapping) else None

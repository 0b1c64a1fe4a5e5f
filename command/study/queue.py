"""Runs of a study's points that are submitted to a batch cluster, a run each."""

from cluster.schedulers import scheduler_of
from cluster.status import status_of
from command.actions.submit import check, check_not_submitted, hand_over
from command.compose import compose_recipe
from command.study.runs import Ask, Folder, PointEnding, result_in
from command.study.schema import Point
from components.config.schema.recipe import read_recipe
from components.errors import RecipeError


class SubmittedRuns:
    """Runs in a queue; what is there already, whatever became of it, is not submitted again."""

    def __init__(self, *, ask: Ask, folder: Folder, key: str) -> None:
        self._ask = ask
        self._folder = folder
        self._key = key

    def start(self, point: Point) -> None:
        arguments, path = self._ask(point), self._folder(point)
        recipe = compose_recipe(arguments)
        try:
            check_not_submitted(recipe, path, again=False)
        except RecipeError as standing:
            if standing.path != "run":
                raise
            return
        hand_over(check(recipe, arguments, path), after=None)

    def look(self, point: Point) -> PointEnding | None:
        path = self._folder(point)
        cluster = read_recipe(path / "recipe.json").cluster
        status = status_of(path, scheduler_of(cluster))
        if status.queued is None or status.queued:  # the scheduler does not answer, or is busy
            return None
        ended = result_in(path, self._key)
        return ended or PointEnding(None, f"{status.state}: {status.why}")

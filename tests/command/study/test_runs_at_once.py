"""How many of a study's runs are under way: as many as it wants and its queue takes."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from command.study.runs import Look, PointEnding, SubmittedRun, run_all
from command.study.schema import Point, QueueLimits

if TYPE_CHECKING:
    from command.study.request import StudyRequest


@dataclass(frozen=True)
class Waiting(SubmittedRun):
    """A run that has ended when it is asked for the ninth time."""

    asked_times: list[int] = field(default_factory=list)

    def __call__(self) -> PointEnding | None:
        self.asked_times.append(1)
        return PointEnding(1.0, "") if len(self.asked_times) == 9 else None


@pytest.mark.parametrize(("most", "together"), [(None, 4), (9, 4), (2, 2), (1, 1)])
def test_a_study_has_no_more_runs_under_way_than_their_queue_takes(
    most: int | None, together: int
) -> None:
    begun: list[int] = []
    ended: list[int] = []
    seen: list[int] = []

    def start(point: Point) -> Look:
        begun.append(1)
        seen.append(len(begun) - len(ended))
        return Waiting(cast("StudyRequest", None), point, most)

    def finish(number: int, ending: PointEnding) -> None:
        ended.append(number)

    points = [(number, {"budget.seed": number}) for number in range(7)]
    run_all(start, points, finish, QueueLimits(at_once=4, poll_seconds=0.001))
    assert sorted(ended) == list(range(7))
    assert max(seen) == together

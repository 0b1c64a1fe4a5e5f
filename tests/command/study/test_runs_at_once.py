"""How many of a study's runs are under way: as many as it wants and its queue takes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from cluster.chain import SubmitEvent
from cluster.records import Jobs, utc_now
from command.main import main
from command.study.outcomes import PointOutcome, Poll
from command.study.runs import SubmittedRun
from command.study.schema import Point, QueueLimits
from command.study.search import run_all
from components.run.folder import RunFolder
from tests.command.test_sweep import HERE, queue, submitted
from tests.life.conftest import TINY

if TYPE_CHECKING:
    from command.study.request import StudyRequest

Said = pytest.CaptureFixture[str]

__all__ = ["queue"]


@dataclass(frozen=True)
class Waiting(SubmittedRun):
    """A run that has ended when it is asked for the ninth time."""

    asked_times: list[int] = field(default_factory=list)

    def __call__(self) -> PointOutcome | None:
        self.asked_times.append(1)
        return PointOutcome(1.0, "") if len(self.asked_times) == 9 else None


@pytest.mark.parametrize(("most", "together"), [(None, 4), (9, 4), (2, 2), (1, 1)])
def test_runs_at_once_stay_below_queue_limit(most: int | None, together: int) -> None:
    begun: list[int] = []
    ended: list[int] = []
    seen: list[int] = []

    def start(point: Point) -> Poll:
        begun.append(1)
        seen.append(len(begun) - len(ended))
        return Waiting(cast("StudyRequest", None), point, most)

    def finish(number: int, ending: PointOutcome) -> None:
        ended.append(number)

    points = [(number, {"budget.seed": number}) for number in range(7)]
    run_all(start, points, finish, QueueLimits(at_once=4, poll_seconds=0.001))
    assert sorted(ended) == list(range(7))
    assert max(seen) == together


STUDY = """
name: rates
description: Which rate learns most.
recipe: teuken7b
cluster: juwels
set: {cluster.hours: 0.5}
space: {optimizer.lr: [0.001]}
products: {}
objective: {measured: held_out.final, planned: null, direction: minimize}
search: {sampler: random, trials: 1, at_once: 1, seed: 3, poll_seconds: 1}
published: {}
"""


def test_cut_submission_is_repeated(queue: Path, tmp_path: Path, capfd: Said) -> None:
    """Its process was killed before the scheduler answered, and the queue has no job of it."""
    (tmp_path / "rates.yaml").write_text(STUDY)
    given = ("recipe=", "cluster=", "cluster.hours=")
    words = [word for word in (*TINY, *HERE) if not word.startswith(given)]
    words = ["-m", *words, "study=rates.yaml", f"run={tmp_path / 'study'}"]
    main(words)
    (run,) = (file.parent for file in (tmp_path / "study").glob("*/recipe.json"))
    assert len(submitted(queue)) == 1
    Jobs(RunFolder(run)).append_events(SubmitEvent(at=utc_now(), jobs=1))
    for journal in (tmp_path / "study").glob("*.journal"):
        journal.unlink()
    main(words)
    assert len(submitted(queue)) == 2, capfd.readouterr().err
    main(words)
    assert len(submitted(queue)) == 2

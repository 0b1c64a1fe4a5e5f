"""Cases of `chaos`: the faults, and the random step and rank of each.

A fault is injected before a random step on a random rank. The seed is the layout and the case,
so every draw can be repeated. A case excludes steps at which it would have no effect.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel

from components.config.schema.monitoring import Injection

FILE = Path(__file__).parents[1] / "data" / "chaos_cases.yaml"
STEPS, SAVED_STEPS, RANKS, DRAWS = 16, 4, 4, 3
STEP_SECONDS = 3.0  # after which a step is a hang
MOMENTS = {0: "in the step to be saved", 1: "a save is being written"}  # steps since a save
LAYOUTS = {
    "tensor 2 x data 2": ("parallelism.tensor=2", "parallelism.data=2"),
    "pipeline 2 x data 2": ("parallelism.pipeline=2", "parallelism.data=2"),
}
# Ranks that read the same data differ in this bit of their number.
READERS = {"tensor 2 x data 2": 1, "pipeline 2 x data 2": 2}
LOCAL_COPIES = "checkpoint.local={folder: /dev/shm, every_steps: 1}"


class ChaosCase(BaseModel, extra="forbid", frozen=True):
    """Faults that are injected together before a step between ``first`` and ``last``.

    ``shows`` is the event that the log must contain: an unnoticed fault proves nothing. A fault
    ``is_in_data`` affects all ranks that read the same batch.
    """

    name: str
    first: int = 2  # a first step may take as long as a pause
    last: int = STEPS
    faults: tuple[dict[str, Any], ...]
    shows: str
    is_in_data: bool = False
    words: tuple[str, ...] = ()

    @property
    def steps(self) -> range:
        return range(self.first, self.last + 1)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The ``number``-th draw of a case in a layout: its step and rank."""

    layout: str
    case: ChaosCase
    number: int
    step: int
    rank: int

    @property
    def moment(self) -> str:
        """Describe the step's position between checkpoints, which later steps write."""
        if self.step < SAVED_STEPS:
            return "before the first save"
        since = self.step % SAVED_STEPS
        return MOMENTS.get(since, "between saves")

    @property
    def faults(self) -> list[dict[str, Any]]:
        ranks = {self.rank}
        if self.case.is_in_data:
            ranks.add(self.rank ^ READERS[self.layout])
        return [
            fault | {"rank": rank, "step": self.step}
            for fault in self.case.faults
            for rank in sorted(ranks)
        ]


CASES = tuple(
    ChaosCase(name=name, **case)
    for name, case in yaml.safe_load(FILE.read_text("utf-8")).items()
)


def draws(layout: str, case: ChaosCase) -> list[Draw]:
    """Draw different steps, and a rank for each."""
    chance = random.Random(f"{layout} {case.name}")
    steps = chance.sample(case.steps, DRAWS)
    return [
        Draw(layout=layout, case=case, number=number, step=step, rank=chance.randrange(RANKS))
        for number, step in enumerate(steps, start=1)
    ]


def check_complete() -> None:
    """Check that every fault that a recipe can inject has a case.

    Raises:
        RuntimeError: a fault has no case.
    """
    kinds = get_args(get_args(Injection)[0])
    known = {name for kind in kinds for name in get_args(kind.model_fields["fault"].annotation)}
    if missing := known - {fault["fault"] for case in CASES for fault in case.faults}:
        raise RuntimeError(f"no case has {', '.join(sorted(missing))}")

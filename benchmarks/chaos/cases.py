"""What `chaos` does to a run: the cases as data, and where each of them is drawn.

A case strikes before a step and on a rank that are drawn, by layout, case and number, so that
every draw can be made again. Steps where a case would mean nothing are not among those drawn.
"""

import random
from dataclasses import dataclass
from typing import Any, get_args

from components.config.schema.monitoring import Injection

STEPS, SAVED_STEPS, RANKS, DRAWS = 16, 4, 4, 3
STEP_SECONDS = 3.0  # the limit by which a hang is found
AWAY_SECONDS = 3.0  # more steps than there are between two saves
MOMENTS = {0: "in the step to be saved", 1: "a save is being written"}  # steps since a save
LAYOUTS = {
    "tensor 2 x data 2": ("parallelism.tensor=2", "parallelism.data=2"),
    "pipeline 2 x data 2": ("parallelism.pipeline=2", "parallelism.data=2"),
}
# Ranks that read the same data differ in this bit of their number.
READERS = {"tensor 2 x data 2": 1, "pipeline 2 x data 2": 2}
# Spikes go by the gradient's norm, over a window of steps. The first steps' norms are larger
# than a spike's later: while they are in the window, it is not found (docs/fault_tolerance.md).
SPIKE_STEPS, STEEP_STEPS = 8, 3
SPIKES = (
    "guard.gradient_norm_spike={action: skip, most: 9, within_tokens: 1_000_000, "
    f"window_steps: {SPIKE_STEPS}, deviations: 7.0}}"
)
BACK_STEPS = 2
ROLL_BACK = (
    "guard.non_finite={action: roll_back, most: 9, within_tokens: 1_000_000}",
    f"guard.roll_back.skip_steps={BACK_STEPS}",
)
LOCAL_COPIES = "checkpoint.local={folder: /dev/shm, every_steps: 1}"


@dataclass(frozen=True, kw_only=True)
class ChaosCase:
    """Faults that a run meets at once, before one of ``steps``.

    ``shows`` is what its journal has to tell: a fault that nobody noticed proves nothing. What
    ``is_in_data`` strikes all ranks that read it: of one batch each takes a part.
    """

    name: str
    steps: range
    faults: tuple[dict[str, Any], ...]
    shows: str
    is_in_data: bool = False
    words: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The ``number``-th time that a case strikes a layout: before which step, on which rank."""

    layout: str
    case: ChaosCase
    number: int
    step: int
    rank: int

    @property
    def moment(self) -> str:
        """Give where the step is between checkpoints, which are written beside later steps."""
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
            one | {"rank": rank, "step": self.step}
            for one in self.case.faults
            for rank in sorted(ranks)
        ]


# In its first step a process may take as long as in a pause: nothing strikes there.
ANY = range(2, STEPS + 1)
CASES = (
    ChaosCase(name="nan, skip", steps=ANY, faults=({"fault": "nan"},), shows="skip"),
    ChaosCase(
        name="nan, roll back",
        steps=range(SAVED_STEPS + BACK_STEPS, STEPS + 1),  # a checkpoint is before
        faults=({"fault": "nan"},),
        shows="roll_back",
        words=ROLL_BACK,
    ),
    ChaosCase(
        name="nan, relaunch",
        steps=ANY,
        faults=({"fault": "nan"},),
        shows="relaunch",
        words=("guard.non_finite.action=relaunch",),
    ),
    ChaosCase(
        name="spike, skip",
        steps=range(STEEP_STEPS + SPIKE_STEPS + 1, STEPS + 1),
        faults=({"fault": "spike"},),
        is_in_data=True,
        shows="skip",
        words=(SPIKES,),
    ),
    ChaosCase(
        name="bit_flip",
        steps=ANY,
        faults=({"fault": "bit_flip", "bit": 12},),
        shows="replicas",
    ),
    ChaosCase(name="kill", steps=ANY, faults=({"fault": "kill"},), shows="restart"),
    ChaosCase(
        name="kill, local copies",
        steps=range(3, STEPS + 1),  # copies of a step are whole when the next one has begun
        faults=({"fault": "kill"},),
        shows="restart",
        words=(LOCAL_COPIES,),
    ),
    ChaosCase(
        name="hang, sleeps",
        steps=ANY,
        faults=({"fault": "hang", "how": "sleeps"},),
        shows="hang",
    ),
    ChaosCase(
        name="hang, holds",
        steps=ANY,
        faults=({"fault": "hang", "how": "holds"},),
        shows="hang",
    ),
    ChaosCase(
        name="slow_rank",
        steps=range(3, STEPS - 3),  # it takes some steps to be seen
        faults=({"fault": "slow_rank", "seconds": 0.1, "steps": 4},),
        shows="slow_rank",
    ),
    ChaosCase(
        name="truncated_checkpoint, kill",
        steps=range(3 * SAVED_STEPS + 1, STEPS + 1),  # two checkpoints are whole by then
        faults=({"fault": "truncated_checkpoint"}, {"fault": "kill"}),
        shows="damaged",
    ),
    ChaosCase(
        name="files_gone",
        steps=ANY,
        faults=({"fault": "files_gone", "seconds": AWAY_SECONDS},),
        shows="waits",
    ),
    ChaosCase(
        name="full_disk",
        steps=ANY,
        faults=({"fault": "full_disk", "seconds": AWAY_SECONDS, "free_bytes": 40_000},),
        shows="waits",
    ),
)


def draws(layout: str, case: ChaosCase) -> list[Draw]:
    """Draw the steps, no two the same, and a rank for each."""
    chance = random.Random(f"{layout} {case.name}")
    steps = chance.sample(case.steps, DRAWS)
    return [
        Draw(layout=layout, case=case, number=number, step=step, rank=chance.randrange(RANKS))
        for number, step in enumerate(steps, start=1)
    ]


def check_complete() -> None:
    """Ask for a case of every fault that a recipe may inject.

    Raises:
        RuntimeError: a kind has none.
    """
    kinds = get_args(get_args(Injection)[0])
    known = {get_args(kind.model_fields["fault"].annotation)[0] for kind in kinds}
    if missing := known - {fault["fault"] for case in CASES for fault in case.faults}:
        raise RuntimeError(f"no case has {', '.join(sorted(missing))}")

"""Schema of ``guard``, ``watchdog``, ``profiler`` and ``tracking``, which monitor a run.

`components.fault_tolerance.faults` has a function for each fault, named like its ``fault``.
Ranks do not read ``tracking``; only ``action=report sync=true`` does, where there is a network.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from components.config.schema.types import (
    Count,
    Fraction,
    KeyGroup,
    OrNone,
    Seconds,
    Section,
    to_frozen,
)

Rank = Annotated[int, Field(ge=0)]
SpikeAction = Literal["skip", "roll_back", "lower_lr", "stop"]
GuardAction = SpikeAction | Literal["relaunch"]


class Rule(Section):
    """Guard rule: the action after a bad step. Its update never reaches the weights.

    More than ``most`` bad steps within ``within_tokens`` end the run. ``relaunch`` ignores
    these limits: it ends the run at once and saves nothing; a job starts it again without the
    nodes where the bad values began, within the limits of a chain of jobs.
    """

    action: GuardAction
    most: Count
    within_tokens: Count


class SpikeRule(Rule):
    """Guard rule for spikes: a value more than ``deviations`` above the median is bad.

    ``deviations`` counts robust standard deviations of the last ``window_steps`` steps. The
    rule applies after ``window_steps`` steps.
    """

    action: SpikeAction  # a spike is no fault of a node
    window_steps: Annotated[int, Field(ge=8)]
    deviations: Annotated[float, Field(gt=0)]


class RollBack(Section):
    """Roll back to a checkpoint before the last ``skip_steps`` steps and skip their data.

    The bad step is one of them. Chowdhery et al. 2022 (PaLM, arXiv 2204.02311, section 5.1)
    went back about 100 steps and skipped 200 to 500 batches.
    """

    skip_steps: Count


class LowerLr(Section):
    """Skip the step's data; multiply the learning rate by ``factor`` for ``over_tokens``."""

    factor: Fraction
    over_tokens: Count


class Fault(Section):
    """Fault injected once into ``rank`` before step ``step``, counted from 1."""

    fault: str
    rank: Rank
    step: Count


class PlainFault(Fault):
    """Fault without further settings.

    ``nan``: the first stage of the rank returns NaN in one microbatch. ``spike``: the rank's
    batch repeats one token. ``kill``: the rank is killed, as if its node were lost.
    ``truncated_checkpoint``: the last file of the newest checkpoint is cut in half.
    """

    fault: Literal["nan", "spike", "kill", "truncated_checkpoint"]


class BitFlip(Fault):
    """Flipped bit of a float32 weight; 30 is the highest exponent bit, 31 the sign.

    In a 16-bit weight, the bit at the same distance from the sign flips.
    """

    fault: Literal["bit_flip"]
    bit: Annotated[int, Field(ge=0, le=31)]


class HangFault(Fault):
    """Hang: the rank ``sleeps``, or also ``holds`` the interpreter's lock."""

    fault: Literal["hang"]
    how: Literal["sleeps", "holds"]


class SlowRank(Fault):
    """Slow rank: each microbatch takes ``seconds`` longer, for ``steps`` steps."""

    fault: Literal["slow_rank"]
    seconds: Seconds
    steps: Count


class FilesGone(Fault):
    """Missing checkpoint folder for ``seconds``, as if its file system were unavailable."""

    fault: Literal["files_gone"]
    seconds: Seconds


class FullDisk(Fault):
    """Full disk: for ``seconds``, files of the rank are limited to ``free_bytes``."""

    fault: Literal["full_disk"]
    seconds: Seconds
    free_bytes: Annotated[int, Field(ge=0)]


def _spell_nan(value: Any) -> Any:
    """Restore the word ``nan``, which the command line's grammar reads as a number."""
    if isinstance(value, Mapping) and value.get("fault") != value.get("fault"):
        return {**value, "fault": "nan"}
    return value


Injection = Annotated[
    PlainFault | BitFlip | HangFault | SlowRank | FilesGone | FullDisk,
    Field(discriminator="fault"),
    BeforeValidator(_spell_nan),
]


class GuardSection(Section):
    """Guard rules, in the order in which they are checked, and faults to inject."""

    non_finite: OrNone[Rule]
    loss_spike: OrNone[SpikeRule]
    gradient_norm_spike: OrNone[SpikeRule]
    roll_back: RollBack
    lower_lr: LowerLr
    inject: Annotated[tuple[Injection, ...], Field(strict=False)]


class Watchdog(Section):
    """Watchdog limits and the intervals at which ranks are compared.

    A rank hangs if a step takes longer than ``step_seconds``, or the first step or a pause
    between steps longer than ``pause_seconds``. The watchdog then writes the rank's stacks and
    last ``collectives`` and ends the rank. Every ``every_steps`` steps the ranks compare
    compute time and memory. A rank is slow if it needs ``slow_ratio`` times as long as
    comparable ranks; memory is reported if it grows by ``memory_growth_fraction``. Weights on
    several ranks are compared every ``replicas_every_steps`` steps and before each checkpoint.
    After a failure of its ranks a run restarts inside its job, at most ``restarts`` times;
    ``auto`` is once per spare node.
    """

    step_seconds: Seconds
    pause_seconds: Seconds
    collectives: Annotated[int, Field(ge=0)]
    every_steps: Count
    slow_ratio: Annotated[float, Field(gt=1)]
    memory_growth_fraction: Annotated[float, Field(gt=0)]
    replicas_every_steps: Count | Literal["never"]
    restarts: Annotated[int, Field(ge=0)]


class Profiler(Section):
    """Profiler of ``steps`` steps (0 is off) from ``first_step``, counted from 1.

    With ``stacks`` the trace contains the Python line of each call, which takes longer.
    """

    steps: Annotated[int, Field(ge=0)]
    first_step: Count
    ranks: Annotated[tuple[Rank, ...], Field(strict=False, min_length=1)]
    stacks: bool


class TrainerOptions(Section):
    """Options of Lightning's trainer that the training loop supports.

    ``fast_dev_run`` limits the run to that many steps and each validation to that many batches;
    nothing is saved. ``limit_val_batches`` applies to each source.
    """

    keys_group = KeyGroup.RECORD

    fast_dev_run: bool | Annotated[int, Field(ge=0)] = False
    limit_val_batches: Count | None = None
    detect_anomaly: bool = False


# The default logger of a run, equal to `conf/logger/tensorboard.yaml`.
CURVES = to_frozen({
    "tensorboard": {"_target_": "components.train.loggers.TensorBoardCurves", "_partial_": True}
})

# What W&B accepts (wandb.Settings, fields `project` and `run_tags`).
Project = Annotated[str, Field(pattern=r"^[^/\\#?%:\x00-\x1f]{1,128}$")]
Tag = Annotated[str, Field(min_length=1, max_length=64)]
Name = Annotated[str, Field(min_length=1)]


class Wandb(Section):
    """Project of Weights & Biases, owned by ``entity`` or the user, and additional ``tags``."""

    project: Project
    entity: Name | None
    tags: Annotated[tuple[Tag, ...], Field(strict=False)]


class Mlflow(Section):
    """MLflow experiment, created on the server if it does not exist."""

    experiment: Name


class Tracking(Section):
    """Trackers that receive a run; files of the run folder are always written."""

    wandb: OrNone[Wandb]
    mlflow: OrNone[Mlflow]

    @property
    def is_empty(self) -> bool:
        return self.wandb == self.mlflow == "none"

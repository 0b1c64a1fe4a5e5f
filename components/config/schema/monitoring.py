"""Schema of ``guard``, ``watchdog``, ``profiler`` and ``tracking``: a run that is watched.

Each fault has a class here, and in `components.fault_tolerance.faults` a function named like
its ``fault``. No rank reads ``tracking``: ``action=report sync=true`` does, on a machine with
a network.
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
    freeze,
)

Rank = Annotated[int, Field(ge=0)]
SpikeAction = Literal["skip", "roll_back", "lower_lr", "stop"]
Action = SpikeAction | Literal["relaunch"]


class Rule(Section):
    """What a bad step leads to, never to the weights; the ``most``-th more ends the run.

    ``relaunch`` ends the run at once and saves nothing: a job starts it again, without the
    nodes where it began. For it ``most`` and ``within_tokens`` do not hold, but the limits of a
    chain of jobs.
    """

    action: Action
    most: Count
    within_tokens: Count


class SpikeRule(Rule):
    """A step is bad whose figure is so many robust ``deviations`` above the last steps' median.

    Judged against ``window_steps`` steps, from the moment when so many were taken.
    """

    action: SpikeAction  # a spike is no fault of a node
    window_steps: Annotated[int, Field(ge=8)]
    deviations: Annotated[float, Field(gt=0)]


class RollBack(Section):
    """Go back to a checkpoint before the last ``skip_steps`` steps, whose data is left out.

    The bad step is one of them. Chowdhery et al. 2022 (PaLM, arXiv 2204.02311, section 5.1)
    went back about 100 steps and left out 200 to 500 batches.
    """

    skip_steps: Count


class LowerLr(Section):
    """Leave out the step's data and multiply the rate by ``factor`` for ``over_tokens``."""

    factor: Fraction
    over_tokens: Count


class Fault(Section):
    """What strikes ``rank`` once, before it takes ``step``, counted from 1."""

    fault: str
    rank: Rank
    step: Count


class Nan(Fault):
    """The rank's first stage gives NaN in one microbatch."""

    fault: Literal["nan"]


class Spike(Fault):
    """The rank's batch of the step is one token again and again."""

    fault: Literal["spike"]


class BitFlip(Fault):
    """A bit of a float32 weight changes; 30 is the highest of the exponent, 31 the sign.

    Of a weight in 16 bits it is the one as far from the sign.
    """

    fault: Literal["bit_flip"]
    bit: Annotated[int, Field(ge=0, le=31)]


class Kill(Fault):
    """The rank is killed, as a node that is lost kills it."""

    fault: Literal["kill"]


class HangFault(Fault):
    """The rank makes no progress: it ``sleeps``, or ``holds`` the interpreter's lock too."""

    fault: Literal["hang"]
    how: Literal["sleeps", "holds"]


class SlowRank(Fault):
    """The rank computes ``seconds`` longer in each microbatch, over ``steps`` steps."""

    fault: Literal["slow_rank"]
    seconds: Seconds
    steps: Count


class TruncatedCheckpoint(Fault):
    """The newest checkpoint's last file is cut in half; who goes on from it finds out."""

    fault: Literal["truncated_checkpoint"]


class FilesGone(Fault):
    """The folder of checkpoints is away for ``seconds``, as when its file system is."""

    fault: Literal["files_gone"]
    seconds: Seconds


class FullDisk(Fault):
    """For ``seconds`` no file of the rank may grow beyond ``free_bytes``, as with a quota."""

    fault: Literal["full_disk"]
    seconds: Seconds
    free_bytes: Annotated[int, Field(ge=0)]


def _spell_nan(value: Any) -> Any:
    """Take the word back that the command line's grammar reads as a number."""
    if isinstance(value, Mapping) and value.get("fault") != value.get("fault"):
        return {**value, "fault": "nan"}
    return value


_OnFiles = TruncatedCheckpoint | FilesGone | FullDisk
Injection = Annotated[
    Nan | Spike | BitFlip | Kill | HangFault | SlowRank | _OnFiles,
    Field(discriminator="fault"),
    BeforeValidator(_spell_nan),
]


class GuardSection(Section):
    """The rules, in the order in which a step is judged, and the faults to rehearse."""

    non_finite: OrNone[Rule]
    loss_spike: OrNone[SpikeRule]
    gradient_norm_spike: OrNone[SpikeRule]
    roll_back: RollBack
    lower_lr: LowerLr
    inject: Annotated[tuple[Injection, ...], Field(strict=False)]


class Watchdog(Section):
    """Limits of a run that is watched, and how often its ranks are compared.

    A rank that takes longer than ``step_seconds`` in a step, or ``pause_seconds`` between two
    steps and in the first, hangs: its stacks and last ``collectives`` are written down and it
    is ended. Every ``every_steps`` steps the ranks compare how long they computed, and their
    memory: a rank is slow that needs ``slow_ratio`` times what its like need, and memory grows
    by ``memory_growth_fraction``. Weights that several ranks hold are compared every
    ``replicas_every_steps`` steps, and before each checkpoint. A run whose ranks fail starts
    again by itself ``restarts`` times, inside its job; ``auto``: once for each spare node.
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
    """Profile ``steps`` steps (or none) from ``first_step`` on, counted from 1.

    With ``stacks`` the trace says which line of Python asked for what, which takes longer.
    """

    steps: Annotated[int, Field(ge=0)]
    first_step: Count
    ranks: Annotated[tuple[Rank, ...], Field(strict=False, min_length=1)]
    stacks: bool


class TrainerOptions(Section):
    """Options of Lightning's trainer that this module's loop honors.

    With ``fast_dev_run`` a run takes so many steps, and so many batches of each validation; it
    saves no checkpoint and no curves. ``limit_val_batches`` are batches of each source.
    """

    keys_group = KeyGroup.RECORD

    fast_dev_run: bool | Annotated[int, Field(ge=0)] = False
    limit_val_batches: Count | None = None
    detect_anomaly: bool = False


# The curves of a run that says nothing of loggers, as `conf/logger/tensorboard.yaml` has them.
CURVES = freeze({
    "tensorboard": {
        "_target_": "components.train.loggers.TensorBoardCurves",
        "_partial_": True,
    }
})

# What W&B accepts (wandb.Settings, fields `project` and `run_tags`).
Project = Annotated[str, Field(pattern=r"^[^/\\#?%:\x00-\x1f]{1,128}$")]
Tag = Annotated[str, Field(min_length=1, max_length=64)]
Name = Annotated[str, Field(min_length=1)]


class Wandb(Section):
    """A project of Weights & Biases, of ``entity`` or the user; ``tags`` come beside ours."""

    project: Project
    entity: Name | None
    tags: Annotated[tuple[Tag, ...], Field(strict=False)]


class Mlflow(Section):
    """An experiment of MLflow, made on the server if it is not there."""

    experiment: Name


class Tracking(Section):
    """The trackers that a run is sent to; files of the run folder are written in any case."""

    wandb: OrNone[Wandb]
    mlflow: OrNone[Mlflow]

    @property
    def is_empty(self) -> bool:
        return self.wandb == self.mlflow == "none"

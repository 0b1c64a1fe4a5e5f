"""Schema of ``guard`` and ``watchdog``: bad steps, faults on request, hangs, restarts.

Each fault has a class here, and in `components.fault_tolerance.faults` a function named like
its ``fault``.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from components.config.schema.types import Count, Fraction, Section

Action = Literal["skip", "roll_back", "lower_lr", "stop"]


class Rule(Section):
    """What a bad step leads to; the run stops at the ``most``-th more ``within_tokens``.

    A bad step never reaches the weights, whatever the action.
    """

    action: Action
    most: Count
    within_tokens: Count


class SpikeRule(Rule):
    """A step is bad whose figure is so many robust ``deviations`` above the last steps' median.

    Judged against ``window_steps`` steps, from the moment when so many were taken.
    """

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
    rank: Annotated[int, Field(ge=0)]
    step: Count


class Nan(Fault):
    """The rank's first stage gives NaN in one microbatch."""

    fault: Literal["nan"]


class Spike(Fault):
    """The rank's batch of the step is one token again and again."""

    fault: Literal["spike"]


class BitFlip(Fault):
    """A bit of a float32 weight changes; 30 is the highest of the exponent, 31 the sign."""

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
    seconds: Annotated[float, Field(gt=0)]
    steps: Count


class TruncatedCheckpoint(Fault):
    """The newest checkpoint's last file is cut in half; who goes on from it finds out."""

    fault: Literal["truncated_checkpoint"]


class FilesGone(Fault):
    """The folder of checkpoints is away for ``seconds``, as when its file system is."""

    fault: Literal["files_gone"]
    seconds: Annotated[float, Field(gt=0)]


class FullDisk(Fault):
    """For ``seconds`` no file of the rank may grow beyond ``free_bytes``, as with a quota."""

    fault: Literal["full_disk"]
    seconds: Annotated[float, Field(gt=0)]
    free_bytes: Annotated[int, Field(ge=0)]


def _spell_nan(value: Any) -> Any:
    """Take the word back that the command line's grammar reads as a number."""
    if isinstance(value, Mapping) and value.get("fault") != value.get("fault"):
        return {**value, "fault": "nan"}
    return value


Injection = Annotated[
    Annotated[
        Nan
        | Spike
        | BitFlip
        | Kill
        | HangFault
        | SlowRank
        | TruncatedCheckpoint
        | FilesGone
        | FullDisk,
        Field(discriminator="fault"),
    ],
    BeforeValidator(_spell_nan),
]


class GuardSection(Section):
    """The rules, in the order in which a step is judged, and the faults to rehearse."""

    non_finite: Rule | Literal["none"]
    loss_spike: SpikeRule | Literal["none"]
    gradient_norm_spike: SpikeRule | Literal["none"]
    roll_back: RollBack
    lower_lr: LowerLr
    inject: Annotated[tuple[Injection, ...], Field(strict=False)]


Seconds = Annotated[float, Field(gt=0)]


class Watchdog(Section):
    """Limits of a run that is watched, and how often its ranks are compared.

    A rank that takes longer than ``step_seconds`` in a step, or ``pause_seconds`` between two
    steps and in the first, hangs: its stacks and last ``collectives`` are written down and it
    is ended. Every ``every_steps`` steps the ranks compare how long they computed, and their
    memory: a rank is slow that needs ``slow_ratio`` times what its like need, and memory grows
    by ``memory_growth_fraction``. Weights that several ranks hold are compared every
    ``replicas_every_steps`` steps, and before each checkpoint. A run whose ranks fail starts
    again by itself ``restarts`` times, inside its job.
    """

    step_seconds: Seconds
    pause_seconds: Seconds
    collectives: Annotated[int, Field(ge=0)]
    every_steps: Count
    slow_ratio: Annotated[float, Field(gt=1)]
    memory_growth_fraction: Annotated[float, Field(gt=0)]
    replicas_every_steps: Count | Literal["never"]
    restarts: Annotated[int, Field(ge=0)]

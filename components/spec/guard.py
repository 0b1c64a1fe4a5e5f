"""The section ``guard``: which steps are not taken, what is done instead, and how often.

And the faults that a rehearsal fires. Each has its own class here and its own file in
``components/life/faults``, named like its ``fault``.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from components.spec.section import Count, Fraction, Section

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


class Hang(Fault):
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
        | Hang
        | SlowRank
        | TruncatedCheckpoint
        | FilesGone
        | FullDisk,
        Field(discriminator="fault"),
    ],
    BeforeValidator(_spell_nan),
]


class Guard(Section):
    """The rules, in the order in which a step is judged, and the faults to rehearse."""

    non_finite: Rule | Literal["none"]
    loss_spike: SpikeRule | Literal["none"]
    gradient_norm_spike: SpikeRule | Literal["none"]
    roll_back: RollBack
    lower_lr: LowerLr
    inject: Annotated[tuple[Injection, ...], Field(strict=False)]

"""Step metrics: summed over all ranks in one collective, and reported to whoever listens."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from components.data.samples import DIGEST_MODULUS
from components.distributed.mesh import sum_over_ranks


@dataclass(frozen=True)
class StepRecord:
    """What one step reports, as means over all microbatches and ranks."""

    step: int
    tokens: int
    loss: float  # the cross-entropy alone
    auxiliary_loss: float  # what is differentiated beside: z-loss, and those of routers
    expert_load: float  # the busiest expert's tokens over the mean, 1 for a dense model
    lr: float
    gradient_norm: float
    seconds: float
    tokens_per_second: float
    samples_digest: int
    loss_scale: float
    mtp_loss: float | None = None  # the mean over depths; None where there are none


_AGREED = 9  # numbers that travel in every step; those of a rank may follow
_HALF_BITS = 32


@dataclass(frozen=True, kw_only=True)
class ReducedMetrics:
    """A step's figures as every rank has them: means over all microbatches."""

    loss: float
    auxiliary_loss: float
    expert_load: float
    pairs_beyond: float  # of token and expert, of which a bounded exchange had no room
    mtp_loss: float
    stop: bool
    gradient_norm: float | None  # None where only the engine knows it
    samples_digest: int
    norm: Tensor  # the same on the device, a float64 scalar, or 0
    told: Tensor  # the sums of what each rank tells of itself


def reduce_step_metrics(
    means: Tensor, *, squares: Tensor | None, stop: bool, samples_digest: int, own: Tensor
) -> ReducedMetrics:
    """Add up over all ranks, and read the sums on the host: the one wait of a step.

    ``means`` are this rank's shares of loss, auxiliary loss, expert load, pairs beyond a bound
    and the loss of further tokens, ``squares`` is that of the squared norm if the engine has
    it, ``samples_digest`` that of the samples which this rank counts. One rank that asks to
    ``stop`` is enough. ``means`` and ``own`` (a vector of any length, as long on every rank)
    are float64.
    """
    # A float64 holds the sum of halves exactly, for up to two million ranks.
    rest = means.new_tensor([stop, 0.0, *divmod(samples_digest, 1 << _HALF_BITS)])
    if squares is not None:
        rest[1] = squares
    sums = sum_over_ranks(torch.cat([means, rest, own]))
    loss, auxiliary_loss, expert_load, beyond, mtp_loss, *others = sums[:_AGREED].tolist()
    stops, squared, high, low = others
    return ReducedMetrics(
        loss=loss,
        auxiliary_loss=auxiliary_loss,
        expert_load=expert_load,
        pairs_beyond=beyond,
        mtp_loss=mtp_loss,
        stop=stops > 0,
        gradient_norm=None if squares is None else math.sqrt(squared),
        samples_digest=((int(high) << _HALF_BITS) + int(low)) % DIGEST_MODULUS,
        norm=sums[6].sqrt(),
        told=sums[_AGREED:],
    )

"""Step metrics, summed over all ranks in one collective."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from components.data.samples import DIGEST_MODULUS
from components.distributed.mesh import sum_over_ranks


@dataclass(frozen=True)
class StepRecord:
    """Metrics of one step: means over all microbatches and ranks."""

    step: int
    tokens: int
    loss: float  # cross-entropy only
    auxiliary_loss: float  # the other terms of the objective: z-loss and router losses
    expert_load: float  # tokens of the busiest expert over the mean, 1 for a dense model
    lr: float
    gradient_norm: float
    seconds: float
    tokens_per_second: float
    samples_digest: int
    loss_scale: float
    mtp_loss: float | None = None  # mean over prediction depths; None without multi-token heads


_AGREED = 9  # numbers summed in every step; the vector ``own`` follows
_HALF_BITS = 32


@dataclass(frozen=True, kw_only=True)
class ReducedMetrics:
    """Reduced figures of a step, equal on every rank: means over all microbatches."""

    loss: float
    auxiliary_loss: float
    expert_load: float
    overflow_pairs: float  # token-expert pairs beyond the bound of the exchange
    mtp_loss: float
    stop: bool
    gradient_norm: float | None  # None if only the engine knows it
    samples_digest: int
    norm: Tensor  # gradient norm on the device, a float64 scalar; 0 if unknown
    own_sums: Tensor  # sum over ranks of the vector ``own``


def reduce_step_metrics(
    means: Tensor, *, squares: Tensor | None, stop: bool, samples_digest: int, own: Tensor
) -> ReducedMetrics:
    """Sum the metrics over all ranks and read the sums on the host: a step's only device wait.

    ``means`` (float64) are this rank's shares of loss, auxiliary loss, expert load, overflow
    pairs, and multi-token prediction loss. ``squares`` is its share of the squared norm, if the
    engine has it. ``samples_digest`` covers the samples that this rank counts. All ranks stop
    if one rank sets ``stop``. ``own`` (float64) has the same length on all ranks.
    """
    # A float64 represents the sum of 32-bit halves exactly, for up to two million ranks.
    rest = means.new_tensor([stop, 0.0, *divmod(samples_digest, 1 << _HALF_BITS)])
    if squares is not None:
        rest[1] = squares
    sums = sum_over_ranks(torch.cat([means, rest, own]))
    loss, auxiliary_loss, expert_load, overflow, mtp_loss, *others = sums[:_AGREED].tolist()
    stops, squared, high, low = others
    return ReducedMetrics(
        loss=loss,
        auxiliary_loss=auxiliary_loss,
        expert_load=expert_load,
        overflow_pairs=overflow,
        mtp_loss=mtp_loss,
        stop=stops > 0,
        gradient_norm=None if squares is None else math.sqrt(squared),
        samples_digest=((int(high) << _HALF_BITS) + int(low)) % DIGEST_MODULUS,
        norm=sums[6].sqrt(),
        own_sums=sums[_AGREED:],
    )

"""Softmax of a block of logits, in chunks that fit a cache; the loss's gradient overwrites it.

If the vocabulary rows are split over ranks, another class replaces `Softmax`.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Blocks(NamedTuple):
    """Minimum tokens of a block's matrix product, and logits per chunk of the softmax."""

    least_tokens: int
    chunk_elements: int


# Each block adds to a float32 sum of all rows. With 1,024 tokens per block, that addition took
# a fifth of the time on an H100.
ON_DEVICE = Blocks(least_tokens=2_048, chunk_elements=2**26)
WIDE_ELEMENTS = 2**24  # logits per float32 copy (64 MiB), for the z-loss
SAMPLED_COLUMNS = 64  # number of 16-bit probabilities from which `log_sums` estimates the sum
BLOCKS = {"cpu": Blocks(least_tokens=256, chunk_elements=2**20)}  # all other devices: ON_DEVICE


class Softmax:
    """Softmax loss that overwrites the logits with its gradient and returns its sum.

    Targets that are not ``counted`` are excluded from the sums, but not from the gradient.
    """

    def to_gradient(
        self,
        logits: Float[Tensor, "tokens rows"],
        targets: Int[Tensor, " tokens"],
        counted: Bool[Tensor, " tokens"] | None = None,
    ) -> Float[Tensor, ""]:
        """Sum the cross-entropy; write its gradient, ``softmax - one_hot``, to the logits."""
        total = logits.new_zeros((), dtype=sum_dtype(logits.dtype))
        for tokens in split_chunks(logits):
            chunk, target = logits[tokens], targets[tokens, None]
            log_prob = chunk.gather(1, target)
            largest, log_sum = log_sums(chunk)  # overwrites the chunk
            log_prob = log_prob - largest - log_sum
            chunk.scatter_(1, target, log_prob.expm1().to(chunk.dtype))
            if counted is not None:
                log_prob = log_prob * counted[tokens, None]
            total -= log_prob.sum()
        return total

    def to_penalized_gradient(
        self,
        logits: Float[Tensor, "tokens rows"],
        targets: Int[Tensor, " tokens"],
        z_loss: float,
        counted: Bool[Tensor, " tokens"] | None = None,
    ) -> Float[Tensor, "2"]:
        """Sum the cross-entropy and ``z_loss * logsumexp ** 2``.

        Their gradient is ``softmax * (1 + 2 z_loss logsumexp) - one_hot``. The factor is too
        close to 1 for 16 bits, so probabilities are rounded after the multiplication.
        """
        row, elsewhere = self.rows_here(targets[:, None], logits)
        target_logit = (
            logits.gather(1, row).to(sum_dtype(logits.dtype)).masked_fill(elsewhere, 0.0)
        )
        own_log_sum = exact_log_sums(logits)
        log_sum, log_prob = self.of_all_rows(own_log_sum, target_logit)
        log_prob = log_prob - log_sum
        factor = 1.0 + 2.0 * z_loss * log_sum
        scale = (own_log_sum - log_sum).exp() * factor
        for tokens in split_chunks(logits, most=WIDE_ELEMENTS):
            shares = wide_softmax(logits[tokens], scale.dtype)
            torch.mul(shares, scale[tokens], out=logits[tokens])
        # This form is accurate when the probability is nearly 1.
        target_gradient = log_prob.expm1() + (factor - 1.0) * log_prob.exp()
        logits.scatter_(
            1, row, logits.gather(1, row).where(elsewhere, target_gradient.to(logits.dtype))
        )
        costs = torch.cat([-log_prob, z_loss * log_sum.square()], 1)
        return (costs if counted is None else costs * counted[:, None]).sum(0)

    def rows_here(self, targets: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the targets' row indices on this rank, and a mask of those on other ranks."""
        return targets, torch.zeros_like(targets, dtype=torch.bool)

    def of_all_rows(self, log_sum: Tensor, of_target: Tensor) -> tuple[Tensor, Tensor]:
        """Combine logsumexp and the target's logit of this rank's rows over all rows."""
        return log_sum, of_target


def exact_log_sums(logits: Float[Tensor, "tokens rows"]) -> Float[Tensor, "tokens 1"]:
    """Return logsumexp in float32 or wider; do not change the logits."""
    wide, sums = sum_dtype(logits.dtype), []
    for tokens in split_chunks(logits, most=WIDE_ELEMENTS):
        shares = wide_softmax(logits[tokens], wide)  # the largest share is 1 / sum
        largest = logits[tokens].amax(1, keepdim=True).to(wide)
        sums.append(largest - shares.amax(1, keepdim=True).log())
    return torch.cat(sums)


def wide_softmax(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the softmax in a wider dtype, with a single copy."""
    wide = logits.to(dtype, copy=True)
    return torch.softmax(wide, 1, out=wide)


def log_sums(
    logits: Float[Tensor, "tokens rows"],
) -> tuple[Float[Tensor, "tokens 1"], Float[Tensor, "tokens 1"]]:
    """Overwrite logits by their softmax; return the largest and ``logsumexp - largest``.

    Torch's kernel returns ``p = exp(logit - largest) / sum``, but no sum. The largest p is 1 /
    sum, rounded to 16 bits. The others have independent rounding errors: the mean over
    `SAMPLED_COLUMNS` of them gives the logarithm eight times as accurately.
    """
    dtype, wide = logits.dtype, sum_dtype(logits.dtype)
    some_logits = logits[:, :SAMPLED_COLUMNS].to(wide) if dtype != wide else None
    largest = logits.amax(1, keepdim=True).to(wide)
    torch.softmax(logits, 1, out=logits)  # each thread reads an element before writing it
    log_sum = -logits.amax(1, keepdim=True).to(wide).log()
    if some_logits is not None:
        shares = logits[:, :SAMPLED_COLUMNS].to(wide)
        usable = shares >= torch.finfo(dtype).smallest_normal
        estimates = (some_logits - largest - shares.log()).where(usable, 0.0)
        log_sum = (log_sum + estimates.sum(1, keepdim=True)) / (1 + usable.sum(1, keepdim=True))
    return largest, log_sum.clamp_min(0.0)  # the sum contains the largest, so it is at least 1


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which numbers of ``dtype`` are summed: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def split_blocks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Split the tokens into blocks that are large enough for an efficient matrix product."""
    least, elements = BLOCKS.get(hidden.device.type, ON_DEVICE)
    return _slices(len(hidden), max(least, elements // len(weight)))


def split_chunks(
    logits: Float[Tensor, "tokens rows"], *, most: int = ON_DEVICE.chunk_elements
) -> Iterator[slice]:
    """Split the tokens into chunks of at most ``most`` logits that fit a cache."""
    elements = min(most, BLOCKS.get(logits.device.type, ON_DEVICE).chunk_elements)
    return _slices(len(logits), max(1, elements // logits.shape[1]))


def _slices(length: int, size: int) -> Iterator[slice]:
    return (slice(first, first + size) for first in range(0, length, size))

"""Softmax of a block of logits, overwritten by the gradient of what it costs.

A block's softmax goes by rows that fit a cache. Where ranks have parts of the rows, another
class takes the place of `Softmax`: they ask one another for a few numbers a token.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Blocks(NamedTuple):
    """Least tokens of a block's product, and the logits that the softmax touches at a time."""

    least_tokens: int
    chunk_elements: int


# A block adds to a float32 sum of all rows: in 1,024 tokens that was a fifth of an H100's time.
ON_DEVICE = Blocks(least_tokens=2_048, chunk_elements=2**26)
WIDE_ELEMENTS = 2**24  # copied in float32 at a time, where a z-loss asks for it: 64 MiB
TOLD_BY = 64  # probabilities of 16 bits that tell a sum
BLOCKS = {"cpu": Blocks(least_tokens=256, chunk_elements=2**20)}  # elsewhere ON_DEVICE


class Softmax:
    """Overwrite logits by the gradient of what they cost, and return the sum of that.

    Targets that are not ``counted`` are left out of the sums alone.
    """

    def to_gradient(
        self,
        logits: Float[Tensor, "tokens rows"],
        targets: Int[Tensor, " tokens"],
        counted: Bool[Tensor, " tokens"] | None = None,
    ) -> Float[Tensor, ""]:
        """Sum the cross-entropy, of which ``softmax - one_hot`` is the gradient."""
        total = logits.new_zeros((), dtype=sum_dtype(logits.dtype))
        for tokens in chunks(logits):
            chunk, target = logits[tokens], targets[tokens, None]
            of_target = chunk.gather(1, target)
            largest, log_sum = log_sums(chunk)  # which overwrites the chunk
            of_target = of_target - largest - log_sum
            chunk.scatter_(1, target, of_target.expm1().to(chunk.dtype))
            if counted is not None:
                of_target = of_target * counted[tokens, None]
            total -= of_target.sum()
        return total

    def to_penalized_gradient(
        self,
        logits: Float[Tensor, "tokens rows"],
        targets: Int[Tensor, " tokens"],
        z_loss: float,
        counted: Bool[Tensor, " tokens"] | None = None,
    ) -> Float[Tensor, "2"]:
        """Sum the cross-entropy and ``z_loss * logsumexp ** 2``.

        The gradient of both is ``softmax * (1 + 2 z_loss logsumexp) - one_hot``. That factor is
        nearer to 1 than 16 bits tell, so a probability is rounded after it, not before.
        """
        row, elsewhere = self.rows_here(targets[:, None], logits)
        here = logits.gather(1, row).to(sum_dtype(logits.dtype)).masked_fill(elsewhere, 0.0)
        own = exact_log_sums(logits)
        log_sum, of_target = self.of_all_rows(own, here)
        of_target = of_target - log_sum
        factor = 1.0 + 2.0 * z_loss * log_sum
        scale = (own - log_sum).exp() * factor
        for tokens in chunks(logits, most=WIDE_ELEMENTS):
            shares = wide_softmax(logits[tokens], scale.dtype)
            torch.mul(shares, scale[tokens], out=logits[tokens])
        # As exact as can be where the probability is nearly 1.
        one = of_target.expm1() + (factor - 1.0) * of_target.exp()
        logits.scatter_(1, row, logits.gather(1, row).where(elsewhere, one.to(logits.dtype)))
        costs = torch.cat([-of_target, z_loss * log_sum.square()], 1)
        return (costs if counted is None else costs * counted[:, None]).sum(0)

    def rows_here(self, targets: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Number the targets' rows among those at hand; say which are not."""
        return targets, torch.zeros_like(targets, dtype=torch.bool)

    def of_all_rows(self, log_sum: Tensor, of_target: Tensor) -> tuple[Tensor, Tensor]:
        """Take logsumexp and the target's logit of the rows at hand to those of all."""
        return log_sum, of_target


def exact_log_sums(logits: Float[Tensor, "tokens rows"]) -> Float[Tensor, "tokens 1"]:
    """Return logsumexp in float32 or finer, and leave the logits as they are."""
    wide, found = sum_dtype(logits.dtype), []
    for tokens in chunks(logits, most=WIDE_ELEMENTS):
        shares = wide_softmax(logits[tokens], wide)  # the largest is 1 / sum
        largest = logits[tokens].amax(1, keepdim=True).to(wide)
        found.append(largest - shares.amax(1, keepdim=True).log())
    return torch.cat(found)


def wide_softmax(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the softmax in a finer type, in one copy."""
    wide = logits.to(dtype, copy=True)
    return torch.softmax(wide, 1, out=wide)


def log_sums(
    logits: Float[Tensor, "tokens rows"],
) -> tuple[Float[Tensor, "tokens 1"], Float[Tensor, "tokens 1"]]:
    """Overwrite logits by their softmax; return the largest and ``logsumexp - largest``.

    Torch's softmax is one kernel, which keeps float32 to itself: of its sums only the
    probabilities are seen, ``p = exp(logit - largest) / sum``, and the largest is 1 / sum. In
    16 bits that one is rounded. So is each other, by a remainder of its own: the mean over
    some of them tells the logarithm of the sum eight times as exactly.
    """
    dtype, wide = logits.dtype, sum_dtype(logits.dtype)
    some = logits[:, :TOLD_BY].to(wide) if dtype != wide else None
    largest = logits.amax(1, keepdim=True).to(wide)
    torch.softmax(logits, 1, out=logits)  # each thread reads a number before it writes it
    log_sum = -logits.amax(1, keepdim=True).to(wide).log()
    if some is not None:
        shares = logits[:, :TOLD_BY].to(wide)
        usable = shares >= torch.finfo(dtype).smallest_normal
        told = (some - largest - shares.log()).where(usable, 0.0)
        log_sum = (log_sum + told.sum(1, keepdim=True)) / (1 + usable.sum(1, keepdim=True))
    return largest, log_sum.clamp_min(0.0)  # the largest is a part of the sum


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Choose what numbers of a dtype are added up in."""
    return torch.promote_types(dtype, torch.float32)


def blocks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Part the tokens so that the logits of a block are worth a product."""
    least, elements = BLOCKS.get(hidden.device.type, ON_DEVICE)
    return _slices(len(hidden), max(least, elements // len(weight)))


def chunks(
    logits: Float[Tensor, "tokens rows"], *, most: int = ON_DEVICE.chunk_elements
) -> Iterator[slice]:
    """Part the tokens so that a chunk of their logits, ``most`` at a time, fits a cache."""
    elements = min(most, BLOCKS.get(logits.device.type, ON_DEVICE).chunk_elements)
    return _slices(len(logits), max(1, elements // logits.shape[1]))


def _slices(length: int, size: int) -> Iterator[slice]:
    return (slice(first, first + size) for first in range(0, length, size))

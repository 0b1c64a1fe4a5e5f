"""Which experts a token goes to, and the terms that keep the experts evenly loaded.

No token is dropped and no expert has a capacity. Tokens are counted over the microbatch at
hand: nothing here crosses ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Choice(NamedTuple):
    """The experts of each token and what each contributes."""

    probabilities: Float[Tensor, "tokens experts"]
    weights: Float[Tensor, "tokens top_k"]
    experts: Int[Tensor, "tokens top_k"]


@dataclass(frozen=True)
class Routing:
    """What one layer's router did with one microbatch; gradients flow through the sums.

    Two layers' records are pooled by adding them, field by field.
    """

    tokens: int
    counts: Float[Tensor, "experts"]  # tokens that reach each expert
    probabilities: Float[Tensor, "experts"]  # summed over the tokens
    squared_log_sums: Float[Tensor, ""]  # logsumexp(logits)**2, summed over the tokens

    def balance_loss(self) -> Float[Tensor, ""]:
        """Penalize an uneven load: ``experts * sum(fraction * mean probability)``.

        https://arxiv.org/abs/2101.03961, equations 4 to 6, with every one of a token's experts
        counted, as transformers' ``load_balancing_loss_func`` does: perfect balance costs
        ``top_k``.
        """
        share = self.counts / self.tokens
        return len(share) * (share * self.probabilities / self.tokens).sum()

    def z_loss(self) -> Float[Tensor, ""]:
        """Penalize large logits, https://arxiv.org/abs/2202.08906, equation 5."""
        return self.squared_log_sums / self.tokens

    def largest_over_mean(self) -> Float[Tensor, ""]:
        """Compare the fullest expert with the average one; 1 is perfect balance."""
        return self.counts.max() / self.counts.mean()


def choose(logits: Float[Tensor, "tokens experts"], *, top_k: int, renormalize: bool) -> Choice:
    """Pick each token's most probable experts; the softmax is over all experts, in float32."""
    probabilities = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    weights, experts = probabilities.topk(top_k, dim=-1)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return Choice(probabilities, weights, experts)


def force_uniform(
    logits: Float[Tensor, "tokens experts"], *, top_k: int
) -> Float[Tensor, "tokens experts"]:
    """Mask the logits so that token ``s`` uses experts ``s`` to ``s + top_k - 1``, cyclically.

    For measuring speed without the luck of the routing, as Optimus's ``FORCE_UNIFORM_ROUTING``.
    """
    tokens, num_experts = logits.shape
    token = torch.arange(tokens, device=logits.device)[:, None]
    experts = (token + torch.arange(top_k, device=logits.device)) % num_experts
    masked = torch.full_like(logits, -torch.inf)
    return masked.scatter(1, experts, logits.gather(1, experts))


def record(logits: Float[Tensor, "tokens experts"], choice: Choice, *, z_loss: bool) -> Routing:
    """Keep what the auxiliary losses and the report need, a few numbers an expert."""
    chosen = choice.experts.flatten()
    counts = choice.probabilities.new_zeros(logits.shape[1])
    zero = choice.probabilities.new_zeros(())
    return Routing(
        tokens=len(logits),
        counts=counts.scatter_add(0, chosen, counts.new_ones(()).expand(len(chosen))),
        probabilities=choice.probabilities.sum(0),
        squared_log_sums=logits.to(counts.dtype).logsumexp(-1).square().sum()
        if z_loss
        else zero,
    )


def pool(records: Sequence[Routing]) -> Routing:
    """Count several layers as one."""
    return Routing(
        tokens=sum(record.tokens for record in records),
        counts=torch.stack([record.counts for record in records]).sum(0),
        probabilities=torch.stack([record.probabilities for record in records]).sum(0),
        squared_log_sums=torch.stack([record.squared_log_sums for record in records]).sum(),
    )

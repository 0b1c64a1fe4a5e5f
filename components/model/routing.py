"""Routing: the choice of each token's experts, and the losses that balance their load.

No token is dropped and no expert has a capacity. A router's record has a few numbers per
expert; records add up over layers, parts of a sequence and pipeline stages.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class ExpertChoice(NamedTuple):
    """The experts of each token, and their weights and probabilities."""

    probabilities: Float[Tensor, "tokens experts"]
    weights: Float[Tensor, "tokens top_k"]
    experts: Int[Tensor, "tokens top_k"]


@dataclass(frozen=True)
class Routing:
    """Routing record of one layer for some tokens; gradients flow through the sums."""

    tokens: Float[Tensor, ""]
    counts: Float[Tensor, "experts"]  # tokens per expert
    probabilities: Float[Tensor, "experts"]  # summed over the tokens
    squared_log_sums: Float[Tensor, ""]  # logsumexp(logits)**2, summed over the tokens
    beyond: Float[Tensor, ""]  # (token, expert) pairs that exceeded a bounded message

    def to_row(self) -> Float[Tensor, "numbers"]:
        """Concatenate all numbers; rows of several records can be added."""
        numbers = torch.stack([self.tokens, self.squared_log_sums, self.beyond])
        return torch.cat([self.counts, self.probabilities, numbers])

    @staticmethod
    def from_row(row: Float[Tensor, "numbers"]) -> "Routing":
        num_experts = (len(row) - 3) // 2
        counts, probabilities = row[:num_experts], row[num_experts:-3]
        return Routing(row[-3], counts, probabilities, row[-2], row[-1])

    def balance_loss(self) -> Float[Tensor, ""]:
        """Return the balance loss: ``experts * sum(fraction * mean probability)``.

        https://arxiv.org/abs/2101.03961, equations 4 to 6, over all experts of a token as in
        transformers' ``load_balancing_loss_func``: perfect balance has the loss ``top_k``.
        """
        share = self.counts / self.tokens
        return len(share) * (share * self.probabilities / self.tokens).sum()

    def z_loss(self) -> Float[Tensor, ""]:
        """Return the router z-loss, https://arxiv.org/abs/2202.08906, equation 5."""
        return self.squared_log_sums / self.tokens

    def largest_over_mean(self) -> Float[Tensor, ""]:
        return self.counts.max() / self.counts.mean()


@dataclass(frozen=True)
class RoutingTally:
    """Routing records of some layers, summed over the layers."""

    pooled: Routing
    balance_loss: Float[Tensor, ""]  # sum of the layers' losses
    z_loss: Float[Tensor, ""]
    largest_over_mean: Float[Tensor, ""]  # of the least balanced layer

    @staticmethod
    def from_rows(rows: Float[Tensor, "layers numbers"]) -> "RoutingTally":
        layers = [Routing.from_row(row) for row in rows]
        return RoutingTally(
            pooled=Routing.from_row(rows.sum(0)),
            balance_loss=torch.stack([layer.balance_loss() for layer in layers]).sum(),
            z_loss=torch.stack([layer.z_loss() for layer in layers]).sum(),
            largest_over_mean=torch.stack([x.largest_over_mean() for x in layers]).max(),
        )

    def to_row(self) -> Float[Tensor, "numbers"]:
        numbers = torch.stack([self.balance_loss, self.z_loss, self.largest_over_mean.detach()])
        return torch.cat([self.pooled.to_row(), numbers])

    def add_earlier(self, row: Float[Tensor, "numbers"]) -> "RoutingTally":
        """Add the tally of earlier layers, given as its ``row``, to these layers."""
        pooled, losses = row[:-3], row[-3:]
        return RoutingTally(
            pooled=Routing.from_row(self.pooled.to_row() + pooled),
            balance_loss=self.balance_loss + losses[0],
            z_loss=self.z_loss + losses[1],
            largest_over_mean=torch.maximum(self.largest_over_mean, losses[2].detach()),
        )

    @staticmethod
    def count_row_numbers(num_experts: int) -> int:
        return 2 * num_experts + 6


class ChoiceRule(NamedTuple):
    """Rule that chooses experts and their weights from the router's logits.

    ``scores`` are a softmax over all experts, or a ``sigmoid`` of each logit. The
    ``num_groups`` equal groups of experts are ranked by the sum of their two best scores; a
    token's experts come from the ``top_groups`` best groups. ``renormalize`` makes a token's
    weights sum to 1, before they are multiplied by ``weight_scale`` (DeepSeek-V3,
    https://arxiv.org/abs/2412.19437, equations 12 to 16 and section 2.1.2).
    """

    top_k: int
    renormalize: bool
    scores: Literal["softmax", "sigmoid"] = "softmax"
    weight_scale: float = 1.0
    num_groups: int = 1
    top_groups: int = 1


def choose_experts(
    logits: Float[Tensor, "tokens experts"],
    rule: ChoiceRule,
    bias: Float[Tensor, "experts"] | None = None,
) -> ExpertChoice:
    """Choose each token's experts with the highest scores, in float32 or wider.

    A ``bias`` is added to the scores for the choice only (https://arxiv.org/abs/2408.15664,
    equation 3). Probabilities are the scores divided by their sum.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    if rule.scores == "sigmoid":
        scores = logits.to(wide).sigmoid()
        probabilities = scores / scores.sum(-1, keepdim=True)
    else:
        scores = probabilities = logits.softmax(-1, dtype=wide)
    if bias is None and rule.num_groups == 1:
        weights, experts = scores.topk(rule.top_k, dim=-1)
    else:
        ranked = scores.detach() if bias is None else scores.detach() + bias
        experts = _within_groups(ranked, rule).topk(rule.top_k, dim=-1).indices
        weights = scores.gather(1, experts)
    if rule.renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    if rule.weight_scale != 1:
        weights = weights * rule.weight_scale
    return ExpertChoice(probabilities, weights, experts)


def _within_groups(scores: Float[Tensor, "tokens experts"], rule: ChoiceRule) -> Tensor:
    """Mask the scores of the experts that are not in the best groups."""
    if rule.num_groups == 1:
        return scores
    groups = scores.view(len(scores), rule.num_groups, -1)  # (tokens, groups, experts of one)
    best = groups.topk(2, dim=-1).values.sum(-1).topk(rule.top_groups, dim=-1).indices
    excluded = torch.ones_like(groups[..., 0], dtype=torch.bool).scatter(1, best, value=False)
    return groups.masked_fill(excluded[..., None], -torch.inf).flatten(1)


def force_uniform(logits: Float[Tensor, "tokens experts"], *, top_k: int) -> Tensor:
    """Mask the logits so that token ``s`` uses experts ``s`` to ``s + top_k - 1``, cyclically.

    For speed measurements without random imbalance: Optimus's ``FORCE_UNIFORM_ROUTING``.
    """
    tokens, num_experts = logits.shape
    token = torch.arange(tokens, device=logits.device)[:, None]
    experts = (token + torch.arange(top_k, device=logits.device)) % num_experts
    masked = torch.full_like(logits, -torch.inf)
    return masked.scatter(1, experts, logits.gather(1, experts))


def record_routing(
    logits: Float[Tensor, "tokens experts"], choice: ExpertChoice, *, z_loss: bool
) -> Routing:
    """Return the routing record: the numbers for the auxiliary losses and the report."""
    chosen = choice.experts.flatten()
    counts = choice.probabilities.new_zeros(logits.shape[1])
    zero = counts.new_zeros(())
    squares = logits.to(counts.dtype).logsumexp(-1).square() if z_loss else zero
    return Routing(
        tokens=zero + len(logits),
        counts=counts.scatter_add(0, chosen, counts.new_ones(()).expand(len(chosen))),
        probabilities=choice.probabilities.sum(0),
        squared_log_sums=squares.sum(),
        beyond=zero,
    )

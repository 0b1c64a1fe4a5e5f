"""Expert parallelism: each rank has a part of every layer's experts; sums of their routers.

Like data ranks, the ranks of the axis read different samples and have copies of all other
weights. Tokens reach their experts in one of two ways (costs: docs/experts.md):

    all_gather    every rank gets all tokens, a reduce-scatter adds the results up (Optimus,
                  https://arxiv.org/abs/2604.00785, section 3.1)
    all_to_all    a token goes to a rank once for each of its experts there
                  (https://arxiv.org/abs/2006.16668, section 3.2, without its capacity)

The last stage computes a balance loss pooled over all layers: each stage sends its sums to the
next with the hidden states, and the gradient returns on the same path. Balance without a loss
moves the biases after a step, by the choices of all ranks.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from typing_extensions import override

from components.distributed.collectives import gather_rows, make_gather
from components.distributed.expert_sizes import bounded_sizes, read_sizes
from components.distributed.local_parameters import (
    place_parameters,
    to_local,
    use_local_parameters,
)
from components.distributed.tensor_styles import sum_over
from components.model.checkpoint_storage import pass_through
from components.model.decoder import Decoder
from components.model.expert_products import Matrices, Order, gather_token_rows, sum_rows
from components.model.moe import Experts, Mixture, Stack, expert_layers, take_rows
from components.model.routing import RoutingTally


def take_tally(
    decoder: Decoder, carried: Float[Tensor, "numbers"] | None, context: DeviceMesh | None
) -> RoutingTally | None:
    """Return the tally of a stage's routers in the last forward pass; None outside training.

    ``carried`` are the sums of previous stages. ``context`` ranks have parts of a sequence.
    """
    rows = take_rows(expert_layers(decoder))
    if rows is None:
        return None
    if context is not None and context.size() > 1:
        rows = sum_over(rows, context.get_group())
    tally = RoutingTally.from_rows(rows)
    return tally if carried is None else tally.add_earlier(carried)


def figures_of(
    decoder: Decoder,
    tally: RoutingTally | None,
    loss: Tensor,
    penalty: Tensor | None = None,
    further: Tensor | None = None,
) -> Tensor:
    """Return loss, auxiliary loss, largest expert load over the mean, dropped pairs, MTP loss.

    A ``penalty`` moves from the loss to the auxiliary loss. ``further`` is the MTP loss, or 0.
    """
    zero = torch.zeros_like(loss)
    added = zero if penalty is None else penalty
    loss = loss if penalty is None else loss - penalty
    further = zero if further is None else further
    if tally is None:
        return torch.stack([loss, added, zero + 1, zero, further])
    auxiliary = expert_layers(decoder)[0].routing_penalty(tally).to(loss) + added
    rest = auxiliary, tally.largest_over_mean, tally.pooled.beyond
    return torch.stack([loss, *(each.to(loss) for each in rest), further])


Dispatch = Literal["all_gather", "all_to_all"]


def split_experts(
    decoder: Decoder,
    mesh: DeviceMesh,
    *,
    dispatch: Dispatch,
    overlap: int,
    bound: float | None = None,
) -> None:
    """Apply expert parallelism to a decoder or one of its stages; ``mesh`` has one axis.

    ``bound`` limits what an all-to-all sends to one rank, as a multiple of an even share. The
    stacks of matrices become DTensors of that axis under their old names. They may be on
    ``meta``; otherwise all ranks must have the same values.
    """
    if mesh.size() == 1:
        return
    for layer in expert_layers(decoder):
        stacks = [stack for stack in layer.children() if isinstance(stack, Stack)]
        assert len(stacks[0].weight) % mesh.size() == 0, "the recipe's rules see to it"
        for stack in stacks:
            place_parameters(stack, mesh, Shard(0))
        use_local_parameters(layer, lambda name, stack: to_local(stack), owners=stacks)
        if dispatch == "all_gather":
            layer.mixture = AllGatherDispatcher(layer.mixture, mesh, overlap=overlap)
        else:
            layer.mixture = AllToAllDispatcher(
                layer.mixture, mesh, overlap=overlap, bound=bound
            )


class ExpertParallelMixture(Mixture):
    """Mixture that sends tokens to their experts, runs ``mixture``, and returns the results.

    Tokens are sent in ``overlap`` parts, which all start at once. The transfer of a part
    overlaps with the computation of others, in both passes (https://arxiv.org/abs/2206.03382).
    """

    def __init__(self, mixture: Mixture, mesh: DeviceMesh, *, overlap: int) -> None:
        super().__init__(path=mixture.path)
        self.mixture = mixture
        self._overlap = overlap
        self._ranks = mesh.size()
        self._rank = mesh.get_local_rank()
        self._group = mesh.get_group()

    def _split(self, rows: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
        # No part is empty. All ranks have the same number of tokens, and therefore of parts.
        return rows.tensor_split(min(self._overlap, rows.shape[dim]), dim)


class AllGatherDispatcher(ExpertParallelMixture):
    """Dispatcher that sends all tokens to every rank."""

    @override
    def forward(
        self, tokens: Tensor, weights: Tensor, experts: Tensor, matrices: Matrices
    ) -> Tensor:
        there = make_gather(self._group)
        parts = zip(self._split(tokens), self._split(weights), strict=True)
        departed = [[there.async_start(rows) for rows in part] for part in parts]
        with torch.no_grad():
            chosen = gather_rows(experts, self._group) - self._rank * len(matrices.up)
        chosen = chosen.view(self._ranks, *experts.shape)
        matrices = matrices._replace(parts=self._ranks)
        returning = []
        for pending, ids in zip(departed, self._split(chosen, 1), strict=True):
            arriving = (rows.async_wait() for rows in pending)
            mixed = self.mixture(*arriving, ids.flatten(0, 1), matrices)
            # In the tokens' dtype, like Optimus; the sums were computed in a wider dtype.
            returning.append(there.reverse_direction().async_start(mixed.to(tokens.dtype)))
        return _joined([pass_through(rows.async_wait()) for rows in returning])


class AllToAllDispatcher(ExpertParallelMixture):
    """Dispatcher that sends each token to the ranks of its experts.

    With a ``bound`` a training pass sends every rank ``bound`` times an even share of pairs,
    padded: the host knows the sizes. Dropped pairs, counted by ``beyond``, have wrong results.
    `exact_exchanges` repeats such a step without the bound.
    """

    def __init__(
        self, mixture: Mixture, mesh: DeviceMesh, *, overlap: int, bound: float | None = None
    ) -> None:
        super().__init__(mixture, mesh, overlap=overlap)
        self.bound = bound

    @override
    def forward(
        self, tokens: Tensor, weights: Tensor, experts: Tensor, matrices: Matrices
    ) -> Tensor:
        orders = [
            Order.sort_pairs(ids, num_experts=len(matrices.up) * self._ranks, parts=1)
            for ids in self._split(experts)
        ]
        if self.bound is None or not self.training:  # an evaluation is not repeated
            plan = read_sizes(orders, self._group)
        else:
            plan = bounded_sizes(orders, self._group, self.bound)
        sent, exchanges, arriving, self.beyond = plan
        lengths = [len(part) for part in self._split(tokens)]
        parts = zip(self._split(tokens), self._split(weights), sent, exchanges, strict=True)
        departed = []
        for part, of_part, order, exchange in parts:
            of_pairs = order._replace(tokens=order.pairs)
            leaving = (
                gather_token_rows(part, order),
                gather_token_rows(of_part.reshape(-1, 1), of_pairs),
            )
            departed.append([exchange.async_start(rows) for rows in leaving])
        returning = []
        for pending, ids, exchange in zip(departed, arriving, exchanges, strict=True):
            mixed = self.mixture(*[rows.async_wait() for rows in pending], ids, matrices)
            returning.append(exchange.reverse_direction().async_start(mixed.to(tokens.dtype)))
        return _joined([
            sum_rows(pass_through(rows.async_wait()), order, length)
            for rows, order, length in zip(returning, sent, lengths, strict=True)
        ])


@contextmanager
def exact_exchanges(decoders: Iterable[Decoder]) -> Iterator[None]:
    """Disable the bound of all-to-all dispatchers in the context."""
    modules = (module for decoder in decoders for module in decoder.modules())
    bounds = {each: each.bound for each in modules if isinstance(each, AllToAllDispatcher)}
    try:
        for mixture in bounds:
            mixture.bound = None
        yield
    finally:
        for mixture, bound in bounds.items():
            mixture.bound = bound


def forget_loads(decoders: Iterable[Decoder]) -> None:
    """Reset the counted expert loads after a step that was skipped."""
    for layer in _balanced(decoders):
        layer.load = None


def balance_experts(decoders: Iterable[Decoder], ranks: DeviceMesh) -> None:
    """Move all router biases by the expert loads of a step; all ``ranks`` of a stage call this.

    ``ranks`` have different tokens: mesh axes data, expert and context.
    """
    layers = list(_balanced(decoders))
    loads = [layer.load for layer in layers if layer.load is not None]
    if not loads:
        return
    assert len(loads) == len(layers), "all layers of a stage see all its tokens"
    total = torch.stack(loads)  # (layers, experts)
    if ranks.size() > 1:
        dist.all_reduce(total, group=ranks.get_group())
    for layer, load in zip(layers, total, strict=True):
        layer.update_bias(load)
        layer.load = None


def _balanced(decoders: Iterable[Decoder]) -> Iterator[Experts]:
    layers = (layer for decoder in decoders for layer in expert_layers(decoder))
    return (layer for layer in layers if layer.choice_bias is not None)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))

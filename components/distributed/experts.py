"""Expert parallelism: each rank holds a part of every layer's experts; sums of their routers.

The ranks of the axis read different samples, as data ranks do, and have all other weights in
copies. Tokens reach their experts in one of two ways, whose costs are in docs/experts.md:

    all_gather    every rank gets all tokens, a reduce-scatter adds the results up (Optimus,
                  https://arxiv.org/abs/2604.00785, section 3.1)
    all_to_all    a token goes to a rank once for each of its experts there
                  (https://arxiv.org/abs/2006.16668, section 3.2, without its capacity)

A balance of all layers pooled is known at the last stage only: each stage hands its sums to the
next one beside the hidden states, and the gradient comes back along the same way. Balance
without a loss counts what a whole step chose, of all ranks, and moves biases after it.
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

from components.distributed.collectives import gather_rows, gathering
from components.distributed.expert_sizes import bounded_sizes, read_sizes
from components.distributed.tensor_lending import lend, part_of, place_parameters
from components.distributed.tensor_styles import sum_over
from components.model.decoder import Decoder
from components.model.expert_products import Matrices, Order, spread, summed
from components.model.kept import passing_on
from components.model.moe import Experts, Mixture, Stack, expert_layers, take_rows
from components.model.routing import RoutingTally


def take_tally(
    decoder: Decoder, carried: Float[Tensor, "numbers"] | None, context: DeviceMesh | None
) -> RoutingTally | None:
    """Take what a stage's routers did in the forward pass just done, if it was training.

    ``carried`` are the sums of the stages before; ``context`` ranks have parts of a sequence.
    """
    rows = take_rows(expert_layers(decoder))
    if rows is None:
        return None
    if context is not None and context.size() > 1:
        rows = sum_over(rows, context.get_group())
    tally = RoutingTally.of(rows)
    return tally if carried is None else tally.after(carried)


def figures_of(
    decoder: Decoder,
    tally: RoutingTally | None,
    loss: Tensor,
    penalty: Tensor | None = None,
    further: Tensor | None = None,
) -> Tensor:
    """Return loss, auxiliary loss, the fullest expert's load over the mean, pairs left out.

    A ``penalty`` that is in the loss counts as auxiliary; the first two together are as given.
    The fifth is the loss of ``further`` tokens, 0 where none are predicted.
    """
    zero = torch.zeros_like(loss)
    added = zero if penalty is None else penalty
    loss = loss if penalty is None else loss - penalty
    further = zero if further is None else further
    if tally is None:
        return torch.stack([loss, added, zero + 1, zero, further])
    auxiliary = expert_layers(decoder)[0].penalty(tally).to(loss) + added
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
    """Apply expert parallelism to a decoder or a stage of one; ``mesh`` has one axis.

    ``bound`` is of what an all-to-all sends to one rank, over an even share.

    The stacks of matrices become DTensors of that axis under their old names. They may be on
    ``meta``; elsewhere all ranks must hold the same values. One rank changes nothing.
    """
    if mesh.size() == 1:
        return
    for layer in expert_layers(decoder):
        stacks = [stack for stack in layer.children() if isinstance(stack, Stack)]
        assert len(stacks[0].weight) % mesh.size() == 0, "the recipe's rules see to it"
        for stack in stacks:
            place_parameters(stack, mesh, Shard(0))
        lend(layer, lambda name, stack: part_of(stack), owners=stacks)
        if dispatch == "all_gather":
            layer.mixture = GatheredMixture(layer.mixture, mesh, overlap=overlap)
        else:
            layer.mixture = ExchangedMixture(layer.mixture, mesh, overlap=overlap, bound=bound)


class SplitMixture(Mixture):
    """Bring tokens and experts together, let ``mixture`` compute, and bring results back.

    Tokens go in ``overlap`` parts, all at once: while one is computed, others are under way,
    in the backward pass too (https://arxiv.org/abs/2206.03382).
    """

    def __init__(self, mixture: Mixture, mesh: DeviceMesh, *, overlap: int) -> None:
        super().__init__(path=mixture.path)
        self.mixture = mixture
        self._overlap = overlap
        self._ranks = mesh.size()
        self._rank = mesh.get_local_rank()
        self._group = mesh.get_group()

    def _split(self, rows: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
        # No part is empty; ranks have equally many tokens, and so equally many parts.
        return rows.tensor_split(min(self._overlap, rows.shape[dim]), dim)


class GatheredMixture(SplitMixture):
    """Give every rank all tokens."""

    @override
    def forward(
        self, tokens: Tensor, weights: Tensor, experts: Tensor, matrices: Matrices
    ) -> Tensor:
        there = gathering(self._group)
        parts = zip(self._split(tokens), self._split(weights), strict=True)
        departed = [[there.async_start(rows) for rows in part] for part in parts]
        with torch.no_grad():
            chosen = gather_rows(experts, self._group) - self._rank * len(matrices.up)
        chosen = chosen.view(self._ranks, *experts.shape)
        matrices = matrices._replace(parts=self._ranks)
        returning = []
        for given, ids in zip(departed, self._split(chosen, 1), strict=True):
            arriving = (rows.async_wait() for rows in given)
            mixed = self.mixture(*arriving, ids.flatten(0, 1), matrices)
            # As wide as the tokens came, as Optimus sends them; the sums were taken wider.
            returning.append(there.reversed().async_start(mixed.to(tokens.dtype)))
        return _joined([passing_on(rows.async_wait()) for rows in returning])


class ExchangedMixture(SplitMixture):
    """Send each token to the ranks of its experts.

    With a ``bound`` a training pass sends every rank ``bound`` times an even share of pairs,
    padded, so that sizes are known without the device; ``beyond`` counts the pairs that this
    left out, whose results are wrong. `exact_exchanges` takes such a step without it.
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
            Order.of(ids, num_experts=len(matrices.up) * self._ranks, parts=1)
            for ids in self._split(experts)
        ]
        if self.bound is None or not self.training:  # nobody would repeat an evaluation
            plan = read_sizes(orders, self._group)
        else:
            plan = bounded_sizes(orders, self._group, self.bound)
        sent, exchanges, arriving, self.beyond = plan
        lengths = [len(part) for part in self._split(tokens)]
        parts = zip(self._split(tokens), self._split(weights), sent, exchanges, strict=True)
        departed = []
        for part, of_part, order, exchange in parts:
            of_pairs = order._replace(tokens=order.pairs)
            leaving = spread(part, order), spread(of_part.reshape(-1, 1), of_pairs)
            departed.append([exchange.async_start(rows) for rows in leaving])
        returning = []
        for given, ids, exchange in zip(departed, arriving, exchanges, strict=True):
            mixed = self.mixture(*[rows.async_wait() for rows in given], ids, matrices)
            returning.append(exchange.reversed().async_start(mixed.to(tokens.dtype)))
        return _joined([
            summed(passing_on(rows.async_wait()), order, length)
            for rows, order, length in zip(returning, sent, lengths, strict=True)
        ])


@contextmanager
def exact_exchanges(decoders: Iterable[Decoder]) -> Iterator[None]:
    """Send what is there, whatever the bound."""
    modules = (module for decoder in decoders for module in decoder.modules())
    bounds = {each: each.bound for each in modules if isinstance(each, ExchangedMixture)}
    try:
        for mixture in bounds:
            mixture.bound = None
        yield
    finally:
        for mixture, bound in bounds.items():
            mixture.bound = bound


def forget_loads(decoders: Iterable[Decoder]) -> None:
    """Begin to count anew: what was counted is of a step that was not taken."""
    for layer in _balanced(decoders):
        layer.load = None


def balance_experts(decoders: Iterable[Decoder], ranks: DeviceMesh) -> None:
    """Move all biases by what a step's routers chose; all ``ranks`` of a stage call it.

    They are those that see other tokens: mesh axes data, expert and context.
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
        layer.balance(load)
        layer.load = None


def _balanced(decoders: Iterable[Decoder]) -> Iterator[Experts]:
    layers = (layer for decoder in decoders for layer in expert_layers(decoder))
    return (layer for layer in layers if layer.choice_bias is not None)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))

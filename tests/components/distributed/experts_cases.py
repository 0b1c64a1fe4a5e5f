"""A mixture of experts over ranks, compared with the whole on one process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from components.distributed import collectives
from components.distributed.experts import AllGatherDispatcher, AllToAllDispatcher
from components.model.expert_products import (
    Matrices,
    grouped_products,
    mix_in_loop,
    sorted_products,
)
from components.model.mlp import ACTIVATIONS
from components.model.moe import Mixture
from tests.components.distributed.layout_cases import (
    Layout,
    ParallelModel,
    batch_of,
    layout_mesh,
)
from tests.components.distributed.tensor_cases import Parts, randomized

MIXTURE_TOLERANCE = 1e-5  # `grouped_mm` has no double precision
DIM, FFN_DIM, NUM_EXPERTS, TOP_K, TOKENS = 8, 4, 6, 2, 7
PATHS = {"loop": mix_in_loop, "sorted": sorted_products, "grouped": grouped_products}
KINDS = {"all_gather": AllGatherDispatcher, "all_to_all": AllToAllDispatcher}


class _Mixture(Mixture):
    """Compute with a named path."""

    def __init__(self, name: str) -> None:
        super().__init__(path="auto")
        self._name = name

    def _path(self, tokens: Tensor) -> Any:
        return PATHS[self._name]


def mix(
    dispatch: str, routing: str, path: str, overlap: int, bound: float | None = None
) -> dict[str, float]:
    """Return the largest relative differences of this rank's results and gradients."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    inputs = [_draw(other, routing) for other in range(ranks)]
    stacks = _stacks(torch.float32)
    whole = [_run(mix_in_loop, given, stacks) for given in inputs]
    mesh = layout_mesh(Layout(expert=ranks)).get_axis("expert")
    bounded = {} if bound is None else {"bound": bound}
    mixture = KINDS[dispatch](_Mixture(path), mesh, overlap=overlap, **bounded)
    here = [stack.detach().chunk(ranks)[rank].clone().requires_grad_() for stack in stacks]
    found = _run(mixture, inputs[rank], here)
    expected = dict(whole[rank])
    for name in ("gate", "up", "down"):  # of all ranks' tokens
        expected[name] = torch.stack([one[name] for one in whole]).sum(0).chunk(ranks)[rank]
    return {
        name: ((found[name] - value).abs().max() / value.abs().max().clamp(min=1e-9)).item()
        for name, value in expected.items()
    }


def mix_bounded(routing: str, path: str, overlap: int, bound: float) -> tuple[float, int]:
    """Return the difference between a bounded and an exact exchange, and the dropped pairs.

    Unwritten memory is NaN, which would appear in the results.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dtype = torch.float32 if path == "grouped" else torch.float64
    mesh = layout_mesh(Layout(expert=ranks)).get_axis("expert")
    *drawn, upstream = _draw(rank, routing)
    given = [each if each.dtype == torch.int64 else each.to(dtype) for each in drawn]
    here = [
        stack.detach().chunk(ranks)[rank].clone().requires_grad_() for stack in _stacks(dtype)
    ]
    found = []
    with filled_with_nan():
        for bounds in ({}, {"bound": bound}):
            mixture = AllToAllDispatcher(_Mixture(path), mesh, overlap=overlap, **bounds)
            found.append(_run(mixture, (*given, upstream.to(dtype)), here))
    exact, bounded = found
    gaps = [(bounded[name] - value).abs().max() for name, value in exact.items()]
    assert all(value.isfinite().all() for value in bounded.values())
    assert mixture.beyond is not None
    beyond = int(mixture.beyond)
    mixture.eval()(*given, _matrices(here))
    assert mixture.beyond is None  # an evaluation is exact
    return max(gaps).item(), beyond


class _Noted(Mixture):
    """Record when a part is computed, forward and backward."""

    def __init__(self, events: list[str]) -> None:
        super().__init__(path="loop")
        self._events = events

    def forward(self, *given: Any) -> Tensor:
        self._events.append("compute")
        mixed = super().forward(*given)
        mixed.register_hook(lambda _: self._events.append("compute"))
        return mixed


@contextmanager
def filled_with_nan() -> Iterator[None]:
    """Fill all allocated memory with NaN."""
    torch.use_deterministic_algorithms(True)  # which fills empty tensors by default
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def note_order(dispatch: str, overlap: int) -> tuple[list[str], list[str]]:
    """List departures, computations and arrivals of a rank, forward and backward."""
    events: list[str] = []

    def recorded(event: str, function: Any) -> Any:
        def call(*given: Any) -> Any:
            events.append(event)
            return function(*given)

        return call

    mesh = layout_mesh(Layout(expert=dist.get_world_size())).get_axis("expert")
    mixture = KINDS[dispatch](_Noted(events), mesh, overlap=overlap)
    here = [
        stack.detach().chunk(mesh.size())[mesh.get_local_rank()].clone().requires_grad_()
        for stack in _stacks(torch.float32)
    ]
    tokens, weights, experts, upstream = _draw(mesh.get_local_rank(), "spread")
    state = collectives._CollectiveState
    with (
        patch.object(state, "start_collective", recorded("depart", state.start_collective)),
        patch.object(state, "end_collective", recorded("arrive", state.end_collective)),
    ):
        learned = tokens.requires_grad_(), weights.requires_grad_()
        mixed = mixture(*learned, experts, _matrices(here))
        forward = events.copy()
        events.clear()
        mixed.backward(upstream)
    return forward, events


def mix_coarsely(dispatch: str) -> float:
    """Return the difference between bfloat16 and float32, relative to the largest result."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tokens, weights, experts, _ = _draw(rank, "spread")
    stacks = _stacks(torch.bfloat16)
    exact = _matrices([stack.float() for stack in stacks])
    expected = mix_in_loop(
        tokens.bfloat16().float(), weights.bfloat16().float(), experts, exact
    )
    mesh = layout_mesh(Layout(expert=ranks)).get_axis("expert")
    here = [stack.chunk(ranks)[rank] for stack in stacks]
    mixture = KINDS[dispatch](Mixture(path="auto"), mesh, overlap=1)
    found: Tensor = mixture(tokens.bfloat16(), weights.bfloat16(), experts, _matrices(here))
    return ((found.float() - expected).abs().max() / expected.abs().max()).item()


def _run(mixture: Any, given: Any, stacks: Sequence[Tensor]) -> dict[str, Tensor]:
    tokens, weights, experts, upstream = given
    tokens, weights = tokens.clone().requires_grad_(), weights.clone().requires_grad_()
    for stack in stacks:
        stack.grad = None
    mixed: Tensor = mixture(tokens, weights, experts, _matrices(stacks))
    mixed.backward(upstream)
    gradients = [tokens.grad, weights.grad, *(stack.grad for stack in stacks)]
    names = ["tokens", "weights", "gate", "up", "down"]
    return {"mixed": mixed.detach(), **dict(zip(names, gradients, strict=True))}


def _draw(rank: int, routing: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    tokens, upstream = torch.randn(2, TOKENS, DIM, generator=generator)
    weights = torch.rand(TOKENS, TOP_K, generator=generator)
    chosen = torch.rand(TOKENS, NUM_EXPERTS, generator=generator).topk(TOP_K).indices
    if routing == "one rank":  # the experts of the last rank get nothing
        chosen = torch.tensor([[0, 2]]).expand(TOKENS, TOP_K)
    if routing == "even":  # each token goes to one expert of each rank
        chosen = torch.stack([torch.arange(TOKENS) % 3, torch.arange(TOKENS) % 3 + 3], 1)
    if routing == "one expert":
        chosen = torch.tensor([[4, 4]]).expand(TOKENS, TOP_K)
    return tokens, weights, chosen, upstream


def _matrices(stacks: Sequence[Tensor]) -> Matrices:
    gate, up, down = stacks
    return Matrices(gate, up, down, ACTIVATIONS["silu"])


def _stacks(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(9)
    shapes = [(FFN_DIM, DIM), (FFN_DIM, DIM), (DIM, FFN_DIM)]
    return [
        torch.randn(NUM_EXPERTS, *shape, generator=generator).to(dtype).requires_grad_()
        for shape in shapes
    ]


def compare_divisors(parts: Parts, layout: Layout) -> dict[str, float]:
    """Return the ratio of each gradient with Optimus's divisor to ours."""
    found = []
    for divisor in ("ranks", "replicas"):
        sharded = ParallelModel(randomized(parts), layout._replace(divisor=divisor))
        sharded.backward(batch_of(0, sharded.mesh.data_rank))
        found.append(sharded.gradients())
    ours, theirs = found
    return {name: (theirs[name].norm() / ours[name].norm()).item() for name in ours}

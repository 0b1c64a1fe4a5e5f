"""Functions of data ranks, compared with one process that has the samples of all ranks."""

import gc
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakIdKeyDictionary

from components.distributed.data import DataParallel
from components.distributed.experts import balance_experts
from components.distributed.weight_shards import get_local_part
from tests.components.distributed import layout_cases
from tests.components.distributed.layout_cases import Layout, ParallelModel, Whole, batch_of
from tests.components.distributed.tensor_cases import Parts, randomized

STEPS = 2  # the second starts from what the first left in the optimizer
FEW_ELEMENTS = 1_000  # fewer than the embedding has, more than a norm


class Trained(NamedTuple):
    """Largest differences from one process, and the final weights."""

    gradient: float
    weight: float
    weights: dict[str, Tensor]


class Held(NamedTuple):
    """Bytes on one rank, divided by the bytes of all weights of the model."""

    weights: float
    gradients: float
    state: float
    anything_else: float


def train(parts: Parts, layout: Layout, steps: int = STEPS) -> Trained:
    """Take steps of AdamW, in the layout and on one process."""
    model = randomized(parts)
    whole, sharded = Whole(model), ParallelModel(model, layout)
    # The first update of a weight is lr * g / (|g| + eps). A large eps keeps the rounding of a
    # gradient near zero small; with 1e-8 it decides the size of that update on some processors.
    settings: dict[str, Any] = {"lr": 0.01, "eps": 1e-4}
    theirs = torch.optim.AdamW(whole.decoder.parameters(), **settings)
    ours = torch.optim.AdamW([shard.parameter for shard in sharded.shards], **settings)
    gradient = weight = 0.0
    for step in range(steps):
        batches = [batch_of(step, rank) for rank in range(layout.data)]
        whole.backward(batches)
        sharded.backward(batches[sharded.mesh.data_rank])
        gradient = max(
            gradient, layout_cases.largest_difference(sharded.gradients(), whole.gradients())
        )
        theirs.step()
        ours.step()
        sharded.parallel.all_gather_updated()
        balance_experts([whole.decoder], sharded.mesh.get_axis("context"))  # one rank
        balance_experts(sharded.stages, sharded.mesh.dense.grad_sync)
        weight = max(
            weight, layout_cases.largest_difference(sharded.weights(), whole.weights())
        )
    return Trained(gradient, weight, sharded.weights())


def give_a_late_gradient(parts: Parts, layout: Layout) -> str:
    """Give a weight a second gradient after its bucket was reduced; return the message."""
    sharded = ParallelModel(randomized(parts), layout)
    sharded.parallel.start_step(1)
    sharded.microbatches.accumulate_gradients(
        batch_of(0, sharded.mesh.data_rank, microbatches=1), 1.0
    )
    weight = sharded.shards[-1].weight
    weight.grad = torch.ones_like(weight)
    try:
        sharded.parallel.collect_gradient(weight)
    except AssertionError as error:
        return str(error)
    return ""


def hold(parts: Parts, layout: Layout) -> tuple[Held, Held]:
    """Measure after the second step's first microbatch, and before its update."""
    model, before = randomized(parts), Before.now()
    sharded = ParallelModel(model, layout._replace(overlaps=False))  # no bucket is under way
    optimizer = torch.optim.AdamW([shard.parameter for shard in sharded.shards], lr=0.01)
    sharded.backward(batch_of(0, sharded.mesh.data_rank))
    optimizer.step()
    sharded.parallel.start_step(2)
    first, second = batch_of(1, sharded.mesh.data_rank).split(1)
    sharded.microbatches.accumulate_gradients(first, 0.5)
    accumulating = _measure(sharded, optimizer, before)
    sharded.microbatches.accumulate_gradients(second, 0.5)
    sharded.parallel.reduce_gradients()
    return accumulating, _measure(sharded, optimizer, before)


class HeldExperts(NamedTuple):
    """Number of dense and expert weights, and of their optimizer state on this rank."""

    dense: int
    experts: int
    dense_state: int
    experts_state: int


def hold_experts(parts: Parts, layout: Layout) -> HeldExperts:
    """Count the optimizer state after a step."""
    sharded = ParallelModel(randomized(parts), layout)
    optimizer = torch.optim.AdamW([shard.parameter for shard in sharded.shards], lr=0.01)
    sharded.backward(batch_of(0, sharded.mesh.data_rank))
    optimizer.step()
    counts = {"dense": 0, "experts": 0, "dense_state": 0, "experts_state": 0}
    for shard in sharded.shards:
        family = "experts" if shard.param_mesh is sharded.mesh.experts else "dense"
        counts[family] += shard.whole_shape.numel()
        state = optimizer.state[shard.parameter]
        kept = sum(value.numel() for key, value in state.items() if key != "step")
        counts[f"{family}_state"] += kept
    return HeldExperts(**counts)


def hold_after_evaluation(parts: Parts, layout: Layout) -> Held:
    """Measure after an evaluation."""
    model, before = randomized(parts), Before.now()
    sharded = ParallelModel(model, layout)
    optimizer = torch.optim.AdamW([shard.parameter for shard in sharded.shards], lr=0.01)
    with torch.no_grad():
        sharded.microbatches.evaluate_rows(batch_of(0, 0)[0])
    sharded.parallel.free_gathered()
    return _measure(sharded, optimizer, before)


def _measure(
    sharded: ParallelModel, optimizer: torch.optim.Optimizer, before: "Before"
) -> Held:
    whole = sum(shard.whole_shape.numel() * shard.weight.itemsize for shard in sharded.shards)
    weights = [get_local_part(shard.weight) for shard in sharded.shards]
    gradients = [g for s in sharded.shards for g in (s.weight.grad, s.parameter.grad)]
    gradients += sharded.parallel.gradient_buffers()
    state = [v for s in optimizer.state.values() for k, v in s.items() if k != "step"]
    parts = [
        dict(_storages(part))
        for part in (weights, [get_local_part(g) for g in gradients if g is not None], state)
    ]
    named = before.storages | parts[0] | parts[1] | parts[2]
    new = [get_local_part(tensor) for tensor in _live_tensors() if tensor not in before.tensors]
    others = [size for at, size in _storages(new) if at not in named]
    held = [sum(part.values()) / whole for part in parts]
    return Held(held[0], held[1], held[2], sum(others) / whole)


class Before(NamedTuple):
    """Memory and tensors that existed before the measurement."""

    storages: dict[int, int]
    tensors: WeakIdKeyDictionary

    @classmethod
    def now(cls) -> "Before":
        live, known = _live_tensors(), WeakIdKeyDictionary()
        for tensor in live:
            known[tensor] = True
        return cls(dict(_storages(map(get_local_part, live))), known)


def _live_tensors() -> list[Tensor]:
    gc.collect()
    # `isinstance` would trigger warnings of lazy objects, so the type is compared.
    # Fake tensors of the compiler have no memory.
    found = (o for o in gc.get_objects() if issubclass(type(o), Tensor))
    return [
        o for o in found if not (issubclass(type(get_local_part(o)), FakeTensor) or o.is_meta)
    ]


def _storages(tensors: Iterable[Tensor]) -> set[tuple[int, int]]:
    """Return address and size of each tensor's storage; views count once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {(storage.data_ptr(), storage.nbytes()) for storage in storages}


def accumulate_in_bfloat16(parts: Parts, layout: Layout, microbatches: int) -> list[str]:
    """Name the gradients that differ in a bit from sums rounded by hand."""
    model = randomized(parts).float()
    whole, sharded = Whole(model), ParallelModel(model, layout)
    batches = [batch_of(0, r, microbatches=microbatches) for r in range(layout.data)]
    sharded.backward(batches[sharded.mesh.data_rank])
    each = [[_gradients(whole, rows, microbatches) for rows in batch] for batch in batches]
    if layout.zero >= 2:  # averaged over ranks, then summed
        each = [[_mean(gradients) for gradients in zip(*each, strict=True)]]
    expected = _mean([_rounded_sum(gradients) for gradients in each])
    return [name for name, g in sharded.gradients().items() if not g.equal(expected[name])]


def reduce_in_bfloat16(parts: Parts, layout: Layout) -> list[str]:
    """Name the gradients that differ from the rounded mean of two rounded gradients."""
    model = randomized(parts).float()
    whole, sharded = Whole(model), ParallelModel(model, layout)
    batches = [batch_of(0, rank, microbatches=1) for rank in range(2)]
    sharded.backward(batches[sharded.mesh.data_rank])
    mine, others = (_gradients(whole, batch[0], 1) for batch in batches)
    expected = {n: (g.bfloat16() + others[n].bfloat16()).float() / 2 for n, g in mine.items()}
    return [name for name, g in sharded.gradients().items() if not g.equal(expected[name])]


def _gradients(whole: Whole, rows: Tensor, microbatches: int) -> dict[str, Tensor]:
    whole.decoder.zero_grad()
    (loss,) = whole.compute(whole.decoder, (rows[:, :-1],), rows, 0)
    torch.autograd.backward(loss * (1 / microbatches))
    return {name: gradient.clone() for name, gradient in whole.gradients().items()}


def _rounded_sum(gradients: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    sums = {name: g.bfloat16().float() for name, g in gradients[0].items()}
    for more in gradients[1:]:
        sums = {name: (total + more[name]).bfloat16().float() for name, total in sums.items()}
    return sums


def _mean(gradients: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    listed = list(gradients)
    return {name: torch.stack([g[name] for g in listed]).mean(0) for name in listed[0]}


def leave_unused(zero: int) -> list[Tensor]:
    """Return the gradients of a used and of an unused weight."""
    stage = nn.Module()
    stage.used = nn.Parameter(torch.ones(3))
    stage.unused = nn.Parameter(torch.ones(5, 2))
    parallel = DataParallel(
        [stage],
        layout_cases.layout_mesh(Layout(shard=2)),
        zero=zero,
        dtypes=layout_cases.FLOAT32,
        bucket_elements=FEW_ELEMENTS,
        overlap=True,
    )
    parallel.start_step(1)
    torch.autograd.backward((stage.used * torch.distributed.get_rank()).sum())
    parallel.reduce_gradients()
    return [gradient for s in parallel.shards if (gradient := s.parameter.grad) is not None]


def most_of_layers(parts: Parts, layout: Layout) -> float:
    """Return the largest fraction of all layer weights that a rank held in a step."""
    sharded = ParallelModel(randomized(parts), layout)
    layers = list(sharded.stages[0].layers.values())
    whole = sum(weight.numel() for layer in layers for weight in layer.parameters())
    rows = sum(shard.parameter.numel() for shard in sharded.shards if "layers" in shard.name)
    seen: list[float] = []

    def look(*_: object) -> None:
        # A sharded weight is a DTensor, a gathered one is a plain tensor.
        weights = [weight for layer in layers for weight in layer.parameters()]
        gathered = sum(weight.numel() for weight in weights if not isinstance(weight, DTensor))
        seen.append((rows + gathered) / whole)

    for layer in layers:
        attention = layer.get_submodule("attention")
        attention.register_forward_hook(look)
        attention.register_full_backward_hook(look)
    sharded.backward(batch_of(0, sharded.mesh.data_rank))
    assert len(seen) == 2 * 2 * len(layers)  # two microbatches, forward and backward
    return max(seen)

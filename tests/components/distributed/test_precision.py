"""16-bit weights with float32 masters have the same bits as handwritten steps."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from components.checkpoint.metadata import RunProgress
from components.checkpoint.saving import ShardState
from tests.components.checkpoint.saving_cases import load_checkpoint, save_checkpoint
from tests.components.distributed.layout_cases import (
    Layout,
    ParallelModel,
    Whole,
    batch_of,
    gather,
)
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import Parts, randomized
from tests.components.distributed.test_data import EVEN, THREE_ROWS

STEPS, MICROBATCHES = 2, 3
Weights = dict[str, Tensor]


class Updated(NamedTuple):
    """Gathered weights and masters after training steps."""

    weights: Weights
    masters: Weights


class Trainee:
    """A layout and its optimizer for a float32 model."""

    def __init__(self, parts: Parts, layout: Layout, *, seed: int = 0) -> None:
        self.sharded = ParallelModel(randomized(parts, seed=seed).float(), layout)
        parameters = [shard.parameter for shard in self.sharded.shards]
        self.optimizer = torch.optim.AdamW(parameters, lr=0.01)
        self.state = ShardState(self.sharded.parallel, self.optimizer)

    def take(self, steps: range) -> None:
        for step in steps:
            rows = batch_of(step, self.sharded.mesh.data_rank, microbatches=MICROBATCHES)
            self.sharded.backward(rows)
            self.optimizer.step()
            self.sharded.parallel.all_gather_updated()

    def updated(self) -> Updated:
        self.sharded.parallel.wait_for_weights()
        shards = self.sharded.shards
        return Updated(
            {shard.name: gather(shard.weight.detach()) for shard in shards},
            {
                shard.name: gather(shard.to_dtensor(shard.parameter.detach()))
                for shard in shards
            },
        )


def differ_from_steps_by_hand(parts: Parts, layout: Layout) -> list[str]:
    """Name the weights and masters with a bit that differs from handwritten steps."""
    trainee = Trainee(parts, layout)
    trainee.take(range(STEPS))
    found, expected = trainee.updated(), steps_by_hand(parts, layout)
    weights = different(found.weights, expected.weights) if layout.zero < 3 else []
    return weights + different(found.masters, expected.masters)


def different(found: Weights, expected: Weights) -> list[str]:
    """Name tensors with different bits; stacks are compared as rows."""
    return [n for n, x in found.items() if not x.equal(expected[n].view_as(x))]


def steps_by_hand(parts: Parts, layout: Layout) -> Updated:
    """Round the masters, sum gradients in float32 and update the masters on one process."""
    model = randomized(parts).float()
    masters = {name: p.detach().clone() for name, p in model.named_parameters()}
    whole = Whole(model.bfloat16())
    optimizer = torch.optim.AdamW(masters.values(), lr=0.01)
    for step in range(STEPS):
        for name, weight in whole.decoder.named_parameters():
            weight.detach().copy_(masters[name])
        each = [
            [_gradients(whole, rows) for rows in batch_of(step, r, microbatches=MICROBATCHES)]
            for r in range(layout.data)
        ]
        if layout.zero >= 2:  # averaged over ranks, then summed
            each = [[_mean(list(gradients)) for gradients in zip(*each, strict=True)]]
        means = _mean([_summed(of_rank) for of_rank in each])
        for name, master in masters.items():
            master.grad = means[name]
        optimizer.step()
    return Updated({name: m.bfloat16() for name, m in masters.items()}, masters)


def _gradients(whole: Whole, rows: Tensor) -> Weights:
    whole.decoder.zero_grad()
    (loss,) = whole.compute(whole.decoder, (rows[:, :-1],), rows, 0)
    torch.autograd.backward(loss * (1 / MICROBATCHES))
    assert {g.dtype for g in whole.gradients().values()} == {torch.bfloat16}
    return {name: gradient.float() for name, gradient in whole.gradients().items()}


def _summed(gradients: list[Weights]) -> Weights:
    total = dict(gradients[0])
    for more in gradients[1:]:
        total = {name: gradient + more[name] for name, gradient in total.items()}
    return total


def _mean(gradients: list[Weights]) -> Weights:
    return {name: gradient / len(gradients) for name, gradient in _summed(gradients).items()}


def moves(parts: Parts, before: Layout, after: Layout, folder: Path) -> list[str]:
    """Save in one precision scheme, load in another, and name the differences.

    Loaded masters equal the saved ones, and loaded weights are their rounding.
    """
    first = Trainee(parts, before)
    first.take(range(STEPS))
    checkpoint = save_checkpoint(folder, first.state, RunProgress(STEPS, 10))
    second = Trainee(parts, after, seed=1)
    load_checkpoint(checkpoint, second.state)
    saved, loaded = first.updated(), second.updated()
    dtypes = {name: weight.dtype for name, weight in loaded.weights.items()}
    rounded = {name: master.to(dtypes[name]) for name, master in saved.masters.items()}
    moments = different(_moments(second), _moments(first))
    weights = different(loaded.weights, rounded)
    return weights + different(loaded.masters, saved.masters) + moments


def _moments(trainee: Trainee) -> Weights:
    names = [
        n for n in trainee.state.collect_tensors() if n.endswith(("exp_avg", "exp_avg_sq"))
    ]
    return {name: gather(trainee.state.collect_tensors()[name]) for name in names}


def resume(parts: Parts, layout: Layout, folder: Path) -> list[str]:
    """Name tensors that differ between an uninterrupted and a resumed run."""
    first = Trainee(parts, layout)
    first.take(range(STEPS))
    checkpoint = save_checkpoint(folder, first.state, RunProgress(STEPS, 10))
    second = Trainee(parts, layout, seed=1)
    load_checkpoint(checkpoint, second.state)
    for trainee in (first, second):
        trainee.take(range(STEPS, 2 * STEPS))
    ours, theirs = first.updated(), second.updated()
    return different(ours.weights, theirs.weights) + different(ours.masters, theirs.masters)


def bytes_of(parts: Parts, layout: Layout) -> tuple[float, float]:
    """Return a rank's bytes per parameter for weights and for separate masters."""
    shards = ParallelModel(randomized(parts).float(), layout).shards
    numbers = sum(shard.weight.numel() for shard in shards)
    masters = {shard.parameter.untyped_storage() for shard in shards if shard.is_master}
    weights = sum(shard.weight.numel() * shard.weight.itemsize for shard in shards)
    return weights / numbers, sum(storage.nbytes() for storage in masters) / numbers


MIXED = Layout(shard=2, weights="bfloat16", accumulate="float32", reduce="float32")
PLAIN = Layout(shard=2, accumulate="float32", reduce="float32")
FEW_ELEMENTS = 1_000


BUCKETS = MIXED._replace(bucket_elements=FEW_ELEMENTS)
CASES = {
    "zero 0": (EVEN, BUCKETS),
    "zero 1, one bucket": (EVEN, MIXED._replace(zero=1)),
    "zero 1, three rows": (THREE_ROWS, BUCKETS._replace(zero=1)),
    "zero 2, three rows": (THREE_ROWS, BUCKETS._replace(zero=2)),
    "zero 3, three rows, one bucket": (THREE_ROWS, MIXED._replace(zero=3)),
    "zero 3": (EVEN, BUCKETS._replace(zero=3)),
    "zero 1, no overlap": (EVEN, BUCKETS._replace(zero=1, overlaps=False)),
    "zero 3, no overlap": (EVEN, BUCKETS._replace(zero=3, overlaps=False)),
    "stages without data ranks": (EVEN, MIXED._replace(shard=1, pipeline=2)),
}


@pytest.mark.quick(
    *("zero 1, one bucket", "zero 2, three rows", "zero 3", "zero 1, no overlap"),
    "stages without data ranks",
)
@pytest.mark.parametrize("case", CASES)
def test_steps_equal_handwritten_steps_bit_for_bit(two_ranks: Ranks, case: str) -> None:
    assert two_ranks(differ_from_steps_by_hand, *CASES[case]) == [[], []]


@pytest.mark.quick("1")
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_resumed_run_keeps_its_master_weights(two_ranks, tmp_path, zero):
    layout = MIXED._replace(zero=zero)
    assert two_ranks(resume, EVEN, layout, tmp_path) == [[], []]


@pytest.mark.quick("to rounded", "to plain")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PLAIN._replace(zero=1), MIXED._replace(zero=2)),
        (MIXED._replace(zero=1), PLAIN),
        (MIXED._replace(zero=3), MIXED._replace(zero=1)),
        (MIXED, MIXED._replace(zero=3)),
    ],
    ids=["to rounded", "to plain", "from zero 3", "to zero 3"],
)
def test_a_checkpoint_moves_between_schemes(two_ranks, tmp_path, before, after):
    assert two_ranks(moves, EVEN, before, after, tmp_path) == [[], []]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [(PLAIN, (4, 0)), (MIXED, (2, 4)), (MIXED._replace(zero=1), (2, 2))],
    ids=["plain", "zero 0", "zero 1"],
)
def test_weights_and_masters_take_the_expected_bytes(two_ranks, layout, expected):
    for found in two_ranks(bytes_of, EVEN, layout):
        assert found == pytest.approx(expected, rel=0.02)

"""Communication of data ranks overlaps with computation, measured on a simulated clock."""

from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch.distributed as dist
from torch import Tensor, nn

from components.distributed import collectives
from components.model.decoder import Decoder
from components.torch_internals import operators
from tests.components.distributed.data_cases import train
from tests.components.distributed.layout_cases import Layout, ParallelModel, batch_of
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import Parts, randomized
from tests.components.model.specs import experts_spec


class SimulatedLink:
    """Simulated clock, advanced by computing and waiting; sending a number takes ``price``."""

    def __init__(self, *, price: float) -> None:
        self.now = self._free = 0.0
        self._price = price

    def compute(self, seconds: float, *_: object) -> None:
        self.now += seconds

    def send(self, numbers: int, *, at_once: bool) -> "Sent":
        self._free = max(self.now, self._free) + self._price * numbers
        sent = Sent(self, self._free)
        if at_once:
            sent.wait()
        return sent

    def gather(self, everyones: Tensor, mine: Tensor, **how: Any) -> "Sent":
        return self.send(everyones.numel() - mine.numel(), at_once=not how["async_op"])

    def scatter(self, mine: Tensor, everyones: Tensor, **how: Any) -> "Sent":
        return self.gather(everyones, mine, **how)

    def add_up(self, numbers: Tensor, **how: Any) -> "Sent":
        return self.send(numbers.numel(), at_once=not how["async_op"])


class Sent:
    """A collective with a simulated end time."""

    def __init__(self, link: SimulatedLink, end: float) -> None:
        self._link, self._end = link, end

    def wait(self) -> None:
        self._link.now = max(self._link.now, self._end)


def hidden(parts: Parts, layout: Layout) -> float:
    """Return the fraction of the exposed communication time that overlap hides."""
    alone = step_time(parts, layout, price=0.0)
    late = step_time(parts, layout._replace(overlaps=False), price=1.0)
    return 1 - (step_time(parts, layout, price=1.0) - alone) / (late - alone)


def step_time(parts: Parts, layout: Layout, *, price: float) -> float:
    """Return the time of the second step, from the first update to its backward pass."""
    sharded = ParallelModel(randomized(parts).float(), layout)
    (stage,) = sharded.stages
    numbers = sum(weight.numel() for weight in stage.parameters())
    link = SimulatedLink(price=price)
    # In a step each gradient and each weight is sent once.
    watch(stage, link, forward=numbers / 2, backward=numbers)
    with (
        patch.multiple(collectives, all_gather=link.gather, reduce_scatter=link.scatter),
        patch.object(dist, "all_reduce", link.add_up),
    ):
        sharded.backward(batch_of(0, 0, microbatches=1))
        began = link.now
        sharded.parallel.all_gather_updated()
        sharded.backward(batch_of(1, 0, microbatches=1))
    return link.now - began


def graphs_of_layers(parts: Parts, layout: Layout) -> int:
    """Count the graphs of compiled layers with weights gathered during the forward pass."""
    before = operators.count_graphs()
    train(parts, layout._replace(compile="layers", bucket_elements=1_000))
    return operators.count_graphs() - before


def watch(stage: Decoder, link: SimulatedLink, *, forward: float, backward: float) -> None:
    """Charge the clock for each part's forward pass and each weight's gradient."""
    layers: list[Any] = list(stage.layers.values())
    parts: list[nn.Module] = [part for layer in layers for part in (layer.attention, layer.mlp)]
    weights = list(stage.parameters())
    numbers = sum(weight.numel() for weight in weights)
    for part in parts:
        part.register_forward_pre_hook(partial(link.compute, forward / len(parts)))
    for weight in weights:
        weight.register_hook(partial(link.compute, backward * weight.numel() / numbers))


LEAST = 0.7
LAYERS = 8
FEW_ELEMENTS = 1_000
DENSE = Parts(num_layers=LAYERS)
EXPERTS = experts_spec(ffn_dim=8, path="loop")


@pytest.mark.quick("dense-2", "experts-1")
@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize("mlp", [DENSE.mlp, EXPERTS], ids=["dense", "experts"])
def test_compute_hides_most_of_the_communication(two_ranks, mlp, zero):
    sums: dict[str, Any] = {"accumulate": "float32", "reduce": "float32"}
    layout = Layout(shard=2, zero=zero, bucket_elements=FEW_ELEMENTS, **sums)
    for found in two_ranks(hidden, DENSE._replace(mlp=mlp), layout):
        assert found >= LEAST


@pytest.mark.long
def test_a_compiled_layer_waits_for_its_weights(two_ranks: Ranks) -> None:
    layout = Layout(shard=2, zero=1)
    assert two_ranks(graphs_of_layers, DENSE._replace(num_layers=2), layout) == [1, 1]

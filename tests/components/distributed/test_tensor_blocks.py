"""Passes of one tensor rank, with a fake second one: dispatched operators and kept tensors."""

import weakref
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from components.distributed import collectives
from components.distributed.activation_checkpoint import checkpoint_activations
from components.distributed.tensor import split_tensors
from components.dryrun.fake_world import fake_world
from components.model.decoder import Decoder
from tests.components.distributed.tensor_cases import RMS_NORM, Parts, batch, randomized

SHARED_GROUP = Parts(num_kv_heads=1, qk_norm=RMS_NORM)


@pytest.fixture(autouse=True)
def _fake_ranks() -> Iterator[None]:
    with fake_world(0, 2):
        yield


def rank_of_two(*, sequence_parallel: bool) -> Decoder:
    decoder, mesh = randomized(SHARED_GROUP), init_device_mesh("cpu", (2,))
    split_tensors(decoder, mesh, sequence_parallel=sequence_parallel)
    return decoder


class OfDTensors(TorchDispatchMode):
    """Collect the operators that DTensor dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if DTensor in types:
            self.names.add(str(func))
            return NotImplemented
        result: Any = func(*args, **(kwargs or {}))
        return result


def operators_of_dtensors(sequence_parallel: bool) -> set[str]:
    decoder = rank_of_two(sequence_parallel=sequence_parallel)
    tokens, targets, _ = batch()
    with OfDTensors() as seen:
        torch.autograd.backward(decoder.compute_loss(tokens, targets))
    names: set[str] = seen.names
    return names


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["whole", "sliced"])
def test_no_operator_of_a_pass_goes_through_dtensors_dispatch(sequence_parallel: bool) -> None:
    """The exception is ``detach``, with which autograd avoids the copy of a gradient."""
    assert operators_of_dtensors(sequence_parallel) == {"aten.detach.default"}


def gathered_at_once(recompute: Any) -> tuple[int, int, int]:
    """Count live gathered hidden states: peak of the forward pass, after it, peak backward."""
    alive: list[weakref.ref[Any]] = []
    counts: list[int] = []
    start = collectives.start_gather

    def watched(rows: Tensor, **named: Any) -> collectives.Started:
        result, work = start(rows, **named)
        if rows.dim() == 3 and rows.shape[-1] == 24:
            alive.append(weakref.ref(result.untyped_storage()))
            counts.append(sum(one() is not None for one in alive))
        return result, work

    decoder = rank_of_two(sequence_parallel=True)
    checkpoint_activations(decoder, recompute)
    tokens, targets, _ = batch()
    with patch.object(collectives, "start_gather", watched):
        loss = decoder.compute_loss(tokens, targets)
        forward, between = max(counts), sum(one() is not None for one in alive)
        counts.clear()
        torch.autograd.backward(loss)
    return forward, between, max(counts)


@pytest.mark.parametrize("recompute", ["none", "selective", "full", ["attention"]])
def test_gathered_inputs_are_freed_after_the_pass(recompute: Any) -> None:
    """The backward pass also gathers the inputs of recomputed layers and of one block."""
    forward, between, backward = gathered_at_once(recompute)
    assert forward == 1
    assert between == 0
    assert backward <= 3

"""Tensor ranks drop shared tensors alike and their own parts differently."""

from typing import NamedTuple

import torch

from components.attention_backends import BACKENDS
from components.distributed.tensor_styles import TensorParallelAttention, stream_seed
from components.model.attention import AttentionCore
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import (
    Parts,
    batch,
    randomized,
    split_copy,
    tensor_mesh,
)
from tests.components.model.mixers.builders import build_scope

LENGTH = 32


def dropped_weights(seed: int, layer: int, training: bool) -> list[bool]:
    """Return which of 32 x 32 equal weights are dropped; the values are the unit matrix."""
    inner = AttentionCore(dropout=0.5, backends=BACKENDS)
    core = TensorParallelAttention(inner, tensor_mesh(), layer=layer).train(training)
    scope = build_scope(length=LENGTH)
    zeros, unit = torch.zeros(1, 1, LENGTH, 4), torch.eye(LENGTH)[None, None]
    torch.manual_seed(seed)
    mixed = core(zeros, zeros, unit, scope, first_head=0)
    kept: list[bool] = (mixed == 0).tril().flatten().tolist()
    return kept


class Drawn(NamedTuple):
    """Dropped weights of one rank by seed and layer, and its other random numbers."""

    first: list[bool]
    again: list[bool]
    other_seed: list[bool]
    other_layer: list[bool]
    evaluated: list[bool]
    after: float
    without: float
    seeds: tuple[int, int]
    hidden: list[float]
    embedding: list[bool]


def draw() -> Drawn:
    given = [(5, 0, False), (5, 1, True), (6, 0, True), (5, 0, True), (5, 0, True)]
    evaluated, layer, seed, again, first = [dropped_weights(*one) for one in given]
    after = torch.rand(()).item()
    torch.manual_seed(5)
    without = torch.rand(()).item()
    whole, sliced = (
        stream_seed(3, tensor_mesh(), sequence_parallel=one) for one in (False, True)
    )
    zeros = [number == 0 for number in outputs(layers=0)]
    attention = first, again, seed, layer, evaluated
    return Drawn(*attention, after, without, (whole, sliced), outputs(layers=2), zeros)


def outputs(layers: int) -> list[float]:
    """Return outputs of layers in training, or of the sliced embedding alone."""
    sliced = layers == 0
    whole = randomized(Parts(dropout=0.5, attention_dropout=0.5)).train()
    whole.final_norm = whole.head = None
    for index in list(whole.layers)[layers:]:
        del whole.layers[index]
    split = split_copy(whole, sequence_parallel=sliced)
    torch.manual_seed(stream_seed(3, tensor_mesh(), sequence_parallel=sliced))
    numbers: list[float] = split(batch()[0]).flatten().tolist()
    return numbers


def test_ranks_drop_shared_tensors_alike_and_their_own_differently(two_ranks: Ranks) -> None:
    one, two = two_ranks(draw)
    assert one.first != two.first
    assert one.embedding != two.embedding
    assert one.hidden == two.hidden
    assert 0.3 < sum(one.embedding) / len(one.embedding) < 0.7
    for rank in (one, two):
        assert rank.again == rank.first
        assert rank.other_seed != rank.first != rank.other_layer
        assert 0.4 < sum(rank.first) / (LENGTH * (LENGTH + 1) / 2) < 0.6
        assert not any(rank.evaluated)
        # Dropout of attention does not advance the shared random stream.
        assert rank.after == rank.without
        assert rank.seeds[0] == 3
    # A rank changes the seed only where hidden states are sliced.
    assert len({3, one.seeds[1], two.seeds[1]}) == 3

"""What each tensor rank drops."""

import torch

from components.attention_backends import BACKENDS
from components.distributed.tensor_styles import TensorParallelAttention, stream_seed
from components.model.attention import AttentionContext, AttentionCore
from components.model.positions import PositionEncoding
from tests.components.distributed.tensor_cases import (
    Parts,
    batch,
    randomized,
    split_copy,
    tensor_mesh,
)

LENGTH = 32


def dropped_weights(seed: int, layer: int, training: bool) -> list[bool]:
    """List which of 32 x 32 equal weights are dropped: the values are the unit matrix."""
    inner = AttentionCore(dropout=0.5, backends=BACKENDS)
    core = TensorParallelAttention(inner, tensor_mesh(), layer=layer).train(training)
    scope = AttentionContext(
        encoding=PositionEncoding(position_ids=torch.arange(LENGTH)), documents=None
    )
    zeros, unit = torch.zeros(1, 1, LENGTH, 4), torch.eye(LENGTH)[None, None]
    torch.manual_seed(seed)
    mixed = core(zeros, zeros, unit, scope, first_head=0)
    kept: list[bool] = (mixed == 0).tril().flatten().tolist()
    return kept


def next_number_after_dropping() -> tuple[float, float]:
    """Draw a number after a pass that drops, and one after none."""
    dropped_weights(5, 0, True)
    after = torch.rand(()).item()
    torch.manual_seed(5)
    return after, torch.rand(()).item()


def hidden_states(sequence_parallel: bool) -> list[float]:
    """Run the layers in training, without the last norm and head, and list what comes out."""
    whole = randomized(Parts(dropout=0.5, attention_dropout=0.5)).train()
    whole.final_norm = whole.head = None
    split = split_copy(whole, sequence_parallel=sequence_parallel)
    torch.manual_seed(stream_seed(3, tensor_mesh(), sequence_parallel=sequence_parallel))
    hidden: list[float] = split(batch()[0]).flatten().tolist()
    return hidden


def embedding_zeros() -> list[bool]:
    """List what dropout takes from slices of the embedding, before any layer."""
    whole = randomized(Parts(dropout=0.5, num_layers=1)).train()
    whole.final_norm = whole.head = None
    del whole.layers["0"]
    split = split_copy(whole, sequence_parallel=True)
    torch.manual_seed(stream_seed(3, tensor_mesh(), sequence_parallel=True))
    zeros: list[bool] = (split(batch()[0]) == 0).flatten().tolist()
    return zeros


def seeds() -> tuple[int, int]:
    """Return what 3 becomes with whole and with sliced hidden states."""
    mesh = tensor_mesh()
    whole = stream_seed(3, mesh, sequence_parallel=False)
    return whole, stream_seed(3, mesh, sequence_parallel=True)

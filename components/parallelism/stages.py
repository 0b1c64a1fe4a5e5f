"""The pipeline axis: which parts of a decoder a stage keeps, and what two stages share."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from components.model.decoder import Decoder
from components.parallelism.mesh import Mesh
from components.parallelism.shards import WeightShard

TIED = "embedding.weight"


def cut_stage(decoder: Decoder, layers: Sequence[int], *, first: bool, last: bool) -> bool:
    """Leave only one stage's parts; say whether its embedding has a twin on another stage.

    The first stage embeds, the last one normalizes, maps to logits and takes the loss. Where
    the head is the embedding's weight, both ends keep it. Names stay those of the whole.
    """
    tied = decoder.head is None and not (first and last)
    for name in [name for name in decoder.layers if int(name) not in layers]:
        del decoder.layers[name]
    if not first:
        decoder.embedding_norm = None
        if decoder.positions is not None and list(decoder.positions.parameters()):
            decoder.positions = None
        if not (last and tied):
            decoder.embedding = None
    if not last:
        decoder.final_norm = decoder.head = None
    return tied and (first or last)


def sum_tied_gradients(shards: Sequence[WeightShard], mesh: Mesh) -> None:
    """Add up what both ends of the pipeline found for the weight that they share.

    Each end sends its rows to the other: two numbers added are the same in either order, so
    both ends go on with equal bits.
    """
    for shard in shards:
        if shard.tied:
            mine = shard.parameter.grad
            assert mine is not None
            group = mesh.axis("pipeline").get_group()
            opposite = mesh.degrees.pipeline - 1 - mesh.place("pipeline")
            other = dist.get_global_rank(group, opposite)
            shard.parameter.grad = mine + _exchanged(mine.contiguous(), other, group)


def _exchanged(mine: Tensor, other: int, group: dist.ProcessGroup) -> Tensor:
    theirs = torch.empty_like(mine)
    operations = [
        dist.P2POp(dist.isend, mine, other, group=group),
        dist.P2POp(dist.irecv, theirs, other, group=group),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return theirs

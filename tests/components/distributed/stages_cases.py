"""Both ends of a pipeline, which share a weight and must go on with the same."""

import torch
from torch import Tensor

from tests.components.distributed.layout_cases import Layout, ParallelModel, Whole, batch_of
from tests.components.distributed.tensor_cases import Parts, randomized
from tests.components.model.comparison import gradient_of


def sum_ends(parts: Parts, layout: Layout) -> tuple[dict[str, Tensor], Tensor]:
    """Return this rank's rows of tied gradients, and the whole embedding's gradient."""
    model = randomized(parts)
    whole, sharded = Whole(model), ParallelModel(model, layout)
    batches = [batch_of(0, rank, microbatches=4) for rank in range(layout.data)]
    whole.backward(batches)
    sharded.backward(batches[sharded.mesh.data_rank])
    tied = {s.name: gradient_of(s.parameter).clone() for s in sharded.shards if s.tied}
    return tied, whole.gradients()["embedding.weight"]


def step_ends(parts: Parts, layout: Layout) -> list[Tensor]:
    """Return this rank's tied weight after two steps."""
    sharded = ParallelModel(randomized(parts), layout)
    optimizer = torch.optim.AdamW([shard.parameter for shard in sharded.shards], lr=0.01)
    for step in range(2):
        sharded.backward(batch_of(step, sharded.mesh.data_rank))
        optimizer.step()
        sharded.parallel.all_gather_updated()
    return [weight for name, weight in sharded.weights().items() if name == "embedding.weight"]

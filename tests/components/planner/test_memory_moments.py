"""The peak is the memory of one moment: loss, recomputation, or the sum of shared gradients."""

import pytest

from components.planner.memory import _activations, _loss, plan_memory, rank_memory
from tests.components.planner.jobs import gpt, hopper, job, layout, ours

SMALL = gpt(dim=2_048, num_layers=16, num_heads=16)
MIDDLE = gpt(dim=4_096, num_layers=32, num_heads=32)


@pytest.mark.parametrize(("rows", "is_loss"), [(1_024, False), (100_000, True)])
def test_the_loss_and_a_recomputed_layer_never_exist_at_once(rows: int, is_loss: bool) -> None:
    shape, software = MIDDLE.model_copy(update={"padded_vocab_size": rows}), ours().memory
    recomputing = job(shape, layout(recompute="full"))
    stored, recomputed = _activations(recomputing, 0, software)
    loss = _loss(recomputing, software)
    assert is_loss == (loss > recomputed)
    rank = rank_memory(recomputing, 0, software)
    assert rank.loss == is_loss * loss
    kept = stored + (0 if is_loss else recomputed)
    assert rank.activations == pytest.approx(kept * software.fragmentation)


def test_both_ends_of_a_pipeline_sum_the_gradients_of_a_shared_embedding() -> None:
    """Each receives the other's float32 gradient and creates the sum."""
    where, sums = layout(pipeline=4), {"gradient_bytes": 0, "shard_gradient_bytes": 4}
    shared, own = (
        plan_memory(
            job(SMALL.model_copy(update={"tied_embeddings": is_tied}), where, **sums),
            hopper(),
            ours().memory,
        )
        for is_tied in (True, False)
    )
    steps = [
        rank.update.step - other.update.step
        for rank, other in zip(shared.ranks, own.ranks, strict=True)
    ]
    embedding = 4 * SMALL.padded_vocab_size * SMALL.dim
    assert steps == pytest.approx([2 * embedding, 0, 0, 2 * embedding])

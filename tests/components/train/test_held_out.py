"""Which held-out batches a rank takes."""

import torch

from components.train.callbacks.held_out import _turns


def test_every_turn_has_one_shape_on_all_ranks_and_every_batch_counts_once() -> None:
    shapes = [(2, 5)] * 3 + [(1, 5)] + [(2, 4)] * 2
    batches = [torch.full(shape, index) for index, shape in enumerate(shapes)]
    taken = [list(_turns(iter(batches), rank, 2)) for rank in range(2)]
    counted = []
    for (one, first), (other, second) in zip(*taken, strict=True):
        assert one.shape == other.shape
        pairs = ((one, first), (other, second))
        counted += [int(batch[0, 0]) for batch, counts in pairs if counts]
    assert counted == list(range(6))

"""Which held-out batches a rank takes, and what their losses add up to."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.dryrun.fake_world import fake_world
from components.train.module import Pretraining
from components.train.validation_batches import ValidationBatches, take_turns


def test_all_ranks_evaluate_equal_shapes_and_each_batch_once() -> None:
    shapes = [(2, 5)] * 3 + [(1, 5)] + [(2, 4)] * 2
    batches = [torch.full(shape, index) for index, shape in enumerate(shapes)]
    taken = [list(take_turns(iter(batches), rank, 2)) for rank in range(2)]
    counted = []
    for (one, first), (other, second) in zip(*taken, strict=True):
        assert one.shape == other.shape
        pairs = ((one, first), (other, second))
        counted += [int(batch[0, 0]) for batch, counts in pairs if counts]
    assert counted == list(range(6))


def test_the_loss_of_a_source_is_the_mean_over_its_tokens(monkeypatch):
    windows = [*map(torch.tensor, ([0, 1, 2, 3, 4], [0, 9, 9, 9, 9], [7, 6]))]
    predicted = torch.cat([window[1:] for window in windows]).double()
    words = ["recipe=teuken7b", "parallelism.microbatch_sequences=2"]
    recipe = compose_recipe(read_point(words))
    data: Any = SimpleNamespace(
        source_names=("any",), batches=SimpleNamespace(shares_after=lambda step: {"any": 1.0})
    )
    held_out: Any = SimpleNamespace(iter_windows=lambda source: iter(windows))
    mesh: Any = SimpleNamespace(data_rank=0, data_ranks=1)
    module = Pretraining(recipe=recipe, eod_id=0)
    engine: Any = SimpleNamespace(evaluate_rows=lambda rows: rows[:, 1:].double().mean())
    module.engine = engine
    logged: dict[str, float] = {}
    monkeypatch.setattr(Pretraining, "data_module", data)
    monkeypatch.setattr(module, "log_dict", logged.update)
    with fake_world(0, 1):
        module.on_validation_epoch_start()
        batches = ValidationBatches(held_out, "any", recipe=recipe, mesh=mesh)
        for index, batch in enumerate(batches):
            module.validation_step(batch, index, 0)
        module.on_validation_epoch_end()
    assert module.held_out == {"any": pytest.approx(predicted.mean().item())}
    assert logged["held_out"] == module.held_out["any"]

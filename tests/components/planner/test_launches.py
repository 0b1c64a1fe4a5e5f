"""Operators that the host launches: counts of the plan against dry runs, and their seconds."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.model_spec.positions import PositionsSpec
from components.dryrun import rehearsal, trackers
from components.planner.job import job_from_recipe
from components.planner.passes import (
    TENSOR_CALLS,
    count_launches,
    count_update_launches,
    host_seconds,
)
from components.planner.time import plan_time
from tests.components.planner.jobs import gpt, hopper, job, layout, ours, with_values
from tests.components.planner.test_experts import VIEWS

SPEED = ours().speed
MICROBATCHES = 4
# Operators of torch's own bookkeeping: they launch nothing on a device.
HOST_ONLY = VIEWS | {"device", "promote_types", "split", "_local_scalar_dense"}
WORDS = (
    *("scale=parity", "cluster.device=cuda", "parallelism.data=1", "parallelism.pipeline=1"),
    *("budget.global_batch_tokens=4096", "budget.total_tokens=40960"),
    *("budget.sequence_length=256", "parallelism.microbatch_sequences=4"),
    *("precision.compute=bfloat16", "precision.loss_scale=none"),
)
ALONE = ("cluster.ranks=1", "parallelism.tensor=1")


class Launches(trackers.FlopLedger):
    """FLOP ledger that also counts the launched operators."""

    latest: "Launches"

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0
        Launches.latest = self

    def call_operator(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = func.overloadpacket.__name__
        self.operators += name not in HOST_ONLY and "profiler" not in str(func)
        return super().call_operator(func, args, kwargs)


def planned_and_counted(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[float, float]:
    """Return the launches of one layer in a step."""
    monkeypatch.setattr(trackers, "FlopLedger", Launches)
    monkeypatch.setattr(rehearsal, "microbatches_to_rehearse", lambda _: MICROBATCHES)
    counted, planned = [], None
    for layers in (2, 4):
        point = [*words, *WORDS, f"model.num_layers={layers}"]
        recipe = compose_recipe(read_point(point))
        planned = job_from_recipe(recipe)
        assert rehearsal.run_two_steps(recipe, 0).microbatches == MICROBATCHES
        counted.append(Launches.latest.operators)
    assert planned is not None
    update = count_update_launches(planned, 0) / 4
    return MICROBATCHES * count_launches(planned) + update, (counted[1] - counted[0]) / 2


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["teuken7b", "bloom560m", "olmo2_1b"])
def test_the_launches_of_a_layer_are_those_of_a_dry_run(recipe, monkeypatch):
    planned, counted = planned_and_counted(monkeypatch, f"recipe={recipe}", *ALONE)
    assert planned == pytest.approx(counted, rel=0.1)


def test_compiled_layers_and_plain_blocks_launch_less() -> None:
    plain = job(gpt(dim=2_048, num_layers=16, num_heads=16), layout())
    rotary = PositionsSpec(base=10_000.0)
    wider = job(with_values(plain.shape, mlp={"gated": True}, positions=rotary), layout())
    assert count_launches(plain) < count_launches(wider)
    assert count_launches(wider.with_layout(compile="layers")) < count_launches(wider)


def test_a_step_takes_at_least_its_launches() -> None:
    """A small model: 16 layers, one microbatch of 64 tokens."""
    small = job(
        gpt(dim=64, num_layers=16, num_heads=4), layout(num_layers=16), sequence_length=64
    )
    launches = 16 * count_launches(small) * small.microbatches
    launches += count_update_launches(small, 0)
    seconds = plan_time(small, hopper(), SPEED).total_seconds
    assert seconds > launches * SPEED.launch_seconds
    assert seconds < 1.7 * launches * SPEED.launch_seconds
    tensor = small.with_layout(tensor=2)
    calls = host_seconds(tensor, hopper(), SPEED) - host_seconds(small, hopper(), SPEED)
    assert calls == pytest.approx(TENSOR_CALLS * SPEED.call_seconds)

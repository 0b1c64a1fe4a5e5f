"""Layouts of all recipes: the published ones keep the rules, miniatures are dealt by them."""

from itertools import product

import pytest

from components.config.batch_ramp import fits_schedule
from components.config.rules.check import warnings_of
from tests.recipes.compositions import RECIPES, at_home, compose

AXES = ("data", "tensor", "pipeline", "expert", "context")
KEPT = (
    "zero", "sequence_parallel", "schedule", "stages_per_rank", "stage_balance", "rank_order",
)  # fmt: skip


# Axes of all kinds: tensor and pipeline, experts, context, data alone.
KINDS = ("teuken7b", "mula220b_a10b", "apertus_70b_64k", "dsv3_1t", "olmo3_7b")
DEALT = [*((name, 8) for name in RECIPES), *product(KINDS, (1, 2, 4))]
# None of the seven measured layouts of this size has its tensor groups inside nodes.
ACROSS_NODES = {"playbook469b"}


@pytest.mark.parametrize("name", RECIPES)
def test_the_published_layout_keeps_rules_and_tensor_groups_inside_nodes(name: str) -> None:
    recipe = at_home(name)
    assert recipe.cluster.ranks == recipe.cluster.nodes * recipe.cluster.devices_per_node
    told = ["span several nodes" in warning for warning in warnings_of(recipe)]
    assert told == [True] * (name in ACROSS_NODES)


@pytest.mark.parametrize(("name", "ranks"), DEALT)
def test_a_miniature_takes_its_ranks_and_keeps_the_schedule_busy(name: str, ranks: int) -> None:
    recipe, full = compose(name, f"cluster.ranks={ranks}"), compose(name, "scale=full")
    degrees = recipe.parallelism
    assert recipe.cluster.ranks == ranks
    for axis in ("tensor", "pipeline", "expert", "context"):
        assert getattr(degrees, axis) <= getattr(full.parallelism, axis)
    for key in KEPT:
        assert getattr(degrees, key) == getattr(full.parallelism, key)
    for plateau in recipe.batch_ramp.batch_stages:
        group = degrees.data * degrees.expert * degrees.microbatch_sequences
        assert plateau.samples % group == 0
        assert fits_schedule(
            plateau.samples // group, pipeline=degrees.pipeline, schedule=degrees.schedule
        )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("teuken7b", (2, 2, 2, 1, 1)),
        ("bloom176b", (2, 2, 2, 1, 1)),
        ("gpt175b", (2, 2, 2, 1, 1)),
        ("playbook80b", (2, 2, 2, 1, 1)),
        ("mula220b_a10b", (2, 1, 2, 2, 1)),
        ("mula1b", (8, 1, 1, 1, 1)),
    ],
)
def test_eight_ranks_go_to_the_axes_in_use(name: str, expected: tuple[int, ...]) -> None:
    degrees = compose(name, "cluster.ranks=8").parallelism
    assert tuple(getattr(degrees, axis) for axis in AXES) == expected


def test_stages_and_rank_orders_equal_the_published() -> None:
    # train/tr11-176B-ml/README.md: 5 blocks and an end, ten times 6, 5 blocks and an end
    assert compose("bloom176b", "scale=full").derived_numbers.layers_by_stage == (
        5,
        *[6] * 10,
        5,
    )
    assert compose("gpt175b", "scale=full").derived_numbers.layers_by_stage == (6,) * 16
    # Optimus' mapper.py: data slowest, then pipeline, experts fastest, a node of 12 tiles
    for name in ("mula1b", "mula7b_a1b", "mula20b_a2b", "mula100b_a7b", "mula220b_a10b"):
        order = compose(name, "scale=full").parallelism.rank_order
        assert order == ("data", "pipeline", "expert", "context", "tensor")
    # Megatron's and DeepSpeed's: pipeline slowest, tensor fastest
    for name in ("teuken7b", "bloom176b", "gpt175b"):
        order = compose(name, "scale=full").parallelism.rank_order
        assert order == ("pipeline", "data", "expert", "context", "tensor")

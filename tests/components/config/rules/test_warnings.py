"""Warnings: what is legal and known to be slow, against an enumeration of all groups."""

import itertools
import json

import pytest

from command.main import main
from components.config.recipe import Recipe
from components.config.rules.check import warnings_of
from components.config.schema.sections import Axis
from tests.recipes.compositions import compose as compose_named

AXES: tuple[Axis, ...] = ("data", "expert", "context", "tensor", "pipeline")


def compose(*words: str) -> Recipe:
    return compose_named("teuken7b", "cluster=juwels", *words)


def groups_over_nodes(recipe: Recipe) -> int:
    """Number the ranks in the order of the axes, slowest first, and look at every group."""
    degrees = recipe.parallelism
    sizes = [range(getattr(degrees, axis)) for axis in degrees.rank_order]
    nodes: dict[tuple[int, ...], set[int]] = {}
    for rank, place in enumerate(itertools.product(*sizes)):
        at = dict(zip(degrees.rank_order, place, strict=True))
        group = tuple(at[axis] for axis in AXES if axis != "tensor")
        nodes.setdefault(group, set()).add(rank // recipe.cluster.devices_per_node)
    return sum(len(seen) > 1 for seen in nodes.values())


def test_a_tensor_group_inside_a_node_has_no_warning() -> None:
    assert warnings_of(compose()) == ()
    assert warnings_of(compose("parallelism.tensor=4", "parallelism.data=64")) == ()


def test_tensor_groups_over_nodes_are_named_with_the_published_cost() -> None:
    (line,) = warnings_of(compose("parallelism.tensor=8", "parallelism.data=32"))
    assert line.startswith(
        "parallelism.tensor: 64 of 64 groups of 8 tensor ranks span several nodes"
    )
    assert "43 %" in line
    assert "\n" not in line


@pytest.mark.parametrize("order", ["tensor,data,pipeline", "pipeline,tensor,data"])
@pytest.mark.parametrize("devices", [4, 6, 8])
@pytest.mark.parametrize("tensor", [2, 4])
def test_group_counts_equal_an_enumeration(order, devices, tensor):
    recipe = compose(
        f"parallelism.rank_order=[expert,{order},context]",
        f"parallelism.tensor={tensor}",
        "parallelism.pipeline=3",
        "parallelism.data=8",
        f"cluster.devices_per_node={devices}",
    )
    crossing = groups_over_nodes(recipe)
    said = [int(line.split()[1].replace(",", "")) for line in warnings_of(recipe)]
    assert said == ([crossing] if crossing else [])


def test_the_fastest_axis_has_neighbouring_ranks() -> None:
    recipe = compose("parallelism.rank_order=[tensor,data,expert,context,pipeline]")
    axes: tuple[Axis, ...] = ("pipeline", "data", "tensor")
    assert [recipe.rank_groups.compute_stride(axis) for axis in axes] == [1, 2, 256]


def test_show_prints_warnings_on_standard_error_alone(capfd) -> None:
    words = ["recipe=teuken7b", "cluster=juwels", "action=show", "output=json"]
    assert main([*words, "parallelism.tensor=8"]) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out)["recipe"]["parallelism"]["tensor"] == 8
    (line,) = printed.err.splitlines()
    assert line.startswith("warning: parallelism.tensor: ")

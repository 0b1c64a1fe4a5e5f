"""Profiles state their physical side, and a wrong figure is refused with its path."""

from pathlib import Path

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.schema.cluster import Hardware
from components.errors import RecipeError

ROOT = Path(__file__).resolve().parents[3]
CLUSTERS = sorted(path.stem for path in (ROOT / "conf" / "cluster").glob("*.yaml"))
BATCH = [name for name in CLUSTERS if name != "local"]


@pytest.mark.parametrize("name", BATCH)
def test_a_batch_cluster_states_its_devices_and_what_no_tensor_gets(name: str) -> None:
    words = ["recipe=mula1b", f"cluster={name}", "cluster.ranks=48"]
    hardware = compose_recipe(read_point(words)).cluster.hardware
    assert isinstance(hardware, Hardware)
    assert hardware.usable_bytes is None or hardware.usable_bytes < hardware.memory_bytes
    for dtype, reached in hardware.gemm_teraflops.items():
        assert reached < hardware.peak_teraflops[dtype]


@pytest.mark.parametrize("name", BATCH)
def test_measured_bandwidths_rise_in_nodes_and_fall_in_speed(name: str) -> None:
    words = ["recipe=mula1b", f"cluster={name}", "cluster.ranks=48"]
    hardware = compose_recipe(read_point(words)).cluster.hardware
    assert isinstance(hardware, Hardware)
    measured = hardware.across.by_nodes
    assert sorted(measured) == list(measured)
    assert [rate for _, rate in measured] == sorted((r for _, r in measured), reverse=True)


def test_nobody_has_measured_the_user_s_own_machine() -> None:
    assert compose_recipe(read_point(["recipe=bloom560m"])).cluster.hardware == "none"


def test_an_impossible_figure_names_its_path() -> None:
    words = ["recipe=bloom560m", "cluster=juwels", "cluster.hardware.power_watts=-5.0"]
    with pytest.raises(RecipeError, match=r"power_watts: input should be greater than 0"):
        compose_recipe(read_point(words))


def test_zero_nodes_are_refused() -> None:
    words = ["recipe=bloom560m", "cluster=juwels", "cluster.nodes=0"]
    with pytest.raises(RecipeError, match=r"cluster\.nodes: input should be greater than 0"):
        compose_recipe(read_point(words))


@pytest.mark.parametrize("rates", ["gemm_teraflops", "peak_teraflops"])
def test_a_rate_may_be_set_where_a_profile_has_none(rates: str) -> None:
    key = f"cluster.hardware.{rates}.float32"
    recipe = compose_recipe(read_point(["recipe=viking_7b", "cluster=lumi", f"{key}=40.0"]))
    assert isinstance(recipe.cluster.hardware, Hardware)
    assert getattr(recipe.cluster.hardware, rates)["float32"] == 40.0


def test_a_misspelled_precision_is_refused_with_the_known_ones() -> None:
    words = ["recipe=viking_7b", "cluster=lumi", "cluster.hardware.gemm_teraflops.bf16=147.0"]
    with pytest.raises(RecipeError) as refusal:
        compose_recipe(read_point(words))
    assert refusal.value.path.startswith("cluster.hardware.gemm_teraflops.bf16")
    assert "bfloat16" in f"{refusal.value}"


@pytest.mark.parametrize(
    ("name", "nodes", "throughput"),
    [("jean_zay", 4, 42.1), ("jean_zay_v100", 4, 90.4), ("jean_zay_v100", 16, 55.1)],
)
def test_a_rate_that_counts_both_directions_is_halved_for_the_bus_bandwidth(
    name: str, nodes: int, throughput: float
) -> None:
    """The script of bigscience (experiments/bandwidth) prints 2 x size / seconds, in Gbit/s."""
    cluster = compose_recipe(read_point(["recipe=bloom560m", f"cluster={name}"])).cluster
    assert not isinstance(cluster.hardware, str)
    ranks = nodes * cluster.devices_per_node
    bus_bandwidth = throughput / 2 / 8 * 2 * (ranks - 1) / ranks
    by_nodes = dict(cluster.hardware.across.by_nodes)
    assert by_nodes[nodes] == pytest.approx(bus_bandwidth, abs=0.05)

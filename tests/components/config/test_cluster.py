"""Profiles of clusters: physical side and site; a wrong figure is refused with its path."""

import pytest

from components.config.schema.cluster import Hardware, Site
from components.config.schema.sections import Cluster
from components.errors import RecipeError
from tests.cluster.jobs import ROOT
from tests.components.config.helpers import refusals, split_words
from tests.recipes.compositions import compose

PROFILES = {path.stem: path for path in sorted((ROOT / "conf" / "cluster").glob("*.yaml"))}
BATCH = [
    name for name, path in PROFILES.items() if "\nscheduler: none\n" not in path.read_text()
]


def cluster_of(name: str) -> Cluster:
    return compose("mula1b", f"cluster={name}", "cluster.ranks=48").cluster


@pytest.mark.parametrize("name", BATCH)
def test_figures_of_a_batch_cluster_agree(name: str) -> None:
    hardware = cluster_of(name).hardware
    assert isinstance(hardware, Hardware)
    assert hardware.usable_bytes is None or hardware.usable_bytes < hardware.memory_bytes
    for dtype, reached in hardware.gemm_teraflops.items():
        assert reached < hardware.peak_teraflops[dtype]
    measured = hardware.across.by_nodes  # more nodes, and never faster
    assert sorted(measured) == list(measured)
    assert [rate for _, rate in measured] == sorted((r for _, r in measured), reverse=True)


@pytest.mark.parametrize("name", BATCH)
def test_a_batch_cluster_describes_its_site_with_sources_and_reasons(name: str) -> None:
    cluster = cluster_of(name)
    assert isinstance(cluster.site, Site)
    assert (cluster.scheduler == "pbs") == (cluster.site.queue_option == "-q")
    assert all(variable.reason for variable in cluster.site.environment.values())
    assert cluster.queues or (cluster.site.queue and cluster.hours != "auto")
    cores = cluster.site.binding.cores or ""
    if cores.startswith("list:"):
        assert len(cores.split(":")) - 1 == cluster.devices_per_node
    text = PROFILES[name].read_text("utf-8")
    site = text[text.index("\nsite:\n") :].splitlines()
    assert site[2].lstrip().startswith("# ")
    assert "http" in text or "github.com" in text


def test_the_local_machine_has_no_measurements_and_no_site() -> None:
    cluster = compose("bloom560m").cluster
    assert cluster.hardware == cluster.site == "none"
    assert (cluster.hours, cluster.jobs, cluster.smoke) == ("auto", "auto", False)


@pytest.mark.parametrize(
    ("words", "message"),
    refusals(r"""
cluster.hardware.power_watts=-5.0 -> power_watts: input should be greater than 0
cluster.hardware.gemm_teraflops.bf16=147.0 -> ^cluster\.hardware\.gemm_teraflops\.bf16.*bfloat16
cluster.nodes=0 -> cluster\.nodes: input should be greater than 0
cluster.site.modles=[a] -> cluster\.site\.modles: unknown key -> did you mean modules
cluster.site.spare_seconds=0 -> spare_seconds: input should be greater than 0
cluster.site.environment.A={value: '1'} -> environment\.A\.reason: missing
cluster.site.queue_option=--queue -> queue_option: input should be '--partition'
cluster.hours=0 -> cluster\.hours
cluster.jobs=0 -> cluster\.jobs
cluster.smoke=1 -> cluster\.smoke: input should be a valid boolean
"""),
)
def test_a_wrong_word_is_refused_with_its_path(words: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        compose("mula1b", "cluster=juwels", *split_words(words))


@pytest.mark.parametrize("rates", ["gemm_teraflops", "peak_teraflops"])
def test_a_rate_may_be_set_where_a_profile_has_none(rates: str) -> None:
    word = f"cluster.hardware.{rates}.float32=40.0"
    hardware = compose("viking_7b", "cluster=lumi", word).cluster.hardware
    assert getattr(hardware, rates)["float32"] == 40.0


@pytest.mark.parametrize(
    ("name", "nodes", "throughput"),
    [("jean_zay", 4, 42.1), ("jean_zay_v100", 4, 90.4), ("jean_zay_v100", 16, 55.1)],
)
def test_a_rate_that_counts_both_directions_is_halved_for_the_bus_bandwidth(
    name: str, nodes: int, throughput: float
) -> None:
    """The script of bigscience (experiments/bandwidth) prints 2 x size / seconds, in Gbit/s."""
    cluster = compose("bloom560m", f"cluster={name}").cluster
    assert not isinstance(cluster.hardware, str)
    ranks = nodes * cluster.devices_per_node
    bus_bandwidth = throughput / 2 / 8 * 2 * (ranks - 1) / ranks
    by_nodes = dict(cluster.hardware.across.by_nodes)
    assert by_nodes[nodes] == pytest.approx(bus_bandwidth, abs=0.05)

"""A node without its devices, or with too little free memory, is bad."""

import pytest
import torch

from components.config.schema.cluster import Preflight
from components.distributed.devices import free_bytes
from components.preflight.devices import (
    check_count,
    check_memory,
    devices_here,
    slowest_teraflops,
)
from tests.components.preflight.conftest import Compose

CPU = torch.device("cpu")
JUWELS = ("cluster=juwels", "scale=mini", "cluster.nodes=1", "cluster.devices_per_node=1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_a_device_of_the_profile_that_torch_does_not_see_is_missed(compose: Compose) -> None:
    cluster = compose(*JUWELS).cluster
    found = check_count(cluster)
    assert (found.verdict, found.rule) == ("bad", "cluster.device")
    assert "sees no such device" in found.found
    assert found.expected == "1 cuda"
    assert devices_here(cluster) == []


@pytest.mark.skipif(  # what auto falls back from must not be there
    torch.cuda.is_available() or torch.xpu.is_available(), reason="this machine has a GPU"
)
def test_a_node_on_which_auto_finds_only_a_cpu_is_bad_where_the_profile_has_gpus(
    compose: Compose,
) -> None:
    cluster = compose(*JUWELS, "cluster.device=auto").cluster
    found = check_count(cluster)
    assert (found.verdict, found.rule, found.expected) == ("bad", "cluster.device", "1 GPUs")
    assert "sees no GPU here, and the profile's hardware is NVIDIA A100-40GB" in found.found
    assert devices_here(cluster) == []


def test_a_cpu_is_one_device_whatever_its_ranks(compose: Compose) -> None:
    cluster = compose("cluster.ranks=2").cluster
    assert check_count(cluster).verdict == "ok"
    assert devices_here(cluster) == [CPU]


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.001, "ok"), (1_000.0, "bad")], ids=["little", "all of a thousand"]
)
def test_free_memory_is_compared_with_the_profiles(
    compose: Compose, rules: Preflight, share: float, verdict: str
) -> None:
    num_bytes = round(share * free_bytes(CPU)[1])
    words = (*JUWELS, "cluster.device=cpu", f"cluster.hardware.memory_bytes={num_bytes}")
    assert check_memory(compose(*words).cluster, rules, [CPU]).verdict == verdict


def test_a_device_that_does_not_answer_is_named_and_ends_no_check(
    compose: Compose, rules: Preflight
) -> None:
    """Torch knows of ``meta`` that it is a device, and of nothing to ask it."""
    found = check_memory(compose(*JUWELS).cluster, rules, [CPU, torch.device("meta", 0)])
    assert (found.verdict, found.expected) == ("bad", "an answer of each device")
    assert found.found.startswith("meta:0: ")
    assert "\n" not in found.found


def test_without_a_profile_a_cpus_memory_is_not_judged(
    compose: Compose, rules: Preflight
) -> None:
    found = check_memory(compose().cluster, rules, [CPU])
    assert (found.verdict, found.expected) == ("unknown", "no figure")


def test_free_memory_is_less_than_all_and_more_than_none() -> None:
    free, total = free_bytes(CPU)
    assert 0 < free < total


def test_a_product_is_measured() -> None:
    assert slowest_teraflops([CPU], torch.float32) > 1e-4

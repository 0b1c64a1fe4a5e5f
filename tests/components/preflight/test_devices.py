"""Devices of a node, their free memory and their rates; who meets whom over which link."""

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from itertools import chain
from multiprocessing import get_context

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

from components.config.schema.cluster import Preflight
from components.distributed.devices import free_bytes
from components.preflight import devices
from components.preflight.verdict import Rates
from components.profiling.rates import bus_bandwidth
from tests.components.preflight.conftest import compose

CPU = torch.device("cpu")
JUWELS = ("cluster=juwels", "scale=mini", "cluster.nodes=1", "cluster.devices_per_node=1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_a_device_that_torch_does_not_see_is_bad() -> None:
    cluster = compose(*JUWELS).cluster
    found = devices.check_count(cluster)
    assert (found.verdict, found.rule) == ("bad", "cluster.device")
    assert "sees no such device" in found.found
    assert found.expected == "1 cuda"
    assert devices.devices_here(cluster) == []


@pytest.mark.skipif(  # what auto falls back from must not be there
    torch.cuda.is_available() or torch.xpu.is_available(), reason="this machine has a GPU"
)
def test_auto_on_a_cpu_node_is_bad_for_a_gpu_profile() -> None:
    cluster = compose(*JUWELS, "cluster.device=auto").cluster
    found = devices.check_count(cluster)
    assert (found.verdict, found.rule, found.expected) == ("bad", "cluster.device", "1 GPUs")
    assert "sees no GPU here, and the profile's hardware is NVIDIA A100-40GB" in found.found
    assert devices.devices_here(cluster) == []


def test_a_cpu_is_one_device_for_any_number_of_ranks() -> None:
    cluster = compose("cluster.ranks=2").cluster
    assert devices.check_count(cluster).verdict == "ok"
    assert devices.devices_here(cluster) == [CPU]


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.001, "ok"), (1_000.0, "bad")], ids=["little", "all of a thousand"]
)
def test_free_memory_is_compared_with_the_profile(rules, share, verdict: str) -> None:
    num_bytes = round(share * free_bytes(CPU)[1])
    words = (*JUWELS, "cluster.device=cpu", f"cluster.hardware.memory_bytes={num_bytes}")
    assert devices.check_memory(compose(*words).cluster, rules, [CPU]).verdict == verdict


def test_a_device_that_raises_is_bad_and_named(rules: Preflight) -> None:
    """Torch knows of ``meta`` that it is a device, and of nothing to ask it."""
    found = devices.check_memory(
        compose(*JUWELS).cluster, rules, [CPU, torch.device("meta", 0)]
    )
    assert (found.verdict, found.expected) == ("bad", "an answer of each device")
    assert found.found.startswith("meta:0: ")
    assert "\n" not in found.found


def test_memory_without_a_profile_is_unknown(rules: Preflight) -> None:
    found = devices.check_memory(compose().cluster, rules, [CPU])
    assert (found.verdict, found.expected) == ("unknown", "no figure")


def test_memory_and_the_rate_of_products_are_measured() -> None:
    free, total = free_bytes(CPU)
    assert 0 < free < total
    assert devices.slowest_teraflops([CPU], torch.float32) > 1e-4


def test_bus_bandwidth_equals_that_of_nccl_tests() -> None:
    # doc/PERFORMANCE.md: all-reduce S/t 2(n-1)/n, all-gather S/t (n-1)/n
    assert bus_bandwidth("all_reduce", 8, 1_000, 2.0) == 1_000 / 2 * 2 * 7 / 8
    assert bus_bandwidth("all_gather", 4, 1_000, 2.0) == 1_000 / 2 * 3 / 4


@given(st.integers(3, 200))
def test_every_node_meets_two_others_and_one_at_a_time(count: int) -> None:
    rounds = devices.rounds_of_pairs(count)
    assert len(rounds) <= 3
    for pairs in rounds:
        assert max(Counter(chain(*pairs)).values()) == 1
    every = list(chain(*rounds))
    assert len(set(every)) == len(every) == count
    assert set(Counter(chain(*every)).values()) == {2}
    assert devices.rounds_of_pairs(2) == [[(0, 1)]]
    assert devices.rounds_of_pairs(1) == []


def meet(own: str, port: int) -> Rates:
    """Be one of three nodes, the last of which never comes."""
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=30))
    store.set(f"here/{own}", "")
    store.wait(["here/a", "here/b"])  # imports take their time
    return devices.measure_links(["a", "b", "c"], own, store, torch.device("cpu"), 1.0)


@pytest.mark.long
def test_a_pair_measures_its_link_without_a_third_node() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        first, second = (pool.submit(meet, own, store.port) for own in "ab")
        of_first, of_second = first.result(), second.result()
    assert of_first["b"] is not None
    assert of_second["a"] is not None
    assert of_first["b"] > 0.001
    assert (of_first["c"], of_second["c"]) == (None, None)

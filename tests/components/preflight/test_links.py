"""Who meets whom, and what a node says of another that does not come."""

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

from components.preflight.devices import measure_links, rounds_of_pairs
from components.preflight.verdict import Rates


@given(st.integers(3, 200))
def test_every_node_meets_two_others_and_one_at_a_time(count: int) -> None:
    rounds = rounds_of_pairs(count)
    assert len(rounds) <= 3
    for pairs in rounds:
        assert max(Counter(chain(*pairs)).values()) == 1
    every = list(chain(*rounds))
    assert len(set(every)) == len(every) == count
    assert set(Counter(chain(*every)).values()) == {2}


def test_two_nodes_meet_once_and_one_meets_nobody() -> None:
    assert rounds_of_pairs(2) == [[(0, 1)]]
    assert rounds_of_pairs(1) == []


def meet(own: str, port: int) -> Rates:
    """Be one of three nodes, the last of which never comes."""
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=30))
    store.set(f"here/{own}", "")
    store.wait(["here/a", "here/b"])  # imports take their time
    return measure_links(["a", "b", "c"], own, store, torch.device("cpu"), 1.0)


@pytest.mark.long
def test_a_pair_measures_its_link_though_a_third_node_does_not_come() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        first, second = (pool.submit(meet, own, store.port) for own in "ab")
        of_first, of_second = first.result(), second.result()
    assert of_first["b"] is not None
    assert of_second["a"] is not None
    assert of_first["b"] > 0.001
    assert (of_first["c"], of_second["c"]) == (None, None)

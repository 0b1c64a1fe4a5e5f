"""Collectives over a tree of nodes equal one group of all ranks, with fewer connections."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from components.checkpoint.layout import CheckpointLayout, RankWritePlan
from components.distributed.collectives import by_first, gather_results
from components.distributed.node_tree import NodeTree, make_node_tree
from components.errors import RecipeError
from tests.components.distributed.ranks import Ranks

_ESTABLISHED = "01"  # Linux, include/net/tcp_states.h


def connections() -> int:
    """Count the TCP connections of this process after they are stable."""
    counts = [-1]
    while len(counts) < 4 or len(set(counts[-4:])) > 1:
        counts.append(_connections())
        time.sleep(0.05)
    return counts[-1]


def _connections() -> int:
    inodes = set()
    for file in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            inodes.add(str(file.readlink()).removeprefix("socket:[").removesuffix("]"))
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
    ]
    return sum(words[3] == _ESTABLISHED and words[9] in inodes for words in lines)


def tree_of(ranks_per_node: int) -> NodeTree:
    return make_node_tree(ranks_per_node=ranks_per_node, timeout=timedelta(seconds=60))


def _made(make: Callable[[], Any]) -> int:
    dist.barrier()
    before = connections()
    kept = make()
    dist.barrier()
    assert kept is not None
    return connections() - before


def count_connections(ranks_per_node: int) -> tuple[int, int]:
    """Return the number of connections of this process for a tree and for one group."""
    tree = _made(lambda: tree_of(ranks_per_node))
    return tree, _made(lambda: dist.new_group(backend="gloo"))


def compare(ranks_per_node: int) -> list[str]:
    """Name the collectives with a different result over a tree."""
    tree, rank, ranks = tree_of(ranks_per_node), dist.get_rank(), dist.get_world_size()
    mine: Any = {"rank": rank, "numbers": list(range(1_000 * rank))}
    everyones: list[Any] = [None] * ranks
    dist.all_gather_object(everyones, mine)
    parts = [f"for {one}" for one in range(ranks)] if rank == 0 else None
    received: list[Any] = [None]
    dist.scatter_object_list(received, parts)
    pairs = {
        "place": ((tree.global_rank, tree.world_size), (rank, ranks)),
        "all_gather": (tree.all_gather(mine), everyones),
        "gather": (tree.gather_objects(mine), everyones if rank == 0 else None),
        "scatter": (tree.scatter_objects(parts), received[0]),
        "together": (gather_results(lambda: rank, tree), gather_results(lambda: rank)),
        "by_first": (by_first(lambda: rank + 7, tree), by_first(lambda: rank + 7)),
    }
    return [name for name, (ours, theirs) in pairs.items() if ours != theirs]


def refused(ranks_per_node: int, failing: int) -> str:
    """Let one rank fail, and return the message on this rank."""

    def task() -> None:
        if dist.get_rank() == failing:
            raise RecipeError("a.key", f"rank {failing} fails", "mend it")

    try:
        gather_results(task, tree_of(ranks_per_node))
    except RecipeError as error:
        return str(error)
    return "nothing"


def planned(ranks_per_node: int, files: int) -> tuple[RankWritePlan, RankWritePlan]:
    """Plan a checkpoint over a tree and over one group of all ranks."""
    rank = dist.get_rank()
    tensors = {f"of.{rank}": torch.zeros(3 + rank), "shared": torch.ones(5)}
    assert dist.group.WORLD is not None
    groups = tree_of(ranks_per_node), NodeTree(dist.group.WORLD)
    ours, theirs = (CheckpointLayout(tensors, files=files, group=one).share for one in groups)
    return ours, theirs


RANKS = 6


@pytest.fixture(scope="module")
def six() -> Iterator[Ranks]:
    with Ranks(RANKS) as ranks:
        yield ranks


@pytest.mark.parametrize("per_node", [2, 3])
def test_ranks_connect_within_a_node_and_leaders_between_nodes(six, per_node):
    found = six(count_connections, per_node)
    for rank, (of_tree, of_group) in enumerate(found):
        leaders = RANKS // per_node - 1 if rank % per_node == 0 else 0
        assert of_tree == per_node - 1 + leaders
        assert of_group == RANKS - 1


@pytest.mark.quick("2", "3")
@pytest.mark.parametrize("per_node", [1, 2, 3, 6])
def test_collectives_over_the_tree_equal_one_group(six: Ranks, per_node: int) -> None:
    assert six(compare, per_node) == [[]] * RANKS


@pytest.mark.parametrize("failing", [0, 3, 4])
def test_an_error_reaches_all_ranks_of_all_nodes(six: Ranks, failing: int) -> None:
    assert six(refused, 2, failing) == [f"a.key: rank {failing} fails\n  mend it"] * RANKS


@pytest.mark.parametrize("files", [1, 4])
def test_a_checkpoint_is_planned_as_over_one_group(six: Ranks, files: int) -> None:
    for over_tree, over_group in six(planned, 2, files):
        assert over_tree == over_group

"""A tree of nodes gives what one group of all ranks does, over fewer connections."""

from collections.abc import Iterator

import pytest

from tests.components.distributed import node_tree_cases as cases
from tests.components.distributed.ranks import Ranks

RANKS = 6


@pytest.fixture(scope="module")
def six() -> Iterator[Ranks]:
    with Ranks(RANKS) as ranks:
        yield ranks


@pytest.mark.parametrize("per_node", [2, 3])
def test_a_rank_knows_those_of_its_node_and_a_leader_the_other_leaders(
    six: Ranks, per_node: int
) -> None:
    found = six(cases.count_connections, per_node)
    for rank, (of_tree, of_group) in enumerate(found):
        leaders = RANKS // per_node - 1 if rank % per_node == 0 else 0
        assert of_tree == per_node - 1 + leaders
        assert of_group == RANKS - 1


@pytest.mark.parametrize("per_node", [1, 2, 3, 6])
def test_every_rank_gets_what_one_group_of_all_would_give(six: Ranks, per_node: int) -> None:
    assert six(cases.compare, per_node) == [[]] * RANKS


@pytest.mark.parametrize("failing", [0, 3, 4])
def test_all_ranks_of_all_nodes_hear_of_an_error(six: Ranks, failing: int) -> None:
    assert six(cases.refused, 2, failing) == [f"a.key: rank {failing} fails\n  mend it"] * RANKS


@pytest.mark.parametrize("files", [1, 4])
def test_a_checkpoint_is_planned_as_over_one_group(six: Ranks, files: int) -> None:
    for over_tree, over_group in six(cases.planned, 2, files):
        assert over_tree == over_group

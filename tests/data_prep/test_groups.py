import networkx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_prep.near_duplicates import Groups

DOCUMENTS = 40
PAIRS = st.lists(st.tuples(st.integers(0, DOCUMENTS - 1), st.integers(0, DOCUMENTS - 1)))


@given(st.lists(PAIRS, max_size=4))
def test_groups_are_the_connected_components_and_their_first_stays(calls):
    groups = Groups(DOCUMENTS)
    graph = networkx.Graph()
    graph.add_nodes_from(range(DOCUMENTS))
    for pairs in calls:
        graph.add_edges_from(pairs)
        columns = np.array(pairs, np.int64).reshape(-1, 2)
        groups.join_groups(columns[:, 0], columns[:, 1])
    parts = list(networkx.connected_components(graph))
    assert groups.list_repeated().tolist() == sorted(
        document for part in parts for document in part - {min(part)}
    )
    for part in parts:
        assert set(groups.find_first(np.array(sorted(part))).tolist()) == {min(part)}


def test_a_chain_as_long_as_the_corpus_is_one_group_in_a_moment():
    count = 1 << 18
    groups = Groups(count)
    groups.join_groups(np.arange(count - 1), np.arange(1, count))
    assert groups.list_repeated().tolist() == list(range(1, count))

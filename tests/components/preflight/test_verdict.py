"""What is kept of a verdict, and what it says of all nodes together."""

import json

import pytest

from components.errors import RecipeError
from components.preflight.node import gather_reports, look_alone, rules_of, serve_store
from components.preflight.verdict import (
    HOSTS,
    NodeVerdict,
    PreflightVerdict,
    forget_verdict,
    list_hosts,
    read_verdict,
    write_verdict,
)
from components.run.folder import RunFolder
from tests.components.preflight.conftest import Compose, finding


def verdict(needed: int, *wrong: tuple[str, ...]) -> PreflightVerdict:
    nodes = [
        NodeVerdict(
            node=f"n{number}", findings=tuple(finding(check, "bad") for check in checks)
        )
        for number, checks in enumerate(wrong, start=1)
    ]
    return PreflightVerdict(needed=needed, nodes=tuple(nodes), seconds=1.0)


def test_it_holds_as_long_as_enough_nodes_are_good() -> None:
    wrong = ((), ("clock",), ())
    assert [verdict(needed, *wrong).has_enough_nodes for needed in (1, 2, 3)] == [
        True,
        True,
        False,
    ]
    assert verdict(2, *wrong).good_nodes == ("n1", "n3")
    assert verdict(2, *wrong).bad_nodes == ("n2",)


def test_what_no_node_passes_is_not_the_nodes_fault() -> None:
    assert verdict(2, ("data", "clock"), ("data",)).of_all == ("data",)
    assert verdict(2, ("data",), ("clock",)).of_all == ()
    assert verdict(1, ("data",)).of_all == ()  # of one node nobody knows


def test_it_is_read_as_it_was_written_until_the_next_job_begins(folder: RunFolder) -> None:
    assert read_verdict(folder) is None
    written = verdict(1, (), ("clock",))
    write_verdict(folder, written)
    assert read_verdict(folder) == written
    node = json.loads((folder.path / "preflight" / "n2.json").read_text())
    assert node["findings"][0]["check"] == "clock"
    forget_verdict(folder.path)
    assert read_verdict(folder) is None


def test_a_list_for_the_launcher_has_a_line_a_node(folder: RunFolder) -> None:
    assert list_hosts(folder, HOSTS, ["n1.site", "n2.site"]).read_text() == "n1.site\nn2.site\n"


def test_nodes_that_say_nothing_are_waited_for_no_longer_than_they_may(
    compose: Compose,
) -> None:
    recipe = compose("cluster.preflight.answer_seconds=0.2")
    with serve_store(0) as store:
        found = gather_reports(store, recipe, ["n1", "n2"], needed=2)
    assert (found.of_all, found.has_enough_nodes) == (("answer",), False)
    assert 0.2 <= found.seconds < 5


def test_a_node_alone_has_no_clock_and_no_link_to_compare(
    compose: Compose, folder: RunFolder
) -> None:
    (node,) = look_alone(compose(), folder).nodes
    assert [one.check for one in node.findings] == [
        *("devices", "memory", "run folder", "temporary folder"),
        *("packages", "versions", "data"),
        *("cores", "product"),
    ]


def test_who_wants_no_preflight_has_no_limits(compose: Compose) -> None:
    with pytest.raises(RecipeError, match=r"cluster\.preflight: none: there are no limits"):
        rules_of(compose("cluster.preflight=none"))

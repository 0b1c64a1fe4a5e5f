"""Nodes against the profile and against one another; what is kept of a verdict."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from components.config.recipe import Recipe
from components.config.schema.cluster import Preflight
from components.errors import RecipeError
from components.preflight import verdict as rulings
from components.preflight.node import gather_reports, look_alone, rules_of, serve_store
from components.run.folder import RunFolder
from tests.components.preflight.conftest import compose, finding, report

NAMES = ("n1", "n2", "n3")
# A machine that nobody has measured, and JUWELS Booster: 271 TFLOP/s, links of 25 GB/s.
BARE = ()
MEASURED = ("cluster=juwels", "scale=mini", "cluster.nodes=1", "cluster.devices_per_node=1")


def told(**values: Sequence[Any]) -> list[rulings.NodeReport]:
    """What the first nodes say, of each of these figures one value a node."""
    return [
        report(name, **dict(zip(values, figures, strict=True)))
        for name, figures in zip(NAMES, zip(*values.values(), strict=True), strict=False)
    ]


def judged(
    recipe: Recipe,
    rules: Preflight,
    reports: Sequence[rulings.NodeReport],
    links: Mapping[str, rulings.Rates] = {},
) -> rulings.PreflightVerdict:
    by_name = {one.node: one for one in reports}
    return rulings.judge_nodes(
        recipe.cluster, rules, NAMES, by_name, links, needed=2, seconds=1.0
    )


def bad(verdict: rulings.PreflightVerdict) -> dict[str, list[str]]:
    return {
        one.node: [f.check for f in one.bad_findings]
        for one in verdict.nodes
        if one.bad_findings
    }


@pytest.mark.parametrize(
    ("machine", "reports", "wrong"),
    [
        (MEASURED, told(rate=(271.0, 0.71 * 271, 2.71)), {"n3": ["product"]}),
        (BARE, told(rate=(1.0, 0.69, 1.01)), {"n2": ["product"]}),
        (BARE, told(rate=(1.0, 0.1)), {"n3": ["answer"]}),
        (BARE, told(rate=(None, 1.0, 1.0)), {"n1": ["product"]}),
        (BARE, told(cores=(7, 8, 8)), {"n1": ["cores"]}),
        (BARE, told(cores=(8, 7, 8)), {"n2": ["cores"]}),
        (BARE, told(cores=(8, 8, 7)), {"n3": ["cores"]}),
        (BARE, told(cores=(9, 8, 8)), {}),
        (BARE, told(cores=(8, 8, 9)), {}),
        # If the first node's own clock is wrong, the two others are ahead of it alike.
        (BARE, told(ahead=(0.0, 5.0, 5.0)), {"n1": ["clock"]}),
        (BARE, told(ahead=(0.0, -5.0, 0.0)), {"n2": ["clock"]}),
        (BARE, told(ahead=(0.0, 0.0, -5.0)), {"n3": ["clock"]}),
        (BARE, told(ahead=(0.0, 5.0)), {"n2": ["clock"], "n3": ["answer"]}),
        (BARE, told(ahead=(0.0, 1.05, 0.0)), {}),  # 0.1 are half a round trip
        (BARE, told(ahead=(0.0, 1.15, 0.0)), {"n2": ["clock"]}),
    ],
)
def test_a_node_is_bad_below_the_profile_or_the_other_nodes(machine, reports, wrong, rules):
    found = judged(compose(*machine), rules, reports)
    assert bad(found) == wrong
    if machine:
        (slow,) = found.nodes[2].bad_findings
        assert slow.expected == "at least 190, 0.7 of the profile's 271"


def test_a_node_that_does_not_answer_is_bad(rules: Preflight) -> None:
    found = judged(compose(), rules, [report("n1"), report("n3")])
    assert bad(found) == {"n2": ["answer"]}
    assert found.has_enough_nodes
    assert list(found.iter_reasons()) == ["n2: answer: silent, expected an answer within 120 s"]


def test_two_nodes_with_different_cores_are_unknown(rules: Preflight) -> None:
    found = judged(compose(), rules, told(cores=(8, 4)))
    assert bad(found) == {"n3": ["answer"]}
    verdicts = [{one.check: one.verdict for one in node.findings} for node in found.nodes]
    assert [one.get("cores") for one in verdicts] == ["unknown", "unknown", None]


@pytest.mark.parametrize(
    ("machine", "fast", "slow", "found", "expected"),
    [
        (MEASURED, 20.0, 0.5, "0.5 GB/s", "at least 5, 0.2 of the profile's 25"),
        (BARE, 1e-3, None, "no answer of n1, n2", None),  # a link only has to be there
    ],
)
def test_a_node_with_slow_links_to_all_neighbors_is_bad(
    machine: tuple[str, ...],
    fast: float,
    slow: float | None,
    found: str,
    expected: str | None,
    rules: Preflight,
) -> None:
    links: dict[str, rulings.Rates] = {
        "n1": {"n2": fast, "n3": slow},
        "n2": {"n1": fast, "n3": None},
        "n3": {"n1": slow, "n2": None},
    }
    seen = judged(compose(*machine), rules, told(rate=(271.0, 271.0, 271.0)), links)
    assert bad(seen) == {"n3": ["link"]}
    (said,) = seen.nodes[2].bad_findings
    assert (said.found, expected or said.expected) == (found, said.expected)


@pytest.mark.parametrize(
    ("others", "remedy"), [("ok", "report this node to the site"), ("bad", "mend it")]
)
def test_data_that_other_nodes_can_read_are_not_prepared_again(others, remedy, rules) -> None:
    said = [
        report(name).model_copy(update={"findings": (finding("data", verdict),)})
        for name, verdict in zip(NAMES, (others, "bad", others), strict=True)
    ]
    assert remedy in judged(compose(), rules, said).nodes[1].bad_findings[0].remedy


def verdict(needed: int, *wrong: tuple[str, ...]) -> rulings.PreflightVerdict:
    nodes = [
        rulings.NodeVerdict(
            node=f"n{number}", findings=tuple(finding(check, "bad") for check in checks)
        )
        for number, checks in enumerate(wrong, start=1)
    ]
    return rulings.PreflightVerdict(needed=needed, nodes=tuple(nodes), seconds=1.0)


def test_a_preflight_passes_with_enough_good_nodes() -> None:
    wrong = ((), ("clock",), ())
    enough = [verdict(needed, *wrong).has_enough_nodes for needed in (1, 2, 3)]
    assert enough == [True, True, False]
    assert verdict(2, *wrong).good_nodes == ("n1", "n3")
    assert verdict(2, *wrong).bad_nodes == ("n2",)


def test_a_check_that_fails_on_all_nodes_is_not_a_node_fault() -> None:
    assert verdict(2, ("data", "clock"), ("data",)).of_all == ("data",)
    assert verdict(2, ("data",), ("clock",)).of_all == ()
    assert verdict(1, ("data",)).of_all == ()  # of one node nobody knows


def test_a_verdict_is_read_until_the_next_job_starts(folder: RunFolder) -> None:
    assert rulings.read_verdict(folder) is None
    written = verdict(1, (), ("clock",))
    rulings.write_verdict(folder, written)
    assert rulings.read_verdict(folder) == written
    node = json.loads((folder.path / "preflight" / "n2.json").read_text())
    assert node["findings"][0]["check"] == "clock"
    rulings.forget_verdict(folder.path)
    assert rulings.read_verdict(folder) is None


def test_the_host_list_has_one_line_per_node(folder: RunFolder) -> None:
    file = rulings.list_hosts(folder, rulings.HOSTS, ["n1.site", "n2.site"])
    assert file.read_text() == "n1.site\nn2.site\n"


def test_silent_nodes_are_waited_for_until_the_limit() -> None:
    recipe = compose("cluster.preflight.answer_seconds=0.2")
    with serve_store(0) as store:
        found = gather_reports(store, recipe, ["n1", "n2"], needed=2)
    assert (found.of_all, found.has_enough_nodes) == (("answer",), False)
    assert 0.2 <= found.seconds < 5


def test_a_single_node_has_no_clock_and_no_link_check(folder: RunFolder) -> None:
    (node,) = look_alone(compose(), folder).nodes
    checks = "devices, memory, run folder, temporary folder, packages, versions, data, cores"
    assert [one.check for one in node.findings] == [*checks.split(", "), "product"]


def test_no_preflight_has_no_limits() -> None:
    with pytest.raises(RecipeError, match=r"cluster\.preflight: none: there are no limits"):
        rules_of(compose("cluster.preflight=none"))

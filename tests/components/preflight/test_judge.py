"""Nodes against the profile and against one another."""

from collections.abc import Mapping, Sequence

import pytest

from components.config.recipe import Recipe
from components.config.schema.cluster import Preflight
from components.preflight.verdict import NodeReport, PreflightVerdict, Rates, judge_nodes
from tests.components.preflight.conftest import Compose, finding, report

NAMES = ("n1", "n2", "n3")


@pytest.fixture
def bare(compose: Compose) -> Recipe:
    """A recipe on a machine that nobody has measured."""
    return compose()


@pytest.fixture
def measured(compose: Compose) -> Recipe:
    """A recipe on JUWELS Booster: 271 TFLOP/s, links of 25 GB/s."""
    return compose(
        "cluster=juwels", "scale=mini", "cluster.nodes=1", "cluster.devices_per_node=1"
    )


def judged(
    recipe: Recipe,
    rules: Preflight,
    reports: Sequence[NodeReport],
    links: Mapping[str, Rates] = {},
) -> PreflightVerdict:
    by_name = {one.node: one for one in reports}
    return judge_nodes(recipe.cluster, rules, NAMES, by_name, links, needed=2, seconds=1.0)


def bad(verdict: PreflightVerdict) -> dict[str, list[str]]:
    return {
        one.node: [f.check for f in one.bad_findings]
        for one in verdict.nodes
        if one.bad_findings
    }


def test_a_node_that_does_not_answer_is_bad(bare: Recipe, rules: Preflight) -> None:
    found = judged(bare, rules, [report("n1"), report("n3")])
    assert bad(found) == {"n2": ["answer"]}
    assert found.has_enough_nodes
    assert list(found.iter_reasons()) == ["n2: answer: silent, expected an answer within 120 s"]


def test_a_product_a_hundred_times_slower_than_the_profile_says_is_bad(
    measured: Recipe, rules: Preflight
) -> None:
    rates = {"n1": 271.0, "n2": 0.71 * 271, "n3": 2.71}
    found = judged(measured, rules, [report(name, rate=rate) for name, rate in rates.items()])
    assert bad(found) == {"n3": ["product"]}
    (slow,) = found.nodes[2].bad_findings
    assert slow.expected == "at least 190, 0.7 of the profile's 271"


def test_without_a_profile_a_slow_node_is_found_among_three(
    bare: Recipe, rules: Preflight
) -> None:
    rates = {"n1": 1.0, "n2": 0.69, "n3": 1.01}
    found = judged(bare, rules, [report(name, rate=rate) for name, rate in rates.items()])
    assert bad(found) == {"n2": ["product"]}
    two = judged(bare, rules, [report("n1", rate=1.0), report("n2", rate=0.1)])
    assert bad(two) == {"n3": ["answer"]}


@pytest.mark.parametrize("wrong", NAMES)
def test_a_node_with_fewer_cores_than_the_others_is_bad(
    wrong: str, bare: Recipe, rules: Preflight
) -> None:
    found = judged(bare, rules, [report(n, cores=8 - (n == wrong)) for n in NAMES])
    assert bad(found) == {wrong: ["cores"]}
    more = judged(bare, rules, [report(n, cores=8 + (n == wrong)) for n in NAMES])
    assert bad(more) == {}


def test_of_two_nodes_that_differ_in_cores_neither_is_blamed(
    bare: Recipe, rules: Preflight
) -> None:
    found = judged(bare, rules, [report("n1", cores=8), report("n2", cores=4)])
    assert bad(found) == {"n3": ["answer"]}
    verdicts = [{one.check: one.verdict for one in node.findings} for node in found.nodes]
    assert [one.get("cores") for one in verdicts] == ["unknown", "unknown", None]


def test_a_device_that_cannot_multiply_is_bad_without_any_figure(
    bare: Recipe, rules: Preflight
) -> None:
    found = judged(bare, rules, [report("n1", rate=None), report("n2"), report("n3")])
    assert bad(found) == {"n1": ["product"]}


@pytest.mark.parametrize("wrong", NAMES)
def test_of_three_clocks_the_one_that_differs_is_wrong(
    wrong: str, bare: Recipe, rules: Preflight
) -> None:
    # If the first node's own clock is wrong, the two others are ahead of it alike.
    ahead = {name: float(name != wrong) * 5 for name in NAMES}
    if wrong != "n1":
        ahead = {name: float(name == wrong) * -5 for name in NAMES}
    found = judged(bare, rules, [report(name, ahead=ahead[name]) for name in NAMES])
    assert bad(found) == {wrong: ["clock"]}


def test_of_two_clocks_the_first_nodes_is_believed(bare: Recipe, rules: Preflight) -> None:
    found = judged(bare, rules, [report("n1", ahead=0.0), report("n2", ahead=5.0)])
    assert bad(found) == {"n2": ["clock"], "n3": ["answer"]}


def test_half_a_round_trip_is_no_difference_of_clocks(bare: Recipe, rules: Preflight) -> None:
    for ahead, wrong in ((1.05, {}), (1.15, {"n2": ["clock"]})):
        clocks = {"n1": 0.0, "n2": ahead, "n3": 0.0}
        found = judged(bare, rules, [report(n, ahead=clocks[n]) for n in NAMES])
        assert bad(found) == wrong


def test_a_node_is_slow_that_is_slow_with_both_its_neighbours(
    measured: Recipe, rules: Preflight
) -> None:
    links: dict[str, Rates] = {
        "n1": {"n2": 20.0, "n3": 0.5},
        "n2": {"n1": 20.0, "n3": None},
        "n3": {"n2": None, "n1": 0.5},
    }
    found = judged(measured, rules, [report(name, rate=271.0) for name in NAMES], links)
    assert bad(found) == {"n3": ["link"]}
    (slow,) = found.nodes[2].bad_findings
    assert (slow.found, slow.expected) == ("0.5 GB/s", "at least 5, 0.2 of the profile's 25")


def test_without_a_profile_a_link_only_has_to_be_there(bare: Recipe, rules: Preflight) -> None:
    links: dict[str, Rates] = {
        "n1": {"n2": 1e-3, "n3": None},
        "n2": {"n1": 1e-3, "n3": None},
        "n3": {"n1": None, "n2": None},
    }
    found = judged(bare, rules, [report(name) for name in NAMES], links)
    assert bad(found) == {"n3": ["link"]}
    assert found.nodes[2].bad_findings[0].found == "no answer of n1, n2"


@pytest.mark.parametrize(
    ("others", "remedy"), [("ok", "report this node to the site"), ("bad", "mend it")]
)
def test_data_that_other_nodes_read_whole_are_not_to_be_prepared_again(
    others: str, remedy: str, bare: Recipe, rules: Preflight
) -> None:
    seen = zip(NAMES, (others, "bad", others), strict=True)
    said = [
        report(name).model_copy(update={"findings": (finding("data", verdict),)})
        for name, verdict in seen
    ]
    found = judged(bare, rules, said)
    assert remedy in found.nodes[1].bad_findings[0].remedy

"""Plans equal the stored results of dry runs at full size."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from components.dryrun.rank_roles import sent_bytes
from components.planner.plan import plan_recipe
from components.planner.result import Plan
from tests.recipes.compositions import compose

KEPT = Path(__file__).parents[3] / "benchmarks" / "results" / "dryruns.json"
FARTHEST = 0.125  # of the rehearsed peak; a page explains differences above 5 %


@cache
def rehearsed() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(KEPT.read_text("utf-8"))["recipes"]
    return kept


@cache
def planned(name: str, cluster: str) -> Plan:
    return plan_recipe(compose(name, f"cluster={cluster}"))


SENDERS = ("teuken7b", "bloom1b1", "gpt175b", "mula100b_a7b")


@pytest.mark.quick(*SENDERS)
@pytest.mark.parametrize("name", sorted(rehearsed()))
def test_the_planned_peak_is_near_the_rehearsed_one(name: str) -> None:
    found = rehearsed()[name]
    peak = planned(name, found["cluster"]).memory.fullest_rank_bytes
    assert peak == pytest.approx(found["memory"]["peak_bytes"], rel=FARTHEST)


@pytest.mark.parametrize("name", SENDERS)
def test_planned_messages_between_stages_equal_the_rehearsed(name: str) -> None:
    """Some have tied ends, with whole gradients (ZeRO 0) or shards (ZeRO 1)."""
    found = rehearsed()[name]
    plan = planned(name, found["cluster"])
    figures = {figure["figure"]: figure["found"] for figure in found["roles"][0]["differences"]}
    expected = sent_bytes(plan.job, 0, plan.software.speed)["pipeline"]
    # A mixture of experts also sends router sums.
    assert figures["pipeline_sent_bytes"] == pytest.approx(expected, rel=2e-4)


@pytest.mark.long
def test_most_plans_are_within_a_twentieth() -> None:
    ratios = [
        planned(name, found["cluster"]).memory.fullest_rank_bytes
        / found["memory"]["peak_bytes"]
        for name, found in rehearsed().items()
    ]
    assert sum(abs(ratio - 1) < 0.05 for ratio in ratios) >= 14

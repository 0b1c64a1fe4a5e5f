"""The plan's rows of days: what is known is shown, and when the run would be over."""

from datetime import UTC, datetime
from typing import Any

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.planner.plan import plan_recipe
from components.report.plan_tables import bill_rows

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def rows_of(*words: str, **changes: Any) -> dict[str, str]:
    plan = plan_recipe(compose_recipe(read_point(list(words))))
    assert plan.cost_estimate is not None
    return dict(bill_rows(plan.cost_estimate.model_copy(update=changes), NOW))


def test_every_part_of_the_days_has_a_row() -> None:
    rows = rows_of("recipe=bloom176b", "cluster=jean_zay")
    assert rows["days, without waiting"].endswith(" jobs of qos_gpu_a100-t3")
    assert rows["  steps"].endswith(", 95,000 steps")
    assert rows["  stalls for checkpoints"].endswith(", 872 of them")
    assert rows["  evaluations"].endswith(", 89 of them")
    assert rows["  failures"].endswith(" failures")
    assert "2,467 GB each; best " in rows["checkpoints every"]
    assert "checkpoint.every_tokens=29_" in rows["checkpoints every"]


def test_what_nobody_knows_has_no_row() -> None:
    rows = rows_of("recipe=playbook1b", "cluster=hopper")
    assert "  failures" not in rows
    assert "waiting in queues" not in rows
    assert "best" not in rows["checkpoints every"]
    assert "jobs" not in rows["days, without waiting"]


def test_the_run_is_over_after_its_days_and_its_waiting() -> None:
    words = ("recipe=bloom176b", "cluster=jean_zay")
    rows = rows_of(*words, days=10.0, waiting_days=0.0)
    assert rows["finish if started now"] == "2026-01-11 12:00"
    rows = rows_of(*words, days=10.0, waiting_days=2.5)
    assert rows["waiting in queues"] == "2.5 days"
    assert rows["finish if started now"] == "2026-01-14 00:00"

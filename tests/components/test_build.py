"""Objects are built behind the gate, and only where their class is at home."""

import pytest

from components.build import build
from components.errors import RecipeError

COSINE = {
    "_target_": "components.optim.schedules.Cosine",
    "total_tokens": 100,
    "warmup_tokens": 0,
    "warmup_from": 0.0,
    "start": 1.0,
    "end": 0.0,
}


def test_a_node_becomes_its_object() -> None:
    schedule = build(COSINE, "schedule")
    assert schedule(0) == 1.0
    assert schedule(100) == 0.0


def test_nodes_inside_are_built_too() -> None:
    node = {
        "_target_": "components.optim.schedules.Chain",
        "phases": {"a": COSINE, "b": COSINE},
    }
    chain = build(node, "schedule")
    assert chain(100) == 1.0


def test_nothing_outside_the_gate_is_built() -> None:
    with pytest.raises(RecipeError, match=r"schedule\._target_: 'os\.getcwd' is refused"):
        build({"_target_": "os.getcwd"}, "schedule")


def test_a_class_that_is_at_home_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    from components.optim import schedules

    monkeypatch.setattr(schedules, "Cosine", Path)
    with pytest.raises(RecipeError, match=r"schedule\._target_: .* is not defined in"):
        build(COSINE, "schedule")

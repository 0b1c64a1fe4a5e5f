"""Each recipe of a command is composed, resolved and validated once; here the calls count."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hydra
import pytest

from command.actions import parity, train
from command.actions.jobs import submit
from command.arguments import read_point
from command.composition import conf_groups
from command.perform import run_action
from components.config import resolve, validation
from components.config.recipe import Recipe

SMALL = "recipe=bloom560m"
LATE = "phases.late={from_fraction: 0.5, budget: {sequence_length: 512}}"
CHILD = "children.cooled={with: optimizer, set: {optimizer.lr: 1e-4}}"
ON_CLUSTER = ("cluster=leonardo", "site.account=x")


class ReachedError(Exception):
    """An action has composed what it needs, and would begin its work."""


def stop(*given: object, **named: object) -> None:
    raise ReachedError


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count calls in every module that has imported the function."""
    counts: Counter[str] = Counter()

    def count(name: str, function: Any, counted: Callable[..., bool] = lambda *_: True) -> None:
        def counting(*given: Any, **named: Any) -> Any:
            counts[name] += counted(*given)
            return function(*given, **named)

        for module in [*sys.modules.values()]:
            own = getattr(module, "__dict__", {})
            for attribute in [key for key, value in own.items() if value is function]:
                monkeypatch.setattr(module, attribute, counting)

    monkeypatch.setattr(train, "_check_here", stop)
    monkeypatch.setattr(submit, "check_run", stop)
    monkeypatch.setattr(parity, "check_trainable", stop)
    count("hydra", hydra.compose)
    count("resolve", resolve.resolve_tree)
    count("validate", validation.read_section, lambda kind, *_: kind is Recipe)
    conf_groups._compose.cache_clear()
    yield counts
    conf_groups._compose.cache_clear()


@pytest.mark.parametrize(
    ("words", "recipes", "by_hydra"),
    [
        # Besides the recipe, show composes the defaults that it compares it with.
        ((SMALL, "action=show", "scale=full"), 1, 2),
        ((SMALL, "action=plan"), 1, 1),
        ((SMALL, "action=render", "cluster=leonardo"), 1, 1),
        ((SMALL,), 1, 1),  # trains here
        ((SMALL, *ON_CLUSTER), 1, 1),  # submits
        ((SMALL, "action=submit", *ON_CLUSTER), 1, 1),
        ((SMALL, "action=parity", "layouts=[{data: 2}, {tensor: 2}]"), 2, 1),
        ((SMALL, "action=pack", "file=x.lock.yaml"), 1, 1),
        # A phase, a parent and a child are recipes of their own.
        (("recipe=teuken7b", "action=show", "output=json", CHILD), 2, 1),
        (("recipe=lucie_7b_long", "action=show", "output=json", "scale=mini"), 2, 2),
    ],
)
def test_each_recipe_is_composed_resolved_and_validated_once(
    words: tuple[str, ...], recipes: int, by_hydra: int, calls: Counter[str], folder: Path
) -> None:
    arguments = read_point(words)
    with suppress(ReachedError):
        run_action(arguments.action, arguments)
    assert calls == {"hydra": by_hydra, "resolve": recipes, "validate": recipes}


def test_the_recipe_of_a_phase_is_validated_once(calls: Counter[str]) -> None:
    arguments = read_point([SMALL, "action=show", "full=true", LATE])
    run_action(arguments.action, arguments)
    assert calls["resolve"] == 1
    assert calls["validate"] == 2  # the run's recipe, and that of its phase

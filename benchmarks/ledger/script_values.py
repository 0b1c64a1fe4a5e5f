"""Compare a recipe with the values of the original script, `tests/recipes/facts/NAME.yaml`.

A key is a path in the full-size recipe on its reference cluster, or in its derived numbers.
"""

from collections.abc import Mapping
from functools import cache
from math import isclose
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, Field

from benchmarks.ledger.proofs import recipe_at_home
from command.actions.show import as_json
from command.arguments import ROOT
from components.config.phases import recipes_of

FACTS = ROOT / "tests" / "recipes" / "facts"
ROUNDING = 1e-9  # relative: a share such as 1e-5 / 3e-4 has no exact decimal
NO_KEY = "the recipe has no such key"


class Deviation(BaseModel, extra="forbid"):
    """A value of the script, our different value, and the reason."""

    script: Any
    ours: Any
    why: str = Field(min_length=1)


class ScriptFacts(BaseModel, extra="forbid"):
    """One facts file: the sources, the values of the run and of its later phases.

    With ``like``, this script has the values of that recipe's script, except those under
    ``values`` and the keys ``without``.
    """

    script: list[str] = Field(min_length=1)
    like: str | None = None
    without: list[str] = []
    values: dict[str, Any] = Field(min_length=1)
    stages: dict[str, dict[str, Any]] = {}
    deviations: dict[str, Deviation] = {}


class Difference(NamedTuple):
    """A key, after the name of its phase, with different values in the file and the recipe."""

    key: str
    expected: Any
    ours: Any


class ValueCounts(NamedTuple):
    """The numbers of equal and of compared values, and what differs without a reason."""

    equal: int
    compared: int
    differences: list[Difference]


def read_facts(name: str) -> ScriptFacts | None:
    """Read a recipe's facts file with all values; None if the recipe has no file."""
    file = FACTS / f"{name}.yaml"
    if not file.exists():
        return None
    facts = ScriptFacts.model_validate(yaml.load(file.read_text("utf-8"), yaml.CSafeLoader))
    if facts.like is None:
        return facts
    like = read_facts(facts.like)
    assert like is not None
    shared = {key: like.values[key] for key in like.values.keys() - facts.without}
    return facts.model_copy(update={"values": {**shared, **facts.values}})


def compare_values(name: str, facts: ScriptFacts) -> ValueCounts:
    """Compare each value of a facts file with the recipe."""
    deviations = {key: deviation.ours for key, deviation in facts.deviations.items()}
    expected = [
        (phase, key, value)
        for phase, values in (("", facts.values), ("", deviations), *facts.stages.items())
        for key, value in values.items()
    ]
    trees = _trees(name)
    pairs = [
        Difference(f"{phase} {key}".strip(), value, _value_at(trees.get(phase), key))
        for phase, key, value in expected
    ]
    differences = [pair for pair in pairs if not is_equal(pair.expected, pair.ours)]
    equal = len(pairs) - len(deviations) - len(differences)
    return ValueCounts(equal, len(pairs), differences)


def script_cell(name: str) -> str:
    """Write "n of m", or a dash for a recipe without a facts file."""
    if (facts := read_facts(name)) is None:
        return "-"
    counts = compare_values(name, facts)
    return f"{counts.equal} of {counts.compared}"


def is_equal(expected: Any, ours: Any) -> bool:
    """Compare two values: floats up to rounding, everything else exactly."""
    match expected, ours:
        case dict(), dict():
            return expected.keys() == ours.keys() and all(
                is_equal(value, ours[key]) for key, value in expected.items()
            )
        case list(), list():
            return len(expected) == len(ours) and all(map(is_equal, expected, ours))
        case (float(), int() | float()) | (int(), float()):
            return isclose(expected, ours, rel_tol=ROUNDING)
    return type(expected) is type(ours) and expected == ours


def _value_at(tree: Any, key: str) -> Any:
    for step in key.split("."):
        if not isinstance(tree, Mapping) or step not in tree:
            return NO_KEY
        tree = tree[step]
    return tree


@cache
def _trees(name: str) -> dict[str, Any]:
    """Return the recipe of the whole run under "", and the recipes of its phases by name."""
    whole = recipe_at_home(name)
    trees: dict[str, Any] = {phase: as_json(own) for phase, own in recipes_of(whole).items()}
    trees[""] = as_json(whole)
    return {
        phase: {**tree["recipe"], "derived": tree["derived"]} for phase, tree in trees.items()
    }

"""Each recipe has the values of its original script, or a facts file gives the reason."""

from pathlib import Path

import pytest
import yaml

from benchmarks.ledger import script_values
from benchmarks.ledger.script_values import (
    FACTS,
    NO_KEY,
    Difference,
    ScriptFacts,
    ValueCounts,
    compare_values,
    is_equal,
    read_facts,
    script_cell,
)
from benchmarks.recipes import published_recipes

FILES = sorted(file.stem for file in FACTS.glob("*.yaml"))
NAME = "bloom560m"


def facts_of(name: str) -> ScriptFacts:
    facts = read_facts(name)
    assert facts is not None
    return facts


def facts_with(**parts: object) -> ScriptFacts:
    least = {"script": ["a script"], "values": {"model.dim": 1_024}}
    return ScriptFacts.model_validate(least | parts)


def test_every_recipe_has_a_file_and_every_file_a_recipe() -> None:
    assert set(FILES) == set(published_recipes())


@pytest.mark.parametrize("name", FILES)
def test_every_value_of_the_script_equals_the_recipe(name: str) -> None:
    assert compare_values(name, facts_of(name)).differences == []


@pytest.mark.parametrize("name", FILES)
def test_a_deviation_differs_from_the_script_and_has_a_reason(name: str) -> None:
    facts = facts_of(name)
    for key, deviation in facts.deviations.items():
        assert not is_equal(deviation.script, deviation.ours), key
        assert deviation.why.strip(), key
    assert not facts.deviations.keys() & facts.values.keys()


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_only_the_values_that_differ_from_the_file_it_is_like(name: str) -> None:
    own = yaml.safe_load((FACTS / f"{name}.yaml").read_text("utf-8"))
    like = facts_of(own["like"]).values if "like" in own else {}
    assert [key for key, value in own["values"].items() if like.get(key, NO_KEY) == value] == []
    assert {*own.get("without", ())} <= like.keys() - facts_of(name).values.keys()


def test_a_wrong_value_and_an_unknown_key_are_differences() -> None:
    deviation = {"script": 1, "ours": 3, "why": "It is wrong."}
    facts = facts_with(
        values={
            "model.dim": 1_024,
            "model.num_layers": 25,
            "model.width": 1,
            "derived.steps": 1,
        },
        deviations={"parallelism.zero": deviation},
    )
    found = compare_values(NAME, facts)
    assert found.differences == [
        Difference("model.num_layers", 25, 24),
        Difference("model.width", 1, NO_KEY),
        Difference("derived.steps", 1, 659_500),
        Difference("parallelism.zero", 3, 0),
    ]
    assert found.compared == 5


def test_a_deviation_is_compared_and_not_equal() -> None:
    deviation = {"script": 1, "ours": 0, "why": "It is needed."}
    found = compare_values(NAME, facts_with(deviations={"parallelism.zero": deviation}))
    assert found == ValueCounts(equal=1, compared=2, differences=[])


def test_a_later_phase_is_compared_with_its_own_recipe() -> None:
    key = "budget.sequence_length"
    facts = facts_with(values={key: 8_192}, stages={"long": {key: 65_536}, "longer": {key: 1}})
    found = compare_values("olmo3_7b", facts)
    assert found == ValueCounts(2, 3, [Difference(f"longer {key}", 1, NO_KEY)])


@pytest.mark.parametrize(
    ("expected", "ours", "equal"),
    [
        (1e-5 / 3e-4, 0.03333333333333333, True), (0.0333, 0.03333333333333333, False),
        (10_000, 10_000.0, True), (1_106_552_650_752, 1_106_552_650_753, False),
        (1, True, False), (0, None, False), ([1.0, "a"], [1, "a"], True), ([1], [1, 2], False),
        ({"a": 1.0}, {"a": 1}, True), ({"a": 1}, {"a": 1, "b": 2}, False),
        ("1e-5", 1e-5, False),
    ],
)  # fmt: skip
def test_only_floats_may_differ_by_rounding(expected, ours, equal):
    assert is_equal(expected, ours) is equal


def test_ledger_has_counts_or_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = compare_values(NAME, facts_of(NAME))
    assert script_cell(NAME) == f"{found.equal} of {found.compared}"
    monkeypatch.setattr(script_values, "FACTS", tmp_path)
    assert script_cell(NAME) == "-"

"""The frozen recipe: closed, typed, immutable, and fingerprinted by its mathematics."""

import copy
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from components.config.check import check_recipe, read_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.schema.types import Count, OrNone, Section
from components.config.validation import read_section
from components.errors import RecipeError
from tests.components.config.helpers import read_values, refusals, teuken


def changed(tree: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    copied = copy.deepcopy(tree)
    *parents, last = path.split(".")
    here = copied
    for step in parents:
        here = here[step]
    here[last] = value
    return copied


@pytest.mark.parametrize(
    ("words", "message"),
    refusals(r"""
budget.total_tokens=0 -> budget\.total_tokens: input should be greater than 0, got 0
budget.total_tokens=6T -> budget\.total_tokens: input should be a valid integer
budget.warmup=1 -> budget\.warmup: unknown key
budgets={} -> budgets: unknown key -> did you mean budget
parallelism.zero=4 -> parallelism\.zero: input should be 0, 1, 2 or 3, got 4
precision.compute=bf17 -> precision\.compute: .*got 'bf17'
precision.reduce=int8 -> precision\.reduce: .*'float64', got 'int8'
data.shares.en=-0.1 -> data\.shares\.en: input should be greater than or equal to 0
data.shares.en=0.5 -> data\.shares: 24 shares add up to 1\.100000, not 1
data.sources.xx={} -> data\.sources\.xx: this source has no share
model.attention.num_kv_heads=3 -> model\.attention\.num_kv_heads: 3 does not divide
model.padded_vocab_size=9 -> model\.padded_vocab_size: 9 is less than model\.vocab_size 250,680
tokenizer.vocab_size=300000 -> tokenizer\.vocab_size: 300,000 is more than model\.vocab_size
budget.sequence_length=4095 -> nearest valid values: 4,192,\d+ and 4,196,\d+|nearest
budget.total_tokens=4194303 -> budget\.total_tokens: 4,194,303 is less than budget
parallelism.data=64 -> data 64 x expert 1 .* = 256 ranks, but cluster\.ranks is 512
parallelism.microbatch_sequences=3 -> 1024 sequences per step are not a multiple of 128
name=Teuken 7B -> name: string should match pattern
"""),
)
def test_a_wrong_value_is_named_with_path_value_and_rule(full_tree, words, message):
    ((path, value),) = read_values(words).items()
    with pytest.raises(RecipeError, match=message):
        check_recipe(changed(full_tree, path, value))


def test_files_and_embedded_text_exclude_each_other(full_tree: dict[str, Any]) -> None:
    source = {"files": ["a.txt"], "embedded": "eu24/en"}
    with pytest.raises(
        RecipeError, match=r"data\.sources\.en: files and embedded are mutually"
    ):
        check_recipe(changed(full_tree, "data.sources.en", source))


def test_a_missing_key_is_named(full_tree: dict[str, Any]) -> None:
    tree = copy.deepcopy(full_tree)
    del tree["budget"]["seed"]
    with pytest.raises(RecipeError, match=r"budget\.seed: missing\n  set budget\.seed="):
        check_recipe(tree)


def test_all_wrong_fields_are_reported_together(full_tree: dict[str, Any]) -> None:
    tree = changed(changed(full_tree, "budget.seed", -1), "checkpoint.keep", 0)
    with pytest.raises(RecipeError) as caught:
        check_recipe(tree)
    assert "budget.seed" in str(caught.value)
    assert "checkpoint.keep" in str(caught.value)


def test_nothing_inside_can_be_changed() -> None:
    recipe = teuken()
    with pytest.raises(ValidationError, match="frozen"):
        recipe.name = "other"
    with pytest.raises(TypeError):
        recipe.model["dim"] = 1  # type: ignore[index]  # what must fail
    with pytest.raises(TypeError):
        recipe.data.shares["en"] = 1.0  # type: ignore[index]  # frozen, too
    with pytest.raises(TypeError):
        recipe.assumed["language_shares"].value["en"] = 1.0


def test_a_proof_may_ask_for_float64_throughout() -> None:
    keys = ("compute", "accumulate", "reduce")
    precision = teuken(*(f"precision.{key}=float64" for key in keys)).precision
    assert [getattr(precision, key) for key in keys] == ["float64"] * 3


def test_a_written_recipe_is_read_back_equal(tmp_path: Path) -> None:
    recipe = teuken()
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(recipe.model_dump(mode="json")))
    assert read_recipe(file) == recipe


def test_an_unreadable_recipe_names_its_file(tmp_path: Path) -> None:
    file = tmp_path / "recipe.json"
    file.write_text("{")
    with pytest.raises(RecipeError, match=r"recipe\.json: is not JSON"):
        read_recipe(file)


def test_the_fingerprint_hashes_only_mathematics() -> None:
    recipe = teuken()
    same = (
        "cluster.ranks=2",
        "checkpoint.keep=9",
        "data.folder=elsewhere",
        "evaluation.max_windows_per_source=3",
        "parallelism.microbatch_sequences=4",
        "parallelism.data_shard=1",
        "parallelism.stage_balance=layers_and_ends",
        "parallelism.rank_order=[data,pipeline,expert,context,tensor]",
    )
    assert {compute_fingerprint(teuken(word)) for word in same} == {compute_fingerprint(recipe)}
    other = (
        "model.init_from=folder",
        "optimizer.lr=1e-5",
        "budget.seed=1",
        "model.num_layers=3",
        "schedule.phases.second.end=0.0",
    )
    prints = {compute_fingerprint(teuken(word)) for word in other}
    assert len(prints | {compute_fingerprint(recipe)}) == len(other) + 1


class Inner(Section):
    size: Count
    label: str


class Outer(Section):
    part: OrNone[Inner]
    amount: Count | Literal["all"]
    words: Literal["none"] | Annotated[tuple[str, ...], Field(strict=False)]


GOOD = {"part": "none", "amount": 1, "words": "none"}


SIZE, LABEL = "part.size: input should be greater than 0, got 0", "part.label: "


@pytest.mark.parametrize(
    ("wrong", "lines"),
    [
        ({"part": {"size": 0, "label": "x"}}, [SIZE]),
        ({"part": "nothing"}, ["part: input should be 'none', got 'nothing'"]),
        (
            {"part": {"size": 0, "label": 3}},
            [SIZE, f"{LABEL}input should be a valid string, got 3"],
        ),
        ({"part": {"size": 1}}, [f"{LABEL}missing"]),
        (
            {"amount": -1},  # a number or a word: both messages
            [
                "amount: input should be greater than 0, got -1",
                "amount: input should be 'all', got -1",
            ],
        ),
    ],
)
def test_an_error_in_a_union_names_only_the_chosen_member(wrong, lines):
    with pytest.raises(RecipeError) as raised:
        read_section(Outer, GOOD | wrong, "outer")
    *said, way = str(raised.value).splitlines()
    assert said == [f"outer.{line}" for line in lines]
    assert way.startswith("  ")

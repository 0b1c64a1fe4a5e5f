"""Names that other programs use, and keys in another place: what they are called here."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from command.arguments import COMMAND_KEYS, list_config_groups
from components.config.suggestions import (
    NAMES,
    find_keys,
    meaning_of,
    other_names,
    suggest_key,
    suggest_similar,
    written_number,
)
from components.config.user_overrides import iterate_leaves
from tests.recipes.compositions import compose

ROOT = Path(__file__).resolve().parents[3]
DENSE, EXPERTS, SINGLE, WINDOWED = "teuken7b", "mula7b_a1b", "bloom1b1", "olmo3_7b"
DECAYING = ("scale=full", "schedule=wsd", "schedule.decay_tokens=1_000_000")
KNOWN = ["model", "budget", "optimizer", "run", "runs"]


def tree_of(recipe: str, *words: str) -> Mapping[str, Any]:
    return compose(recipe, *words).model_dump(mode="json")


@pytest.fixture(scope="module")
def keys() -> set[str]:
    """All that some recipe has, with the user's side of a cluster."""
    trees = [*map(tree_of, (DENSE, EXPERTS, SINGLE, WINDOWED)), tree_of(SINGLE, *DECAYING)]
    found = {path for tree in trees for path, _ in iterate_leaves(tree)}
    branches = {path.rpartition(".")[0] for path in found}
    more = {"site.account", "site.queue", "data.sources", "data.sources.NAME.files"}
    return {*found, *branches, *more, *COMMAND_KEYS, *list_config_groups()}


def test_every_meaning_is_a_key_of_some_recipe(keys: set[str]) -> None:
    last = {path.rpartition(".")[2] for path in keys if path.startswith("schedule.")}
    for name, meant in other_names().items():
        section, _, step = meant.here.rpartition(".")
        assert meant.here in keys or (section == "schedule" and step in last), name


def test_a_section_is_found_behind_any_name_of_another_program() -> None:
    tree = tree_of(DENSE)
    sections = [key for key, value in tree.items() if isinstance(value, dict) and value]
    assert len(sections) > 10
    for wrong in ("trainer", "training_args", "callbacks", "lightning", "model_args", "xyzzy"):
        for section in sections:
            key = f"{wrong}.{section}"
            assert suggest_key(key, [*tree], tree, step=wrong) == f"did you mean {section}?"
    assert suggest_key("model.precision", [*tree["model"]], tree) == "did you mean precision?"


@pytest.mark.parametrize("word", ["callbacks", "training", "lightning"])
def test_a_group_of_another_program_is_answered_by_its_sections(word: str) -> None:
    tree = tree_of(DENSE)
    found = suggest_key(word, [*tree], tree)
    named = {one for one in re.findall(r"[a-z]+", found) if one in tree}
    assert len(named) > 3
    assert "did you mean" not in found


def test_every_name_has_one_meaning() -> None:
    rows = yaml.safe_load(NAMES.read_text("utf-8"))
    names = Counter(name for row in rows for name in row["for"])
    assert [name for name, count in names.items() if count > 1] == []
    assert len(other_names()) == len(names) > 200
    assert all(name == name.lower() and "-" not in name for name in names)


@pytest.mark.parametrize(
    ("key", "way"),
    [
        ("seed", "use budget.seed"),
        ("optimizer.learning_rate", "use optimizer.lr"),
        ("Learning-Rate", "use optimizer.lr"),
        ("trainer.max_steps", "use budget.total_tokens (in tokens: steps x "),
        ("budget.steps", "use budget.total_tokens (in tokens"),
        ("eps", "did you mean optimizer.eps or model.norm.eps?"),
        ("norm.eps", "did you mean model.norm.eps?"),
        ("modle.dim", "did you mean model?"),
        ("clip_after_tokens", "did you mean optimizer.clip_after_tokens?"),
        ("xyzzy", "known: budget, model, optimizer, run, runs"),
    ],
)
def test_a_key_is_answered_by_meaning_by_spelling_or_by_place(key: str, way: str) -> None:
    tree = {
        "optimizer": {"lr": 1, "eps": 1, "clip_after_tokens": 0},
        "model": {"norm": {"eps": 1}},
    }
    step = key.partition(".")[0]
    assert suggest_key(key, KNOWN, tree, step=step).startswith(way)


def test_a_misspelling_in_its_section_goes_before_a_meaning_in_another() -> None:
    assert suggest_key("tokenizer.vocab_sizes", ["vocab_size"]) == "did you mean vocab_size?"


def test_a_key_that_a_recipe_has_in_several_places_is_named_in_each() -> None:
    phases = {"first": {"warmup_tokens": 1}, "second": {"warmup_tokens": 1}}
    tree = {"schedule": {"phases": phases}}
    first, second = (f"schedule.phases.{one}.warmup_tokens" for one in phases)
    assert suggest_key("warmup_steps", [], tree).startswith(f"use {first} or {second} (")
    assert suggest_key("warmup_steps", []).startswith("use schedule.warmup_tokens (")


def test_a_name_in_many_places_is_none_that_is_worth_listing() -> None:
    tree: dict[str, Any] = {"sources": {f"s{number}": {"files": []} for number in range(9)}}
    assert find_keys("files", tree) == []


def test_the_choice_of_a_group_has_no_meaning_by_its_last_step() -> None:
    assert meaning_of("recipe=./my.lr") is None
    assert meaning_of("precision=fp32") is not None


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ("1M", 1_000_000),
        ("1.5B", 1_500_000_000),
        ("2 k", 2_000),
        ("1,000,000", 1_000_000),
        (1e9, 1_000_000_000),
        ("6e-4", 6e-4),
        ("1.2.3", None),
        ("many", None),
        (None, None),
        (True, None),
    ],
)
def test_a_number_is_read_as_people_write_it(given: object, number: float | None) -> None:
    assert written_number(given, whole=False) == number
    assert written_number(12.5, whole=True) is None  # a fraction


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("lr", ["lr2", "x"], "lr2"),
        ("marenostum5", ["marenostrum5", "lumi"], "marenostrum5"),
        ("teuken7", ["teuken7b", "mula7b_a1b"], "teuken7b"),
        ("hopper2025", ["hopper_2025", "hopper"], "hopper_2025"),
        ("jeanzay", ["jean_zay", "lumi"], "jean_zay"),
        ("bloom", ["bloom3b", "lumi"], "bloom3b"),
        ("bfloat16", ["bf16", "fp16"], "bf16"),
        ("q", ["lr", "x"], None),
        # A name with other numbers is no misspelling.
        ("marenostrum4", ["lumi", "marenostrum5"], None),
        ("h100", ["h200", "hopper"], None),
        ("bpe_llama2", ["bpe_gpt2", "bpe_llama3"], None),
        ("gpt2", ["gpt20b", "mula1b"], None),
        ("fp32", ["fp16", "fp8"], None),
        ("beta3", ["beta1", "beta2"], None),
    ],
)
def test_a_misspelling_is_answered_and_else_all_are_listed(word, known, meant):
    answer = f"did you mean {meant}?" if meant else f"known: {', '.join(known)}"
    assert suggest_similar(word, known[::-1]) == answer


def test_of_many_names_the_similar_ones_are_listed_as_such() -> None:
    many = ["olmo2_1b", "olmo2_7b", *(f"other{number}" for number in range(30))]
    assert suggest_similar("olmo2_8b", many) == "similar names: olmo2_7b, olmo2_1b"
    assert suggest_similar("q", []) == "known: none"

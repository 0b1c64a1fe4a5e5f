"""The section ``data.preparation`` as a recipe gets it."""

from pathlib import Path
from typing import Any

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.check import read_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.key_groups import KeyGroup, find_declared_group
from components.config.recipe import Recipe
from components.config.schema.data import Preparation
from components.errors import RecipeError

CONF = Path(__file__).resolve().parents[3] / "conf" / "preparation"
PRESETS = sorted(file.stem for file in CONF.glob("*.yaml") if file.stem != "none")
AT = "data.preparation"


def compose(*words: str) -> Recipe:
    return compose_recipe(read_point(["recipe=teuken7b", *words]))


def test_nothing_is_prepared_unless_asked_for() -> None:
    assert compose().data.preparation == "none"
    assert compose("preparation=none").data.preparation == "none"


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_preparation_of_which_the_user_sets_single_keys(
    name: str, tmp_path: Path
) -> None:
    recipe = compose(f"preparation={name}", f"{AT}.workers=3", f"{AT}.shard_bytes=1_000")
    assert isinstance(recipe.data.preparation, Preparation)
    assert (recipe.data.preparation.workers, recipe.data.preparation.shard_bytes) == (3, 1_000)
    (tmp_path / "recipe.json").write_text(recipe.model_dump_json())
    assert read_recipe(tmp_path / "recipe.json") == recipe


def test_who_does_the_work_is_no_part_of_the_mathematics() -> None:
    words = {"executor": "ray", "workers": "7", "most_jobs": "3", "wait": "false"}
    keys = {
        key
        for key in Preparation.model_fields
        if find_declared_group(f"{AT}.{key}") is KeyGroup.MACHINE
    }
    assert words.keys() == keys
    plain = compute_fingerprint(compose("preparation=plain"))
    for key, value in words.items():
        assert compute_fingerprint(compose("preparation=plain", f"{AT}.{key}={value}")) == plain
    assert compute_fingerprint(compose("preparation=plain", f"{AT}.shard_bytes=7")) != plain
    assert compute_fingerprint(compose("preparation=engine")) != plain


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "exact_duplicates={unit: line}",
            r"exact_duplicates\.unit: .*'document', got 'line'\n",
        ),
        (
            "exact_duplicates={units: 1}",
            r"exact_duplicates\.units: unknown key\n.*unit: missing\n  did you mean unit",
        ),
        (
            "exact_duplicates=document",
            r"exact_duplicates: .*'none', got 'document'\n  write none, or a mapping",
        ),
        ("near_duplicates={ngram: 0}", r"near_duplicates\.ngram: .*greater than 0, got 0"),
        ("read.invalid=ignore", r"read\.invalid: .*'refuse' or 'remove', got 'ignore'\n"),
        ("executor=pbs", r"executor: .*'local', 'array' or 'ray', got 'pbs'\n"),
        ("worker=2", r"worker: unknown key\n  .*workers"),
    ],
)
def test_a_wrong_key_or_value_is_named_once_by_its_own_path(word: str, message: str) -> None:
    with pytest.raises(RecipeError, match=rf"(?s)^data\.preparation\.{message}"):
        compose("preparation=engine", f"{AT}.{word}")


def test_a_source_says_its_language_or_nothing() -> None:
    sources: dict[str, Any] = {"en": {"embedded": "eu24/en", "language": "en"}}
    words = f"data.sources={sources}".replace("'", ""), "data.shares={en: 1.0}"
    recipe = compose(*words)
    assert recipe.data.sources["en"].language == "en"
    assert "language" not in compose().data.sources["en"].model_dump(mode="json")

"""The section ``data.preparation``: presets, keys, and the settings of its steps."""

import copy
from pathlib import Path

import pytest
import yaml

from components.config.check import read_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.key_groups import KeyGroup, find_declared_group
from components.config.schema.data import Preparation
from components.config.schema.document_steps import DocumentSteps, TextRatios
from components.config.validation import read_section
from components.errors import RecipeError
from tests.components.config.helpers import assert_refused, refusals, teuken

CONF = Path(__file__).resolve().parents[3] / "conf" / "preparation"
PRESETS = sorted(file.stem for file in CONF.glob("*.yaml") if file.stem != "none")
AT = "data.preparation"


def test_nothing_is_prepared_unless_asked_for() -> None:
    assert teuken().data.preparation == "none"
    assert teuken("preparation=none").data.preparation == "none"


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_preparation_of_which_the_user_sets_single_keys(name, tmp_path):
    recipe = teuken(f"preparation={name}", f"{AT}.workers=3", f"{AT}.shard_bytes=1_000")
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
    plain = compute_fingerprint(teuken("preparation=plain"))
    for key, value in words.items():
        assert compute_fingerprint(teuken("preparation=plain", f"{AT}.{key}={value}")) == plain
    assert compute_fingerprint(teuken("preparation=plain", f"{AT}.shard_bytes=7")) != plain
    assert compute_fingerprint(teuken("preparation=engine")) != plain


@pytest.mark.parametrize(
    ("word", "message"),
    refusals(r"""
exact_duplicates={unit: line} -> exact_duplicates\.unit: .*'document', got 'line'
exact_duplicates={units: 1}
    exact_duplicates\.units: unknown key.*unit: missing -> did you mean unit
exact_duplicates=document
    exact_duplicates: .*'none', got 'document' -> write none, or a mapping
near_duplicates={ngram: 0} -> near_duplicates\.ngram: .*greater than 0, got 0
read.invalid=ignore -> read\.invalid: .*'refuse' or 'remove', got 'ignore'
executor=pbs -> executor: .*'local', 'array' or 'ray', got 'pbs'
worker=2 -> worker: unknown key -> .*workers
"""),
)
def test_a_wrong_key_or_value_is_named_once_by_its_own_path(word: str, message: str) -> None:
    said = rf"(?s)^data\.preparation\.{message}"
    assert_refused(f"{AT}.{word}", said, "preparation=engine")


def test_a_source_says_its_language_or_nothing() -> None:
    source = "data.sources={en: {embedded: eu24/en, language: en}}"
    recipe = teuken(source, "data.shares={en: 1.0}")
    assert recipe.data.sources["en"].language == "en"
    assert "language" not in teuken().data.sources["en"].model_dump(mode="json")


@pytest.fixture
def tree():
    files = [CONF / f"{name}.yaml" for name in ("engine", "plain", "roots")]
    merged = {k: v for f in files for k, v in yaml.safe_load(f.read_text("utf-8")).items()}
    return copy.deepcopy({key: merged[key] for key in DocumentSteps.model_fields})


def test_every_preset_of_a_work_is_over_plain():
    presets = {file.stem: yaml.safe_load(file.read_text("utf-8")) for file in CONF.glob("*")}
    assert len(presets) >= 7
    assert presets.pop("none") == {"preparation": "none"}
    assert "defaults" not in presets.pop("engine")
    assert presets.pop("plain")["defaults"] == ["engine"]
    assert all(content["defaults"] == ["plain"] for content in presets.values())


def test_each_section_may_be_none(tree):
    nothing = dict.fromkeys(tree, "none")
    assert read_section(DocumentSteps, nothing, AT).model_dump() == nothing


NGRAMS = {"min_tokens": 1, "max_tokens": 2, "repeats": 2}


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        ("language.minimum_score", {"en": 0.5}, "missing key default"),
        ("language.minimum_score.en", 1.5, "less than or equal to 1, got 1.5"),
        ("filters.text_ratios.languages", {}, "missing key default"),
        ("filters.text_ratios.languages.en.words", "letters", "spaces_and_pairs"),
        ("filters.text_ratios.languages.en.stopwords", 0.5, "unknown key"),
        ("filters.repeated_ngrams", {**NGRAMS, "repeats": 1}, ">= 2|equal"),
        ("filters.repeated_ngrams", {**NGRAMS, "min_tokens": 3},
         "max_tokens: value error, is below min_tokens 3, got 2"),
        ("normalise.unicode_form", "NFD", "'NFC' or 'NFKC'"),
        ("personal_data.emails", None, "valid string"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_is_refused_by_its_path(tree, place, value, problem):
    *parents, key = place.split(".")
    section = tree
    for name in parents:
        section = section[name]
    section[key] = value
    with pytest.raises(RecipeError, match=problem) as failure:
        read_section(DocumentSteps, tree, AT)
    assert f"{AT}.{parents[0]}" in str(failure.value)


def test_roots_limits_are_the_published_table(tree):
    """The keys that every language sets, from parameters_filtering.py."""
    limits = read_section(TextRatios, tree["filters"]["text_ratios"], AT).languages
    columns = ("min_words", "character_repetition", "word_repetition", "special_characters")
    rows = {name: tuple(getattr(row, key) for key in columns) for name, row in limits.items()}
    assert rows == {
        "default": (10, 0.2, 0.3, 0.4),
        "ar": (20, 0.20, 0.34, 0.30),
        "bn": (33, 0.13, 0.21, 0.45),
        "ca": (15, 0.20, 0.40, 0.25),
        "en": (20, 0.106, 0.19, 0.40),
        "es": (16, 0.14, 0.25, 0.34),
        "eu": (8, 0.20, 0.40, 0.31),
        "fr": (13, 0.14, 0.13, 0.34),
        "hi": (38, 0.18, 0.47, 0.45),
        "id": (15, 0.15, 0.20, 0.34),
        "pt": (19, 0.25, 0.98, 0.35),
        "ur": (25, 0.19, 0.50, 0.25),
        "vi": (30, 0.15, 0.20, 0.34),
        "zh": (1, 0.20, 0.96, 0.30),
    }

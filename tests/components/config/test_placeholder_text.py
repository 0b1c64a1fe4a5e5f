"""What a miniature reads: a user's own text alone, or embedded text in its place."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from tests.components.config.own_recipe import compose_own


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def own(source: dict[str, Any], *words: str) -> Recipe:
    return compose_own({"data.sources.mine": source}, *words)


A_TXT: dict[str, Any] = {"files": ["a.txt"]}


def test_a_recipe_of_its_own_text_reads_nothing_else() -> None:
    Path("a.txt").write_text("x")
    recipe = own({**A_TXT, "most_epochs": 9})
    assert dict(recipe.data.shares) == {"mine": 1.0}
    assert recipe.data.sources["mine"].most_epochs == 9
    assert recipe.data.held_out_fraction == 0.005  # the recipe's
    assert recipe.scale.shrink.filler == {}  # type: ignore[union-attr]  # not "none" here


def test_shares_of_ones_own_stay_to_the_last_digit() -> None:
    Path("a.txt").write_text("x")
    shares = {"a": 0.1, "b": 0.2, "c": 0.7}
    recipe = compose_own({
        "data.shares": shares,
        "data.sources": {name: deepcopy(A_TXT) for name in shares},
    })
    assert dict(recipe.data.shares) == shares


def test_beside_a_published_corpus_filler_stay() -> None:
    Path("a.txt").write_text("x")
    recipe = compose_recipe(read_point(["recipe=teuken7b", "data.sources.de.files=[a.txt]"]))
    assert recipe.data.shares["python_source"] == 0.6
    assert recipe.data.held_out_fraction == 0.05

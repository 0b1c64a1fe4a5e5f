"""What `make parity` proves can be proved, of every recipe; what it finds becomes rows."""

from typing import Any

import pytest
import yaml

from benchmarks.ledger.parity import LAYOUTS, key_of, listed_layouts, main, prove, row_of
from benchmarks.ledger.proofs import PARITY, proof_of
from benchmarks.recipes import published_recipes
from command.actions.parity import layouts_of
from command.arguments import read_point

LISTED = listed_layouts()
NOTHING = {"largest_relative_difference": None}


def test_every_recipe_has_a_layout_to_prove() -> None:
    assert {*LISTED} == {*published_recipes()}
    assert {*yaml.safe_load(LAYOUTS.read_text("utf-8"))} <= {*LISTED}


@pytest.mark.quick("mula7b_a1b", "bloom560m")
@pytest.mark.parametrize("name", LISTED)
def test_the_listed_layouts_are_ones_that_the_recipe_allows(name: str) -> None:
    for words in LISTED[name]:
        recipes = list(layouts_of(read_point([f"recipe={name}", "action=parity", *words])))
        assert all(recipe.cluster.ranks > 1 for recipe in recipes)


def proof(**changes: object) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "label": "data 2",
        "ranks": 2,
        "holds": True,
        "precision": "float64",
        "tolerance": 1e-8,
        "layout": {"engine": "mesh"},
        "seconds": 3.0,
        "loss": {"largest_relative_difference": 1e-16},
        "gradient_norm": {"largest_relative_difference": 2e-16},
        "gradient": {"largest_relative_difference": 3e-16},
        "weight": {"largest_relative_difference": 4e-16},
        "float32": {"loss": {"largest_relative_difference": 1e-7}},
    }
    return tree | changes


def test_a_row_has_the_figures_and_the_keys_that_were_named() -> None:
    words = ["model.num_layers=7", "layouts=[{data: 2}]"]
    row = row_of("bloom560m", words, proof())
    assert [row[key] for key in ("loss", "weight", "float32_loss")] == [1e-16, 4e-16, 1e-7]
    assert key_of(row) == ("bloom560m", "data 2", "model.num_layers=7")
    assert proof_of(PARITY, row).stands
    assert "deepspeed" not in row["versions"]
    # Of ranks that failed there is no more than this.
    failed = proof(holds=False, loss=NOTHING, gradient=NOTHING)
    for part in ("gradient_norm", "weight", "float32"):
        del failed[part]
    broken = row_of("bloom560m", words, failed)
    assert broken["weight"] is None
    assert not proof_of(PARITY, broken).stands


def test_a_proof_that_says_nothing_is_told() -> None:
    with pytest.raises(RuntimeError, match="bloom560m: nonsense: exit status 2"):
        prove("bloom560m", ["nonsense"])


def test_a_recipe_that_is_not_published_is_told_before_any_is_proved(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bloom560m", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("nothing: no published recipe")

"""`make parity` has valid layouts for every recipe, and saves its proofs as rows."""

from typing import Any

import pytest
import yaml

from benchmarks.ledger.parity import (
    LAYOUTS,
    key_of,
    listed_layouts,
    main,
    prove_layouts,
    row_of,
)
from benchmarks.ledger.proofs import PARITY, read_proof
from benchmarks.recipes import published_recipes
from command.actions.parity import layouts_of
from command.arguments import read_point

LISTED = listed_layouts()
MISSING = {"largest_relative_difference": None}


def test_every_recipe_has_a_layout_to_prove() -> None:
    assert {*LISTED} == {*published_recipes()}
    assert {*yaml.safe_load(LAYOUTS.read_text("utf-8"))} <= {*LISTED}


@pytest.mark.quick("mula7b_a1b", "bloom560m")
@pytest.mark.parametrize("name", LISTED)
def test_the_recipe_allows_its_listed_layouts(name: str) -> None:
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


def test_a_row_has_the_figures_and_the_other_keys_of_the_command() -> None:
    words = ["model.num_layers=7", "layouts=[{data: 2}]"]
    row = row_of("bloom560m", words, proof())
    assert [row[key] for key in ("loss", "weight", "float32_loss")] == [1e-16, 4e-16, 1e-7]
    assert key_of(row) == ("bloom560m", "data 2", "model.num_layers=7")
    assert read_proof(PARITY, row).is_valid
    assert "deepspeed" not in row["versions"]
    # A proof of failed ranks has only these fields.
    failed = proof(holds=False, loss=MISSING, gradient=MISSING)
    for part in ("gradient_norm", "weight", "float32"):
        del failed[part]
    broken = row_of("bloom560m", words, failed)
    assert broken["weight"] is None
    assert not read_proof(PARITY, broken).is_valid


def test_a_proof_without_output_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="bloom560m: nonsense: exit status 2"):
        prove_layouts("bloom560m", ["nonsense"])


def test_an_unknown_recipe_is_an_error_before_the_first_proof(capsys):
    assert main(["bloom560m", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("not a published recipe: nothing")

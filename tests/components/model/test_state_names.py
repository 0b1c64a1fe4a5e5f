"""Weight names never change: checkpoints and initial values depend on them."""

import re
from pathlib import Path

import pytest
import torch
import yaml

from components.build import build_node
from tests.recipes.compositions import composed

FILE = Path(__file__).with_name("state_names.yaml")
NAMES = yaml.safe_load(FILE.read_text("utf-8"))


@pytest.mark.parametrize("recipe", NAMES)
def test_a_family_keeps_the_names_of_its_weights(recipe: str) -> None:
    with torch.device("meta"):
        model = build_node(composed(recipe, "mini").model, "model")
    names = {re.sub(r"\d+", "N", name) for name in model.state_dict()}
    assert sorted(names) == sorted(NAMES[recipe].split())

"""Layers of a rank are built as the layout of the recipe requires."""

from types import MethodType

import pytest
import torch

from components.dryrun.fake_world import fake_world, trainer_of
from components.engine.parallelize import build_rank_model
from tests.recipes.compositions import compose

TINY = ("scale=mini", "model.dim=32", "model.num_layers=2")


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method.")  # the compiler's own imports
@pytest.mark.parametrize("compiles", ["none", "layers"])
def test_layers_are_compiled_if_the_recipe_asks_for_it(compiles: str) -> None:
    recipe = compose("teuken7b", *TINY, f"parallelism.compile={compiles}")
    with fake_world(0, 1):
        (decoder,) = build_rank_model(
            recipe,
            trainer_of(recipe).strategy.mesh,  # type: ignore[attr-defined]  # of a MeshStrategy
            device=torch.device("cpu"),
        ).stages
    plain = [isinstance(layer.forward, MethodType) for layer in decoder.layers.values()]
    assert plain == [compiles == "none"] * 2

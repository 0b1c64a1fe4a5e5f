"""A step in float8, rehearsed: the products of bfloat16, without the weights cast for them."""

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.dryrun.rehearsal import StepTrace, run_two_steps

WORDS = (
    *("recipe=teuken7b", "scale=mini", "model.num_layers=2", "cluster.device=cuda"),
    *("parallelism.microbatch_sequences=1", "budget.sequence_length=64"),
    *("budget.global_batch_tokens=256", "budget.total_tokens=2560"),
)

pytestmark = pytest.mark.filterwarnings(  # torch's own import of Triton's compiler
    "ignore:.torch.jit.script_method."
)


def found(compute: str) -> tuple[Recipe, StepTrace]:
    words = [*WORDS, "model.mlp.ffn_dim=832", f"precision.compute={compute}"]
    words += ["precision.weights=float32"]  # as those of float8 are
    recipe = compose_recipe(read_point(words))
    return recipe, run_two_steps(recipe, 0)


@pytest.mark.long
def test_casts_of_the_layers_weights_are_gone_and_the_products_are_the_same() -> None:
    recipe, float8 = found("float8")
    _, bfloat16 = found("bfloat16")
    assert float8.flops == bfloat16.flops
    shape = recipe.decoder_spec
    maps = shape.attention.count_parameters(shape.dim) + shape.mlp.expert_parameters(shape.dim)
    casts = [one.peaks["forward"].by_category["casts"] for one in (float8, bfloat16)]
    assert casts[1] - casts[0] == 2 * shape.num_layers * maps

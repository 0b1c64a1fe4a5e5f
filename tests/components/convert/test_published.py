"""Recipes and miniatures have a class; configurations on the hub describe their models."""

from typing import Any

import pytest

from benchmarks.recipes import published_recipes
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.model_spec.decoder import DecoderSpec
from components.config.part_nodes import read_decoder
from components.convert.family import choose_family
from components.errors import RecipeError
from tests.components.convert.conftest import published

Config = dict[str, Any]
# Latent attention with scaled rotations; experts without norms of queries and keys.
NO_CLASS = ("dsv3_1t", "euromoe_2b6_a0b6")
# Excerpts of published config.json files.
# openGPT-X/Teuken-7B-instruct-commercial-v0.4
TEUKEN: Config = {"model_type": "llama", "hidden_size": 4_096, "intermediate_size": 13_440}
TEUKEN |= {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 2}
TEUKEN |= {"hidden_act": "silu", "rms_norm_eps": 1e-05, "vocab_size": 250_680}
TEUKEN |= {"rope_theta": 10000.0, "rope_scaling": None, "pretraining_tp": 1}
TEUKEN |= {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True}
# bigscience/bloom-7b1
BLOOM: Config = {"model_type": "bloom", "hidden_size": 4_096, "n_layer": 30, "n_head": 32}
BLOOM |= {"vocab_size": 250_880, "masked_softmax_fusion": True, "seq_length": 2_048}
OLMOE = published("olmoe_1b_7b")  # the shape of mula7b_a1b
PUBLISHED = {"teuken7b": TEUKEN, "bloom7b1": BLOOM, "mula7b_a1b": OLMOE}


def features(recipe: str, scale: str) -> DecoderSpec:
    recipe_at_scale = compose_recipe(read_point([f"recipe={recipe}", f"scale={scale}"]))
    return read_decoder(recipe_at_scale.model)


@pytest.mark.quick("teuken7b", "bloom560m")
@pytest.mark.parametrize(
    "recipe", [name for name in published_recipes() if name not in NO_CLASS]
)
def test_every_recipe_and_its_miniature_have_the_same_class(recipe: str) -> None:
    full, mini = (choose_family(features(recipe, scale)) for scale in ("full", "mini"))
    assert full is mini


@pytest.mark.parametrize(("recipe", "scale"), [(NO_CLASS[0], "full"), (NO_CLASS[1], "mini")])
def test_a_model_without_a_class_is_refused(recipe: str, scale: str) -> None:
    with pytest.raises(RecipeError, match="no Hugging Face class supports this"):
        choose_family(features(recipe, scale))


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_a_published_configuration_describes_the_recipes_model(recipe: str) -> None:
    config = PUBLISHED[recipe]
    wanted = features(recipe, "full")
    family = choose_family(wanted)
    assert family.model_type == config["model_type"]
    assert family.read_hf_config(config) == family.write_hf_config(wanted)
    assert config["vocab_size"] == wanted.vocab_size

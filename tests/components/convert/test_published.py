"""Every recipe has a class; the configurations on the hub are understood as its model."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.recipes import published_recipes
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.model_spec.decoder import DecoderSpec
from components.config.part_nodes import read_decoder
from components.convert.family import choose_family
from components.errors import RecipeError

# Latent attention with slowed rotations; experts without norms of queries and keys.
NO_CLASS = ("dsv3_1t", "euromoe_2b6_a0b6")
ROOT = Path(__file__).resolve().parents[3]
# Excerpts of config.json as published, in the spelling of their time.
PUBLISHED: dict[str, dict[str, Any]] = {
    "teuken7b": {  # openGPT-X/Teuken-7B-instruct-commercial-v0.4
        "model_type": "llama", "hidden_size": 4_096, "intermediate_size": 13_440,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 2,
        "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": True, "vocab_size": 250_680, "pretraining_tp": 1,
    },
    "bloom7b1": {  # bigscience/bloom-7b1
        "model_type": "bloom", "hidden_size": 4_096, "n_layer": 30, "n_head": 32,
        "vocab_size": 250_880, "masked_softmax_fusion": True, "seq_length": 2_048,
    },
    "mula7b_a1b": {  # allenai/OLMoE-1B-7B-0924, whose shape it has
        "model_type": "olmoe", "hidden_size": 2_048, "intermediate_size": 1_024,
        "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16,
        "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": False,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "rope_scaling": None, "clip_qkv": None,
        "tie_word_embeddings": False, "vocab_size": 50_304,
    },
}  # fmt: skip


def features(recipe: str, scale: str) -> DecoderSpec:
    return read_decoder(
        compose_recipe(read_point([f"recipe={recipe}", f"scale={scale}"])).model
    )


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
def test_a_published_configuration_states_the_recipes_model(recipe: str) -> None:
    config = PUBLISHED[recipe]
    wanted = features(recipe, "full")
    family = choose_family(wanted)
    assert family.model_type == config["model_type"]
    assert family.read_hf_config(config) == family.write_hf_config(wanted)
    assert config["vocab_size"] == wanted.vocab_size

"""Gemma 3 adds 1 to the weights of norms and multiplies embeddings by a root."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig
from transformers.models.gemma3.modeling_gemma3 import (
    Gemma3RMSNorm,
    Gemma3TextScaledWordEmbedding,
)

from components.build import build_node
from components.config.part_nodes import read_decoder
from components.convert.config_json import check_same, read_config
from components.convert.family import choose_family
from components.errors import RecipeError
from tests.components.convert.base_section import Section
from tests.components.convert.conftest import Export, gemma3, published, random_model
from tests.components.convert.test_config_json import put
from tests.components.convert.test_open_models import GEMMA3, GEMMA3_27B, section_of
from tests.components.convert.test_reading import edit_tensors, read

WIDTH, LOCAL = 1_152, "sliding_attention"


def test_weights_in_bfloat16_are_widened_before_1_is_added(export: Export) -> None:
    """A sum in bfloat16 would keep only 7 bits after the binary point."""
    folder, small = export(random_model(gemma3()), gemma3()), torch.arange(48) * 2.0**-12
    name = "layers.1.post_feedforward_layernorm.weight"
    edit_tensors(folder, lambda tensors: tensors.update({f"model.{name}": small.bfloat16()}))
    found = read(folder, gemma3()).get_parameter("layers.1.mlp_norm_after.weight")
    assert torch.equal(found, 1 + small.bfloat16().float())


def test_small_weights_are_restored_within_half_a_unit_of_1(export: Export) -> None:
    model = random_model(gemma3())
    weight = model.get_parameter("final_norm.weight")
    with torch.no_grad():
        weight.uniform_(-1.0, 0.5, generator=torch.Generator().manual_seed(3))
    found = read(export(model, gemma3()), gemma3()).get_parameter("final_norm.weight")
    distance = (found - weight).abs().max().item()
    assert 0 < distance <= 2.0**-24


def test_a_new_norm_equals_a_new_norm_of_the_class() -> None:
    fresh = Gemma3RMSNorm(48)
    assert not fresh.weight.any()
    model = build_node(gemma3(), "model")
    assert torch.equal(model.final_norm.weight, 1 + fresh.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_embeddings_are_multiplied_in_the_precision_of_the_class(dtype: torch.dtype) -> None:
    """In bfloat16 the root of 1,152, 33.94, is 34."""
    model = build_node(section_of(GEMMA3 | {"num_hidden_layers": 1, "vocab_size": 64}), "model")
    theirs = Gemma3TextScaledWordEmbedding(64, WIDTH, 0, WIDTH**0.5)
    with torch.no_grad():
        theirs.weight.copy_(model.embedding.weight.normal_(std=0.02))
    tokens, placed = torch.arange(64)[None], model.positions(torch.arange(64))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = model._embed(tokens, placed)
    assert found.dtype == dtype
    assert torch.equal(found, theirs.to(dtype)(tokens))


@pytest.mark.parametrize("config", [GEMMA3, GEMMA3_27B], ids=["1B", "27B"])
def test_both_spellings_of_rotations_give_the_same_model(config: Section) -> None:
    features = read_decoder(section_of(config))
    family = choose_family(features)
    newer = AutoConfig.for_model(**config).to_dict()
    assert not newer.keys() & {"rope_theta", "rope_local_base_freq", "rope_scaling"}
    ours = family.write_hf_config(features)
    assert family.read_hf_config(newer) == family.read_hf_config(config) == ours
    again = AutoConfig.for_model("gemma3_text", **ours).to_dict()
    for key in ("rope_parameters", "layer_types", "sliding_window", "query_pre_attn_scalar"):
        assert again[key] == newer[key]


def test_irregular_layers_have_no_interval(tmp_path: Path) -> None:
    types = [LOCAL, "full_attention", "full_attention", *24 * [LOCAL]]
    family = choose_family(read_decoder(section_of(GEMMA3)))
    irregular = family.read_hf_config(GEMMA3 | {"layer_types": types})
    assert irregular["sliding_window_pattern"] is None
    short = GEMMA3 | {"layer_types": 4 * [LOCAL], "num_hidden_layers": 4}
    assert family.read_hf_config(short)["sliding_window_pattern"] == 5
    slowed = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}
    config = published("gemma3_1b") | {"rope_parameters": {LOCAL: slowed}}
    with pytest.raises(RecipeError, match=r"rope_parameters: .*'linear'.* but recipes"):
        check_same(read_config(put(tmp_path, config)), section_of(GEMMA3))

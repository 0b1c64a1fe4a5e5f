"""Shrunk published configurations compute what their classes compute.

``transformers`` has no class for opensci models, which are Qwen3 with more biases.
"""

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from components.config.part_nodes import read_decoder
from components.convert.family import choose_family
from components.convert.folder import their_tensors
from tests.components.convert.conftest import published, random_model
from tests.components.convert.test_open_models import (
    APERTUS,
    DEEPSEEK,
    GEMMA3,
    GEMMA3_27B,
    MISTRAL,
    OLMO2,
    OLMO3,
    QWEN3,
    QWEN3_MOE,
    SMOLLM3,
    Config,
    section_of,
    theirs_of,
)
from tests.components.convert.test_parity import (
    GRADIENT_TOLERANCE,
    LOGITS_TOLERANCE,
    distance,
    gradients_of,
    in_memory,
    mapped_gradients,
)

SMALLER: Config = {"hidden_size": 64, "intermediate_size": 172, "vocab_size": 301}
FEWER: Config = {"num_attention_heads": 4, "num_key_value_heads": 2}
SMALL: dict[str, Config] = {
    "olmo2": OLMO2 | SMALLER | {"num_hidden_layers": 3},
    "smollm3": SMOLLM3 | SMALLER | {"num_hidden_layers": 5},
    "qwen3": QWEN3 | SMALLER | {"num_hidden_layers": 3, "head_dim": 8},
    # Windows and the original length are shorter than the 64 tokens of a row.
    "olmo3": OLMO3
    | SMALLER
    | FEWER
    | {"num_hidden_layers": 5, "sliding_window": 11, "max_position_embeddings": 128}
    | {"layer_types": OLMO3["layer_types"][:5]}
    | {"rope_scaling": OLMO3["rope_scaling"] | {"original_max_position_embeddings": 16}},
    "mistral": MISTRAL | SMALLER | FEWER | {"num_hidden_layers": 3, "sliding_window": 11},
    # The sixth of seven layers sees all keys.
    "gemma3_1b": GEMMA3
    | SMALLER
    | {"num_hidden_layers": 7, "head_dim": 8, "query_pre_attn_scalar": 8}
    | {"sliding_window": 11},
    "gemma3_27b": GEMMA3_27B
    | SMALLER
    | FEWER
    | {"num_hidden_layers": 7, "head_dim": 8, "query_pre_attn_scalar": 16}
    | {"sliding_window": 11},
    "apertus": APERTUS | SMALLER | {"num_hidden_layers": 3, "num_attention_heads": 8},
    "qwen3_moe": QWEN3_MOE
    | SMALLER
    | {"num_hidden_layers": 2, "head_dim": 8, "moe_intermediate_size": 24},
    "deepseek_v3": DEEPSEEK
    | SMALLER
    | {"num_hidden_layers": 3, "moe_intermediate_size": 24, "first_k_dense_replace": 1}
    | {"num_attention_heads": 8, "num_key_value_heads": 8, "qk_rope_head_dim": 4}
    | {"qk_nope_head_dim": 8, "v_head_dim": 8, "q_lora_rank": 24, "kv_lora_rank": 16}
    | {"n_routed_experts": 32},
}


@pytest.mark.parametrize("model", SMALL)
def test_logits_and_gradients_of_shrunk_models_equal_their_class(model: str) -> None:
    config = SMALL[model]
    section = section_of(config)
    features = read_decoder(section)
    family = choose_family(features)
    ours, theirs = random_model(section), theirs_of(config).eval()

    def mapped(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        one_by_one = their_tensors(tensors, family, features, rows=config["vocab_size"])
        return in_memory(dict(one_by_one), section)

    found = theirs.load_state_dict(mapped(ours.state_dict()), strict=False)
    assert not found.unexpected_keys
    assert set(found.missing_keys) <= {"lm_head.weight"}  # tied
    batch = torch.randint(301, (2, 65), generator=torch.Generator().manual_seed(5))
    inputs, targets = batch[:, :-1], batch[:, 1:]
    logits = theirs(inputs).logits
    assert distance(ours(inputs), logits) < LOGITS_TOLERANCE
    F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    ours.compute_loss(inputs, targets).backward()  # type: ignore[operator]  # a decoder's own method
    moved = mapped_gradients(gradients_of(ours), features, rows=config["vocab_size"])
    for name, gradient in in_memory(moved, section).items():
        if name not in dict(theirs.named_parameters()):
            continue
        wanted = theirs.get_parameter(name).grad
        assert distance(gradient, wanted) < GRADIENT_TOLERANCE, name


OPENSCI = published("opensci_1b7")
TINY = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64}


def reference(config: dict[str, Any]) -> Qwen3ForCausalLM:
    names = ("model_type", "architectures", "mlp_bias", "qk_layernorm")
    own = {key: value for key, value in config.items() if key not in names}
    model = Qwen3ForCausalLM(Qwen3Config(**own))
    for layer in model.model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            linear = getattr(layer.mlp, name)
            setattr(layer.mlp, name, nn.Linear(linear.in_features, linear.out_features))
    return model


def test_the_published_configuration_of_opensci_describes_our_model() -> None:
    features = read_decoder(section_of(OPENSCI))
    family = choose_family(features)
    assert family.model_type == "opensci"
    assert family.read_hf_config(OPENSCI) == family.write_hf_config(features)


def test_opensci_equals_qwen3_with_more_biases() -> None:
    config = OPENSCI | TINY
    model, theirs = random_model(section_of(config)), reference(config)
    features = read_decoder(section_of(config))
    family = choose_family(features)

    def renamed(name: str) -> str:
        return re.sub(r"(self_attn\..)_layernorm", r"\1_norm", name)

    weights = dict(their_tensors(model.state_dict(), family, features, rows=64))
    assert "model.layers.0.self_attn.q_layernorm.weight" in weights
    loaded = theirs.load_state_dict({renamed(n): w for n, w in weights.items()}, strict=False)
    assert loaded.missing_keys == ["lm_head.weight"]  # tied
    assert not loaded.unexpected_keys
    batch = torch.randint(4, 64, (2, 16), generator=torch.manual_seed(5))
    assert distance(theirs(batch).logits, model(batch)) < LOGITS_TOLERANCE
    inputs, targets = batch[:, :-1], batch[:, 1:]
    model.compute_loss(inputs, targets).backward()  # type: ignore[operator]  # a decoder's own method
    F.cross_entropy(theirs(inputs).logits.flatten(0, 1), targets.flatten()).backward()
    expected = mapped_gradients(gradients_of(model), features, rows=64)
    parameters = theirs.named_parameters()
    found = {name: value.grad for name, value in parameters if value.grad is not None}
    assert found.keys() == {renamed(name) for name in expected}
    for name, gradient in expected.items():
        assert distance(found[renamed(name)], gradient) < GRADIENT_TOLERANCE, name

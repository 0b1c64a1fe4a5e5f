"""The class of opensci models, which ``transformers`` does not have: Qwen3 with more biases."""

import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from components.config.part_nodes import read_decoder
from components.convert.family import choose_family
from components.convert.folder import their_tensors
from tests.components.convert.conftest import published, random_model
from tests.components.convert.test_open_models import section_of
from tests.components.convert.test_parity import (
    GRADIENT_TOLERANCE,
    LOGITS_TOLERANCE,
    distance,
    gradients_of,
    mapped_gradients,
)

OPENSCI = published("opensci_1b7")
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64}


def reference(config: dict[str, Any]) -> Qwen3ForCausalLM:
    """Build Qwen3's class and give its MLPs biases."""
    names = ("model_type", "architectures", "mlp_bias", "qk_layernorm")
    own = {key: value for key, value in config.items() if key not in names}
    model = Qwen3ForCausalLM(Qwen3Config(**own))
    for layer in model.model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            linear = getattr(layer.mlp, name)
            setattr(layer.mlp, name, nn.Linear(linear.in_features, linear.out_features))
    return model


def test_a_published_configuration_states_our_model() -> None:
    features = read_decoder(section_of(OPENSCI))
    family = choose_family(features)
    assert family.model_type == "opensci"
    assert family.read_hf_config(OPENSCI) == family.write_hf_config(features)


def test_logits_and_gradients_are_those_of_qwen3_with_more_biases() -> None:
    config = OPENSCI | SMALL
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

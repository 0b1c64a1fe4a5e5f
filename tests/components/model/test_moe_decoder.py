"""A decoder of experts against transformers' OLMoE: logits, loss and all gradients."""

import pytest
import torch
from torch import Tensor
from transformers import OlmoeConfig, OlmoeForCausalLM

from components.distributed.activation_checkpoint import checkpoint_activations
from components.engine.parallelize import draw_weights
from components.model.decoder import Decoder
from tests.components.model.comparison import (
    GRADIENT_TOLERANCE,
    LOGITS_TOLERANCE,
    gradient_of,
    relative_difference,
)
from tests.components.model.mappings import LLAMA, renamed
from tests.components.model.routing_terms import auxiliary_terms
from tests.components.model.specs import RMS_NORM, experts_spec, small_decoder

DIM, FFN_DIM, NUM_LAYERS, NUM_HEADS, NUM_EXPERTS, TOP_K, VOCAB = 32, 16, 2, 4, 6, 2, 61
COEFFICIENT = 0.5  # large, to reveal a wrong term

TO_OLMOE = LLAMA | {"mlp.router.": "mlp.gate.", "mlp.down_proj.weight": "mlp.experts.down_proj"}


def mixture_decoder(path: str) -> Decoder:
    sizes = {"dim": DIM, "padded_vocab_size": VOCAB, "head_dim": DIM // NUM_HEADS}
    heads = {"num_heads": NUM_HEADS, "num_kv_heads": NUM_HEADS, "qk_norm": RMS_NORM}
    experts = experts_spec(num_experts=NUM_EXPERTS, auxiliary_loss=COEFFICIENT, path=path)
    model = small_decoder(**sizes, **heads, tied_embeddings=False, mlp=experts)
    draw_weights(model, seed=3)
    return model


def olmoe_names(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename, and join gate and up."""
    theirs = {}
    for name, value in ours.items():
        if ".mlp.gate." in name:
            value = torch.cat([value, ours[name.replace(".gate.", ".up.")]], dim=1)
            theirs[f"model.{name.replace('gate.weight', 'experts.gate_up_proj')}"] = value
        elif ".mlp.up." not in name:
            theirs[renamed(name, TO_OLMOE)] = value
    return theirs


def olmoe_with_weights_of(model: Decoder) -> OlmoeForCausalLM:
    config = OlmoeConfig(
        vocab_size=VOCAB,
        hidden_size=DIM,
        intermediate_size=FFN_DIM,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_HEADS,
        num_experts=NUM_EXPERTS,
        num_experts_per_tok=TOP_K,
        router_aux_loss_coef=COEFFICIENT,
        rms_norm_eps=1e-5,
        pad_token_id=1,
    )
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    reference = OlmoeForCausalLM(config)
    reference.load_state_dict(olmoe_names(model.state_dict()))
    return reference


@pytest.mark.parametrize("path", ["loop", "grouped"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_logits_loss_and_gradients_equal_olmoe(path, recompute):
    model = mixture_decoder(path)
    reference = olmoe_with_weights_of(model)
    checkpoint_activations(model, recompute)
    tokens = torch.randint(2, VOCAB, (3, 18), generator=torch.Generator().manual_seed(5))
    inputs, targets = tokens[:, :-1], tokens[:, 1:].contiguous()
    theirs = reference(
        input_ids=inputs, labels=targets, shift_labels=targets, output_router_logits=True
    )
    assert relative_difference(model(inputs), theirs.logits) < LOGITS_TOLERANCE
    loss = model.compute_loss(inputs, targets)
    loss = loss + auxiliary_terms(model)[0]
    assert loss.item() == pytest.approx(theirs.loss.item(), rel=1e-6)
    loss.backward()
    theirs.loss.backward()
    ours = olmoe_names({n: gradient_of(p) for n, p in model.named_parameters()})
    for name, parameter in reference.named_parameters():
        difference = relative_difference(ours[name], gradient_of(parameter))
        assert difference < GRADIENT_TOLERANCE, name


def test_only_the_last_map_of_experts_is_initialized_scaled() -> None:
    part = mixture_decoder("auto").get_submodule("layers.0.mlp")
    deviation = {name: p.std().item() for name, p in part.named_parameters()}
    plain, scaled = 0.2, 0.2 / (2 * NUM_LAYERS) ** 0.5
    assert deviation["down.weight"] == pytest.approx(scaled, rel=0.05)
    for name in ("router.weight", "gate.weight", "up.weight"):
        assert deviation[name] == pytest.approx(plain, rel=0.15), name

"""A decoder of experts against transformers' OLMoE: logits, whole loss, every gradient."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor
from transformers import OlmoeConfig, OlmoeForCausalLM

from components.config.model_spec.feed_forward import ExpertsSpec
from components.config.model_spec.norms import NormSpec
from components.distributed.activation_checkpoint import checkpoint_activations
from components.engine.parallelize import draw_weights
from components.model.decoder import Decoder
from tests.components.model.routing_terms import auxiliary_terms
from tests.components.model.specs import small_decoder

DIM, FFN_DIM, NUM_LAYERS, NUM_HEADS, NUM_EXPERTS, TOP_K, VOCAB = 32, 16, 2, 4, 6, 2, 61
COEFFICIENT = 0.5  # large, so that a wrong term would show
LOGITS_TOLERANCE = 1e-5  # of the largest element, as for the dense decoder
GRADIENT_TOLERANCE = 1e-4

MIXTURE = ExpertsSpec(
    num_experts=NUM_EXPERTS,
    top_k=TOP_K,
    ffn_dim=FFN_DIM,
    activation="silu",
    gated=True,
    renormalize=False,
    routing="learned",
    auxiliary_loss=COEFFICIENT,
    auxiliary_scope="model",
    z_loss=0.0,
    path="auto",
)
TO_OLMOE = {
    "embedding.": "model.embed_tokens.",
    "layers.": "model.layers.",
    "attention_norm.": "input_layernorm.",
    "mlp_norm.": "post_attention_layernorm.",
    "attention.query_norm.": "self_attn.q_norm.",
    "attention.key_norm.": "self_attn.k_norm.",
    "attention.query.": "self_attn.q_proj.",
    "attention.key.": "self_attn.k_proj.",
    "attention.value.": "self_attn.v_proj.",
    "attention.output.": "self_attn.o_proj.",
    "mlp.router.weight": "mlp.gate.weight",
    "mlp.down.weight": "mlp.experts.down_proj",
    "final_norm.": "model.norm.",
    "head.": "lm_head.",
}


@pytest.fixture
def mixture_decoder() -> Callable[..., Decoder]:
    def make(path: Literal["auto", "grouped", "loop"]) -> Decoder:
        model = small_decoder(
            dim=DIM,
            num_layers=NUM_LAYERS,
            vocab_size=VOCAB,
            padded_vocab_size=VOCAB,
            tied_embeddings=False,
            num_heads=NUM_HEADS,
            num_kv_heads=NUM_HEADS,
            head_dim=DIM // NUM_HEADS,
            qk_norm=NormSpec(eps=1e-5, center=False, weight=True, bias=False),
            mlp=MIXTURE.model_copy(update={"path": path}),
        )
        draw_weights(model, seed=3)
        return model

    return make


def olmoe_names(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename, and put gate and up into one stack."""
    theirs = {}
    for name, value in ours.items():
        if ".mlp.up." in name:
            continue
        if ".mlp.gate." in name:
            value = torch.cat([value, ours[name.replace(".gate.", ".up.")]], dim=1)
            name = name.replace("mlp.gate.weight", "mlp.experts.gate_up_proj")
        else:
            for mine, reference in TO_OLMOE.items():
                name = name.replace(mine, reference)
        theirs[name.replace("layers.", "model.layers.") if "gate_up" in name else name] = value
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


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@pytest.mark.parametrize("path", ["loop", "grouped"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_logits_whole_loss_and_gradients_equal_those_of_olmoe(
    mixture_decoder: Callable[..., Decoder],
    path: Literal["grouped", "loop"],
    recompute: Literal["none", "full"],
) -> None:
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
    ours = olmoe_names({n: _gradient(p) for n, p in model.named_parameters()})
    for name, parameter in reference.named_parameters():
        difference = relative_difference(ours[name], _gradient(parameter))
        assert difference < GRADIENT_TOLERANCE, name


def test_only_the_experts_last_product_starts_scaled(
    mixture_decoder: Callable[..., Decoder],
) -> None:
    part = mixture_decoder("auto").get_submodule("layers.0.mlp")
    deviation = {name: p.std().item() for name, p in part.named_parameters()}
    plain, scaled = 0.2, 0.2 / (2 * NUM_LAYERS) ** 0.5
    assert deviation["down.weight"] == pytest.approx(scaled, rel=0.05)
    for name in ("router.weight", "gate.weight", "up.weight"):
        assert deviation[name] == pytest.approx(plain, rel=0.15), name


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad

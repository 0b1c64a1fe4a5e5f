"""OLMoE, https://arxiv.org/abs/2409.02060."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from components.convert import llama, needs
from components.convert.features import Features
from components.convert.links import TensorLink, same, unstacked, vocabulary
from components.convert.needs import Need

_NOT_OF_OLMOE = ("head_dim", "mlp_bias")


class Olmoe:
    """Llama with normalized queries and keys, and experts in place of the MLP.

    The disk holds each expert apart, as the published folders and ``save_pretrained`` have
    it; only in memory are they stacked.
    """

    model_type = "olmoe"
    architecture = "OlmoeForCausalLM"
    prefix = "model."
    no_weights = re.compile(r"rotary_emb\.inv_freq$")

    def needs(self, features: Features) -> list[Need]:
        norm = features.norm
        return [
            needs.rotary_positions(features),
            needs.rms_norm(features),
            Need(
                "model.mlp.num_experts",
                features.num_experts is not None,
                "it is a mixture of experts",
            ),
            Need(
                "model.mlp",
                features.gated and not features.mlp_bias,
                "its experts are gated and have no bias",
            ),
            Need("model.mlp.routing", features.routing == "learned", "its router is learned"),
            needs.even_heads(features),
            Need(
                "model.attention.qk_norm",
                features.qk_norm == norm,
                "it normalizes queries and keys like all else",
            ),
            needs.no_embedding_norm(features),
        ]

    def shape(self, features: Features) -> dict[str, Any]:
        keys = {
            key: v
            for key, v in llama.FAMILY.shape(features).items()
            if key not in _NOT_OF_OLMOE
        }
        return keys | {
            "num_experts": features.num_experts,
            "num_experts_per_tok": features.top_k,
            "norm_topk_prob": features.renormalize,
            "clip_qkv": None,
        }

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        filled = {"rms_norm_eps": 1e-5} | dict(config)
        keys = {
            key: v for key, v in llama.FAMILY.stated(filled).items() if key not in _NOT_OF_OLMOE
        }
        return keys | {
            "num_experts": config.get("num_experts", 64),
            "num_experts_per_tok": config.get("num_experts_per_tok", 8),
            "norm_topk_prob": config.get("norm_topk_prob", False),
            "clip_qkv": config.get("clip_qkv"),
        }

    def training(self, features: Features, context_tokens: int) -> dict[str, Any]:
        return llama.FAMILY.training(features, context_tokens) | {
            "router_aux_loss_coef": features.auxiliary_loss,
            "output_router_logits": False,
        }

    def links(self, features: Features) -> Iterator[TensorLink]:
        yield vocabulary("embedding.weight", "model.embed_tokens.weight")
        for layer in range(features.num_layers):
            ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
            yield same(f"{ours}.attention_norm.weight", f"{theirs}.input_layernorm.weight")
            yield from llama.attention_links(features, layer)
            for name, short in (("query", "q"), ("key", "k")):
                yield same(
                    f"{ours}.attention.{name}_norm.weight",
                    f"{theirs}.self_attn.{short}_norm.weight",
                )
            yield same(f"{ours}.mlp_norm.weight", f"{theirs}.post_attention_layernorm.weight")
            yield from _expert_links(features, f"{ours}.mlp", f"{theirs}.mlp")
        yield same("final_norm.weight", "model.norm.weight")
        if not features.tied_embeddings:
            yield vocabulary("head.weight", "lm_head.weight")


def _expert_links(features: Features, ours: str, theirs: str) -> Iterator[TensorLink]:
    yield same(f"{ours}.router.weight", f"{theirs}.gate.weight")
    for name in ("gate", "up", "down"):
        experts = range(features.num_experts or 0)
        slices = [f"{theirs}.experts.{expert}.{name}_proj.weight" for expert in experts]
        yield unstacked(f"{ours}.{name}.weight", slices)


FAMILY = Olmoe()

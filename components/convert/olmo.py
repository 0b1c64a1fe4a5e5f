"""OLMo, as github.com/allenai/OLMo released it first."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from components.convert import llama, needs
from components.convert.features import Features
from components.convert.links import TensorLink, vocabulary
from components.convert.needs import Need

EPS = 1e-5  # written into the class

_NOT_OF_OLMO = ("head_dim", "mlp_bias", "rms_norm_eps")


class Olmo:
    """Llama with LayerNorm that has no parameters."""

    model_type = "olmo"
    architecture = "OlmoForCausalLM"
    prefix = "model."
    no_weights = re.compile(r"rotary_emb\.inv_freq$")

    def needs(self, features: Features) -> list[Need]:
        norm = features.norm
        return [
            needs.rotary_positions(features),
            Need(
                "model.norm",
                norm.is_bare and norm.eps == EPS,
                f"it has LayerNorm without parameters, eps {EPS:g}, here is {norm}",
            ),
            Need(
                "model.mlp",
                features.gated and not features.mlp_bias,
                "its MLP is gated and has no bias",
            ),
            needs.no_experts(features),
            needs.even_heads(features),
            needs.no_qk_norm(features),
            needs.no_embedding_norm(features),
        ]

    def shape(self, features: Features) -> dict[str, Any]:
        keys = llama.FAMILY.shape(features) | {"clip_qkv": None}
        return {key: value for key, value in keys.items() if key not in _NOT_OF_OLMO}

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        keys = llama.FAMILY.stated(config) | {"clip_qkv": config.get("clip_qkv")}
        return {key: value for key, value in keys.items() if key not in _NOT_OF_OLMO}

    def training(self, features: Features, context_tokens: int) -> dict[str, Any]:
        return llama.FAMILY.training(features, context_tokens)

    def links(self, features: Features) -> Iterator[TensorLink]:
        yield vocabulary("embedding.weight", "model.embed_tokens.weight")
        for layer in range(features.num_layers):
            yield from llama.attention_links(features, layer)
            yield from llama.mlp_links(features, layer)
        if not features.tied_embeddings:
            yield vocabulary("head.weight", "lm_head.weight")


FAMILY = Olmo()

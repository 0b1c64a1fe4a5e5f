"""OLMo, as github.com/allenai/OLMo released it first."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from components.convert import llama
from components.convert.family import Need
from components.convert.features import Features
from components.convert.links import Link, vocabulary

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
            Need("model.positions", features.positions == "Rotary", "it has rotary positions"),
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
            Need("model.mlp.num_experts", features.num_experts is None, "it is dense"),
            Need(
                "model.attention.head_dim",
                features.splits_evenly,
                "its heads divide the width among them",
            ),
            Need(
                "model.attention.qk_norm",
                features.qk_norm is None,
                "it does not normalize queries and keys",
            ),
            Need(
                "model.embedding_norm",
                features.embedding_norm is None,
                "it does not normalize embeddings",
            ),
        ]

    def shape(self, features: Features) -> dict[str, Any]:
        keys = llama.FAMILY.shape(features) | {"clip_qkv": None}
        return {key: value for key, value in keys.items() if key not in _NOT_OF_OLMO}

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        keys = llama.FAMILY.stated(config) | {"clip_qkv": config.get("clip_qkv")}
        return {key: value for key, value in keys.items() if key not in _NOT_OF_OLMO}

    def training(self, features: Features, context_tokens: int) -> dict[str, Any]:
        return llama.FAMILY.training(features, context_tokens)

    def links(self, features: Features) -> Iterator[Link]:
        yield vocabulary("embedding.weight", "model.embed_tokens.weight")
        for layer in range(features.num_layers):
            yield from llama.attention_links(features, layer)
            yield from llama.mlp_links(features, layer)
        if not features.tied_embeddings:
            yield vocabulary("head.weight", "lm_head.weight")


FAMILY = Olmo()

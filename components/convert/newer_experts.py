"""Newer mixtures of experts: Qwen3's, https://arxiv.org/abs/2505.09388.

Keys and defaults are those of ``transformers``.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from components.convert import family
from components.convert.family import ConfigKeys, Need
from components.convert.llama import Olmoe, is_gated, without

EXPERTS = Need(
    "mlp.num_experts", "it is a mixture of experts", lambda m: m.mlp.num_experts is not None
)
GATED_EXPERTS = Need("mlp", "its experts are gated and have no bias", is_gated)


class Qwen3Moe(Olmoe):
    """Experts in place of the MLP in all layers; each head of queries and keys has its norm."""

    model_type = "qwen3_moe"
    architecture = "Qwen3MoeForCausalLM"
    needs = (
        family.ROTARY,
        family.RMS_NORM,
        EXPERTS,
        GATED_EXPERTS,
        *family.PLAIN_ROUTER,
        Need(
            "attention.qk_norm",
            "it normalizes each head of queries and keys, else like all",
            lambda m: m.attention.norms_heads and m.attention.qk_norm == m.norm,
        ),
        family.NO_EMBEDDING_NORM,
        family.NORM_BEFORE,
    )
    keys: ClassVar[ConfigKeys] = without("intermediate_size", "mlp_bias") | {
        "hidden_size": (2_048, lambda m: m.dim),
        "num_hidden_layers": (24, lambda m: m.num_layers),
        "num_key_value_heads": (4, lambda m: m.attention.num_kv_heads),
        "moe_intermediate_size": (768, lambda m: m.mlp.ffn_dim),
        "num_experts": (128, lambda m: m.mlp.num_experts),
        "num_experts_per_tok": (8, lambda m: m.mlp.top_k),
        "norm_topk_prob": (False, lambda m: m.mlp.renormalize),
        "decoder_sparse_step": (1, lambda _: 1),
        "mlp_only_layers": (None, lambda _: []),
        "use_sliding_window": (False, lambda _: False),
    }

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        read = super().stated(config)
        # In transformers 5 the number of experts has another key once a model is saved again.
        experts = config.get("num_local_experts", read["num_experts"])
        return read | {"mlp_only_layers": read["mlp_only_layers"] or [], "num_experts": experts}


FAMILIES = (Qwen3Moe(),)

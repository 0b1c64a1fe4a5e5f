"""Newer mixtures of experts: Qwen3's, https://arxiv.org/abs/2505.09388, and DeepSeek-V3's.

Keys and defaults are those of ``transformers``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from components.config.model_spec.decoder import DecoderSpec
from components.convert import family
from components.convert.family import ConfigKeys, Need, Section
from components.convert.links import TensorLink, pairs_apart, same, vocabulary
from components.convert.llama import EXPERTS as EXPERTS_CLASS
from components.convert.llama import Llama, Olmoe, expert_links, is_gated, is_gated_mlp, without

EXPERTS = Need(
    "mlp.num_experts", "it is a mixture of experts", lambda m: m.mlp.num_experts is not None
)
GATED_EXPERTS = Need("mlp", "its experts are gated and have no bias", is_gated)


class Qwen3Moe(Olmoe):
    """Experts in place of the MLP in all layers; each head of queries and keys has its norm."""

    model_type = "qwen3_moe"
    architecture = "Qwen3MoeForCausalLM"
    ffn_key = "moe_intermediate_size"
    # The width that dense layers would have, and windows where some were used.
    unread = Olmoe.unread | {"intermediate_size", "sliding_window", "max_window_layers"}
    forms: ClassVar[Mapping[str, object]] = {"mlp_only_layers": []}
    needs: ClassVar[tuple[Need, ...]] = (
        family.NO_WINDOWS,
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
        family.PLAIN_ATTENTION,
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

    def section(self, config: Mapping[str, Any]) -> Section:
        section = super().section(config)
        section["attention"]["qk_norm_over"] = "each_head"
        return section


_LAYER = re.compile(r"model\.layers\.(\d+)\.")
# The weight of most of the run: arXiv 2412.19437, section 4.2; the file does not say.
_MTP = {"_target_": "components.model.mtp.MultiTokenPrediction", "_partial_": True}
_MTP |= {"loss_weight": 0.3}
_LATENT_EPS = 1e-6  # written into the class
_LATENT_NORM = {"_target_": "components.model.norms.Norm", "_partial_": True}
_LATENT_NORM |= {"eps": _LATENT_EPS, "center": False, "weight": True, "bias": False}


class DeepseekV3(Llama):
    """Latent attention, a shared expert, and experts chosen by sigmoids, groups and biases.

    https://arxiv.org/abs/2412.19437. Layers after the last predict further tokens, under the
    names of the published folders (README_WEIGHTS.md of deepseek-ai/DeepSeek-V3); the class of
    ``transformers`` leaves them aside. In these folders channels that rotate lie pair by pair,
    here the first of each pair first.
    """

    model_type = "deepseek_v3"
    architecture = "DeepseekV3ForCausalLM"
    ffn_key = "moe_intermediate_size"
    # The first is read where a layer has it; the others are training's, and what is left aside.
    unread = frozenset({"intermediate_size", "aux_loss_alpha", "seq_aux", "ep_size"})
    trained: ClassVar[Mapping[str, Any]] = {**Llama.trained, "num_nextn_predict_layers": 0}
    plain: ClassVar[Mapping[str, Any]] = {
        "moe_layer_freq": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    }
    forms: ClassVar[Mapping[str, object]] = {
        "q_lora_rank": None,
        "first_k_dense_replace": 0,
        "n_shared_experts": 0,
    }
    needs = (
        Need(
            "attention.key_value_rank",
            "its attention is latent, with RMSNorm of eps 1e-6 there",
            lambda m: (
                m.attention.latent_norm is not None
                and m.attention.latent_norm.description == "RMSNorm with weight"
                and m.attention.latent_norm.eps == _LATENT_EPS
            ),
        ),
        Need(
            "positions.scaling",
            "its rotation is not slowed here",
            lambda m: m.positions.scaling is None,
        ),
        Need("mlp.scores", "its scores are sigmoids", lambda m: m.mlp.scores == "sigmoid"),
        Need(
            "mlp.balance_rate",
            "its router has biases",
            lambda m: m.mlp.balance_rate is not None,
        ),
        Need(
            "mlp.shared_ffn_dim",
            "its shared expert is as wide as one expert or several",
            lambda m: (m.mlp.shared_ffn_dim or 1) % m.mlp.ffn_dim == 0,
        ),
        Need(
            "dense_mlp",
            "its first layers, if any, have an MLP like its experts, without bias",
            lambda m: (
                m.dense_mlp is None
                or (is_gated_mlp(m.dense_mlp) and m.dense_mlp.activation == m.mlp.activation)
            ),
        ),
        family.ROTARY,
        family.RMS_NORM,
        EXPERTS,
        GATED_EXPERTS,
        family.NO_WINDOWS,
        family.LEARNED,
        family.NO_EMBEDDING_NORM,
        family.NORM_BEFORE,
    )
    keys: ClassVar[ConfigKeys] = without(
        "num_key_value_heads", "head_dim", "mlp_bias", "intermediate_size"
    ) | {
        "hidden_size": (7_168, lambda m: m.dim),
        "num_hidden_layers": (61, lambda m: m.num_layers),
        "num_attention_heads": (128, lambda m: m.attention.num_heads),
        "num_key_value_heads": (128, lambda m: m.attention.num_kv_heads),
        "q_lora_rank": (1_536, lambda m: m.attention.query_rank),
        "kv_lora_rank": (512, lambda m: m.attention.key_value_rank),
        "qk_rope_head_dim": (64, lambda m: m.attention.rotary_dim),
        "qk_nope_head_dim": (128, lambda m: m.attention.head_dim - m.attention.rotary_dim),
        "v_head_dim": (128, lambda m: m.attention.values),
        "rope_interleave": (True, lambda _: True),
        "first_k_dense_replace": (3, lambda m: m.leading_layers),
        "moe_intermediate_size": (2_048, lambda m: m.mlp.ffn_dim),
        "n_routed_experts": (256, lambda m: m.mlp.num_experts),
        "n_shared_experts": (1, lambda m: (m.mlp.shared_ffn_dim or 0) // m.mlp.ffn_dim),
        "num_experts_per_tok": (8, lambda m: m.mlp.top_k),
        "n_group": (8, lambda m: m.mlp.num_groups),
        "topk_group": (4, lambda m: m.mlp.top_groups),
        "norm_topk_prob": (True, lambda m: m.mlp.renormalize),
        "routed_scaling_factor": (2.5, lambda m: m.mlp.weight_scale),
    }

    def shape(self, features: DecoderSpec) -> dict[str, Any]:
        leading = features.dense_mlp
        dense = {} if leading is None else {"intermediate_size": leading.ffn_dim}
        return super().shape(features) | dense

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        # In transformers 5 the number of experts has another key once a model is saved again.
        named = {"n_routed_experts": config.get("num_local_experts", 256), **config}
        dense = {"intermediate_size": config.get("intermediate_size", 18_432)}
        return super().stated(named) | dense

    def training(self, features: DecoderSpec, context_tokens: int) -> dict[str, Any]:
        further = {"num_nextn_predict_layers": features.mtp_depth}
        return super().training(features, context_tokens) | further

    def section(self, config: Mapping[str, Any]) -> Section:
        read, section = self.read(config), super().section(config)
        turned = read["qk_rope_head_dim"]
        section["attention"] |= {
            "_target_": "components.model.latent_attention.LatentAttention",
            "head_dim": read["qk_nope_head_dim"] + turned,
            "rotary_dim": turned,
            "value_dim": read["v_head_dim"],
            "query_rank": read["q_lora_rank"],
            "key_value_rank": read["kv_lora_rank"],
            "latent_norm": _LATENT_NORM,
        }
        if leading := read["first_k_dense_replace"]:
            dense = super().mlp(config) | {"ffn_dim": read["intermediate_size"]}
            section |= {"dense_mlp": dense | {"_partial_": True}, "num_dense_layers": leading}
        if depth := read["num_nextn_predict_layers"]:
            section["mtp"] = _MTP | {"depth": depth}
        return section

    def mlp(self, config: Mapping[str, Any]) -> Section:
        read, expert = self.read(config), super().mlp(config)
        del expert["bias"]
        width, shared = read["moe_intermediate_size"], read["n_shared_experts"]
        return expert | {
            "_target_": EXPERTS_CLASS,
            "num_experts": read["n_routed_experts"],
            "top_k": read["num_experts_per_tok"],
            "renormalize": read["norm_topk_prob"],
            "routing": "learned",
            "auxiliary_loss": 0.0,
            "auxiliary_scope": "layer",
            "z_loss": 0.0,
            "path": "auto",
            "shared_ffn_dim": width * shared if shared else None,
            "scores": "sigmoid",
            "weight_scale": read["routed_scaling_factor"],
            "num_groups": read["n_group"],
            "top_groups": read["topk_group"],
            "balance_rate": 0.001,  # arXiv 2412.19437, section 4.2; the file does not say
        }

    def leaves_out(self, features: DecoderSpec, name: str) -> bool:
        layer = _LAYER.match(name)
        further = layer is not None and int(layer[1]) >= features.num_layers
        return further or super().leaves_out(features, name)

    def links(self, features: DecoderSpec) -> Iterator[TensorLink]:
        yield from super().links(features)
        first = features.num_layers
        for layer in range(first, first + features.mtp_depth):
            ours, theirs = f"mtp.{layer}", f"model.layers.{layer}"
            yield from self.block_links(features, layer, f"{ours}.layer")
            names = {"embedding_norm": "enorm", "hidden_norm": "hnorm", "projection": "eh_proj"}
            for name, other in (names | {"final_norm": "shared_head.norm"}).items():
                yield same(f"{ours}.{name}.weight", f"{theirs}.{other}.weight")
            head = "embedding.weight" if features.tied_embeddings else "head.weight"
            copies = {"embed_tokens": "embedding.weight", "shared_head.head": head}
            for other, rows in copies.items():
                yield vocabulary(rows, f"{theirs}.{other}.weight")._replace(is_copy=True)

    def attention_links(
        self, features: DecoderSpec, ours: str, theirs: str
    ) -> Iterator[TensorLink]:
        heads = features.attention
        names = {"key_value_norm": "kv_a_layernorm", "key_value": "kv_b_proj"}
        names["output"] = "o_proj"
        query = "q_proj"
        if heads.query_rank is not None:
            names |= {"query_down": "q_a_proj", "query_norm": "q_a_layernorm"}
            query = "q_b_proj"
        for name, other in names.items():
            yield same(f"{ours}.{name}.weight", f"{theirs}.{other}.weight")
        for name, other, count in (
            ("query", query, heads.num_heads),
            ("key_value_down", "kv_a_proj_with_mqa", 1),
        ):
            pair = f"{ours}.{name}.weight", f"{theirs}.{other}.weight"
            yield pairs_apart(*pair, blocks=count, turned=heads.rotary_dim)

    def layer_links(
        self, features: DecoderSpec, layer: int, ours: str, theirs: str
    ) -> Iterator[TensorLink]:
        if layer < features.leading_layers:
            yield from super().mlp_links(features, ours, theirs)
            return
        yield same(f"{ours}.router.weight", f"{theirs}.gate.weight")
        bias = f"{theirs}.gate.e_score_correction_bias"
        yield same(f"{ours}.choice_bias", bias)
        yield from expert_links(features, ours, theirs)
        for name in ("gate", "up", "down"):
            shared = f"{theirs}.shared_experts.{name}_proj"
            yield same(f"{ours}.shared.{name}.weight", f"{shared}.weight")


FAMILIES = (Qwen3Moe(), DeepseekV3())

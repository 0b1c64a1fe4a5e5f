"""Llama, and those that differ from it in a few features: OLMo and OLMoE.

OLMo is as github.com/allenai/OLMo released it first; OLMoE is arxiv.org/abs/2409.02060.
"""

import re
from collections.abc import Iterator, Mapping
from math import isclose, log
from typing import Any, ClassVar

from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.feed_forward import FeedForwardSpec
from components.config.model_spec.rotary_scaling import ScalingSpec
from components.convert import family
from components.convert.family import ConfigKeys, HFFamily, Need, Section
from components.convert.links import TensorLink, module, same, unstacked, vocabulary
from components.errors import RecipeError

ROTARY, MLP = "components.model.positions.Rotary", "components.model.mlp.MLP"
SAME_NORM = "${model.norm}"
EXPERTS = "components.model.moe.Experts"
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
_ACTIVATIONS |= {"relu_squared": "relu2", "xielu": "xielu"}

_ROTATION = ("rope_theta", "rope_type", "type")  # beside the numbers of a scaling
# Our classes that slow the rotation, and what theirs call the kind and its numbers.
_SCALINGS = {"LinearScaling": "linear", "Llama3Scaling": "llama3", "YarnScaling": "yarn"}
_NUMBERS = {
    "factor": "factor",
    "original_tokens": "original_max_position_embeddings",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
}


def scaling_of(ours: ScalingSpec | None) -> dict[str, Any] | None:
    """Write a scaling as theirs do; None is none."""
    if ours is None:
        return None
    numbers = {theirs: getattr(ours, name) for name, theirs in _NUMBERS.items()}
    given = {name: value for name, value in numbers.items() if value is not None}
    return {"rope_type": _SCALINGS[ours.kind], **given}


def stated_scaling(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read a scaling, whose kind had another key once, with the numbers it may leave out."""
    read = {name: value for name, value in config.items() if value is not None}
    kind = read.pop("rope_type", None) or read.get("type", "default")
    read.pop("type", None)
    if kind == "default":
        return None
    betas = {"beta_fast": 32.0, "beta_slow": 1.0} if kind == "yarn" else {}
    given = {"rope_type": kind, **betas, **read}
    # The paper's own temperature, which a folder may state.
    usual = 0.1 * log(given["factor"]) + 1 if kind == "yarn" else None
    if usual is not None and isclose(given.get("attention_factor", 0.0), usual):
        del given["attention_factor"]
    return given


def _scaling_here(theirs: Mapping[str, Any] | None) -> Section | None:
    """Say a scaling as a node of ours."""
    if theirs is None or theirs["rope_type"] == "default":
        return None
    kind = family.named_here("rope_type", theirs["rope_type"], _SCALINGS)
    numbers = {ours: theirs[name] for ours, name in _NUMBERS.items() if name in theirs}
    return {"_target_": f"components.model.rotary_scaling.{kind}", **numbers}


class Llama(HFFamily):
    """Rotary positions, RMSNorm, a gated MLP, grouped heads of any width."""

    model_type = "llama"
    architecture = "LlamaForCausalLM"
    prefix = "model."
    no_weights = re.compile(r"rotary_emb\.inv_freq$")
    qk_norm = "norm"  # the end of the names of norms of queries and keys
    norms = ("input_layernorm", "post_attention_layernorm")  # of attention, and of the MLP
    default_base = 10_000.0
    ffn_key = "intermediate_size"
    activation_key = "hidden_act"
    norm_link = staticmethod(same)
    needs: ClassVar[tuple[Need, ...]] = (
        family.ROTARY,
        family.RMS_NORM,
        Need("mlp.gated", "its MLP is gated", lambda m: m.mlp.gated),
        family.NO_SCALARS,
        family.NO_EXPERTS,
        family.NO_QK_NORM,
        family.NO_EMBEDDING_NORM,
        family.NORM_BEFORE,
        family.NO_WINDOWS,
        family.PLAIN_ATTENTION,
    )

    keys: ClassVar[ConfigKeys] = {
        "hidden_size": (4_096, lambda m: m.dim),
        "intermediate_size": (11_008, lambda m: m.mlp.ffn_dim),
        "num_hidden_layers": (32, lambda m: m.num_layers),
        "num_attention_heads": (32, lambda m: m.attention.num_heads),
        "num_key_value_heads": (None, lambda m: m.attention.num_kv_heads),
        "head_dim": (None, lambda m: m.attention.head_dim),
        "hidden_act": ("silu", lambda m: _ACTIVATIONS[m.mlp.activation]),
        "attention_bias": (False, lambda m: m.attention.bias),
        "mlp_bias": (False, lambda m: m.mlp.bias),
        "rms_norm_eps": (1e-6, lambda m: m.norm.eps),
        "rope_theta": (None, lambda m: m.positions.base),
        "rope_scaling": (None, lambda m: scaling_of(m.positions.scaling)),
        "tie_word_embeddings": (False, lambda m: m.tied_embeddings),
    }
    trained: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": None,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
    }

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        read = super().stated(config)
        heads = read["num_attention_heads"]
        # The rotary base and scaling, in the spelling of transformers 5 or an older one.
        newer = dict(config.get("rope_parameters") or {})
        base = newer.pop("rope_theta", None) or read["rope_theta"]
        read |= {
            "num_key_value_heads": read["num_key_value_heads"] or heads,
            "head_dim": config.get("head_dim") or read["hidden_size"] // heads,
            "rope_theta": base or self.default_base,
            "rope_scaling": stated_scaling(newer or read["rope_scaling"] or {}),
        }
        return {key: read[key] for key in self.keys}  # not all of Llama's are OLMo's

    def section(self, config: Mapping[str, Any]) -> Section:
        read = self.read(config)
        dim, heads = read["hidden_size"], read["num_attention_heads"]
        return {
            "dim": dim,
            "num_layers": read["num_hidden_layers"],
            "tied_embeddings": read["tie_word_embeddings"],
            "positions": self.positions(config),
            "attention": {
                "num_heads": heads,
                "num_kv_heads": read["num_key_value_heads"],
                "head_dim": read.get("head_dim", dim // heads),
                "bias": read.get("attention_bias", False),
                "dropout": float(read["attention_dropout"]),
            },
            "mlp": self.mlp(config),
            "norm": self.norm(config),
            "initialization": {"std": read["initializer_range"], "residual": "plain"},
        }

    def positions(self, config: Mapping[str, Any]) -> Section:
        """Return the node of the positions.

        Raises:
            RecipeError: a number of the rotation that no part of ours has.
        """
        for key, numbers in self.rotations(config):
            said = stated_scaling(numbers) or numbers  # without a number that is as usual
            for name in (numbers.keys() & said.keys()) - {*_NUMBERS.values(), *_ROTATION}:
                problem = f"{numbers[name]!r}, but no part here has it"
                known = ", ".join([*_ROTATION, *_NUMBERS.values()])
                raise RecipeError(f"{key}.{name}", problem, f"known are {known}")
        read = self.read(config)
        node = {"_target_": ROTARY, "base": float(read["rope_theta"])}
        scaling = _scaling_here(read["rope_scaling"])
        return node if scaling is None else node | {"scaling": scaling}

    def rotations(self, config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """List the keys that hold numbers of a rotation by name."""
        for key in ("rope_scaling", "rope_parameters"):
            yield key, config.get(key) or {}

    def mlp(self, config: Mapping[str, Any]) -> Section:
        """Return the node of the MLP."""
        read, act = self.read(config), self.activation_key
        return {
            "_target_": MLP,
            "ffn_dim": read[self.ffn_key],
            "activation": family.named_here(act, read[act], _ACTIVATIONS),
            "gated": True,
            "bias": read.get("mlp_bias", False),
        }

    def norm(self, config: Mapping[str, Any]) -> Section:
        """Return what the norms are."""
        return {"eps": self.read(config)["rms_norm_eps"]}

    def training(self, features: DecoderSpec, context_tokens: int) -> dict[str, Any]:
        return {
            "max_position_embeddings": context_tokens,
            "attention_dropout": features.attention.dropout,
            "initializer_range": features.initialization.initializer_range,
        }

    def links(self, features: DecoderSpec) -> Iterator[TensorLink]:
        has_weight = features.norm.weight
        yield vocabulary("embedding.weight", "model.embed_tokens.weight")
        for layer in range(features.num_layers):
            yield from self.block_links(features, layer, f"layers.{layer}")
        if has_weight:
            yield self.norm_link("final_norm.weight", "model.norm.weight")
        if not features.tied_embeddings:
            yield vocabulary("head.weight", "lm_head.weight")

    def block_links(self, features: DecoderSpec, layer: int, ours: str) -> Iterator[TensorLink]:
        """Link one layer, with the class's of this number."""
        theirs = f"model.layers.{layer}"
        if features.norm.weight:
            norm = f"{theirs}.{self.norms[0]}.weight"
            yield self.norm_link(f"{ours}.attention_norm.weight", norm)
        attention = f"{ours}.attention", f"{theirs}.self_attn"
        yield from self.attention_links(features, *attention)
        if features.norm.weight:
            norm = f"{theirs}.{self.norms[1]}.weight"
            yield self.norm_link(f"{ours}.mlp_norm.weight", norm)
        yield from self.layer_links(features, layer, f"{ours}.mlp", f"{theirs}.mlp")

    def attention_links(
        self, features: DecoderSpec, ours: str, theirs: str
    ) -> Iterator[TensorLink]:
        """Link the maps of a layer's attention, and norms of queries and of keys."""
        for name in ("query", "key", "value", "output"):
            bias = features.attention.bias
            yield from module(f"{ours}.{name}", f"{theirs}.{name[0]}_proj", bias=bias)
        for name in ("query", "key") if features.attention.qk_norm is not None else ():
            norm = f"{theirs}.{name[0]}_{self.qk_norm}.weight"
            yield self.norm_link(f"{ours}.{name}_norm.weight", norm)

    def layer_links(
        self, features: DecoderSpec, layer: int, ours: str, theirs: str
    ) -> Iterator[TensorLink]:
        """Link what a layer has in the place of its MLP."""
        return self.mlp_links(features, ours, theirs)

    def mlp_links(self, features: DecoderSpec, ours: str, theirs: str) -> Iterator[TensorLink]:
        """Link the maps of a layer's MLP, gated as Llama's is."""
        for name in ("gate", "up", "down"):
            yield from module(f"{ours}.{name}", f"{theirs}.{name}_proj", bias=features.mlp.bias)


EPS = 1e-5  # written into the class of OLMo
_NO_CLIPPING = (None, lambda _: None)


def without(*names: str) -> dict[str, Any]:
    """Return Llama's keys without those that a relative does not have."""
    return {key: value for key, value in Llama.keys.items() if key not in names}


def is_gated(features: DecoderSpec) -> bool:
    """Whether the MLP, or each expert, is gated and has no bias."""
    return is_gated_mlp(features.mlp)


def is_gated_mlp(mlp: FeedForwardSpec) -> bool:
    """Whether one block is gated and has no bias."""
    return mlp.gated and not mlp.bias


class Olmo(Llama):
    """Llama with LayerNorm that has no parameters."""

    model_type = "olmo"
    architecture = "OlmoForCausalLM"
    needs = (
        family.ROTARY,
        Need(
            "norm",
            f"it has LayerNorm without parameters, eps {EPS:g}, here is {{norm}}",
            lambda m: (
                m.norm.description == "LayerNorm with no parameters" and m.norm.eps == EPS
            ),
        ),
        Need("mlp", "its MLP is gated and has no bias", is_gated),
        family.NO_SCALARS,
        family.NO_EXPERTS,
        family.EVEN_HEADS,
        family.NO_QK_NORM,
        family.NO_EMBEDDING_NORM,
        family.NORM_BEFORE,
        family.NO_WINDOWS,
        family.PLAIN_ATTENTION,
    )
    keys: ClassVar[ConfigKeys] = {
        **without("head_dim", "mlp_bias", "rms_norm_eps"),
        "clip_qkv": _NO_CLIPPING,
    }

    def norm(self, config: Mapping[str, Any]) -> Section:
        return {"eps": EPS, "center": True, "weight": False}


class Olmoe(Llama):
    """Llama with normalized queries and keys, and experts in place of the MLP.

    The disk holds each expert apart, as the published folders and ``save_pretrained`` have
    it; only in memory are they stacked.
    """

    model_type = "olmoe"
    architecture = "OlmoeForCausalLM"
    needs: ClassVar[tuple[Need, ...]] = (
        family.ROTARY,
        family.RMS_NORM,
        Need(
            "mlp.num_experts",
            "it is a mixture of experts",
            lambda m: m.mlp.num_experts is not None,
        ),
        Need("mlp", "its experts are gated and have no bias", is_gated),
        *family.PLAIN_ROUTER,
        family.EVEN_HEADS,
        Need(
            "attention.qk_norm",
            "it normalizes queries and keys like all else, over all heads",
            lambda m: m.attention.qk_norm == m.norm and not m.attention.norms_heads,
        ),
        family.NO_EMBEDDING_NORM,
        family.NORM_BEFORE,
        family.NO_WINDOWS,
        family.PLAIN_ATTENTION,
    )
    keys: ClassVar[ConfigKeys] = without("head_dim", "mlp_bias") | {
        "rms_norm_eps": (1e-5, lambda m: m.norm.eps),
        "num_experts": (64, lambda m: m.mlp.num_experts),
        "num_experts_per_tok": (8, lambda m: m.mlp.top_k),
        "norm_topk_prob": (False, lambda m: m.mlp.renormalize),
        "clip_qkv": _NO_CLIPPING,
    }
    trained: ClassVar[Mapping[str, Any]] = {**Llama.trained, "router_aux_loss_coef": 0.01}
    unread = frozenset({"output_router_logits"})

    def section(self, config: Mapping[str, Any]) -> Section:
        section = super().section(config)
        section["attention"]["qk_norm"] = SAME_NORM
        return section

    def mlp(self, config: Mapping[str, Any]) -> Section:
        read, expert = self.read(config), super().mlp(config)
        del expert["bias"]
        return expert | {
            "_target_": EXPERTS,
            "num_experts": read["num_experts"],
            "top_k": read["num_experts_per_tok"],
            "renormalize": read["norm_topk_prob"],
            "routing": "learned",
            "auxiliary_loss": float(read["router_aux_loss_coef"]),
            "auxiliary_scope": "model",  # as its load_balancing_loss_func, over all layers
            "z_loss": 0.0,
            "path": "auto",
        }

    def training(self, features: DecoderSpec, context_tokens: int) -> dict[str, Any]:
        return super().training(features, context_tokens) | {
            "router_aux_loss_coef": features.mlp.auxiliary_loss,
            "output_router_logits": False,
        }

    def mlp_links(self, features: DecoderSpec, ours: str, theirs: str) -> Iterator[TensorLink]:
        yield same(f"{ours}.router.weight", f"{theirs}.gate.weight")
        yield from expert_links(features, ours, theirs)


def expert_links(features: DecoderSpec, ours: str, theirs: str) -> Iterator[TensorLink]:
    """Link the stacks of experts with their files' entries, one an expert."""
    for name in ("gate", "up", "down"):
        experts = range(features.mlp.num_experts or 0)
        slices = [f"{theirs}.experts.{expert}.{name}_proj.weight" for expert in experts]
        yield unstacked(f"{ours}.{name}.weight", slices)


FAMILIES = (Llama(), Olmo(), Olmoe())

"""OLMo, as github.com/allenai/OLMo released it first, and OLMoE, arxiv.org/abs/2409.02060."""

from collections.abc import Iterator
from typing import Any, ClassVar

from components.convert import family
from components.convert.family import ConfigKeys, Need
from components.convert.features import Features
from components.convert.links import TensorLink, same, unstacked
from components.convert.llama import Llama

EPS = 1e-5  # written into the class of OLMo
_NO_CLIPPING = (None, lambda _: None)


def _without(*names: str) -> dict[str, Any]:
    """Return Llama's keys but for ``names``."""
    return {key: value for key, value in Llama.keys.items() if key not in names}


class Olmo(Llama):
    """Llama with LayerNorm that has no parameters."""

    model_type = "olmo"
    architecture = "OlmoForCausalLM"
    needs = (
        family.ROTARY_POSITIONS,
        Need(
            "model.norm",
            f"it has LayerNorm without parameters, eps {EPS:g}, here is {{norm}}",
            lambda m: m.norm.is_bare and m.norm.eps == EPS,
        ),
        Need(
            "model.mlp",
            "its MLP is gated and has no bias",
            lambda m: m.gated and not m.mlp_bias,
        ),
        family.NO_EXPERTS,
        family.EVEN_HEADS,
        family.NO_QK_NORM,
        family.NO_EMBEDDING_NORM,
    )
    keys: ClassVar[ConfigKeys] = {
        **_without("head_dim", "mlp_bias", "rms_norm_eps"),
        "clip_qkv": _NO_CLIPPING,
    }


class Olmoe(Llama):
    """Llama with normalized queries and keys, and experts in place of the MLP.

    The disk holds each expert apart, as the published folders and ``save_pretrained`` have
    it; only in memory are they stacked.
    """

    model_type = "olmoe"
    architecture = "OlmoeForCausalLM"
    needs = (
        family.ROTARY_POSITIONS,
        family.RMS_NORM,
        Need(
            "model.mlp.num_experts",
            "it is a mixture of experts",
            lambda m: m.num_experts is not None,
        ),
        Need(
            "model.mlp",
            "its experts are gated and have no bias",
            lambda m: m.gated and not m.mlp_bias,
        ),
        Need("model.mlp.routing", "its router is learned", lambda m: m.routing == "learned"),
        family.EVEN_HEADS,
        Need(
            "model.attention.qk_norm",
            "it normalizes queries and keys like all else",
            lambda m: m.qk_norm == m.norm,
        ),
        family.NO_EMBEDDING_NORM,
    )
    keys: ClassVar[ConfigKeys] = _without("head_dim", "mlp_bias") | {
        "rms_norm_eps": (1e-5, lambda m: m.norm.eps),
        "num_experts": (64, lambda m: m.num_experts),
        "num_experts_per_tok": (8, lambda m: m.top_k),
        "norm_topk_prob": (False, lambda m: m.renormalize),
        "clip_qkv": _NO_CLIPPING,
    }

    def training(self, features: Features, context_tokens: int) -> dict[str, Any]:
        return super().training(features, context_tokens) | {
            "router_aux_loss_coef": features.auxiliary_loss,
            "output_router_logits": False,
        }

    def mlp_links(self, features: Features, ours: str, theirs: str) -> Iterator[TensorLink]:
        yield same(f"{ours}.router.weight", f"{theirs}.gate.weight")
        for name in ("gate", "up", "down"):
            experts = range(features.num_experts or 0)
            slices = [f"{theirs}.experts.{expert}.{name}_proj.weight" for expert in experts]
            yield unstacked(f"{ours}.{name}.weight", slices)


FAMILIES = (Olmo(), Olmoe())

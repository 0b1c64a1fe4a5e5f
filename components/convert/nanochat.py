"""nanochat (https://github.com/karpathy/nanochat); keys are those of ``transformers``.

No norm has parameters. Its class turns the two halves of a head the other way round than
Llama's, so the halves of each head's queries and keys change places in its folders. It norms
queries and keys after they are turned, which is the same: turning keeps a head's length.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from components.config.model_spec.decoder import DecoderSpec
from components.convert import family
from components.convert.family import ConfigKeys, Need, Section
from components.convert.links import TensorLink, module
from components.convert.llama import SAME_NORM, Llama, without


def _halves_swapped(ours: str, theirs: str, *, num_heads: int) -> TensorLink:
    """Join rows that go head by head, the halves of a head in the other order."""

    def swap(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        heads = tensors[0].view(num_heads, 2, -1, *tensors[0].shape[1:])
        return [heads.flip(1).flatten(0, 2)]

    return TensorLink((ours,), (theirs,), swap, swap)


class NanoChat(Llama):
    """Llama with norms without weights, also of embeddings, an MLP of two maps, a logit cap."""

    model_type = "nanochat"
    architecture = "NanoChatForCausalLM"
    forms: ClassVar[Mapping[str, object]] = {"final_logit_softcapping": None}
    usual: ClassVar[tuple[Need, ...]] = (family.AS_EMBEDDED, family.OWN_SCALE)
    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            "norm",
            "it has RMSNorm with no parameters, here is {norm}",
            lambda m: m.norm.description == "RMSNorm with no parameters",
        ),
        Need(
            "embedding_norm",
            "it normalizes embeddings like all else",
            lambda m: m.embedding_norm == m.norm,
        ),
        Need(
            "attention.qk_norm",
            "it normalizes each head of queries and keys, else like all",
            lambda m: m.attention.norms_heads and m.attention.qk_norm == m.norm,
        ),
        Need(
            "mlp",
            "its MLP is plain and has no bias",
            lambda m: m.mlp.is_plain and not m.mlp.bias,
        ),
        family.ROTARY,
        family.EVEN_HEADS,
        family.NORM_BEFORE,
        family.NO_WINDOWS,
        family.NO_SCALARS,
        family.PLAIN_ATTENTION,
    )
    keys: ClassVar[ConfigKeys] = without("head_dim", "mlp_bias") | {
        "hidden_size": (768, lambda m: m.dim),
        "intermediate_size": (8_192, lambda m: m.mlp.ffn_dim),
        "num_hidden_layers": (12, lambda m: m.num_layers),
        "num_attention_heads": (6, lambda m: m.attention.num_heads),
        "hidden_act": ("relu2", Llama.keys["hidden_act"][1]),
        "final_logit_softcapping": (15.0, lambda m: m.logit_cap),
    }

    def section(self, config: Mapping[str, Any]) -> Section:
        section = super().section(config)
        section["attention"] |= {"qk_norm": SAME_NORM, "qk_norm_over": "each_head"}
        cap = self.read(config)["final_logit_softcapping"]
        return section | {"embedding_norm": SAME_NORM, "logit_cap": cap and float(cap)}

    def mlp(self, config: Mapping[str, Any]) -> Section:
        return super().mlp(config) | {"gated": False}

    def norm(self, config: Mapping[str, Any]) -> Section:
        return super().norm(config) | {"weight": False}

    def attention_links(
        self, features: DecoderSpec, ours: str, theirs: str
    ) -> Iterator[TensorLink]:
        attention = features.attention
        for name, heads in (("query", attention.num_heads), ("key", attention.num_kv_heads)):
            for kind in ("weight", "bias") if attention.bias else ("weight",):
                their_name = f"{theirs}.{name[0]}_proj.{kind}"
                yield _halves_swapped(f"{ours}.{name}.{kind}", their_name, num_heads=heads)
        for name in ("value", "output"):
            yield from module(f"{ours}.{name}", f"{theirs}.{name[0]}_proj", bias=attention.bias)

    def mlp_links(self, features: DecoderSpec, ours: str, theirs: str) -> Iterator[TensorLink]:
        for name, their_name in (("up", "fc1"), ("down", "fc2")):
            yield from module(f"{ours}.{name}", f"{theirs}.{their_name}", bias=False)


FAMILIES = (NanoChat(),)

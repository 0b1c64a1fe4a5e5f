"""What a model section asks for, as far as a Hugging Face class has to know it.

Keys that only training reads are named here and left aside; a key that is in neither list is
refused, since a feature that is silently dropped gives a folder that computes something else.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from components.config import shape
from components.config.schema.types import thaw
from components.errors import RecipeError

_TRAINING = frozenset({
    *("init_from", "std", "residual", "padding_row", "layer_scaling", "backends"),
    *("auxiliary_scope", "z_loss", "path", "loss_weight", "cutoff", "embedding_std"),
    "head_std",
})


class NormFeatures(shape.NormShape):
    """One kind of norm; two nodes that say the same are equal."""

    eps: float
    center: bool

    @property
    def kind(self) -> str:
        vectors = [name for name in ("weight", "bias") if getattr(self, name)]
        name = "LayerNorm" if self.center else "RMSNorm"
        return f"{name} with {' and '.join(vectors) or 'no parameters'}"

    def __str__(self) -> str:
        return f"{self.kind}, eps {self.eps:g}"


class _Named(BaseModel):
    target: str = Field(alias="_target_")

    @property
    def kind(self) -> str:
        return self.target.rpartition(".")[2]


class ScalingFeatures(_Named):
    """How a rotation is slowed, by the name of our class and its numbers."""

    factor: float
    original_tokens: int | None = None
    low_frequency_factor: float | None = None
    high_frequency_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None


class PositionsFeatures(_Named, shape.PositionsShape):
    """How a token's place is told, by the name of our class."""

    scaling: ScalingFeatures | None = None


class AttentionFeatures(shape.AttentionShape):
    """One attention block."""

    qk_norm: NormFeatures | None = None
    latent_norm: NormFeatures | None = None
    dropout: float

    @property
    def window(self) -> int | None:
        """The window of all layers that have one; None where they differ or there is none."""
        found = {one for one in self.windows if one != "full"}
        return found.pop() if len(found) == 1 else None


class MLPFeatures(shape.MLPShape):
    """One feed-forward block, or experts."""

    activation: str
    renormalize: bool = False
    routing: str = "learned"
    auxiliary_loss: float = 0.0
    scores: str = "softmax"
    weight_scale: float = 1.0
    balance_rate: float | None = None

    @property
    def chooses_plainly(self) -> bool:
        """Whether a softmax alone chooses experts, and nothing is beside them."""
        plain = self.scores == "softmax" and self.weight_scale == 1 and self.num_groups == 1
        return plain and self.balance_rate is None and self.shared_ffn_dim is None

    @property
    def is_plain(self) -> bool:
        return not self.gated and self.num_experts is None


class Features(shape.ModelShape):
    """A decoder in the terms of the model section; ``None`` is a feature it does not have."""

    positions: PositionsFeatures
    attention: AttentionFeatures
    mlp: MLPFeatures
    norm: NormFeatures
    embedding_norm: NormFeatures | None
    initialization: Mapping[str, Any]
    dropout: float
    dense_mlp: MLPFeatures | None = None

    @property
    def is_unscaled(self) -> bool:
        """Whether neither embeddings, branches nor logits are multiplied for their sizes."""
        base = self.parametrization
        if base is None:
            return True
        deep = base.base_layers not in {None, self.num_layers} and base.depth_exponent != 0
        ends = base.embedding_multiplier == 1 and base.output_multiplier == 1
        return base.base_dim == self.dim and ends and not deep

    @property
    def initializer_range(self) -> float:
        """The deviation of first weights; where each map has its own, the classes' default."""
        std = self.initialization["std"]
        return 0.02 if std == "fan_in" else float(std)


_PARTS: Mapping[str, type[BaseModel]] = {
    "positions": PositionsFeatures,
    "scaling": ScalingFeatures,
    "attention": AttentionFeatures,
    "mlp": MLPFeatures,
    "dense_mlp": MLPFeatures,
    "mtp": shape.MTPShape,
    "parametrization": shape.ParametrizationShape,
}


def read_features(section: Mapping[str, Any]) -> Features:
    """Read the model section of a recipe.

    Raises:
        RecipeError: a key that this room does not know, so cannot convert.
    """
    _check_keys(section, Features, "model")
    return Features.model_validate(thaw(section))


def _check_keys(node: Mapping[str, Any], kind: type[BaseModel], path: str) -> None:
    for key, value in node.items():
        if not (key in kind.model_fields or key in _TRAINING or key.startswith("_")):
            raise RecipeError(
                f"{path}.{key}",
                "conversion does not know this key, so cannot say what it changes",
                "teach components/convert/features.py what a Hugging Face class makes of it",
            )
        if isinstance(value, Mapping):
            _check_keys(value, _PARTS.get(key, NormFeatures), f"{path}.{key}")

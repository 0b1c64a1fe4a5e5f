"""Choose the Hugging Face class that computes what a model computes.

The families are in modules of this package; a new one is a new file. The choice reads the
features of the model section, never a name.
"""

import importlib
import pkgutil
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple

import components.convert as package
from components.config.model_spec.decoder import DecoderSpec
from components.convert.links import TensorLink
from components.errors import RecipeError


class Need(NamedTuple):
    """A feature that a class always has; ``{norm}`` in ``has`` stands for the model's norm."""

    key: str  # of the model section
    has: str
    is_met: Callable[[DecoderSpec], bool]


# What several classes need.
ROTARY = Need("positions", "it has rotary positions", lambda m: m.positions.kind == "Rotary")
RMS_NORM = Need(
    "norm",
    "it has RMSNorm with weight, here is {norm}",
    lambda m: m.norm.description == "RMSNorm with weight",
)
NO_EXPERTS = Need("mlp.num_experts", "it is dense", lambda m: m.mlp.num_experts is None)
LEARNED = Need("mlp.routing", "its router is learned", lambda m: m.mlp.routing == "learned")
PLAIN_ROUTER = (
    LEARNED,
    Need(
        "mlp",
        "it chooses experts by a softmax alone, without groups, biases or a shared expert",
        lambda m: m.mlp.chooses_plainly,
    ),
    Need("dense_mlp", "it has experts in all layers", lambda m: m.dense_mlp is None),
)
EVEN_HEADS = Need(
    "attention.head_dim",
    "its heads divide the width among them",
    lambda m: m.attention.num_heads * m.attention.head_dim == m.dim,
)
NO_QK_NORM = Need(
    "attention.qk_norm",
    "it does not normalize queries and keys",
    lambda m: m.attention.qk_norm is None,
)
NORM_BEFORE = Need(
    "norm_placement",
    "it norms what its branches are fed",
    lambda m: m.norm_placement == "before",
)
NO_WINDOWS = Need(
    "attention.windows",
    "its queries see all earlier tokens",
    lambda m: set(m.attention.windows) == {"full"},
)
NO_SCALARS = Need(
    "mlp.activation",
    "its activation has nothing to train",
    lambda m: not m.mlp.activation_parameters,
)
PLAIN_ATTENTION = Need(
    "attention.key_value_rank",
    "its attention is not latent",
    lambda m: m.attention.key_value_rank is None,
)
# What all need, but where a class says otherwise.
NO_CAP = Need("logit_cap", "it does not cap its logits", lambda m: m.logit_cap is None)
AS_EMBEDDED = Need(
    "embedding_scale",
    "it does not multiply its embeddings",
    lambda m: m.embedding_scale == "none",
)
OWN_SCALE = Need(
    "attention.scale_dim",
    "it divides scores by the root of its heads' width",
    lambda m: m.attention.scale_dim in {None, m.attention.head_dim},
)
UNSCALED = Need(
    "parametrization",
    "it multiplies neither embeddings, branches nor logits",
    lambda m: m.is_unscaled,
)
NO_EMBEDDING_NORM = Need(
    "embedding_norm", "it does not normalize embeddings", lambda m: m.embedding_norm is None
)


ConfigKeys = Mapping[str, tuple[Any, Callable[[DecoderSpec], Any]]]
Section = dict[str, Any]


class HFFamily(ABC):
    """One class of Hugging Face, beside our decoder.

    ``needs`` are what a model must have, ``usual`` what all classes need but for a few.
    ``keys`` are those of ``config.json`` that change what is computed, without the vocabulary:
    what the class takes where one is absent, and what it is of a model of ours. ``trained`` are
    those that training reads, and what the class takes; ``spellings`` are older names of
    either, and ``unread`` are keys of the published files that change neither. ``plain`` are
    keys of which one value alone is what is computed here; ``forms`` show by an example what a
    key holds whose default does not.
    """

    model_type: str
    architecture: str
    prefix: str  # left out by some published folders
    no_weights: re.Pattern[str]  # buffers that some published folders hold
    needs: ClassVar[tuple[Need, ...]]
    usual: ClassVar[tuple[Need, ...]] = (NO_CAP, AS_EMBEDDED, OWN_SCALE, UNSCALED)
    keys: ClassVar[ConfigKeys]
    trained: ClassVar[Mapping[str, Any]]
    spellings: ClassVar[Mapping[str, str]] = {}
    unread: ClassVar[frozenset[str]] = frozenset()
    plain: ClassVar[Mapping[str, Any]] = {}
    forms: ClassVar[Mapping[str, object]] = {}

    def shape(self, features: DecoderSpec) -> dict[str, Any]:
        """Return the ``keys`` of a model of ours."""
        return {key: ours(features) for key, (_, ours) in self.keys.items()}

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Read the ``keys`` from a ``config.json``; a class adds old spellings."""
        return {key: config.get(key, default) for key, (default, _) in self.keys.items()}

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Read ``keys`` and ``trained`` from a ``config.json``."""
        trained = {key: config.get(key, default) for key, default in self.trained.items()}
        return self.stated(config) | trained

    @abstractmethod
    def section(self, config: Mapping[str, Any]) -> Section:
        """Return what a recipe's model section says of such a model, but for the vocabulary.

        Raises:
            RecipeError: a value that no part of ours has.
        """

    @abstractmethod
    def training(self, features: DecoderSpec, context_tokens: int) -> dict[str, Any]:
        """Return the other keys: what training or a cache reads."""

    def leaves_out(self, features: DecoderSpec, name: str) -> bool:
        """Whether a folder's tensor is none of the model that the recipe has."""
        return bool(self.no_weights.search(name))

    @abstractmethod
    def links(self, features: DecoderSpec) -> Iterator[TensorLink]:
        """List all tensors of the class, with ours."""


def named_here(key: str, value: str, theirs: Mapping[str, str]) -> str:
    """Return our name of what ``theirs`` has their name of.

    Raises:
        RecipeError: there is none.
    """
    ours = {their: our for our, their in theirs.items()}
    if value not in ours:
        problem, known = f"{value!r} has no equal here", ", ".join(sorted(ours))
        raise RecipeError(key, problem, f"known are {known}")
    return ours[value]


@cache
def all_families() -> tuple[HFFamily, ...]:
    """Find the families in this package's modules: each lists its own in ``FAMILIES``."""
    modules = (
        importlib.import_module(f"{package.__name__}.{found.name}")
        for found in pkgutil.iter_modules(package.__path__)
    )
    return tuple(family for module in modules for family in getattr(module, "FAMILIES", ()))


def choose_family(features: DecoderSpec) -> HFFamily:
    """Take the family with every feature, or raise a RecipeError of what the nearest lack."""
    unmet = {
        family: [need for need in (*family.needs, *family.usual) if not need.is_met(features)]
        for family in all_families()
    }
    fewest = min(map(len, unmet.values()))
    nearest = [family for family, lacking in unmet.items() if len(lacking) == fewest]
    if not fewest:
        return nearest[0]
    reasons = "the nearest:"
    for family in nearest:
        lacking = (
            f"model.{need.key} ({need.has.format(norm=features.norm)})"
            for need in unmet[family]
        )
        reasons += f"\n  {family.architecture} but for {', '.join(lacking)}"
    problem = f"no class of Hugging Face has this; {reasons}"
    remedy = "the model can be trained here, but not exported"
    raise RecipeError(f"model.{unmet[nearest[0]][0].key}", problem, remedy)

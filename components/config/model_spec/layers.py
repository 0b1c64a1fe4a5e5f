"""Layer types: residual branches of attention, linear mixers and MLPs, in a pattern.

A layer is written as its branches, for example ``attention/mlp``. A slash starts a branch,
which reads the residual stream, and whose output is added to it. A plus adds a part that reads
the same normalized input (a parallel pair). Parts are ``attention``, ``mlp`` (perhaps with
experts) and the names in ``model.mixers``. A layer has at most one part of each kind. A
pattern is a list of layers, or their text with ``|`` between them, and repeats:

- Nemotron-H (https://arxiv.org/abs/2504.03624) has one part per layer, 52 in full:
  ``mamba|mlp|mamba|mlp|mamba|mlp|mamba|attention|mlp|...``.
- Falcon-H1 (https://arxiv.org/abs/2507.22448): ``attention+mamba/mlp``.
- Qwen3-Next (https://huggingface.co/Qwen/Qwen3-Next-80B-A3B-Base), with experts in ``mlp``:
  ``delta/mlp|delta/mlp|delta/mlp|attention/mlp``.
  Its attention has ``output_gate: true``, its positions have ``rotary_fraction: 0.25``, its
  experts have ``shared_gate: true``.
- OLMo-Hybrid (https://huggingface.co/allenai/Olmo-Hybrid-7B): the same pattern with a dense
  MLP; the mixer has ``norm_placement: before``, the model ``norm_placement: after``.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field

from components.config.model_spec.mixers import MixerSpec
from components.errors import RecipeError

KEY = "model.pattern"
DEFAULT = "attention/mlp"
Slot = Literal["attention", "mixer", "mlp"]
NAMES: tuple[Slot, ...] = ("attention", "mlp")
_FIX = "write branches as attention/mlp, parallel parts as attention+NAME/mlp"


def split_pattern(pattern: Any) -> Any:
    """Return the list of layers of a pattern written as a text; other values unchanged."""
    return pattern.split("|") if isinstance(pattern, str) else pattern


def shorten_pattern(pattern: Sequence[str], num_layers: int) -> list[str]:
    """Shorten a pattern of layers to a smaller model; keep a layer of each kind if they fit."""
    kinds = list(dict.fromkeys(pattern))
    return [*pattern[: max(0, num_layers - len(kinds))], *kinds][:num_layers]


Pattern = Annotated[tuple[str, ...], Field(strict=False), BeforeValidator(split_pattern)]


class LayerType(NamedTuple):
    """Branches of a layer, as tuples of slots, and its linear mixer."""

    branches: tuple[tuple[Slot, ...], ...]
    mixer: MixerSpec | None = None

    @property
    def has_attention(self) -> bool:
        """Whether a branch has attention."""
        return any("attention" in branch for branch in self.branches)

    @property
    def has_mlp(self) -> bool:
        """Whether a branch has an MLP or experts."""
        return any("mlp" in branch for branch in self.branches)


def read_layer(text: str, mixers: Mapping[str, MixerSpec]) -> LayerType:
    """Return the layer type that a pattern's text names; RecipeError for an invalid text."""
    branches: list[tuple[Slot, ...]] = []
    slots: list[Slot] = []
    mixer = None
    for branch in text.split("/"):
        parts: list[Slot] = []
        for name in (part.strip() for part in branch.split("+")):
            if name not in {*NAMES, *mixers}:
                known = ", ".join((*NAMES, *mixers))
                problem = f"{text!r} has an unknown part {name!r}"
                raise RecipeError(KEY, problem, f"use some of {known}; {_FIX}")
            mixer = mixers.get(name, mixer)
            parts.append(next((slot for slot in NAMES if slot == name), "mixer"))
        branches.append(tuple(parts))
        slots += parts
    if slots != [slot for slot in get_args(Slot) if slot in slots]:
        problem = f"{text!r} has {', '.join(slots)}"
        fix = "use attention, a linear mixer and mlp in this order, each at most once"
        raise RecipeError(KEY, problem, fix)
    return LayerType(tuple(branches), mixer)


def check_pattern(
    pattern: Sequence[str] | None, mixers: Mapping[str, MixerSpec], *, num_layers: int
) -> None:
    """Raise a RecipeError for an invalid pattern, unused mixers, or names of other parts."""
    for name in mixers:
        if name in NAMES or not name.isidentifier():
            problem = f"{name!r} cannot name a mixer"
            fix = f"use a name of letters, digits and _, but not {' or '.join(NAMES)}"
            raise RecipeError("model.mixers", problem, fix)
    if pattern is not None and not 0 < len(pattern) <= num_layers:
        problem = f"the pattern has {len(pattern)} layers, but the model has {num_layers}"
        raise RecipeError(KEY, problem, f"list 1 to {num_layers} layers; the list repeats")
    layers = [read_layer(text, mixers) for text in pattern or ()]
    used = [layer.mixer for layer in layers]
    for name, mixer in mixers.items():
        if not any(mixer is other for other in used):
            problem = f"no layer of the pattern uses {name}"
            fix = f"remove it, or set {KEY}=[{name}/mlp, {DEFAULT}]"
            raise RecipeError(f"model.mixers.{name}", problem, fix)

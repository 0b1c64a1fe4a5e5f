"""Relatives of Llama whose queries see a window of keys: OLMo-3 and Mistral.

OLMo-3 is https://arxiv.org/abs/2512.13961, Mistral https://arxiv.org/abs/2310.06825; keys and
defaults are those of ``transformers``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from components.attention_windows import Window, window_of
from components.config.model_spec.decoder import DecoderSpec
from components.convert import family
from components.convert.family import ConfigKeys, Need, Section
from components.convert.llama import SAME_NORM, Llama, scaling_of, stated_scaling, without
from components.convert.newer_llama import Olmo2
from components.errors import RecipeError

FULL, WINDOW = "full_attention", "sliding_attention"
ONE_WINDOW = Need(
    "attention.windows",
    "some of its layers have a window, all of one length",
    lambda m: m.attention.window is not None,
)


def layer_types(features: DecoderSpec) -> list[str]:
    """Say of each layer whether it has a window."""
    windows = (window_of(features.attention.windows, n) for n in range(features.num_layers))
    return [FULL if window is None else WINDOW for window in windows]


def types_of(layers: int, every: int) -> list[str]:
    """Say it of layers that have one but for each ``every``-th."""
    return [WINDOW if (layer + 1) % every else FULL for layer in range(layers)]


def rotations_of(
    base: Any, scaling: dict[str, Any] | None, *, local: Any = None
) -> dict[str, dict[str, Any]]:
    """Write the two rotations as newer releases of the class have them."""
    plain = {"rope_type": "default", "rope_theta": base}
    return {
        WINDOW: plain if local is None else plain | {"rope_theta": local},
        FULL: plain if scaling is None else plain | scaling,
    }


class Olmo3(Llama):
    """OLMo-2 with windows in some layers, which turn as they do whatever slows the others."""

    model_type = "olmo3"
    architecture = "Olmo3ForCausalLM"
    forms: ClassVar[Mapping[str, object]] = {"sliding_window": None}
    norms = Olmo2.norms
    default_base = 500_000.0
    needs: ClassVar[tuple[Need, ...]] = (
        ONE_WINDOW,
        Need(
            "positions.local_base",
            "its layers with a window turn by the same base, and are never slowed",
            lambda m: (
                m.positions.local_base == m.positions.base
                or (m.positions.local_base is None and m.positions.scaling is None)
            ),
        ),
        *(need for need in Olmo2.needs if need is not family.NO_WINDOWS),
    )
    keys: ClassVar[ConfigKeys] = {
        **Olmo2.keys,
        "sliding_window": (4_096, lambda m: m.attention.window),
        "layer_types": (None, layer_types),
        # Older releases read the two keys above it, which is all of it here.
        "rope_parameters": (
            None,
            lambda m: rotations_of(m.positions.base, scaling_of(m.positions.scaling)),
        ),
    }

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        newer = config.get("rope_parameters") or {}
        whole = dict(newer.get(FULL) or {})
        read = super().stated({**config, "rope_parameters": whole})
        layers = read["num_hidden_layers"]
        types = types_of(layers, 4)
        rotations = rotations_of(read["rope_theta"], read["rope_scaling"])
        if local := dict(newer.get(WINDOW) or {}):
            base = local.pop("rope_theta", self.default_base)
            rotations[WINDOW] = rotations_of(base, stated_scaling(local))[FULL]
        return read | {
            "layer_types": (read["layer_types"] or types)[:layers],
            "rope_parameters": rotations,
        }

    def rotations(self, config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        yield "rope_scaling", config.get("rope_scaling") or {}
        for kind, numbers in (config.get("rope_parameters") or {}).items():
            if kind not in {FULL, WINDOW}:
                problem = f"{numbers!r} is of no kind of layer"
                raise RecipeError(f"rope_parameters.{kind}", problem, f"use {FULL}, {WINDOW}")
            yield f"rope_parameters.{kind}", numbers

    def section(self, config: Mapping[str, Any]) -> Section:
        section, read = super().section(config), self.read(config)
        wide: Window = read["sliding_window"]
        kinds = [wide if kind == WINDOW else "full" for kind in read["layer_types"]]
        section["attention"] |= {"qk_norm": SAME_NORM, "windows": shortest_pattern(kinds)}
        return section | {"norm_placement": "after"}

    def positions(self, config: Mapping[str, Any]) -> Section:
        node = super().positions(config)
        return node | {"local_base": node["base"]} if "scaling" in node else node


class Mistral(Llama):
    """Llama without biases, and with the same window in all layers."""

    model_type = "mistral"
    architecture = "MistralForCausalLM"
    forms: ClassVar[Mapping[str, object]] = {"sliding_window": None}
    needs = (
        Need(
            "attention.windows",
            "all its layers have the same window",
            lambda m: m.attention.window is not None and "full" not in m.attention.windows,
        ),
        Need(
            "attention.bias",
            "its maps have no biases",
            lambda m: not (m.attention.bias or m.mlp.bias),
        ),
        Need(
            "positions.local_base",
            "all its layers turn alike",
            lambda m: m.positions.local_base is None,
        ),
        *(need for need in Llama.needs if need is not family.NO_WINDOWS),
    )
    keys: ClassVar[ConfigKeys] = without("attention_bias", "mlp_bias") | {
        "intermediate_size": (14_336, lambda m: m.mlp.ffn_dim),
        "num_key_value_heads": (8, lambda m: m.attention.num_kv_heads),
        "sliding_window": (4_096, lambda m: m.attention.window),
    }

    def section(self, config: Mapping[str, Any]) -> Section:
        section, window = super().section(config), self.read(config)["sliding_window"]
        section["attention"]["windows"] = ["full" if window is None else window]
        return section


def shortest_pattern(kinds: Sequence[Window]) -> list[Window]:
    """Find the shortest pattern that gives all layers when it is repeated."""
    lengths = range(1, len(kinds) + 1)
    repeated = ([kinds[n % length] for n in range(len(kinds))] for length in lengths)
    length = next(n for n, one in zip(lengths, repeated, strict=True) if one == list(kinds))
    return list(kinds[:length])


FAMILIES = (Olmo3(), Mistral())

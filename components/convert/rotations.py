"""Rotary base and scaling in ``config.json``, in both spellings of ``transformers``.

Version 5 has one key, ``rope_parameters``, sometimes with an entry per kind of layer. Older
versions have ``rope_theta``, ``rope_scaling`` and ``rope_local_base_freq``.
"""

from collections.abc import Iterator, Mapping
from math import isclose, log
from typing import Any

from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.rotary_scaling import ScalingSpec
from components.convert.hf_family import OMIT, HFConfig, Section, Setting, find_name
from components.errors import RecipeError

FULL, WINDOW = "full_attention", "sliding_attention"
_ROTATION_KEYS = ("rope_theta", "rope_type", "type")  # all other keys are numbers of a scaling
# Our names of classes and numbers, mapped to theirs.
_SCALINGS = {"LinearScaling": "linear", "Llama3Scaling": "llama3", "YarnScaling": "yarn"}
_NUMBERS = {
    "factor": "factor",
    "original_tokens": "original_max_position_embeddings",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "truncate": "truncate",
}


def write_scaling(scaling: ScalingSpec | None) -> dict[str, Any] | None:
    """Return a scaling in the format of ``rope_scaling``."""
    if scaling is None:
        return None
    numbers = {theirs: getattr(scaling, ours) for ours, theirs in _NUMBERS.items()}
    present = {name: value for name, value in numbers.items() if value is not None}
    if scaling.truncate:  # the classes' default
        del present["truncate"]
    return {"rope_type": _SCALINGS[scaling.class_name], **present}


def normalize_scaling(config: HFConfig) -> dict[str, Any] | None:
    """Return a scaling with the current key for its type and with default numbers filled in."""
    present = {name: value for name, value in config.items() if value is not None}
    kind = present.pop("rope_type", None) or present.get("type", "default")
    present.pop("type", None)
    if kind == "default":
        return None
    betas = {"beta_fast": 32.0, "beta_slow": 1.0} if kind == "yarn" else {}
    scaling = {"rope_type": kind, **betas, **present}
    if scaling.get("truncate", False):
        del scaling["truncate"]
    # A folder may contain the attention factor of YaRN's paper, which is the default.
    default = 0.1 * log(scaling["factor"]) + 1 if kind == "yarn" else None
    if default is not None and isclose(scaling.get("attention_factor", 0.0), default):
        del scaling["attention_factor"]
    return scaling


def _import_scaling(scaling: HFConfig | None, _: HFConfig) -> Any:
    if scaling is None or scaling["rope_type"] == "default":
        return OMIT
    kind = find_name("rope_type", scaling["rope_type"], _SCALINGS)
    numbers = {ours: scaling[name] for ours, name in _NUMBERS.items() if name in scaling}
    return {"_target_": f"components.model.rotary_scaling.{kind}", **numbers}


def resolve_scaling(value: HFConfig | None, _: HFConfig) -> dict[str, Any] | None:
    """Return the scaling of a file; null means no scaling."""
    return normalize_scaling(value or {})


def rope_theta(default: float) -> Setting:
    """Return the row of the rotary base. Null means the default."""
    return Setting(
        "rope_theta",
        path="positions.base",
        resolve=lambda value, _: value or default,
        place=lambda value, _: float(value),
    )


ROPE_SCALING = Setting(
    "rope_scaling",
    path="positions.scaling",
    export=lambda m: write_scaling(m.positions.scaling),
    resolve=resolve_scaling,
    place=_import_scaling,
    kind={},
)


def flatten_rotation(config: HFConfig) -> Section:
    """Return a ``config.json`` with the older keys added to ``rope_parameters``."""
    rotation = config.get("rope_parameters") or {}
    flat = dict(config)
    if rotation.keys() & {FULL, WINDOW}:
        local = rotation.get(WINDOW) or {}
        flat |= {"rope_local_base_freq": local["rope_theta"]} if "rope_theta" in local else {}
        rotation = rotation.get(FULL) or {}
    scaling = dict(rotation)
    base = scaling.pop("rope_theta", None) or config.get("rope_theta")
    flat |= {"rope_theta": base} if base else {}
    return flat | ({"rope_scaling": scaling or config.get("rope_scaling")} if rotation else {})


def check_rotation(config: HFConfig, *, by_layer: bool = False) -> None:
    """Raise a RecipeError for a number of the rotation that no part here supports.

    With ``by_layer``, the key ``rope_parameters`` has an entry for each kind of layer.
    """
    for key, numbers in _list_rotations(config, by_layer=by_layer):
        present = normalize_scaling(numbers) or numbers  # without the default attention factor
        for name in (numbers.keys() & present.keys()) - {*_NUMBERS.values(), *_ROTATION_KEYS}:
            problem = f"unsupported key (value {numbers[name]!r})"
            known = ", ".join([*_ROTATION_KEYS, *_NUMBERS.values()])
            raise RecipeError(f"{key}.{name}", problem, f"supported: {known}")


def _list_rotations(config: HFConfig, *, by_layer: bool) -> Iterator[tuple[str, HFConfig]]:
    yield "rope_scaling", config.get("rope_scaling") or {}
    rotations: Mapping[str, Any] = config.get("rope_parameters") or {}
    if not by_layer:
        yield "rope_parameters", rotations
        return
    for kind, numbers in rotations.items():
        if kind not in {FULL, WINDOW}:
            problem = f"unknown kind of layer (value {numbers!r})"
            raise RecipeError(f"rope_parameters.{kind}", problem, f"use {FULL}, {WINDOW}")
        yield f"rope_parameters.{kind}", numbers


def _rotation(base: Any, scaling: HFConfig | None = None) -> Section:
    return {"rope_type": "default", "rope_theta": base, **(scaling or {})}


def _write_rotations(features: DecoderSpec) -> Section:
    positions = features.positions
    return {
        WINDOW: _rotation(positions.local_base or positions.base),
        FULL: _rotation(positions.base, write_scaling(positions.scaling)),
    }


def _resolve_rotations(rotations: HFConfig | None, values: HFConfig) -> Section:
    local = dict((rotations or {}).get(WINDOW) or {})
    base = values.get("rope_local_base_freq", values["rope_theta"])
    scaling = normalize_scaling(local)
    if scaling is not None:
        scaling.pop("rope_theta", None)
    return {
        WINDOW: _rotation(base, scaling),
        FULL: _rotation(values["rope_theta"], values["rope_scaling"]),
    }


# Newer releases read this key for a class with windows, older releases the keys above.
ROPE_PARAMETERS = Setting(
    "rope_parameters", export=_write_rotations, resolve=_resolve_rotations, kind={}
)

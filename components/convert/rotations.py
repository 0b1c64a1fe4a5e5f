"""The rotary base and its scaling in ``config.json``, in both spellings of ``transformers``.

Version 5 has one key, ``rope_parameters``, maybe with an entry for each kind of layer; older
versions have ``rope_theta``, ``rope_scaling`` and ``rope_local_base_freq``.
"""

from collections.abc import Iterator, Mapping
from math import isclose, log
from typing import Any

from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.rotary_scaling import ScalingSpec
from components.convert.hf_family import OMIT, Section, Setting, Values, find_name
from components.errors import RecipeError

FULL, WINDOW = "full_attention", "sliding_attention"
_ROTATION_KEYS = ("rope_theta", "rope_type", "type")  # all others are numbers of a scaling
# Our classes and numbers, and their names of them.
_SCALINGS = {"LinearScaling": "linear", "Llama3Scaling": "llama3", "YarnScaling": "yarn"}
_NUMBERS = {
    "factor": "factor",
    "original_tokens": "original_max_position_embeddings",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
}


def write_scaling(scaling: ScalingSpec | None) -> dict[str, Any] | None:
    """Return a scaling as ``rope_scaling`` has it."""
    if scaling is None:
        return None
    numbers = {theirs: getattr(scaling, ours) for ours, theirs in _NUMBERS.items()}
    given = {name: value for name, value in numbers.items() if value is not None}
    return {"rope_type": _SCALINGS[scaling.kind], **given}


def normalize_scaling(config: Values) -> dict[str, Any] | None:
    """Return a scaling under today's key for its type, with the numbers that it leaves out."""
    given = {name: value for name, value in config.items() if value is not None}
    kind = given.pop("rope_type", None) or given.get("type", "default")
    given.pop("type", None)
    if kind == "default":
        return None
    betas = {"beta_fast": 32.0, "beta_slow": 1.0} if kind == "yarn" else {}
    scaling = {"rope_type": kind, **betas, **given}
    # A folder may state the temperature of YaRN's paper, which is the default.
    default = 0.1 * log(scaling["factor"]) + 1 if kind == "yarn" else None
    if default is not None and isclose(scaling.get("attention_factor", 0.0), default):
        del scaling["attention_factor"]
    return scaling


def _import_scaling(scaling: Values | None, _: Values) -> Any:
    if scaling is None or scaling["rope_type"] == "default":
        return OMIT
    kind = find_name("rope_type", scaling["rope_type"], _SCALINGS)
    numbers = {ours: scaling[name] for ours, name in _NUMBERS.items() if name in scaling}
    return {"_target_": f"components.model.rotary_scaling.{kind}", **numbers}


def resolve_scaling(value: Values | None, _: Values) -> dict[str, Any] | None:
    """Return the scaling of a file; null is none."""
    return normalize_scaling(value or {})


def rope_theta(default: float) -> Setting:
    """Return the row of the rotary base, for which null stands for the default."""
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


def flatten_rotation(config: Values) -> Section:
    """Return a ``config.json`` with the older keys in addition to ``rope_parameters``."""
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


def check_rotation(config: Values, *, by_layer: bool = False) -> None:
    """Raise a RecipeError for a number of the rotation that no part here has.

    With ``by_layer`` the key ``rope_parameters`` has an entry for each kind of layer.
    """
    for key, numbers in _list_rotations(config, by_layer=by_layer):
        given = normalize_scaling(numbers) or numbers  # without a number that is the default
        for name in (numbers.keys() & given.keys()) - {*_NUMBERS.values(), *_ROTATION_KEYS}:
            problem = f"{numbers[name]!r}, but no part here has it"
            known = ", ".join([*_ROTATION_KEYS, *_NUMBERS.values()])
            raise RecipeError(f"{key}.{name}", problem, f"known are {known}")


def _list_rotations(config: Values, *, by_layer: bool) -> Iterator[tuple[str, Values]]:
    yield "rope_scaling", config.get("rope_scaling") or {}
    rotations: Mapping[str, Any] = config.get("rope_parameters") or {}
    if not by_layer:
        yield "rope_parameters", rotations
        return
    for kind, numbers in rotations.items():
        if kind not in {FULL, WINDOW}:
            problem = f"{numbers!r} is of no kind of layer"
            raise RecipeError(f"rope_parameters.{kind}", problem, f"use {FULL}, {WINDOW}")
        yield f"rope_parameters.{kind}", numbers


def _rotation(base: Any, scaling: Values | None = None) -> Section:
    return {"rope_type": "default", "rope_theta": base, **(scaling or {})}


def _write_rotations(features: DecoderSpec) -> Section:
    positions = features.positions
    return {
        WINDOW: _rotation(positions.local_base or positions.base),
        FULL: _rotation(positions.base, write_scaling(positions.scaling)),
    }


def _resolve_rotations(rotations: Values | None, values: Values) -> Section:
    local = dict((rotations or {}).get(WINDOW) or {})
    base = values.get("rope_local_base_freq", values["rope_theta"])
    scaling = normalize_scaling(local)
    if scaling is not None:
        scaling.pop("rope_theta", None)
    return {
        WINDOW: _rotation(base, scaling),
        FULL: _rotation(values["rope_theta"], values["rope_scaling"]),
    }


# Newer releases read this key of a class with windows, older ones those above it.
ROPE_PARAMETERS = Setting(
    "rope_parameters", export=_write_rotations, resolve=_resolve_rotations, kind={}
)

"""Write a recipe as readable YAML: 10_000, and short mappings and lists on one line."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
# Words that YAML 1.1 reads as a boolean or as nothing.
_RESERVED = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_INLINE_WIDTH = 88


class YamlLine(NamedTuple):
    """Line of YAML; ``differs`` marks a key with another value in the compared run."""

    text: str
    differs: bool


def recipe_lines(
    tree: Mapping[str, Any], differing: frozenset[str], prefix: str = "", indent: int = 0
) -> Iterator[YamlLine]:
    """Yield the lines of a recipe, and mark the dotted keys in ``differing``."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        head = f"{' ' * indent}{_scalar(key)}:"
        line = f"{head} {inline_yaml(value)}"
        fits = len(line) <= _INLINE_WIDTH and not (indent == 0 and value)
        if isinstance(value, Mapping) and value and not fits:
            yield YamlLine(head, path in differing)
            yield from recipe_lines(value, differing, f"{path}.", indent + 2)
        else:
            yield YamlLine(line, any(f"{key}.".startswith(f"{path}.") for key in differing))


def inline_yaml(value: object) -> str:
    """Return a value as one line of YAML."""
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{_scalar(k)}: {inline_yaml(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(inline_yaml(item) for item in value) + "]"
    return _scalar(value)


def _scalar(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int):
        return f"{value:_}" if abs(value) >= 10_000 else str(value)
    text = str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return re.sub("nan|inf", r".\g<0>", text)
        # YAML 1.1 reads 1e-05 without a decimal point as a string.
        return text.replace("e", ".0e") if "." not in text else text
    if _PLAIN.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    return '"' + "".join(_character(c) for c in text) + '"'


def _character(character: str) -> str:
    """Escape an unprintable character as in JSON, beyond 16 bits with eight hex digits."""
    if character.isprintable() and character not in '"\\':
        return character
    short = ord(character) <= 0xFFFF
    return json.dumps(character)[1:-1] if short else f"\\U{ord(character):08x}"

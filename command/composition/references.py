"""References between keys: ``${section.key}`` becomes the value of that key.

A dozen entries that each refer twice to the previous entry expand to thousands of values.
Therefore every target is resolved once, and its size is counted before it is copied.
"""

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from components.errors import RecipeError

REFERENCE = re.compile(r"\$\{([\w.]+)\}")
MAX_COPIED = 100_000  # characters and values; the recipes here copy fewer than 1,000
MISSING = "???"
UNKNOWN = object()


class _Resolver:
    """Resolves the references of one tree and caches their targets."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self._tree = tree
        self._targets: dict[str, Any] = {}  # UNKNOWN while a target is resolved
        self._copied = 0

    def resolve_value(self, value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            dot = f"{path}." if path else ""
            return {key: self.resolve_value(item, f"{dot}{key}") for key, item in value.items()}
        if isinstance(value, list):
            return [
                self.resolve_value(item, f"{path}.{place}") for place, item in enumerate(value)
            ]
        if not isinstance(value, str):
            return value
        targets: dict[str, Any] = {}
        for name in REFERENCE.findall(value):
            targets[name] = self._resolve_target(name, path)
            self._copied += _size(targets[name])
            if self._copied > MAX_COPIED:
                problem = f"its references expand to more than {MAX_COPIED:,} characters"
                raise RecipeError(path, problem, "write the values themselves")
        return _insert(value, targets, path)

    def _resolve_target(self, name: str, path: str) -> Any:
        if name not in self._targets:
            self._targets[name] = UNKNOWN
            value = find_target(self._tree, name, lambda step: self._follow(step, path))
            if value is UNKNOWN or value == MISSING:
                problem = f"refers to {name}, which is not set"
                raise RecipeError(path, problem, f"set {name}, or write the value itself")
            self._targets[name] = self.resolve_value(value, name)
        if self._targets[name] is UNKNOWN:
            raise RecipeError(path, f"refers to itself through {name}", "write the value")
        return self._targets[name]

    def _follow(self, value: Any, path: str) -> Any:
        """Return the target if the value is exactly one reference, else the value."""
        whole = REFERENCE.fullmatch(value) if isinstance(value, str) else None
        return self._resolve_target(whole[1], path) if whole else value


def resolve_references(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a tree with every reference replaced by its target.

    A cycle, a missing target, or targets that are too long together are a RecipeError.
    """
    resolved: dict[str, Any] = _Resolver(tree).resolve_value(tree, "")
    return resolved


def find_target(
    tree: Mapping[str, Any], path: str, follow: Callable[[Any], Any] = lambda value: value
) -> Any:
    """Return the value at a dotted path or `UNKNOWN`; ``follow`` maps values on the path."""
    value: Any = tree
    for step in path.split("."):
        value = follow(value)
        if isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, Mapping):
            value = value.get(step, UNKNOWN)
        else:
            return UNKNOWN
    return value


def _size(value: Any) -> int:
    if isinstance(value, Mapping | list):
        items = value.values() if isinstance(value, Mapping) else value
        return 1 + sum(map(_size, items))
    return 1 + len(str(value))


def _insert(text: str, targets: Mapping[str, Any], path: str) -> Any:
    """Insert targets into a text. A text that is only a reference keeps the target's type."""
    if whole := REFERENCE.fullmatch(text):
        return deepcopy(targets[whole[1]])
    for name, value in targets.items():
        if isinstance(value, Mapping | list):
            problem = f"{text!r} inserts {name}, which is not a single value"
            raise RecipeError(path, problem, f"refer to one of its keys: ${{{name}.KEY}}")
    return REFERENCE.sub(lambda match: str(targets[match[1]]), text)

"""References between keys: ``${section.key}`` becomes the value of that key.

A dozen entries that each name the one before twice expand to thousands of values. So every
target is resolved once, and the size of its value is known before the value is copied.
"""

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from components.errors import RecipeError

REFERENCE = re.compile(r"\$\{([\w.]+)\}")
MAX_REFERENCES = 500  # the recipes here have 30 at most
MAX_CHARACTERS = 1_000_000  # as many as a file may have
MISSING = "???"
UNKNOWN = object()


class _Resolved(NamedTuple):
    """A value without references, and how many references and characters it took."""

    value: Any
    references: int = 0
    characters: int = 0


class _Resolver:
    """Resolves the values of one tree and remembers those of its targets."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self._tree = tree
        self._targets: dict[str, _Resolved | None] = {}  # None while a target is resolved

    def resolve(self, value: Any, path: str) -> _Resolved:
        if isinstance(value, Mapping | list):
            return self._resolve_items(value, path)
        if not isinstance(value, str):
            return _Resolved(value, characters=1)
        references, characters = 0, len(value)
        found: dict[str, Any] = {}
        for name in REFERENCE.findall(value):
            target = self._resolve_target(name, path)
            found[name] = target.value
            references += 1 + target.references
            characters += target.characters
            _check_size(path, references, characters)
        return _Resolved(_insert(value, found, path), references, characters)

    def _resolve_items(self, value: Mapping[str, Any] | list[Any], path: str) -> _Resolved:
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        resolved = {}
        references = characters = 0
        for key, item in items:
            resolved[key] = inner = self.resolve(item, f"{path}.{key}" if path else str(key))
            references += inner.references
            characters += inner.characters
            _check_size(path or str(key), references, characters)
        values = {key: inner.value for key, inner in resolved.items()}
        copied = values if isinstance(value, Mapping) else list(values.values())
        return _Resolved(copied, references, characters)

    def _resolve_target(self, name: str, path: str) -> _Resolved:
        if name not in self._targets:
            self._targets[name] = None
            value = find_target(self._tree, name, lambda step: self._follow(step, path))
            if value is UNKNOWN or value == MISSING:
                problem = f"refers to {name}, which is not set"
                raise RecipeError(path, problem, f"set {name}, or write the value itself")
            self._targets[name] = self.resolve(value, name)
        if (target := self._targets[name]) is None:
            raise RecipeError(path, f"refers to itself through {name}", "write the value")
        return target

    def _follow(self, value: Any, path: str) -> Any:
        """Return the target of a value that is one reference; any other value as it is."""
        whole = REFERENCE.fullmatch(value) if isinstance(value, str) else None
        return self._resolve_target(whole[1], path).value if whole else value


def resolve_references(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a tree in which every reference is replaced by what it refers to.

    Raises:
        RecipeError: a reference leads nowhere or to itself, or all are too many or too long.
    """
    resolved: dict[str, Any] = _Resolver(tree).resolve(tree, "").value
    return resolved


def find_target(
    tree: Mapping[str, Any], path: str, follow: Callable[[Any], Any] = lambda value: value
) -> Any:
    """Return what a dotted path names, or `UNKNOWN`; ``follow`` is asked on the way."""
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


def _insert(text: str, found: Mapping[str, Any], path: str) -> Any:
    """Put the targets into a text; one that is a reference and nothing else keeps its type."""
    if whole := REFERENCE.fullmatch(text):
        return deepcopy(found[whole[1]])
    for name, value in found.items():
        if isinstance(value, Mapping | list):
            problem = f"{text!r} has {name} inside a text, and that is no single value"
            raise RecipeError(path, problem, f"refer to one key of it, as ${{{name}.KEY}}")
    return REFERENCE.sub(lambda match: str(found[match[1]]), text)


def _check_size(path: str, references: int, characters: int) -> None:
    for count, most, name in (
        (references, MAX_REFERENCES, "others"),
        (characters, MAX_CHARACTERS, "characters"),
    ):
        if count > most:
            problem = f"its references expand to more than {most:,} {name}"
            raise RecipeError(path, problem, "write the values themselves")

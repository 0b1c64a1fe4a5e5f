"""Names of recipe keys in earlier versions.

Files with earlier names are read. Fingerprints hash the earlier names, so they stay equal.
"""

import re
from collections.abc import Mapping
from typing import Any

# Sections of a recipe in locks, bundles, run trees and studies.
_SECTIONS = (
    r"(?:(?:composed|resolved|settled|set|(?:requested|asked)\.values|children\.[^.]+)\.)*"
)
_SOURCE = r"data\.sources\.[^.]+\."
# The parent of a key, its earlier name, and its present name.
_RENAMED = (
    ("", "why", "description"),
    ("", "home", "reference_cluster"),
    ("", "works", "citations"),
    (r"data\.", "surplus", "on_exhausted"),
    (_SOURCE, "stand_in", "placeholder"),
    (r"parallelism\.", "expert_bound", "expert_capacity_factor"),
    (r"parallelism\.", "expert_divisor", "expert_grad_average"),
    (r"scale\.shrink\.", "carriers", "filler"),
)
# Earlier and present values of renamed keys, by present name.
_VALUES = {
    "on_exhausted": {"refused": "refuse", "dealt": "redistribute"},
    "expert_grad_average": {"copies": "replicas"},
}
_EARLIER_VALUES = {
    key: {present: earlier for earlier, present in values.items()}
    for key, values in _VALUES.items()
}
_Rules = Mapping[str, tuple[re.Pattern[str], str]]


def _compile_rules(names: Mapping[tuple[str, str], str]) -> _Rules:
    """Return by a key's name the pattern of its path, and the path with its new name."""
    return {
        name: (re.compile(rf"({_SECTIONS}{parent}){name}(?=\.|$)"), rf"\g<1>{new}")
        for (parent, name), new in names.items()
    }


_LATER = _compile_rules({(parent, old): new for parent, old, new in _RENAMED})
_EARLIER = _compile_rules({(parent, new): old for parent, old, new in _RENAMED})


def update_path(path: str) -> str:
    """Return the present name of a dotted key path of an earlier version."""
    return _rename(path, _LATER)


def update_names(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return a tree of recipe sections with the present names of keys and values.

    ``path`` is the place of the tree in a recipe. If the tree also has a key by its present
    name, the earlier key stays, so that the check of keys rejects it.
    """
    updated: dict[str, Any] = {}
    parent = f"{path}." if path else ""
    present_parent = update_path(path) + "." if path else ""
    for key, value in tree.items():
        here = f"{parent}{key}"
        name: Any = key
        if (present := update_path(here)) != f"{present_parent}{key}":
            name = present.removeprefix(present_parent)
            name = key if name in tree else name
        if isinstance(value, Mapping):
            value = update_names(value, here)
        elif name != key and isinstance(value, str):
            value = _VALUES.get(name.rpartition(".")[2], {}).get(value, value)
        updated[name] = value
    return updated


def restore_names(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted path with earlier names and values, which fingerprints hash."""
    restored: dict[str, Any] = {}
    for path, value in leaves.items():
        if isinstance(value, str):
            value = _EARLIER_VALUES.get(path.rpartition(".")[2], {}).get(value, value)
        restored[_rename(path, _EARLIER)] = value
    return restored


def _rename(path: str, rules: _Rules) -> str:
    for name in path.split("."):
        if name in rules:
            pattern, new = rules[name]
            path = pattern.sub(new, path, count=1) if pattern.match(path) else path
    return path

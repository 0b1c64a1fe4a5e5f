"""User overrides: keys that the user named, which no rule changes."""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

MutableTree = MutableMapping[str, Any]
# Mappings that accept keys without a default; a mapping that a user sets replaces the default.
OPEN = (
    *("data.shares", "data.sources", "data.phases", "schedule.phases", "published", "assumed"),
    *("phases", "from", "children", "callbacks", "logger"),
    *("cluster.hardware.gemm_teraflops", "cluster.hardware.peak_teraflops"),
    *("cluster.site.environment", "cluster.site.rank_environment"),
    "cluster.site.file_systems",
)
REMOVABLE = ("callbacks.", "logger.")  # null removes an object


class UserOverrides:
    """Dotted keys of the command line, which rules must not change."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = [tuple(key.split(".")) for key in keys]

    def with_keys(self, *keys: str) -> "UserOverrides":
        """Return overrides that also contain ``keys``."""
        return UserOverrides([*map(".".join, self._keys), *keys])

    def is_overridden(self, path: str) -> bool:
        """Return whether the user named ``path`` or a key above or below it."""
        steps = tuple(path.split("."))
        return any(key[: len(steps)] == steps[: len(key)] for key in self._keys)

    def set_default(self, tree: MutableTree, path: str, value: Any) -> None:
        """Set ``path`` in ``tree``, unless the user named it."""
        if self.is_overridden(path):
            return
        *parents, last = path.split(".")
        for step in parents:
            tree = tree[step]
        tree[last] = value


def iterate_leaves(tree: Mapping[str, Any], path: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the dotted path and value of every leaf (no mapping) of ``tree``."""
    for key, value in tree.items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping):
            yield from iterate_leaves(value, here)
        else:
            yield here, value


def is_open(path: str) -> bool:
    """Return whether ``path`` is one of the open mappings, or below one."""
    return any(path == root or path.startswith(f"{root}.") for root in OPEN)


def compare_values(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Return the old and new value of each key that differs between two flat mappings."""
    keys = dict.fromkeys([*before, *after])
    pairs = {key: (before.get(key), after.get(key)) for key in keys}
    return {key: (old, new) for key, (old, new) in pairs.items() if old != new}

"""The keys that the user named: they are final, and no rule changes them."""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

Tree = MutableMapping[str, Any]
# Below these keys a user may name what no default lists; a mapping given for one replaces it.
OPEN = (
    *("data.shares", "data.sources", "data.phases", "schedule.phases", "published", "assumed"),
    *("phases", "from", "children", "callbacks", "logger"),
    *("cluster.hardware.gemm_teraflops", "cluster.hardware.peak_teraflops"),
    *("cluster.site.environment", "cluster.site.rank_environment"),
    "cluster.site.file_systems",
)
REMOVABLE = ("callbacks.", "logger.")  # null takes an object away that is there


class UserOverrides:
    """Dotted keys of the command line, asked whether a rule may touch a path."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = [tuple(key.split(".")) for key in keys]

    def also(self, *keys: str) -> "UserOverrides":
        """Treat these keys as named, too."""
        return UserOverrides([*map(".".join, self._keys), *keys])

    def covers(self, path: str) -> bool:
        """Whether the user named ``path``, something above it, or something below it."""
        steps = tuple(path.split("."))
        return any(key[: len(steps)] == steps[: len(key)] for key in self._keys)

    def put(self, tree: Tree, path: str, value: Any) -> None:
        """Set ``path`` in ``tree``, unless the user named it."""
        if self.covers(path):
            return
        *parents, last = path.split(".")
        for step in parents:
            tree = tree[step]
        tree[last] = value


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterable[tuple[str, Any]]:
    """Yield every dotted path of ``tree`` that holds no mapping, with its value."""
    for key, value in tree.items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping):
            yield from leaves(value, here)
        else:
            yield here, value


def is_open(path: str) -> bool:
    """Whether ``path`` is one of the open mappings, or below one."""
    return any(path == root or path.startswith(f"{root}.") for root in OPEN)


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Compare two flat mappings: the old and new value of each key that differs."""
    keys = dict.fromkeys([*before, *after])
    pairs = {key: (before.get(key), after.get(key)) for key in keys}
    return {key: (old, new) for key, (old, new) in pairs.items() if old != new}

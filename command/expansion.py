"""Interpolation bombs: what the references of a tree would expand to, counted beforehand.

OmegaConf resolves a reference anew wherever it stands. A dozen entries that each name the one
before twice are thousands of resolutions; they are counted here with each value counted once.
"""

import re
from collections.abc import Mapping
from typing import Any

from components.errors import RecipeError

REFERENCE = re.compile(r"\$\{([\w.]+)\}")
MOST_REFERENCES = 500  # the recipes here have 30 at most
MOST_CHARACTERS = 1_000_000  # as many as a file may have
OPEN = (-1, -1)  # a value whose expansion is being counted


def check_expansion(tree: Mapping[str, Any]) -> None:
    """Count what all references of ``tree`` expand to, before any of them is resolved.

    Raises:
        RecipeError: a value refers to itself, or all together are too many or too long; with
            the path of the value.
    """
    counter = _Counter(tree)
    references = characters = 0
    for key, value in tree.items():
        found = counter.count(value, str(key))
        references, characters = references + found[0], characters + found[1]
        _check(key, references, characters)


def _check(path: str, references: int, characters: int) -> None:
    remedy = "write the values themselves"
    if references > MOST_REFERENCES:
        problem = f"its references expand to more than {MOST_REFERENCES} others"
        raise RecipeError(path, problem, remedy)
    if characters > MOST_CHARACTERS:
        problem = f"its references expand to more than {MOST_CHARACTERS:,} characters"
        raise RecipeError(path, problem, remedy)


class _Counter:
    """Counts references and characters of values; what a reference names is counted once."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self._tree = tree
        self._known: dict[str, tuple[int, int]] = {}

    def count(self, value: Any, path: str) -> tuple[int, int]:
        if isinstance(value, Mapping):
            return self._sum({f"{path}.{key}": item for key, item in value.items()})
        if isinstance(value, list):
            return self._sum({f"{path}.{place}": item for place, item in enumerate(value)})
        if not isinstance(value, str):
            return 0, 1
        references, characters = 0, len(value)
        for target in REFERENCE.findall(value):
            inside = self._of_target(target, path)
            references, characters = references + 1 + inside[0], characters + inside[1]
            _check(path, references, characters)
        return references, characters

    def _sum(self, items: Mapping[str, Any]) -> tuple[int, int]:
        counts = [self.count(item, path) for path, item in items.items()]
        return sum(one[0] for one in counts), sum(one[1] for one in counts)

    def _of_target(self, target: str, path: str) -> tuple[int, int]:
        """Count what ``target`` stands for; what leads nowhere is OmegaConf's to refuse."""
        if target not in self._known:
            self._known[target] = OPEN
            self._known[target] = self.count(self._find(target), target)
        if self._known[target] == OPEN:
            raise RecipeError(path, f"refers to itself through {target}", "write the value")
        return self._known[target]

    def _find(self, target: str) -> Any:
        found: Any = self._tree
        for step in target.split("."):
            if isinstance(found, list) and step.isdigit() and int(step) < len(found):
                found = found[int(step)]
            elif isinstance(found, Mapping):
                found = found.get(step)
            else:
                return None
        return found

"""A run folder as the report sees it: what was asked, on what, what happened, what came out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from components.errors import RecipeError
from components.report.journal import Journal, read_journal
from components.run.records import Derived, Stated, read_checked
from components.run.reported import Asked, Surroundings

Tree = Mapping[str, Any]

_SAME_VERSION = "the run and this report must be of the same version"
_ALWAYS = "every run writes it at its start: was the folder copied whole?"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run, read once; ``results`` is absent while it trains, or if it was killed."""

    folder: Path
    recipe: Tree
    derived: Tree
    environment: Tree
    journal: Journal
    results: Tree | None


def load_run(folder: Path) -> Run:
    """Read a run folder.

    Raises:
        RecipeError: the folder is no run, or one of its files cannot be read.
    """
    if not (folder / "recipe.json").is_file():
        problem = "is no run folder: it has no recipe.json"
        raise RecipeError(str(folder), problem, "name a folder that a run wrote")
    results = folder / "results.json"
    stated = read_checked(results, Stated, finite=False) if results.exists() else None
    return Run(
        folder=folder,
        recipe=_tree(folder / "recipe.json", Asked),
        derived=_tree(folder / "derived.json", Derived),
        environment=_tree(folder / "environment.json", Surroundings),
        journal=read_journal(folder),
        results=stated,
    )


def _tree(file: Path, kind: type[BaseModel]) -> Tree:
    """Read a file that heads the page or a table, with all that these need."""
    if not file.exists():
        raise RecipeError(str(file), "is missing", _ALWAYS)
    return read_checked(file, kind, remedy=_SAME_VERSION)


def short_labels(folders: Sequence[Path]) -> tuple[str, ...]:
    """Name each folder by its last part, or by as many as tell it from the others.

    Not by its whole path: a report is shown to others, and paths name people.
    """
    parts = [folder.resolve().parts for folder in folders]
    longest = max((len(p) for p in parts), default=1)
    for depth in range(1, longest + 1):
        labels = tuple("/".join(p[-depth:]) for p in parts)
        if len(set(labels)) == len(set(parts)):
            break
    return labels


def flat(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys; an empty mapping stays a value."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            leaves |= flat(value, f"{name}.")
        else:
            leaves[name] = value
    return leaves

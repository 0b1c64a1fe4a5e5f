"""A run folder as the report sees it: what was asked, on what, what happened, what came out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.errors import RecipeError
from components.report.journal import Journal, read_journal

Tree = Mapping[str, Any]

# Without these keys there is nothing to head the page or the table with.
_NEEDED = {
    "recipe.json": (
        *("name", "why", "model", "parallelism", "scale", "cluster"),
        *("published", "assumed"),
    ),
    "derived.json": ("parameters", "tokens_per_step", "steps", "ranks", "flops_per_token"),
    "environment.json": (),
}


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
    return Run(
        folder=folder,
        recipe=_tree(folder / "recipe.json"),
        derived=_tree(folder / "derived.json"),
        environment=_tree(folder / "environment.json"),
        journal=read_journal(folder),
        results=_tree(results) if results.exists() else None,
    )


def read_tree(path: Path, remedy: str) -> Tree:
    """Read a file of a run folder; ``remedy`` is for one that cannot be read.

    Raises:
        RecipeError: the file is not JSON, or holds no mapping.
    """
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecipeError(str(path), f"is not JSON: {error}", remedy) from None
    if not isinstance(tree, dict):
        raise RecipeError(str(path), f"holds a {type(tree).__name__}, not a mapping", remedy)
    return tree


def _tree(path: Path) -> Tree:
    """Read a file that heads the page or a table, with all that these need."""
    try:
        tree = read_tree(path, "copy the run folder again")
    except FileNotFoundError:
        remedy = "every run writes it at its start: was the folder copied whole?"
        raise RecipeError(str(path), "is missing", remedy) from None
    missing = [key for key in _NEEDED.get(path.name, ()) if key not in tree]
    if missing:
        raise RecipeError(
            str(path),
            f"has no {', '.join(missing)}",
            "the run and this report must be of the same version",
        )
    return tree


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

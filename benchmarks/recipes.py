"""Recipes that this repository publishes; `recipes/` may also contain a user's recipes."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from command.arguments import ROOT


def published_recipes() -> list[str]:
    """List the recipes, except recipes of `action=new`, whose reference cluster is local."""
    names = sorted(file.stem for file in (ROOT / "recipes").rglob("*.yaml"))
    return [name for name in names if recipe_tree(name).get("reference_cluster") != "local"]


def recipe_file(name: str) -> Path:
    """Return the file of a published recipe, in ``recipes/`` or in its family's folder."""
    [file] = (ROOT / "recipes").rglob(f"{name}.yaml")
    return file


@cache
def recipe_tree(name: str) -> dict[str, Any]:
    """Read the file of a published recipe without composing it; callers share the tree."""
    tree: dict[str, Any] = yaml.safe_load(recipe_file(name).read_text("utf-8"))
    return tree

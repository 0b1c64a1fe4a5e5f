"""Names of the recipes that this repository publishes, beside which a user's own may lie."""

from pathlib import Path
from typing import Any

import yaml

from command.arguments import ROOT


def published_recipes() -> list[str]:
    """List the recipes but for those at home on the user's machine, as `action=new` writes."""
    names = sorted(file.stem for file in (ROOT / "recipes").rglob("*.yaml"))
    return [name for name in names if recipe_tree(name).get("home") != "local"]


def recipe_file(name: str) -> Path:
    """Find a published recipe, in ``recipes/`` or in its family's folder."""
    [file] = (ROOT / "recipes").rglob(f"{name}.yaml")
    return file


def recipe_tree(name: str) -> dict[str, Any]:
    """Read what a published recipe's file says, as it stands."""
    tree: dict[str, Any] = yaml.safe_load(recipe_file(name).read_text("utf-8"))
    return tree

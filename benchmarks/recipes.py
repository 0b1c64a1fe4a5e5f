"""Names of the recipes that this repository publishes, beside which a user's own may lie."""

import yaml

from command.arguments import ROOT


def published_recipes() -> list[str]:
    """List the recipes but for those at home on the user's machine, as `action=new` writes."""
    trees = {
        file.stem: yaml.safe_load(file.read_text("utf-8"))
        for file in sorted((ROOT / "recipes").glob("*.yaml"))
    }
    return [name for name, tree in trees.items() if tree.get("home") != "local"]

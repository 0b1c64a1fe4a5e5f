"""``python run.py`` alone: the recipes, one line each."""

from command.arguments import ROOT
from command.recipe_file import read_recipe_file
from command.words import ACTIONS
from components.terminal import tell

USAGE = """\
python run.py recipe=NAME [cluster=NAME] [scale=NAME] [action=NAME] [any.key=value ...]
Without cluster= a miniature of the recipe trains here. Actions (docs/actions.md):
  {actions}
The recipes, each with its home cluster:

"""


def list_recipes() -> None:
    """Print the usage and one line for each recipe."""
    tell(USAGE.format(actions=" ".join(ACTIONS)).removesuffix("\n"))
    for file in sorted((ROOT / "recipes").glob("*.yaml")):
        tree = read_recipe_file(file).tree
        tell(f"{file.stem:<16} {tree['home']:<14} {tree['why']}")

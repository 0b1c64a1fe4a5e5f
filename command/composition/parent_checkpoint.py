"""The checkpoint that a run begins with: the section ``from``, and the files that it names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command.arguments import Arguments, read_point
from components.config.check import read_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.parent import PARENT, end_of, step_end
from components.config.recipe import Recipe
from components.config.schema.start import Start
from components.config.validation import read_section
from components.errors import RecipeError
from components.run.folder import RunFolder, existing_run_folder
from components.run.records import MergeRecord

Tree = dict[str, Any]


def read_parent_section(tree: Tree, *, weights_only: bool = False) -> Start | None:
    """Validate the section of the parent in a tree, if there is one.

    With ``weights_only`` a run that would continue its parent takes its weights alone.

    Raises:
        RecipeError: the section is wrong, or names no parent.
    """
    section = tree.pop(PARENT, None)
    if section is None:
        return None
    if not isinstance(section, Mapping):
        fix = "write keys and values below it, as from.run=FOLDER from.with=weights"
        raise RecipeError(PARENT, f"{section!r} is no section", fix)
    parent = read_section(Start, section, PARENT)
    if parent.run is None and parent.recipe is None:
        fix = "write from.run=FOLDER, or from.recipe=NAME"
        raise RecipeError(PARENT, "no parent is named", fix)
    if weights_only:
        parent = parent.model_copy(update={"takes": "weights"})
    tree[PARENT] = parent.model_dump(mode="json")
    return parent


def read_parent_run(run: str) -> Recipe:
    """Read the recipe of the run folder that ``from.run`` names.

    Raises:
        RecipeError: it is no run folder.
    """
    return read_recipe(existing_run_folder(Path(run).expanduser(), "from.run").recipe)


def check_ancestors(name: str, ancestors: tuple[str, ...]) -> None:
    """Raise a RecipeError for a recipe that comes from itself."""
    if name in ancestors:
        problem = " comes from ".join([*ancestors, name])
        raise RecipeError("from.recipe", problem, "name a parent that is none of its line")


def parent_arguments(name: str, tree: Tree) -> Arguments:
    """Choose the recipe of the parent at the scale and on the cluster of its child."""
    chosen = (f"{group}={tree[group]['name']}" for group in ("scale", "cluster"))
    return read_point([f"recipe={name}", *chosen])


def settle_parent(
    tree: Tree, section: Start, run: Recipe | None, composed: Recipe | None
) -> Recipe | None:
    """Put into ``tree`` the parent's fingerprint and the step after which it is left.

    ``run`` is the recipe of the folder that is named, ``composed`` that of the recipe.

    Raises:
        RecipeError: the two differ, or the section was settled with another parent.
    """
    recipes = [recipe for recipe in (run, composed) if recipe is not None]
    if len({compute_fingerprint(recipe) for recipe in recipes}) > 1:
        problem = f"{section.run} is a run of another recipe than {section.recipe}"
        fix = f"action=diff a={section.recipe} b={section.run} says what differs"
        raise RecipeError("from.run", problem, fix)
    parent = run or composed
    if parent is None:
        return None
    if run is not None:
        tree[PARENT] |= _read_merge(section)
    tokens = tree[PARENT].get("at_tokens")
    tokens = end_of(parent) if tokens is None else step_end(parent, tokens)
    fingerprint = compute_fingerprint(parent)
    if section.fingerprint not in {None, fingerprint}:
        problem = "it is another parent than the one that this was made with"
        fix = "name the run of that one: from.run=FOLDER"
        raise RecipeError("from.fingerprint", problem, fix)
    tree[PARENT] |= {"at_tokens": tokens, "fingerprint": fingerprint}
    return parent


def _read_merge(section: Start) -> Tree:
    """Return the parts of an average, and its tokens where the user names none."""
    folder = RunFolder(Path(str(section.run)).expanduser())
    if not folder.merge.exists():
        return {}
    merged = folder.read(folder.merge.name, MergeRecord).checkpoints
    if section.goes_on:
        problem = (
            f"{folder.path} holds an average of checkpoints, which has no optimizer's state"
        )
        raise RecipeError("from.with", problem, "write from.with=weights")
    return {
        "at_tokens": section.at_tokens or merged[-1].tokens,
        "merged": {str(part.tokens): part.coefficient for part in merged},
    }

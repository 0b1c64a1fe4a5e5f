"""The parent of a run: found in its folder or by its recipe, and settled into the tree."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command.arguments import Arguments, read_point
from components.config.check import read_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.parent import PARENT, check_parent, end_of, shrink_beginning, step_end
from components.config.recipe import Recipe
from components.config.schema.parent import Parent
from components.config.validation import read_section
from components.errors import RecipeError
from components.run.disk import explained
from components.run.folder import RunFolder, existing_run_folder
from components.run.records import MergeRecord

Tree = dict[str, Any]


@dataclass(frozen=True)
class Composers:
    """How a recipe that is named becomes a recipe, and what its tree is at full size."""

    recipe: Callable[..., Recipe]
    full: Callable[[Arguments], Tree]


def resolve_parent(
    tree: Tree, values: Tree, composers: Composers, line: tuple[str, ...], *, looks: bool
) -> Recipe | None:
    """Put into ``tree`` the parent's fingerprint, and after which of its steps it is left.

    ``line`` are the parents that were composed before. Without ``looks`` no folder is read.
    Tokens that were shrunk as the parent's were are put into ``values``: they are as final as
    what the user names.

    Raises:
        RecipeError: there is no such parent, or it is none of the recipe that is named.
    """
    if tree.get(PARENT) is None:
        tree.pop(PARENT, None)
        return None
    if not isinstance(tree[PARENT], Mapping):
        problem, remedy = (
            "write keys and values below it",
            "as from.run=FOLDER from.with=weights",
        )
        raise RecipeError(PARENT, f"{tree[PARENT]!r} is no section", f"{problem}, {remedy}")
    begins = read_section(Parent, tree[PARENT], PARENT)
    tree[PARENT] = begins.model_dump(mode="json")
    if begins.run is None and begins.recipe is None:
        problem, remedy = "no parent is named", "write from.run=FOLDER, or from.recipe=NAME"
        raise RecipeError(PARENT, problem, remedy)
    there = _read(begins.run) if begins.run is not None and looks else None
    meant = None
    if begins.recipe is not None:
        asked = _asked(begins.recipe, tree, line)
        own = (*line, begins.recipe)
        meant = composers.recipe(asked, anywhere=not looks, line=own)
        if tree["scale"]["shrink"] != "none":
            full_tokens = composers.full(asked)["budget"]["total_tokens"]
            shrink_beginning(tree, meant, full_tokens, values)
    if (
        there is not None
        and meant is not None
        and compute_fingerprint(there) != compute_fingerprint(meant)
    ):
        problem = f"{begins.run} is a run of another recipe than {begins.recipe}"
        remedy = f"action=diff a={begins.recipe} b={begins.run} says what differs"
        raise RecipeError("from.run", problem, remedy)
    parent = there or meant
    if parent is not None:
        if there is not None and begins.run is not None:
            tree[PARENT] |= _merged(begins)
        wanted = tree[PARENT].get("at_tokens")
        tokens = end_of(parent) if wanted is None else step_end(parent, wanted)
        settled = {"at_tokens": tokens, "fingerprint": compute_fingerprint(parent)}
        _check_same(begins, settled)
        tree[PARENT] |= settled
    return parent


def _read(run: str) -> Recipe:
    return read_recipe(existing_run_folder(Path(run).expanduser(), "from.run").recipe)


def _merged(begins: Parent) -> Tree:
    """Name the parts of an average, and its tokens where the user does not."""
    folder = RunFolder(Path(str(begins.run)).expanduser())
    if not folder.merge.exists():
        return {}
    merged = folder.read(folder.merge.name, MergeRecord).checkpoints
    if begins.goes_on:
        problem = (
            f"{folder.path} holds an average of checkpoints, which has no optimizer's state"
        )
        raise RecipeError("from.with", problem, "write from.with=weights")
    tokens = begins.at_tokens or merged[-1].tokens
    return {
        "at_tokens": tokens,
        "merged": {str(one.tokens): one.coefficient for one in merged},
    }


def _check_same(begins: Parent, settled: Tree) -> None:
    """A lock or a bundle says which parent it was made with."""
    if begins.fingerprint not in {None, settled["fingerprint"]}:
        problem = "it is another parent than the one that this was made with"
        raise RecipeError(
            "from.fingerprint", problem, "name the run of that one: from.run=FOLDER"
        )


def _asked(name: str, tree: Tree, line: tuple[str, ...]) -> Arguments:
    """Ask for the parent at the scale of its child, once."""
    if name in line:
        problem = " comes from ".join([*line, name])
        raise RecipeError("from.recipe", problem, "name a parent that is none of its line")
    chosen = (f"{group}={tree[group]['name']}" for group in ("scale", "cluster"))
    return read_point([f"recipe={name}", *chosen])


def checked(recipe: Recipe, parent: Recipe | None) -> Recipe:
    """Return a recipe that can begin with a checkpoint of its parent, if it has one.

    Raises:
        RecipeError: it cannot.
    """
    if parent is not None:
        check_parent(recipe, parent)
    return recipe


def find_initial_checkpoint(recipe: Recipe) -> Callable[[RunFolder], None]:
    """Find the checkpoint that a run begins with; what is returned puts it into its folder.

    A run without a parent, and one that has a checkpoint of its own, needs none.

    Raises:
        RecipeError: it has a parent, and there is no such checkpoint.
    """
    if recipe.parent is None:
        return lambda folder: None
    from components.checkpoint import parent  # imports torch

    found = parent.find_beginning(recipe)

    def put(folder: RunFolder) -> None:
        with explained(folder.path):
            parent.begin(folder, recipe, found)

    return put

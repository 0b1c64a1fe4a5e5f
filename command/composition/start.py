"""The run that a recipe starts from: its section ``from``, and the recipe that this names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.config.check import read_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.config.schema.start import Start
from components.config.start import START, end_of, step_end
from components.config.validation import read_section
from components.errors import RecipeError
from components.run.folder import existing_run_folder
from components.run.records import MergeRecord

Tree = dict[str, Any]


def read_start(tree: Tree, *, weights_only: bool = False) -> Start | None:
    """Validate the section of a tree, if there is one.

    With ``weights_only`` a run that would take the optimizer's state takes the weights alone.

    Raises:
        RecipeError: the section is wrong, or names no run and no recipe.
    """
    section = tree.pop(START, None)
    if section is None:
        return None
    if not isinstance(section, Mapping):
        fix = "write keys and values below it, as from.run=FOLDER from.with=weights"
        raise RecipeError(START, f"{section!r} is no section", fix)
    start = read_section(Start, section, START)
    if start.run is None and start.recipe is None:
        fix = "write from.run=FOLDER, or from.recipe=NAME"
        raise RecipeError(START, "no parent is named", fix)
    if weights_only:
        start = start.model_copy(update={"takes": "weights"})
    tree[START] = start.model_dump(mode="json")
    return start


def derive_start(
    tree: Tree, start: Start, composed: Recipe | None, *, reads_files: bool
) -> Recipe | None:
    """Put the fingerprint and the step's end into ``tree``, and return the parent's recipe.

    The parent is the run that ``from.run`` names, or else ``composed``, the named recipe.

    Raises:
        RecipeError: the two differ, the folder is no run, or the section has the fingerprint of
            another parent.
    """
    parent = composed
    if start.run is not None and reads_files:
        folder = existing_run_folder(Path(start.run).expanduser(), "from.run")
        parent = read_recipe(folder.recipe)
        if folder.merge.exists():
            merged = folder.read(folder.merge.name, MergeRecord)
            if start.goes_on:
                problem = "an average of checkpoints, which has no optimizer's state"
                fix = "write from.with=weights"
                raise RecipeError("from.with", f"{folder.path} holds {problem}", fix)
            tree[START].setdefault("at_tokens", merged.checkpoints[-1].tokens)
            parts = {str(part.tokens): part.coefficient for part in merged.checkpoints}
            tree[START]["merged"] = parts
    if parent is None:
        return None
    fingerprint = compute_fingerprint(parent)
    if composed is not None and compute_fingerprint(composed) != fingerprint:
        problem = f"{start.run} is a run of another recipe than {start.recipe}"
        fix = f"action=diff a={start.recipe} b={start.run} says what differs"
        raise RecipeError("from.run", problem, fix)
    if start.fingerprint not in {None, fingerprint}:
        problem = "it is another parent than the one that this was made with"
        fix = "name the run of that one: from.run=FOLDER"
        raise RecipeError("from.fingerprint", problem, fix)
    tokens = tree[START].get("at_tokens")
    tokens = end_of(parent) if tokens is None else step_end(parent, tokens)
    tree[START] |= {"at_tokens": tokens, "fingerprint": fingerprint}
    return parent

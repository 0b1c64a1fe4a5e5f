"""The run that a recipe starts from: its section ``from``, and the parent recipe."""

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

YamlTree = dict[str, Any]


def read_start(tree: YamlTree, *, weights_only: bool = False) -> Start | None:
    """Validate the section ``from`` of a tree, if there is one.

    With ``weights_only`` a run that would load the optimizer's state loads only the weights.
    """
    section = tree.pop(START, None)
    if section is None:
        return None
    if not isinstance(section, Mapping):
        fix = "write its keys, such as from.run=FOLDER from.with=weights"
        raise RecipeError(START, f"{section!r} is not a section", fix)
    start = read_section(Start, section, START)
    if start.run is None and start.recipe is None:
        fix = "write from.run=FOLDER, or from.recipe=NAME"
        raise RecipeError(START, "from requires a parent", fix)
    if weights_only:
        start = start.model_copy(update={"takes": "weights"})
    tree[START] = start.model_dump(mode="json")
    return start


def derive_start(
    tree: YamlTree, start: Start, composed: Recipe | None, *, reads_files: bool
) -> Recipe | None:
    """Write the parent's fingerprint and tokens into ``tree``, and return the parent's recipe.

    The parent is the run that ``from.run`` names, or else ``composed``, the named recipe.
    The tokens are rounded to the end of a step.
    """
    parent = composed
    if start.run is not None and reads_files:
        folder = existing_run_folder(Path(start.run).expanduser(), "from.run")
        parent = read_recipe(folder.recipe)
        if folder.merge.exists():
            merged = folder.read_file(folder.merge.name, MergeRecord)
            if start.goes_on:
                problem = "an average of checkpoints, without optimizer state"
                fix = "write from.with=weights"
                raise RecipeError("from.with", f"{folder.path} is {problem}", fix)
            tree[START].setdefault("at_tokens", merged.checkpoints[-1].tokens)
            parts = {str(part.tokens): part.coefficient for part in merged.checkpoints}
            tree[START]["merged"] = parts
    if parent is None:
        return None
    fingerprint = compute_fingerprint(parent)
    if composed is not None and compute_fingerprint(composed) != fingerprint:
        problem = f"{start.run} is not a run of {start.recipe}"
        fix = f"compare them: action=diff a={start.recipe} b={start.run}"
        raise RecipeError("from.run", problem, fix)
    if start.fingerprint not in {None, fingerprint}:
        problem = "the parent differs from the original parent of this file"
        fix = "set from.run=FOLDER to a run of the original parent"
        raise RecipeError("from.fingerprint", problem, fix)
    tokens = tree[START].get("at_tokens")
    tokens = end_of(parent) if tokens is None else step_end(parent, tokens)
    tree[START] |= {"at_tokens": tokens, "fingerprint": fingerprint}
    return parent

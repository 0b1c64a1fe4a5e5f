"""Write the newest checkpoint of a run as a folder that ``transformers`` loads by itself."""

import sys
from pathlib import Path
from typing import cast

from command.arguments import Arguments
from command.outcome import Outcome
from components.checkpoint.loading import newest_whole
from components.convert.card import write_card
from components.convert.folder import Rows, check_free, write_folder
from components.convert.weights import load_weights
from components.errors import RecipeError
from components.spec.frozen import thaw
from components.spec.recipe import read_recipe
from components.spec.targets import nearest
from components.train.run_folder import RunFolder

_ROWS = ("published", "padded")


def run(arguments: Arguments) -> Outcome:
    """Export ``run=FOLDER`` into ``file=FOLDER``, or into the run folder."""
    rows = _read_rows(arguments)
    folder = _open(arguments)
    recipe = read_recipe(folder.recipe)
    chosen = newest_whole(folder.checkpoints)
    if chosen is None:
        remedy = f"let it train to its first: python run.py resume={folder.path}"
        raise RecipeError("run", f"{folder.path} has no complete checkpoint", remedy)
    for damaged in chosen.damaged:
        sys.stderr.write(f"the checkpoint before is taken: {damaged.path} {damaged.problem}\n")
    marker = chosen.marker
    target = arguments.folders.get("file", folder.path / "export" / marker.name)
    check_free(target)
    progress = marker.progress
    results = folder.read_json("results.json") if folder.results.exists() else None
    card = write_card(recipe, step=progress.step, tokens=progress.tokens, results=results)
    family = write_folder(
        target,
        model=load_weights(chosen.checkpoint, marker, recipe.model),
        section=thaw(recipe.model),
        tokenizer=Path(folder.read_json("data.json")["folder"]),
        tokenizer_section=recipe.tokenizer,
        context_tokens=recipe.budget.sequence_length,
        rows=rows,
        card=card,
    )
    sys.stderr.write(f"{family.architecture}, trained on {progress.tokens:,} tokens\n")
    sys.stdout.write(f"{target}\n")
    return Outcome()


def _open(arguments: Arguments) -> RunFolder:
    """A recipe has no weights: only a run does."""
    if "run" not in arguments.folders:
        raise RecipeError(
            "run", "no run is named, and a recipe alone has no weights", "write run=FOLDER"
        )
    folder = RunFolder(arguments.folders["run"])
    if not folder.recipe.is_file():
        raise RecipeError("run", f"{folder.path} is no run folder", "it needs a recipe.json")
    return folder


def _read_rows(arguments: Arguments) -> Rows:
    """Read the one option; any other key would be ignored, since the run has its recipe."""
    known = {"action", "run", "file", "rows"}
    for word in arguments.words:
        key = word.partition("=")[0]
        if key not in known and "run" in arguments.folders:
            remedy = nearest(key, sorted(known))
            raise RecipeError(key, "an export takes its recipe from its run folder", remedy)
    rows = arguments.values.get("rows", "published")
    if rows not in _ROWS:
        raise RecipeError("rows", f"{rows!r} is not known", nearest(str(rows), _ROWS))
    return cast("Rows", rows)

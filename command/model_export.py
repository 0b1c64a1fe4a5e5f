"""A checkpoint of a run, and its export as a folder of Hugging Face."""

from dataclasses import dataclass
from pathlib import Path

from command.arguments import Arguments
from command.recipe.path_checks import open_run
from components.checkpoint.choice import CheckpointChoice, find_checkpoint
from components.config.phases import recipe_before
from components.config.recipe import Recipe
from components.config.schema.types import thaw
from components.convert.folder import Rows, write_card, write_folder
from components.convert.hf_family import HFFamily
from components.convert.reading import load_weights
from components.run.folder import RunFolder
from components.run.records import Results
from components.terminal import say


@dataclass(frozen=True)
class RunCheckpoint:
    """A run and its requested checkpoint, which is complete."""

    folder: RunFolder
    recipe: Recipe
    chosen: CheckpointChoice


def open_trained(arguments: Arguments) -> RunCheckpoint:
    """Open ``run=FOLDER`` at its newest whole checkpoint, or at that of ``at_tokens=N``.

    Raises:
        RecipeError: no run is named, it is none, or it has no such checkpoint that is whole.
    """
    folder, recipe = open_run(arguments.run, arguments.values)
    chosen = find_checkpoint(folder.checkpoints, arguments.at_tokens, weights=True)
    for damaged in chosen.damaged:
        say(f"another checkpoint is taken: {damaged.path} {damaged.problem}")
    return RunCheckpoint(folder, recipe, chosen)


def export_trained(trained: RunCheckpoint, target: Path, *, rows: Rows) -> HFFamily:
    """Write the checkpoint as a folder of Hugging Face.

    Raises:
        RecipeError: the folder exists, or no class of Hugging Face computes this model.
    """
    folder, marker = trained.folder, trained.chosen.marker
    progress, ended = marker.progress, folder.results.exists()
    recipe = recipe_before(trained.recipe, progress.step)
    results = folder.read("results.json", Results, finite=False) if ended else None
    return write_folder(
        target,
        model=load_weights(trained.chosen.checkpoint, marker, recipe.model),
        section=thaw(recipe.model),
        tokenizer=Path(folder.data.folder),
        tokenizer_section=recipe.tokenizer,
        context_tokens=recipe.budget.sequence_length,
        rows=rows,
        card=write_card(recipe, step=progress.step, tokens=progress.tokens, results=results),
    )


def export_place(trained: RunCheckpoint) -> Path:
    """Return where the export of a checkpoint lies unless the user says otherwise."""
    return trained.folder.path / "export" / trained.chosen.marker.name

"""Open a checkpoint of a run, and export it as a Hugging Face folder."""

from dataclasses import dataclass
from pathlib import Path

from command.arguments import Arguments
from command.recipe.path_checks import open_run
from components.checkpoint.choice import CheckpointChoice, find_checkpoint
from components.config.phases import recipe_before
from components.config.recipe import Recipe
from components.config.schema.types import to_plain
from components.convert.folder import Rows, write_card, write_folder
from components.convert.hf_family import HFFamily
from components.convert.reading import load_weights
from components.run.folder import RunFolder
from components.run.records import Results
from components.terminal import log_line


@dataclass(frozen=True)
class RunCheckpoint:
    """A run and its requested, complete checkpoint."""

    folder: RunFolder
    recipe: Recipe
    chosen: CheckpointChoice


def open_trained(arguments: Arguments) -> RunCheckpoint:
    """Open ``run=FOLDER`` at its newest whole checkpoint, or at ``at_tokens=N``."""
    folder, recipe = open_run(arguments.run, arguments.values)
    chosen = find_checkpoint(folder.checkpoints, arguments.at_tokens, weights=True)
    for damaged in chosen.damaged:
        log_line(f"skipped a checkpoint: {damaged.path} {damaged.problem}")
    return RunCheckpoint(folder, recipe, chosen)


def export_trained(trained: RunCheckpoint, target: Path, *, rows: Rows) -> HFFamily:
    """Write the checkpoint as a Hugging Face folder."""
    folder, marker = trained.folder, trained.chosen.marker
    progress, ended = marker.progress, folder.results.exists()
    recipe = recipe_before(trained.recipe, progress.step)
    results = folder.read_file("results.json", Results, finite=False) if ended else None
    return write_folder(
        target,
        model=load_weights(trained.chosen.checkpoint, marker, recipe.model),
        section=to_plain(recipe.model),
        tokenizer=Path(folder.data_record.folder),
        tokenizer_section=recipe.tokenizer,
        context_tokens=recipe.budget.sequence_length,
        rows=rows,
        card=write_card(recipe, step=progress.step, tokens=progress.tokens, results=results),
    )


def export_place(trained: RunCheckpoint) -> Path:
    """Return the default folder for the export of a checkpoint."""
    return trained.folder.path / "export" / trained.chosen.marker.folder_name

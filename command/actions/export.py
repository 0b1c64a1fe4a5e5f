"""Write a checkpoint of a run as a folder that ``transformers`` loads by itself."""

from dataclasses import dataclass
from pathlib import Path

from command.arguments import Arguments
from command.recipe.path_checks import check_data_place
from components.checkpoint.loading import CheckpointChoice, newest_weights
from components.checkpoint.metadata import complete_checkpoints, tokens_of
from components.config.schema.recipe import Recipe, read_recipe
from components.config.schema.types import thaw
from components.convert.family import HFFamily
from components.convert.folder import Rows, check_free, write_card, write_folder
from components.convert.reading import load_weights
from components.errors import RecipeError
from components.run.folder import RunFolder, existing_run_folder
from components.run.records import Results
from components.terminal import say, tell


def run(arguments: Arguments) -> None:
    """Export ``run=FOLDER`` into ``file=FOLDER``, or into the run folder."""
    trained = open_trained(arguments)
    target = arguments.file or export_place(trained)
    check_free(target)  # before the weights are read
    family = export_trained(trained, target, rows=arguments.rows)
    tokens = trained.chosen.marker.progress.tokens
    say(f"{family.architecture}, trained on {tokens:,} tokens")
    tell(str(target))


@dataclass(frozen=True)
class RunCheckpoint:
    """A run and the checkpoint of it that was asked for, found whole."""

    folder: RunFolder
    recipe: Recipe
    chosen: CheckpointChoice


def open_trained(arguments: Arguments) -> RunCheckpoint:
    """Open ``run=FOLDER`` at its newest whole checkpoint, or at that of ``at_tokens=N``.

    Raises:
        RecipeError: no run is named, it is none, or it has no such checkpoint that is whole.
    """
    if arguments.run is None:
        remedy = "write run=FOLDER"
        raise RecipeError("run", "no run is named, and a recipe alone has no weights", remedy)
    folder = existing_run_folder(arguments.run)
    recipe, tokens = read_recipe(folder.recipe), arguments.at_tokens
    check_data_place(folder, recipe, arguments.values)
    chosen = newest_weights(folder.checkpoints, tokens)
    if chosen is not None:
        for damaged in chosen.damaged:
            say(f"another checkpoint is taken: {damaged.path} {damaged.problem}")
        return RunCheckpoint(folder, recipe, chosen)
    there = kept_tokens(folder)
    if tokens is None or not there:
        remedy = f"let it train to its first: python run.py resume={folder.path}"
        raise RecipeError("run", f"{folder.path} has no complete checkpoint", remedy)
    problem = f"{folder.path} has no complete checkpoint of {tokens:_} tokens"
    raise RecipeError("at_tokens", problem, f"it has {', '.join(f'{one:_}' for one in there)}")


def kept_tokens(folder: RunFolder) -> list[int]:
    """List after how many tokens a run kept a checkpoint, full or of weights alone."""
    full = complete_checkpoints(folder.checkpoints)
    weights = complete_checkpoints(folder.checkpoints, "weights")
    return sorted({tokens_of(one) for one in (*full, *weights)})


def export_trained(trained: RunCheckpoint, target: Path, *, rows: Rows) -> HFFamily:
    """Write the checkpoint as a folder of Hugging Face.

    Raises:
        RecipeError: the folder exists, or no class of Hugging Face computes this model.
    """
    folder, recipe, marker = trained.folder, trained.recipe, trained.chosen.marker
    progress, ended = marker.progress, folder.results.exists()
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

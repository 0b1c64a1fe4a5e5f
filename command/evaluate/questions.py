"""The questions that ``action=evaluate`` answers, each with its section of the result file."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from command.arguments import Arguments
from command.evaluate.ranks import RankWork, ask_on_ranks
from command.evaluate.request import TaskRequest
from command.model_export import RunCheckpoint, export_place, export_trained, open_trained
from command.recipe.path_checks import open_run
from components.build import build
from components.checkpoint.choice import no_checkpoint
from components.checkpoint.metadata import kept_tokens
from components.config.check import check_recipe
from components.config.phases import recipe_before
from components.config.recipe import Recipe
from components.data.token_file import encode
from components.errors import RecipeError
from components.evaluate import text_loss
from components.evaluate.harness import check_installed
from components.json_file import without_nan
from components.report.write import write_report_if_possible
from components.terminal import say
from data_prep.read import read_documents
from data_prep.sources import open_files

Tree = dict[str, Any]
_RECIPE_KEYS = ("precision.compute", "evaluation.max_windows_per_source")


def evaluate_run(arguments: Arguments) -> Tree:
    """Answer one question about a checkpoint, keep the answer and write the report anew.

    Raises:
        RecipeError: no such checkpoint or data, or a text or task that cannot be used.
    """
    trained = open_trained(arguments)
    tree = trained.recipe.model_dump(mode="json")
    for key in _RECIPE_KEYS:  # what an evaluation may change; weights and data stay
        part, _, name = key.partition(".")
        tree[part][name] = arguments.values.get(key, tree[part][name])
    recipe = recipe_before(check_recipe(tree), trained.chosen.marker.progress.step)
    if arguments.tasks:
        section = beside_published(_ask(arguments, trained, recipe), trained.recipe)
    elif arguments.text is not None:
        section = {"texts": _judge_own(trained, recipe, arguments.text)}
    else:
        data, manifest = text_loss.read_manifest(trained.folder, recipe)
        judge = text_loss.open_judge(recipe, trained.chosen, data, manifest)
        answer = text_loss.judge_held_out(judge, recipe, trained.chosen, data, manifest)
        section = {"held_out": answer}
    if keys := without_nan(section)[1]:
        say(f"{len(keys)} figures are not finite and null in the result, first {keys[0]}")
    kept = text_loss.keep(trained.folder, trained.recipe, trained.chosen.marker, section)
    try:  # the answer is kept already, whatever else of the run is damaged
        path = trained.folder.path
        write_report_if_possible([path], path / "report.html", say)
    except RecipeError as error:
        say(f"warning: the report was not written again: {error}")
    return kept


def evaluate_all(arguments: Arguments) -> list[Tree]:
    """Answer the same question about every checkpoint that a run kept, one after the other.

    Raises:
        RecipeError: as `evaluate_run`, at the first checkpoint that cannot be evaluated.
    """
    folder, _ = open_run(arguments.run, arguments.values)
    kept = kept_tokens(folder.checkpoints)
    if not kept:
        raise no_checkpoint(folder.checkpoints, None, kept)
    return [evaluate_run(replace(arguments, at_tokens=tokens)) for tokens in kept]


def beside_published(section: Tree, recipe: Recipe) -> Tree:
    """Put beside each score what the recipe's sources have: ``score_TASK``, in per cent."""
    for scores in section.get("scores", {}).values():
        averaged = {"average": scores}
        for name, one in {**scores["tasks"], **averaged}.items():
            figure = recipe.published.get(f"score_{name}")
            one["published"] = None if figure is None else float(figure.value)
    return section


def evaluate_folder(folder: Path, arguments: Arguments) -> Tree:
    """Ask tasks of a folder of Hugging Face, in the precision that it states.

    Raises:
        RecipeError: it is no such folder, or a task cannot be asked.
    """
    request = _request(arguments, Path())
    work = RankWork(request=request, folder=folder, compute=None, most_rows=1)
    return {"folder": str(folder), **ask_on_ranks(work, arguments.ranks)}


def _request(arguments: Arguments, beside: Path) -> TaskRequest:
    """Read the words that name tasks; ``beside`` is where data are brought unless they say."""
    named = arguments.tasks_folder
    return TaskRequest(tasks=arguments.tasks, tasks_folder=named, staged=named or beside)


def _judge_own(trained: RunCheckpoint, recipe: Recipe, file: Path) -> Tree:
    """Tokenize a file, or those of a pattern, as preparation does, and judge all of it."""
    data, manifest = text_loss.read_manifest(trained.folder, recipe)
    files = list(open_files((str(file),), "text", "text"))
    tokenizer = build(recipe.tokenizer, "tokenizer")
    tokenizer.load(data)
    with tempfile.TemporaryDirectory() as aside:
        texts = (document.text for document in read_documents(files))
        record = encode(Path(aside) / "text.bin", texts, tokenizer)
        judge = text_loss.open_judge(recipe, trained.chosen, data, manifest)
        answer = text_loss.judge_text(judge, recipe, Path(aside), manifest, record)
    hashes = {one.name: one.record().sha256 for one in files}
    return {str(file): {"sha256": hashes, **answer}}


def _ask(arguments: Arguments, trained: RunCheckpoint, recipe: Recipe) -> Tree:
    """Export the checkpoint unless that is done, and ask the folder."""
    check_installed()
    request = _request(arguments, Path(trained.folder.data.folder).parent)
    request.find()  # before a checkpoint is exported for it
    target = export_place(trained)
    if not target.exists():
        export_trained(trained, target, rows="published")
        say(f"exported to {target}")
    work = RankWork(
        request=request,
        folder=target,
        compute=recipe.precision.compute,
        most_rows=recipe.parallelism.microbatch_sequences,
    )
    return ask_on_ranks(work, arguments.ranks)

"""Evaluations of ``action=evaluate``; each writes one section of the result file."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from command.arguments import Arguments
from command.evaluate.request import TaskRequest
from command.model_export import RunCheckpoint, export_place, export_trained, open_trained
from command.recipe.path_checks import open_run
from components.build import build_node
from components.checkpoint.choice import no_checkpoint
from components.checkpoint.metadata import list_saved_tokens
from components.config.check import check_recipe
from components.config.phases import recipe_before
from components.config.recipe import Recipe
from components.data.token_file import encode_to_file
from components.errors import RecipeError
from components.evaluate import text_loss
from components.evaluate.harness import check_installed
from components.json_file import without_nan
from components.report.write import write_report_if_possible
from components.terminal import log_line
from data_prep.read import read_documents
from data_prep.sources import open_files

ResultTree = dict[str, Any]
_RECIPE_KEYS = ("precision.compute", "evaluation.max_windows_per_source")


def evaluate_run(arguments: Arguments) -> ResultTree:
    """Evaluate one checkpoint, save the result and rewrite the report."""
    trained = open_trained(arguments)
    tree = trained.recipe.model_dump(mode="json")
    for key in _RECIPE_KEYS:  # an evaluation may override these keys only
        part, _, name = key.partition(".")
        tree[part][name] = arguments.values.get(key, tree[part][name])
    recipe = recipe_before(check_recipe(tree), trained.chosen.marker.progress.step)
    if arguments.tasks:
        section = add_published(_ask(arguments, trained, recipe), trained.recipe)
    elif arguments.text is not None:
        section = {"texts": _judge_own(trained, recipe, arguments.text)}
    else:
        data, manifest = text_loss.read_manifest(trained.folder, recipe)
        judge = text_loss.open_judge(recipe, trained.chosen, data, manifest)
        answer = text_loss.judge_held_out(judge, recipe, trained.chosen, data, manifest)
        section = {"held_out": answer}
    if keys := without_nan(section)[1]:
        log_line(f"{len(keys)} values are not finite and saved as null, first: {keys[0]}")
    stored = text_loss.write_section(
        trained.folder, trained.recipe, trained.chosen.marker, section
    )
    try:  # the result is saved already, so a damaged run only costs the report
        path = trained.folder.path
        write_report_if_possible([path], path / "report.html", log_line)
    except RecipeError as error:
        log_line(f"warning: the report was not updated: {error}")
    return stored


def evaluate_all(arguments: Arguments) -> list[ResultTree]:
    """Run the same evaluation on every saved checkpoint, in order, up to a failure."""
    folder, _ = open_run(arguments.run, arguments.values)
    checkpoint_tokens = list_saved_tokens(folder.checkpoints)
    if not checkpoint_tokens:
        raise no_checkpoint(folder.checkpoints, None, checkpoint_tokens)
    return [evaluate_run(replace(arguments, at_tokens=tokens)) for tokens in checkpoint_tokens]


def add_published(section: ResultTree, recipe: Recipe) -> ResultTree:
    """Add each score's published value ``score_TASK`` from the recipe, in per cent."""
    for scores in section.get("scores", {}).values():
        for name, entry in {**scores["tasks"], "average": scores}.items():
            figure = recipe.published.get(f"score_{name}")
            entry["published"] = None if figure is None else float(figure.value)
    return section


def evaluate_folder(folder: Path, arguments: Arguments) -> ResultTree:
    """Run tasks on a Hugging Face model folder in the dtype of its config.json."""
    request = TaskRequest(
        tasks=arguments.tasks,
        tasks_folder=arguments.tasks_folder,
        staged=arguments.tasks_folder or Path(),
        folder=folder,
        compute=None,
        most_rows=1,
    )
    return {"folder": str(folder), **request.ask_on_ranks(arguments.ranks)}


def _judge_own(trained: RunCheckpoint, recipe: Recipe, file: Path) -> ResultTree:
    """Tokenize a file or the files of a pattern as in preparation and compute their loss."""
    data, manifest = text_loss.read_manifest(trained.folder, recipe)
    files = list(open_files((str(file),), "text", "text"))
    tokenizer = build_node(recipe.tokenizer, "tokenizer")
    tokenizer.load_file(data)
    with tempfile.TemporaryDirectory() as aside:
        texts = (document.text for document in read_documents(files))
        record = encode_to_file(Path(aside) / "text.bin", texts, tokenizer)
        judge = text_loss.open_judge(recipe, trained.chosen, data, manifest)
        answer = text_loss.judge_text(judge, recipe, Path(aside), manifest, record)
    hashes = {source.name: source.hash_input().sha256 for source in files}
    return {str(file): {"sha256": hashes, **answer}}


def _ask(arguments: Arguments, trained: RunCheckpoint, recipe: Recipe) -> ResultTree:
    """Export the checkpoint unless it is exported, and run the tasks on the export."""
    check_installed()
    target = export_place(trained)
    request = TaskRequest(
        tasks=arguments.tasks,
        tasks_folder=arguments.tasks_folder,
        staged=arguments.tasks_folder or Path(trained.folder.data_record.folder).parent,
        folder=target,
        compute=recipe.precision.compute,
        most_rows=recipe.parallelism.microbatch_sequences,
    )
    request.load_requested()  # reports errors before the export
    if not target.exists():
        export_trained(trained, target, rows="published")
        log_line(f"exported to {target}")
    return request.ask_on_ranks(arguments.ranks)

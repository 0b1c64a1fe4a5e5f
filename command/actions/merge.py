"""Merge the last checkpoints of a run into their average, in a new run folder."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from command.arguments import Arguments
from command.recipe.path_checks import open_run
from components.checkpoint.metadata import Marker, RunProgress, tokens_of
from components.checkpoint.retention import complete_checkpoint, get_partial_folder
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.convert.merging import (
    MergedCheckpoint,
    average_into,
    buffers_of,
    check_whole,
    compute_coefficients,
    last_checkpoints,
)
from components.data.files import complete_or_removed
from components.errors import RecipeError
from components.run.disk import as_recipe_error, check_room
from components.run.event_log import EventLog
from components.run.folder import RunFolder, create_run_folder
from components.run.provenance import write_provenance
from components.terminal import log_line, print_output


def run(arguments: Arguments) -> None:
    """Write the average of ``last=K`` checkpoints of ``run=`` into the new folder ``file=``."""
    count, target = _read_request(arguments)
    source, recipe = open_run(arguments.run, arguments.values)
    parts = compute_coefficients(arguments.average, count, arguments.ema_decay)
    chosen = last_checkpoints(source.checkpoints, count, arguments.at_tokens)
    for warning in warnings_between(recipe, tokens_of(chosen[0]), tokens_of(chosen[-1])):
        log_line(f"warning: {warning}")
    merged = check_whole(chosen, parts, compute_fingerprint(recipe))
    folder = create_run_folder(recipe, target)
    with as_recipe_error(folder.path), complete_or_removed(folder.path):
        write_provenance(folder, arguments.words)
        if (source.path / "data.json").exists():
            folder.write_json("data.json", source.read_json("data.json"))
        checkpoint = _average(folder, recipe, merged)
        folder.write_json(folder.merge.name, _record(source.path, arguments, merged))
    for part in merged:
        log_line(f"{part.coefficient:.6f} of {part.checkpoint.name}")
    print_output(str(checkpoint))


def _read_request(arguments: Arguments) -> tuple[int, Path]:
    if arguments.last is None:
        raise RecipeError("last", "the number of checkpoints is required", "write last=4")
    if arguments.file is None:
        raise RecipeError("file", "a new folder is required", "write file=FOLDER")
    if (arguments.average == "ema") != (arguments.ema_decay is not None):
        problem = "average=ema and ema_decay require each other"
        raise RecipeError("ema_decay", problem, "write average=ema ema_decay=0.8, or neither")
    return arguments.last, arguments.file


def warnings_between(recipe: Recipe, first: int, last: int) -> list[str]:
    """Warn about changes between the oldest and newest checkpoint, which the average mixes."""
    data = [recipe.token_clock.token_at(sample) for sample, _, _ in recipe.data_phases]
    spans = [span.first_token for span in recipe.token_clock.spans]
    return [
        f"{what} changes after {token:,} tokens, between the averaged checkpoints"
        for what, tokens in (("the mixture", data[1:]), ("a phase", spans[1:]))
        for token in tokens
        if first < token < last
    ]


def _average(folder: RunFolder, recipe: Recipe, merged: Sequence[MergedCheckpoint]) -> Path:
    newest = merged[-1].marker
    check_room(folder.checkpoints, needed_bytes=newest.total_bytes, files=len(newest.files))
    progress = RunProgress(step=newest.progress.step, tokens=newest.progress.tokens)
    marker = Marker(
        kind="tokens",
        fingerprint=compute_fingerprint(recipe),
        progress=progress,
        held_out_loss=None,
        files={},
        fresh_optimizer=True,
    )
    target = folder.checkpoints / marker.folder_name
    files = average_into(get_partial_folder(target), merged, buffers=buffers_of(recipe.model))
    complete_checkpoint(target, replace(marker, files=files))
    log = EventLog(file=folder.events, writes=True, retry_seconds=0.0)
    evidence = {part.checkpoint.name: part.coefficient for part in merged}
    log.write_event("merge", progress, "checkpoints of another run are averaged", evidence)
    return target


def _record(run: Path, arguments: Arguments, merged: Sequence[MergedCheckpoint]) -> Any:
    checkpoints = [
        {
            "tokens": part.marker.progress.tokens,
            "checkpoint": part.checkpoint.name,
            "coefficient": part.coefficient,
        }
        for part in merged
    ]
    return {
        "run": str(run.resolve()),
        "average": arguments.average,
        "ema_decay": arguments.ema_decay,
        "checkpoints": checkpoints,
    }

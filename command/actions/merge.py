"""Average the last checkpoints of a run into one, as a run folder of its own."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from command.arguments import Arguments
from command.recipe.path_checks import open_run
from components.checkpoint.metadata import Marker, RunProgress, tokens_of
from components.checkpoint.retention import beside, complete
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.convert.merging import (
    MergedCheckpoint,
    average_into,
    buffers_of,
    check_whole,
    coefficients,
    last_checkpoints,
)
from components.data.files import complete_or_removed
from components.errors import RecipeError
from components.run.disk import check_room, explained
from components.run.event_log import EventLog
from components.run.folder import RunFolder, create_run_folder
from components.run.provenance import write_provenance
from components.terminal import say, tell


def run(arguments: Arguments) -> None:
    """Write the average of ``last=K`` checkpoints of ``run=`` into the new folder ``file=``."""
    count, target = _asked(arguments)
    source, recipe = open_run(arguments.run, arguments.values)
    parts = coefficients(arguments.average, count, arguments.ema_decay)
    chosen = last_checkpoints(source.checkpoints, count, arguments.at_tokens)
    for warning in warnings_between(recipe, tokens_of(chosen[0]), tokens_of(chosen[-1])):
        say(f"warning: {warning}")
    merged = check_whole(chosen, parts, compute_fingerprint(recipe))
    folder = create_run_folder(recipe, target)
    with explained(folder.path), complete_or_removed(folder.path):
        write_provenance(folder, arguments.words)
        if (source.path / "data.json").exists():
            folder.write_json("data.json", source.read_json("data.json"))
        checkpoint = _average(folder, recipe, merged)
        folder.write_json(folder.merge.name, _record(source.path, arguments, merged))
    for one in merged:
        say(f"{one.coefficient:.6f} of {one.checkpoint.name}")
    tell(str(checkpoint))


def _asked(arguments: Arguments) -> tuple[int, Path]:
    if arguments.last is None:
        raise RecipeError("last", "it is not said how many", "write last=4")
    if arguments.file is None:
        raise RecipeError("file", "no folder is named", "write file=FOLDER, a new one")
    if (arguments.average == "ema") != (arguments.ema_decay is not None):
        problem = "average=ema and what it keeps of itself belong together"
        raise RecipeError("ema_decay", problem, "write average=ema ema_decay=0.8, or neither")
    return arguments.last, arguments.file


def warnings_between(recipe: Recipe, first: int, last: int) -> list[str]:
    """Say what changed between the oldest and the newest: an average mixes both sides."""
    data = [recipe.clock.token_at(sample) for sample, _, _ in recipe.data_phases]
    spans = [span.first_token for span in recipe.clock.spans]
    return [
        f"{what} changes after {token:,} tokens, between the first of these and the last"
        for what, tokens in (("the mixture", data[1:]), ("a phase", spans[1:]))
        for token in tokens
        if first < token < last
    ]


def _average(folder: RunFolder, recipe: Recipe, merged: Sequence[MergedCheckpoint]) -> Path:
    newest = merged[-1].marker
    check_room(folder.checkpoints, needed_bytes=newest.bytes, files=len(newest.files))
    progress = RunProgress(step=newest.progress.step, tokens=newest.progress.tokens)
    marker = Marker(
        kind="tokens",
        fingerprint=compute_fingerprint(recipe),
        progress=progress,
        held_out_loss=None,
        files={},
        fresh_optimizer=True,
    )
    target = folder.checkpoints / marker.name
    files = average_into(beside(target), merged, buffers=buffers_of(recipe.model))
    complete(target, replace(marker, files=files))
    log = EventLog(file=folder.journal, writes=True, retry_seconds=0.0)
    evidence = {one.checkpoint.name: one.coefficient for one in merged}
    log.note("merge", progress, "checkpoints of another run are averaged", evidence)
    return target


def _record(run: Path, arguments: Arguments, merged: Sequence[MergedCheckpoint]) -> Any:
    checkpoints = [
        {
            "tokens": one.marker.progress.tokens,
            "checkpoint": one.checkpoint.name,
            "coefficient": one.coefficient,
        }
        for one in merged
    ]
    return {
        "run": str(run.resolve()),
        "average": arguments.average,
        "ema_decay": arguments.ema_decay,
        "checkpoints": checkpoints,
    }

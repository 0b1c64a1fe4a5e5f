"""Train here: prepare the data, make the run folder, start the ranks, write the report."""

import sys
from pathlib import Path

from command.actions.prepare import prepare_data
from command.arguments import Arguments
from command.compose import compose_recipe
from command.outcome import Outcome, Status
from command.profile_text import print_profile
from command.received import check_received
from command.reproduced import bundle_of, told_after, told_before
from command.words import keys_of
from components.checkpoint.disk import explained
from components.errors import RecipeError
from components.report.page import write_report
from components.run.records import Results
from components.spec.recipe import Recipe
from components.spec.relayout import check_movable, relayout
from components.spec.warnings import warnings_of
from components.train.launch import check_builds, check_trainable, launch
from components.train.run_folder import (
    RunFolder,
    create_run_folder,
    open_run_folder,
    replace_recipe,
)
from components.train.software import write_provenance


def run(arguments: Arguments) -> Outcome:
    """Train a new run, or go on with one."""
    if "resume" in arguments.folders:
        folder, recipe = _resume(arguments)
    else:
        folder, recipe = _begin(arguments)
    bundle = None if "resume" in arguments.folders else bundle_of(arguments)
    for line in told_before(bundle, folder.path) if bundle else ():
        _say(line)
    _say(f"run: {folder.path}  (if it is interrupted: python run.py resume={folder.path})")
    with explained(folder.path):
        ended = launch(recipe, folder)
        if ended == "failed":
            _say(f"the ranks failed; what is saved is in {folder.path}")
            return Outcome(Status.DOES_NOT_HOLD, folder.path)
        for line in told_after(bundle, folder.path) if bundle else ():
            _say(line)
        report = write_report([folder.path], folder.path / "report.html")
    _print_end(folder, report)
    return Outcome(Status.STOPPED if ended == "stopped" else Status.DONE, folder.path)


def _begin(arguments: Arguments) -> tuple[RunFolder, Recipe]:
    recipe = compose_recipe(arguments)
    _check_here(recipe)
    data = prepare_data(recipe, arguments.site)
    folder = create_run_folder(recipe, arguments.folders.get("run"))
    with explained(folder.path):
        folder.write_json("data.json", data)
        write_provenance(folder, arguments.words)
    return folder, recipe


def _check_here(recipe: Recipe) -> None:
    """Refuse what cannot be trained on this machine, before anything is written."""
    check_trainable(recipe)
    from components.train.devices import (  # imports torch: after what is quick
        check_devices,
        device_type,
        emulation_of,
    )

    check_devices(recipe.cluster)
    for warning in warnings_of(recipe):
        _say(warning)
    if emulated := emulation_of(recipe, device_type(recipe.cluster.device)):
        _say(f"precision.compute: float8 is {emulated}")
    check_builds(recipe)


def _resume(arguments: Arguments) -> tuple[RunFolder, Recipe]:
    """Take everything from the folder, but the layout from the words if there are any."""
    keys = keys_of(arguments.words)
    check_movable(key for key in keys if key not in {"resume", "action"})
    folder, before = open_run_folder(arguments.folders["resume"])
    check_received(folder, before, arguments)
    recipe = relayout(before, arguments.values) if arguments.values else before
    if recipe != before:
        _check_here(recipe)
    data = prepare_data(recipe, arguments.site)
    kept = folder.data
    if data["key"] != kept.key:
        remedy = f"put {Path(kept.folder).name} back, or start a new run"
        raise RecipeError("data", "the texts have changed since this run began", remedy)
    with explained(folder.path):
        if data["folder"] != kept.folder:  # the same data, but where they were made ready here
            folder.write_json("data.json", data)
        if recipe != before:
            replace_recipe(folder, recipe, step=_saved_step(folder))
        folder.results.unlink(missing_ok=True)
        folder.stop.unlink(missing_ok=True)
    return folder, recipe


def _saved_step(folder: RunFolder) -> int:
    """Read where the run goes on: at the newest checkpoint that is whole."""
    from components.checkpoint.loading import newest_whole  # imports torch

    chosen = newest_whole(folder.checkpoints)
    return chosen.marker.progress.step if chosen else 0


def _print_end(folder: RunFolder, report: Path) -> None:
    results = folder.read("results.json", Results, finite=False)
    held_out = results.held_out
    lines = [f"{results.status}: {results.tokens:,} tokens in {results.steps:,} steps"]
    if held_out.final is not None:
        trend = "rising" if held_out.rising else "not rising"
        lines.append(
            f"held-out loss {held_out.final:.3f}, {trend} over the last quarter; "
            f"a smoothed unigram model of the same tokens: {held_out.unigram:.3f}"
        )
    lines.append(f"{results.tokens_per_second:,.0f} tokens/s")
    if results.status == "stopped":
        lines.append(f"go on with: python run.py resume={folder.path}")
    print_profile(folder.path)
    sys.stdout.write("\n".join([*lines, f"report: {report}"]) + "\n")


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")

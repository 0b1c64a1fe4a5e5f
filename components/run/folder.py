"""Run folder: the recipe, software, data and results of a run.

recipe.json        the resolved recipe that the ranks load
*.mac              HMACs of recipe.json and data.json: only the user who wrote them can check
recipe-before-...  the recipe of the steps up to that step, if the recipe changed there
derived.json       numbers derived from the recipe, and its fingerprint
environment.json   command, commit, versions, device
software.json      hashes of the parts of the code, and package versions
deepspeed.json     the configuration of DeepSpeed, if it is the engine
source.diff        uncommitted changes of the code, if any
data.json          the prepared data that this run reads
merge.json         the averaged checkpoints of another run, if this run is their average
metrics.jsonl      measurements: steps, held-out losses, energy
events.jsonl      events with causes: starts, checkpoints, guards, restarts
writer.lock        lock of the process that trains here, with its name
submit.lock        lock of a process that submits or cancels jobs, with its name
sync.lock          lock of a process that sends the run to trackers, with its name
rehearsed/         requested faults that have been injected
checkpoints/       complete checkpoints, by tokens
tensorboard/       curves for TensorBoard
wandb/             curves for W&B, written when they are sent
hangs/             stacks and last collectives of ranks that made no progress
profile/           traces of profiled steps, one per rank, and breakdowns of their time
ranks/             output of ranks other than the first, and errors of all ranks
export/            checkpoints as folders that transformers loads
evaluation/        evaluation results, one file per checkpoint
results.json       how the run ended; missing while it runs and if it was killed
report.html        report on all of the above
"""

import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from components.config.check import read_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.config.suggestions import suggest_similar
from components.config.user_overrides import compare_values, iterate_leaves
from components.data.files import write_atomically
from components.errors import RecipeError
from components.json_file import dump_json, read_mapping
from components.run.history import events_file
from components.run.ownership import check_links, seal_of, sign_file
from components.run.records import DataRecord, Ending, R, read_record
from components.terminal import is_utf8

SEALED = frozenset({"recipe.json", "data.json"})
OLD_RECIPE = re.compile(r"recipe-before-step-([0-9]{1,18})\.json")
BEGUN = re.compile(r"checkpoints|submit\.lock|derived\.json|\.(derived|recipe)\.json\..+")
ANY_RUN = "set it to the folder of a run: each run prints its folder when it starts"


class RunFolder:
    """Paths inside one run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.json"
        self.metrics = path / "metrics.jsonl"
        self.events = events_file(path)
        self.results = path / "results.json"
        self.merge = path / "merge.json"
        self.checkpoints = path / "checkpoints"
        self.profiles = path / "profile"
        self.hangs = path / "hangs"  # diagnostics of ranks that made no progress
        self.stop = path / "stop"  # if it exists, the run saves and stops after its step

    def recipe_before(self, step: int) -> Path:
        """Return the path of the recipe used up to ``step``, if it changed there."""
        return self.path / f"recipe-before-step-{step}.json"

    def read_changes(self) -> dict[int, dict[str, tuple[Any, Any]]]:
        """Return the changes of the run's recipe: ``{step: {key: (old, new)}}``."""
        matches = (
            OLD_RECIPE.fullmatch(file.name) for file in self.path.glob("recipe-before-step-*")
        )
        steps = sorted(int(match[1]) for match in matches if match)
        files = [*map(self.recipe_before, steps), self.recipe]
        flat = [dict(iterate_leaves(self.read_json(file.name))) for file in files if steps]
        pairs = map(compare_values, flat, flat[1:])
        return dict(zip(steps, pairs, strict=True))

    def changes_at(self, step: int) -> dict[str, tuple[Any, Any]]:
        """Return the first change at or after ``step``, which may precede a damaged save."""
        return next((changed for at, changed in self.read_changes().items() if at >= step), {})

    def write_recipe(self, recipe: Recipe) -> None:
        """Write ``derived.json``, then ``recipe.json``, which the ranks load."""
        derived = recipe.derived_numbers.model_dump(mode="json") | {
            "fingerprint": compute_fingerprint(recipe)
        }
        self.write_json("derived.json", derived)
        self.write_json("recipe.json", recipe.model_dump(mode="json"))

    def write_json(self, name: str, tree: dict[str, Any]) -> None:
        """Write a JSON file atomically. NaN becomes null."""
        file = self.path / name
        write_atomically(file, dump_json(tree, indent=1) + "\n")
        if name in SEALED:
            sign_file(file)

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file without checking its fields; RecipeError if it has no mapping."""
        return read_mapping(self.path / name, remedy=ANY_RUN)

    def read_file(self, name: str, kind: type[R], *, finite: bool = True) -> R:
        """Read a file as a record of ``kind``; RecipeError if it is missing or invalid."""
        return read_record(self.path / name, kind, finite=finite)

    @property
    def data_record(self) -> DataRecord:
        """The prepared data that the run reads."""
        return self.read_file("data.json", DataRecord)

    @property
    def end_status(self) -> str | None:
        """The run's status, ``finished`` or ``stopped``; None while it runs and if killed."""
        if not self.results.exists():
            return None
        return self.read_file(self.results.name, Ending, finite=False).status


def create_run_folder(recipe: Recipe, wanted: Path | None) -> RunFolder:
    """Create the folder of a new run and write its frozen recipe.

    The default name contains recipe, scale, time, and a number if the name is taken. A folder
    with a run or other files is a RecipeError.
    """
    if wanted is None:
        stem = f"{recipe.name}-{recipe.scale.name}-{datetime.now():%Y%m%d-%H%M%S}"
        names = [stem, *(f"{stem}-{count}" for count in range(2, 1_000))]
        wanted = next(path for path in map(Path("runs").joinpath, names) if not path.exists())
    folder = RunFolder(wanted)
    if not is_utf8(str(wanted.absolute())):  # cannot be written as JSON
        raise RecipeError("run", f"{wanted.absolute()} is not UTF-8 text", "use another folder")
    if folder.recipe.exists():
        same = read_recipe(folder.recipe) == recipe
        what = "already has this run" if same else "has a different recipe"
        remedy = f"resume it with resume={folder.path}" if same else "set another run=FOLDER"
        raise RecipeError("run", f"{folder.path} {what}", remedy)
    check_unused(folder.path)
    try:
        _begin(folder, recipe)
    except OSError as error:
        problem = f"cannot create {folder.path}: {error.strerror}"
        raise RecipeError("run", problem, "set another run=FOLDER") from None
    return folder


def check_unused(path: Path) -> None:
    """Raise a RecipeError if the folder contains more than an interrupted creation left."""
    try:
        used = path.exists() and not all(map(_is_begun, path.iterdir()))
    except OSError as error:
        raise RecipeError("run", f"cannot create {path}: {error}", "set another run") from None
    if used:
        raise RecipeError("run", f"{path} is not empty", "set another run=FOLDER")


def _begin(folder: RunFolder, recipe: Recipe) -> None:
    """Write the recipe. If interrupted before it is sealed, remove it: see `_is_begun`."""
    try:
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        folder.write_recipe(recipe)
    except BaseException:  # an interrupt must not leave half a run
        for path in (folder.recipe, seal_of(folder.recipe)):
            with suppress(OSError):
                path.unlink()
        raise


def _is_begun(path: Path) -> bool:
    """Return whether ``path`` may be left by a kill before the recipe was written."""
    return BEGUN.fullmatch(path.name) is not None and not (
        path.is_dir() and any(path.iterdir())
    )


def existing_run_folder(path: Path, key: str = "run") -> RunFolder:
    """Return the existing run folder at ``path``. ``key`` is the argument for error messages.

    A link that leads out of the folder is a RecipeError.
    """
    folder = RunFolder(path)
    if not folder.recipe.is_file():
        others = sorted(file.parent.name for file in path.parent.glob("*/recipe.json"))
        remedy = (
            f"{path.parent} has: {suggest_similar(path.name, others)}" if others else ANY_RUN
        )
        reason = "it has no recipe.json" if path.exists() else "it does not exist"
        raise RecipeError(key, f"{path} is not a run folder: {reason}", remedy)
    check_links(path, key)
    return folder


def open_run_folder(path: Path, *, finished: bool = False) -> tuple[RunFolder, Recipe]:
    """Open a run folder to resume; a finished run needs ``finished``."""
    folder = existing_run_folder(path, "resume")
    recipe = read_recipe(folder.recipe)
    if folder.end_status == "finished" and not finished:
        remedy = "rewind with at_tokens=N, or start a new run with a larger budget.total_tokens"
        raise RecipeError("resume", f"the run in {path} has finished", remedy)
    return folder, recipe


def replace_recipe(folder: RunFolder, recipe: Recipe, *, step: int) -> None:
    """Replace the run's recipe after ``step`` and keep the earlier recipe."""
    earlier = folder.recipe_before(step)
    if not earlier.exists():  # a second change at one step: no weights depend on the first
        folder.write_json(earlier.name, folder.read_json(folder.recipe.name))
    folder.write_recipe(recipe)

"""A run folder that explains itself: what was asked, with what, on what, and what came out.

recipe.json        the resolved recipe that the ranks load
*.mac              who wrote recipe.json and data.json, for that user alone to tell
recipe-before-...  the recipe of the steps up to that one, if it changed there
derived.json       the numbers that follow from it, and its fingerprint
environment.json   command, commit, versions, device
software.json      the hash of each room of the code, all packages that a run asks for
deepspeed.json     the JSON that DeepSpeed got, where it is the engine
source.diff        what differed from that commit, if anything did
data.json          the prepared data that this run reads
merge.json         which checkpoints of another run this one's is the average of, if it is one
metrics.jsonl      what was measured: steps, held-out losses, energy
journal.jsonl      what happened: starts, checkpoints, guards, restarts, each with its cause
writer.lock        held while a process trains here; its name, for who comes second
submit.lock        held while a process submits or cancels its jobs, the same
sync.lock          held while a process sends the run to its trackers, the same
rehearsed/         faults that were asked for and have struck
checkpoints/       complete checkpoints, by tokens
tensorboard/       the same curves for TensorBoard
wandb/             the same for W&B, written when they are sent
hangs/             stacks and last collectives of ranks that made no progress
profile/           traces of profiled steps, a file a rank, and where their time went
ranks/             what ranks other than the first said, and the errors of all
export/            checkpoints as folders that transformers loads
evaluation/        what checkpoints were found to be worth, a file each
results.json       how it ended; absent while it runs and if it was killed
report.html        all of the above for a person
"""

import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from components.config.check import read_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.config.suggestions import nearest
from components.config.user_overrides import differences, leaves
from components.data.files import write_atomically
from components.errors import RecipeError
from components.json_file import dump_json, read_mapping
from components.run.ownership import check_links, seal_of, sign
from components.run.records import DataRecord, Ending, R, read_record
from components.terminal import is_utf8

SEALED = frozenset({"recipe.json", "data.json"})
KEPT = re.compile(r"recipe-before-step-([0-9]{1,18})\.json")
BEGUN = re.compile(r"checkpoints|submit\.lock|derived\.json|\.(derived|recipe)\.json\..+")
ANY_RUN = "name a folder that a run wrote: each says its own where it starts"


class RunFolder:
    """Paths inside one run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.json"
        self.metrics = path / "metrics.jsonl"
        self.journal = path / "journal.jsonl"
        self.results = path / "results.json"
        self.merge = path / "merge.json"
        self.checkpoints = path / "checkpoints"
        self.profiles = path / "profile"
        self.hangs = path / "hangs"  # what ranks left that made no progress
        self.stop = path / "stop"  # while it exists the run saves and stops after its step

    def recipe_before(self, step: int) -> Path:
        """Where the recipe of the steps up to ``step`` is, if the run went on by another."""
        return self.path / f"recipe-before-step-{step}.json"

    def changes(self) -> dict[int, dict[str, tuple[Any, Any]]]:
        """Compare the recipes of the run: by the step of each change, old and new by key."""
        found = (KEPT.fullmatch(file.name) for file in self.path.glob("recipe-before-step-*"))
        steps = sorted(int(name[1]) for name in found if name)
        files = [*map(self.recipe_before, steps), self.recipe]
        flat = [dict(leaves(self.read_json(file.name))) for file in files if steps]
        pairs = map(differences, flat, flat[1:])
        return dict(zip(steps, pairs, strict=True))

    def changes_at(self, step: int) -> dict[str, tuple[Any, Any]]:
        """Return what changed for steps after ``step``, which may be before a damaged save."""
        return next((changed for at, changed in self.changes().items() if at >= step), {})

    def write_recipe(self, recipe: Recipe) -> None:
        """Write what the ranks load, and before it the numbers that follow from it."""
        derived = recipe.derived.model_dump(mode="json") | {
            "fingerprint": compute_fingerprint(recipe)
        }
        self.write_json("derived.json", derived)
        self.write_json("recipe.json", recipe.model_dump(mode="json"))

    def write_json(self, name: str, tree: dict[str, Any]) -> None:
        """Write a JSON file atomically. NaN becomes null."""
        file = self.path / name
        write_atomically(file, dump_json(tree, indent=1) + "\n")
        if name in SEALED:
            sign(file)

    def read_json(self, name: str) -> dict[str, Any]:
        """Read one of the folder's files, unchecked; :meth:`read` knows what is in it.

        Raises:
            RecipeError: it is missing or holds no mapping.
        """
        return read_mapping(self.path / name, remedy=ANY_RUN)

    def read(self, name: str, kind: type[R], *, finite: bool = True) -> R:
        """Read one of the folder's files as a record.

        Raises:
            RecipeError: it cannot be read, or is none of this kind.
        """
        return read_record(self.path / name, kind, finite=finite)

    @property
    def data(self) -> DataRecord:
        """The prepared data that the run reads."""
        return self.read("data.json", DataRecord)

    @property
    def ended(self) -> str | None:
        """How the run ended, ``finished`` or ``stopped``; None while it runs and if killed."""
        if not self.results.exists():
            return None
        return self.read(self.results.name, Ending, finite=False).status


def create_run_folder(recipe: Recipe, wanted: Path | None) -> RunFolder:
    """Make the folder of a new run and write its frozen recipe there.

    Without ``wanted`` it is named after recipe, scale and second, counted up where taken.

    Raises:
        RecipeError: the folder already holds a run or something else.
    """
    if wanted is None:
        stem = f"{recipe.name}-{recipe.scale.name}-{datetime.now():%Y%m%d-%H%M%S}"
        names = [stem, *(f"{stem}-{count}" for count in range(2, 1_000))]
        wanted = next(path for path in map(Path("runs").joinpath, names) if not path.exists())
    folder = RunFolder(wanted)
    if not is_utf8(str(wanted.absolute())):  # JSON could not hold it
        raise RecipeError(
            "run", f"{wanted.absolute()} is not UTF-8 text", "work in another folder"
        )
    if folder.recipe.exists():
        same = read_recipe(folder.recipe) == recipe
        what = "this very run" if same else "another recipe"
        way = f"resume={folder.path} goes on with it" if same else "choose another run=FOLDER"
        raise RecipeError("run", f"{folder.path} holds {what}", way)
    check_unused(folder.path)
    try:
        _begin(folder, recipe)
    except OSError as error:
        problem = f"cannot make {folder.path}: {error.strerror}"
        raise RecipeError("run", problem, "choose another") from None
    return folder


def check_unused(path: Path) -> None:
    """Raise a RecipeError for a folder that holds more than an interrupted beginning."""
    try:
        used = path.exists() and not all(map(_is_begun, path.iterdir()))
    except OSError as error:
        raise RecipeError("run", f"cannot make {path}: {error}", "choose another") from None
    if used:
        raise RecipeError("run", f"{path} is not empty", "choose another run=FOLDER")


def _begin(folder: RunFolder, recipe: Recipe) -> None:
    """Write the recipe; interrupted before it is sealed, leave no folder that is no run."""
    try:
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        folder.write_recipe(recipe)
    except BaseException:
        if folder.path.is_dir():
            for path in (folder.recipe, seal_of(folder.recipe)):
                path.unlink(missing_ok=True)
            for path in filter(_is_begun, list(folder.path.iterdir())):
                path.rmdir() if path.is_dir() else path.unlink()
            with suppress(OSError):  # somebody else's file is there
                folder.path.rmdir()
        raise


def _is_begun(path: Path) -> bool:
    """Return whether a kill may have left this before the recipe was written."""
    return BEGUN.fullmatch(path.name) is not None and not (
        path.is_dir() and any(path.iterdir())
    )


def existing_run_folder(path: Path, key: str = "run") -> RunFolder:
    """Take the folder of a run that ``key`` names.

    Raises:
        RecipeError: it is no run folder, and runs beside it are offered; or a link leads out.
    """
    folder = RunFolder(path)
    if not folder.recipe.is_file():
        beside = sorted(file.parent.name for file in path.parent.glob("*/recipe.json"))
        way = f"{path.parent} holds: {nearest(path.name, beside)}" if beside else ANY_RUN
        reason = "it has no recipe.json" if path.exists() else "it does not exist"
        raise RecipeError(key, f"{path} is no run folder: {reason}", way)
    check_links(path, key)
    return folder


def open_run_folder(path: Path, *, finished: bool = False) -> tuple[RunFolder, Recipe]:
    """Open the folder of a run that is to be resumed; ``finished`` ones only if so said.

    Raises:
        RecipeError: it is no run folder, or the run has finished.
    """
    folder = existing_run_folder(path, "resume")
    recipe = read_recipe(folder.recipe)
    if folder.ended == "finished" and not finished:
        remedy = "go back with at_tokens=N, or start a new run with more budget.total_tokens"
        raise RecipeError("resume", f"the run in {path} has finished", remedy)
    return folder, recipe


def replace_recipe(folder: RunFolder, recipe: Recipe, *, step: int) -> None:
    """Let the run go on by ``recipe`` after ``step``; keep the one by which it got there."""
    kept = folder.recipe_before(step)
    if not kept.exists():  # changed twice at one step: no weights came of the recipe between
        folder.write_json(kept.name, folder.read_json(folder.recipe.name))
    folder.write_recipe(recipe)

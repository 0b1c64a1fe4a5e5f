"""Bring a pass to its end: do what is missing, then write its manifest."""

from collections.abc import Callable
from pathlib import Path

from components.errors import RecipeError
from data_prep.stages.disk import full_disk_told
from data_prep.stages.executors import Executor
from data_prep.stages.lock import alone
from data_prep.stages.plan import Plan
from data_prep.stages.record import (
    PassManifest,
    missing_tasks,
    read_manifest,
    take_failure,
    write_manifest,
)


def run_pass(
    plan: Plan, root: Path, executor: Executor, say: Callable[[str], None]
) -> PassManifest:
    """Do the tasks of ``plan`` that are not done yet, in its folder below ``root``.

    Raises:
        RecipeError: bad input, a full disk, somebody else at work there, or tasks that ended
            without a record.
    """
    folder = root / plan.folder_name
    with full_disk_told(folder):
        _make(folder)
        manifest = read_manifest(folder, plan.key)
        if manifest is not None:
            say(f"{folder.name}: done before")
            return manifest
        with alone(folder, say):
            plan.write(folder)
            _do_missing(folder, plan, executor, say)
            for left in folder.glob(".*.partial"):
                left.unlink()
            return write_manifest(folder, plan.key, len(plan.tasks))


def _do_missing(
    folder: Path, plan: Plan, executor: Executor, say: Callable[[str], None]
) -> None:
    everything = range(len(plan.tasks))
    left = missing_tasks(folder, everything, plan.key)
    for task in left:
        take_failure(folder, task)
    if left:
        say(f"{folder.name}: {len(left)} of {len(plan.tasks)} tasks to do")
        executor.run(folder, left, say)
        left = missing_tasks(folder, left, plan.key)
    for task in left:
        failure = take_failure(folder, task)
        if failure is not None:
            raise failure
    if left:
        raise RecipeError(
            str(folder),
            f"{len(left)} of {len(plan.tasks)} tasks ended without a result, the first is "
            f"{left[0]}",
            "give the same command again: it does these alone"
            + (f"; what jobs said is in {folder}/jobs" if (folder / "jobs").exists() else ""),
        )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise RecipeError(
            "data.folder", f"cannot write there: {error}", "name a folder that you may write to"
        ) from error

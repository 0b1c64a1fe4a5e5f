"""Evaluate checkpoints in a job array on the run's cluster, one node per element.

An element is ``python -m command.evaluate.queue RUN K``: it evaluates the K-th group of
checkpoints in the run's ``evaluation/array/array.json`` in order, each on all devices of the
node. It skips checkpoints that have a result.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.array import ArrayWork, most_elements, states_of, submit_array
from cluster.clients import scheduler_for
from cluster.scheduler import check_id
from cluster.user import read_user
from command.arguments import ROOT, Arguments, read_point
from command.received_site import check_received_site
from command.recipe.path_checks import open_run
from components.checkpoint.choice import no_checkpoint
from components.checkpoint.metadata import list_saved_tokens
from components.config.check import check_recipe
from components.config.recipe import Recipe
from components.config.schema.types import Section
from components.data.files import write_atomically
from components.errors import RecipeError
from components.report.measurements import read_evaluations
from components.run.folder import RunFolder
from components.run.records import read_record
from components.terminal import log_line
from data_prep.task import deal_tasks

Answer = Mapping[str, Any]
MOST_JOBS = 64  # most elements if the cluster profile has no limit
_NOT_SENT = {"run", "executor", "checkpoints", "at_tokens", "output"}
_AGAIN = "repeat the command to see progress and results"


class EvaluationArray(Section):
    """Array record: tokens of the checkpoints per element, command-line words, job id."""

    groups: list[list[int]]
    words: list[str]
    job: str | None

    def save_array(self, folder: Path) -> None:
        write_atomically(folder / "array.json", self.model_dump_json())


def read_array(folder: Path) -> EvaluationArray | None:
    """Read the record of the last submitted array; None before the first."""
    file, remedy = folder / "array.json", "delete it; the same command writes a new file"
    return read_record(file, EvaluationArray, remedy=remedy) if file.exists() else None


def array_folder(run: RunFolder) -> Path:
    """Return the folder of a run's array script, record and logs."""
    return run.path / "evaluation" / "array"


def evaluate_in_jobs(arguments: Arguments) -> list[Answer]:
    """Return the existing results and submit jobs for the missing ones.

    It submits nothing while the queue has jobs of an earlier array. ``checkpoints=all``
    selects the checkpoints that the run has saved so far.
    """
    folder, recipe = open_run(arguments.run, arguments.values)
    check_received_site(folder, recipe)
    # Listed by name: an element of the array checks the content.
    available = list_saved_tokens(folder.checkpoints)
    newest = available[-1:] if arguments.at_tokens is None else [arguments.at_tokens]
    selected = available if arguments.checkpoints == "all" else newest
    if not selected or not {*selected} <= {*available}:
        raise no_checkpoint(folder.checkpoints, arguments.at_tokens, available)
    return ask_in_jobs(folder, recipe, selected, arguments)


def ask_in_jobs(
    folder: RunFolder,
    recipe: Recipe,
    selected: Sequence[int],
    arguments: Arguments,
    name: str = "evaluation",
) -> list[Answer]:
    """Evaluate the checkpoints at these tokens, in an array with the job name ``name``."""
    answers = answers_of(folder, arguments)
    results = [answers[tokens] for tokens in selected if tokens in answers]
    missing = [tokens for tokens in selected if tokens not in answers]
    if not missing:
        return results
    done = f"evaluated {len(results)} of {len(selected)} checkpoints"
    if queued := _queued(folder, recipe):
        running = queued.count("running")
        log_line(f"{done}; {running} jobs running, {len(queued) - running} queued\n  {_AGAIN}")
    else:
        job = _submit(folder, recipe, missing, arguments, name)
        log_line(f"{done}; submitted {job}, logs in {array_folder(folder)}/jobs\n  {_AGAIN}")
    return results


def answers_of(run: RunFolder, arguments: Arguments) -> dict[int, Answer]:
    """Return the results that contain the requested evaluation, by checkpoint tokens."""

    def is_answer(result: Answer) -> bool:
        if arguments.tasks:
            return {*arguments.tasks} <= {*result.get("tasks", {}), *result.get("scores", {})}
        if arguments.text is not None:
            return str(arguments.text.absolute()) in result.get("texts", {})
        return "held_out" in result

    results = filter(is_answer, read_evaluations(run.path))
    return {result["tokens_trained"]: result for result in results}


def _queued(run: RunFolder, recipe: Recipe) -> list[str]:
    """Return the queue's states of the last array's jobs."""
    folder = array_folder(run)
    array = read_array(folder)
    if array is None:
        return []
    scheduler = scheduler_for(recipe.cluster)
    if array.job is not None:
        check_id(scheduler, array.job, folder)
    return states_of(scheduler, array.job or "", folder / "jobs")


def _submit(
    run: RunFolder, recipe: Recipe, missing: Sequence[int], arguments: Arguments, name: str
) -> str:
    tree, folder = recipe.model_dump(mode="json"), array_folder(run)
    tree["cluster"]["hours"] = arguments.values.get("cluster.hours", tree["cluster"]["hours"])
    recipe = check_recipe(tree)
    user = read_user(recipe.cluster.name, arguments.site)
    groups = deal_tasks(missing, most_elements(recipe, user) or MOST_JOBS)
    work = ArrayWork(
        kind=name,
        module="command.evaluate.queue",
        words=(str(run.path.absolute()),),
        logs=folder / "jobs",
        elements=len(groups),
    )
    folder.mkdir(parents=True, exist_ok=True)
    array = EvaluationArray(groups=[*map(list, groups)], words=_question(arguments), job=None)
    array.save_array(folder)
    job = submit_array(recipe, user, work, repository=ROOT)
    array.model_copy(update={"job": job}).save_array(folder)
    return job


def _question(arguments: Arguments) -> list[str]:
    """Return the words for an element, with absolute paths: its working folder differs."""
    words: list[str] = []
    for word in arguments.words:
        key, _, value = word.partition("=")
        if key in {"text", "tasks_folder"}:
            words.append(f"{key}={Path(value).expanduser().absolute()}")
        elif key not in _NOT_SENT and not key.startswith("site."):
            words.append(word)
    return words


def main(words: Sequence[str]) -> int:
    """Evaluate a group; return 0, or 2 after an error that the user can fix."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports what reads it
    from command.evaluate.questions import evaluate_run  # imports torch

    run, element = RunFolder(Path(words[0])), int(words[1])
    array = read_array(array_folder(run))
    assert array is not None, "the command writes it before it submits"
    for tokens in array.groups[element]:
        point = read_point([*array.words, f"run={run.path}", f"at_tokens={tokens}"])
        try:
            if tokens not in answers_of(run, point):
                evaluate_run(point)
        except RecipeError as error:
            log_line(str(error))
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

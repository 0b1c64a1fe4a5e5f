"""Evaluate checkpoints in jobs of their own: an array on the run's cluster, a node an element.

An element is ``python -m command.evaluate.queue RUN K``: it evaluates the K-th group of
checkpoints that ``evaluation/array/array.json`` of the run lists, one after the other, each
on all devices of the node. What has an answer already is left alone.
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
from components.checkpoint.metadata import kept_tokens
from components.config.check import check_recipe
from components.config.recipe import Recipe
from components.config.schema.types import Section
from components.data.files import replace_atomically
from components.errors import RecipeError
from components.report.measurements import read_evaluations
from components.run.folder import RunFolder
from components.run.records import read_record
from components.terminal import say
from data_prep.task import deal_tasks

Answer = Mapping[str, Any]
MOST_JOBS = 64  # elements where no profile names a limit
_NOT_ASKED = {"run", "executor", "checkpoints", "at_tokens", "output"}
_AGAIN = "the same command says how far they are, and prints what they found"


class EvaluationArray(Section):
    """Checkpoints by their tokens, a group an element; the question's words; the ``job``."""

    groups: list[list[int]]
    words: list[str]
    job: str | None

    def write(self, folder: Path) -> None:
        with replace_atomically(folder / "array.json") as file:
            file.write(self.model_dump_json().encode())


def read_array(folder: Path) -> EvaluationArray | None:
    """Read what was submitted last; nothing before the first time."""
    file, remedy = folder / "array.json", "delete it: the same command writes another"
    return read_record(file, EvaluationArray, remedy=remedy) if file.exists() else None


def array_folder(run: RunFolder) -> Path:
    """Return where the script, the record and the logs of a run's evaluations lie."""
    return run.path / "evaluation" / "array"


def evaluate_in_jobs(arguments: Arguments) -> list[Answer]:
    """Return the answers that there are, and see that jobs find the others.

    While the queue has jobs of these evaluations, no other ones are submitted. With
    ``checkpoints=all`` those are evaluated that the run has kept by now.

    Raises:
        RecipeError: no such checkpoint, a cluster without a scheduler or what its user has not
            said, or the scheduler refuses.
    """
    folder, recipe = open_run(arguments.run, arguments.values)
    check_received_site(folder, recipe)
    kept = kept_tokens(folder.checkpoints)  # by name: an element checks what it reads
    newest = kept[-1:] if arguments.at_tokens is None else [arguments.at_tokens]
    asked = kept if arguments.checkpoints == "all" else newest
    if not asked or not {*asked} <= {*kept}:
        raise no_checkpoint(folder.checkpoints, arguments.at_tokens, kept)
    return ask_in_jobs(folder, recipe, asked, arguments)


def ask_in_jobs(
    folder: RunFolder,
    recipe: Recipe,
    asked: Sequence[int],
    arguments: Arguments,
    name: str = "evaluation",
) -> list[Answer]:
    """Do so for checkpoints that are there, by their tokens; the job is called by ``name``.

    Raises:
        RecipeError: as above.
    """
    answers = answers_of(folder, arguments)
    found = [answers[tokens] for tokens in asked if tokens in answers]
    missing = [tokens for tokens in asked if tokens not in answers]
    if not missing:
        return found
    done = f"{len(found)} of {len(asked)} checkpoints are evaluated"
    if queued := _queued(folder, recipe):
        running = queued.count("running")
        say(f"{done}; {running} jobs run, {len(queued) - running} wait\n  {_AGAIN}")
    else:
        job = _submit(folder, recipe, missing, arguments, name)
        say(f"{done}; submitted {job}, its logs are in {array_folder(folder)}/jobs\n  {_AGAIN}")
    return found


def answers_of(run: RunFolder, arguments: Arguments) -> dict[int, Answer]:
    """Find the results that have what the words ask for, by the tokens of their checkpoints."""
    kept = read_evaluations(run.path)
    return {one["tokens_trained"]: one for one in kept if _answers(one, arguments)}


def _answers(kept: Answer, arguments: Arguments) -> bool:
    if arguments.tasks:
        return {*arguments.tasks} <= {*kept.get("tasks", {}), *kept.get("scores", {})}
    if arguments.text is not None:
        return str(arguments.text.absolute()) in kept.get("texts", {})
    return "held_out" in kept


def _queued(run: RunFolder, recipe: Recipe) -> list[str]:
    """List the states of what the queue has of the array before."""
    folder = array_folder(run)
    array = read_array(folder)
    if array is None:
        return []
    scheduler = scheduler_for(recipe.cluster)
    if array.job is not None:
        check_id(scheduler, array.job, folder)
    return states_of(scheduler, array.job or "", folder / "jobs")


def _submit(
    run: RunFolder,
    recipe: Recipe,
    missing: Sequence[int],
    arguments: Arguments,
    name: str,
) -> str:
    tree, folder = recipe.model_dump(mode="json"), array_folder(run)
    tree["cluster"] |= {
        "hours": arguments.values.get("cluster.hours", tree["cluster"]["hours"])
    }
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
    array.write(folder)
    job = submit_array(recipe, user, work, repository=ROOT)
    array.model_copy(update={"job": job}).write(folder)
    return job


def _question(arguments: Arguments) -> list[str]:
    """Keep the words that an element asks with; it is in another folder than the user."""
    kept: list[str] = []
    for word in arguments.words:
        key, _, value = word.partition("=")
        if key in {"text", "tasks_folder"}:
            kept.append(f"{key}={Path(value).expanduser().absolute()}")
        elif key not in _NOT_ASKED and not key.startswith("site."):
            kept.append(word)
    return kept


def main(words: Sequence[str]) -> int:
    """Evaluate a group; 0 done, 2 something that a user can mend."""
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
            say(str(error))
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A pass over a corpus as a SLURM array: submitted, waited for, or found in the queue."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cluster import script
from cluster.scheduler import SchedulerError, check_id, check_present
from cluster.slurm import Slurm
from cluster.user import User
from components.config.schema.data import Preparation
from components.config.schema.recipe import Recipe
from components.errors import RecipeError
from data_prep.stages.folder import Say
from data_prep.stages.plan import read_plan
from data_prep.stages.record import missing_tasks
from data_prep.task import FILE_NAME, Array, QueuedError, deal_tasks, read_array

SLURM = Slurm()
POLL_SECONDS = 5.0


def array_settings(
    recipe: Recipe, user: User, *, repository: Path, folder: Path, elements: int
) -> dict[str, object]:
    """Compute the array that does a pass in ``folder``, each element on a node of its own.

    Raises:
        RecipeError: the cluster has no SLURM or its profile no site, the user has not said
            what it asks for, or a path cannot stand in a script.
    """
    slot = queue_of(recipe, user)
    site, cluster = script.site_of(recipe), recipe.cluster
    for error in script.missing_of(recipe, user, slot.name):
        raise error
    cores = site.binding.cores_per_rank
    venv, python = script.python_of(site, user, repository)
    return {
        "name": f"{recipe.name}-data",
        "cluster": cluster,
        "site": site,
        "user": user,
        "queue": slot.name,
        "variables": script.exported(site, user),
        "directives": (*site.directives, *(slot.queue.options if slot.queue else ())),
        "account": f"{user.account}{site.account_suffix}" if user.account else None,
        "cores": None if cores is None else cores * cluster.devices_per_node,
        "walltime": script.clock(round(slot.hours * script.HOUR)),
        "elements": elements,
        "venv": venv,
        "python": python,
        "repository": script.plain(str(repository), "repository"),
        "stages": script.plain(str(folder.parent), "data.folder"),
        "stage": folder.name,
    }


def queue_of(recipe: Recipe, user: User) -> script.Slot:
    """Choose the queue of an array's elements, each of which has one node.

    Raises:
        RecipeError: the cluster has no SLURM or its profile no site, or no queue takes them.
    """
    script.site_of(recipe)
    cluster = recipe.cluster
    if cluster.scheduler != "slurm":
        raise RecipeError(
            "data.preparation.executor",
            f"slurm, but {cluster.name} has {cluster.scheduler}",
            "prepare with data.preparation.executor=local inside a job, or on another cluster",
        )
    one_node = cluster.model_copy(update={"nodes": 1, "smoke": False})
    return script.choose_queue(one_node, wanted=user.queue, needed_hours=None)


@dataclass(frozen=True, kw_only=True)
class OnSlurm:
    """The tasks of a pass as an array; one that is still queued is waited for, not repeated."""

    recipe: Recipe
    preparation: Preparation
    user: User
    repository: Path

    def run(self, folder: Path, tasks: Sequence[int], say: Say) -> None:
        """Submit the tasks unless they are queued; return when the queue has none of them.

        Raises:
            QueuedError: the recipe says not to wait.
            RecipeError: SLURM is not here, or refuses the script.
        """
        check_present(SLURM, None)
        job, array = None, read_array(folder)
        if array is not None and array.job is not None:
            check_id(SLURM, array.job, folder / FILE_NAME)
            job = array.job if _states(array.job, folder) else None  # a part of it is queued
        if job is None:
            job = self._submit(folder, tasks)
            say(f"{folder.name}: submitted {job}; if this is stopped, the same command goes on")
        else:
            say(f"{folder.name}: {job} is queued already")
        if not self.preparation.wait:
            remedy = "the same command goes on when it has ended"
            raise QueuedError(str(folder), f"{job} is queued", remedy)
        _wait(job, folder, tasks, say)

    def _submit(self, folder: Path, tasks: Sequence[int]) -> str:
        queue = queue_of(self.recipe, self.user).queue
        admitted = queue.submitted if queue else None  # an array's elements count one by one
        most = self.preparation.most_jobs
        groups = deal_tasks(tasks, most if admitted is None else min(most, admitted))
        count, file = len(groups), folder / "array.sh"
        settings = array_settings(
            self.recipe, self.user, repository=self.repository, folder=folder, elements=count
        )
        file.write_text(script.fill("slurm_array.sh.j2", settings), "utf-8")
        (folder / "jobs").mkdir(exist_ok=True)
        array = Array(groups=groups, workers=self.preparation.workers, job=None)
        array.write(folder)
        try:
            job = SLURM.submit(file, after=None)
        except SchedulerError as error:
            remedy = f"the script is {file}; site.* and cluster.* change what it asks for"
            raise RecipeError("cluster.scheduler", str(error), remedy) from None
        replace(array, job=job).write(folder)
        return job


def _wait(job: str, folder: Path, tasks: Sequence[int], say: Say) -> None:
    """Report how many tasks are done whenever that changes, until the queue has none left."""
    key, said = read_plan(folder).key, -1
    while True:
        states = _states(job, folder)
        done = len(tasks) - len(missing_tasks(folder, tasks, key))
        if done != said:
            running = states.count("running")
            queue = f"{job}: {running} jobs run, {len(states) - running} wait"
            say(f"{folder.name}: {done} of {len(tasks)} tasks; {queue}")
            said = done
        if not states:
            return
        time.sleep(POLL_SECONDS)


def _states(job: str, folder: Path) -> list[str]:
    try:
        return [state.state for state in SLURM.states(job, folder / "jobs")]
    except SchedulerError as error:
        remedy = "try again later: the same command goes on"
        raise RecipeError("cluster.scheduler", str(error), remedy) from None

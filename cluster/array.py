"""Work as a job array, a node an element: a pass over a corpus, or evaluations."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cluster import script
from cluster.clients import scheduler_for
from cluster.container import check_container, container_path, container_text
from cluster.scheduler import Scheduler, SchedulerError, check_id, check_present
from cluster.user import User
from components.config.recipe import Recipe
from components.config.schema.data import Preparation
from components.errors import RecipeError
from data_prep.stages.folder import Say
from data_prep.stages.plan import read_plan
from data_prep.stages.record import missing_tasks
from data_prep.task import FILE_NAME, Array, QueuedError, deal_tasks, read_array

POLL_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class ArrayWork:
    """What ``elements`` do: ``module`` with ``words``, and behind them an element's number.

    Script and logs are in ``logs``; the job is called by the recipe and ``kind``.
    """

    kind: str
    module: str
    words: tuple[str, ...]
    logs: Path
    elements: int

    def command(self, python: str) -> str:
        """Write the command without its last word.

        Raises:
            RecipeError: a word cannot stand in a script.
        """
        words = (script.plain(word, self.kind) for word in self.words)
        return " ".join((python, "-m", self.module, *words))


def array_settings(
    recipe: Recipe, user: User, work: ArrayWork, *, repository: Path
) -> dict[str, object]:
    """Compute the array that does the work, each element on a node of its own.

    Raises:
        RecipeError: the cluster has no scheduler or its profile no site, the user has not
            said what it asks for, or a path cannot stand in a script.
    """
    slot = queue_of(recipe, user)
    site, cluster = script.site_of(recipe), recipe.cluster
    check_container(cluster, site, user)
    for error in script.missing_of(recipe, user, slot.name):
        raise error
    cores = site.binding.cores_per_rank
    venv, python = script.python_of(site, user, repository)
    return {
        "name": script.job_name(recipe, work.kind),
        "cluster": cluster,
        "site": site,
        "user": user,
        "queue": slot.name,
        "variables": script.exported(site, user),
        "directives": (*site.directives, *(slot.queue.options if slot.queue else ())),
        "account": f"{user.account}{site.account_suffix}" if user.account else None,
        "cores": None if cores is None else cores * cluster.devices_per_node,
        "walltime": script.clock(round(slot.hours * script.HOUR)),
        "indices": indices_of(work.elements),
        "venv": venv,
        "repository": script.plain(str(repository), "repository"),
        "command": work.command(python),
        "logs": script.output_folder(work.logs, work.kind, cluster.scheduler),
        "container_text": container_text(site, user, str(repository)),
        "container_path": container_path(work.logs),
    }


def submit_array(recipe: Recipe, user: User, work: ArrayWork, *, repository: Path) -> str:
    """Write the script ``array.sh`` beside the logs' folder, submit it and return its id.

    Raises:
        RecipeError: as `array_settings`, or the scheduler is not here or refuses the script; if
            it does not answer, because of a `NoAnswerError`: it may have taken the array.
    """
    scheduler = scheduler_for(recipe.cluster)
    check_present(scheduler, None)
    settings = array_settings(recipe, user, work, repository=repository)
    file = work.logs.parent / "array.sh"
    file.write_text(script.fill(f"{recipe.cluster.scheduler}_array.sh.j2", settings), "utf-8")
    work.logs.mkdir(exist_ok=True)
    try:
        return scheduler.submit(file, after=None)
    except SchedulerError as error:
        remedy = f"the script is {file}; site.* and cluster.* change what it asks for"
        raise RecipeError("cluster.scheduler", str(error), remedy) from error


def most_elements(recipe: Recipe, user: User) -> int | None:
    """Return how many elements the queue takes, if its profile says: they count one by one."""
    queue = queue_of(recipe, user).queue
    return queue.submitted if queue else None


def states_of(scheduler: Scheduler, job: str, logs: Path) -> list[str]:
    """List ``pending`` or ``running`` of each element that the queue still has.

    Raises:
        RecipeError: the scheduler does not answer.
    """
    try:
        return [state.state for state in scheduler.states(job, logs)]
    except SchedulerError as error:
        remedy = "try again later: the same command goes on"
        raise RecipeError("cluster.scheduler", str(error), remedy) from None


def indices_of(elements: int) -> str:
    """Write an array's indices from 0: PBS refuses ``0-0``, and both take ``0-1:2`` for it.

    OpenPBS, src/lib/Libcmds/chk_Jrange.c: the first index is below the last.
    """
    return f"0-{elements - 1}" if elements > 1 else "0-1:2"


def queue_of(recipe: Recipe, user: User) -> script.Slot:
    """Choose the queue of an array's elements, each of which has one node.

    Raises:
        RecipeError: the cluster has no scheduler or its profile no site, or no queue takes
            them.
    """
    script.site_of(recipe)
    one_node = recipe.cluster.model_copy(update={"nodes": 1, "smoke": False})
    return script.choose_queue(one_node, wanted=user.queue, needed_hours=None)


@dataclass(frozen=True, kw_only=True)
class OnQueue:
    """The tasks of a pass as an array; one that is still queued is waited for, not repeated."""

    recipe: Recipe
    preparation: Preparation
    user: User
    repository: Path

    def run(self, folder: Path, tasks: Sequence[int], say: Say) -> None:
        """Submit the tasks unless they are queued; return when the queue has none of them.

        Raises:
            QueuedError: the recipe says not to wait.
            RecipeError: the scheduler is not here, or refuses the script.
        """
        scheduler = scheduler_for(self.recipe.cluster)
        check_present(scheduler, None)
        array = read_array(folder)
        job = "" if array is None else array.job or ""  # unknown: its answer was lost
        if job:
            check_id(scheduler, job, folder / FILE_NAME)
        if array is not None and states_of(scheduler, job, folder / "jobs"):  # a part is queued
            say(f"{folder.name}: {job or 'an array'} is queued already")
        else:
            job = self._submit(folder, tasks)
            say(f"{folder.name}: submitted {job}; if this is stopped, the same command goes on")
        if not self.preparation.wait:
            remedy = "the same command goes on when it has ended"
            raise QueuedError(str(folder), f"{job} is queued", remedy)
        _wait(scheduler, job, folder, tasks, say)

    def _submit(self, folder: Path, tasks: Sequence[int]) -> str:
        admitted, most = most_elements(self.recipe, self.user), self.preparation.most_jobs
        groups = deal_tasks(tasks, most if admitted is None else min(most, admitted))
        work = ArrayWork(
            kind="data",
            module="data_prep.task",
            words=(str(folder.parent), folder.name),
            logs=folder / "jobs",
            elements=len(groups),
        )
        array = Array(groups=groups, workers=self.preparation.workers, job=None)
        array.write(folder)
        job = submit_array(self.recipe, self.user, work, repository=self.repository)
        replace(array, job=job).write(folder)
        return job


def _wait(scheduler: Scheduler, job: str, folder: Path, tasks: Sequence[int], say: Say) -> None:
    """Report how many tasks are done whenever that changes, until the queue has none left."""
    key, said = read_plan(folder).key, -1
    while True:
        states = states_of(scheduler, job, folder / "jobs")
        done = len(tasks) - len(missing_tasks(folder, tasks, key))
        if done != said:
            running = states.count("running")
            queue = f"{job}: {running} jobs run, {len(states) - running} wait"
            say(f"{folder.name}: {done} of {len(tasks)} tasks; {queue}")
            said = done
        if not states:
            return
        time.sleep(POLL_SECONDS)

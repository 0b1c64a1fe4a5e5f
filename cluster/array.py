"""Job arrays with one node per element, for passes over a corpus and for evaluations."""

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
from data_prep.stages.plan import read_plan
from data_prep.stages.record import missing_tasks
from data_prep.stages.runner import Say
from data_prep.task import FILE_NAME, Array, QueuedError, deal_tasks, read_array

POLL_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class ArrayWork:
    """Command of the array's elements: ``module`` with ``words`` and the element's number.

    The script is written next to the folder ``logs``. The recipe and ``kind`` name the job.
    """

    kind: str
    module: str
    words: tuple[str, ...]
    logs: Path
    elements: int


def array_settings(
    recipe: Recipe, user: User, work: ArrayWork, *, repository: Path
) -> dict[str, object]:
    """Compute the settings of the array's script. Each element gets a whole node."""
    slot = queue_of(recipe, user)
    site, cluster = script.site_of(recipe), recipe.cluster
    check_container(cluster, site, user)
    for error in script.missing_of(recipe, user, slot.name):
        raise error
    cores = site.binding.cores_per_rank
    venv, python = script.python_of(site, user, repository)
    words = (script.check_plain(word, work.kind) for word in work.words)
    return {
        "name": script.job_name(recipe, work.kind),
        "cluster": cluster,
        "site": site,
        "user": user,
        "queue": slot.name,
        "variables": script.export_variables(site, user),
        "directives": (*site.directives, *(slot.queue.options if slot.queue else ())),
        "account": f"{user.account}{site.account_suffix}" if user.account else None,
        "cores": None if cores is None else cores * cluster.devices_per_node,
        "walltime": script.format_walltime(round(slot.hours * script.HOUR)),
        "indices": indices_of(work.elements),
        "venv": venv,
        "repository": script.check_plain(str(repository), "repository"),
        "command": " ".join((python, "-m", work.module, *words)),
        "logs": script.output_folder(work.logs, work.kind, cluster.scheduler),
        "container_text": container_text(site, user, str(repository)),
        "container_path": container_path(work.logs),
    }


def submit_array(recipe: Recipe, user: User, work: ArrayWork, *, repository: Path) -> str:
    """Write the script ``array.sh`` next to the log folder, submit it and return the job id.

    Raises:
        RecipeError: bad settings, or no scheduler accepts the script. The cause is a
            `NoAnswerError` if the scheduler does not answer: it may have accepted the array.
    """
    scheduler = scheduler_for(recipe.cluster)
    check_present(scheduler, None)
    settings = array_settings(recipe, user, work, repository=repository)
    file = work.logs.parent / "array.sh"
    file.write_text(
        script.fill_template(f"{recipe.cluster.scheduler}_array.sh.j2", settings), "utf-8"
    )
    work.logs.mkdir(exist_ok=True)
    try:
        return scheduler.submit_script(file, after=None)
    except SchedulerError as error:
        remedy = f"change the requests of the script {file} with site.* and cluster.*"
        raise RecipeError("cluster.scheduler", str(error), remedy) from error


def most_elements(recipe: Recipe, user: User) -> int | None:
    """Return the queue's submission limit, or None if unknown. Each element counts as a job."""
    queue = queue_of(recipe, user).queue
    return queue.max_submitted_jobs if queue else None


def states_of(scheduler: Scheduler, job: str, logs: Path) -> list[str]:
    """Return the state, ``pending`` or ``running``, of each element still in the queue."""
    try:
        return [state.state for state in scheduler.list_jobs(job, logs)]
    except SchedulerError as error:
        remedy = "repeat the command later to continue"
        raise RecipeError("cluster.scheduler", str(error), remedy) from None


def indices_of(elements: int) -> str:
    """Return the index range of an array. Indices start at 0.

    PBS refuses ``0-0``: the first index must be below the last (OpenPBS,
    src/lib/Libcmds/chk_Jrange.c). Both schedulers accept the equivalent ``0-1:2``.
    """
    return f"0-{elements - 1}" if elements > 1 else "0-1:2"


def queue_of(recipe: Recipe, user: User) -> script.Slot:
    """Choose the queue of an array's elements. Each element has one node."""
    script.site_of(recipe)
    one_node = recipe.cluster.model_copy(update={"nodes": 1, "smoke": False})
    return script.choose_queue(one_node, wanted=user.queue, needed_hours=None)


@dataclass(frozen=True, kw_only=True)
class OnQueue:
    """The tasks of a pass as a job array. Tasks already queued are not submitted again."""

    recipe: Recipe
    preparation: Preparation
    user: User
    repository: Path

    def run_tasks(self, folder: Path, tasks: Sequence[int], say: Say) -> None:
        """Submit the tasks unless they are queued, and return when none is queued any more.

        If ``wait`` is false in the recipe, raise QueuedError instead of waiting.
        """
        scheduler = scheduler_for(self.recipe.cluster)
        check_present(scheduler, None)
        array = read_array(folder)
        job = "" if array is None else array.job or ""  # unknown if sbatch or qsub timed out
        if job:
            check_id(scheduler, job, folder / FILE_NAME)
        if array is not None and states_of(scheduler, job, folder / "jobs"):
            say(f"{folder.name}: {job or 'an array'} is already queued")
        else:
            job = self._submit(folder, tasks)
            say(f"{folder.name}: submitted {job}; repeat the command to continue if it stops")
        if not self.preparation.wait:
            remedy = "repeat the command after the job has ended"
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
        array.save_array(folder)
        job = submit_array(self.recipe, self.user, work, repository=self.repository)
        replace(array, job=job).save_array(folder)
        return job


def _wait(scheduler: Scheduler, job: str, folder: Path, tasks: Sequence[int], say: Say) -> None:
    """Report the number of finished tasks when it changes, until the queue is empty."""
    key, reported = read_plan(folder).plan_key, -1
    while True:
        states = states_of(scheduler, job, folder / "jobs")
        done = len(tasks) - len(missing_tasks(folder, tasks, key))
        if done != reported:
            running = states.count("running")
            queue = f"{job}: {running} jobs running, {len(states) - running} waiting"
            say(f"{folder.name}: {done} of {len(tasks)} tasks; {queue}")
            reported = done
        if not states:
            return
        time.sleep(POLL_SECONDS)

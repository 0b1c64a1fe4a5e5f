"""How a submitted run is: what the scheduler says of its jobs, and what they left."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cluster.records import Jobs, saved_tokens
from cluster.scheduler import JobState, Scheduler, SchedulerError
from components.config.schema.recipe import read_recipe
from components.run.folder import existing_run_folder
from components.run.records import JobLifeRecord

# Slurm's reasons (squeue's manual, "Job reason codes"); the first are none to worry.
REASONS: Mapping[str, str] = {
    "Resources": "waits for nodes to become free",
    "Priority": "waits behind jobs of higher priority",
    "Dependency": "waits for the job before it",
    "JobArrayTaskLimit": "waits for the job before it",
    "BeginTime": "was put back into the queue and waits a little",
    "PartitionTimeLimit": "will never start: it asks for more hours than the queue allows",
    "PartitionNodeLimit": "will never start: it asks for more nodes than the queue allows",
    "PartitionDown": "waits until the site opens the queue again",
    "ReqNodeNotAvail": "waits for nodes that are down, drained or reserved",
    "JobHeldUser": "was held by its user: scontrol release",
    "JobHeldAdmin": "was held by the site: ask them",
    "AssocGrpBillingMinutes": "will not start before the account has budget again",
    "AssocGrpCPUMinutesLimit": "will not start before the account has budget again",
    "QOSMaxJobsPerUserLimit": "waits until fewer of your jobs run",
    "QOSMaxWallDurationPerJobLimit": "will never start: it asks for more hours than allowed",
    "InvalidAccount": "will never start: the account is not known here",
    "InvalidQOS": "will never start: the QoS is not known here",
    "BadConstraints": "will never start: no nodes are as it asks for",
}


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """One run at this moment; ``state`` is one word, ``why`` a sentence or nothing."""

    run: str
    recipe: str
    state: str
    why: str
    tokens: int
    total_tokens: int
    chain: str | None
    queued: tuple[JobState, ...] | None
    jobs: tuple[JobLifeRecord, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"jobs": [job.model_dump() for job in self.jobs]}


def status_of(path: Path, scheduler: Scheduler | None) -> RunStatus:
    """Return the state of the run in ``path``; without a scheduler by its folder alone.

    Raises:
        RecipeError: ``path`` is no run folder, or what it calls a job is no id of one.
    """
    folder = existing_run_folder(path)
    recipe, jobs = read_recipe(folder.recipe), Jobs(folder)
    chain = jobs.newest(scheduler)
    queued: tuple[JobState, ...] | None = None
    trouble = "the scheduler is not reached from here"
    if scheduler is not None and chain is not None:
        try:
            queued = tuple(scheduler.states(chain, jobs.path))
        except SchedulerError as error:
            trouble = str(error)
    if folder.ended == "finished":
        state, why = "finished", ""
    elif chain is None:
        state, why = "not submitted", ""
    elif queued is None:
        state, why = "unknown", trouble
    else:
        state, why = _state(queued, jobs.since_submission())
    return RunStatus(
        run=str(path),
        recipe=recipe.name,
        state=state,
        why=why,
        tokens=saved_tokens(folder),
        total_tokens=recipe.budget.total_tokens,
        chain=chain,
        queued=queued,
        jobs=tuple(jobs.all()),
    )


def _state(queued: Sequence[JobState], begun: Sequence[JobLifeRecord]) -> tuple[str, str]:
    for job in queued:
        if job.state == "running":
            return "running", f"job {job.job} on {job.nodes}"
    if queued:
        return "pending", explain(queued[0].why)
    if not begun:
        return "lost", "its jobs left the queue before any of them began: were they cancelled?"
    last = begun[-1]
    if last.ended is None:
        return "lost", f"job {last.job} ended without a word: jobs/{last.job}.log has its last"
    return last.ended, last.why


def explain(reason: str) -> str:
    """Return a scheduler's reason with what it means, if that is known."""
    code = reason.partition(",")[0].strip("() ")
    meaning = REASONS.get(code)
    return f"{code}: {meaning}" if meaning else reason

"""How a run is: why it waits, what happened last, what will happen next.

The scheduler's words and ours: what the queue says, and what the record of its chain says.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cluster.chain import ChainState, Event, JobAttempt, chain_of
from cluster.chain_events import LostEvent
from cluster.decisions import to_lift
from cluster.records import Jobs, saved_tokens
from cluster.scheduler import JobState, Scheduler, SchedulerError
from cluster.scheduler_command import cached_answers
from components.command_line import command_line
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.config.schema.start import describe_start
from components.run.folder import RunFolder, existing_run_folder
from components.run.history import read_lines
from components.run.ownership import is_own
from components.run.writer_lock import LOCK, writer_of

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
    "QOSMaxSubmitJobPerUserLimit": "waits until fewer of your jobs wait",
    "QOSMaxNodePerUserLimit": "waits until your jobs have fewer nodes",
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
    """One run at this moment; ``state`` is one word, ``why`` a sentence or nothing.

    ``last`` is what happened last, with its time; ``next`` what will, or who has to do what.
    """

    run: str
    recipe: str
    state: str
    why: str
    last: str
    next: str
    start: str  # from which checkpoint, in one line; nothing for first weights
    tokens: int
    total_tokens: int
    chain: str | None
    queued: tuple[JobState, ...] | None
    avoided: Mapping[str, str]
    changed: Mapping[int, Mapping[str, tuple[Any, Any]]]  # keys of the recipe, by step
    jobs: tuple[JobAttempt, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def status_of(path: Path, scheduler: Scheduler | None) -> RunStatus:
    """Return the state of the run in ``path``; without a scheduler by its folder alone.

    Raises:
        RecipeError: ``path`` is no run folder, or what it calls a job is no id of one.
    """
    folder = existing_run_folder(path)
    recipe, jobs, saved = read_recipe(folder.recipe), Jobs(folder), saved_tokens(folder)
    chain = jobs.chain()
    ids = chain.ids if scheduler is None else jobs.ids(scheduler)
    submitted = bool(ids or chain.submissions)
    queued: tuple[JobState, ...] | None = None
    trouble = "the scheduler is not reached from here"
    if scheduler is not None and submitted:
        try:
            queued = queue_of(scheduler, ids, jobs)
        except SchedulerError as error:
            trouble = str(error)
    if queued is not None and scheduler is not None:
        chain = _with_fate(chain, queued, scheduler)
    local = recipe.cluster.scheduler == "none"
    if folder.ended == "finished":
        report = command_line("action=report", f"run={path}")
        state, why, then = "finished", "", f"nothing: {report} tells its story"
    elif local:
        state, why, then = _local_state(folder)
    elif not submitted:
        state, why, then = "not submitted", "", "a person submits it"
    elif queued is None:
        state, why, then = "unknown", trouble, "try again later"
    else:
        state, why, then = _state(chain, queued, recipe, path, saved, scheduler)
    return RunStatus(
        run=str(path),
        recipe=recipe.name,
        state=state,
        why=why,
        last=_last_local(folder) if local else told(chain.last),
        next=then,
        start=_describe_start(folder, recipe),
        tokens=saved,
        total_tokens=recipe.budget.total_tokens,
        chain=next(iter([*ids, *(chain_of(job.job) for job in queued or ())]), None),
        queued=queued,
        avoided=chain.avoided,
        changed=folder.changes(),
        jobs=chain.attempts,
    )


def queue_of(scheduler: Scheduler, ids: Sequence[str], jobs: Jobs) -> tuple[JobState, ...]:
    """List what waits and runs of a run, whether or not it has recorded the ``ids``.

    Raises:
        SchedulerError: the scheduler does not answer, or the jobs are somebody else's.
    """
    with cached_answers():
        found = [scheduler.states(one, jobs.path) for one in ids or ("",)]
    return tuple(found[0])


def _with_fate(
    chain: ChainState, queued: Sequence[JobState], scheduler: Scheduler
) -> ChainState:
    """Close an attempt that is in no queue any more, as the job after it would."""
    one = chain.open
    if one is None or any(job.job == one.job and job.state == "running" for job in queued):
        return chain
    fate = scheduler.fate(one.job)
    lost = LostEvent(at="", job=one.job, attempt=one.attempt, fate=fate)
    return replace(chain.after(lost), last=chain.last)


def _local_state(folder: RunFolder) -> tuple[str, str, str]:
    """Tell how a run without a scheduler is, by its writer's lock and its event log."""
    try:
        writer = writer_of(folder.path)
    except OSError as error:  # somebody else's run
        why = f"whether it runs: {LOCK} cannot be opened: {error.strerror}"
        return "unknown", why, "ask whose run it is"
    if writer is not None:
        stop = shlex.join(["touch", str(folder.stop)])
        return "running", str(writer), f"it trains on; it saves and stops: {stop}"
    go_on = f"go on: {command_line(f'resume={folder.path}')}"
    if folder.ended == "stopped":
        return "stopped", "", go_on
    begun = any(event["kind"] in {"start", "resume"} for event in read_lines(folder.journal))
    when = "without a word" if begun else "before its first step"
    return "killed", f"it ended {when}", go_on


def _describe_start(folder: RunFolder, recipe: Recipe) -> str:
    went_back = [one["tokens"] for one in read_lines(folder.journal) if one["kind"] == "rewind"]
    return describe_start(recipe.start, went_back[-1] if went_back else None)


def _last_local(folder: RunFolder) -> str:
    events = read_lines(folder.journal)
    if not events:
        return "nothing"
    event = events[-1]
    return f"{event['kind']} at step {event['step']:,}: {event['cause']}"


def _state(
    chain: ChainState,
    queued: Sequence[JobState],
    recipe: Recipe,
    path: Path,
    saved: int,
    scheduler: Scheduler | None,
) -> tuple[str, str, str]:
    for job in queued:
        if job.state == "running":
            return (
                "running",
                f"job {job.job} on {job.nodes}",
                _after_running(chain, queued, path),
            )
    if queued:
        begins = f"job {queued[0].job} goes on from {saved:,} tokens"
        blocked = _blocked(chain, queued[0], recipe, path, scheduler)
        return "pending", explain(queued[0].why), f"{blocked}{begins} when it begins"
    return without_jobs(chain, path)


def without_jobs(chain: ChainState, path: Path) -> tuple[str, str, str]:
    """Tell state, reason and way on of a chain of which nothing waits or runs."""
    again = f"nothing by itself; submit it once more: {_again(chain, path)}"
    if chain.cancelled:
        ended = chain.current[-1].ended if chain.current else None
        return (ended if ended == "stopped" else "cancelled"), "its user cancelled it", again
    if not chain.ids:
        why = "the scheduler did not answer when it was submitted, and has no job of it now"
        return "not submitted", why, again
    if not chain.current:
        why = "its jobs left the queue before any of them began: were they cancelled?"
        return "lost", chain.over or why, again
    last = chain.current[-1]
    if last.ended == "lost":
        why = f"job {last.job} {last.why}: jobs/{last.job}.log has its last"
        return "lost", f"{chain.over}; {why}" if chain.over else why, again
    if not chain.over and chain.unqueued:
        return str(last.ended), f"no job was queued after it: {chain.unqueued}", again
    if not chain.over and chain.jobs_left == 0:
        jobs = chain.submissions[-1][1]
        used = f"its chain has used its {jobs} jobs"
        return str(last.ended), f"{last.why}; {used}" if last.why else used, again
    return str(last.ended), chain.over or last.why, again


def _after_running(chain: ChainState, queued: Sequence[JobState], path: Path) -> str:
    waiting = [job.job for job in queued if job.state == "pending"]
    if chain.cancelled:
        return "it saves after the step it is in, then ends"
    if waiting:
        return f"it saves before its wall; then job {waiting[0]} goes on"
    why = f" ({chain.unqueued})" if chain.unqueued else ""
    then = _again(chain, path)
    return f"it saves before its wall, and no job waits behind it{why}: then {then}"


def _blocked(
    chain: ChainState, job: JobState, recipe: Recipe, path: Path, scheduler: Scheduler | None
) -> str:
    """Tell which nodes a job that waits is kept off, and whether it waits for that alone."""
    if not chain.avoided:
        return ""
    until = min(chain.avoided.values())[:16].replace("T", " ")
    names = ", ".join(chain.avoided)
    way = command_line("action=status", f"run={path}", "exclude=none")
    needed = recipe.cluster.nodes + recipe.cluster.spare_nodes
    try:
        able = scheduler.able(job.job) if scheduler is not None else None
    except SchedulerError:
        able = None
    if able is not None and to_lift(chain.avoided, able, needed):
        left = len(able - set(chain.avoided))
        return (
            f"it cannot begin: {left} nodes are up that it does not avoid, of {needed}; "
            f"it avoids {names}; to let it use them: {way}; "
        )
    return f"it avoids {names}, the first until {until} UTC; to let it use them: {way}; "


def _again(chain: ChainState, path: Path) -> str:
    """Return the command that continues a run whose chain has ended."""
    if not is_own(RunFolder(path).recipe):
        return f"the command that submitted it, {shlex.quote(f'run={path}')} again=true"
    site = [word for word in chain.words if word.startswith("site.")]
    unknown = [] if chain.ids else ["again=true"]
    return command_line(f"resume={path}", *site, *unknown)


def told(event: Event | None) -> str:
    """Put an event in words, after its time."""
    if event is None:
        return "nothing"
    return f"{event.at[:16].replace('T', ' ')} UTC: {event.text}"


def explain(reason: str) -> str:
    """Return a scheduler's reason with what it means, if that is known."""
    code = reason.partition(",")[0].strip("() ")
    return f"{code}: {REASONS[code]}" if code in REASONS else reason

"""Status of a run: its state, why it waits, what happened last, what happens next.

The status combines the scheduler's queue and the record of the run's chain.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cluster.chain import ChainEvent, ChainState, JobAttempt, LostEvent, chain_of, event_text
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


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """Current status of one run. ``state`` is one word, ``why`` a sentence or empty.

    ``last`` is the last event with its time. ``next`` is the next event or required action.
    """

    run: str
    recipe: str
    state: str
    why: str
    last: str
    next: str
    start: str  # its first checkpoint, in one line; empty for initial weights
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
    """Return the status of the run in ``path``; without a scheduler, from its folder alone."""
    folder = existing_run_folder(path)
    recipe, jobs, saved = read_recipe(folder.recipe), Jobs(folder), saved_tokens(folder)
    chain = jobs.load_chain()
    ids = chain.job_ids if scheduler is None else jobs.list_job_ids(scheduler)
    submitted = bool(ids or chain.submissions)
    queued: tuple[JobState, ...] | None = None
    problem = "the scheduler is not reachable from here"
    if scheduler is not None and submitted:
        try:
            queued = queue_of(scheduler, ids, jobs)
        except SchedulerError as error:
            problem = str(error)
    if queued is not None and scheduler is not None:
        chain = _with_fate(chain, queued, scheduler)
    local = recipe.cluster.scheduler == "none"
    if folder.end_status == "finished":
        report = command_line("action=report", f"run={path}")
        state, why, next_step = "finished", "", f"write the report: {report}"
    elif local:
        state, why, next_step = _local_state(folder)
    elif not submitted:
        state, why, next_step = "not submitted", "", "submit the job script"
    elif queued is None:
        state, why, next_step = "unknown", problem, "try again later"
    else:
        state, why, next_step = _state(chain, queued, path, saved)
    return RunStatus(
        run=str(path),
        recipe=recipe.name,
        state=state,
        why=why,
        last=_last_local(folder) if local else describe_event(chain.last),
        next=next_step,
        start=_describe_start(folder, recipe),
        tokens=saved,
        total_tokens=recipe.budget.total_tokens,
        chain=next(iter([*ids, *(chain_of(job.job) for job in queued or ())]), None),
        queued=queued,
        avoided=chain.avoided,
        changed=folder.read_changes(),
        jobs=chain.attempts,
    )


def queue_of(scheduler: Scheduler, ids: Sequence[str], jobs: Jobs) -> tuple[JobState, ...]:
    """Return the run's waiting and running jobs, including jobs that are not in ``ids``.

    Raises:
        SchedulerError: the scheduler does not answer, or the jobs of ``ids`` are not the run's.
    """
    with cached_answers():
        states = [scheduler.list_jobs(job, jobs.path) for job in ids or ("",)]
    return tuple(states[0])


def _with_fate(
    chain: ChainState, queued: Sequence[JobState], scheduler: Scheduler
) -> ChainState:
    """Close the open attempt if its job no longer runs, as the next job would do."""
    attempt = chain.open_attempt
    if attempt is None or any(
        job.job == attempt.job and job.state == "running" for job in queued
    ):
        return chain
    fate = scheduler.find_exit_reason(attempt.job)
    lost = LostEvent(at="", job=attempt.job, attempt=attempt.attempt, fate=fate)
    return replace(chain.apply_events(lost), last=chain.last)


def _local_state(folder: RunFolder) -> tuple[str, str, str]:
    """Return state, reason and next step of a local run, from its writer lock and event log."""
    try:
        writer = writer_of(folder.path)
    except OSError as error:  # another user's run
        why = f"cannot check if the run is active: cannot open {LOCK}: {error.strerror}"
        return "unknown", why, "ask the owner of the run"
    if writer is not None:
        stop = shlex.join(["touch", str(folder.stop)])
        return "running", str(writer), f"continues training; to save and stop: {stop}"
    go_on = f"continue: {command_line(f'resume={folder.path}')}"
    if folder.end_status == "stopped":
        return "stopped", "", go_on
    has_started = any(
        event["kind"] in {"start", "resume"} for event in read_lines(folder.events)
    )
    when = "without a message" if has_started else "before its first step"
    return "killed", f"the run ended {when}", go_on


def _describe_start(folder: RunFolder, recipe: Recipe) -> str:
    rewinds = [
        event["tokens"] for event in read_lines(folder.events) if event["kind"] == "rewind"
    ]
    return describe_start(recipe.start, rewinds[-1] if rewinds else None)


def _last_local(folder: RunFolder) -> str:
    events = read_lines(folder.events)
    if not events:
        return "nothing"
    event = events[-1]
    return f"{event['kind']} at step {event['step']:,}: {event['cause']}"


def _state(
    chain: ChainState, queued: Sequence[JobState], path: Path, saved: int
) -> tuple[str, str, str]:
    for job in queued:
        if job.state == "running":
            next_step = _after_running(chain, queued, path)
            return "running", f"job {job.job} on {job.nodes}", next_step
    if queued:
        begins = f"job {queued[0].job} continues from {saved:,} tokens"
        return "pending", queued[0].why, f"{_avoided(chain, path)}{begins} when it starts"
    return without_jobs(chain, path)


def without_jobs(chain: ChainState, path: Path) -> tuple[str, str, str]:
    """Return state, reason and next step of a chain without waiting or running jobs."""
    again = f"no automatic step; submit again: {_again(chain, path)}"
    if chain.cancelled:
        ended = chain.current_attempts[-1].ended if chain.current_attempts else None
        return (ended if ended == "stopped" else "cancelled"), "the user cancelled it", again
    if not chain.job_ids:
        why = "the scheduler did not answer at submission, and has no job of the run"
        return "not submitted", why, again
    if not chain.current_attempts:
        why = "all jobs left the queue before they started, perhaps cancelled"
        return "lost", chain.over or why, again
    last = chain.current_attempts[-1]
    if last.ended == "lost":
        why = f"job {last.job} {last.why}: see jobs/{last.job}.log"
        return "lost", f"{chain.over}; {why}" if chain.over else why, again
    if not chain.over and chain.unqueued:
        return str(last.ended), f"could not queue the next job: {chain.unqueued}", again
    if not chain.over and chain.jobs_left == 0:
        jobs = chain.submissions[-1][1]
        used = f"the chain has used all {jobs} jobs"
        return str(last.ended), f"{last.why}; {used}" if last.why else used, again
    return str(last.ended), chain.over or last.why, again


def _after_running(chain: ChainState, queued: Sequence[JobState], path: Path) -> str:
    waiting = [job.job for job in queued if job.state == "pending"]
    if chain.cancelled:
        return "saves a checkpoint after the current step, then ends"
    if waiting:
        return f"saves before its time limit; then job {waiting[0]} continues"
    why = f" ({chain.unqueued})" if chain.unqueued else ""
    command = _again(chain, path)
    return f"saves before its time limit; no next job is queued{why}: then {command}"


def _avoided(chain: ChainState, path: Path) -> str:
    """Describe the nodes that waiting jobs avoid, with the command that readmits them."""
    if not chain.avoided:
        return ""
    until = min(chain.avoided.values())[:16].replace("T", " ")
    names = ", ".join(chain.avoided)
    readmit = command_line("action=status", f"run={path}", "exclude=none")
    return f"avoids {names}, the first until {until} UTC; to readmit them: {readmit}; "


def _again(chain: ChainState, path: Path) -> str:
    """Return the command that continues a run after its chain has ended."""
    if not is_own(RunFolder(path).recipe):
        return f"the original command with {shlex.quote(f'run={path}')} again=true"
    site = [word for word in chain.words if word.startswith("site.")]
    unknown = [] if chain.job_ids else ["again=true"]
    return command_line(f"resume={path}", *site, *unknown)


def describe_event(event: ChainEvent | None) -> str:
    """Return the text of an event, preceded by its time."""
    if event is None:
        return "nothing"
    return f"{event.at[:16].replace('T', ' ')} UTC: {event_text(event)}"

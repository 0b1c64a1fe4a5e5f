"""Decisions about a chain of jobs, as pure functions of its state (`cluster.chain`).

They decide whether a job may start, why a chain is over, and which nodes its jobs avoid.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from cluster.chain import (
    FATES,
    BeganEvent,
    ChainEvent,
    ChainState,
    Fate,
    JobAttempt,
    LostEvent,
    OverEvent,
)
from cluster.scheduler import JobPlace, short_name

MOST_FAILED = 2  # jobs in a row that ended through their own fault and saved nothing new
MOST_LOST = 5  # attempts in a row that saved nothing, for any reason
# Time to start the ranks, load and take a first step. A relaunch needs at least this much.
LAUNCH_SECONDS = 300.0
MOST_AVOIDED_FRACTION = 0.25  # of a job's nodes; above it, the nodes are not the cause
AVOIDED_HOURS = 24.0  # by then the site has checked a bad node, or the node was not the cause


def open_job(
    chain: ChainState,
    place: JobPlace,
    *,
    saved: int,
    finished: bool,
    at: str,
    fate_of: Callable[[JobAttempt], Fate],
) -> tuple[list[ChainEvent], str]:
    """Return the events to record when a job begins, and why it has nothing to do, or "".

    An earlier attempt without a recorded end is closed first. ``saved`` is the token count of
    the newest checkpoint. ``fate_of`` asks the scheduler.
    """
    events: list[ChainEvent] = []
    if (before := chain.open_attempt) is not None:
        again = before.job == place.job
        fate: Fate = "put back" if again else fate_of(before)
        events.append(LostEvent(at=at, job=before.job, attempt=before.attempt, fate=fate))
    closed = chain.apply_events(*events)
    why = why_over(closed, saved=saved, finished=finished)
    if why:
        is_recorded = finished or chain.cancelled or chain.over
        events += [] if is_recorded else [OverEvent(at=at, why=why)]
        return events, why
    # Not every scheduler reports that a job runs again.
    later = [earlier.attempt + 1 for earlier in chain.attempts if earlier.job == place.job]
    attempt = max([place.attempt, *later])
    began = BeganEvent(at=at, job=place.job, attempt=attempt, nodes=place.nodes, tokens=saved)
    return [*events, began], ""


def queues_next(chain: ChainState) -> bool:
    """Whether the current job queues another. Jobs submitted by hand have no limit."""
    return chain.jobs_left is None or chain.jobs_left > 0


def why_over(chain: ChainState, *, saved: int, finished: bool) -> str:
    """Return why the chain is over, or an empty string if another job has work to do.

    ``saved`` is the token count of the newest checkpoint. Attempts that were requeued or lost a
    node do not count toward ``MOST_FAILED``, only toward the higher ``MOST_LOST``.
    """
    if finished:
        return "the run has finished"
    if chain.cancelled:
        return "the run was cancelled"
    if chain.over:
        return chain.over
    idle: list[JobAttempt] = []
    for attempt in reversed(chain.current_attempts):
        if attempt.tokens_at_begin != saved:
            break
        idle.append(attempt)
    # All launches of a job count once: the recipe limits the number of launches.
    by_job = {attempt.job: attempt for attempt in reversed(idle) if attempt.failed_by_itself}
    failed = list(by_job.values())[::-1]
    if len(failed) >= MOST_FAILED:
        return f"{MOST_FAILED} jobs in a row saved nothing: {_ends(failed[:MOST_FAILED])}"
    if len(idle) >= MOST_LOST:
        return f"{MOST_LOST} attempts in a row were lost before saving: {_ends(idle)}"
    return ""


def good_nodes(chain: ChainState, job: str | None = None) -> tuple[str, ...]:
    """Return the nodes of a job's newest attempt that the job has not found bad."""
    newest = chain.newest_of(job)
    of_job = [attempt for attempt in chain.current_attempts if attempt.job == newest.job]
    bad = {short_name(node) for attempt in of_job for node in attempt.bad_nodes}
    return tuple(node for node in newest.nodes if short_name(node) not in bad)


def why_not_relaunched(
    chain: ChainState,
    *,
    job: str | None = None,
    restarts: int,
    needed: int,
    saved: int,
    stopping: bool,
    seconds_left: float,
) -> str:
    """Return why a job does not relaunch its failed ranks; empty if it relaunches them.

    ``needed`` is the required number of good nodes. ``saved`` is the token count of the newest
    checkpoint. ``stopping`` is true if the user or the walltime limit requests a stop.
    ``seconds_left`` is the time left to train. Requeued attempts do not count as launches.
    """
    if why := why_over(chain, saved=saved, finished=False):
        return why
    job = chain.newest_of(job).job
    failed = sum(
        attempt.job == job and attempt.ended == "failed" for attempt in chain.current_attempts
    )
    if failed > restarts:
        return f"ranks were launched {failed} times (watchdog.restarts={restarts})"
    if stopping:
        return "a stop was requested"
    if seconds_left < LAUNCH_SECONDS:
        return f"the time limit is near: {max(0, round(seconds_left))} s left to train"
    if (good := len(good_nodes(chain, job))) < needed:
        return f"{good} nodes are good, {needed} are needed"
    return ""


def _ends(attempts: Sequence[JobAttempt]) -> str:
    """List each reason once, with the newest job that ended for it."""
    reasons = {
        attempt.why or attempt.ended or FATES["gone"]: attempt.job
        for attempt in reversed(attempts)
    }
    return "; ".join(f"{job}: {why}" for why, job in reasons.items())


def why_no_node(chain: ChainState, step: int, nodes: Sequence[str]) -> str:
    """Return why non-finite values at ``step`` are not a node's fault; empty if unknown.

    They recurred since the last submission, and no node was named both times. Only the step's
    data and the recipe are the same.
    """
    before = [attempt for attempt in chain.current_attempts if attempt.bad_step == step]
    if not before or any(set(nodes) & set(attempt.bad_nodes) for attempt in before):
        return ""
    first, now = (
        ", ".join(names) or "an unknown node" for names in (before[-1].bad_nodes, nodes)
    )
    return (
        f"step {step} was not finite on {first} and then on {now}, so its data or the recipe "
        "is the cause: submit again with guard.non_finite.action=skip, or start a new run with "
        "a lower optimizer.lr"
    )


def avoided_until(at: str) -> str:
    """Return when the exclusion of a node expires that is excluded ``at`` this time."""
    return (datetime.fromisoformat(at) + timedelta(hours=AVOIDED_HOURS)).isoformat(
        timespec="microseconds"
    )


def find_expired_nodes(chain: ChainState, at: str) -> tuple[str, ...]:
    """Return the nodes with an expired exclusion."""
    return tuple(node for node, until in chain.avoided.items() if until <= at)


def too_many(chain: ChainState, suspects: Iterable[str], job_nodes: int) -> bool:
    """Whether too many nodes are suspected for the nodes to be the cause."""
    suspected = {*chain.avoided, *suspects}
    return len(suspected) > max(1, int(MOST_AVOIDED_FRACTION * job_nodes))


def to_lift(avoided: Iterable[str], able: Iterable[str], needed: int) -> tuple[str, ...]:
    """Return the avoided nodes to readmit so that a job can start, oldest exclusion first.

    ``avoided`` is in the order of exclusion; ``able`` includes avoided nodes that are not down.
    """
    usable, remaining = set(able), list(avoided)
    lifted: list[str] = []
    while remaining and len(usable - set(remaining)) < needed:
        lifted.append(remaining.pop(0))
    return tuple(node for node in lifted if node in usable)  # nodes that are down do not help

"""What may happen next in a chain: pure decisions over its state (`cluster.chain`).

May this job begin, or is the chain over, and why? Which nodes are avoided, and which no more?
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cluster.chain import FATES, ChainState, Fate, JobAttempt
from cluster.chain_events import BeganEvent, ChainEvent, LostEvent, OverEvent
from cluster.scheduler import JobPlace

MOST_FAILED = 2  # jobs in a row that ended by themselves and saved nothing new
MOST_LOST = 5  # attempts in a row that saved nothing, whatever ended them
# Ranks start, load and take a first step, of which something is to be left before the wall.
LAUNCH_SECONDS = 300.0
MOST_AVOIDED_FRACTION = 0.25  # of a job's nodes: beyond, it is not the nodes
AVOIDED_HOURS = 24.0  # by then a site has looked at a node, or it was not the node


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What is to be told when a job begins, and why it has nothing to do if so."""

    events: tuple[ChainEvent, ...]
    over: str


def open_job(
    chain: ChainState,
    place: JobPlace,
    *,
    saved: int,
    finished: bool,
    at: str,
    fate_of: Callable[[JobAttempt], Fate],
) -> Opening:
    """Decide whether a job begins; an attempt before it that told no end is closed first.

    ``saved`` are the tokens of the newest checkpoint; ``fate_of`` asks the scheduler.
    """
    events: list[ChainEvent] = []
    if (before := chain.open) is not None:
        again = before.job == place.job
        fate: Fate = "put back" if again else fate_of(before)
        events.append(LostEvent(at=at, job=before.job, attempt=before.attempt, fate=fate))
    closed = chain.after(*events)
    why = why_over(closed, saved=saved, finished=finished)
    if why:
        told = finished or chain.cancelled or chain.over
        events += [] if told else [OverEvent(at=at, why=why)]
        return Opening(events=tuple(events), over=why)
    # Not every scheduler tells that a job is run again.
    later = [one.attempt + 1 for one in chain.attempts if one.job == place.job]
    attempt = max([place.attempt, *later])
    begun = BeganEvent(at=at, job=place.job, attempt=attempt, nodes=place.nodes, tokens=saved)
    return Opening(events=(*events, begun), over="")


def queues_next(chain: ChainState) -> bool:
    """Whether the job that has begun queues another; who submits by hand sets no limit."""
    return chain.jobs_left is None or chain.jobs_left > 0


def why_over(chain: ChainState, *, saved: int, finished: bool) -> str:
    """Return why no further job has anything to do; an empty text while one has.

    ``saved`` are the tokens of the newest checkpoint. An attempt that was put back or lost its
    node is no job that saved nothing: of those there may be more, not endlessly many.
    """
    if finished:
        return "the run has finished: nothing is left to do"
    if chain.cancelled:
        return "the run was cancelled: no further job begins"
    if chain.over:
        return chain.over
    idle: list[JobAttempt] = []
    for one in reversed(chain.current):
        if one.tokens_at_begin != saved:
            break
        idle.append(one)
    # Launches of one job are one job: how often it may launch is the recipe's affair.
    by_job = {one.job: one for one in reversed(idle) if one.failed_by_itself}
    failed = list(by_job.values())[::-1]
    if len(failed) >= MOST_FAILED:
        return f"{MOST_FAILED} jobs in a row saved nothing new: {_ends(failed[:MOST_FAILED])}"
    if len(idle) >= MOST_LOST:
        return f"{MOST_LOST} attempts in a row were lost before they saved: {_ends(idle)}"
    return ""


def good_nodes(chain: ChainState, job: str | None = None) -> tuple[str, ...]:
    """Name the nodes of a job's newest attempt, but for those that the job has found bad."""
    newest = chain.newest_of(job)
    of_job = [one for one in chain.current if one.job == newest.job]
    bad = {_short(node) for one in of_job for node in one.bad_nodes}
    return tuple(node for node in newest.nodes if _short(node) not in bad)


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
    """Return why a job whose ranks failed launches them no more; empty if it does, at once.

    ``needed`` nodes are to be good, ``saved`` are the tokens of the newest checkpoint,
    ``stopping`` says that a person or the wall has asked the run to end, and ``seconds_left``
    when the wall will. A requeue is no launch that counts.
    """
    if why := why_over(chain, saved=saved, finished=False):
        return why
    job = chain.newest_of(job).job
    failed = sum(one.job == job and one.ended == "failed" for one in chain.current)
    if failed > restarts:
        return f"it has launched its ranks {failed} times (watchdog.restarts={restarts})"
    if stopping:
        return "it was asked to stop"
    if seconds_left < LAUNCH_SECONDS:
        return f"its wall is near: {max(0, round(seconds_left))} s are left to train"
    if (good := len(good_nodes(chain, job))) < needed:
        return f"{good} of its nodes are good, {needed} are needed"
    return ""


def _short(node: str) -> str:
    """Cut a node's name: preflight has the short one, PBS lists the full one."""
    return node.partition(".")[0]


def _ends(attempts: Sequence[JobAttempt]) -> str:
    """Name each reason once, with the job that had it last."""
    reasons = {one.why or one.ended or FATES["gone"]: one.job for one in reversed(attempts)}
    return "; ".join(f"{job}: {why}" for why, job in reasons.items())


def why_no_node(chain: ChainState, step: int, nodes: Sequence[str]) -> str:
    """Say why figures of a ``step`` that are not finite are no node's fault, if that is known.

    They were not finite before, in another attempt since the hand-over, and no node was named
    both times: what is the same is what the step reads, and the recipe.
    """
    before = [one for one in chain.current if one.bad_step == step]
    if not before or any(set(nodes) & set(one.bad_nodes) for one in before):
        return ""
    first, now = (
        ", ".join(names) or "no node in particular" for names in (before[-1].bad_nodes, nodes)
    )
    return (
        f"step {step} was not finite on {first} and then on {now}, so it is the step's data "
        "or the recipe: submit again with guard.non_finite.action=skip; a lower optimizer.lr "
        "needs a new run"
    )


def avoided_until(at: str) -> str:
    """Return when a node that is excluded ``at`` this moment may be used again."""
    return (datetime.fromisoformat(at) + timedelta(hours=AVOIDED_HOURS)).isoformat(
        timespec="microseconds"
    )


def expired(chain: ChainState, at: str) -> tuple[str, ...]:
    """Name the nodes whose time of being avoided is over."""
    return tuple(node for node, until in chain.avoided.items() if until <= at)


def too_many(chain: ChainState, suspects: Iterable[str], job_nodes: int) -> bool:
    """Whether so many nodes are suspected that it is none of them."""
    known = {*chain.avoided, *suspects}
    return len(known) > max(1, int(MOST_AVOIDED_FRACTION * job_nodes))


def to_lift(avoided: Iterable[str], able: Iterable[str], needed: int) -> tuple[str, ...]:
    """Name the nodes, avoided for longest first, without which a job would never start.

    ``avoided`` is in the order of exclusion; ``able`` are the nodes that the scheduler would
    give a job, avoided ones too.
    """
    up, kept = set(able), list(avoided)
    lifted: list[str] = []
    while kept and len(up - set(kept)) < needed:
        lifted.append(kept.pop(0))
    return tuple(one for one in lifted if one in up)  # those that are down would not help

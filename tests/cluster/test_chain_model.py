"""Every order of events of a chain: each state continues, or ends with a reason.

A small model of a scheduler (Slurm's array, or PBS jobs that queue each other) runs against
`cluster.decisions`, through all its states. In each state a job runs or waits, the budget is
used, or the status has a reason and a remedy.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from cluster.chain import (
    BeganEvent,
    CancelledEvent,
    ChainState,
    EndedEvent,
    Fate,
    JobAttempt,
    LostEvent,
    OverEvent,
    QueuedEvent,
    SubmitEvent,
    SubmittedEvent,
)
from cluster.decisions import (
    MOST_FAILED,
    MOST_LOST,
    good_nodes,
    open_job,
    queues_next,
    why_no_node,
    why_not_relaunched,
)
from cluster.scheduler import JobPlace
from cluster.status import without_jobs

JOBS = 3  # of the chain
BUDGET = 2  # checkpoints, of which the last ends the run
RESTARTS = 2  # launches after the first in a job
Key = tuple[object, ...]


@dataclass(frozen=True)
class World:
    """The state of the scheduler and of the run's folder. ``chain`` is read from the record."""

    chain: ChainState
    waiting: tuple[str, ...]
    running: str | None = None
    saved: int = 0
    finished: bool = False
    fate: Fate = "gone"  # what the scheduler says of the attempt that went last

    @cached_property
    def key(self) -> Key:
        """All that the decisions read: two worlds with the same key have the same future."""
        chain, idle = self.chain, list[JobAttempt]()
        for one in reversed(chain.current_attempts):
            if one.tokens_at_begin != self.saved:
                break
            idle.append(one)
        bad = frozenset((one.bad_step, one.bad_nodes) for one in chain.current_attempts)
        begun = frozenset(one.job for one in chain.current_attempts)
        launches = sum(
            one.ended == "failed" for one in chain.current_attempts if one.job == self.running
        )
        blamed = frozenset(one.job for one in idle if one.ended and one.failed_by_itself)
        told = chain.cancelled, bool(chain.over), chain.successor, bool(chain.unqueued)
        last = chain.open_attempt.job if chain.open_attempt else None
        queue = frozenset(self.waiting), self.running, self.finished, self.fate
        return begun, bad, last, launches, blamed, len(idle), told, queue, self.saved


def start(arrays: bool) -> World:
    waiting = tuple(f"7_{number}" for number in range(1, JOBS + 1)) if arrays else ("1",)
    chain = ChainState().apply_events(
        SubmitEvent(at="", jobs=JOBS), SubmittedEvent(at="", chain=waiting[0])
    )
    return World(chain, waiting)


def begin(world: World, job: str, *, arrays: bool, queues: bool = True) -> World:
    """Do what `cluster.begin` does in a job that the scheduler starts."""

    def fate_of(one: JobAttempt) -> Fate:
        return "put back" if one.job in world.waiting else world.fate

    waiting = tuple(one for one in world.waiting if one != job)
    place = JobPlace(job=job, attempt=0, nodes=())
    saved: dict[str, Any] = {"saved": world.saved, "finished": world.finished}
    events, over = open_job(world.chain, place, at="", fate_of=fate_of, **saved)
    chain = world.chain.apply_events(*events)
    if over:
        return replace(world, chain=chain, waiting=())
    assert world.running is None, "two jobs train at a time"
    assert chain.current_attempts[-1].tokens_at_begin == world.saved, "work is lost"
    if not arrays and queues_next(chain):
        following = str(int(job) + 1) if queues else None
        why = "" if queues else "qsub is not found"
        chain = chain.apply_events(QueuedEvent(at="", job=job, successor=following, why=why))
        waiting += () if following is None else (following,)
    return replace(world, chain=chain, waiting=waiting, running=job)


def end(world: World, how: str, *, over: str = "") -> World:
    """Do what `cluster.end` does when the ranks have ended."""
    one = world.chain.current_attempts[-1]
    ended = EndedEvent(at="", job=one.job, attempt=one.attempt, tokens=world.saved, ended=how)
    chain = world.chain.apply_events(ended, *([OverEvent(at="", why=over)] if over else []))
    waiting = () if over or how == "finished" else world.waiting
    finished = how == "finished"
    return replace(world, chain=chain, waiting=waiting, running=None, finished=finished)


def not_finite(world: World, nodes: tuple[str, ...]) -> World:
    """Let a job's ranks end before the step after the checkpoint: it is not finite on nodes."""
    one, step = world.chain.current_attempts[-1], world.saved + 1
    why = why_no_node(world.chain, step, nodes)
    known: dict[str, Any] = {"at": "", "job": one.job, "attempt": one.attempt}
    known |= {"bad_nodes": () if why else nodes, "bad_step": step}
    ended = EndedEvent(tokens=world.saved, ended="failed", **known)
    chain = world.chain.apply_events(ended, *([OverEvent(at="", why=why)] if why else []))
    return replace(world, chain=chain, waiting=() if why else world.waiting, running=None)


def relaunch(world: World) -> World | None:
    """Fail, and launch the ranks again inside the job, if `cluster.end` decides so."""
    failed = end(world, "failed")
    job, chain = world.chain.current_attempts[-1].job, failed.chain
    why = why_not_relaunched(
        chain, restarts=RESTARTS, needed=0, saved=world.saved, stopping=False, seconds_left=1e6
    )
    if why:
        return None
    again = begin(replace(failed, waiting=(*failed.waiting, job)), job, arrays=True)
    assert again.running == job, "what is decided comes about"
    assert again.chain.successor == chain.successor, "the same job waits behind it"
    return again


def gone(world: World, fate: Fate, *, again: bool) -> World:
    """Let a job go without a word; put back, it waits among the others."""
    back = (world.running,) if again and world.running is not None else ()
    return replace(world, waiting=(*world.waiting, *back), running=None, fate=fate)


def following(world: World, *, arrays: bool) -> Iterator[tuple[str, World]]:
    """List what may happen now."""
    if world.running is None:
        for job in world.waiting:  # any of them: a requeued one is overtaken
            yield f"begin {job}", begin(world, job, arrays=arrays)
            if not arrays:
                yield "begin without qsub", begin(world, job, arrays=arrays, queues=False)
    else:
        if world.saved < BUDGET - 1:
            yield "save", replace(world, saved=world.saved + 1)
        else:
            yield "finish", end(world, "finished")
        yield "stop at the wall", end(world, "stopped")
        yield "a rank is killed", end(world, "failed")
        if (again := relaunch(world)) is not None:
            yield "a rank is killed, and launched again inside the job", again
        yield "the user's mistake", end(world, "failed", over="a mistake in the recipe")
        for nodes in (("n1",), ("n2",), ()):
            yield f"not finite on {nodes}", not_finite(world, nodes)
        yield "killed at the wall", gone(world, "wall", again=False)
        yield "a node is lost", gone(world, "node", again=arrays)
        yield "requeue", gone(world, "put back", again=arrays)
    if not world.chain.cancelled and not world.finished:
        chain = world.chain.apply_events(CancelledEvent(at=""))
        yield "cancel", replace(world, waiting=(), chain=chain)


def check_way_on(world: World) -> None:
    """Check that a job runs or waits, the run has finished, or its status has a reason."""
    if world.running is None and not world.waiting and not world.finished:
        state, why, then = without_jobs(closed(world), Path("run"))
        assert state in {"stopped", "failed", "lost", "cancelled"}
        assert why, world
        assert "again=true" in then


def closed(world: World) -> ChainState:
    """Ask the scheduler what became of a job, as `status` does."""
    if (one := world.chain.open_attempt) is None:
        return world.chain
    lost = LostEvent(at="", job=one.job, attempt=one.attempt, fate=world.fate)
    return world.chain.apply_events(lost)


@pytest.mark.quick("pbs")  # of Slurm there are seven times as many orders
@pytest.mark.parametrize("arrays", [True, False], ids=["slurm", "pbs"])
def test_every_order_of_events_continues_and_ends(arrays: bool) -> None:
    first = start(arrays)
    seen, todo = {first.key: first}, [first]
    leads: dict[Key, set[Key]] = {}
    while todo:
        world = todo.pop()
        check_way_on(world)
        leads[world.key] = set()
        for what, other in following(world, arrays=arrays):
            assert other.saved >= world.saved, what
            begun = len(other.chain.current_attempts)
            assert begun <= JOBS + JOBS * MOST_LOST * BUDGET, "endless"
            leads[world.key].add(other.key)
            if other.key not in seen:
                seen[other.key] = other
                todo.append(other)
    assert len(seen) > 400
    ends = {key for key, one in seen.items() if one.running is None and not one.waiting}
    check_all_end(leads, ends)


def check_all_end(leads: dict[Key, set[Key]], ends: set[Key]) -> None:
    """From each state an end is reached, whatever happened before."""
    reaches, before = set(ends), dict[Key, set[Key]]()
    for here, others in leads.items():
        for other in others:
            before.setdefault(other, set()).add(here)
    todo = list(ends)
    while todo:
        for here in before.get(todo.pop(), ()):
            if here not in reaches:
                reaches.add(here)
                todo.append(here)
    assert reaches == leads.keys()


def test_losses_between_two_failures_do_not_reset_the_count() -> None:
    world = end(begin(start(True), "7_1", arrays=True), "failed")
    world = gone(begin(world, "7_2", arrays=True), "node", again=True)
    world = end(begin(world, "7_3", arrays=True), "failed")
    world = begin(world, "7_2", arrays=True)
    assert world.running is None
    assert world.chain.over.startswith(f"{MOST_FAILED} jobs in a row saved nothing")


def test_node_is_at_fault_unless_the_step_fails_elsewhere_too() -> None:
    """`test_end.py` has the sentence of a step that is not finite on other nodes."""
    world = not_finite(begin(start(True), "7_1", arrays=True), ("n1", "n2"))
    chain = begin(world, "7_2", arrays=True).chain
    assert why_no_node(chain, 1, ("n2",)) == ""
    assert why_no_node(chain, 2, ("n3",)) == ""
    assert "n1, n2 and then on an unknown node" in why_no_node(chain, 1, ())
    again = SubmitEvent(at="", jobs=JOBS), SubmittedEvent(at="", chain="8_1")
    assert why_no_node(chain.apply_events(*again), 1, ("n3",)) == ""


def launched(
    *failures: tuple[str, ...], nodes: tuple[str, ...] = ("a", "b", "c")
) -> ChainState:
    """A job with failed launches. Each launch found bad nodes and saved a checkpoint."""
    chain = start(True).chain
    for attempt, bad in enumerate(failures):
        at: dict[str, Any] = {"at": "", "job": "7_1", "attempt": attempt, "tokens": attempt}
        began = BeganEvent(nodes=nodes, **at)
        chain = chain.apply_events(began, EndedEvent(ended="failed", bad_nodes=bad, **at))
    return chain


def why_not(chain: ChainState, **known: Any) -> str:
    usual: dict[str, Any] = {"restarts": 2, "needed": 2, "saved": 9, "stopping": False}
    return why_not_relaunched(chain, **(usual | {"seconds_left": 1e4} | known))


def test_job_relaunches_on_its_good_nodes_or_says_why_not() -> None:
    once = launched(("b",))
    assert good_nodes(once) == ("a", "c")
    assert good_nodes(launched(("b",), nodes=("a.hsn", "b.hsn", "c.hsn"))) == ("a.hsn", "c.hsn")
    assert why_not(once) == ""
    assert why_not(once, needed=3) == "2 nodes are good, 3 are needed"
    assert why_not(once, stopping=True) == "a stop was requested"
    assert why_not(once, seconds_left=100) == "the time limit is near: 100 s left to train"
    assert why_not(once, restarts=0) == "ranks were launched 1 times (watchdog.restarts=0)"
    assert why_not(launched((), ())) == ""
    assert "ranks were launched 3 times" in why_not(launched((), (), ()))
    assert why_not(once.apply_events(CancelledEvent(at=""))).startswith("the run was cancelled")


def test_launches_of_one_job_count_once() -> None:
    world = begin(start(True), "7_1", arrays=True)
    for _ in range(RESTARTS):
        again = relaunch(world)
        assert again is not None
        world = again
    assert relaunch(world) is None
    world = begin(end(world, "failed"), "7_2", arrays=True)
    assert world.running == "7_2", "one job has failed, however often it launched"
    assert relaunch(world) is None
    world = begin(end(world, "failed"), "7_3", arrays=True)
    assert world.chain.over.startswith(f"{MOST_FAILED} jobs in a row saved nothing: 7_2: ")

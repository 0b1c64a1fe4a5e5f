"""The first act of a job: ``python -m cluster.begin RUN [chain|again]``; 3 if nothing is to do.

A job goes on from the newest checkpoint, whatever ended the one before; `cluster.decisions`
says when the chain is over. With ``chain`` the next job is queued now, while nothing can have
killed this one: PBS has no arrays whose jobs wait for one another. With ``again`` the job goes
on after a launch that failed, on its nodes that are still good (`cluster.end` has said so).

This runs on the host, also of a run whose ranks are in an image: it calls the scheduler.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from cluster.chain import JobAttempt
from cluster.chain_events import EndedEvent, QueuedEvent, ReadmittedEvent
from cluster.clients import scheduler_for
from cluster.decisions import expired, good_nodes, open_job, queues_next
from cluster.names import fold_names
from cluster.records import (
    Jobs,
    heading,
    now,
    ranks_log,
    remove_logs,
    saved_tokens,
    tell,
    tell_end,
)
from cluster.scheduler import Scheduler, SchedulerError
from components.config.check import read_recipe
from components.fault_tolerance.failures import forget_errors, read_errors, seconds_between
from components.preflight.verdict import CHOSEN, HOSTS, forget_verdict, list_hosts
from components.run.folder import RunFolder
from components.terminal import say

OVER = 3  # what `begin` returns if nothing is left to do; Python's own failures are 1 and 2


def begin(
    run: Path, seen: Mapping[str, str], *, chained: bool = False, again: bool = False
) -> int:
    """Record the job; return 0 if it has anything to do, or 3 if the chain is over."""
    folder = RunFolder(run)
    jobs = Jobs(folder)
    recipe = read_recipe(folder.recipe)
    scheduler = scheduler_for(recipe.cluster)
    chain = jobs.chain()
    place = scheduler.place(seen)
    if again:
        good = good_nodes(chain, place.job)
        place = replace(place, nodes=tuple(node for node in place.nodes if node in good))
    opening = open_job(
        chain,
        place,
        saved=saved_tokens(folder),
        finished=folder.ended == "finished",
        at=now(),
        fate_of=lambda before: scheduler.fate(before.job),
    )
    jobs.note(*opening.events)
    now_known = jobs.chain()
    if chain.open is not None:  # it could not tell so itself
        key = chain.open.job, chain.open.attempt
        tell_end(folder, next(o for o in now_known.attempts if (o.job, o.attempt) == key))
    if opening.over:
        say(f"{opening.over}; the chain ends here")
        end_chain(scheduler, jobs)
        return OVER
    if again:
        _tell_relaunch(jobs, place.nodes)
    else:
        folder.stop.unlink(missing_ok=True)  # the wall of this job may have asked for it since
        remove_logs(jobs)
    folder.results.unlink(missing_ok=True)
    forget_errors(folder.path / "ranks")
    forget_verdict(folder.path)
    list_hosts(folder, HOSTS, place.nodes)
    list_hosts(folder, CHOSEN, place.nodes[: recipe.cluster.nodes])  # preflight chooses better
    record = now_known.newest_of(place.job)
    title = heading(record)
    say(f"{title}: from {record.tokens_at_begin:,} tokens on {fold_names(record.nodes)}")
    _readmit_expired(scheduler, jobs)
    if chained and queues_next(now_known):
        _queue_next(scheduler, jobs, record)
    if (log := ranks_log(folder, record)).exists():  # of an earlier attempt
        with log.open("a", encoding="utf-8") as more:
            more.write(f"{title}\n")
    return _check_launcher(scheduler, jobs, record)


def _tell_relaunch(jobs: Jobs, nodes: tuple[str, ...]) -> None:
    """Write to the event log that the job goes on, where, and since when it stood still."""
    *_, before, record = jobs.chain().current
    errors = read_errors(jobs.folder.path / "ranks")
    since_end = datetime.now(UTC) - datetime.fromisoformat(before.ended_at or record.began_at)
    seconds = max(since_end.total_seconds(), seconds_between(errors, jobs.record))
    evidence = {
        "restart": record.attempt,
        "job": record.job,
        "nodes": nodes,
        "left_out": [node for node in before.nodes if node not in nodes],
    }
    tell(jobs.folder, "restart", before.why, evidence, seconds=seconds)


def _queue_next(scheduler: Scheduler, jobs: Jobs, record: JobAttempt) -> None:
    """Queue the job after this one; without it the run ends with this job, and that is told."""
    successor, why = None, ""
    try:
        successor = scheduler.submit(jobs.script, after=record.job)
        avoid(scheduler, jobs, list(jobs.chain().avoided), successor)
    except SchedulerError as error:
        why = str(error)
        say(f"no job is queued after this one: {why}")
    jobs.note(QueuedEvent(at=now(), job=record.job, successor=successor, why=why))


def avoid(scheduler: Scheduler, jobs: Jobs, nodes: list[str], job: str) -> bool:
    """Keep what waits of ``job``'s chain off ``nodes``; False if the scheduler cannot."""
    cluster = read_recipe(jobs.folder.recipe).cluster
    if not scheduler.excludes and isinstance(cluster.preflight, str):
        return False
    needed = cluster.nodes + cluster.spare_nodes
    return scheduler.exclude(job, jobs.path, nodes, needed=needed)


def _readmit_expired(scheduler: Scheduler, jobs: Jobs) -> None:
    """Let the jobs that wait use nodes again that were avoided for long enough."""
    chain = jobs.chain()
    over = expired(chain, now())
    if not over:
        return
    try:
        for job in chain.ids:
            avoid(scheduler, jobs, [one for one in chain.avoided if one not in over], job)
    except SchedulerError as error:
        say(str(error))
        return
    jobs.note(ReadmittedEvent(at=now(), nodes=over, why="they were avoided for long enough"))
    say(f"no longer avoided: {' '.join(over)}")


def _check_launcher(scheduler: Scheduler, jobs: Jobs, record: JobAttempt) -> int:
    """End a job at once whose ranks nothing could start; the next may have a better node."""
    if shutil.which(scheduler.launcher) is not None:
        return 0
    where = record.nodes[0] if record.nodes else "this node"
    why = f"{scheduler.launcher} is not found on {where}: does a module of the site bring it?"
    jobs.note(
        EndedEvent(
            at=now(),
            job=record.job,
            attempt=record.attempt,
            tokens=record.tokens_at_begin,
            ended="failed",
            why=why,
        )
    )
    tell_end(jobs.folder, jobs.chain().newest_of(record.job))
    say(f"failed: {why}")
    return 1


def end_chain(scheduler: Scheduler, jobs: Jobs) -> None:
    """Cancel the waiting jobs; this job's own work counts, whatever the scheduler answers."""
    try:
        for job in jobs.chain().ids:
            scheduler.cancel(job, jobs.path, running=False)
    except SchedulerError as error:
        say(str(error))


if __name__ == "__main__":
    run, *words = sys.argv[1:]
    sys.exit(begin(Path(run), os.environ, chained="chain" in words, again="again" in words))

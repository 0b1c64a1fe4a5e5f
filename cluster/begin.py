"""First command of a job script: ``python -m cluster.begin RUN [chain|again]``.

The exit status is 3 if nothing is left to do. ``chain`` queues the next job at once, before
anything can kill this job: jobs of a PBS array cannot wait for one another. ``again`` restarts
the ranks after a failed launch on the nodes that are still good, when `cluster.end` requests a
relaunch. This command calls the scheduler, so it runs on the host even if the ranks run in an
image.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from cluster.chain import EndedEvent, JobAttempt, QueuedEvent, ReadmittedEvent
from cluster.clients import scheduler_for
from cluster.decisions import find_expired_nodes, good_nodes, open_job, queues_next
from cluster.records import (
    Jobs,
    format_heading,
    ranks_log,
    record_event,
    record_job_end,
    remove_logs,
    saved_tokens,
    utc_now,
)
from cluster.scheduler import Scheduler, SchedulerError
from components.config.check import read_recipe
from components.fault_tolerance.failures import forget_errors, read_errors, seconds_between
from components.preflight.verdict import CHOSEN, HOSTS, forget_verdict, list_hosts
from components.run.folder import RunFolder
from components.terminal import log_line

OVER = 3  # exit status if nothing is left to do; Python's own failures are 1 and 2


def start_job(
    run: Path, seen: Mapping[str, str], *, chained: bool = False, again: bool = False
) -> int:
    """Record the job. Return 0 to start it, 1 without a launcher, 3 if the chain is over."""
    folder = RunFolder(run)
    jobs = Jobs(folder)
    recipe = read_recipe(folder.recipe)
    scheduler = scheduler_for(recipe.cluster)
    chain = jobs.load_chain()
    place = scheduler.read_job_place(seen)
    if again:
        good = good_nodes(chain, place.job)
        place = replace(place, nodes=tuple(node for node in place.nodes if node in good))
    events, over = open_job(
        chain,
        place,
        saved=saved_tokens(folder),
        finished=folder.end_status == "finished",
        at=utc_now(),
        fate_of=lambda before: scheduler.find_exit_reason(before.job),
    )
    jobs.append_events(*events)
    updated = jobs.load_chain()
    if chain.open_attempt is not None:  # this attempt did not record its own end
        key = chain.open_attempt.job, chain.open_attempt.attempt
        record_job_end(folder, next(o for o in updated.attempts if (o.job, o.attempt) == key))
    if over:
        log_line(f"{over}; the chain ends here")
        end_chain(scheduler, jobs)
        return OVER
    if again:
        _record_relaunch(jobs, place.nodes)
    else:
        folder.stop.unlink(missing_ok=True)  # a relaunch keeps this job's own stop
        remove_logs(jobs)
    folder.results.unlink(missing_ok=True)
    forget_errors(folder.path / "ranks")
    forget_verdict(folder.path)
    list_hosts(folder, HOSTS, place.nodes)
    list_hosts(folder, CHOSEN, place.nodes[: recipe.cluster.nodes])  # until preflight chooses
    record = updated.newest_of(place.job)
    title = format_heading(record)
    nodes = ", ".join(record.nodes[:1])
    nodes += f" and {len(record.nodes) - 1} other nodes" if len(record.nodes) > 1 else ""
    log_line(f"{title}: from {record.tokens_at_begin:,} tokens on {nodes}")
    _readmit_expired(scheduler, jobs)
    if chained and queues_next(updated):
        _queue_next(scheduler, jobs, record)
    if (log := ranks_log(folder, record)).exists():  # of an earlier attempt
        with log.open("a", encoding="utf-8") as stream:
            stream.write(f"{title}\n")
    return _check_launcher(scheduler, jobs, record)


def _record_relaunch(jobs: Jobs, nodes: tuple[str, ...]) -> None:
    """Write a restart event with the job's nodes and its idle time to the event log."""
    *_, before, record = jobs.load_chain().current_attempts
    errors = read_errors(jobs.folder.path / "ranks")
    since_end = datetime.now(UTC) - datetime.fromisoformat(before.ended_at or record.began_at)
    seconds = max(since_end.total_seconds(), seconds_between(errors, jobs.record))
    evidence = {
        "restart": record.attempt,
        "job": record.job,
        "nodes": nodes,
        "left_out": [node for node in before.nodes if node not in nodes],
    }
    cause = before.why or "a phase of the run ended"
    record_event(jobs.folder, "restart", cause, evidence, seconds=seconds)


def _queue_next(scheduler: Scheduler, jobs: Jobs, record: JobAttempt) -> None:
    """Submit the next job and record its id, or the reason why it could not be submitted."""
    successor, why = None, ""
    try:
        successor = scheduler.submit_script(jobs.script, after=record.job)
        exclude_from_chain(scheduler, jobs, list(jobs.load_chain().avoided), successor)
    except SchedulerError as error:
        why = str(error)
        log_line(f"cannot queue the next job: {why}")
    jobs.append_events(QueuedEvent(at=utc_now(), job=record.job, successor=successor, why=why))


def exclude_from_chain(scheduler: Scheduler, jobs: Jobs, nodes: list[str], job: str) -> bool:
    """Exclude ``nodes`` from the waiting jobs of ``job``'s chain; False if not supported."""
    cluster = read_recipe(jobs.folder.recipe).cluster
    if not scheduler.excludes and isinstance(cluster.preflight, str):
        return False
    needed = cluster.nodes + cluster.spare_nodes
    return scheduler.exclude_nodes(job, jobs.path, nodes, needed=needed)


def readmit_nodes(scheduler: Scheduler, jobs: Jobs, nodes: tuple[str, ...], why: str) -> None:
    """Readmit nodes for waiting and later jobs; may raise SchedulerError."""
    avoided = [node for node in jobs.load_chain().avoided if node not in nodes]
    for job in jobs.list_job_ids(scheduler):
        exclude_from_chain(scheduler, jobs, avoided, job)
    jobs.append_events(ReadmittedEvent(at=utc_now(), nodes=nodes, why=why))


def _readmit_expired(scheduler: Scheduler, jobs: Jobs) -> None:
    """Readmit nodes with an expired exclusion."""
    if nodes := find_expired_nodes(jobs.load_chain(), utc_now()):
        try:
            readmit_nodes(scheduler, jobs, nodes, "the exclusion has expired")
        except SchedulerError as error:
            log_line(str(error))
        else:
            log_line(f"readmitted nodes: {' '.join(nodes)}")


def _check_launcher(scheduler: Scheduler, jobs: Jobs, record: JobAttempt) -> int:
    """Record a failure and return 1 if the launcher is missing. The next job may find it."""
    if shutil.which(scheduler.launcher) is not None:
        return 0
    where = record.nodes[0] if record.nodes else "this node"
    why = f"{scheduler.launcher} is not found on {where}; check that a site module provides it"
    jobs.append_events(
        EndedEvent(
            at=utc_now(),
            job=record.job,
            attempt=record.attempt,
            tokens=record.tokens_at_begin,
            ended="failed",
            why=why,
        )
    )
    record_job_end(jobs.folder, jobs.load_chain().newest_of(record.job))
    log_line(f"failed: {why}")
    return 1


def end_chain(scheduler: Scheduler, jobs: Jobs) -> None:
    """Cancel the waiting jobs. A scheduler error is printed and does not fail this job."""
    try:
        for job in jobs.load_chain().job_ids:
            scheduler.cancel_jobs(job, jobs.path, running=False)
    except SchedulerError as error:
        log_line(str(error))


if __name__ == "__main__":
    run, *words = sys.argv[1:]
    sys.exit(start_job(Path(run), os.environ, chained="chain" in words, again="again" in words))

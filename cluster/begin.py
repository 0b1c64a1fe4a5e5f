"""The first act of a job: ``python -m cluster.begin RUN``; 3 if nothing is left to do.

A job goes on from the newest checkpoint, whatever ended the one before. The chain is over when
the run has finished or was cancelled, when two jobs saved nothing, or when `cluster.end` finds
a mistake that another job would only repeat.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.records import Jobs, chain_of, heading, ranks_log, saved_tokens, tell_end
from cluster.scheduler import Scheduler, SchedulerError, scheduler_of
from components.config.schema.recipe import read_recipe
from components.fault_tolerance.failures import forget_errors
from components.preflight.verdict import HOSTS, forget_verdict, list_hosts
from components.run.folder import RunFolder
from components.run.records import JobLifeRecord
from components.terminal import say

OVER = 3  # what `begin` returns if nothing is left to do; Python's own failures are 1 and 2
WITHOUT_PROGRESS = 2


def begin(run: Path, seen: Mapping[str, str]) -> int:
    """Record the job; return 0 if it has anything to do, or 3 if the chain is over."""
    folder = RunFolder(run)
    jobs = Jobs(folder)
    scheduler = scheduler_of(read_recipe(folder.recipe).cluster)
    if folder.ended == "finished":
        say("the run has finished: nothing is left for this job")
        return OVER
    if jobs.cancelled.exists():
        say("the run was cancelled: this job ends")
        return OVER
    place = scheduler.place(seen)
    if stuck(jobs.since_submission(), saved_tokens(folder)):
        ends = f"the chain ends here; why they ended is in {jobs.path}"
        say(f"{WITHOUT_PROGRESS} jobs in a row saved nothing new: {ends}")
        end_chain(scheduler, place.job, jobs)
        return OVER
    folder.stop.unlink(missing_ok=True)
    folder.results.unlink(missing_ok=True)
    forget_errors(folder.path / "ranks")
    forget_verdict(folder.path)
    list_hosts(folder, HOSTS, place.nodes)
    for before in jobs.all()[-1:]:
        if before.ended is None:  # it could not tell so itself
            tell_end(folder, before)
    record = jobs.begin(place)
    title = heading(record)
    say(f"{title}: from {record.tokens_at_begin:,} tokens on {' '.join(record.nodes)}")
    _mark_last(jobs)
    if (log := ranks_log(folder, record)).exists():  # of an earlier attempt
        with log.open("a", encoding="utf-8") as again:
            again.write(f"{title}\n")
    return 0


def _mark_last(jobs: Jobs) -> None:
    """Mark the last job that the chain may have; who submits by hand sets no limit."""
    submissions = jobs.submissions()
    begun = len({record.job for record in jobs.since_submission()})
    if submissions and begun >= submissions[-1]["jobs"]:
        jobs.last.touch()
    else:
        jobs.last.unlink(missing_ok=True)


def stuck(records: Sequence[JobLifeRecord], saved: int) -> bool:
    """Return whether the last jobs all began where the run still is."""
    last = records[-WITHOUT_PROGRESS:]
    return len(last) == WITHOUT_PROGRESS and all(r.tokens_at_begin == saved for r in last)


def end_chain(scheduler: Scheduler, job: str, jobs: Jobs) -> None:
    """Cancel the waiting jobs; this job's own work counts, whatever the scheduler answers."""
    try:
        scheduler.cancel(chain_of(job), jobs.path, running=False)
    except SchedulerError as error:
        say(str(error))


if __name__ == "__main__":
    sys.exit(begin(Path(sys.argv[1]), os.environ))

"""A chain of jobs that ends by itself: what a job does before its ranks start, and after.

A job goes on from the newest checkpoint, whatever ended the one before. The chain is over when
the run has finished or was cancelled, when two jobs saved nothing, or when a mistake is found
that another job would only repeat.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from cluster.failures import Failure, find_failure, of_copies, of_verdict
from cluster.records import JobRecord, Jobs, saved_tokens, tell_end, tell_exclusion
from cluster.scheduler import Scheduler, SchedulerError
from cluster.schedulers import scheduler_of
from components.config.schema.recipe import Recipe, read_recipe
from components.fault_tolerance.failures import forget_errors
from components.preflight.node_checks import failed_copies
from components.preflight.verdict import (
    HOSTS,
    PreflightVerdict,
    forget_verdict,
    list_hosts,
    read_verdict,
)
from components.run.folder import RunFolder
from components.terminal import say

OVER = 3  # what `begin` returns if nothing is left to do; Python's own failures are 1 and 2
WITHOUT_PROGRESS = 2
MOST_EXCLUDED_FRACTION = 0.25  # of a job's nodes: beyond, it is not the nodes


def begin(run: Path, seen: Mapping[str, str]) -> int:
    """Note the job, and say whether it has anything to do: 0, or 3 if the chain is over."""
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
        say(
            f"{WITHOUT_PROGRESS} jobs in a row saved nothing new: the chain ends here; "
            f"why they ended is in {jobs.path}"
        )
        _end_chain(scheduler, place.job, jobs)
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
    if (log := _ranks_log(folder, record)).exists():  # of an earlier attempt
        with log.open("a", encoding="utf-8") as again:
            again.write(f"{title}\n")
    return 0


def _mark_last(jobs: Jobs) -> None:
    """Say whether the chain has as many jobs as it may: who submits by hand sets no limit."""
    submissions = jobs.submissions()
    begun = len({record.job for record in jobs.since_submission()})
    if submissions and begun >= submissions[-1]["jobs"]:
        jobs.last.touch()
    else:
        jobs.last.unlink(missing_ok=True)


def stuck(records: list[JobRecord], saved: int) -> bool:
    """Tell whether the last jobs all began where the run still is."""
    last = records[-WITHOUT_PROGRESS:]
    return len(last) == WITHOUT_PROGRESS and all(r.tokens_at_begin == saved for r in last)


def end(run: Path, status: int) -> int:
    """Note how the ranks ended, tidy the chain, and return the job's exit status."""
    folder = RunFolder(run)
    jobs, recipe = Jobs(folder), read_recipe(folder.recipe)
    scheduler = scheduler_of(recipe.cluster)
    record, verdict = jobs.all()[-1], read_verdict(folder)
    left_out = verdict.bad if verdict and not verdict.of_all else ()
    if (ended := folder.ended) is not None:
        tell_end(folder, jobs.end(record, ended=ended, why="", bad_nodes=left_out))
        say(f"{ended} at {saved_tokens(folder):,} tokens")
        if ended == "finished":
            _end_chain(scheduler, record.job, jobs)
        elif left_out:
            _avoid(scheduler, record, jobs)
        return 0
    failure = _failure(folder, recipe, record, verdict, status)
    suspect = (failure.node,) if failure.of_node and failure.node is not None else ()
    bad = tuple(dict.fromkeys((*left_out, *suspect)))
    record = jobs.end(record, ended="failed", why=failure.why, bad_nodes=bad)
    tell_end(folder, record)
    say(f"failed: {failure.why}")
    if failure.of_user:
        say("no other job would mend this: the chain ends here")
        _end_chain(scheduler, record.job, jobs)
    elif bad:
        _avoid(scheduler, record, jobs)
    return status or 1


def _failure(
    folder: RunFolder,
    recipe: Recipe,
    record: JobRecord,
    verdict: PreflightVerdict | None,
    status: int,
) -> Failure:
    """Ask the verdict on the nodes first: without enough good ones no rank has started."""
    if verdict is not None and not verdict.holds:
        return of_verdict(verdict)
    if verdict is None and (copies := failed_copies(folder.path)):
        return of_copies(copies, record.nodes)
    nodes = record.nodes if verdict is None else verdict.good
    # Where spare nodes take over, nobody knows from a rank's number where it was.
    takes_over = recipe.watchdog.restarts and scheduler_of(recipe.cluster).outlives_nodes
    unknown = recipe.cluster.spare_nodes and takes_over
    return find_failure(
        ranks=folder.path / "ranks",
        log=_log(Jobs(folder), record, folder),
        nodes=nodes,
        per_node=None if unknown else recipe.cluster.devices_per_node,
        status=status,
    )


def _avoid(scheduler: Scheduler, record: JobRecord, jobs: Jobs) -> None:
    """Keep the next job off all nodes that were suspected, unless these are too many."""
    records = jobs.since_submission()
    bad = tuple(dict.fromkeys(node for each in records for node in each.bad_nodes))
    if len(bad) > max(1, int(MOST_EXCLUDED_FRACTION * len(record.nodes))):
        say(
            f"{len(bad)} nodes are suspected by now, so it may be none of them: {' '.join(bad)}"
        )
    elif _done(lambda: scheduler.exclude(chain_of(record.job), jobs.path, bad)):
        say(f"the next job avoids {' '.join(bad)}")
        tell_exclusion(jobs.folder, record, bad)
    else:
        say(f"{scheduler.name} cannot avoid nodes; tell the site of {' '.join(bad)}")


def _end_chain(scheduler: Scheduler, job: str, jobs: Jobs) -> None:
    _done(lambda: scheduler.cancel(chain_of(job), jobs.path, running=False))


def _done(act: Callable[[], object]) -> bool:
    """Say whether it could be done: a job's own work counts, whatever the scheduler answers."""
    try:
        return act() is not False
    except SchedulerError as error:
        say(str(error))
        return False


def chain_of(job: str) -> str:
    """Name the chain of a job: an array's tasks are ``ID_NUMBER``."""
    return job.partition("_")[0]


def _log(jobs: Jobs, record: JobRecord, folder: RunFolder) -> str:
    """Read what the launcher said in this attempt: in the job's log, PBS's with the ranks'."""
    files = (jobs.path / f"{record.job}.log", _ranks_log(folder, record))
    texts = [file.read_text("utf-8", errors="replace") for file in files if file.exists()]
    return "\n".join(text.rpartition(heading(record))[2] for text in texts)


def _ranks_log(folder: RunFolder, record: JobRecord) -> Path:
    """Where all ranks of a PBS job write; on Slurm each has a file of its own."""
    return folder.path / "ranks" / f"{record.job.partition('.')[0]}.log"


def heading(record: JobRecord) -> str:
    """Begin what a job says of itself in its log, to which each attempt appends."""
    return f"job {record.job}, attempt {record.attempt}"

"""Last command of a job script: ``python -m cluster.end RUN STATUS [SECONDS]``.

STATUS is the launcher's exit status. The command runs on the host. It finds which rank failed
first, on which node and why: the other ranks lose it and fail too. A rank writes its error to a
file; a killed rank appears only in the launcher's output. A script that can relaunch the ranks
passes the SECONDS left to train, and relaunches on exit status 75.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.begin import end_chain, exclude_from_chain
from cluster.chain import EndedEvent, ExcludedEvent, JobAttempt, OverEvent, ReadmittedEvent
from cluster.clients import scheduler_for
from cluster.decisions import avoided_until, to_lift, too_many, why_no_node, why_not_relaunched
from cluster.launcher_log import LauncherReport, match_nodes, read_launcher_log, suspect_nodes
from cluster.records import (
    Jobs,
    format_heading,
    ranks_log,
    record_event,
    record_job_end,
    saved_tokens,
    utc_now,
)
from cluster.scheduler import Scheduler, SchedulerError, short_name
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.fault_tolerance.failures import CUT_SHORT, RankError, read_errors
from components.fault_tolerance.soft_failure import soft_failure
from components.preflight.copies import failed_copies
from components.preflight.verdict import (
    ANSWER,
    CHOSEN,
    PreflightVerdict,
    read_hosts,
    read_verdict,
)
from components.run.event_log import job_name
from components.run.folder import RunFolder
from components.run.records import Ending
from components.run.writer_lock import TRAINED
from components.terminal import log_line

# Slurm's message for a node that no longer responds. It may take minutes to appear.
_LOST = re.compile(r"^srun: error: Node failure on (?P<node>[\w.-]+)", re.MULTILINE)
# Errors caused by a device or a node, not by the program. HIP's messages are the same as
# CUDA's, except for a missing device and a GPU hang.
_HARDWARE = re.compile(
    r"ECC|uncorrectable|\bXid\b|device(?: is)? lost|DEVICE_LOST|hardware error|Bus error|"
    r"GPU has fallen off|unspecified launch failure|Input/output error|No such device|"
    r"no ROCm-capable device|\bGPU Hang\b"
)
_LONGEST = 500
RELAUNCH = 75  # EX_TEMPFAIL of sysexits.h: try again; ranks end with 4 when they hang
OptionalVerdict = PreflightVerdict | None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Cause of a job's failure. ``nodes`` is empty if unknown."""

    why: str
    nodes: tuple[str, ...] = ()
    of_node: bool = False  # the machines are suspected
    of_user: bool = False  # a mistake that a retry does not fix
    bad_step: int | None = None  # step with non-finite values


def end_job(run: Path, status: int, seconds_left: float | None = None) -> int:
    """Record how the ranks ended, update the chain, and return the job's exit status.

    The status is ``RELAUNCH`` if the script must relaunch the ranks on the job's good nodes.
    ``seconds_left`` is the time left to train, None if the script launches only once.
    """
    folder = RunFolder(run)
    jobs, recipe = Jobs(folder), read_recipe(folder.recipe)
    scheduler = scheduler_for(recipe.cluster)
    own = job_name(os.environ)
    record, verdict = jobs.load_chain().newest_of(own), read_verdict(folder)
    left_out = verdict.bad_nodes if verdict and not verdict.of_all else ()
    ended = folder.end_status
    failure = Failure(why="") if ended else _failure(jobs, recipe, record, verdict, status)
    suspect = failure.nodes if failure.of_node else ()
    bad = tuple(dict.fromkeys((*left_out, *suspect)))
    at = utc_now()
    event = EndedEvent(
        at=at,
        job=record.job,
        attempt=record.attempt,
        tokens=saved_tokens(folder),
        ended=ended or "failed",
        why=failure.why,
        bad_nodes=bad,
        failed_nodes=failure.nodes,
        bad_step=failure.bad_step,
    )
    jobs.append_events(event)
    record = jobs.load_chain().newest_of(own)
    record_job_end(folder, record)
    log_line(f"{ended} at {event.tokens:,} tokens" if ended else f"failed: {failure.why}")
    if failure.of_user:
        why = f"job {record.job} failed, and a new job would fail the same way: {failure.why}"
        jobs.append_events(OverEvent(at=at, why=why))
        log_line("a new job would fail the same way: the chain ends here")
    if failure.of_user or ended == "finished":
        end_chain(scheduler, jobs)
    elif bad:
        _avoid(scheduler, recipe, record, jobs)
    if ended and not (ended == "stopped" and _starts_next_phase(folder)):
        return 0
    if seconds_left is not None and _relaunches(jobs, recipe, seconds_left):
        return RELAUNCH
    if ended:
        return 0  # the next job starts the next phase
    return status if status not in {0, RELAUNCH} else 1


def _starts_next_phase(folder: RunFolder) -> bool:
    """Return whether the ranks stopped because a phase of the run ended."""
    return folder.read_file("results.json", Ending, finite=False).goes_on


def _relaunches(jobs: Jobs, recipe: Recipe, seconds_left: float) -> bool:
    """Decide whether the job relaunches its ranks, and print the decision."""
    chain = jobs.load_chain()
    why = why_not_relaunched(
        chain,
        job=job_name(os.environ),
        restarts=recipe.watchdog.restarts,
        needed=recipe.cluster.nodes,
        saved=saved_tokens(jobs.folder),
        stopping=jobs.folder.stop.exists(),
        seconds_left=seconds_left,
    )
    log_line(f"this job does not relaunch its ranks: {why}" if why else "relaunching the ranks")
    return not why


def _failure(
    jobs: Jobs, recipe: Recipe, record: JobAttempt, verdict: OptionalVerdict, status: int
) -> Failure:
    """Find the failure. The preflight verdict comes first: if it is bad, no rank started."""
    run = jobs.folder.path
    if verdict is not None and not verdict.has_enough_nodes:
        shared = verdict.of_all  # a check that every node fails is no node's fault
        what = f"{', '.join(shared)} on every node; " if shared else ""
        why = f"preflight: {what}{' | '.join(verdict.iter_reasons())}"[:_LONGEST]
        # If no node answered, the launcher may be the cause, and the next job may succeed.
        mistake = bool(shared) and ANSWER not in shared
        return Failure(why=why, of_node=not shared, of_user=mistake)
    if verdict is None and (copies := failed_copies(run)):
        return copies_failure(copies, record.nodes)
    # The launcher writes to the job's log, on PBS to the ranks' log. Use only this attempt.
    files = (jobs.path / f"{record.job}.log", ranks_log(jobs.folder, record))
    texts = [file.read_text("utf-8", errors="replace") for file in files if file.exists()]
    log = "\n".join(text.rpartition(format_heading(record))[2] for text in texts)
    nodes = read_hosts(jobs.folder, CHOSEN)
    if verdict is not None:  # the verdict has short names
        nodes = tuple(map(short_name, nodes))
    per_node = recipe.cluster.devices_per_node
    ranks = run / "ranks"
    failure = find_failure(ranks=ranks, log=log, nodes=nodes, per_node=per_node, status=status)
    if failure.bad_step is None:
        return failure
    if not (explanation := why_no_node(jobs.load_chain(), failure.bad_step, failure.nodes)):
        return failure
    return replace(failure, why=f"{failure.why}; {explanation}", of_node=False, of_user=True)


def find_failure(
    *, ranks: Path, log: str, nodes: Sequence[str], per_node: int, status: int
) -> Failure:
    """Find the failure in the error files below ``ranks`` and the launcher's output ``log``.

    A launch that failed on some nodes comes first: ranks on other nodes only wait for them.
    """
    report = read_launcher_log(log, nodes=nodes, per_node=per_node)
    errors = read_errors(ranks)
    error = errors[0] if errors else None
    if (lost := _LOST.search(log)) and not (error is not None and error.is_own):
        left_out = match_nodes([lost["node"]], nodes)
        return Failure(why=f"node {lost['node']} was lost", nodes=left_out, of_node=True)
    if report.not_launched:
        why = report.complaint[:_LONGEST]
        return Failure(why=why, nodes=report.not_launched, of_node=True)
    if error is not None and error.is_own:
        return _of_error(error, report, nodes, per_node)
    if any(ending.is_killed for ending in report.endings):
        return _of_killed(report, nodes)
    error = next((other for other in errors if other.message == CUT_SHORT), error)
    if error is not None:
        failure = _of_error(error, report, nodes, per_node)
        why = f"{report.complaint}; {failure.why}" if report.complaint else failure.why
        return replace(failure, why=why[:_LONGEST])
    why = report.complaint[:_LONGEST] or "no rank reported an error"
    return Failure(why=f"exit status {status}, and {why}")


def _of_error(
    error: RankError, report: LauncherReport, nodes: Sequence[str], per_node: int
) -> Failure:
    """Return the failure that a rank's error file describes."""
    text, place = error.message, error.rank // per_node
    if (soft := soft_failure(text)) is not None:
        places = {rank // per_node for rank in soft.ranks}
        named = [node for number, node in enumerate(nodes) if number in places]
        why, left_out = soft.text[:_LONGEST], suspect_nodes(named, nodes)
        return Failure(why=why, nodes=left_out, of_node=True, bad_step=soft.step)
    own = tuple(nodes[place : place + 1])
    mendable = any(
        ending.is_mendable
        for ending in report.endings
        if match_nodes([ending.node], nodes) == own
    )
    # Ranks that outlive their job may hold the folder's lock. The next job may succeed.
    mistake = text.startswith(f"{RecipeError.__name__}: ") or mendable
    return Failure(
        why=f"rank {error.rank}: {text[:_LONGEST]}",
        nodes=own,
        of_node=bool(_HARDWARE.search(text)),
        of_user=mistake and TRAINED not in text,
    )


def _of_killed(report: LauncherReport, nodes: Sequence[str]) -> Failure:
    """Return the failure of the first killed rank. Blame its node unless the run filled memory.

    All nodes do the same work, except the first node, whose rank also writes. If only one
    other node ran out of memory, something else on that node may have filled it.
    """
    killed = [ending for ending in report.endings if ending.is_killed]
    first, why = killed[0], str(killed[0])
    named = match_nodes([first.node], nodes)
    if report.is_out_of_memory:
        every = match_nodes([ending.node for ending in killed], nodes)
        why += "" if "Memory" in first.what else " (its node ran out of memory)"
        return Failure(why=why, nodes=named, of_node=len(every) == 1 and every != (*nodes[:1],))
    return Failure(why=why, nodes=named, of_node=True)


def copies_failure(failed: Mapping[str, str], nodes: Sequence[str]) -> Failure:
    """Return the failure to copy Python to nodes. If all nodes failed, none is at fault."""
    reasons = " | ".join(f"{node}: {why}" for node, why in failed.items())
    named = match_nodes(failed, nodes)
    shared = len(failed) == len(nodes) > 1
    why = f"copies: {reasons}"[:_LONGEST]
    return Failure(why=why, nodes=named, of_node=not shared, of_user=shared)


def _avoid(scheduler: Scheduler, recipe: Recipe, record: JobAttempt, jobs: Jobs) -> None:
    """Exclude suspected nodes from the next jobs, unless too many; readmit if needed."""
    chain, names = jobs.load_chain(), " ".join(record.bad_nodes)
    if too_many(chain, record.bad_nodes, len(record.nodes)):
        count = len({*chain.avoided, *record.bad_nodes})
        log_line(f"{count} nodes are suspected, too many to avoid: {names}")
        return
    avoided = [
        *(node for node in chain.avoided if node not in record.bad_nodes),
        *record.bad_nodes,
    ]
    needed = recipe.cluster.nodes + recipe.cluster.spare_nodes
    try:
        able = scheduler.find_eligible_nodes(record.job)
        lifted = to_lift(avoided, able, needed) if able is not None else ()
        avoided = [node for node in avoided if node not in lifted]
        results = [exclude_from_chain(scheduler, jobs, avoided, job) for job in chain.job_ids]
    except SchedulerError as error:
        log_line(f"{error}; report {names} to the site")
        return
    if not all(results):
        log_line(
            f"{scheduler.name} cannot avoid nodes without a preflight; "
            f"report {names} to the site"
        )
        return
    new = tuple(node for node in record.bad_nodes if node in avoided)
    if lifted:
        why = f"otherwise fewer than {needed} nodes would be available for a job"
        jobs.append_events(ReadmittedEvent(at=utc_now(), nodes=lifted, why=why))
        log_line(f"readmitted nodes, {why}: {' '.join(lifted)}")
    if new:
        at = utc_now()
        jobs.append_events(
            ExcludedEvent(at=at, nodes=new, until=avoided_until(at), why=record.why)
        )
        log_line(f"the next job avoids {' '.join(avoided)}")
        record_event(
            jobs.folder, "exclusion", record.why, {"job": record.job, "avoided": avoided}
        )


if __name__ == "__main__":
    run, status, *seconds = sys.argv[1:]
    sys.exit(end_job(Path(run), int(status), *map(float, seconds)))

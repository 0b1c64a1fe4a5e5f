"""The last act of a job: ``python -m cluster.end RUN STATUS [SECONDS]``, as the launcher ended.

On the host, as `cluster.begin`. It finds in what a failed job left which rank failed first,
where, and of what: the others lose it and fail too. A rank left its error in a file; of one
that was killed the launcher speaks. A script that can launch the ranks again says how many
SECONDS are left to train, and does so by status 75.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.begin import avoid, end_chain
from cluster.chain import JobAttempt
from cluster.chain_events import EndedEvent, ExcludedEvent, OverEvent, ReadmittedEvent
from cluster.clients import scheduler_for
from cluster.decisions import (
    avoided_until,
    to_lift,
    too_many,
    why_no_node,
    why_not_relaunched,
)
from cluster.launcher_log import LauncherReport, match_nodes, read_launcher_log, suspect_nodes
from cluster.records import Jobs, heading, now, ranks_log, saved_tokens, tell, tell_end
from cluster.scheduler import Scheduler, SchedulerError
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.fault_tolerance.failures import CUT_SHORT, RankError, read_errors
from components.fault_tolerance.soft_failure import soft_failure
from components.json_file import open_regular
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
from components.run.writer_lock import TRAINED
from components.terminal import say

# Slurm's own word for a node that no longer answers, which may take it minutes.
_LOST = re.compile(r"^srun: error: Node failure on (?P<node>[\w.-]+)", re.MULTILINE)
# What a device or a node is guilty of, and not the program. HIP's words for its errors are
# CUDA's but for a device that is gone and a GPU that hangs.
_HARDWARE = re.compile(
    r"ECC|uncorrectable|\bXid\b|device(?: is)? lost|DEVICE_LOST|hardware error|Bus error|"
    r"GPU has fallen off|unspecified launch failure|Input/output error|No such device|"
    r"no ROCm-capable device|\bGPU Hang\b"
)
# What AMD's runtime writes before it aborts a rank, which then raises nothing: of a device that
# hangs or breaks, or of an address that is none, which is the program's doing.
_LAST_WORDS = re.compile(r"^(?:HW Exception|(?P<program>Memory access fault)) by GPU node-.*$")
_LABEL = re.compile(r" *(\d+): (.*)")  # srun's, before each line of a rank
_TAIL_BYTES = 1 << 18  # of a log that the ranks of a node share
_LONGEST = 500
RELAUNCH = 75  # EX_TEMPFAIL of sysexits.h: try again; ranks end with 4 when they hang
Verdict = PreflightVerdict | None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What brought a job down, on which ``nodes`` as far as that is known."""

    why: str
    nodes: tuple[str, ...] = ()
    of_node: bool = False  # the machines are suspected
    of_user: bool = False  # a mistake that no repetition mends
    bad_step: int | None = None  # whose figures were not finite


def end(run: Path, status: int, seconds_left: float | None = None) -> int:
    """Record how the ranks ended, tidy the chain, and return the job's exit status.

    It is ``RELAUNCH`` where the job is to begin again on its good nodes; ``seconds_left`` are
    those to train in, None where the script launches once.
    """
    folder = RunFolder(run)
    jobs, recipe = Jobs(folder), read_recipe(folder.recipe)
    scheduler = scheduler_for(recipe.cluster)
    own = job_name(os.environ)
    record, verdict = jobs.chain().newest_of(own), read_verdict(folder)
    left_out = verdict.bad if verdict and not verdict.of_all else ()
    ended = folder.ended
    failure = Failure(why="") if ended else _failure(jobs, recipe, record, verdict, status)
    suspect = failure.nodes if failure.of_node else ()
    bad = tuple(dict.fromkeys((*left_out, *suspect)))
    at = now()
    told = EndedEvent(
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
    jobs.note(told)
    record = jobs.chain().newest_of(own)
    tell_end(folder, record)
    say(f"{ended} at {told.tokens:,} tokens" if ended else f"failed: {failure.why}")
    if failure.of_user:
        why = f"job {record.job} failed, and no other job would mend this: {failure.why}"
        jobs.note(OverEvent(at=at, why=why))
        say("no other job would mend this: the chain ends here")
    if failure.of_user or ended == "finished":
        end_chain(scheduler, jobs)
    elif bad:
        _avoid(scheduler, recipe, record, jobs)
    if ended:
        return 0
    if seconds_left is not None and _relaunches(jobs, recipe, seconds_left):
        return RELAUNCH
    return status if status not in {0, RELAUNCH} else 1


def _relaunches(jobs: Jobs, recipe: Recipe, seconds_left: float) -> bool:
    """Decide whether the job launches its ranks again, and say why not."""
    chain = jobs.chain()
    why = why_not_relaunched(
        chain,
        job=job_name(os.environ),
        restarts=recipe.watchdog.restarts,
        needed=recipe.cluster.nodes,
        saved=saved_tokens(jobs.folder),
        stopping=jobs.folder.stop.exists(),
        seconds_left=seconds_left,
    )
    say(f"this job launches no ranks again: {why}" if why else "the ranks are launched again")
    return not why


def _failure(
    jobs: Jobs, recipe: Recipe, record: JobAttempt, verdict: Verdict, status: int
) -> Failure:
    """Look at the verdict on the nodes first: without enough good ones no rank has started."""
    run = jobs.folder.path
    if verdict is not None and not verdict.holds:
        shared = verdict.of_all  # what no node passes is no node's fault
        what = f"{', '.join(shared)} on every node; " if shared else ""
        why = f"preflight: {what}{' | '.join(verdict.reasons())}"[:_LONGEST]
        # Where none spoke it is the launcher, say, and the next job may be luckier.
        mistake = bool(shared) and ANSWER not in shared
        return Failure(why=why, of_node=not shared, of_user=mistake)
    if verdict is None and (copies := failed_copies(run)):
        return copies_failure(copies, record.nodes)
    # What the launcher said in this attempt: in the job's log, PBS's with the ranks'.
    files = (jobs.path / f"{record.job}.log", ranks_log(jobs.folder, record))
    texts = [file.read_text("utf-8", errors="replace") for file in files if file.exists()]
    log = "\n".join(text.rpartition(heading(record))[2] for text in texts)
    nodes = read_hosts(jobs.folder, CHOSEN)
    if verdict is not None:  # which has short names
        nodes = tuple(node.partition(".")[0] for node in nodes)
    per_node = recipe.cluster.devices_per_node
    ranks = run / "ranks"
    found = find_failure(ranks=ranks, log=log, nodes=nodes, per_node=per_node, status=status)
    if found.bad_step is None:
        return found
    if not (shown := why_no_node(jobs.chain(), found.bad_step, found.nodes)):
        return found
    return replace(found, why=f"{found.why}; {shown}", of_node=False, of_user=True)


def find_failure(
    *, ranks: Path, log: str, nodes: Sequence[str], per_node: int, status: int
) -> Failure:
    """Look at error files below ``ranks``, then at what the launcher said in ``log``.

    A launch that failed on some nodes comes first: ranks that were started only wait for them.
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
        return _of_error(error, report, ranks, nodes, per_node)
    if any(one.is_killed for one in report.endings):
        return _of_killed(report, ranks, nodes)
    error = next((one for one in errors if one.message == CUT_SHORT), error)
    if error is not None:
        found = _of_error(error, report, ranks, nodes, per_node)
        why = f"{report.complaint}; {found.why}" if report.complaint else found.why
        return replace(found, why=why[:_LONGEST])
    why = report.complaint[:_LONGEST] or "no rank said why"
    return Failure(why=f"exit status {status}, and {why}")


def _of_error(
    error: RankError, report: LauncherReport, ranks: Path, nodes: Sequence[str], per_node: int
) -> Failure:
    """Take the reason from a rank's error file, or from its log where the disk was full."""
    text, place = error.message, error.rank // per_node
    if (soft := soft_failure(text)) is not None:
        places = {rank // per_node for rank in soft.ranks}
        named = [node for number, node in enumerate(nodes) if number in places]
        why, left_out = soft.text[:_LONGEST], suspect_nodes(named, nodes)
        return Failure(why=why, nodes=left_out, of_node=True, bad_step=soft.step)
    own = tuple(nodes[place : place + 1])
    if text == CUT_SHORT:
        lines = _last_lines(ranks, own[0], error.rank) if own else []
        text = next((line for line in reversed(lines) if line[:1].strip()), text)
    mendable = any(
        one.is_mendable for one in report.endings if match_nodes([one.node], nodes) == own
    )
    # Ranks that outlived their job hold the folder: the next may be luckier.
    mistake = text.startswith(f"{RecipeError.__name__}: ") or mendable
    return Failure(
        why=f"rank {error.rank}: {text[:_LONGEST]}",
        nodes=own,
        of_node=bool(_HARDWARE.search(text)),
        of_user=mistake and TRAINED not in text,
    )


def _of_killed(report: LauncherReport, ranks: Path, nodes: Sequence[str]) -> Failure:
    """Blame the node of a rank that died, unless the run filled its memory.

    All nodes have the same work, but the first one, whose rank also writes: where the memory of
    one other node alone was full, something else on it may have filled it.
    """
    killed = [one for one in report.endings if one.is_killed]
    first, why = killed[0], str(killed[0])
    named = match_nodes([first.node], nodes)
    if report.is_out_of_memory:
        every = match_nodes([one.node for one in killed], nodes)
        why += "" if "Memory" in first.what else " (the memory of its node was full)"
        return Failure(why=why, nodes=named, of_node=len(every) == 1 and every != (*nodes[:1],))
    found = map(_LAST_WORDS.match, reversed(_last_lines(ranks, first.node, first.rank)))
    words = next((one for one in found if one is not None), None)
    if words is not None:
        why = f"{why}: {words[0]}"[:_LONGEST]
    return Failure(why=why, nodes=named, of_node=words is None or words["program"] is None)


def _last_lines(ranks: Path, node: str, rank: int | None) -> list[str]:
    """Read the last lines of a rank in the newest log of its node, or of its own.

    A log is named after the host, which need not have the name that the scheduler gives the
    node. Therefore every line has its rank, and other logs are read if the node's has none.
    """
    names = (node.partition(".")[0], str(rank))  # jobs of earlier versions: a log for each rank
    logs = [one for one in ranks.glob("*-*.log") if "preflight" not in one.name]
    named = {log: log.stem.partition("-")[2] for log in logs}
    logs.sort(key=lambda log: (named[log] in names, log.stat().st_mtime_ns), reverse=True)
    job = logs[0].stem.partition("-")[0] if logs else ""
    for log in (one for one in logs if one.stem.partition("-")[0] == job):
        with open_regular(log) as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
        if named[log] == str(rank):
            return lines
        labelled = map(_LABEL.fullmatch, lines)
        if own := [one[2] for one in labelled if one is not None and int(one[1]) == rank]:
            return own
    return []


def copies_failure(failed: Mapping[str, str], nodes: Sequence[str]) -> Failure:
    """Name the nodes without a copy of Python; what no node can take is no node's fault."""
    reasons = " | ".join(f"{node}: {why}" for node, why in failed.items())
    named = match_nodes(failed, nodes)
    shared = len(failed) == len(nodes) > 1
    why = f"copies: {reasons}"[:_LONGEST]
    return Failure(why=why, nodes=named, of_node=not shared, of_user=shared)


def _avoid(scheduler: Scheduler, recipe: Recipe, record: JobAttempt, jobs: Jobs) -> None:
    """Keep the next job off the suspected nodes, unless these are too many for it to start."""
    chain, names = jobs.chain(), " ".join(record.bad_nodes)
    if too_many(chain, record.bad_nodes, len(record.nodes)):
        count = len({*chain.avoided, *record.bad_nodes})
        say(f"{count} nodes are suspected by now, so it may be none of them: {names}")
        return
    avoided = [
        *(one for one in chain.avoided if one not in record.bad_nodes),
        *record.bad_nodes,
    ]
    needed = recipe.cluster.nodes + recipe.cluster.spare_nodes
    try:
        able = scheduler.able(record.job)
        lifted = to_lift(avoided, able, needed) if able is not None else ()
        avoided = [one for one in avoided if one not in lifted]
        can = [avoid(scheduler, jobs, avoided, job) for job in chain.ids]
    except SchedulerError as error:
        say(f"{error}; tell the site of {names}")
        return
    if not all(can):
        say(
            f"{scheduler.name} cannot avoid nodes without a preflight; tell the site of {names}"
        )
        return
    new = tuple(one for one in record.bad_nodes if one in avoided)
    if lifted:
        why = f"without them fewer than the {needed} nodes of a job could be had"
        jobs.note(ReadmittedEvent(at=now(), nodes=lifted, why=why))
        say(f"not avoided, {why}: {' '.join(lifted)}")
    if new:
        at = now()
        jobs.note(ExcludedEvent(at=at, nodes=new, until=avoided_until(at), why=record.why))
        say(f"the next job avoids {' '.join(avoided)}")
        tell(jobs.folder, "exclusion", record.why, {"job": record.job, "avoided": avoided})


if __name__ == "__main__":
    run, status, *seconds = sys.argv[1:]
    sys.exit(end(Path(run), int(status), *map(float, seconds)))

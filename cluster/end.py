"""The last act of a job: ``python -m cluster.end RUN STATUS [SECONDS]``, as the launcher ended.

On the host, as `cluster.begin`. It finds in what a failed job left which rank failed first,
where, and of what: the others lose it and fail too. A rank left its error in a file; of one
that was killed the launcher speaks. A script that can launch the ranks again says how many
SECONDS are left to train, and does so by status 75.
"""

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.begin import avoid, end_chain
from cluster.chain import JobAttempt
from cluster.chain_events import EndedEvent, ExcludedEvent, OverEvent, ReadmittedEvent
from cluster.decisions import (
    avoided_until,
    to_lift,
    too_many,
    why_no_node,
    why_not_relaunched,
)
from cluster.records import Jobs, heading, now, ranks_log, saved_tokens, tell, tell_end
from cluster.scheduler import Scheduler, SchedulerError, scheduler_of
from components.config.schema.recipe import Recipe, read_recipe
from components.errors import RecipeError
from components.fault_tolerance.failures import read_errors
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
from components.run.writer_lock import TRAINED
from components.terminal import say

# `srun: error: NODE: task 5: Killed`, and PALS: `NODE: rank 5 died from signal 9`.
_LAUNCHER = re.compile(
    r"^(?:srun: error: )?(?P<node>[\w.-]+): "
    r"(?:tasks?|rank) (?P<rank>\d+)[\d,-]*:? (?P<what>.+)$",
    re.MULTILINE,
)
# Slurm's own word for a node that no longer answers, which may take it minutes.
_LOST = re.compile(r"^srun: error: Node failure on (?P<node>[\w.-]+)", re.MULTILINE)
_KILLED = re.compile(r"Killed|Bus error|Segmentation fault|Aborted|died from signal (?!15)")
_ASKED_TO_END = re.compile(r"Terminated|signal 15|Force Terminated")
# What a device or a node is guilty of, and not the program. HIP's words for its errors are
# CUDA's but for a device that is gone and a GPU that hangs.
_HARDWARE = re.compile(
    r"ECC|uncorrectable|\bXid\b|device(?: is)? lost|DEVICE_LOST|hardware error|Bus error|"
    r"GPU has fallen off|unspecified launch failure|Input/output error|No such device|"
    r"no ROCm-capable device|\bGPU Hang\b"
)
# What AMD's runtime writes before it aborts a rank, which then raises nothing: of a device that
# hangs or breaks, or of an address that is none, which is the program's doing.
_LAST_WORDS = re.compile(
    rb"^(?:HW Exception|(?P<program>Memory access fault)) by GPU node-.*$", re.MULTILINE
)
_TAIL_BYTES = 4_096
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
    scheduler = scheduler_of(recipe.cluster)
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
    """Look at error files below ``ranks``, then at what the launcher said in ``log``."""
    kills = (m for m in _LAUNCHER.finditer(log) if _KILLED.search(m["what"]))
    killed = next((m for m in kills if not _ASKED_TO_END.search(m["what"])), None)
    error = next(iter(read_errors(ranks)), None)
    if (lost := _LOST.search(log)) and not (error is not None and error.is_own):
        left_out = _as_listed([lost["node"]], nodes)
        return Failure(why=f"node {lost['node']} was lost", nodes=left_out, of_node=True)
    if error is not None and (error.is_own or killed is None):
        text = error.message
        if (soft := soft_failure(text)) is not None:
            places = {rank // per_node for rank in soft.ranks}
            named = tuple(node for place, node in enumerate(nodes) if place in places)
            named = () if len(named) == len(nodes) > 1 else named  # all: it is none of them
            why = soft.text[:_LONGEST]
            return Failure(why=why, nodes=named, of_node=True, bad_step=soft.step)
        place = error.rank // per_node
        return Failure(
            why=f"rank {error.rank}: {text[:_LONGEST]}",
            nodes=tuple(nodes[place : place + 1]),
            of_node=bool(_HARDWARE.search(text)),
            # Ranks that outlived their job hold the folder: the next may be luckier.
            of_user=text.startswith(f"{RecipeError.__name__}: ") and TRAINED not in text,
        )
    if killed is not None:
        why = f"rank {int(killed['rank'])} on {killed['node']}: {killed['what'].strip()}"
        node = next((node for node in nodes if node.split(".")[0] in killed["node"]), None)
        words = _last_words(ranks, int(killed["rank"]))
        if words is not None:
            why = f"{why}: {words[0].decode(errors='replace')}"[:_LONGEST]
        of_node = words is None or words["program"] is None
        return Failure(why=why, nodes=() if node is None else (node,), of_node=of_node)
    return Failure(why=f"exit status {status}, and no rank said why")


def _last_words(ranks: Path, rank: int) -> re.Match[bytes] | None:
    """Find what a rank's runtime wrote last into the newest of the rank's logs."""
    logs = [one for one in ranks.glob(f"*-{rank}.log") if "preflight" not in one.name]
    newest = max(logs, key=lambda log: log.stat().st_mtime_ns, default=None)
    if newest is None:
        return None
    with newest.open("rb") as stream:
        stream.seek(max(0, newest.stat().st_size - _TAIL_BYTES))
        return next(reversed([*_LAST_WORDS.finditer(stream.read())]), None)


def _as_listed(said: Iterable[str], nodes: Sequence[str]) -> tuple[str, ...]:
    """Give nodes the names that the scheduler knows: some call themselves by their domain."""
    known = {node.partition(".")[0] for node in said}
    return tuple(node for node in nodes if node.partition(".")[0] in known)


def copies_failure(failed: Mapping[str, str], nodes: Sequence[str]) -> Failure:
    """Name the nodes without a copy of Python; what no node can take is no node's fault."""
    reasons = " | ".join(f"{node}: {why}" for node, why in failed.items())
    named = _as_listed(failed, nodes)
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

"""The last act of a job: ``python -m cluster.end RUN STATUS``, with the launcher's status.

It finds in what a failed job left which rank failed first, where, and of what: the others lose
it and fail too. A rank left its error in a file; of one that was killed the launcher speaks.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.begin import end_chain
from cluster.records import Jobs, chain_of, heading, ranks_log, saved_tokens, tell, tell_end
from cluster.scheduler import Scheduler, SchedulerError, scheduler_of
from components.config.schema.recipe import Recipe, read_recipe
from components.errors import RecipeError
from components.fault_tolerance.failures import read_errors
from components.preflight.node_checks import failed_copies
from components.preflight.verdict import ANSWER, PreflightVerdict, read_verdict
from components.run.folder import RunFolder
from components.run.records import JobLifeRecord
from components.terminal import say

MOST_EXCLUDED_FRACTION = 0.25  # of a job's nodes: beyond, it is not the nodes
# `srun: error: NODE: task 5: Killed`, and PALS: `NODE: rank 5 died from signal 9`.
_LAUNCHER = re.compile(
    r"^(?:srun: error: )?(?P<node>[\w.-]+): "
    r"(?:tasks?|rank) (?P<rank>\d+)[\d,-]*:? (?P<what>.+)$",
    re.MULTILINE,
)
_KILLED = re.compile(r"Killed|Bus error|Segmentation fault|Aborted|died from signal (?!15)")
_ASKED_TO_END = re.compile(r"Terminated|signal 15|Force Terminated")
# What a device or a node is guilty of, and not the program.
_HARDWARE = re.compile(
    r"ECC|uncorrectable|\bXid\b|device(?: is)? lost|DEVICE_LOST|hardware error|Bus error|"
    r"GPU has fallen off|unspecified launch failure|Input/output error|No such device"
)
_LONGEST = 500
Verdict = PreflightVerdict | None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What brought a job down; ``node`` is None where it is not known."""

    why: str
    node: str | None = None
    of_node: bool = False  # the machine is suspected
    of_user: bool = False  # a mistake that no repetition mends


def end(run: Path, status: int) -> int:
    """Record how the ranks ended, tidy the chain, and return the job's exit status."""
    folder = RunFolder(run)
    jobs, recipe = Jobs(folder), read_recipe(folder.recipe)
    scheduler = scheduler_of(recipe.cluster)
    record, verdict = jobs.all()[-1], read_verdict(folder)
    left_out = verdict.bad if verdict and not verdict.of_all else ()
    ended = folder.ended
    failure = Failure(why="") if ended else _failure(jobs, recipe, record, verdict, status)
    suspect = (failure.node,) if failure.of_node and failure.node is not None else ()
    bad = tuple(dict.fromkeys((*left_out, *suspect)))
    record = jobs.end(record, ended=ended or "failed", why=failure.why, bad_nodes=bad)
    tell_end(folder, record)
    say(f"{ended} at {saved_tokens(folder):,} tokens" if ended else f"failed: {failure.why}")
    if failure.of_user:
        say("no other job would mend this: the chain ends here")
    if failure.of_user or ended == "finished":
        end_chain(scheduler, record.job, jobs)
    elif bad:
        _avoid(scheduler, record, jobs)
    return 0 if ended else status or 1


def _failure(
    jobs: Jobs, recipe: Recipe, record: JobLifeRecord, verdict: Verdict, status: int
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
    # Where spare nodes take over, nobody knows from a rank's number where it was.
    takes_over = recipe.watchdog.restarts and scheduler_of(recipe.cluster).outlives_nodes
    unknown = recipe.cluster.spare_nodes and takes_over
    # What the launcher said in this attempt: in the job's log, PBS's with the ranks'.
    files = (jobs.path / f"{record.job}.log", ranks_log(jobs.folder, record))
    texts = [file.read_text("utf-8", errors="replace") for file in files if file.exists()]
    log = "\n".join(text.rpartition(heading(record))[2] for text in texts)
    nodes = record.nodes if verdict is None else verdict.good
    per_node = None if unknown else recipe.cluster.devices_per_node
    ranks = run / "ranks"
    return find_failure(ranks=ranks, log=log, nodes=nodes, per_node=per_node, status=status)


def find_failure(
    *, ranks: Path, log: str, nodes: Sequence[str], per_node: int | None, status: int
) -> Failure:
    """Look at error files below ``ranks``, then at what the launcher said in ``log``."""
    kills = (m for m in _LAUNCHER.finditer(log) if _KILLED.search(m["what"]))
    killed = next((m for m in kills if not _ASKED_TO_END.search(m["what"])), None)
    error = next(iter(read_errors(ranks)), None)
    if error is not None and (error.is_own or killed is None):
        text = error.message
        place = len(nodes) if per_node is None else error.rank // per_node
        return Failure(
            why=f"rank {error.rank}: {text[:_LONGEST]}",
            node=nodes[place] if place < len(nodes) else None,
            of_node=bool(_HARDWARE.search(text)),
            of_user=text.startswith(f"{RecipeError.__name__}: "),
        )
    if killed is not None:
        why = f"rank {int(killed['rank'])} on {killed['node']}: {killed['what'].strip()}"
        node = next((node for node in nodes if node.split(".")[0] in killed["node"]), None)
        return Failure(why=why, node=node, of_node=True)
    return Failure(why=f"exit status {status}, and no rank said why")


def copies_failure(failed: Mapping[str, str], nodes: Sequence[str]) -> Failure:
    """Name the nodes without a copy of Python; what no node can take is no node's fault."""
    reasons = " | ".join(f"{node}: {why}" for node, why in failed.items())
    node = next((node for node in nodes if node.partition(".")[0] in failed), None)
    shared = len(failed) == len(nodes) > 1
    why = f"copies: {reasons}"[:_LONGEST]
    return Failure(why=why, node=node, of_node=not shared, of_user=shared)


def _avoid(scheduler: Scheduler, record: JobLifeRecord, jobs: Jobs) -> None:
    """Keep the next job off all nodes that were suspected, unless these are too many."""
    bad = dict.fromkeys(node for each in jobs.since_submission() for node in each.bad_nodes)
    names = " ".join(bad)
    if len(bad) > max(1, int(MOST_EXCLUDED_FRACTION * len(record.nodes))):
        say(f"{len(bad)} nodes are suspected by now, so it may be none of them: {names}")
        return
    try:
        excluded = scheduler.exclude(chain_of(record.job), jobs.path, list(bad))
    except SchedulerError as error:
        say(f"{error}; tell the site of {names}")
        return
    if excluded:
        say(f"the next job avoids {names}")
        tell(jobs.folder, "exclusion", record.why, {"job": record.job, "avoided": list(bad)})
    else:
        say(f"{scheduler.name} cannot avoid nodes; tell the site of {names}")


if __name__ == "__main__":
    sys.exit(end(Path(sys.argv[1]), int(sys.argv[2])))

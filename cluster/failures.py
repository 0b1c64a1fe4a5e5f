"""Find in what a failed job left which rank failed first, on which node, and of what.

When a rank fails the others lose it and fail too. A rank that could raise an error has left
it in a file of its own; of one that was killed only the launcher speaks.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from components.errors import RecipeError
from components.fault_tolerance.failures import read_errors
from components.preflight.verdict import ANSWER, PreflightVerdict

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


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What brought a job down; ``rank`` and ``node`` are None where nobody knows.

    ``of_node`` suspects the machine; ``of_user`` is a mistake that no repetition mends.
    """

    why: str
    rank: int | None
    node: str | None
    of_node: bool
    of_user: bool


def find_failure(
    *, ranks: Path, log: str, nodes: Sequence[str], per_node: int | None, status: int
) -> Failure:
    """Look at error files below ``ranks``, then at what the launcher said in ``log``."""
    killed = next((m for m in _LAUNCHER.finditer(log) if _is_kill(m["what"])), None)
    error = next(iter(read_errors(ranks)), None)
    if error is not None and (error.is_own or killed is None):
        rank, text = error.rank, error.message
        place = len(nodes) if per_node is None else rank // per_node
        node = nodes[place] if place < len(nodes) else None
        return Failure(
            why=f"rank {rank}: {text[:_LONGEST]}",
            rank=rank,
            node=node,
            of_node=bool(_HARDWARE.search(text)),
            of_user=text.startswith(f"{RecipeError.__name__}: "),
        )
    if killed is not None:
        rank, what = int(killed["rank"]), killed["what"].strip()
        why = f"rank {rank} on {killed['node']}: {what}"
        node = next((node for node in nodes if node.split(".")[0] in killed["node"]), None)
        return Failure(why=why, rank=rank, node=node, of_node=True, of_user=False)
    why = f"exit status {status}, and no rank said why"
    return Failure(why=why, rank=None, node=None, of_node=False, of_user=False)


def of_verdict(verdict: PreflightVerdict) -> Failure:
    """Say which nodes were too bad to start on; what no node passes is none's own fault."""
    shared = verdict.of_all
    none_spoke = ANSWER in shared  # it is the launcher, say, and the next job may be luckier
    what = f"{', '.join(shared)} on every node; " if shared else ""
    return Failure(
        why=f"preflight: {what}{' | '.join(verdict.reasons())}"[:_LONGEST],
        rank=None,
        node=None,
        of_node=not shared,
        of_user=bool(shared) and not none_spoke,
    )


def of_copies(failed: Mapping[str, str], nodes: Sequence[str]) -> Failure:
    """Say which nodes have no copy of Python; what no node can take is none's own fault."""
    reasons = " | ".join(f"{node}: {why}" for node, why in failed.items())
    node = next((node for node in nodes if node.partition(".")[0] in failed), None)
    shared = len(failed) == len(nodes) > 1
    return Failure(
        why=f"copies: {reasons}"[:_LONGEST],
        rank=None,
        node=node,
        of_node=not shared,
        of_user=shared,
    )


def _is_kill(what: str) -> bool:
    return bool(_KILLED.search(what)) and not _ASKED_TO_END.search(what)

"""Find in what a failed job left which rank failed first, on which node, and of what.

When a rank fails the others lose it and fail too. A rank that could raise an error has left
it in a file of its own; of one that was killed only the launcher speaks.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from components.errors import RecipeError
from components.life.failures import read_errors

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


def _is_kill(what: str) -> bool:
    return bool(_KILLED.search(what)) and not _ASKED_TO_END.search(what)

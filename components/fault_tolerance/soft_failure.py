"""Soft failures: numbers of a rank that are not finite, and the node that is suspected of them.

As in Optimus (arXiv 2604.00785): the node is marked, the run ends before the step is taken, and
goes on without it. Only text reaches a rank's error file, so what is told is read again here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Of one data rank's forward pass: the ranks of a tensor or expert group share their sums.
MOST_NODES = 64
_RANKS = re.compile(r"\(rank ([\d, ]+)\)")


class NotFiniteError(RuntimeError):
    """End all ranks before ``step``, after ``tokens``, whose figures are not finite.

    ``ranks`` are those by node where it began, none where that is not known. It is no
    RecipeError: a node may be to blame, and the run goes on without it.
    """

    def __init__(
        self, *, step: int, tokens: int, cause: str, ranks: Mapping[str, Sequence[int]]
    ) -> None:
        super().__init__(f"step {step}, after {tokens:,} tokens: {cause}; {_where(ranks)}")


@dataclass(frozen=True)
class SoftFailure:
    """What a `NotFiniteError` tells: its text, step, and the ranks where it began, if known.

    All ranks raise the same: which of them did so first says nothing. Names of nodes in the
    text are the hosts' own, which a scheduler may know by others.
    """

    text: str
    step: int
    ranks: tuple[int, ...]


def soft_failure(message: str) -> SoftFailure | None:
    """Read what torch's ``record`` wrote of a `NotFiniteError`; None for any other error."""
    found = re.match(rf"{NotFiniteError.__name__}: (step (\d+), .*)", message)
    if found is None:
        return None
    ranks = (int(rank) for some in _RANKS.findall(found[1]) for rank in some.split(", "))
    return SoftFailure(text=found[1], step=int(found[2]), ranks=tuple(ranks))


def _where(ranks: Mapping[str, Sequence[int]]) -> str:
    if not ranks:
        return "it began in a backward pass, which tells no node"
    if len(ranks) > MOST_NODES:
        return f"the forward pass was not finite on {len(ranks)} nodes, so it is none of them"
    places = (f"{node} (rank {', '.join(map(str, each))})" for node, each in ranks.items())
    return f"the forward pass was not finite on {', '.join(places)}"


def way_on(run: str) -> str:
    """Say how a run is gone on with that nothing starts again by itself."""
    return (
        f"nothing was saved of that step: resume={run} goes on from the last checkpoint; "
        "if it is not finite again, add guard.non_finite.action=skip"
    )

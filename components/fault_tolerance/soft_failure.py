"""Soft failures: non-finite values on a rank, and the node suspected as their cause.

As in Optimus (arXiv 2604.00785), the node is marked, the run ends before the step's update, and
resumes without the node. A rank's error file contains only text, so this module parses it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Most nodes that one faulty node can make non-finite: those of one data rank's forward pass,
# since the ranks of a tensor or expert group share their sums.
MOST_NODES = 64
_RANKS = re.compile(r"\(rank ([\d, ]+)\)")


class NotFiniteError(RuntimeError):
    """Error that ends all ranks before ``step``, after ``tokens``: its figures are not finite.

    ``ranks`` are the ranks of origin by node, empty if unknown. This is not a RecipeError: a
    node may be the cause, and the run resumes without it.
    """

    def __init__(
        self, *, step: int, tokens: int, cause: str, ranks: Mapping[str, Sequence[int]]
    ) -> None:
        super().__init__(f"step {step}, after {tokens:,} tokens: {cause}; {_where(ranks)}")


@dataclass(frozen=True)
class SoftFailure:
    """Contents of a `NotFiniteError`: its text, step, and ranks of origin, if known.

    All ranks raise the same error, so the first rank to raise it has no meaning. The text has
    the hosts' own names. A scheduler may use other names.
    """

    text: str
    step: int
    ranks: tuple[int, ...]


def soft_failure(message: str) -> SoftFailure | None:
    """Parse a `NotFiniteError` from the text of torch's ``record``; None for other errors."""
    match = re.match(rf"{NotFiniteError.__name__}: (step (\d+), .*)", message)
    if match is None:
        return None
    ranks = (int(rank) for numbers in _RANKS.findall(match[1]) for rank in numbers.split(", "))
    return SoftFailure(text=match[1], step=int(match[2]), ranks=tuple(ranks))


def _where(ranks: Mapping[str, Sequence[int]]) -> str:
    if not ranks:
        return "it started in a backward pass, so no node is known"
    if len(ranks) > MOST_NODES:
        return f"the forward pass was not finite on {len(ranks)} nodes, so no node is suspected"
    places = (f"{node} (rank {', '.join(map(str, each))})" for node, each in ranks.items())
    return f"the forward pass was not finite on {', '.join(places)}"


def resume_hint(run: str) -> str:
    """Return instructions to resume a run that does not restart automatically."""
    return (
        f"that step was not saved: resume={run} resumes from the last checkpoint; "
        "if the step is not finite again, add guard.non_finite.action=skip"
    )

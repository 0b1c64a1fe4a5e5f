"""What the run's journal is told of its jobs: their nodes, how each ended, which to avoid.

The ranks tell the rest of the story. A job outlives them, and knows why they ended.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.records import JobRecord, saved_tokens
from components.life.journal import Journal, Kind
from components.preflight.verdict import Verdict
from components.spec.recipe import read_recipe
from components.train.run_folder import RunFolder

WITHOUT_A_WORD = "ended without a word: put back, killed, or lost with its node"


def tell_end(folder: RunFolder, record: JobRecord) -> None:
    """Tell how a job ended; of one that could not say so the next one tells."""
    why = f": {record.why}" if record.why else ""
    cause = f"{record.ended}{why}" if record.ended else WITHOUT_A_WORD
    evidence = {"job": record.job, "attempt": record.attempt, "nodes": record.nodes}
    _tell(folder, "job_end", cause, evidence)


def tell_exclusion(folder: RunFolder, record: JobRecord, nodes: Sequence[str]) -> None:
    """Tell which nodes the next job avoids."""
    _tell(folder, "exclusion", record.why, {"job": record.job, "avoided": nodes})


def tell_preflight(folder: RunFolder, verdict: Verdict) -> None:
    """Tell which nodes a job's ranks do not start on; it has begun, and may wait for room."""
    excluded = {
        one.node: [found.check for found in one.bad] for one in verdict.nodes if one.bad
    }
    _tell(
        folder,
        "preflight",
        "; ".join(verdict.reasons()) or "all nodes are good",
        {"nodes": len(verdict.nodes), "needed": verdict.needed, "excluded": excluded},
        seconds=verdict.seconds,
        retry_seconds=read_recipe(folder.recipe).checkpoint.retry_seconds,
    )


def _tell(
    folder: RunFolder,
    kind: Kind,
    cause: str,
    evidence: Mapping[str, Any],
    *,
    seconds: float = 0.0,
    retry_seconds: float = 0.0,  # at the end of a job its wall is near
) -> None:
    tokens, recipe = saved_tokens(folder), read_recipe(folder.recipe)
    Journal(file=folder.journal, writes=True, retry_seconds=retry_seconds).note(
        kind,
        step=recipe.ramp.steps(tokens // recipe.budget.sequence_length),
        tokens=tokens,
        cause=cause,
        seconds=seconds,
        evidence=evidence,
    )

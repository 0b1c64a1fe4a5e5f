"""Held-out losses of a run, and their summary. Works without torch.

The weighted mean uses the mixture shares of the last sample before the evaluation (of its
phase), like the training loss. In the plain mean, a source has the same weight in all phases.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

LAST_QUARTER = 0.75  # of the tokens at the last evaluation: the trend starts here


class Evaluation(NamedTuple):
    """The held-out loss of each source after ``step`` steps, in nats per token."""

    step: int
    tokens: int
    by_source: Mapping[str, float]

    @property
    def mean_loss(self) -> float:
        return fmean(self.by_source.values())


def weighted_mean(losses: Mapping[str, float], shares: Mapping[str, float]) -> float:
    """Return the mean loss, weighted by share. Sources with a share of 0 do not count."""
    return sum(share * losses[name] for name, share in shares.items() if share > 0)


def summarize_held_out(
    evaluations: Sequence[Evaluation], shares: Mapping[str, float], unigram: Mapping[str, float]
) -> dict[str, Any]:
    """Summarize the held-out losses (nats per token), next to a smoothed unigram model's.

    ``first`` is before training, ``final`` is the last one after a step. Weighted figures and
    the trend use the shares at the last evaluation: a change of phase alone has no effect.
    """
    if not evaluations:
        return {}
    first = next((evaluation for evaluation in evaluations if evaluation.step == 0), None)
    trained = [evaluation for evaluation in evaluations if evaluation.step > 0]
    last = trained[-1] if trained else None
    slope = _slope([
        (evaluation.tokens, weighted_mean(evaluation.by_source, shares))
        for evaluation in trained
    ])
    return {
        "step": last and last.step,
        "tokens": last and last.tokens,
        "first": first and weighted_mean(first.by_source, shares),
        "first_unweighted": first and first.mean_loss,
        "final": last and weighted_mean(last.by_source, shares),
        "final_unweighted": last and last.mean_loss,
        "by_source": last.by_source if last else {},
        "shares": shares,
        "unigram": weighted_mean(unigram, shares) if unigram else None,
        "unigram_unweighted": fmean(unigram.values()) if unigram else None,
        "unigram_by_source": unigram,
        "slope_last_quarter": slope,
        "slope_unit": "nats a token, weighted as the mixture, per million tokens trained",
        "rising": slope > 0 if slope is not None and math.isfinite(slope) else None,
    }


def _slope(losses: Sequence[tuple[int, float]]) -> float | None:
    """Return the slope of the losses in the last quarter of tokens; None for fewer than two."""
    late = [point for point in losses if point[0] >= LAST_QUARTER * losses[-1][0]]
    if len(late) < 2:
        return None
    tokens, means = np.array(late, dtype=float).T
    if not np.isfinite(means).all():
        return math.nan
    return float(np.polyfit(tokens / 1e6, means, 1)[0])

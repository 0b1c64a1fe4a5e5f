"""Held-out losses of a run, and what they come to at its end; without torch.

Two means over the sources. Weighted as the mixture: by the shares that the last sample before
it was drawn with, those of its phase. That is the held-out loss of the training stream, to set
beside the training loss. And the plain mean, in which a source weighs the same in all phases.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

LAST_QUARTER = 0.75  # of the tokens of the last evaluation: the trend is asked from here on


class Evaluation(NamedTuple):
    """The loss of each source after ``step`` steps, in nats a token."""

    step: int
    tokens: int
    by_source: Mapping[str, float]

    @property
    def mean(self) -> float:
        return fmean(self.by_source.values())


def weighted_mean(losses: Mapping[str, float], shares: Mapping[str, float]) -> float:
    """Weigh each source by its share; one that is not drawn does not count."""
    return sum(share * losses[name] for name, share in shares.items() if share > 0)


def summarize_held_out(
    evaluations: Sequence[Evaluation],
    shares: Mapping[str, float],
    unigram: Mapping[str, float],
) -> dict[str, Any]:
    """Put the held-out losses, in nats a token, beside a smoothed unigram model's.

    ``first`` is before training, ``final`` the last after a step. All weighted figures and the
    trend have the weights of the last evaluation: a new phase alone moves none of them.
    """
    if not evaluations:
        return {}
    first = next((one for one in evaluations if one.step == 0), None)
    trained = [one for one in evaluations if one.step > 0]
    last = trained[-1] if trained else None
    slope = _slope([(one.tokens, weighted_mean(one.by_source, shares)) for one in trained])
    return {
        "step": last and last.step,
        "tokens": last and last.tokens,
        "first": first and weighted_mean(first.by_source, shares),
        "first_unweighted": first and first.mean,
        "final": last and weighted_mean(last.by_source, shares),
        "final_unweighted": last and last.mean,
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
    """Fit a line to the last quarter of tokens; None where fewer than two losses are there.

    It is NaN where one of them is not finite.
    """
    late = [one for one in losses if one[0] >= LAST_QUARTER * losses[-1][0]]
    if len(late) < 2:
        return None
    tokens, means = np.array(late, dtype=float).T
    if not np.isfinite(means).all():
        return math.nan
    return float(np.polyfit(tokens / 1e6, means, 1)[0])

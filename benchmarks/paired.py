"""Ratios of like with like: what was measured in turns is divided pair by pair.

Other work on a host slows both of a pair, so their ratio holds where the seconds do not.
"""

from collections.abc import Mapping, Sequence

from scipy.stats import quantile_test

CONFIDENCE = 0.95


def paired_ratio(ones: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Return the median of the pairs' ratios, and between which two of them the true one lies.

    The interval is the order statistics' (Conover 1999, Practical Nonparametric Statistics,
    section 3.2): it asks for no distribution. Below six pairs there is none, and it is NaN.
    """
    ratios = sorted(one / other for one, other in zip(ones, others, strict=True))
    found = quantile_test(ratios, q=1.0, p=0.5)
    interval = found.confidence_interval(CONFIDENCE)
    middle = len(ratios) // 2
    median = (ratios[middle] + ratios[~middle]) / 2
    return {"median": median, "low": float(interval.low), "high": float(interval.high)}


def told(ratio: Mapping[str, float]) -> str:
    """Write such a ratio with its interval."""
    return f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"

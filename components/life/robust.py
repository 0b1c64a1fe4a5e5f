"""How far a figure sticks out of those before it, by median and median absolute deviation.

Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, chapter 3: mean and standard
deviation would follow the very spikes that they are to find; half of a window may be spikes
before its median does.
"""

import math
from collections.abc import Sequence
from statistics import median

# Of normal numbers the MAD is this part of the standard deviation: the third quartile.
NORMAL_MAD = 0.6744897501960817


def deviations(value: float, window: Sequence[float]) -> float:
    """Count the robust standard deviations of ``value`` above the median of ``window``.

    Below it they are negative. In a window whose median most figures share, whatever differs
    from it is infinitely far away.
    """
    middle = median(window)
    spread = median(abs(one - middle) for one in window) / NORMAL_MAD
    if spread:
        return (value - middle) / spread
    return math.copysign(math.inf, value - middle) if value != middle else 0.0

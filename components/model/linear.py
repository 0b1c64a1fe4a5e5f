"""Linear maps that carry what the initialization has to know."""

from torch import nn


class ResidualLinear(nn.Linear):
    """Map a branch back onto the residual stream.

    Initialization finds such a map by ``writes_residual``, never by its name, so a new kind of
    branch (experts, another attention) only has to end in one, or to carry the same mark.
    """

    writes_residual = True

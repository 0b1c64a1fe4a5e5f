"""The law of Hoffmann et al. 2022 (arXiv 2203.15556, equation 2): L = E + A/N^alpha + B/D^beta.

N are parameters without the embedding, D tokens, L nats a token. Where FLOPs are counted they
are 6 N D, without embedding, head and attention: exponents depend on that convention.
"""

from dataclasses import dataclass
from math import exp, log

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
LARGEST = 700.0  # logarithm of a number that a float still holds
FLOPS_PER_PARAMETER = 6  # a token's forward and backward pass


@dataclass(frozen=True, kw_only=True)
class RunLosses:
    """Finished runs, a value each: ``parameters``, ``tokens`` and the ``losses`` in nats."""

    parameters: Values
    tokens: Values
    losses: Values

    @classmethod
    def of(cls, rows: list[tuple[float, float, float]]) -> "RunLosses":
        """Take rows of parameters, tokens and loss."""
        parameters, tokens, losses = np.array(rows, dtype=np.float64).reshape(-1, 3).T
        return cls(parameters=parameters, tokens=tokens, losses=losses)

    def __len__(self) -> int:
        return len(self.losses)

    def __getitem__(self, chosen: npt.NDArray[np.intp]) -> "RunLosses":
        """Return the runs at these places, of which some may come several times."""
        return RunLosses(
            parameters=self.parameters[chosen],
            tokens=self.tokens[chosen],
            losses=self.losses[chosen],
        )

    @property
    def flops(self) -> Values:
        return FLOPS_PER_PARAMETER * self.parameters * self.tokens


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The model and the tokens that give the least loss for some FLOPs."""

    parameters: float
    tokens: float


@dataclass(frozen=True, kw_only=True)
class Law:
    """Constants of the law; ``objective`` is what the fit minimised, at its minimum."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float
    objective: float

    def loss(self, parameters: float, tokens: float) -> float:
        """Predict the loss in nats a token."""
        terms = ((self.A, self.alpha, parameters), (self.B, self.beta, tokens))
        # In logarithms: of few runs a drawn fit may have any exponent.
        logs = (log(factor) - exponent * log(count) for factor, exponent, count in terms)
        return self.E + sum(exp(min(one, LARGEST)) for one in logs)

    @property
    def parameters_exponent(self) -> float:
        """The a of N* ~ C^a."""
        return self.beta / (self.alpha + self.beta)

    def optimum(self, flops: float) -> Optimum:
        """Find the best model for so many FLOPs (Hoffmann et al. 2022, equation 4).

        In logarithms: exponents near 0 would overflow. 6 N* D* are the FLOPs again.
        """
        products = log(flops / FLOPS_PER_PARAMETER)
        exponents = self.alpha + self.beta
        shift = (log(self.alpha * self.A) - log(self.beta * self.B)) / exponents
        size = shift + self.beta / exponents * products
        return Optimum(
            parameters=exp(min(size, LARGEST)), tokens=exp(min(products - size, LARGEST))
        )

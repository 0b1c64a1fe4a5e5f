"""Scaling law of Hoffmann et al. 2022 (arXiv 2203.15556, equation 2).

L = E + A/N^alpha + B/D^beta. N is the number of parameters without the embedding, D the number
of tokens, L nats per token. FLOPs are 6 N D, without embedding, head and attention. The
exponents depend on this convention.
"""

from dataclasses import dataclass
from math import exp, log

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

FloatArray = npt.NDArray[np.float64]
LARGEST = 700.0  # largest logarithm of a float
FLOPS_PER_PARAMETER = 6  # a token's forward and backward pass


@dataclass(frozen=True, kw_only=True)
class RunLosses:
    """Finished runs, one value each: ``parameters``, ``tokens`` and ``losses`` in nats."""

    parameters: FloatArray
    tokens: FloatArray
    losses: FloatArray

    @classmethod
    def from_rows(cls, rows: list[tuple[float, float, float]]) -> "RunLosses":
        """Create from rows of parameters, tokens and loss."""
        parameters, tokens, losses = np.array(rows, dtype=np.float64).reshape(-1, 3).T
        return cls(parameters=parameters, tokens=tokens, losses=losses)

    def __len__(self) -> int:
        return len(self.losses)

    def __getitem__(self, chosen: npt.NDArray[np.intp]) -> "RunLosses":
        """Return the runs at these indices. Indices may repeat."""
        return RunLosses(
            parameters=self.parameters[chosen],
            tokens=self.tokens[chosen],
            losses=self.losses[chosen],
        )


class BestSize(BaseModel, frozen=True):
    """Model size and token count with the lowest loss for a number of FLOPs, and this loss."""

    parameters: float
    tokens: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class Law:
    """Constants of the law. ``objective`` is the minimum that the fit reached."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float
    objective: float

    def predict_loss(self, parameters: float, tokens: float) -> float:
        """Predict the loss in nats per token."""
        terms = ((self.A, self.alpha, parameters), (self.B, self.beta, tokens))
        # Logarithms, because a bootstrap fit of few runs may have any exponent.
        logs = (log(factor) - exponent * log(count) for factor, exponent, count in terms)
        return self.E + sum(exp(min(log_term, LARGEST)) for log_term in logs)

    @property
    def parameters_exponent(self) -> float:
        """The a of N* ~ C^a."""
        return self.beta / (self.alpha + self.beta)

    def find_optimum(self, flops: float) -> BestSize:
        """Return the best model for this many FLOPs (Hoffmann et al. 2022, equation 4).

        Exponents near 0 would overflow, hence logarithms. 6 N* D* = ``flops``.
        """
        products = log(flops / FLOPS_PER_PARAMETER)
        exponents = self.alpha + self.beta
        shift = (log(self.alpha * self.A) - log(self.beta * self.B)) / exponents
        size = shift + self.beta / exponents * products
        parameters, tokens = exp(min(size, LARGEST)), exp(min(products - size, LARGEST))
        loss = self.predict_loss(parameters, tokens)
        return BestSize(parameters=parameters, tokens=tokens, loss=loss)

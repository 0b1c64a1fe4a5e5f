"""What every peer's step has: microbatches, clipping, its optimizer, and the words it obeys.

A peer gets shapes, compilation and recomputation from the recipe whose step it is beside.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.ours import tokens_of
from components.config.recipe import Recipe

Loss = Callable[[Tensor, Tensor], Tensor]
Clip = Callable[[Iterable[nn.Parameter], float], object]


class PeerStep:
    """Take one optimizer step a call: backward passes, clipping, update; return the mean loss.

    ``loss_of`` gives the mean loss of tokens and targets, (sequences, length) each.
    """

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device,
        *,
        model: nn.Module,
        loss_of: Loss,
        optimizer: torch.optim.Optimizer,
        clip: Clip,
    ) -> None:
        self._recipe, self._device = recipe, device
        self._model, self._loss_of, self._optimizer = model, loss_of, optimizer
        self._clip = clip

    def __call__(self) -> Tensor:
        rows = tokens_of(self._recipe, self._device)
        self._optimizer.zero_grad()
        total = torch.zeros((), device=self._device)
        for row in rows:
            loss = self._loss_of(row[:, :-1], row[:, 1:]) / len(rows)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            total += loss.detach()
        self._clip(self._model.parameters(), self._recipe.optimizer["clip_norm"])
        self._optimizer.step()
        return total.cpu()


def compiles(recipe: Recipe) -> bool:
    """Return whether the recipe asks for torch's compiler."""
    return str(recipe.parallelism.compile) != "none"


def recomputes(recipe: Recipe) -> str:
    """Name what is computed again: none, full, or selective for anything in between."""
    kept = recipe.parallelism.recompute
    return kept if isinstance(kept, str) and kept in {"none", "full"} else "selective"


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Take from the recipe what torch's AdamW has under the same meaning."""
    optimizer = recipe.optimizer
    return {
        "lr": optimizer["lr"],
        "betas": (optimizer["beta1"], optimizer["beta2"]),
        "eps": optimizer["eps"],
        "weight_decay": optimizer["weight_decay"],
    }

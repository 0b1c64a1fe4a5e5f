"""Base class of the peers' steps: microbatches, clipping, optimizer.

A peer takes shapes, compilation and recomputation from the recipe that it is compared with.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.own_step import draw_tokens
from components.config.recipe import Recipe

Loss = Callable[[Tensor, Tensor], Tensor]
Clip = Callable[[Iterable[nn.Parameter], float], object]


class PeerStep:
    """One optimizer step per call: backward passes, clipping, update; returns the mean loss.

    ``loss_of`` returns the mean loss of tokens and targets, both (sequences, length).
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
        rows = draw_tokens(self._recipe, self._device)
        self._optimizer.zero_grad()
        total = torch.zeros((), device=self._device)
        for row in rows:
            loss = self._loss_of(row[:, :-1], row[:, 1:]) / len(rows)
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            total += loss.detach()
        self._clip(self._model.parameters(), self._recipe.optimizer["clip_norm"])
        self._optimizer.step()
        return total.cpu()


def is_compiled(recipe: Recipe) -> bool:
    """Return whether the recipe uses torch's compiler."""
    return str(recipe.parallelism.compile) != "none"


def recompute_mode(recipe: Recipe) -> str:
    """Return the recomputation: none, full, or selective for anything in between."""
    mode = recipe.parallelism.recompute
    return mode if isinstance(mode, str) and mode in {"none", "full"} else "selective"


def adamw_kwargs(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's optimizer settings as arguments of torch's AdamW."""
    optimizer = recipe.optimizer
    return {
        "lr": optimizer["lr"],
        "betas": (optimizer["beta1"], optimizer["beta2"]),
        "eps": optimizer["eps"],
        "weight_decay": optimizer["weight_decay"],
    }

"""Ranges in a trace that say which part of a model computes.

They are hooks on modules, put there when a profile begins and taken away at its end: a run that
is not profiled has none.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from torch import nn
from torch.profiler import record_function

from components.model.attention import Attention, AttentionCore
from components.model.decoder import Decoder, Layer
from components.model.mlp import MLP
from components.model.moe import Experts
from components.model.norms import Norm

PREFIX = "part:"  # of a range's name: part:KIND PATH
_KINDS: Sequence[tuple[type[nn.Module], str]] = (
    (AttentionCore, "core"),
    (Attention, "attention"),
    (Experts, "experts"),
    (MLP, "mlp"),
    (Norm, "norm"),
    (Layer, "model"),
    (Decoder, "model"),
)


class Ranges:
    """Open a range around each call of a part of ``decoders``, until they are removed."""

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        self._handles = [
            handle
            for decoder in decoders
            for path, module in decoder.named_modules()
            if (kind := _kind(path, module)) is not None
            for handle in _hook(module, f"{PREFIX}{kind} {path or 'decoder'}")
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def _kind(path: str, module: nn.Module) -> str | None:
    """Know a part by its type; what stands for a readout may be of any."""
    if path.rpartition(".")[2] == "readout":
        return "loss"
    return next((name for kind, name in _KINDS if isinstance(module, kind)), None)


def _hook(module: nn.Module, name: str) -> Iterator[Any]:
    """Enter before the call and leave after it, also where a recomputation ends in its middle.

    Calls nest, so those that are open are a stack.
    """
    opened: list[ExitStack] = []

    def enter(*_: object) -> None:
        opened.append(ExitStack())
        opened[-1].enter_context(record_function(name))

    def leave(*_: object) -> None:
        opened.pop().close()

    before: Callable[..., None] = enter
    yield module.register_forward_pre_hook(before)
    yield module.register_forward_hook(leave, always_call=True)

"""Decoder layers: branches of attention, linear mixers and MLPs on the residual stream."""

from collections.abc import Container
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.layers import Slot
from components.model.attention import Attention, AttentionContext
from components.model.checkpoint_storage import pass_through
from components.model.mixers.mixer import Mixer


class Layer(nn.Module):
    """Layer: its branches, one after another, are added to the residual stream.

    A branch is the sum of parts that read the same hidden states: ``attention``, a linear
    ``mixer`` or an ``mlp``, each None if the layer lacks it. A norm is named after the first
    part of its branch. ``norm_placement`` is of the model or of the mixer: norms before
    branches; ``after`` them, with the same names (OLMo-2, https://arxiv.org/abs/2501.00656,
    section 3.2); or ``both`` (Gemma 3, https://arxiv.org/abs/2503.19786, section 2).
    ``in_graph`` is True if a compiled graph calls the layer's parts, without their hooks.
    """

    in_graph = False
    branch_multiplier = 1.0
    attention: Attention | None
    mixer: Mixer | None
    mlp: nn.Module | None

    def __init__(self, spec: DecoderSpec) -> None:
        """Build the layer of a decoder whose layers are all alike."""
        super().__init__()
        layer, norm = spec.layer_type, partial(spec.norm.build_part, dim=spec.dim)
        self.branches = layer.branches
        parts: dict[str, Any] = {
            "attention": spec.attention,
            "mixer": layer.mixer,
            "mlp": spec.mlp,
        }
        placement = spec.norm_placement
        for branch in self.branches:
            self.add_module(f"{branch[0]}_norm", norm())
            for name in branch:
                self.add_module(name, parts.pop(name).build_part(dim=spec.dim))
        for absent in parts:
            self.register_module(absent, None)
        self.dropout = nn.Dropout(spec.dropout)
        if placement == "both":
            for first, *_ in self.branches:
                self.add_module(f"{first}_norm_after", norm())
        before, after = placement != "after", placement != "before"
        last = "_norm_after" if before else "_norm"
        # Names of the norms before and after each branch.
        self._norms = tuple(
            (f"{first}_norm" if before else None, f"{first}{last}" if after else None)
            for first, *_ in self.branches
        )
        self._starts = {first: number for number, (first, *_) in enumerate(self.branches)}
        self._in_parts: set[str] = set()  # norms that the first part of their branch calls

    @property
    def hidden_norms(self) -> list[nn.Module]:
        """The norms of hidden states, without the norms inside attention."""
        names = [f"{first}_norm" for first, *_ in self.branches]
        names += [f"{name}_after" for name in names if hasattr(self, f"{name}_after")]
        return [getattr(self, name) for name in names]

    def move_norms(self, parts: Container[nn.Module]) -> list[nn.Module]:
        """Let each of ``parts`` that is a branch of its own call the norm before it.

        A recomputed part then stores the norm's input instead of its output; its checkpoint's
        hook has to run before the norm. Return the norms that are now called by a part.
        """
        moved = []
        for (before, _), (first, *others) in zip(self._norms, self.branches, strict=True):
            part = getattr(self, first)
            if before is not None and not others and part in parts:
                self._in_parts.add(before)
                moved.append(norm := getattr(self, before))
                part.register_forward_pre_hook(partial(_norm_first, norm=norm))
        return moved

    @property
    def layer_window(self) -> int | None:
        """Attention window of the layer; None means no window, or no attention."""
        return None if self.attention is None else self.attention.window

    @property
    def mixing_parts(self) -> list[nn.Module]:
        """Attention and linear mixer, as far as the layer has them."""
        return [part for part in (self.attention, self.mixer) if part is not None]

    def forward(
        self, hidden: Float[Tensor, "batch seq dim"], scope: AttentionContext
    ) -> Tensor:
        # A part that is not compiled ends torch's graph. Its call is in this function, outside
        # a loop, because the compiler would make a graph of each helper or loop body.
        inputs, total = hidden, None
        if self.attention is not None:
            hidden, inputs, total = self._start_part("attention", hidden, inputs, total)
            total = _sum_parts(total, self.attention(inputs, scope))
        if self.mixer is not None:
            hidden, inputs, total = self._start_part("mixer", hidden, inputs, total)
            total = _sum_parts(total, self.mixer(inputs, scope))
        if self.mlp is not None:
            hidden, inputs, total = self._start_part("mlp", hidden, inputs, total)
            total = _sum_parts(total, self.mlp(inputs))
        return self._end_branch(len(self.branches) - 1, hidden, total)

    def _start_part(
        self, name: Slot, hidden: Tensor, inputs: Tensor, total: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the residual stream, the part's inputs and the sum of its branch so far."""
        if name not in self._starts:
            return hidden, inputs, total
        branch = self._starts[name]
        if total is not None:
            hidden = self._end_branch(branch - 1, hidden, total)
        before, _ = self._norms[branch]
        if before is None or before in self._in_parts:
            return hidden, hidden, None
        return hidden, getattr(self, before)(hidden), None

    def _end_branch(self, branch: int, hidden: Tensor, total: Tensor | None) -> Tensor:
        """Add the sum of a branch's parts to the residual stream."""
        assert total is not None
        _, after = self._norms[branch]
        if after is not None:
            total = cast("Tensor", getattr(self, after)(total))
        elif branch == len(self.branches) - 1:
            total = pass_through(total)
        return self._add(hidden, total)

    def _add(self, hidden: Tensor, branch: Tensor) -> Tensor:
        """Add a branch, times ``branch_multiplier``, to the residual stream."""
        return torch.add(hidden, self.dropout(branch), alpha=self.branch_multiplier)


def _norm_first(_: nn.Module, inputs: tuple[Any, ...], *, norm: nn.Module) -> tuple[Any, ...]:
    return norm(inputs[0]), *inputs[1:]


def _sum_parts(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total + part


def collect_layers(model: nn.Module) -> dict[str, Any]:
    """Return the layers of a model or a stage by number; multi-token depths come last."""
    layers = dict(cast("nn.ModuleDict", model.layers).items())
    depths = getattr(model, "mtp", None) or {}
    return layers | {number: depth.layer for number, depth in depths.items()}

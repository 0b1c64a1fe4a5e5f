"""Positions: what a token's place does to embeddings, queries and keys, and scores."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from typing_extensions import override

from components.config.model_spec.positions import (
    InterleavedRotarySpec,
    LearnedSpec,
    PositionsSpec,
    RotarySpec,
)
from components.errors import RecipeError
from components.model.rotary_scaling import Scaling


class Rotation:
    """Turn the channels of queries and keys by the angle of their position.

    It computes in float32 or finer, and returns the precision that came in. ``magnitude`` is
    the factor that the cosines and sines contain.
    """

    def __init__(
        self,
        *,
        cos: Float[Tensor, "seq 1 head_dim"],
        sin: Float[Tensor, "seq 1 head_dim"],
        magnitude: float = 1.0,
    ) -> None:
        self.cos = cos
        self.sin = sin
        self.magnitude = magnitude

    def __call__(self, heads: Float[Tensor, "batch seq heads head_dim"]) -> Tensor:
        wide = heads.to(torch.promote_types(heads.dtype, self.cos.dtype))
        swapped = wide.roll(heads.shape[-1] // 2, dims=-1)
        return (wide * self.cos + swapped * self.sin).type_as(heads)


class Placement:
    """What positions do to one forward pass; what a kind of positions does not do is ``None``.

    ``embedded`` is added to the embeddings, ``rotation`` turns queries and keys, ``local``
    those of layers with a window where they turn in another way, and a score falls by its
    head's slope for every place that the key lies behind the query. A plain class:
    ``fully_shard`` would cast the tensors of dataclasses and tuples to bfloat16.
    """

    def __init__(
        self,
        *,
        places: Int[Tensor, " seq"],
        embedded: Float[Tensor, "seq dim"] | None = None,
        rotation: Rotation | None = None,
        local: Rotation | None = None,
        slopes: Float[Tensor, " heads"] | None = None,
    ) -> None:
        self.places = places
        self.embedded = embedded
        self.rotation = rotation
        self.local = local
        self.slopes = slopes

    @property
    def in_windows(self) -> "Placement":
        """What positions do in the layers with a window."""
        if self.local is None:
            return self
        return Placement(places=self.places, rotation=self.local, slopes=self.slopes)


class Positions(nn.Module):
    """Place the tokens by their order alone; other kinds say what else a place does."""

    def __init__(self, spec: PositionsSpec, *, dim: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.spec = spec
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = head_dim

    def forward(self, places: Int[Tensor, " seq"]) -> Placement:
        """Compute anew what depends on places: no buffer has to survive ``meta``."""
        return Placement(places=places)

    def turns(self, layer: int) -> bool:
        """Whether the layer of this number, from 0, applies a rotation where there is one."""
        return True


class Rotary(Positions):
    """Rotate channel pairs by position times frequency (RoPE).

    Pair ``i`` turns by ``position * base ** (-2 i / head_dim)``, https://arxiv.org/abs/2104.09864,
    section 3.2.2. Pairs are ``(i, i + head_dim / 2)`` as in GPT-NeoX, Megatron and Hugging Face
    checkpoints; the paper and Meta's Llama pair ``(2 i, 2 i + 1)``. A
    ``scaling`` slows pairs down. Layers with a window turn by ``local_base``, where there is
    one, and are not slowed (Gemma 3, https://arxiv.org/abs/2503.19786, section 2).
    """

    def __init__(self, spec: RotarySpec, *, dim: int, num_heads: int, head_dim: int) -> None:
        super().__init__(spec, dim=dim, num_heads=num_heads, head_dim=head_dim)
        self.base = spec.base
        scaling = spec.scaling
        self.scaling: Scaling | None = None if scaling is None else scaling.build()
        self.local_base = spec.local_base

    def forward(self, places: Int[Tensor, " seq"]) -> Placement:
        rotation, local = self._rotation(places, self.base, self.scaling), None
        if self.local_base is not None:
            local = self._rotation(places, self.local_base, None)
        return Placement(places=places, rotation=rotation, local=local)

    def _rotation(self, places: Tensor, base: float, scaling: Scaling | None) -> Rotation:
        channels = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=places.device)
        frequencies, magnitude = 1.0 / base ** (channels / self.head_dim), 1.0
        if scaling is not None:
            frequencies = scaling(frequencies, base=base)
            magnitude = scaling.magnitude
        angles = torch.outer(places.float(), frequencies)[:, None]  # (seq, 1, half)
        cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
        cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return Rotation(cos=cos, sin=sin, magnitude=magnitude)


class InterleavedRotary(Rotary):
    """Rotate in all layers but each ``skip_every``-th, which knows the order by its mask alone.

    With 4 it is the layers 4, 8, ... counted from 1 that have no positions (NoPE, as in
    https://arxiv.org/abs/2501.18795).
    """

    def __init__(
        self, spec: InterleavedRotarySpec, *, dim: int, num_heads: int, head_dim: int
    ) -> None:
        super().__init__(spec, dim=dim, num_heads=num_heads, head_dim=head_dim)
        self.skip_every: int = spec.skip_every

    @override
    def turns(self, layer: int) -> bool:
        return (layer + 1) % self.skip_every != 0


class Alibi(Positions):
    """Lower each score in proportion to distance, steeply in some heads, gently in others.

    https://arxiv.org/abs/2108.12409, section 3.
    """

    def forward(self, places: Int[Tensor, " seq"]) -> Placement:
        return Placement(places=places, slopes=self.slopes(places.device))

    def slopes(self, device: torch.device) -> Float[Tensor, " heads"]:
        """Return what a score falls by for each place."""
        return torch.tensor(alibi_slopes(self.num_heads), device=device)


class Learned(Positions):
    """Add a trained vector for each absolute place to the embeddings.

    Raises:
        RecipeError: when called, the sequence is longer than there are positions.
    """

    def __init__(self, spec: LearnedSpec, *, dim: int, num_heads: int, head_dim: int) -> None:
        super().__init__(spec, dim=dim, num_heads=num_heads, head_dim=head_dim)
        self.weight = nn.Parameter(torch.zeros(spec.num_positions, dim))

    def forward(self, places: Int[Tensor, " seq"]) -> Placement:
        if len(places) > len(self.weight):
            problem = f"{len(self.weight):,} learned positions for {len(places):,} tokens"
            remedy = f"use {len(places):,} or more, or shorten budget.sequence_length"
            raise RecipeError("model.positions.num_positions", problem, remedy)
        return Placement(places=places, embedded=F.embedding(places, self.weight))


def alibi_slopes(num_heads: int) -> list[float]:
    """List the slopes head by head: ``2 ** (-8 i / n)`` for ``n`` heads, a power of two.

    For other numbers, the slopes of the power below, then every second one of the power above,
    as the paper's authors do (https://arxiv.org/abs/2108.12409, footnote 8 and their code).
    """
    below = 2 ** math.floor(math.log2(num_heads))
    whole = [2.0 ** (-8 * (i + 1) / below) for i in range(below)]
    between = [2.0 ** (-8 * (2 * i + 1) / (2 * below)) for i in range(num_heads - below)]
    return whole + between

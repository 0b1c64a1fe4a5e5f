"""Position encodings: RoPE, ALiBi, learned embeddings and none."""

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
    """Rotation (RoPE) of query and key channels by position, in float32 or wider.

    The result has the input's dtype. Cosines and sines include the factor ``magnitude``. Only
    the first channels rotate if heads have more channels than ``cos``.
    """

    def __init__(
        self,
        *,
        cos: Float[Tensor, "seq 1 rotary_dim"],
        sin: Float[Tensor, "seq 1 rotary_dim"],
        magnitude: float = 1.0,
    ) -> None:
        self.cos = cos
        self.sin = sin
        self.magnitude = magnitude

    def __call__(self, heads: Float[Tensor, "batch seq heads head_dim"]) -> Tensor:
        if (width := self.cos.shape[-1]) < heads.shape[-1]:
            rotated, others = heads.tensor_split((width,), dim=-1)
            return torch.cat((self(rotated), others), -1)
        wide = heads.to(torch.promote_types(heads.dtype, self.cos.dtype))
        swapped = wide.roll(heads.shape[-1] // 2, dims=-1)
        return (wide * self.cos + swapped * self.sin).type_as(heads)


class PositionEncoding:
    """Position encoding of one forward pass; ``None`` for each part that a kind lacks.

    ``embedded`` is added to the embeddings. ``rotation`` rotates queries and keys; ``local``
    replaces it in layers with a window. A score decreases by its head's slope times distance.
    ``fully_shard`` would cast the tensors of a dataclass or tuple to bfloat16.
    """

    def __init__(
        self,
        *,
        position_ids: Int[Tensor, " seq"],
        embedded: Float[Tensor, "seq dim"] | None = None,
        rotation: Rotation | None = None,
        local: Rotation | None = None,
        slopes: Float[Tensor, " heads"] | None = None,
    ) -> None:
        self.position_ids = position_ids
        self.embedded = embedded
        self.rotation = rotation
        self.local = local
        self.slopes = slopes

    @property
    def in_windows(self) -> "PositionEncoding":
        """The position encoding of the layers with a window."""
        if self.local is None:
            return self
        return PositionEncoding(
            position_ids=self.position_ids, rotation=self.local, slopes=self.slopes
        )


class Positions(nn.Module):
    """Positions without an encoding: only the causal mask orders tokens. Base class."""

    def __init__(self, spec: PositionsSpec, *, dim: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.spec = spec
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = head_dim

    def forward(self, position_ids: Int[Tensor, " seq"]) -> PositionEncoding:
        """Compute the encoding in each pass: it needs no buffers, which ``meta`` would lose."""
        return PositionEncoding(position_ids=position_ids)

    def uses_rope(self, layer: int) -> bool:
        """Return whether a layer, numbered from 0, applies the rotation, if there is one."""
        return True


class Rotary(Positions):
    """RoPE: rotates channel pairs by position times frequency.

    The angle of pair ``i`` is ``position * base ** (-2 i / head_dim)``, section 3.2.2 of
    https://arxiv.org/abs/2104.09864. Pairs are ``(i, i + head_dim / 2)`` as in GPT-NeoX,
    Megatron and Hugging Face checkpoints; the paper and Meta's Llama pair ``(2 i, 2 i + 1)``.
    With a ``rotary_fraction``, ``head_dim`` in both formulas is the number of rotated channels,
    the first of a head (GPT-NeoX, Qwen3-Next). With a ``local_base``, layers with a window use
    that base without ``scaling`` (Gemma 3, https://arxiv.org/abs/2503.19786, section 2).
    """

    def __init__(self, spec: RotarySpec, *, dim: int, num_heads: int, head_dim: int) -> None:
        super().__init__(spec, dim=dim, num_heads=num_heads, head_dim=head_dim)
        self.base = spec.base
        self.rotary_dim = spec.rotary_width(head_dim)
        scaling = spec.scaling
        self.scaling: Scaling | None = None if scaling is None else scaling.build_part()
        self.local_base = spec.local_base

    def forward(self, position_ids: Int[Tensor, " seq"]) -> PositionEncoding:
        rotation, local = self._rotation(position_ids, self.base, self.scaling), None
        if self.local_base is not None:
            local = self._rotation(position_ids, self.local_base, None)
        return PositionEncoding(position_ids=position_ids, rotation=rotation, local=local)

    def _rotation(self, position_ids: Tensor, base: float, scaling: Scaling | None) -> Rotation:
        channels = torch.arange(
            0, self.rotary_dim, 2, dtype=torch.float32, device=position_ids.device
        )
        frequencies, magnitude = 1.0 / base ** (channels / self.rotary_dim), 1.0
        if scaling is not None:
            frequencies = scaling(frequencies, base=base)
            magnitude = scaling.magnitude
        angles = torch.outer(position_ids.float(), frequencies)[:, None]  # (seq, 1, half)
        cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
        cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return Rotation(cos=cos, sin=sin, magnitude=magnitude)


class InterleavedRotary(Rotary):
    """RoPE in all layers but each ``skip_every``-th, counted from 1 (NoPE: causal mask only).

    As in https://arxiv.org/abs/2501.18795.
    """

    def __init__(
        self, spec: InterleavedRotarySpec, *, dim: int, num_heads: int, head_dim: int
    ) -> None:
        super().__init__(spec, dim=dim, num_heads=num_heads, head_dim=head_dim)
        self.skip_every: int = spec.skip_every

    @override
    def uses_rope(self, layer: int) -> bool:
        return (layer + 1) % self.skip_every != 0


class Alibi(Positions):
    """ALiBi (https://arxiv.org/abs/2108.12409, section 3): a head's slope lowers scores."""

    def forward(self, position_ids: Int[Tensor, " seq"]) -> PositionEncoding:
        return PositionEncoding(
            position_ids=position_ids, slopes=self.compute_slopes(position_ids.device)
        )

    def compute_slopes(self, device: torch.device) -> Float[Tensor, " heads"]:
        """Return the decrease of a score per position of distance, for each head."""
        return torch.tensor(alibi_slopes(self.num_heads), device=device)


class Learned(Positions):
    """Learned positions: adds a trained vector for each absolute position to the embeddings."""

    def __init__(self, spec: LearnedSpec, *, dim: int, num_heads: int, head_dim: int) -> None:
        super().__init__(spec, dim=dim, num_heads=num_heads, head_dim=head_dim)
        self.weight = nn.Parameter(torch.zeros(spec.num_positions, dim))

    def forward(self, position_ids: Int[Tensor, " seq"]) -> PositionEncoding:
        if len(position_ids) > len(self.weight):
            problem = f"{len(self.weight):,} learned positions for {len(position_ids):,} tokens"
            remedy = f"use {len(position_ids):,} or more, or shorten budget.sequence_length"
            raise RecipeError("model.positions.num_positions", problem, remedy)
        return PositionEncoding(
            position_ids=position_ids, embedded=F.embedding(position_ids, self.weight)
        )


def alibi_slopes(num_heads: int) -> list[float]:
    """List the ALiBi slopes of ``n`` heads: ``2 ** (-8 i / n)`` if ``n`` is a power of two.

    Otherwise, list the slopes for the next lower power, then every second slope for the next
    higher power, as in the authors' code (https://arxiv.org/abs/2108.12409, footnote 8).
    """
    below = 2 ** math.floor(math.log2(num_heads))
    whole = [2.0 ** (-8 * (i + 1) / below) for i in range(below)]
    between = [2.0 ** (-8 * (2 * i + 1) / (2 * below)) for i in range(num_heads - below)]
    return whole + between

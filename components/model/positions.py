"""How a decoder learns where a token stands.

A positions part is called once per forward pass; what it returns is handed to every layer.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from components.errors import RecipeError


class Rotation:
    """Turn the channels of queries and keys by the angle of their position.

    A plain class on purpose: ``fully_shard`` casts every tensor that it finds in a layer's
    arguments, in dataclasses and tuples too, to the parameters' precision, and would round
    float32 sines and cosines to the 8 bits of bfloat16.
    """

    def __init__(
        self, *, cos: Float[Tensor, "seq 1 head_dim"], sin: Float[Tensor, "seq 1 head_dim"]
    ) -> None:
        self.cos = cos
        self.sin = sin

    def __call__(
        self, heads: Float[Tensor, "batch seq heads head_dim"]
    ) -> Float[Tensor, "batch seq heads head_dim"]:
        """Rotate in float32 and return the precision that came in."""
        wide = heads.to(self.cos.dtype)
        swapped = wide.roll(heads.shape[-1] // 2, dims=-1)
        return (wide * self.cos + swapped * self.sin).type_as(heads)


class Rotary(nn.Module):
    """Rotate channel pairs by position times frequency (RoPE).

    Pair ``i`` turns by ``position * base ** (-2 i / head_dim)``, https://arxiv.org/abs/2104.09864,
    section 3.2.2. Pairs are ``(i, i + head_dim / 2)`` as in GPT-NeoX, Megatron and Hugging Face
    checkpoints; the paper and Meta's Llama pair ``(2 i, 2 i + 1)``.
    """

    def __init__(self, *, base: float) -> None:
        super().__init__()
        self.base = base

    def check(self, *, head_dim: int) -> None:
        """Refuse heads that these positions cannot serve.

        Raises:
            RecipeError: ``head_dim`` is odd.
        """
        if head_dim % 2:
            raise RecipeError(
                "model.attention.head_dim",
                f"{head_dim} is odd, but rotary positions turn channels in pairs",
                f"use {head_dim - 1} or {head_dim + 1}",
            )

    def forward(self, sequence_length: int, *, head_dim: int, device: torch.device) -> Rotation:
        """Compute the angles anew: no buffer has to survive ``meta`` or a checkpoint."""
        channels = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
        frequencies = 1.0 / self.base ** (channels / head_dim)
        positions = torch.arange(sequence_length, dtype=torch.float32, device=device)
        angles = torch.outer(positions, frequencies)[:, None]  # (seq, 1, half): all heads alike
        cos, sin = angles.cos(), angles.sin()
        return Rotation(cos=torch.cat((cos, cos), -1), sin=torch.cat((-sin, sin), -1))

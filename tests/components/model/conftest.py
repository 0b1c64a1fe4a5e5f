"""Small models of awkward shapes, built by keyword arguments as a recipe would."""

from collections.abc import Callable
from functools import partial

import pytest

from components.model.attention import Attention
from components.model.decoder import Decoder
from components.model.initialization import Normal
from components.model.mlp import MLP
from components.model.norms import Norm
from components.model.positions import Rotary


def _small_decoder(
    *,
    dim: int = 48,
    num_layers: int = 2,
    vocab_size: int = 61,
    padded_vocab_size: int = 67,
    tied_embeddings: bool = True,
    num_heads: int = 6,
    num_kv_heads: int = 2,
    head_dim: int = 10,
    std: float = 0.2,
) -> Decoder:
    return Decoder(
        dim=dim,
        num_layers=num_layers,
        vocab_size=vocab_size,
        padded_vocab_size=padded_vocab_size,
        tied_embeddings=tied_embeddings,
        positions=Rotary(base=10_000.0),
        attention=partial(
            Attention,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            bias=False,
        ),
        mlp=partial(MLP, ffn_dim=77, activation="silu", gated=True, bias=False),
        norm=partial(Norm, eps=1e-5, center=False, weight=True, bias=False),
        initialization=Normal(std=std, residual="scaled"),
    )


@pytest.fixture
def small_decoder() -> Callable[..., Decoder]:
    return _small_decoder

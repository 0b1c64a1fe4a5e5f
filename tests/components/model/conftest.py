"""Small models of awkward shapes, built by keyword arguments as a recipe would."""

from collections.abc import Callable
from typing import Literal

import pytest

from components.attention_backends import BACKENDS, Backend
from components.attention_windows import Window
from components.config.model_spec.attention import GroupedQueryAttentionSpec
from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.feed_forward import FeedForwardSpec, MLPSpec
from components.config.model_spec.initialization import NormalSpec
from components.config.model_spec.norms import NormSpec
from components.config.model_spec.positions import PositionsSpec, RotarySpec
from components.model.decoder import Decoder

ROTARY = RotarySpec(base=10_000.0)
RMS_NORM = NormSpec(eps=1e-5, center=False, weight=True, bias=False)
SWIGLU = MLPSpec(ffn_dim=77, activation="silu", gated=True, bias=False)


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
    bias: bool = False,
    qk_norm: NormSpec | None = None,
    qk_norm_over: Literal["all_heads", "each_head"] = "all_heads",
    layer_scaling: bool = False,
    backends: tuple[Backend, ...] = BACKENDS,
    positions: PositionsSpec = ROTARY,
    mlp: FeedForwardSpec = SWIGLU,
    norm: NormSpec = RMS_NORM,
    embedding_norm: NormSpec | None = None,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    std: float = 0.2,
    padding_row: int | None = None,
    norm_placement: Literal["before", "after", "both"] = "before",
    windows: tuple[Window, ...] = ("full",),
    scale_dim: int | None = None,
    output_gate: bool = False,
    sinks: bool = False,
    embedding_scale: Literal["none", "sqrt_dim"] = "none",
) -> Decoder:
    return Decoder(
        DecoderSpec(
            dim=dim,
            num_layers=num_layers,
            vocab_size=vocab_size,
            padded_vocab_size=padded_vocab_size,
            tied_embeddings=tied_embeddings,
            positions=positions,
            attention=GroupedQueryAttentionSpec(
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                bias=bias,
                qk_norm=qk_norm,
                layer_scaling=layer_scaling,
                dropout=attention_dropout,
                backends=backends,
                qk_norm_over=qk_norm_over,
                windows=windows,
                scale_dim=scale_dim,
                output_gate=output_gate,
                sinks=sinks,
            ),
            mlp=mlp,
            norm=norm,
            embedding_norm=embedding_norm,
            dropout=dropout,
            initialization=NormalSpec(std=std, residual="scaled", padding_row=padding_row),
            init_from="none",
            norm_placement=norm_placement,
            embedding_scale=embedding_scale,
        )
    )


@pytest.fixture
def small_decoder() -> Callable[..., Decoder]:
    return _small_decoder

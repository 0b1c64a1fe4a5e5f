"""Functions that ranks run in tests of tensor parallelism: a split copy and the whole model."""

import copy
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from components.attention_backends import BACKENDS
from components.attention_windows import Window
from components.config.model_spec.attention import AttentionSpec, LatentAttentionSpec
from components.config.model_spec.feed_forward import FeedForwardSpec
from components.config.model_spec.mixers import (
    GatedDeltaNetSpec,
    KimiDeltaSpec,
    Mamba2Spec,
    MixerSpec,
)
from components.config.model_spec.mtp import MTPSpec
from components.config.model_spec.norms import NormSpec
from components.config.model_spec.parametrization import MuPSpec
from components.config.model_spec.positions import (
    AlibiSpec,
    LearnedSpec,
    PositionsSpec,
    RotarySpec,
)
from components.config.model_spec.rotary_scaling import LinearScalingSpec
from components.distributed.tensor import split_tensors
from components.model.decoder import Decoder
from tests.components.model import specs
from tests.components.model.comparison import gradient_of

# Double precision has 16 digits; sums in another order cost the last two or three.
LOSS_TOLERANCE = 1e-12
GRADIENT_TOLERANCE = 1e-10
VOCAB_SIZE = 60
LENGTH = 16
LAYER_NORM, RMS_NORM, ROTARY = specs.LAYER_NORM, specs.RMS_NORM, specs.ROTARY
BARE_RMS_NORM = RMS_NORM.model_copy(update={"weight": False})
BARE_LAYER_NORM = LAYER_NORM.model_copy(update={"weight": False, "bias": False})
SWIGLU = specs.mlp_spec(32)
RELU_SQUARED = specs.mlp_spec(32, "relu_squared")
XIELU = specs.mlp_spec(32, "xielu")
GELU = specs.mlp_spec(32, "gelu", bias=True)
GEGLU = specs.mlp_spec(32, "gelu_tanh", gated=True)
LATENT = LatentAttentionSpec(
    num_heads=4,
    num_kv_heads=4,
    head_dim=10,
    rotary_dim=4,
    value_dim=6,
    query_rank=9,
    key_value_rank=7,
    latent_norm=RMS_NORM,
    dropout=0.0,
    backends=BACKENDS,
)


class Parts(NamedTuple):
    """Parts of a decoder; the defaults resemble Llama."""

    num_heads: int = 8
    num_kv_heads: int = 4
    bias: bool = False
    qk_norm: NormSpec | None = None
    tied: bool = False
    positions: PositionsSpec = ROTARY
    mlp: FeedForwardSpec = SWIGLU
    norm: NormSpec = RMS_NORM
    embedding_norm: NormSpec | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    num_layers: int = 2
    rows: int = 64
    norm_placement: Literal["before", "after", "both"] = "before"
    qk_norm_over: Literal["all_heads", "each_head"] = "all_heads"
    windows: tuple[Window, ...] = ("full",)
    dense_mlp: FeedForwardSpec | None = None
    attention: AttentionSpec | None = None
    logit_cap: float | None = None
    mtp: MTPSpec | None = None
    embedding_scale: Literal["none", "sqrt_dim"] = "none"
    scale_dim: int | None = None
    z_loss: float = 0.0
    parametrization: MuPSpec | None = None
    pattern: tuple[str, ...] | None = None
    mixers: Mapping[str, MixerSpec] | None = None
    output_gate: bool = False
    sinks: bool = False


# Norms on both sides, scaled embeddings and scores, and a local rotary base.
GEMMA3 = Parts(
    num_kv_heads=2,
    qk_norm=RMS_NORM,
    qk_norm_over="each_head",
    tied=True,
    positions=RotarySpec(
        base=10_000.0, scaling=LinearScalingSpec(factor=8.0), local_base=100.0
    ),
    mlp=GEGLU,
    num_layers=3,
    norm_placement="both",
    windows=(5, "full"),
    embedding_scale="sqrt_dim",
    scale_dim=9,
)

# All linear mixers, one of them parallel to attention, and layers with one part.
SIZES: dict[str, Any] = {"key_dim": 3, "value_dim": 4, "conv_size": 3, "norm": RMS_NORM}
HEADS: dict[str, Any] = {"num_heads": 8, "num_key_heads": 4}
MIXERS: Mapping[str, MixerSpec] = {
    "delta": GatedDeltaNetSpec(**SIZES, **HEADS, norm_placement="before"),
    "kimi": KimiDeltaSpec(**SIZES, num_heads=4, gate_rank=5),
    "mamba": Mamba2Spec(**SIZES, **HEADS, conv_bias=True),
}
HYBRID = Parts(
    pattern=("delta/mlp", "attention+mamba/mlp", "kimi", "mlp"),
    mixers=MIXERS,
    num_layers=4,
    norm_placement="after",
)


GPT = Parts(
    num_kv_heads=8,
    bias=True,
    tied=True,
    positions=LearnedSpec(num_positions=LENGTH),
    mlp=GELU,
    norm=LAYER_NORM,
)
BLOOM = GPT._replace(
    num_heads=12,  # not a power of two
    num_kv_heads=12,
    positions=AlibiSpec(),
    embedding_norm=LAYER_NORM,
)


class Difference(NamedTuple):
    """Relative differences between a split and a whole decoder, and the worst parameter."""

    loss: float
    gradient: float
    parameter: str


def assert_small(differences: list[Difference]) -> None:
    for difference in differences:
        assert difference.loss < LOSS_TOLERANCE
        assert difference.gradient < GRADIENT_TOLERANCE, difference.parameter


def build(parts: Parts) -> Decoder:
    given = {name: one for name, one in parts._asdict().items() if one is not None}
    given |= {"tied_embeddings": given.pop("tied"), "padded_vocab_size": given.pop("rows")}
    return specs.small_decoder(dim=24, vocab_size=VOCAB_SIZE, head_dim=6, **given)


def randomized(parts: Parts, *, seed: int = 0) -> Decoder:
    """Build a decoder in double precision with no weight of 0 or 1."""
    torch.manual_seed(seed)
    decoder = build(parts).double()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return decoder


def batch(*, seed: int = 1, sequences: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Draw tokens, targets and document numbers, three documents per row."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(VOCAB_SIZE, (sequences, LENGTH + 1), generator=generator)
    ends = torch.zeros(sequences, LENGTH, dtype=torch.long)
    ends[:, 3], ends[:, 9] = 1, 1
    return rows[:, :-1], rows[:, 1:], ends.cumsum(1)


@cache
def mesh_of(*sizes: int) -> DeviceMesh:
    """Make the root mesh with a data and a tensor axis."""
    return init_device_mesh("cpu", sizes, mesh_dim_names=("data", "tensor"))


def tensor_mesh() -> DeviceMesh:
    return mesh_of(1, torch.distributed.get_world_size())["tensor"]


def split_copy(whole: Decoder, *, sequence_parallel: bool) -> Decoder:
    split = copy.deepcopy(whole)
    split_tensors(split, tensor_mesh(), sequence_parallel=sequence_parallel)
    return split


def full(tensor: Tensor | None) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.full_tensor()


def relative(found: Tensor, expected: Tensor, *, floor: float = 0.0) -> float:
    difference: Tensor = (found - expected).norm() / expected.norm().clamp(min=floor)
    return difference.item()


def gradients(split: nn.Module) -> dict[str, Tensor]:
    return {name: full(parameter.grad) for name, parameter in split.named_parameters()}


def worst(whole: nn.Module, found: dict[str, Tensor]) -> tuple[float, str]:
    """Return the largest relative gradient difference and the name of its parameter."""
    expected = {name: gradient_of(parameter) for name, parameter in whole.named_parameters()}
    assert set(expected) == set(found)
    # Without rotation the softmax cancels the key's bias: its gradient is rounding alone.
    floor = 1e-4 * max(gradient.norm().item() for gradient in expected.values())
    return max(
        (relative(found[name], gradient, floor=floor), name)
        for name, gradient in expected.items()
    )


def compare(parts: Parts, sequence_parallel: bool, documents: bool) -> Difference:
    """Compare losses and gradients of two microbatches, whole and split."""
    whole = randomized(parts)
    split = split_copy(whole, sequence_parallel=sequence_parallel)
    losses: list[Tensor] = []
    for decoder in (whole, split):
        losses.append(torch.stack(list(_backward(decoder, documents))))
    for name, parameter in split.named_parameters():
        assert isinstance(parameter, DTensor), name
        assert isinstance(parameter.grad, DTensor), name
        assert parameter.grad.placements == parameter.placements, name
    return Difference(relative(losses[1], losses[0]), *worst(whole, gradients(split)))


def _backward(decoder: Decoder, documents: bool) -> Iterable[Tensor]:
    for seed in (1, 2):
        tokens, targets, numbers = batch(seed=seed)
        loss = decoder.compute_loss(tokens, targets, documents=numbers if documents else None)
        torch.autograd.backward(loss)
        yield loss.detach()


def logits_difference(parts: Parts, sequence_parallel: bool) -> float:
    whole = randomized(parts).eval()
    split = split_copy(whole, sequence_parallel=sequence_parallel)
    tokens, _, _ = batch()
    with torch.no_grad():
        return relative(split(tokens), whole(tokens))


def refuse(parts: Parts, sequence_parallel: bool) -> str:
    """Return the message of the expected error."""
    tokens, _, _ = batch()
    try:
        split_copy(randomized(parts), sequence_parallel=sequence_parallel)(tokens[:, :-1])
    except ValueError as error:
        return str(error)
    raise AssertionError("nothing was refused")

"""Linear mixers' common parts: the base class, the convolution, and first values."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from components.config.model_spec.mixers import MixerSpec
from components.model.attention import AttentionContext
from components.model.linear import Linear, ResidualLinear, product_dtype
from components.model.mixers.scan import Scan
from components.scan_backends import PACKAGES, ScanBackend, select_scan

EPS = 1e-6  # of the lengths of queries and keys, as in the flash-linear-attention library
Drawn = Mapping[str, Callable[[Tensor], Tensor]]  # a vector's values from uniform numbers


class ShortConvolution(nn.Module):
    """Causal convolution of each channel over ``size`` tokens of a document, then SiLU.

    The first ``taps`` apply to the earliest token. They start with the standard deviation of
    torch's convolutions, ``1 / sqrt(3 size)``.
    """

    def __init__(self, channels: int, size: int, *, bias: bool = False) -> None:
        super().__init__()
        self.initial_std = 1.0 / math.sqrt(3 * size)
        self.taps = nn.Parameter(torch.zeros(channels, size))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(
        self,
        tokens: Float[Tensor, "batch seq channels"],
        ages: Int[Tensor, "batch seq"] | None,
        before: Float[Tensor, "batch lags channels"] | None = None,
    ) -> Float[Tensor, "batch seq channels"]:
        """Convolve; ``before`` are the ``size - 1`` tokens before the first, by default 0."""
        taps, size = self.taps.to(tokens.dtype), self.taps.shape[1]
        length = tokens.shape[1]
        if before is None:
            before = tokens.new_zeros(len(tokens), size - 1, tokens.shape[2])
        earlier = torch.cat((before, tokens), 1)
        total = tokens * taps[:, -1]
        for lag in range(1, size):
            shifted = earlier[:, size - 1 - lag :][:, :length]
            if ages is not None:
                shifted = shifted * (ages >= lag)[..., None]
            total = total + shifted * taps[:, size - 1 - lag]
        if self.bias is not None:
            total = total + self.bias.to(tokens.dtype)
        return F.silu(total)


class WholeSequence:
    """Computation along the sequence if a rank has all tokens."""

    def convolve_tokens(
        self, convolution: ShortConvolution, tokens: Tensor, ages: Tensor | None
    ) -> Tensor:
        """Return the convolution of tokens with their ages."""
        return cast("Tensor", convolution(tokens, ages))

    def scan_tokens(
        self, scan: Scan, tokens: Sequence[Tensor], resets: Tensor | None, *, chunk: int
    ) -> Tensor:
        """Return the outputs of a scan of queries, keys, values, decays and so on."""
        return scan(*tokens, resets=resets, chunk=chunk)[0]


class Mixer(nn.Module):
    """Linear mixer: convolutions of its inputs, a scan of its heads' states, a gated norm.

    The base class has the maps that all mixers have. ``log_decay`` and ``step_bias`` start
    where the decays (a number per unit of step size) and the step sizes of the specification
    are uniform and log-uniform (github.com/state-spaces/mamba, modules/mamba2.py). Scans
    compute in float32 or wider.
    """

    is_fullgraph = False  # a graph of all chunks would take the compiler minutes
    norm: Any  # the mixer's norm, or None
    scans: Mapping[ScanBackend, Scan]  # with the mixer's recurrence, by backend

    def __init__(self, spec: MixerSpec, *, dim: int) -> None:
        super().__init__()
        self.spec = spec
        self.sequence = WholeSequence()
        bias = spec.conv_bias
        self.query = Linear(dim, spec.key_width, bias=False)
        self.key = Linear(dim, spec.key_width, bias=False)
        self.value = Linear(dim, spec.value_width, bias=False)
        self.step = Linear(dim, spec.num_heads, bias=False)
        self.query_conv = ShortConvolution(spec.key_width, spec.conv_size, bias=bias)
        self.key_conv = ShortConvolution(spec.key_width, spec.conv_size, bias=bias)
        self.value_conv = ShortConvolution(spec.value_width, spec.conv_size, bias=bias)
        self.log_decay = nn.Parameter(torch.zeros(spec.num_heads))
        self.output = ResidualLinear(spec.value_width, dim, bias=False)

    @property
    def split_maps(self) -> list[Linear]:
        """Maps from hidden states to the channels of heads."""
        return [self.query, self.key, self.value, self.step]

    @property
    def latent_maps(self) -> list[Linear]:
        """Maps from hidden states to latent vectors, which all heads read."""
        return []

    @property
    def inner_maps(self) -> list[Linear]:
        """Maps from latent vectors to the channels of heads."""
        return []

    @property
    def drawn_vectors(self) -> Drawn:
        """Functions from uniform numbers to the first values of vectors, by name."""
        low, high = self.spec.decay_range
        first, last = (math.log(size) for size in self.spec.step_range)

        def draw_step_bias(uniform: Tensor) -> Tensor:
            size = (first + (last - first) * uniform).exp()
            return size + torch.log(-torch.expm1(-size))  # softplus gives the size back

        return {
            "log_decay": lambda uniform: (low + (high - low) * uniform).log(),
            "step_bias": draw_step_bias,
        }

    def convolve_tokens(
        self, hidden: Float[Tensor, "batch seq dim"], scope: AttentionContext
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys, (batch, groups, 1, seq, key_dim), and values of heads."""
        ages, convolve = scope.ages, self.sequence.convolve_tokens
        query = convolve(self.query_conv, self.query(hidden), ages)
        key = convolve(self.key_conv, self.key(hidden), ages)
        value = convolve(self.value_conv, self.value(hidden), ages)
        groups = query.shape[-1] // self.spec.key_dim
        return (
            split_heads(query, groups, 1),
            split_heads(key, groups, 1),
            self.split_by_head(value, groups),
        )

    def split_by_head(self, tokens: Tensor, groups: int) -> Tensor:
        """Split the channels of all heads: (batch, groups, heads, seq, channels of a head)."""
        return split_heads(tokens, groups, self.spec.num_heads // self.spec.key_heads)

    def select_scan(self, hidden: Float[Tensor, "batch seq dim"]) -> Scan:
        """Return the scan of the first backend that supports these inputs and is installed."""
        dtype = product_dtype(hidden)
        case = self.spec.scan_case(hidden.device.type, str(dtype).removeprefix("torch."))
        key, order = "model.mixers.*.scan_backends", self.spec.scan_backends
        backend = select_scan(key, order, case, missing_libraries())
        scan = self.scans[backend]
        return scan if backend == "torch" else partial(scan, dtype=dtype)

    def scan_tokens(
        self, scan: Scan, tokens: Sequence[Tensor], scope: AttentionContext
    ) -> Float[Tensor, "batch seq heads value_dim"]:
        """Scan from a zero state at the start of each document."""
        resets = None if scope.ages is None else scope.ages == 0
        chunk = self.spec.chunk_tokens
        return join_heads(self.sequence.scan_tokens(scan, tokens, resets, chunk=chunk))


@cache
def missing_libraries() -> tuple[ScanBackend, ...]:
    """Return the libraries of scan backends that are not installed here."""
    return tuple(name for name in PACKAGES if find_spec(name) is None)


def split_heads(
    tokens: Float[Tensor, "batch seq channels"], groups: int, heads: int
) -> Float[Tensor, "batch groups heads seq width"]:
    """Split channels into groups and heads, in float32 or wider."""
    wide = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
    return wide.reshape(*wide.shape[:2], groups, heads, -1).permute(0, 2, 3, 1, 4)


def join_heads(
    tokens: Float[Tensor, "batch groups heads seq width"],
) -> Float[Tensor, "batch seq heads width"]:
    """Return the heads of all groups after the sequence."""
    return tokens.permute(0, 3, 1, 2, 4).flatten(2, 3)


def normalize_length(heads: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
    """Return vectors of length 1."""
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + EPS)

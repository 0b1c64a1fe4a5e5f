"""Are our chunked scans of linear mixers faster than a loop over tokens and transformers' path?

One forward and backward pass in float32 over 1,024 tokens, with the same inputs and threads:
our scan, a loop over tokens, and the plain torch function of transformers for the same mixer.
They alternate; ratios use the medians of one run. All three must give equal outputs.

    python -m benchmarks.training.scans
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.falcon_h1.modeling_falcon_h1 import mamba2_chunk_scan
from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

from benchmarks.entry import run_script
from benchmarks.machine import medians_of, time_in_turns
from benchmarks.ratios import Ratio, save_benchmark
from components.config.model_spec.mixers import (
    GatedDeltaNetSpec,
    KimiDeltaSpec,
    Mamba2Spec,
    MixerSpec,
)
from components.model.mixers.scan import scan_delta_rule, scan_linear

THREADS, ROUNDS, WARMUP_ROUNDS = 2, 11, 2
LENGTH, HEADS, GROUPS, WIDTH = 1_024, 8, 4, 64
CHUNK = 64  # tokens; ours has the chunk of each mixer's specification
LEAST_OVER_LOOP, LEAST_OVER_TRANSFORMERS, TOLERANCE = 10.0, 1.0, 1e-4
ScanInputs = dict[str, Tensor]  # (batch, seq, heads, width); decays and step sizes as in `draw`
TimedScan = Callable[[ScanInputs], Tensor]


def draw(channels: int, key_heads: int) -> ScanInputs:
    """Draw inputs: keys of length 1, decays near 1 as at the start of training."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(1, LENGTH, *shape, generator=generator)

    tensors = {
        "query": F.normalize(normal(key_heads, WIDTH), dim=-1),
        "key": F.normalize(normal(key_heads, WIDTH), dim=-1),
        "value": normal(HEADS, WIDTH),
        "log_decay": -0.1 * F.softplus(normal(HEADS, channels)),
        "step": normal(HEADS, 1).sigmoid(),
    }
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def to_groups(tensor: Tensor, key_heads: int) -> Tensor:
    """Return (batch, groups, heads of a group, seq, width) of (batch, seq, heads, width)."""
    return tensor.reshape(1, LENGTH, key_heads, -1, tensor.shape[-1]).permute(0, 2, 3, 1, 4)


def scan_ours(tensors: ScanInputs, *, is_delta: bool, chunk: int) -> Tensor:
    """Scan with our chunked function."""
    key_heads = tensors["key"].shape[2]
    given = {name: to_groups(tensor, key_heads) for name, tensor in tensors.items()}
    if not is_delta:
        del given["step"]
    scan: Callable[..., Any] = scan_delta_rule if is_delta else scan_linear
    outputs: Tensor = scan(**given, resets=None, chunk=chunk)[0]
    return outputs.permute(0, 3, 1, 2, 4).flatten(2, 3)


def loop_over_tokens(tensors: ScanInputs, *, is_delta: bool) -> Tensor:
    """Scan token by token."""
    repeats = HEADS // tensors["key"].shape[2]
    query, key = (tensors[name].repeat_interleave(repeats, 2) for name in ("query", "key"))
    state = torch.zeros(1, HEADS, WIDTH, WIDTH)
    outputs = []
    for token in range(LENGTH):
        state = state * tensors["log_decay"][:, token].exp()[..., None]
        written = tensors["value"][:, token]
        if is_delta:
            recalled = (state * key[:, token, :, :, None]).sum(-2)
            written = (written - recalled) * tensors["step"][:, token]
        state = state + key[:, token, :, :, None] * written[:, :, None, :]
        outputs.append((state * query[:, token, :, :, None]).sum(-2))
    return torch.stack(outputs, 1)


def scan_delta_in(function: Callable[..., Any], tensors: ScanInputs) -> Tensor:
    """Scan with a delta rule of transformers, which divides queries by 8.

    Qwen3-Next and OLMo-Hybrid have one decay per head, Kimi Linear one per channel.
    """
    outputs: Tensor = function(
        tensors["query"] * WIDTH**0.5,
        tensors["key"],
        tensors["value"],
        g=tensors["log_decay"].squeeze(-1),
        beta=tensors["step"].squeeze(-1),
        chunk_size=CHUNK,
    )[0]
    return outputs


def scan_mamba2(tensors: ScanInputs) -> Tensor:
    """Scan with the function of Falcon-H1; step sizes of 1 make its inputs ours."""
    decay = -tensors["log_decay"][..., 0]
    result: Any = mamba2_chunk_scan(
        tensors["value"] / decay[..., None],
        decay,
        -torch.ones(HEADS),
        tensors["key"],
        tensors["query"],
        chunk_size=CHUNK,
    )
    outputs: Tensor = result[0] if isinstance(result, tuple) else result
    return outputs


class TimedMixer(NamedTuple):
    """A mixer: transformers' function, our specification, channels of a decay, key heads."""

    theirs: TimedScan
    spec: type[MixerSpec]
    channels: int = 1
    key_heads: int = GROUPS


MIXERS = {
    "gated delta net": TimedMixer(
        partial(scan_delta_in, torch_chunk_gated_delta_rule), GatedDeltaNetSpec
    ),
    "Kimi delta attention": TimedMixer(
        partial(scan_delta_in, chunk_kimi_delta_attention), KimiDeltaSpec, WIDTH, HEADS
    ),
    "Mamba-2": TimedMixer(scan_mamba2, Mamba2Spec),
}


def time_mixer(mixer: str) -> dict[str, float]:
    """Return the median seconds of each side; AssertionError if their outputs differ."""
    theirs, spec, channels, key_heads = MIXERS[mixer]
    is_delta, chunk = spec is not Mamba2Spec, spec.chunk_tokens
    tensors = draw(channels, key_heads)
    scans: dict[str, TimedScan] = {
        "ours": partial(scan_ours, is_delta=is_delta, chunk=chunk),
        "token loop": partial(loop_over_tokens, is_delta=is_delta),
        "transformers": theirs,
    }
    expected = scans["token loop"](tensors).detach()
    for side in ("ours", "transformers"):
        torch.testing.assert_close(
            scans[side](tensors).detach(), expected, rtol=TOLERANCE, atol=TOLERANCE
        )

    def run_pass(scan: TimedScan, index: int) -> None:
        torch.autograd.backward(scan(tensors).square().sum())

    passes = {side: partial(run_pass, scan) for side, scan in scans.items()}
    seconds, _ = time_in_turns(passes, warmup=WARMUP_ROUNDS, rounds=ROUNDS)
    return medians_of(seconds)


def main() -> int:
    """Time all mixers; exit status 1 if a ratio misses its target."""
    torch.set_num_threads(THREADS)
    rows = {mixer: time_mixer(mixer) for mixer in MIXERS}
    ratios = [
        Ratio(mixer, peer, row[peer] / row["ours"], at_least=least)
        for mixer, row in rows.items()
        for peer, least in (
            ("token loop", LEAST_OVER_LOOP),
            ("transformers", LEAST_OVER_TRANSFORMERS),
        )
    ]
    shape = {
        "tokens": LENGTH,
        "heads": HEADS,
        "key_heads": GROUPS,
        "width": WIDTH,
        "rounds": ROUNDS,
        "threads": THREADS,
    }
    return save_benchmark("scans", shape, {"mixers": rows}, ratios)


if __name__ == "__main__":
    run_script(lambda words: main(), max_words=0)

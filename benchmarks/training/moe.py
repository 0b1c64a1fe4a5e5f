"""How fast is a layer's mixture of experts beside the loop over experts and transformers' own?

The shape is Mula-7B-A1B's, 64 experts of which 8 a token, ffn_dim half of dim, with the width
cut to a quarter for a CPU. One block does its forward and backward pass, router included. All
have the same weights, input and threads, and take turns; ratios are between medians of one run.
"Compiled" is our block as `parallelism.compile=layers` takes it, anew for each size.

    python -m benchmarks.training.moe
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock

from benchmarks.entry import enter
from benchmarks.kept import circumstances
from benchmarks.machine import apart, peak_added_bytes
from benchmarks.ratios import Ratio, keep_result
from components.config.model_spec.feed_forward import ExpertsSpec
from components.distributed.compile import compile_layers
from components.model.moe import Experts

THREADS, WARMUP_ROUNDS = 2, 2
# The short ones are the noisy ones: rounds fall with the tokens.
ROUNDS = {256: 9, 1_024: 7, 2_048: 9, 4_096: 5}
MOST_TOKENS = max(ROUNDS)
DIM, FFN_DIM, NUM_EXPERTS, TOP_K = 512, 256, 64, 8
SHAPE = {
    "dim": DIM,
    "ffn_dim": FFN_DIM,
    "num_experts": NUM_EXPERTS,
    "top_k": TOP_K,
    "rounds_by_tokens": ROUNDS,
    "threads": THREADS,
}
# Three products of two FLOPs a weight, forward, and twice that backward.
FLOPS_PER_TOKEN = 3 * 3 * 2 * DIM * FFN_DIM * TOP_K
Seconds = dict[str, list[float]]


def our_block(path: Literal["grouped", "loop"]) -> Experts:
    """Build our block; the seed makes all paths start alike."""
    torch.manual_seed(0)
    return Experts(
        ExpertsSpec(
            num_experts=NUM_EXPERTS,
            top_k=TOP_K,
            ffn_dim=FFN_DIM,
            activation="silu",
            gated=True,
            renormalize=False,
            routing="learned",
            auxiliary_loss=0.01,
            auxiliary_scope="model",
            z_loss=0.0,
            path=path,
        ),
        dim=DIM,
    )


def our_compiled_block() -> nn.Module:
    """Build our block as a layer that is compiled when it is first called."""
    block = our_block("grouped")
    model = nn.Module()
    model.layers = nn.ModuleDict({"0": block})
    compile_layers(model, "layers", recompute="none")
    return block


def reference_block(implementation: str) -> nn.Module:
    """Build transformers' block with our weights."""
    ours = our_block("loop")
    config = transformers.OlmoeConfig(
        hidden_size=DIM,
        intermediate_size=FFN_DIM,
        num_experts=NUM_EXPERTS,
        num_experts_per_tok=TOP_K,
    )
    config._experts_implementation = implementation
    build: Callable[[transformers.OlmoeConfig], nn.Module] = OlmoeSparseMoeBlock
    block: Any = build(config)
    assert ours.gate is not None
    with torch.no_grad():
        block.gate.weight.copy_(ours.router.weight)
        block.experts.gate_up_proj.copy_(torch.cat([ours.gate.weight, ours.up.weight], dim=1))
        block.experts.down_proj.copy_(ours.down.weight)
    assert isinstance(block, nn.Module)
    return block


# `batched_mm` copies a matrix for each pair of token and expert, 34 GB here: left out.
BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "ours, grouped": lambda: our_block("grouped"),
    "ours, compiled": our_compiled_block,
    "ours, loop": lambda: our_block("loop"),
    "transformers, grouped_mm": lambda: reference_block("grouped_mm"),
    "transformers, loop": lambda: reference_block("eager"),
}
OURS, *OTHERS = BLOCKS
# What the compiler itself takes would count as the pass's.
WEIGHED = [name for name in BLOCKS if "compiled" not in name]


def step(block: nn.Module, hidden: Tensor, upstream: Tensor) -> Tensor:
    """Do one forward and backward pass; return the gradient of the input."""
    block.zero_grad()
    inputs = hidden.clone().requires_grad_()
    block(inputs).backward(upstream)
    assert inputs.grad is not None
    return inputs.grad


def batch(tokens: int) -> tuple[Tensor, Tensor]:
    """Draw an input and a gradient of the output."""
    generator = torch.Generator().manual_seed(tokens)
    drawn = torch.randn(2, 1, tokens, DIM, generator=generator)
    return drawn[0], drawn[1]


def measure(blocks: dict[str, nn.Module], tokens: int) -> tuple[Seconds, Seconds, float]:
    """Return wall and processor seconds by name, and how far the gradients lie apart."""
    wall: Seconds = {name: [] for name in blocks}
    processor: Seconds = {name: [] for name in blocks}
    given = batch(tokens)
    difference = 0.0
    for index in range(WARMUP_ROUNDS + ROUNDS[tokens]):
        gradients = {}
        # Whoever comes second finds a warmer cache: take turns.
        for name in sorted(blocks, reverse=bool(index % 2)):
            start, start_processor = time.perf_counter(), time.process_time()
            gradients[name] = step(blocks[name], *given)
            if index >= WARMUP_ROUNDS:
                wall[name].append(time.perf_counter() - start)
                processor[name].append(time.process_time() - start_processor)
        largest = gradients[OURS].abs().max()
        for name in OTHERS:
            gap = (gradients[name] - gradients[OURS]).abs().max() / largest
            difference = max(difference, gap.item())
    return wall, processor, difference


def peak_bytes(name: str) -> int:
    """Measure how much one pass adds to a fresh process's peak; the process must be new."""
    torch.set_num_threads(THREADS)
    block, given = BLOCKS[name](), batch(MOST_TOKENS)
    step(block, *batch(1))  # loads the libraries that the first product loads
    block.zero_grad(set_to_none=True)
    return peak_added_bytes(lambda: step(block, *given))


def summarize(
    tokens: int, wall: Seconds, processor: Seconds, difference: float
) -> dict[str, Any]:
    """Turn one size's measurement into what is kept as data."""
    medians = {name: statistics.median(values) for name, values in wall.items()}
    fastest = {name: min(values) for name, values in wall.items()}
    spent = {name: statistics.median(values) for name, values in processor.items()}
    return {
        "tokens": tokens,
        "ratio_median": {name: medians[name] / medians[OURS] for name in OTHERS},
        "ratio_fastest": {name: fastest[name] / fastest[OURS] for name in OTHERS},
        "ratio_processor_median": {name: spent[name] / spent[OURS] for name in OTHERS},
        "wall_seconds_median": medians,
        "wall_seconds_fastest": fastest,
        "processor_seconds_median": spent,
        "gigaflops_fastest": {
            name: tokens * FLOPS_PER_TOKEN / value / 1e9 for name, value in fastest.items()
        },
        "largest_relative_gradient_difference": difference,
    }


def gemm_gigaflops() -> float:
    """Measure the products alone, on slices as large as an expert's: what nothing can beat."""
    rows, inner = MOST_TOKENS * TOP_K // NUM_EXPERTS, torch.randn(FFN_DIM, DIM)
    given, out = torch.randn(rows, DIM), torch.empty(rows, FFN_DIM)
    seconds = []
    for _ in range(200):
        start = time.perf_counter()
        torch.mm(given, inner.T, out=out)
        seconds.append(time.perf_counter() - start)
    return 2 * rows * DIM * FFN_DIM / min(seconds) / 1e9


def ratios_of(sizes: Sequence[Mapping[str, Any]], memory: Mapping[str, int]) -> list[Ratio]:
    """Divide the time of each other way by that of ours, and what a pass adds to memory."""
    times = [
        Ratio(
            f"{size['tokens']:,} tokens",
            peer,
            value,
            at_least=1.0 if peer.startswith("transformers") else None,
        )
        for size in sizes
        for peer, value in size["ratio_median"].items()
    ]
    return times + [
        Ratio(f"memory of {MOST_TOKENS:,} tokens", peer, peak / memory[OURS])
        for peer, peak in memory.items()
        if peer != OURS
    ]


def main() -> int:
    """Measure, and keep the result."""
    memory = {name: apart(peak_bytes, name) for name in WEIGHED}
    torch.set_num_threads(THREADS)
    blocks = {name: build() for name, build in BLOCKS.items()}
    sizes = [summarize(tokens, *measure(blocks, tokens)) for tokens in ROUNDS]
    context = circumstances(
        peer="transformers' OlmoeSparseMoeBlock, its grouped products and its loop",
        convention="forward and backward pass of one sparse block with its router, "
        "float32, eager unless it says compiled; interleaved rounds in one process; a "
        "ratio is the other's time over ours",
        shape=SHAPE,
        packages=("torch", "transformers"),
    )
    figures = {
        "sizes": sizes,
        "peak_bytes_added_by_one_pass": memory,
        "gemm_gigaflops": gemm_gigaflops(),
    }
    return keep_result("moe", context | figures, ratios_of(sizes, memory))


if __name__ == "__main__":
    enter(lambda words: main(), most=0)

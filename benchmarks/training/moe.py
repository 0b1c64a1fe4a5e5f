"""How fast is a mixture-of-experts layer, compared with a loop and with transformers?

The shape is Mula-7B-A1B's with a quarter of its width: 64 experts, 8 per token, ffn_dim half of
dim. The measurement is a forward and backward pass of one block with its router. All
implementations have the same weights, input and threads, and alternate; ratios use the medians
of one run. "Compiled" is our block with `parallelism.compile=layers`, compiled for each size.

    python -m benchmarks.training.moe
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock

from benchmarks.entry import run_script
from benchmarks.machine import call_in_process, medians_of, peak_added_bytes, time_in_turns
from benchmarks.ratios import Ratio, save_benchmark
from components.config.model_spec.feed_forward import ExpertsSpec
from components.distributed.compile import compile_layers
from components.model.moe import Experts

THREADS, WARMUP_ROUNDS = 2, 2
# Rounds by tokens: short passes are noisier.
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


def our_block(path: Literal["grouped", "loop"]) -> Experts:
    """Build our block; all paths have the same initial weights."""
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
    """Build our block as a layer that its first call compiles."""
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


# `batched_mm` is excluded: it copies a matrix per pair of token and expert, 34 GB here.
BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "ours, grouped": lambda: our_block("grouped"),
    "ours, compiled": our_compiled_block,
    "ours, loop": lambda: our_block("loop"),
    "transformers, grouped_mm": lambda: reference_block("grouped_mm"),
    "transformers, loop": lambda: reference_block("eager"),
}
OURS, *OTHERS = BLOCKS
# The compiler's own memory would count as memory of the pass.
MEMORY_BLOCKS = [name for name in BLOCKS if "compiled" not in name]


def run_pass(block: nn.Module, hidden: Tensor, upstream: Tensor, index: int = 0) -> Tensor:
    """Run a forward and backward pass; return the gradient of the input."""
    block.zero_grad()
    inputs = hidden.clone().requires_grad_()
    block(inputs).backward(upstream)
    assert inputs.grad is not None
    return inputs.grad


def draw_inputs(tokens: int) -> tuple[Tensor, Tensor]:
    """Draw an input and an output gradient."""
    generator = torch.Generator().manual_seed(tokens)
    drawn = torch.randn(2, 1, tokens, DIM, generator=generator)
    return drawn[0], drawn[1]


def measure_blocks(blocks: dict[str, nn.Module], tokens: int) -> dict[str, Any]:
    """Alternate all blocks; return their times over ours, and the difference of gradients."""
    inputs = draw_inputs(tokens)

    calls = {name: partial(run_pass, block, *inputs) for name, block in blocks.items()}
    seconds, gradients = time_in_turns(calls, warmup=WARMUP_ROUNDS, rounds=ROUNDS[tokens])
    medians = medians_of(seconds)
    ours = gradients[-1][OURS]
    return {
        "tokens": tokens,
        "ratio_median": {name: medians[name] / medians[OURS] for name in OTHERS},
        "ratio_fastest": {name: min(seconds[name]) / min(seconds[OURS]) for name in OTHERS},
        "wall_seconds_median": medians,
        "largest_relative_gradient_difference": max(
            ((gradients[-1][name] - ours).abs().max() / ours.abs().max()).item()
            for name in OTHERS
        ),
    }


def measure_peak(name: str) -> int:
    """Return the increase of peak memory by one pass; the process must be new."""
    torch.set_num_threads(THREADS)
    block, inputs = BLOCKS[name](), draw_inputs(MOST_TOKENS)
    run_pass(block, *draw_inputs(1))  # loads the libraries of the first matrix product
    block.zero_grad(set_to_none=True)
    return peak_added_bytes(lambda: run_pass(block, *inputs))


def ratios_of(sizes: Sequence[Mapping[str, Any]], memory: Mapping[str, int]) -> list[Ratio]:
    """Divide time and added memory of the other blocks by ours."""
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
    """Measure and save the result."""
    memory = {name: call_in_process(measure_peak, name) for name in MEMORY_BLOCKS}
    torch.set_num_threads(THREADS)
    blocks = {name: build() for name, build in BLOCKS.items()}
    sizes = [measure_blocks(blocks, tokens) for tokens in ROUNDS]
    figures = {"sizes": sizes, "peak_bytes_added_by_one_pass": memory}
    return save_benchmark("moe", SHAPE, figures, ratios_of(sizes, memory))


if __name__ == "__main__":
    run_script(lambda words: main(), max_words=0)

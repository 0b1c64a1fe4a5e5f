"""Is our training step as fast as transformers' reference model?

Both models have the same shapes, initial weights, microbatches, gradient clipping and optimizer
settings. Each is measured eager and compiled: ours layer by layer, the reference as a whole.
Rounds are interleaved, so that other work on the machine affects all variants; the medians of
one run are compared.

    python -m benchmarks.training.train_step
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from benchmarks.entry import run_script
from benchmarks.machine import SecondsByName, medians_of, time_in_turns
from benchmarks.ratios import Ratio, save_benchmark
from benchmarks.results_store import ROOT
from benchmarks.training.model import build_both_models
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.distributed.compile import compile_layers
from components.optim.adamw import AdamW

THREADS, ROUNDS, WARMUP_ROUNDS = 2, 25, 3
MICROBATCHES, SAMPLES, SEQUENCE_LENGTH, VOCAB_SIZE = 2, 8, 256, 4_096
TOKENS = MICROBATCHES * SAMPLES * SEQUENCE_LENGTH
LR, BETA1, BETA2, ADAM_EPS, WEIGHT_DECAY, MAX_NORM = 3e-4, 0.9, 0.95, 1e-8, 0.1, 1.0
WORDS: list[str] = yaml.safe_load((ROOT / "benchmarks/data/train_step.yaml").read_text("utf-8"))
SHAPE = {
    "recipe": WORDS,
    "tokens_per_step": TOKENS,
    "microbatches": MICROBATCHES,
    "rounds": ROUNDS,
    "threads": THREADS,
}

OURS, OURS_COMPILED = "ours", "ours, compiled"
THEIRS, THEIRS_COMPILED = "transformers", "transformers, compiled"
# Smallest ratio of tokens per second, first over second.
TARGETS = {
    (OURS, THEIRS): 1.0,
    (OURS_COMPILED, THEIRS): 1.15,
    (OURS_COMPILED, THEIRS_COMPILED): 1.0,
}

Loss = Callable[[Tensor, Tensor], Tensor]
TimedStep = Callable[[Tensor, Tensor], float]


def reference_loss(model: Callable[..., Any], tokens: Tensor, targets: Tensor) -> Tensor:
    """Return the reference model's loss of targets that are already shifted."""
    loss: Tensor = model(input_ids=tokens, labels=targets, shift_labels=targets).loss
    return loss


def make_step(model: nn.Module, loss_of: Loss, optimizer: torch.optim.Optimizer) -> TimedStep:
    """Return an optimizer step, which returns the mean loss of its microbatches."""

    def step(tokens: Tensor, targets: Tensor) -> float:
        total = 0.0
        for index in range(MICROBATCHES):
            loss = loss_of(tokens[index], targets[index]) / MICROBATCHES
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


def make_our_step(model: Any) -> TimedStep:
    """Return a step of our model with our optimizer."""
    optimizer = AdamW(
        parameters=model.named_parameters(),
        lr=LR,
        beta1=BETA1,
        beta2=BETA2,
        eps=ADAM_EPS,
        weight_decay=WEIGHT_DECAY,
        decay="matrices",
        decay_order="before",
        clip_norm=MAX_NORM,
        clip_after_tokens=0,
    )
    return make_step(model, model.compute_loss, optimizer)


def make_reference_step(model: nn.Module, call: Callable[..., Any]) -> TimedStep:
    """Return a step of the reference model, called as ``call``, with torch's optimizer."""
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.dim() > 1]},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups,
        lr=LR,
        betas=(BETA1, BETA2),
        eps=ADAM_EPS,
        weight_decay=WEIGHT_DECAY,
        fused=True,
    )
    return make_step(model, partial(reference_loss, call), optimizer)


def make_steps() -> dict[str, TimedStep]:
    """Return the steps of all variants, with the same initial weights."""
    recipe = compose_recipe(read_point(WORDS))
    with tempfile.TemporaryDirectory() as home:
        ours, theirs = build_both_models(recipe, Path(home) / "eager")
        compiled, whole = build_both_models(recipe, Path(home) / "compiled")
    compile_layers(compiled, "layers", recompute="none")
    return {
        OURS: make_our_step(ours),
        OURS_COMPILED: make_our_step(compiled),
        THEIRS: make_reference_step(theirs, theirs),
        THEIRS_COMPILED: make_reference_step(whole, torch.compile(whole, dynamic=False)),
    }


def measure_steps(steps: dict[str, TimedStep]) -> tuple[SecondsByName, float]:
    """Return the seconds of every step by name, and the largest difference of the losses."""
    generator = torch.Generator().manual_seed(0)
    shape = (WARMUP_ROUNDS + ROUNDS, MICROBATCHES, SAMPLES, SEQUENCE_LENGTH + 1)
    samples = torch.randint(VOCAB_SIZE, shape, generator=generator)
    inputs, targets = samples[..., :-1].contiguous(), samples[..., 1:].contiguous()

    def run_step(step: TimedStep, index: int) -> float:
        return step(inputs[index], targets[index])

    calls = {name: partial(run_step, step) for name, step in steps.items()}
    seconds, losses = time_in_turns(calls, warmup=WARMUP_ROUNDS, rounds=ROUNDS)
    return seconds, max(max(row.values()) - min(row.values()) for row in losses)


def ratios_of(rates: dict[str, float], fastest: dict[str, float]) -> list[Ratio]:
    """Return ratios of the median rates, with targets, and of the fastest rounds."""
    medians = [
        Ratio(ours, theirs, rates[ours] / rates[theirs], at_least=least)
        for (ours, theirs), least in TARGETS.items()
    ]
    return medians + [
        Ratio(f"{ours}, fastest rounds", theirs, fastest[ours] / fastest[theirs])
        for ours, theirs in TARGETS
    ]


def main() -> int:
    """Measure and save the result."""
    torch.set_num_threads(THREADS)
    seconds, difference = measure_steps(make_steps())
    rates = {name: TOKENS / median for name, median in medians_of(seconds).items()}
    fastest = {name: TOKENS / min(values) for name, values in seconds.items()}
    figures = {
        "tokens_per_second_median": rates,
        "tokens_per_second_fastest": fastest,
        "largest_loss_difference": difference,
    }
    return save_benchmark("train_step", SHAPE, figures, ratios_of(rates, fastest))


if __name__ == "__main__":
    run_script(lambda words: main(), max_words=0)

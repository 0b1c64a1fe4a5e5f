"""Is our decoder as fast as transformers' class, family by family, on this machine?

One miniature of every family that an export knows, in float32: loss and backward pass, ours
(whose loss never holds all logits) beside the class that loads our export, with the same
weights, tokens and threads. They take turns; ratios are between medians of one run. Memory is
what one pass adds to the peak of a new process.

    python -m benchmarks.training.model
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from benchmarks.entry import enter
from benchmarks.kept import circumstances
from benchmarks.machine import apart, peak_added_bytes
from benchmarks.ratios import Ratio, keep_result
from benchmarks.recipes import published_recipes
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build
from components.config.recipe import Recipe
from components.convert.family import choose_family
from components.convert.folder import CONFIG, make_config, their_tensors
from components.convert.hf_shards import MAX_SHARD_BYTES, write_shards
from components.engine.parallelize import draw_weights
from components.errors import RecipeError

THREADS, ROUNDS, WARMUP_ROUNDS, SEQUENCES, LENGTH = 2, 11, 2, 8, 256
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}

SIDES = ("ours", "transformers")

Pass = Callable[[], Tensor]


def one_of_each_family() -> dict[str, Recipe]:
    """Take the first recipe, by name, that each class of transformers can load."""
    found: dict[str, Recipe] = {}
    for name in published_recipes():
        recipe = compose_recipe(read_point([f"recipe={name}", "scale=mini"]))
        with suppress(RecipeError):  # no class of transformers has all parts of the model
            found.setdefault(choose_family(recipe.shape).architecture, recipe)
    return found


def both_models(recipe: Recipe, folder: Path) -> tuple[nn.Module, nn.Module]:
    """Build ours, and the class of transformers from our export of it; neither drops out."""
    ours = build(recipe.model, "model")
    draw_weights(ours, seed=recipe.budget.seed)
    features = recipe.shape
    family, rows = choose_family(features), features.padded_vocab_size
    folder.mkdir()
    tensors = their_tensors(dict(ours.named_parameters()), family, features, rows=rows)
    write_shards(folder, tensors, max_bytes=MAX_SHARD_BYTES)
    config = make_config(
        family, features, rows=rows, context_tokens=LENGTH, ids=IDS, dtype="float32"
    )
    (folder / CONFIG).write_text(json.dumps(config), "utf-8")
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers'
    theirs: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return ours.eval(), theirs.eval()


def peak_bytes(architecture: str, side: str) -> int:
    """Measure how much one pass adds to a fresh process's peak; the process must be new."""
    torch.set_num_threads(THREADS)
    recipe = one_of_each_family()[architecture]
    with tempfile.TemporaryDirectory() as home:
        ours, theirs = both_models(recipe, Path(home) / "export")
    short = passes(ours, theirs, recipe.shape.vocab_size, length=8)
    short[side]()  # loads the libraries that the first product loads
    call = passes(ours, theirs, recipe.shape.vocab_size, length=LENGTH)[side]
    return peak_added_bytes(call)


def passes(ours: Any, theirs: Any, rows: int, *, length: int) -> dict[str, Pass]:
    """Make one call of each: zero the gradients, loss, backward."""
    tokens = torch.randint(4, rows, (SEQUENCES, length + 1), generator=torch.manual_seed(0))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def run(model: nn.Module, loss: Pass) -> Tensor:
        model.zero_grad(set_to_none=True)
        value = loss()
        torch.autograd.backward(value)
        return value.detach()

    def their_loss() -> Tensor:
        logits = theirs(inputs, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return {
        "ours": lambda: run(ours, lambda: ours.loss(inputs, targets)),
        "transformers": lambda: run(theirs, their_loss),
    }


def measure(calls: dict[str, Pass]) -> dict[str, Any]:
    """Let both take turns; give medians, fastest rounds and the difference of the losses."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    losses: dict[str, float] = {}
    for number in range(WARMUP_ROUNDS + ROUNDS):
        for name, call in calls.items():
            began = time.perf_counter()
            losses[name] = call().item()
            if number >= WARMUP_ROUNDS:
                seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "ratio_median": medians["transformers"] / medians["ours"],
        "ratio_fastest": min(seconds["transformers"]) / min(seconds["ours"]),
        "tokens_per_second": {name: SEQUENCES * LENGTH / s for name, s in medians.items()},
        "loss_difference": abs(losses["ours"] - losses["transformers"]),
    }


def ratios_of(families: Mapping[str, Any]) -> list[Ratio]:
    """Divide their time and memory by ours."""
    ratios = []
    for architecture, result in families.items():
        peaks = result["peak_bytes"]
        for name, value in (
            ("speed", result["ratio_median"]),
            ("memory", peaks["transformers"] / peaks["ours"]),
        ):
            case = f"{architecture}, miniature of {result['recipe']}, {name}"
            ratios.append(Ratio(case, "transformers", value, at_least=1.0))
    return ratios


def main() -> int:
    """Measure every family, and keep the result."""
    torch.set_num_threads(THREADS)
    families = {}
    with tempfile.TemporaryDirectory() as home:
        for architecture, recipe in one_of_each_family().items():
            ours, theirs = both_models(recipe, Path(home) / architecture)
            result = measure(passes(ours, theirs, recipe.shape.vocab_size, length=LENGTH))
            peaks = {side: apart(peak_bytes, architecture, side) for side in SIDES}
            families[architecture] = result | {"recipe": recipe.name, "peak_bytes": peaks}
    context = circumstances(
        peer="the class of transformers that loads our export, eager",
        convention="loss and backward pass, float32, eager, no dropout; ratio is "
        "transformers' time over ours, medians of interleaved rounds in one process; "
        "peak_bytes is what a pass adds in a new one",
        shape={
            "sequences": SEQUENCES,
            "sequence_length": LENGTH,
            "rounds": ROUNDS,
            "threads": THREADS,
        },
        packages=("torch", "transformers"),
    )
    return keep_result("model", context | {"families": families}, ratios_of(families))


if __name__ == "__main__":
    enter(lambda words: main(), most=0)

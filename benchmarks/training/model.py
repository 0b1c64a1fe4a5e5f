"""Is our decoder as fast as transformers' class, for every model family?

One miniature per family of the export, in float32: loss and backward pass of our decoder, whose
loss never stores all logits, and of the class that loads our export, with the same weights,
tokens and threads. They alternate; ratios use the medians of one run. Memory is the increase of
the peak by one pass in a new process.

    python -m benchmarks.training.model
"""

import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from benchmarks.entry import run_script
from benchmarks.machine import call_in_process, medians_of, peak_added_bytes, time_in_turns
from benchmarks.ratios import Ratio, save_benchmark
from benchmarks.recipes import published_recipes
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build_node
from components.config.recipe import Recipe
from components.convert.family import choose_family
from components.convert.folder import CONFIG, make_config, their_tensors
from components.convert.hf_shards import MAX_SHARD_BYTES, write_shards
from components.engine.parallelize import draw_weights
from components.errors import RecipeError

THREADS, ROUNDS, WARMUP_ROUNDS, SEQUENCES, LENGTH = 2, 11, 2, 8, 256
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}

SIDES = ("ours", "transformers")

Pass = Callable[[int], float]


def choose_recipes() -> dict[str, Recipe]:
    """Return the first recipe, by name, of each class of transformers."""
    recipes: dict[str, Recipe] = {}
    for name in published_recipes():
        recipe = compose_recipe(read_point([f"recipe={name}", "scale=mini"]))
        with suppress(RecipeError):  # no class of transformers supports the model
            recipes.setdefault(choose_family(recipe.decoder_spec).architecture, recipe)
    return recipes


def build_both_models(recipe: Recipe, folder: Path) -> tuple[nn.Module, nn.Module]:
    """Build our model, and transformers' model from its export; both in evaluation mode."""
    ours = build_node(recipe.model, "model")
    draw_weights(ours, seed=recipe.budget.seed)
    features = recipe.decoder_spec
    family, rows = choose_family(features), features.padded_vocab_size
    folder.mkdir()
    tensors = their_tensors(dict(ours.named_parameters()), family, features, rows=rows)
    write_shards(folder, tensors, max_bytes=MAX_SHARD_BYTES)
    config = make_config(
        family, features, rows=rows, context_tokens=LENGTH, ids=IDS, dtype="float32"
    )
    (folder / CONFIG).write_text(json.dumps(config), "utf-8")
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers has no types here
    theirs: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return ours.eval(), theirs.eval()


def measure_peak(architecture: str, side: str) -> int:
    """Return the increase of peak memory by one pass; the process must be new."""
    torch.set_num_threads(THREADS)
    recipe = choose_recipes()[architecture]
    with tempfile.TemporaryDirectory() as home:
        ours, theirs = build_both_models(recipe, Path(home) / "export")
    short = make_passes(ours, theirs, recipe.decoder_spec.vocab_size, length=8)
    short[side](0)  # loads the libraries of the first matrix product
    call = make_passes(ours, theirs, recipe.decoder_spec.vocab_size, length=LENGTH)[side]
    return peak_added_bytes(lambda: call(0))


def make_passes(ours: Any, theirs: Any, rows: int, *, length: int) -> dict[str, Pass]:
    """Return a pass of each model: zero the gradients, loss, backward."""
    tokens = torch.randint(4, rows, (SEQUENCES, length + 1), generator=torch.manual_seed(0))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def run(model: nn.Module, loss: Callable[[], Tensor]) -> float:
        model.zero_grad(set_to_none=True)
        value = loss()
        torch.autograd.backward(value)
        return value.item()

    def reference_loss() -> Tensor:
        logits = theirs(inputs, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return {
        "ours": lambda index: run(ours, lambda: ours.compute_loss(inputs, targets)),
        "transformers": lambda index: run(theirs, reference_loss),
    }


def measure_passes(calls: dict[str, Pass]) -> dict[str, Any]:
    """Alternate both passes; return medians, fastest rounds and the difference of losses."""
    seconds, losses = time_in_turns(calls, warmup=WARMUP_ROUNDS, rounds=ROUNDS)
    medians = medians_of(seconds)
    return {
        "ratio_median": medians["transformers"] / medians["ours"],
        "ratio_fastest": min(seconds["transformers"]) / min(seconds["ours"]),
        "tokens_per_second": {name: SEQUENCES * LENGTH / s for name, s in medians.items()},
        "loss_difference": abs(losses[-1]["ours"] - losses[-1]["transformers"]),
    }


def ratios_of(families: Mapping[str, Any]) -> list[Ratio]:
    """Divide transformers' time and memory by ours."""
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
    """Measure every family and save the result."""
    torch.set_num_threads(THREADS)
    families = {}
    with tempfile.TemporaryDirectory() as home:
        for architecture, recipe in choose_recipes().items():
            ours, theirs = build_both_models(recipe, Path(home) / architecture)
            result = measure_passes(
                make_passes(ours, theirs, recipe.decoder_spec.vocab_size, length=LENGTH)
            )
            peaks = {name: call_in_process(measure_peak, architecture, name) for name in SIDES}
            families[architecture] = result | {"recipe": recipe.name, "peak_bytes": peaks}
    shape = {"sequences": SEQUENCES, "sequence_length": LENGTH}
    shape |= {"rounds": ROUNDS, "threads": THREADS}
    return save_benchmark("model", shape, {"families": families}, ratios_of(families))


if __name__ == "__main__":
    run_script(lambda words: main(), max_words=0)

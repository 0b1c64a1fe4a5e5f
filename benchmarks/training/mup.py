"""Does the best learning rate stay the same for wider models, with and without muP?

Miniatures of the recipe train on real text with three seeds each. Their widths and numbers of
heads are 1, 2, 4 and 8 times the base. Rates are powers of two; the search starts at the best
rate of the narrower model and ends when both neighbors of the best rate are worse. The base of
muP is the narrowest model. The standard parametrization also initializes with 1/sqrt(width),
but its rate and logits do not depend on the width. Exit status 1 if the best rates of muP
differ by more than a factor of two, or those of the standard parametrization do not.

    python -m benchmarks.training.mup RECIPE
"""

import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.entry import run_script
from benchmarks.program import run_program
from benchmarks.results_store import RESULTS, ResultRow, result_context, save_tree
from benchmarks.training.drawn_run import StepRecorder, train_drawn
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.check import check_recipe
from components.config.recipe import Recipe
from components.parity.coordinates import resize_recipe
from components.terminal import log_line

RESULT = RESULTS / "mup.json"
STEPS, GLOBAL_BATCH_TOKENS, EDGE = 300, 1_024, 30
SEEDS = (42, 43, 44)
FACTORS = (1, 2, 4, 8)
BASE_DIM, NUM_LAYERS, FIRST_EXPONENT = 32, 2, -6
STD = 0.177  # 1 / sqrt(BASE_DIM)
TOKENS = STEPS * GLOBAL_BATCH_TOKENS
WORDS = (
    *("scale=mini", "cluster.ranks=1", "precision.compute=float32"),
    *(f"scale.shrink.dim={BASE_DIM}", f"scale.shrink.num_layers={NUM_LAYERS}"),
    f"model.initialization.std={STD}",
    *("scale.shrink.head_dim=16", "scale.shrink.padded_vocab_size=512"),
    *(f"budget.total_tokens={TOKENS}", f"budget.global_batch_tokens={GLOBAL_BATCH_TOKENS}"),
    *("budget.sequence_length=128", "budget.ramp_up=none"),
    *("parallelism.microbatch_sequences=8", "schedule.warmup_from=0.0"),
    *("schedule.start=1.0", "schedule.end=0.1", f"schedule.total_tokens={TOKENS}"),
    f"schedule.warmup_tokens={TOKENS // 10}",
)
MUP = {
    "_target_": "components.model.parametrization.MuP",
    "_partial_": True,
    "base_dim": BASE_DIM,
}
PARAMETRIZATIONS = {"standard": None, "muP": MUP}


def prepare_data(recipe: str, home: Path) -> Path:
    """Prepare the text of the miniatures by the command, and return its folder."""
    words = ("action=prepare", f"recipe={recipe}", *WORDS, f"data.folder={home}")
    run_program(*words, home=home)
    (manifest,) = home.glob("*/manifest.json")
    return manifest.parent


def recipe_of(base: Recipe, form: str, factor: int, exponent: int, seed: int) -> Recipe:
    """Return the recipe of one width factor, rate and seed."""
    tree = resize_recipe(base, factor=factor, num_layers=NUM_LAYERS).model_dump(mode="json")
    if PARAMETRIZATIONS[form] is None:
        tree["model"]["initialization"]["std"] = STD / math.sqrt(factor)
    else:
        tree["model"]["parametrization"] = PARAMETRIZATIONS[form]
    tree["optimizer"]["lr"] = math.ldexp(1.0, exponent)
    tree["budget"]["seed"] = seed
    return check_recipe(tree)


def train_miniature(recipe: Recipe, data: Path) -> float:
    """Train in this process; return the mean loss of the last steps, on tokens not yet used."""
    recorder, _ = train_drawn(recipe, lambda folder: StepRecorder(), data=data)
    return statistics.fmean(recorder.losses[-EDGE:])


def search_rate(base: Recipe, data: Path, form: str, factor: int, start: int) -> ResultRow:
    """Find the rate of a width whose neighbors on the grid are worse."""
    losses: dict[int, list[float]] = {}

    def mean_loss(exponent: int) -> float:
        if exponent not in losses:
            losses[exponent] = [
                train_miniature(recipe_of(base, form, factor, exponent, seed), data)
                for seed in SEEDS
            ]
            log_line(f"{form} x{factor} 2^{exponent}: {statistics.fmean(losses[exponent]):.4f}")
        return statistics.fmean(losses[exponent])

    best = start
    while (step := min((-1, 0, 1), key=lambda step: (mean_loss(best + step), abs(step)))) != 0:
        best += step
    return {
        "form": form,
        "width": base.decoder_spec.dim * factor,
        "best_exponent": best,
        "losses": {str(exponent): losses[exponent] for exponent in sorted(losses)},
    }


def exponent_range(rows: Sequence[ResultRow], form: str) -> int:
    """Return the range of the best exponents of a parametrization."""
    exponents = [row["best_exponent"] for row in rows if row["form"] == form]
    return int(max(exponents) - min(exponents))


def save_search(recipe: str, rows: Sequence[ResultRow]) -> None:
    """Save the rows with their context."""
    context = result_context(
        peer="the standard parametrization with the same widths, tokens and seeds",
        convention=f"{STEPS} steps of {GLOBAL_BATCH_TOKENS} tokens in float32; mean loss of "
        f"the last {EDGE} steps, nats per token, of each seed, by the exponent of two of the "
        "rate; best: lowest mean over seeds; at the base both parametrizations are equal",
        shape={"recipe": recipe, "widths": FACTORS, "words": list(WORDS)},
    )
    ranges = {form: exponent_range(rows, form) for form in PARAMETRIZATIONS}
    tree = context | {"seeds": list(SEEDS), "moved_factors_of_two": ranges, "rows": list(rows)}
    save_tree(RESULT, tree)


def main(words: Sequence[str]) -> int:
    """Search every width in both parametrizations and save the result."""
    base = compose_recipe(read_point([f"recipe={words[0]}", *WORDS]))
    with tempfile.TemporaryDirectory() as home:
        data = prepare_data(words[0], Path(home))
        first = search_rate(base, data, "standard", FACTORS[0], FIRST_EXPONENT)
        rows = [first, first | {"form": "muP"}]
        best: dict[str, int] = dict.fromkeys(PARAMETRIZATIONS, int(first["best_exponent"]))
        for factor in FACTORS[1:]:
            for form in PARAMETRIZATIONS:
                rows.append(search_rate(base, data, form, factor, best[form]))
                best[form] = int(rows[-1]["best_exponent"])
                save_search(words[0], rows)
    return int(not (exponent_range(rows, "muP") <= 1 < exponent_range(rows, "standard")))


if __name__ == "__main__":
    run_script(main, min_words=1, max_words=1)

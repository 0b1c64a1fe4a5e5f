"""Does the best learning rate stay where it is when a model grows, with muP and without?

Miniatures of the recipe, 1, 2, 4 and 8 times as wide by as many times the heads, are trained by
the real path on real text, three seeds each, at rates of whole powers of two: those around the
best one of the narrower model, until the neighbours of the best are worse. The base of muP is
the narrowest; the standard form's first weights deviate by 1/sqrt(width), too, but its rate and
its logits know no width. Exit status 1 if muP's best rates are more than a factor of two apart,
or those of the standard form are not farther.

    python -m benchmarks.training.mup RECIPE
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer

from benchmarks.entry import enter
from benchmarks.kept import RESULTS, ROOT, Row, circumstances
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.check import check_recipe
from components.config.recipe import Recipe
from components.parity.coordinates import resized
from components.run.folder import create_run_folder
from components.terminal import say
from components.train.fit import load_run
from components.train.module import Pretraining
from components.train.trainer import make_trainer

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
FORMS = {"standard": None, "muP": MUP}


class LastLosses(Callback):
    """Keep the loss of every step, on tokens that were not seen before."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        assert pl_module.last is not None
        self.losses.append(pl_module.last.loss)


def prepare(recipe: str, home: Path) -> Path:
    """Prepare the miniature's text by the command, and return its folder."""
    program = [sys.executable, str(ROOT / "run.py"), "action=prepare", f"recipe={recipe}"]
    subprocess.run(
        [*program, *WORDS, f"data.folder={home}"],
        cwd=home,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (manifest,) = home.glob("*/manifest.json")
    return manifest.parent


def recipe_of(base: Recipe, form: str, factor: int, exponent: int, seed: int) -> Recipe:
    """Make the model as many times as wide, with one rate and one seed."""
    tree = resized(base, factor=factor, num_layers=NUM_LAYERS).model_dump(mode="json")
    if FORMS[form] is None:
        tree["model"]["initialization"]["std"] = STD / math.sqrt(factor)
    else:
        tree["model"]["parametrization"] = FORMS[form]
    tree["optimizer"]["lr"] = math.ldexp(1.0, exponent)
    tree["budget"]["seed"] = seed
    return check_recipe(tree)


def train(recipe: Recipe, data: Path) -> float:
    """Train in this process; return the mean loss of the last steps."""
    callback = LastLosses()
    with tempfile.TemporaryDirectory() as home:
        folder = create_run_folder(recipe, Path(home) / "run")
        folder.write_json("data.json", {"folder": str(data), "unigram": {}})
        module, loaded = load_run(folder, recipe)
        make_trainer(recipe=recipe, callbacks=[callback]).fit(module, datamodule=loaded)
    return statistics.fmean(callback.losses[-EDGE:])


def search(base: Recipe, data: Path, form: str, factor: int, start: int) -> Row:
    """Find the best rate of a width: its neighbours on the grid are worse."""
    found: dict[int, list[float]] = {}

    def mean(exponent: int) -> float:
        if exponent not in found:
            found[exponent] = [
                train(recipe_of(base, form, factor, exponent, seed), data) for seed in SEEDS
            ]
            say(f"{form} x{factor} 2^{exponent}: {statistics.fmean(found[exponent]):.4f}")
        return statistics.fmean(found[exponent])

    best = start
    while (step := min((-1, 0, 1), key=lambda step: (mean(best + step), abs(step)))) != 0:
        best += step
    return {
        "form": form,
        "width": base.shape.dim * factor,
        "best_exponent": best,
        "losses": {str(exponent): found[exponent] for exponent in sorted(found)},
    }


def moved(rows: Sequence[Row], form: str) -> int:
    """Say by how many factors of two the best rates of a form are apart."""
    exponents = [row["best_exponent"] for row in rows if row["form"] == form]
    return int(max(exponents) - min(exponents))


def keep(recipe: str, rows: Sequence[Row]) -> None:
    """Keep what was found, with how."""
    context = circumstances(
        peer="the standard form at the same widths, on the same tokens from the same seeds",
        convention=f"{STEPS} steps of {GLOBAL_BATCH_TOKENS} tokens in float32; mean loss of "
        f"the last {EDGE} steps, nats a token, of each seed in turn, by the exponent of two of "
        "the rate; best: the least mean over seeds; at the base both forms are the same",
        shape={"recipe": recipe, "widths": FACTORS, "words": list(WORDS)},
    )
    apart = {form: moved(rows, form) for form in FORMS}
    tree = context | {"seeds": list(SEEDS), "moved_factors_of_two": apart, "rows": list(rows)}
    RESULT.write_text(json.dumps(tree, indent=1) + "\n", "utf-8")


def main(words: Sequence[str]) -> int:
    """Search every width in both forms, keep the result, and say if the claim holds."""
    base = compose_recipe(read_point([f"recipe={words[0]}", *WORDS]))
    with tempfile.TemporaryDirectory() as home:
        data = prepare(words[0], Path(home))
        first = search(base, data, "standard", FACTORS[0], FIRST_EXPONENT)
        rows = [first, first | {"form": "muP"}]
        best: dict[str, int] = dict.fromkeys(FORMS, int(first["best_exponent"]))
        for factor in FACTORS[1:]:
            for form in FORMS:
                rows.append(search(base, data, form, factor, best[form]))
                best[form] = int(rows[-1]["best_exponent"])
                keep(words[0], rows)
    return int(not (moved(rows, "muP") <= 1 < moved(rows, "standard")))


if __name__ == "__main__":
    enter(main, least=1, most=1)

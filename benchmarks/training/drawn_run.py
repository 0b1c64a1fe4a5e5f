"""A miniature that trains on drawn tokens by the real path, watched by a benchmark."""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch import Callback

from benchmarks.kept import circumstances
from benchmarks.ratios import Ratio, keep_result
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.parity.prover import draw_data, start_ranks
from components.run.folder import RunFolder, create_run_folder
from components.train.fit import load_run
from components.train.module import Pretraining
from components.train.trainer import make_trainer

Watch = TypeVar("Watch", bound=Callback)


def compose(words: Sequence[str], defaults: Sequence[str]) -> Recipe:
    """Compose the words of a command; each replaces the default of the same key."""
    given = {word.partition("=")[0] for word in words}
    kept = [word for word in defaults if word.partition("=")[0] not in given]
    return compose_recipe(read_point([*kept, *words]))


def train_drawn(
    recipe: Recipe, make_callback: Callable[[RunFolder], Watch], *, most_steps: int
) -> tuple[Watch, Pretraining]:
    """Take steps in this process; the run folder, which the callback may use, is then gone."""
    with tempfile.TemporaryDirectory() as path:
        place = Path(path) / "data"
        folder = create_run_folder(recipe, Path(path) / "run")
        draw_data(recipe, place)
        folder.write_json("data.json", {"folder": str(place), "unigram": {}})
        callback, (module, data) = make_callback(folder), load_run(folder, recipe)
        trainer = make_trainer(recipe=recipe, callbacks=[callback], most_steps=most_steps)
        trainer.fit(module, datamodule=data)
    return callback, module


def start_drawn(recipe: Recipe, home: Path, module: str) -> RunFolder:
    """Start a rank of ``python -m module RUN`` for each of a recipe's, on drawn tokens."""
    draw_data(recipe, home / "data")
    run = create_run_folder(recipe, home / "run")
    run.write_json("data.json", {"folder": str(home / "data")})
    start_ranks(["-m", module, str(run.path)], recipe.cluster.ranks, home / "ranks.log")
    return run


def compare_steps(
    name: str,
    measure: Callable[[list[str]], dict[str, Any]],
    ratios_of: Callable[[dict[str, Any]], list[Ratio]],
    words: list[str],
    *,
    peer: str,
    alone: str,
    shape: Mapping[str, object],
) -> int:
    """Measure on as many threads as the environment says, and keep the result.

    ``alone`` says what is also timed without a step around it.
    """
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    figures = measure(words)
    context = circumstances(
        peer=peer,
        convention="wall clock from a step's batch until its record is kept, one process, in "
        "turns; medians of paired ratios with their 95 % intervals; alone is what "
        f"{alone} without a step",
        shape={**shape, "threads": torch.get_num_threads()},
    )
    return keep_result(name, context | figures, ratios_of(figures))

"""Train a miniature on random tokens with the real training code, for benchmarks."""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch import Callback, Trainer

from benchmarks.ratios import Ratio, save_benchmark
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.parity.prover import draw_data, start_ranks
from components.run.folder import RunFolder, create_run_folder
from components.train.fit import load_run
from components.train.module import Pretraining
from components.train.trainer import make_trainer

Recorder = TypeVar("Recorder", bound=Callback)


class StepRecorder(Callback):
    """Record seconds and loss of every step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        assert pl_module.last is not None
        self.seconds.append(pl_module.last.seconds)
        self.losses.append(pl_module.last.loss)


def compose_with_defaults(words: Sequence[str], defaults: Sequence[str]) -> Recipe:
    """Compose a recipe from arguments, which replace the defaults of the same key."""
    keys = {word.partition("=")[0] for word in words}
    others = [word for word in defaults if word.partition("=")[0] not in keys]
    return compose_recipe(read_point([*others, *words]))


def train_drawn(
    recipe: Recipe,
    make_callback: Callable[[RunFolder], Recorder],
    *,
    most_steps: int | None = None,
    data: Path | None = None,
) -> tuple[Recorder, Pretraining]:
    """Train in this process; the run folder, which the callback may use, is then removed.

    Tokens are random unless ``data`` is a folder of prepared data.
    """
    with tempfile.TemporaryDirectory() as path:
        data_folder = data or Path(path) / "data"
        folder = create_run_folder(recipe, Path(path) / "run")
        if data is None:
            draw_data(recipe, data_folder)
        folder.write_json("data.json", {"folder": str(data_folder), "unigram": {}})
        callback, (module, loaded) = make_callback(folder), load_run(folder, recipe)
        trainer = make_trainer(recipe=recipe, callbacks=[callback], most_steps=most_steps)
        trainer.fit(module, datamodule=loaded)
    return callback, module


def start_drawn(recipe: Recipe, home: Path, module: str) -> RunFolder:
    """Run ``python -m module RUN`` for each rank of a recipe, on random tokens."""
    draw_data(recipe, home / "data")
    run = create_run_folder(recipe, home / "run")
    run.write_json("data.json", {"folder": str(home / "data")})
    start_ranks(["-m", module, str(run.path)], recipe.cluster.ranks, home / "ranks.log")
    return run


def measure_and_save(
    name: str,
    measure: Callable[[list[str]], dict[str, Any]],
    ratios_of: Callable[[dict[str, Any]], list[Ratio]],
    words: list[str],
    shape: Mapping[str, object],
) -> int:
    """Measure with the threads of ``OMP_NUM_THREADS`` and save the result."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    figures = measure(words)
    shape = {**shape, "threads": torch.get_num_threads()}
    return save_benchmark(name, shape, figures, ratios_of(figures))


def train_rank(path: Path, callbacks: list[Callback], most_steps: int) -> RunFolder:
    """Train the run of a folder in this process, which is one of its ranks."""
    folder = RunFolder(path)
    module, data = load_run(folder, read_recipe(folder.recipe))
    trainer = make_trainer(recipe=module.recipe, callbacks=callbacks, most_steps=most_steps)
    trainer.fit(module, datamodule=data)
    return folder

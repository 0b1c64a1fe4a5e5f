"""One rank of a proof: ``python -m components.parity.rank FOLDER [FOLDER]``.

Each folder is a run folder. The rank trains ten steps of it by the real path (trainer,
strategy, module) and writes there what it saw: losses and norms as JSON, tensors gathered to
their global shape as safetensors. Every rank writes, so that copies which part are found.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # not in its __all__
from torch.distributed.rendezvous import rendezvous

from components.config.check import read_recipe
from components.engine.mesh_engine import NamedTensors
from components.run.folder import RunFolder
from components.train.fit import load_run
from components.train.module import Pretraining
from components.train.trainer import make_trainer, rank_here

STEPS = 10


class Recorder(Callback):
    """Keep each microbatch's loss by its first sample, first gradients and last weights."""

    def __init__(self, *, steps: int) -> None:
        self.losses: list[dict[int, float]] = []
        self.gradient_norms: list[float] = []
        self.rates: list[float] = []
        self.tensors: dict[str, Tensor] = {}
        self._steps = steps

    def on_train_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        pl_module.engine.on_gradients = lambda: self._keep_gradients(pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        assert pl_module.last is not None
        pl_module.engine.on_gradients = None
        first = pl_module.data.batches.positions(len(self.losses))[0]
        size = pl_module.recipe.parallelism.microbatch_sequences
        values = pl_module.compute.losses.tolist()  # of the last stage
        self.losses.append({first + size * place: loss for place, loss in enumerate(values)})
        self.gradient_norms.append(pl_module.last.gradient_norm)
        self.rates.append(pl_module.last.lr)
        if len(self.losses) == self._steps:  # while the ranks are still connected
            self._keep("weight", pl_module.engine.weights())

    def _keep_gradients(self, module: Pretraining) -> None:
        self._keep("gradient", module.engine.gradients())

    def _keep(self, kind: str, named: NamedTensors) -> None:
        for name, tensor in named:
            kept = tensor.cpu().clone(memory_format=torch.contiguous_format)
            self.tensors[f"{kind}/{name}"] = kept


def record(folder: RunFolder) -> None:
    """Train the run's first steps and write what this rank saw of them."""
    module, data = load_run(folder, read_recipe(folder.recipe))
    steps = min(STEPS, len(module.recipe.span.steps))
    recorder = Recorder(steps=steps)
    trainer = make_trainer(recipe=module.recipe, callbacks=[recorder], most_steps=steps)
    trainer.fit(module, datamodule=data)
    name = f"rank-{rank_here():05d}"
    save_file(recorder.tensors, folder.path / f"{name}.safetensors")
    figures = ("losses", "gradient_norms", "rates")
    folder.write_json(f"{name}.json", {key: getattr(recorder, key) for key in figures})


def main(paths: Sequence[str]) -> None:
    """Record one run after the other: the imports are the slow part of a rank."""
    for path in paths:
        if "RANK" in os.environ:
            rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            store, _, _ = next(rendezvous("env://", rank, ranks))
            # Under the keys of the run before, a rank would wait for addresses of the past.
            store = PrefixStore(path, store)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        record(RunFolder(Path(path)))


if __name__ == "__main__":
    main(sys.argv[1:])

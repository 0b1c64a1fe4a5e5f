"""One rank of a parity proof: ``python -m components.parity.rank FOLDER [FOLDER]``.

In each run folder the rank trains ten steps with the real trainer, and writes losses and norms
as JSON, gathered tensors as safetensors. All ranks write, to compare copies, too.
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
    """Recorder of losses by first sample, step figures, first gradients and last weights."""

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
        first = pl_module.data_module.batches.list_sample_numbers(len(self.losses))[0]
        size = pl_module.recipe.parallelism.microbatch_sequences
        values = pl_module.compute.microbatch_losses.tolist()  # from the last stage
        self.losses.append({first + size * index: loss for index, loss in enumerate(values)})
        self.gradient_norms.append(pl_module.last.gradient_norm)
        self.rates.append(pl_module.last.lr)
        if len(self.losses) == self._steps:  # while the ranks are still connected
            self._keep("weight", pl_module.engine.iterate_weights())

    def _keep_gradients(self, module: Pretraining) -> None:
        self._keep("gradient", module.engine.iterate_gradients())

    def _keep(self, kind: str, named: NamedTensors) -> None:
        for name, tensor in named:
            copy = tensor.cpu().clone(memory_format=torch.contiguous_format)
            self.tensors[f"{kind}/{name}"] = copy


def record_rank(folder: RunFolder) -> None:
    """Train the run's first steps and write this rank's record."""
    module, data = load_run(folder, read_recipe(folder.recipe))
    steps = min(STEPS, len(module.recipe.phase_span.step_range))
    recorder = Recorder(steps=steps)
    trainer = make_trainer(recipe=module.recipe, callbacks=[recorder], most_steps=steps)
    trainer.fit(module, datamodule=data)
    name = f"rank-{rank_here():05d}"
    save_file(recorder.tensors, folder.path / f"{name}.safetensors")
    figures = ("losses", "gradient_norms", "rates")
    folder.write_json(f"{name}.json", {key: getattr(recorder, key) for key in figures})


def main(paths: Sequence[str]) -> None:
    """Record several runs in one process: imports take most of a rank's time."""
    for path in paths:
        if "RANK" in os.environ:
            rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            store, _, _ = next(rendezvous("env://", rank, ranks))
            # With the keys of the previous run, a rank would wait for its old addresses.
            store = PrefixStore(path, store)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        record_rank(RunFolder(Path(path)))


if __name__ == "__main__":
    main(sys.argv[1:])

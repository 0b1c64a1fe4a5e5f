"""Lightning data module of a run: training batches from a position on, validation by source."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule

from components.config.recipe import Recipe
from components.data.manifest import Manifest
from components.data.run_order import Window
from components.data.samples import HeldOutWindows
from components.distributed.mesh import Mesh
from components.train.batches import StepBatches
from components.train.prefetch import Prefetcher
from components.train.trainer import MeshStrategy
from components.train.validation_batches import ValidationBatches


class PretrainingData(LightningDataModule):
    """Load the prepared data in ``folder`` as this rank's part of the recipe's batches.

    The position is ``step``, the number of steps that were taken, and ``skipped``, the windows
    of samples that the guard excluded. Both are in ``state_dict``.
    """

    batches: StepBatches

    def __init__(self, *, recipe: Recipe, folder: Path) -> None:
        super().__init__()
        self.recipe, self.folder = recipe, folder
        self.manifest = Manifest.read(folder)
        self.step = 0
        self.skipped: Sequence[Window] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources, in the order of the validation loaders."""
        return tuple(self.manifest.sources)

    @property
    def mesh(self) -> Mesh:
        assert self.trainer is not None
        assert isinstance(self.trainer.strategy, MeshStrategy)
        return self.trainer.strategy.mesh

    def setup(self, stage: str) -> None:
        self.batches = StepBatches(
            recipe=self.recipe,
            folder=self.folder,
            manifest=self.manifest,
            rank=self.mesh.data_rank,
        )
        self._skip(self.skipped)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "skipped": [list(window) for window in self.skipped]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after ``step`` steps, without the windows that are ``skipped``."""
        self.step = state_dict["step"]
        skipped = tuple((first, count) for first, count in state_dict["skipped"])
        if skipped != self.skipped:
            self._skip(skipped)

    def _skip(self, windows: Sequence[Window]) -> None:
        self.skipped = windows
        self.batches.skip([*self.recipe.data.skip, *windows])

    def train_dataloader(self) -> Prefetcher:
        assert self.trainer is not None
        return Prefetcher(
            self.batches,
            lambda: self.step,
            steps=self.recipe.span.steps,
            device=self.trainer.strategy.root_device,
        )

    def val_dataloader(self) -> list[ValidationBatches]:
        windows = HeldOutWindows(
            folder=self.folder,
            manifest=self.manifest,
            sequence_length=self.recipe.budget.sequence_length,
            max_windows=self.recipe.evaluation.max_windows_per_source,
        )
        return [
            ValidationBatches(windows, source, recipe=self.recipe, mesh=self.mesh)
            for source in self.sources
        ]

"""Lightning data module of a run: training batches from any step, validation by source."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule

from components.config.recipe import Recipe
from components.data.manifest import Manifest
from components.data.run_order import SampleWindow
from components.data.samples import HeldOutWindows
from components.distributed.mesh import Mesh
from components.train.batches import RankBatches
from components.train.prefetch import Prefetcher
from components.train.trainer import MeshStrategy
from components.train.validation_batches import ValidationBatches


class PretrainingData(LightningDataModule):
    """Load the prepared data in ``folder`` as this rank's part of the recipe's batches.

    The state is the ``step`` count and the ``skipped`` windows that the guard excluded.
    """

    batches: RankBatches

    def __init__(self, *, recipe: Recipe, folder: Path) -> None:
        super().__init__()
        self.recipe, self.folder = recipe, folder
        self.manifest = Manifest.from_folder(folder)
        self.step = 0
        self.skipped: Sequence[SampleWindow] = ()

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the sources, in the order of the validation loaders."""
        return tuple(self.manifest.sources)

    @property
    def parallel_mesh(self) -> Mesh:
        assert self.trainer is not None
        assert isinstance(self.trainer.strategy, MeshStrategy)
        return self.trainer.strategy.mesh

    def setup(self, stage: str) -> None:
        self.batches = RankBatches(
            recipe=self.recipe,
            folder=self.folder,
            manifest=self.manifest,
            rank=self.parallel_mesh.data_rank,
        )
        self._skip(self.skipped)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "skipped": [list(window) for window in self.skipped]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after ``step`` steps, and exclude the windows in ``skipped``."""
        self.step = state_dict["step"]
        skipped = tuple((first, count) for first, count in state_dict["skipped"])
        if skipped != self.skipped:
            self._skip(skipped)

    def _skip(self, windows: Sequence[SampleWindow]) -> None:
        self.skipped = windows
        self.batches.set_skipped([*self.recipe.data.skip, *windows])

    def train_dataloader(self) -> Prefetcher:
        assert self.trainer is not None
        return Prefetcher(
            self.batches,
            lambda: self.step,
            steps=self.recipe.phase_span.step_range,
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
            ValidationBatches(windows, source, recipe=self.recipe, mesh=self.parallel_mesh)
            for source in self.source_names
        ]

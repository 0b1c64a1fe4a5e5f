"""Batches of one data rank: what a step reads is a function of the step alone."""

from pathlib import Path

import torch
from torch.utils.data import Dataset

from components.data.manifest import Manifest
from components.data.order import Drawn, SampleId
from components.data.samples import PackedSamples, step_positions
from components.spec.recipe import Recipe
from components.train.mixture import make_order


class StepBatches(Dataset[torch.Tensor]):
    """Item ``step`` is one rank's share of it: ``[microbatches, sequences, length + 1]``."""

    def __init__(self, *, recipe: Recipe, folder: Path, manifest: Manifest, rank: int) -> None:
        self._order = make_order(recipe, manifest)
        self._samples = PackedSamples(
            folder=folder,
            manifest=manifest,
            order=self._order,
            sequence_length=recipe.budget.sequence_length,
        )
        self._ramp = recipe.ramp
        self._microbatch = recipe.parallelism.microbatch_sequences
        self._ranks = recipe.parallelism.data * recipe.parallelism.expert
        self._rank = rank

    def __getitem__(self, step: int) -> torch.Tensor:
        rows = torch.stack([self._samples[position] for position in self.positions(step)])
        return rows.view(-1, self._microbatch, rows.shape[1])

    def positions(self, step: int) -> range:
        """Positions of the whole order that this rank reads at ``step``, counted from 0."""
        first_sample = self._ramp.consumed_after(step)
        return step_positions(
            first_sample=first_sample,
            samples_per_step=self._ramp.samples_at(first_sample),
            rank=self._rank,
            ranks=self._ranks,
        )

    def sample_ids(self, step: int) -> list[SampleId]:
        return [self._samples.sample_id(position) for position in self.positions(step)]

    def drawn_before(self, step: int) -> dict[str, Drawn]:
        """Sum up per source what all ranks read in the first ``step`` steps."""
        return self._order.drawn(self._ramp.consumed_after(step))

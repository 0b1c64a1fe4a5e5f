"""The train step: accumulate microbatches, average, clip, update; on the clock of tokens."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils.data import DataLoader

from components.build import build
from components.data.samples import DIGEST_MODULUS, samples_digest
from components.model.initialization import initialize
from components.spec.recipe import Recipe
from components.train.batches import StepBatches
from components.train.checkpoint import Progress
from components.train.strategy import MeshStrategy, average_gradients, sum_over


@dataclass(frozen=True)
class StepRecord:
    """What one step reports; the loss is the mean over all ranks."""

    step: int
    tokens: int
    loss: float
    lr: float
    gradient_norm: float
    seconds: float
    tokens_per_second: float
    samples_digest: int


class Pretraining(LightningModule):
    """Train the recipe's decoder; one Lightning batch is one step of one rank."""

    def __init__(self, *, recipe: Recipe, batches: Callable[[int], StepBatches]) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.recipe = recipe
        self.progress = Progress(step=0, tokens=0)
        self.stop_asked = False
        self.stopping = False
        self.last: StepRecord | None = None
        self._make_batches = batches
        self._schedule = build(recipe.schedule, "schedule")
        self._began = time.perf_counter()

    @property
    def mesh(self) -> Any:
        strategy = self.trainer.strategy
        assert isinstance(strategy, MeshStrategy)
        return strategy.mesh

    def is_due(self, every_tokens: int) -> bool:
        """Whether the step just taken crossed a cadence, or was the last."""
        tokens = self.progress.tokens
        before = tokens - self.recipe.derived.tokens_per_step
        crossed = tokens // every_tokens > before // every_tokens
        return crossed or self.progress.step == self.recipe.derived.steps

    def configure_model(self) -> None:
        """Build the decoder where it trains; its start depends on seed and names alone."""
        if hasattr(self, "decoder"):
            return
        with torch.device("meta"):
            decoder = build(self.recipe.model, "model")
        self.decoder = decoder.to_empty(device=self.device)
        initialize(self.decoder, seed=self.recipe.budget.seed)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        make = build(self.recipe.optimizer, "optimizer")
        optimizer: torch.optim.Optimizer = make(
            parameters=list(self.decoder.named_parameters())
        )
        return optimizer

    def train_dataloader(self) -> DataLoader[Tensor]:
        """Read from the step that comes next: one integer resumes the data."""
        self.batches = self._make_batches(self.mesh.get_local_rank())
        steps = range(self.progress.step, self.recipe.derived.steps)
        return DataLoader(self.batches, batch_size=None, sampler=list(steps))

    def on_train_start(self) -> None:
        self._began = time.perf_counter()

    def training_step(self, batch: Tensor) -> None:
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        for rows in batch:  # (sequences, length + 1)
            loss = self.decoder.loss(rows[:, :-1], rows[:, 1:]) / len(batch)
            self.manual_backward(loss)
            total += loss.detach()
        average_gradients(self.decoder.parameters(), self.mesh)
        norm = torch.nn.utils.clip_grad_norm_(
            self.decoder.parameters(), self.recipe.optimizer["clip_norm"]
        )
        lr = self._set_lr(optimizer.optimizer)
        optimizer.step()
        self._record(total, norm, lr)

    def _set_lr(self, optimizer: torch.optim.Optimizer) -> float:
        lr = float(self.recipe.optimizer["lr"] * self._schedule(self.progress.tokens))
        for group in optimizer.param_groups:
            group["lr"] = lr
        return lr

    def _record(self, loss: Tensor, norm: Tensor, lr: float) -> None:
        """Agree with the other ranks on loss and stopping, and move the clock on."""
        ranks = self.mesh.size()
        agreed = torch.stack([loss.double(), loss.new_tensor(self.stop_asked).double()])
        mean_loss, stop = sum_over(agreed, self.mesh).tolist()
        digest = torch.tensor(samples_digest(self.batches.sample_ids(self.progress.step)))
        # int64 sums wrap around at 2**64, which leaves the sum modulo 2**63 as it is
        digests = sum_over(digest.to(self.device), self.mesh).item()
        now = time.perf_counter()
        tokens_per_step = self.recipe.derived.tokens_per_step
        self.progress = Progress(
            step=self.progress.step + 1, tokens=self.progress.tokens + tokens_per_step
        )
        self.last = StepRecord(
            step=self.progress.step,
            tokens=self.progress.tokens,
            loss=mean_loss / ranks,
            lr=lr,
            gradient_norm=norm.item(),
            seconds=now - self._began,
            tokens_per_second=tokens_per_step / (now - self._began),
            samples_digest=int(digests) % DIGEST_MODULUS,
        )
        self.stopping = stop > 0

    def on_train_batch_start(self, batch: Tensor, batch_idx: int) -> None:
        self._began = time.perf_counter()

"""The train step: accumulate microbatches, average, clip, update; on the clock of tokens."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils.data import DataLoader

from components.build import build
from components.convert.reading import read_folder
from components.data.samples import DIGEST_MODULUS, samples_digest
from components.model.checkpointing import checkpoint_activations
from components.model.initialization import initialize
from components.model.moe import auxiliary_terms
from components.optim.loss_scale import LossScale
from components.spec.frozen import thaw
from components.spec.recipe import Recipe
from components.train.batches import StepBatches
from components.train.checkpoint import Progress
from components.train.strategy import (
    MeshStrategy,
    average_gradients,
    compute_dtype,
    round_gradients,
    sum_over,
)


@dataclass(frozen=True)
class StepRecord:
    """What one step reports, as means over all microbatches and ranks.

    ``loss`` is the cross-entropy alone; ``expert_load`` the busiest expert's tokens over the
    mean, 1 for a dense model.
    """

    step: int
    tokens: int
    loss: float
    auxiliary_loss: float
    expert_load: float
    lr: float
    gradient_norm: float
    seconds: float
    tokens_per_second: float
    samples_digest: int
    loss_scale: float


class Pretraining(LightningModule):
    """Train the recipe's decoder; one Lightning batch is one step of one rank."""

    def __init__(
        self, *, recipe: Recipe, batches: Callable[[int], StepBatches], eod_id: int
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.recipe = recipe
        self.progress = Progress(step=0, tokens=0)
        self.loss_scale: LossScale | None = None
        self._tokens_before = 0
        self.stop_asked = False
        self.stopping = False
        self.last: StepRecord | None = None
        self._make_batches = batches
        self._eod_id = eod_id
        self._schedule = build(recipe.schedule, "schedule")
        self._began = time.perf_counter()

    @property
    def mesh(self) -> Any:
        strategy = self.trainer.strategy
        assert isinstance(strategy, MeshStrategy)
        return strategy.mesh

    def is_due(self, every_tokens: int) -> bool:
        """Whether the step just taken crossed a cadence, or was the last."""
        crossed = self.progress.tokens // every_tokens > self._tokens_before // every_tokens
        return crossed or self.progress.step == self.recipe.derived.steps

    def configure_model(self) -> None:
        """Build the decoder where it trains; its start depends on seed and names alone."""
        if hasattr(self, "decoder"):
            return
        with torch.device("meta"):
            decoder = build(self.recipe.model, "model")
        self.decoder = decoder.to_empty(device=self.device)
        scaling = self.recipe.precision.loss_scale
        dtype = compute_dtype(self.recipe.precision.compute, self.device)
        if dtype == torch.float16 and not isinstance(scaling, str):
            self.loss_scale = LossScale(**scaling.model_dump())
        initialize(self.decoder, seed=self.recipe.budget.seed)
        if self.recipe.model["init_from"] != "none":
            read_folder(
                Path(self.recipe.model["init_from"]),
                self.decoder,
                section=thaw(self.recipe.model),
                tokenizer_vocab_size=self.recipe.tokenizer["vocab_size"],
            )
        checkpoint_activations(self.decoder, self.recipe.parallelism.recompute)

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
        return DataLoader(self.batches, batch_size=None, sampler=steps)

    def on_train_start(self) -> None:
        self._began = time.perf_counter()

    def training_step(self, batch: Tensor) -> None:
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.zero_grad()
        figures = torch.zeros(3, device=self.device)  # loss, auxiliary loss, expert load
        for index, rows in enumerate(batch):  # (sequences, length + 1)
            self._seed_dropout(index)
            with self.autocast():
                loss = self.loss(rows)
                auxiliary, load = auxiliary_terms(self.decoder)
            self.manual_backward((loss + auxiliary) * (self.scale / len(batch)))
            busiest = load.get("largest_over_mean", torch.ones_like(loss))
            figures += torch.stack([loss, auxiliary.to(loss), busiest.to(loss)]).detach()
            round_gradients(self.decoder.parameters(), self._sum_dtype("accumulate"))
        average_gradients(self.decoder.parameters(), self.mesh, self._sum_dtype("reduce"))
        norm = self._unscale_and_clip()
        lr = self._set_lr(optimizer.optimizer)
        if self.loss_scale is None or torch.isfinite(norm).item():
            optimizer.step()
        if self.loss_scale is not None:
            self.loss_scale.update(overflow=not torch.isfinite(norm).item())
        self._record(figures / len(batch), norm, lr)

    @property
    def scale(self) -> float:
        return 1.0 if self.loss_scale is None else self.loss_scale.scale

    def _sum_dtype(self, key: str) -> torch.dtype:
        return compute_dtype(getattr(self.recipe.precision, key), self.device)

    def loss(self, rows: Tensor) -> Tensor:
        """Predict each token of ``rows`` [sequences, length + 1] from those before it."""
        inputs, targets = rows[:, :-1], rows[:, 1:]
        documents = None
        if self.recipe.data.document_mask:
            ends = (inputs == self._eod_id).int()
            documents = ends.cumsum(1) - ends  # an end of document belongs to what it ends
        loss: Tensor = self.decoder.loss(inputs, targets, documents=documents)
        return loss

    def autocast(self) -> torch.autocast:
        """Compute in the recipe's dtype; weights, gradients and state stay float32."""
        dtype = compute_dtype(self.recipe.precision.compute, self.device)
        return torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32)

    def _seed_dropout(self, microbatch: int) -> None:
        """Draw the same masks whenever this microbatch of this step is computed again."""
        place = (
            self.recipe.budget.seed,
            self.progress.step,
            self.mesh.get_local_rank(),
            microbatch,
        )
        torch.manual_seed(int.from_bytes(blake2b(repr(place).encode(), digest_size=7).digest()))

    def _unscale_and_clip(self) -> Tensor:
        """Return the global norm of the gradients, as it was before clipping."""
        parameters = [p for p in self.decoder.parameters() if p.grad is not None]
        if self.loss_scale is not None:
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad.div_(self.loss_scale.scale)
        optimizer = self.recipe.optimizer
        clips = self.progress.tokens >= optimizer["clip_after_tokens"]
        limit = optimizer["clip_norm"] if clips else math.inf
        norm: Tensor = torch.nn.utils.clip_grad_norm_(parameters, limit)
        return norm

    def _set_lr(self, optimizer: torch.optim.Optimizer) -> float:
        lr = float(self.recipe.optimizer["lr"] * self._schedule(self.progress.tokens))
        for group in optimizer.param_groups:
            group["lr"] = lr
        return lr

    def _record(self, figures: Tensor, norm: Tensor, lr: float) -> None:
        """Agree with the other ranks on loss and stopping, and move the clock on."""
        ranks = self.mesh.size()
        asked = figures.new_tensor([self.stop_asked], dtype=torch.float64)
        *means, stop = sum_over(
            torch.cat([figures.double() / ranks, asked]), self.mesh
        ).tolist()
        loss, auxiliary_loss, expert_load = means
        digest = torch.tensor(samples_digest(self.batches.sample_ids(self.progress.step)))
        # int64 sums wrap around at 2**64, which leaves the sum modulo 2**63 as it is
        digests = sum_over(digest.to(self.device), self.mesh).item()
        now = time.perf_counter()
        step = self.progress.step + 1
        samples = self.recipe.ramp.consumed_after(step)
        self._tokens_before = self.progress.tokens
        self.progress = Progress(
            step=step,
            tokens=samples * self.recipe.budget.sequence_length,
            loss_scale=self.loss_scale.state_dict() if self.loss_scale else None,
        )
        tokens = self.progress.tokens - self._tokens_before
        self.last = StepRecord(
            step=self.progress.step,
            tokens=self.progress.tokens,
            loss=loss,
            auxiliary_loss=auxiliary_loss,
            expert_load=expert_load,
            lr=lr,
            gradient_norm=norm.item(),
            seconds=now - self._began,
            tokens_per_second=tokens / (now - self._began),
            samples_digest=int(digests) % DIGEST_MODULUS,
            loss_scale=self.scale,
        )
        self.stopping = stop > 0

    def on_train_batch_start(self, batch: Tensor, batch_idx: int) -> None:
        self._began = time.perf_counter()

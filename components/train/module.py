"""The train step: run the microbatches, average, clip, update; on the clock of tokens."""

import math
import time
from collections.abc import Callable, Iterator

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader

from components.build import build
from components.checkpoint.marker import Progress
from components.data.samples import DIGEST_MODULUS, samples_digest
from components.life.guard import Guard, Verdict
from components.life.rank_figures import RankFigures
from components.model.decoder import Decoder
from components.model.routing import Tally
from components.optim.loss_scale import LossScale
from components.parallelism.data import DataParallel
from components.parallelism.dropout_streams import seed_layers
from components.parallelism.mesh import Mesh, sum_over_ranks
from components.parallelism.microbatches import Accumulation, Microbatches, Pipeline
from components.spec.recipe import Recipe
from components.train.batches import StepBatches, StepsToTake
from components.train.compute import StageCompute
from components.train.devices import compute_dtype
from components.train.engine import Engine, MeshEngine
from components.train.pour import RankModel, build_rank_model
from components.train.record import StepRecord
from components.train.strategy import MeshStrategy

AGREED = 7  # figures that the ranks sum up in every step; those of a rank may follow
HALF_BITS = 32


class Pretraining(LightningModule):
    """Train the recipe's decoder, or this rank's part of it; one Lightning batch is one step.

    ``batches`` gives the data of one data rank. Between microbatches and updated weights stands
    the ``engine``.
    """

    stages: nn.ModuleList
    compute: StageCompute
    engine: Engine

    def __init__(
        self, *, recipe: Recipe, batches: Callable[[int], StepBatches], eod_id: int
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.recipe = recipe
        self.progress = Progress(step=0, tokens=0)
        self._tokens_before = 0
        self.stop_asked = False
        self.stopping = False
        self.last: StepRecord | None = None
        self.verdict: Verdict | None = None  # on the step just tried: None if it was taken
        self.guard = Guard(
            rules=recipe.guard, scales_loss=not isinstance(recipe.precision.loss_scale, str)
        )
        self._agreed = [0.0] * AGREED
        self._known_norm: float | None = None
        self.rank_figures = RankFigures(every_steps=recipe.watchdog.every_steps)
        self._make_batches = batches
        self._eod_id = eod_id
        self._schedule = build(recipe.schedule, "schedule")
        self._began = time.perf_counter()

    @property
    def mesh(self) -> Mesh:
        strategy = self.trainer.strategy
        assert isinstance(strategy, MeshStrategy)
        return strategy.mesh

    @property
    def has_loss(self) -> bool:
        """Whether the last stage is on this rank."""
        return any(stage.final_norm is not None for stage in self.decoders)

    @property
    def decoders(self) -> list[Decoder]:
        return [stage for stage in self.stages if isinstance(stage, Decoder)]

    def named_weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """List what this rank holds, under the names of the whole model."""
        return (pair for decoder in self.decoders for pair in decoder.named_parameters())

    def is_due(self, every_tokens: int) -> bool:
        """Whether the step just taken crossed a cadence, or was the last."""
        crossed = self.progress.tokens // every_tokens > self._tokens_before // every_tokens
        return crossed or self.progress.step == self.recipe.derived.steps

    def configure_model(self) -> None:
        """Build this rank's stages; how they start depends on seed and names alone."""
        if hasattr(self, "stages"):
            return
        model = self.build_model()
        self.stages = nn.ModuleList(model.stages)
        self._tied = model.tied
        self.compute = StageCompute(
            recipe=self.recipe, mesh=self.mesh, device=self.device, eod_id=self._eod_id
        )
        for decoder in model.stages:
            seed_layers(decoder, self.compute.dropout_seed)

    def build_model(self) -> RankModel:
        """Build this rank's part of the model where it trains."""
        return build_rank_model(
            self.recipe,
            self.mesh,
            device=self.device,
            dtype=self.weight_dtype,
            reduce_dtype=self.dtype_of("reduce"),
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the engine, which makes the optimizer over what it updates."""
        make = build(self.recipe.optimizer, "optimizer")
        if self.recipe.parallelism.engine == "deepspeed":
            from components.train.deepspeed_engine import DeepSpeedEngine  # slow: who asks pays

            self.engine = DeepSpeedEngine(
                recipe=self.recipe,
                decoder=self.decoders[0],
                compute=self.compute,
                make_optimizer=make,
                compute_dtype=self.dtype_of("compute"),
                device=self.device,
            )
            return self.engine.optimizer
        parallel = DataParallel(
            self.named_weights(),
            self.mesh,
            zero=self.recipe.parallelism.zero,
            accumulate_dtype=self.dtype_of("accumulate"),
            reduce_dtype=self.dtype_of("reduce"),
            tied=self._tied,
            expert_divisor=self.recipe.parallelism.expert_divisor,
        )
        scaling, scale = self.recipe.precision.loss_scale, None
        if self.dtype_of("compute") == torch.float16 and not isinstance(scaling, str):
            scale = LossScale(**scaling.model_dump())
        self.engine = MeshEngine(
            mesh=self.mesh,
            data_parallel=parallel,
            microbatches=self.make_microbatches(),
            optimizer=make(parameters=[(one.name, one.parameter) for one in parallel.shards]),
            loss_scale=scale,
        )
        return self.engine.optimizer

    def make_microbatches(self) -> Microbatches:
        """Make what runs a step's passes over this rank's stages."""
        degrees, budget = self.recipe.parallelism, self.recipe.budget
        if degrees.pipeline == 1:
            return Accumulation(self.decoders[0], self.compute)
        sequences, length = degrees.microbatch_sequences, budget.sequence_length
        experts = self.recipe.shape.mlp.num_experts
        slices = degrees.context * (degrees.tensor if degrees.sequence_parallel else 1)
        return Pipeline(
            self.decoders,
            self.mesh,
            compute=self.compute,
            schedule=degrees.schedule,
            tokens_shape=(sequences, length),
            hidden_shape=(sequences, length // slices, self.recipe.shape.dim),
            carried=Tally.numbers(experts) if experts else 0,
            dtype=self.dtype_of("compute"),
            device=self.device,
        )

    def train_dataloader(self) -> DataLoader[Tensor]:
        """Read from the step that comes next: one integer resumes the data."""
        self.batches = self._make_batches(self.mesh.data_rank)
        self.skip_windows()
        steps = StepsToTake(lambda: self.progress.step, steps=self.recipe.derived.steps)
        return DataLoader(self.batches, batch_size=None, sampler=steps)

    def skip_windows(self) -> None:
        """Leave out what the recipe names and what the guard has found."""
        self.batches.skip([*self.recipe.data.skip, *self.guard.skipped])

    def go_on_from(self, progress: Progress) -> None:
        """Set clock, loss scale and guard to those of a checkpoint; the engine has its own."""
        self.progress = progress
        if progress.loss_scale is not None:
            self.engine.load_scale_state(progress.loss_scale)
        if progress.guard is not None:
            self.guard.load(progress.guard)

    def on_train_start(self) -> None:
        self._began = time.perf_counter()

    def on_train_batch_start(self, batch: Tensor, batch_idx: int) -> None:
        self._began = time.perf_counter()

    def training_step(self, batch: Tensor) -> None:
        """Take one step on ``batch`` (microbatches, sequences, length + 1), or find it bad.

        A bad one leaves weights, optimizer and clock where they were, and `verdict` says why.
        """
        self.compute.begin(self.progress.step, len(batch))
        lr = self._lr()
        norm = self.engine.step(batch, lr=lr, norm_limit=self._norm_limit(), judge=self._judge)
        if norm is None:
            return
        # To ask the device now would be to wait for the update.
        value = norm.item() if self._known_norm is None else self._known_norm
        if not math.isfinite(value):  # DeepSpeed found out, and took no step
            self.verdict = self.guard.judge(loss=self._agreed[0], gradient_norm=value)
        if self.verdict is None:
            self._record(value, lr)

    def evaluate(self, rows: Tensor) -> Tensor | None:
        """Return the loss of ``rows`` (sequences, length + 1), where the last stage is."""
        return self.engine.evaluate(rows)

    @property
    def weight_dtype(self) -> torch.dtype:
        return torch.promote_types(self.dtype_of("compute"), torch.float32)

    def dtype_of(self, key: str) -> torch.dtype:
        return compute_dtype(getattr(self.recipe.precision, key), self.device)

    def _norm_limit(self) -> float:
        optimizer = self.recipe.optimizer
        clips = self.progress.tokens >= optimizer["clip_after_tokens"]
        return float(optimizer["clip_norm"]) if clips else math.inf

    def _lr(self) -> float:
        tokens = self.progress.tokens
        rate = self.recipe.optimizer["lr"] * self._schedule(tokens)
        return float(rate * self.guard.lr_factor(tokens))

    def _judge(self, squares: Tensor | None) -> Tensor | None:
        """Agree with all ranks on the step's figures, and by them whether it may be taken.

        Means over microbatches, the ranks that were asked to stop, the shares of the squared
        norm, the halves of the samples' digest and now and then figures of each rank travel
        together; that the host reads them here, not after the update, is all that guards cost.
        """
        means = self.compute.share_of_means()
        rest = means.new_tensor([float(self.stop_asked), 0.0, *self._digest_halves()])
        if squares is not None:
            rest[1] = squares
        self.rank_figures.note(self.compute.own_time.take())
        own = self.rank_figures.own(step=self.progress.step + 1, device=self.device)
        sums = sum_over_ranks(torch.cat([means, rest, own]))
        self._agreed = sums[:AGREED].tolist()
        self.rank_figures.take(sums[AGREED:])
        norm = sums[4].sqrt()
        self._known_norm = None if squares is None else math.sqrt(self._agreed[4])
        self.verdict = self.guard.judge(loss=self._agreed[0], gradient_norm=self._known_norm)
        return None if self.verdict else norm

    def _record(self, norm: float, lr: float) -> None:
        """Move the clock on and note what the ranks have agreed on."""
        loss, auxiliary_loss, expert_load, stop, _, high, low = self._agreed
        step = self.progress.step + 1
        samples = self.recipe.ramp.consumed_after(step)
        digest = ((int(high) << HALF_BITS) + int(low)) % DIGEST_MODULUS
        now = time.perf_counter()
        self.guard.took(loss=loss, gradient_norm=norm)
        self._tokens_before = self.progress.tokens
        self.progress = Progress(
            step=step,
            tokens=samples * self.recipe.budget.sequence_length,
            loss_scale=self.engine.scale_state(),
            guard=self.guard.state(),
        )
        tokens = self.progress.tokens - self._tokens_before
        self.last = StepRecord(
            step=self.progress.step,
            tokens=self.progress.tokens,
            loss=loss,
            auxiliary_loss=auxiliary_loss,
            expert_load=expert_load,
            lr=lr,
            gradient_norm=norm,
            seconds=now - self._began,
            tokens_per_second=tokens / (now - self._began),
            samples_digest=digest,
            loss_scale=self.engine.scale,
        )
        self.stopping = stop > 0

    def _digest_halves(self) -> tuple[float, float]:
        """Hash which samples the step reads; of the ranks that read the same, one counts.

        A float64 holds the sum of halves exactly, for up to two million ranks.
        """
        if any(self.mesh.place(axis) for axis in ("pipeline", "context", "tensor")):
            return 0.0, 0.0
        high, low = divmod(
            samples_digest(self.batches.sample_ids(self.progress.step)), 1 << HALF_BITS
        )
        return float(high), float(low)

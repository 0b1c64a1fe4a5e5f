"""The train step: run the microbatches, average, clip, update; on the clock of tokens."""

import math
import time
from collections.abc import Iterator
from functools import partial
from statistics import fmean
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from components.build import build
from components.checkpoint.metadata import RunProgress
from components.config.recipe import Recipe
from components.config.stages import splits_backward
from components.distributed.data import DataParallel
from components.distributed.devices import StateDtypes, compute_dtype
from components.distributed.experts import balance_experts, exact_exchanges, forget_loads
from components.distributed.mesh import Mesh, sum_over_ranks
from components.distributed.pipeline import Accumulation, Microbatches, Pipeline
from components.distributed.tensor_styles import seed_layers
from components.engine.deepspeed_engine import DeepSpeedEngine
from components.engine.mesh_engine import Engine, MeshEngine
from components.engine.microbatch_forward import StageCompute
from components.engine.optimizer import build_optimizer
from components.engine.parallelize import RankModel, build_rank_model
from components.fault_tolerance.guards import StepGuard, StepVerdict
from components.fault_tolerance.rank_health import RankFigures
from components.model.decoder import Decoder
from components.model.routing import RoutingTally
from components.optim.ademamix import AdEMAMix
from components.optim.loss_scale import LossScale
from components.optim.muon import Muon
from components.train.batches import StepBatch
from components.train.datamodule import PretrainingData
from components.train.held_out import weighted_mean
from components.train.step_metrics import ReducedMetrics, StepRecord, reduce_step_metrics
from components.train.trainer import MeshStrategy


class Pretraining(LightningModule):
    """Train the recipe's decoder, or this rank's part of it; one batch is one step."""

    stages: nn.ModuleList
    compute: StageCompute
    engine: Engine
    _agreed: ReducedMetrics

    def __init__(self, *, recipe: Recipe, eod_id: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.recipe = recipe
        self.progress = RunProgress(step=0, tokens=0)
        self._tokens_before = 0
        self.stop_asked = False
        self.stopping = False
        self.last: StepRecord | None = None
        self.held_out: dict[str, float] = {}  # the last validation's loss of each source
        self.verdict: StepVerdict | None = None  # on the step just tried: None if it was taken
        self.pairs_beyond = 0  # of token and expert in it, for which parallelism.expert_bound
        self.guard = StepGuard(
            rules=recipe.guard, scales_loss=not isinstance(recipe.precision.loss_scale, str)
        )
        self.rank_figures = RankFigures(every_steps=recipe.watchdog.every_steps)
        self._eod_id = eod_id
        self._schedule = build(recipe.schedule, "schedule")
        self._began = time.perf_counter()

    @property
    def mesh(self) -> Mesh:
        assert isinstance(self.trainer.strategy, MeshStrategy)
        return self.trainer.strategy.mesh

    @property
    def decoders(self) -> list[Decoder]:
        return [stage for stage in self.stages if isinstance(stage, Decoder)]

    def named_weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """List what this rank holds, under the names of the whole model, once each."""
        pairs = (pair for decoder in self.decoders for pair in decoder.named_parameters())
        return iter(dict(pairs).items())

    def is_due(self, every_tokens: int) -> bool:
        """Whether the step just taken crossed a cadence, or was its phase's last."""
        crossed = self.progress.tokens // every_tokens > self._tokens_before // every_tokens
        return crossed or self.progress.step == self.recipe.span.end_step

    @property
    def is_local_due(self) -> bool:
        """Whether the step just taken is one after which nodes keep local copies."""
        settings = self.recipe.checkpoint.local
        return not isinstance(settings, str) and self.progress.step % settings.every_steps == 0

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
        return build_rank_model(self.recipe, self.mesh, device=self.device)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the engine over this rank's stages, and with it their optimizer.

        Raises:
            RecipeError: a precision that DeepSpeed has not, or not on this device.
        """
        if self.recipe.parallelism.engine == "deepspeed":
            decoder, compute = self.decoders[0], self.compute
            self.engine = DeepSpeedEngine(
                recipe=self.recipe, decoder=decoder, compute=compute, device=self.device
            )
        else:
            self.engine = self._mesh_engine()
        return self.engine.optimizer

    def _mesh_engine(self) -> MeshEngine:
        degrees = self.recipe.parallelism
        parallel = DataParallel(
            self.decoders,
            self.mesh,
            zero=degrees.zero,
            dtypes=StateDtypes.of(self.recipe.precision, self.device),
            tied=self._tied,
            expert_divisor=degrees.expert_divisor,
            bucket_elements=degrees.bucket_elements,
            overlap=degrees.overlap,
        )
        scaling, loss_scale = self.recipe.precision.loss_scale, None
        # Only float16 has fewer exponents than float32.
        if self.compute_dtype == torch.float16 and not isinstance(scaling, str):
            loss_scale = LossScale(**scaling.model_dump())
        updated = [(shard.name, shard.parameter) for shard in parallel.shards]
        return MeshEngine(
            mesh=self.mesh,
            data_parallel=parallel,
            microbatches=self.make_microbatches(),
            optimizer=build_optimizer(self.recipe, self.decoders[0], updated),
            loss_scale=loss_scale,
        )

    def make_microbatches(self) -> Microbatches:
        degrees, length = self.recipe.parallelism, self.recipe.budget.sequence_length
        if degrees.pipeline == 1:
            return Accumulation(self.decoders[0], self.compute)
        sequences, experts = degrees.microbatch_sequences, self.recipe.shape.mlp.num_experts
        slices = degrees.context * (degrees.tensor if degrees.sequence_parallel else 1)
        return Pipeline(
            self.decoders,
            self.mesh,
            compute=self.compute,
            schedule=degrees.schedule,
            splits_backward=splits_backward(degrees),
            tokens_shape=(sequences, length),
            hidden_shape=(sequences, length // slices, self.recipe.shape.dim),
            carried=RoutingTally.numbers(experts) if experts else 0,
            dtype=self.compute_dtype,
            device=self.device,
        )

    @property
    def data(self) -> PretrainingData:
        data = getattr(self.trainer, "datamodule", None)
        assert isinstance(data, PretrainingData)
        return data

    def on_train_start(self) -> None:
        self._position_data()

    def on_train_batch_start(self, batch: StepBatch, batch_idx: int) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, outputs: Any, batch: StepBatch, batch_idx: int) -> None:
        self._position_data()
        if self.verdict is None and self.last is not None:
            # One name: each costs about 1 ms. Loggers get the whole record from a callback.
            self.log("loss", self.last.loss, prog_bar=True, logger=False, batch_size=1)

    def _position_data(self) -> None:
        """Let the next batch be of the step after the last one that was taken."""
        state = {"step": self.progress.step, "skipped": self.guard.skipped}
        self.data.load_state_dict(state)

    def training_step(self, batch: StepBatch) -> None:
        """Take one step on ``batch``, or find it bad.

        A bad one leaves weights, optimizer and clock where they were, and `verdict` says why.
        One that sent more to experts than its bound is computed again, without one.
        """
        tokens = batch.tokens
        self._begin(tokens)
        self.compute.weigh(tokens)
        optimizer, done = self.recipe.optimizer, self.progress.tokens
        if isinstance(self.engine.optimizer, AdEMAMix):
            self.engine.optimizer.tokens = self.recipe.clock.tokens_after(
                self.progress.step + 1
            )
        if isinstance(self.engine.optimizer, Muon):
            self.engine.optimizer.tokens = done
        lr = float(optimizer["lr"] * self._schedule(done) * self.guard.lr_factor(done))
        clips = done >= optimizer["clip_after_tokens"]
        limit = float(optimizer["clip_norm"]) if clips else math.inf
        judge = partial(self._judge, batch.samples_digest)
        step = partial(self.engine.step, tokens, lr=lr, norm_limit=limit, judge=judge)
        norm, self.pairs_beyond = step(), 0
        if beyond := self._agreed.pairs_beyond:
            self.pairs_beyond = round(beyond * len(tokens) * self.mesh.data_ranks)
            self._begin(tokens)
            with exact_exchanges(self.decoders):
                norm = step()
        if norm is None:
            return
        known = self._agreed.gradient_norm
        # To ask the device now would be to wait for the update.
        value = norm.item() if known is None else known
        if not math.isfinite(value):  # DeepSpeed found out, and took no step
            self.verdict = self.guard.judge(loss=self._agreed.loss, gradient_norm=value)
        else:
            balance_experts(self.decoders, self.mesh.dense.grad_sync)
        if self.verdict is None:
            self._record(value, lr)

    def _begin(self, tokens: Tensor) -> None:
        """Forget what was counted of the step before, or of this one's first try."""
        self.compute.begin(self.progress.step, len(tokens))
        forget_loads(self.decoders)

    @property
    def compute_dtype(self) -> torch.dtype:
        return compute_dtype(self.recipe.precision.compute, self.device)

    def _judge(self, samples_digest: int, squares: Tensor | None) -> Tensor | None:
        """Agree with all ranks on the step's figures, and by them whether it may be taken.

        That the host reads them here, not after the update, is all that guards cost.
        """
        self.rank_figures.note(self.compute.own_time.take())
        # Of the ranks that read the same samples one counts them.
        repeats = any(self.mesh.place(axis) for axis in ("pipeline", "context", "tensor"))
        self._agreed = agreed = reduce_step_metrics(
            self.compute.share_of_means(),
            squares=squares,
            stop=self.stop_asked,
            samples_digest=0 if repeats else samples_digest,
            own=self.rank_figures.own(step=self.progress.step + 1, device=self.device),
        )
        self.rank_figures.take(agreed.told)
        if agreed.pairs_beyond:  # these figures are wrong
            return None
        self.verdict = self.guard.judge(loss=agreed.loss, gradient_norm=agreed.gradient_norm)
        return None if self.verdict else agreed.norm

    def _record(self, norm: float, lr: float) -> None:
        """Move the clock on and note what the ranks have agreed on."""
        now, agreed = time.perf_counter(), self._agreed
        step = self.progress.step + 1
        self.guard.took(loss=agreed.loss, gradient_norm=norm)
        self._tokens_before = self.progress.tokens
        self.progress = RunProgress(
            step=step,
            tokens=self.recipe.clock.tokens_after(step),
            loss_scale=self.engine.scale_state(),
            guard=self.guard.state(),
        )
        tokens, seconds = self.progress.tokens - self._tokens_before, now - self._began
        self.last = StepRecord(
            step=step,
            tokens=self.progress.tokens,
            loss=agreed.loss,
            auxiliary_loss=agreed.auxiliary_loss,
            expert_load=agreed.expert_load,
            lr=lr,
            gradient_norm=norm,
            seconds=seconds,
            tokens_per_second=tokens / seconds,
            samples_digest=agreed.samples_digest,
            loss_scale=self.engine.scale,
            mtp_loss=agreed.mtp_loss if self.recipe.shape.mtp else None,
        )
        self.stopping = agreed.stop

    def on_validation_epoch_start(self) -> None:
        sources = len(self.data.sources)
        self._sums = torch.zeros(sources, 2, dtype=torch.float64, device=self.device)

    def validation_step(
        self, batch: tuple[Tensor, bool], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Add up the loss of one source's rows ``[sequences, length + 1]``, in nats."""
        rows, counts = batch
        loss = self.engine.evaluate(rows)
        if loss is not None and counts:
            tokens = loss.new_tensor(rows[:, 1:].numel()).double()
            self._sums[dataloader_idx] += torch.stack([loss.double() * tokens, tokens])

    def on_validation_epoch_end(self) -> None:
        """Average over the tokens of each source.

        Ranks that evaluate the same window count it once each, and context ranks their part of
        it, all equally long: the mean is the window's mean.
        """
        losses, tokens = sum_over_ranks(self._sums).T
        self.held_out = dict(zip(self.data.sources, (losses / tokens).tolist(), strict=True))
        shares = self.data.batches.shares_after(self.progress.step)
        figures = {
            "held_out": weighted_mean(self.held_out, shares),
            "held_out_unweighted": fmean(self.held_out.values()),
            "step": float(self.progress.step),
        }
        self.log_dict(figures)

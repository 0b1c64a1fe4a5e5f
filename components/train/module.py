"""Training step: run the microbatches, average, clip, update. Schedules count tokens."""

import math
import time
from collections.abc import Iterator
from functools import partial
from statistics import fmean
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from components.build import build_node
from components.checkpoint.metadata import RunProgress
from components.config.recipe import Recipe
from components.config.stages import splits_backward
from components.distributed.data import DataParallel
from components.distributed.devices import StateDtypes, compute_dtype
from components.distributed.experts import balance_experts, exact_exchanges, forget_loads
from components.distributed.mesh import Mesh, sum_over_ranks
from components.distributed.pipeline import GradientAccumulation, Microbatches, Pipeline
from components.distributed.tensor_styles import seed_layers
from components.engine.deepspeed_engine import DeepSpeedEngine
from components.engine.mesh_engine import Engine, MeshEngine
from components.engine.microbatch_forward import StageForward
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
    """Lightning module of the recipe's decoder, or this rank's part. One batch is one step."""

    stages: nn.ModuleList
    compute: StageForward
    engine: Engine
    _agreed: ReducedMetrics

    def __init__(self, *, recipe: Recipe, eod_id: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.recipe = recipe
        self.progress = RunProgress(step=0, tokens=0)
        self._tokens_before = 0
        self.stop_requested = False
        self.stopping = False
        self.last: StepRecord | None = None
        self.held_out: dict[str, float] = {}  # loss of each source in the last validation
        self.verdict: StepVerdict | None = None  # on the last step: None if it was accepted
        # Token-expert pairs of the last step beyond parallelism.expert_capacity_factor.
        self.overflow_pairs = 0
        self.guard = StepGuard(
            rules=recipe.guard, scales_loss=not isinstance(recipe.precision.loss_scale, str)
        )
        self.rank_figures = RankFigures(every_steps=recipe.watchdog.every_steps)
        self._eod_id = eod_id
        self._schedule = build_node(recipe.schedule, "schedule")
        self._began = time.perf_counter()

    @property
    def parallel_mesh(self) -> Mesh:
        assert isinstance(self.trainer.strategy, MeshStrategy)
        return self.trainer.strategy.mesh

    @property
    def stage_decoders(self) -> list[Decoder]:
        return [stage for stage in self.stages if isinstance(stage, Decoder)]

    def named_weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's weights, once each, under their names in the full model."""
        pairs = (pair for decoder in self.stage_decoders for pair in decoder.named_parameters())
        return iter(dict(pairs).items())

    def is_due(self, every_tokens: int) -> bool:
        """Return whether the last step crossed a cadence, or was the last of its phase."""
        crossed = self.progress.tokens // every_tokens > self._tokens_before // every_tokens
        return crossed or self.progress.step == self.recipe.phase_span.end_step

    @property
    def is_local_due(self) -> bool:
        """Whether local copies are due after the last step."""
        settings = self.recipe.checkpoint.local
        return not isinstance(settings, str) and self.progress.step % settings.every_steps == 0

    def configure_model(self) -> None:
        """Build this rank's stages. The initial weights depend only on the seed and names."""
        if hasattr(self, "stages"):
            return
        model = self.build_model()
        self.stages = nn.ModuleList(model.stages)
        self._tied = model.tied
        self.compute = StageForward(
            recipe=self.recipe, mesh=self.parallel_mesh, device=self.device, eod_id=self._eod_id
        )
        for decoder in model.stages:
            seed_layers(decoder, self.compute.dropout_seed)

    def build_model(self) -> RankModel:
        return build_rank_model(self.recipe, self.parallel_mesh, device=self.device)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Create the engine of this rank's stages, and return its optimizer."""
        if self.recipe.parallelism.engine == "deepspeed":
            decoder, compute = self.stage_decoders[0], self.compute
            self.engine = DeepSpeedEngine(
                recipe=self.recipe, decoder=decoder, compute=compute, device=self.device
            )
        else:
            self.engine = self._mesh_engine()
        return self.engine.optimizer

    def _mesh_engine(self) -> MeshEngine:
        degrees = self.recipe.parallelism
        parallel = DataParallel(
            self.stage_decoders,
            self.parallel_mesh,
            zero=degrees.zero,
            dtypes=StateDtypes.from_precision(self.recipe.precision, self.device),
            tied=self._tied,
            expert_grad_average=degrees.expert_grad_average,
            bucket_elements=degrees.bucket_elements,
            overlap=degrees.overlap,
        )
        scaling, loss_scale = self.recipe.precision.loss_scale, None
        # Of the compute dtypes, only float16 has a smaller exponent range than float32.
        if self.compute_dtype == torch.float16 and not isinstance(scaling, str):
            loss_scale = LossScale(**scaling.model_dump())
        updated = [(shard.name, shard.parameter) for shard in parallel.shards]
        return MeshEngine(
            mesh=self.parallel_mesh,
            data_parallel=parallel,
            microbatches=self.make_microbatches(),
            optimizer=build_optimizer(self.recipe, self.stage_decoders[0], updated),
            loss_scale=loss_scale,
        )

    def make_microbatches(self) -> Microbatches:
        degrees, length = self.recipe.parallelism, self.recipe.budget.sequence_length
        if degrees.pipeline == 1:
            return GradientAccumulation(self.stage_decoders[0], self.compute)
        sequences, experts = (
            degrees.microbatch_sequences,
            self.recipe.decoder_spec.mlp.num_experts,
        )
        slices = degrees.context * (degrees.tensor if degrees.sequence_parallel else 1)
        return Pipeline(
            self.stage_decoders,
            self.parallel_mesh,
            compute=self.compute,
            schedule=degrees.schedule,
            splits_backward=splits_backward(degrees),
            tokens_shape=(sequences, length),
            hidden_shape=(sequences, length // slices, self.recipe.decoder_spec.dim),
            carried=RoutingTally.count_row_numbers(experts) if experts else 0,
            dtype=self.compute_dtype,
            device=self.device,
        )

    @property
    def data_module(self) -> PretrainingData:
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
            # Only one name, since each costs about 1 ms. A callback logs the full record.
            self.log("loss", self.last.loss, prog_bar=True, logger=False, batch_size=1)

    def _position_data(self) -> None:
        """Set the data position to the step after the last accepted one."""
        state = {"step": self.progress.step, "skipped": self.guard.skipped}
        self.data_module.load_state_dict(state)

    def training_step(self, batch: StepBatch) -> None:
        """Run one step on ``batch``, and accept or reject it.

        A rejected step changes nothing but `verdict`, the reason. A step that exceeds the bound
        of tokens per expert is computed again without the bound.
        """
        tokens = batch.tokens
        self._begin(tokens)
        self.compute.count_targets(tokens)
        optimizer, done = self.recipe.optimizer, self.progress.tokens
        if isinstance(self.engine.optimizer, AdEMAMix):
            self.engine.optimizer.tokens = self.recipe.token_clock.tokens_after(
                self.progress.step + 1
            )
        if isinstance(self.engine.optimizer, Muon):
            self.engine.optimizer.tokens = done
        lr = float(optimizer["lr"] * self._schedule(done) * self.guard.lr_factor(done))
        clips = done >= optimizer["clip_after_tokens"]
        limit = float(optimizer["clip_norm"]) if clips else math.inf
        accept_step = partial(self._accept_step, batch.samples_digest)
        step = partial(
            self.engine.step, tokens, lr=lr, norm_limit=limit, accept_step=accept_step
        )
        norm, self.overflow_pairs = step(), 0
        if overflow := self._agreed.overflow_pairs:
            self.overflow_pairs = round(overflow * len(tokens) * self.parallel_mesh.data_ranks)
            self._begin(tokens)
            with exact_exchanges(self.stage_decoders):
                norm = step()
        if norm is None:
            return
        known = self._agreed.gradient_norm
        # Use the known norm: reading it from the device would wait for the update.
        value = norm.item() if known is None else known
        if not math.isfinite(value):  # DeepSpeed detected it and skipped the step
            self.verdict = self.guard.check_step(loss=self._agreed.loss, gradient_norm=value)
        else:
            balance_experts(self.stage_decoders, self.parallel_mesh.dense.grad_sync)
        if self.verdict is None:
            self._record(value, lr)

    def _begin(self, tokens: Tensor) -> None:
        """Reset the counts of the previous step, or of this step's first attempt."""
        self.compute.start_step(self.progress.step, len(tokens))
        forget_loads(self.stage_decoders)

    @property
    def compute_dtype(self) -> torch.dtype:
        return compute_dtype(self.recipe.precision.compute, self.device)

    def _accept_step(self, samples_digest: int, squares: Tensor | None) -> Tensor | None:
        """Reduce the step's figures over all ranks; return the norm if the step is accepted."""
        self.rank_figures.record_seconds(self.compute.compute_timer.take_seconds())
        # Of the ranks that read the same samples, only one counts them.
        repeats = any(
            self.parallel_mesh.get_axis_rank(axis) for axis in ("pipeline", "context", "tensor")
        )
        self._agreed = agreed = reduce_step_metrics(
            self.compute.share_of_means(),
            squares=squares,
            stop=self.stop_requested,
            samples_digest=0 if repeats else samples_digest,
            own=self.rank_figures.build_summand(
                step=self.progress.step + 1, device=self.device
            ),
        )
        self.rank_figures.update_report(agreed.own_sums)
        if agreed.overflow_pairs:  # these figures are wrong
            return None
        self.verdict = self.guard.check_step(
            loss=agreed.loss, gradient_norm=agreed.gradient_norm
        )
        return None if self.verdict else agreed.norm

    def _record(self, norm: float, lr: float) -> None:
        """Advance the progress, and record the reduced figures."""
        now, agreed = time.perf_counter(), self._agreed
        step = self.progress.step + 1
        self.guard.record_step(loss=agreed.loss, gradient_norm=norm)
        self._tokens_before = self.progress.tokens
        self.progress = RunProgress(
            step=step,
            tokens=self.recipe.token_clock.tokens_after(step),
            loss_scale=self.engine.scale_state(),
            guard=self.guard.export_state(),
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
            loss_scale=self.engine.backward_scale,
            mtp_loss=agreed.mtp_loss if self.recipe.decoder_spec.mtp else None,
        )
        self.stopping = agreed.stop

    def on_validation_epoch_start(self) -> None:
        sources = len(self.data_module.source_names)
        self._sums = torch.zeros(sources, 2, dtype=torch.float64, device=self.device)

    def validation_step(
        self, batch: tuple[Tensor, bool], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Add up the loss of one source's rows ``[sequences, length + 1]``, in nats."""
        rows, counts = batch
        loss = self.engine.evaluate_rows(rows)
        if loss is not None and counts:
            tokens = loss.new_tensor(rows[:, 1:].numel()).double()
            self._sums[dataloader_idx] += torch.stack([loss.double() * tokens, tokens])

    def on_validation_epoch_end(self) -> None:
        """Average the loss over the tokens of each source.

        Each rank adds its windows to both sums, context ranks equally long parts of a window.
        """
        losses, tokens = sum_over_ranks(self._sums).T
        self.held_out = dict(
            zip(self.data_module.source_names, (losses / tokens).tolist(), strict=True)
        )
        shares = self.data_module.batches.shares_after(self.progress.step)
        figures = {
            "held_out": weighted_mean(self.held_out, shares),
            "held_out_unweighted": fmean(self.held_out.values()),
            "step": float(self.progress.step),
        }
        self.log_dict(figures)

"""Pipeline parallelism: the modules of a stage, and the schedule of a step's microbatches."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import schedules

from components.config.stages import SPLIT_SCHEDULES, StagePlacement, style_of
from components.distributed.mesh import Mesh
from components.distributed.weight_shards import WeightShard
from components.errors import RecipeError
from components.model.decoder import Decoder
from components.torch_internals.distributed import LeanStage
from components.versions import release_of

TIED = "embedding.weight"


def prune_to_stage(decoder: Decoder, layers: Sequence[int], *, first: bool, last: bool) -> bool:
    """Remove other stages' modules; return whether another rank has a copy of the embedding.

    Both ends have the embedding if the head shares its weight, or if the prediction of further
    tokens embeds them. If one rank has both ends, there is no copy: see `tie_embedding`.
    """
    tied = (decoder.head is None or decoder.mtp is not None) and not (first and last)
    for name in [name for name in decoder.layers if int(name) not in layers]:
        del decoder.layers[name]
    if not first:
        decoder.embedding_norm = None
        if decoder.positions is not None and list(decoder.positions.parameters()):
            decoder.positions = None
        if not (last and tied):
            decoder.embedding = None
    if not last:
        decoder.final_norm = decoder.head = decoder.mtp = None
    return tied and (first or last)


def tie_embedding(stages: Sequence[Decoder]) -> None:
    """Share the embedding weight of both ends on one rank; call this after `to_empty`."""
    first, last = stages[0].embedding, stages[-1].embedding
    if first is not last and first is not None and last is not None:
        last.weight = first.weight


def sum_tied_gradients(shards: Sequence[WeightShard], mesh: Mesh) -> None:
    """Sum both pipeline ends' gradients of tied weights, with the same bits on both."""
    group = mesh.get_axis("pipeline").get_group()
    opposite = mesh.layout.pipeline - 1 - mesh.get_axis_rank("pipeline")  # in a loop
    for shard in shards:
        if shard.tied:
            mine = shard.parameter.grad
            assert mine is not None
            theirs = torch.empty_like(mine, memory_format=torch.contiguous_format)
            transfers = (dist.isend, mine.contiguous()), (dist.irecv, theirs)
            operations = [
                dist.P2POp(send_or_receive, rows, group=group, group_peer=opposite)
                for send_or_receive, rows in transfers
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            shard.parameter.grad = mine + theirs


SCHEDULES: dict[str, Any] = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "zero_bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
    "dualpipev": schedules.ScheduleDualPipeV,
}

# Tests failed in torch 2.10 and 2.11. According to `pipelining._backward`, these versions add a
# weight's gradient twice if one of its products depends on another. 2.12 was not tested.
SPLIT_SINCE = (2, 13)

# Tensors sent between stages: tokens or hidden states, and other tensors for later stages.
StageOutput = tuple[Tensor, ...]
# (stage, its inputs, the microbatch's tokens, the microbatch's number) -> tensors for the next
# stage, or the loss if the stage is the last.
Compute = Callable[[Decoder, StageOutput, Tensor, int], StageOutput]


def check_schedule(schedule: str) -> None:
    """Raise RecipeError for schedules that split the backward pass, wrong before torch 2.13."""
    if schedule in SPLIT_SCHEDULES and release_of(torch.__version__) < SPLIT_SINCE:
        problem = f"{schedule} is not known to work with torch {torch.__version__}"
        remedy = "set parallelism.schedule=interleaved, or use torch 2.13 or newer"
        raise RecipeError("parallelism.schedule", problem, remedy)


class GradientAccumulation:
    """Gradient accumulation without a pipeline: one stage runs one microbatch at a time."""

    def __init__(self, decoder: Decoder, compute: Compute) -> None:
        self._decoder = decoder
        self._compute = compute

    def accumulate_gradients(self, batch: Tensor, scale: float) -> None:
        """Accumulate the gradients of ``scale`` times each microbatch's loss.

        ``batch`` is (microbatches, sequences, length + 1).
        """
        for number, rows in enumerate(batch):
            (loss,) = self._compute(self._decoder, (rows[:, :-1],), rows, number)
            torch.autograd.backward(loss * scale)

    def evaluate_rows(self, rows: Tensor) -> Tensor | None:
        """Return the loss of ``rows``, (sequences, length + 1); None without the last stage."""
        return self._compute(self._decoder, (rows[:, :-1],), rows, 0)[0]


class Pipeline:
    """Pipeline of stages over ranks, run by one of torch's schedules.

    ``decoders`` are this rank's stages in model order. For each microbatch, stages send hidden
    states of ``hidden_shape`` in ``dtype``, in training also ``carried`` numbers, float32 or
    wider. ``splits_backward``: schedules may compute weight gradients separately.
    """

    def __init__(
        self,
        decoders: Sequence[Decoder],
        mesh: Mesh,
        *,
        compute: Compute,
        schedule: str,
        splits_backward: bool,
        hidden_shape: tuple[int, int, int],
        carried: int,
        tokens_shape: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        check_schedule(schedule)
        self._group = mesh.get_axis("pipeline").get_group()
        self._place = mesh.get_axis_rank("pipeline")
        self._placement = StagePlacement(
            pipeline=mesh.layout.pipeline,
            stages_per_rank=len(decoders),
            style=style_of(schedule),
        )
        self._schedule = schedule
        self._splits_backward = splits_backward
        self._hidden_shape = hidden_shape
        self._dtype = dtype
        self._device = device
        numbers = self._placement.stages_of(self._place)
        modules = (_Stage(decoder, compute) for decoder in decoders)
        self._stages = dict(zip(numbers, modules, strict=True))
        self._tokens = torch.empty(tokens_shape, dtype=torch.int64, device="meta")
        self._wide = torch.promote_types(dtype, torch.float32)
        sums = (_expected((carried,), self._wide),) if carried else ()
        self._between = _expected(hidden_shape, dtype), *sums
        self._made: tuple[int, Any] = (0, None)

    # Called for each weight of a stage after a pass that computes only weight gradients.
    # Autograd's hooks do not run in such a pass.
    on_weight_gradient: Callable[[Tensor], None] = staticmethod(lambda weight: None)

    def accumulate_gradients(self, batch: Tensor, scale: float) -> None:
        count = len(batch)
        if count != self._made[0]:  # the count changes while the batch size ramps up
            self._made = count, self._make_schedule(count)
        for stage in self._stages.values():
            stage.scale = scale
        rows = batch.flatten(0, 1)
        inputs = (rows[:, :-1],) if self._place == 0 else ()
        # The microbatch numbers stay on the host: reading them from a device would synchronize.
        kwargs = {"rows": rows, "number": torch.arange(count)}
        self._made[1].step(*inputs, target=rows, return_outputs=False, **kwargs)

    def evaluate_rows(self, rows: Tensor) -> Tensor | None:
        length = (rows.shape[1] - 1) * self._hidden_shape[1] // self._tokens.shape[1]
        shape = len(rows), length, self._hidden_shape[2]
        hidden = torch.empty(shape, dtype=self._dtype, device=self._device)
        inputs, loss = rows[:, :-1], None
        for number, stage in self._stages.items():
            if number and number - 1 not in self._stages:
                self._pass_on(dist.irecv, hidden, number - 1)
                inputs = hidden
            result = stage(inputs, rows=rows, number=torch.zeros(1, dtype=torch.int64))
            if number == self._placement.num_stages - 1:
                loss = result
            elif number + 1 in self._stages:
                inputs = result
            else:
                self._pass_on(dist.isend, result.contiguous(), number + 1)
        return loss

    def _pass_on(self, send_or_receive: Callable[..., Any], hidden: Tensor, stage: int) -> None:
        """Send or receive in a batch, like torch's schedules, to use the same connections."""
        peer = self._placement.rank_of(stage)
        operation = dist.P2POp(send_or_receive, hidden, group=self._group, group_peer=peer)
        for work in dist.batch_isend_irecv([operation]):
            work.wait()

    def _take(self, decoder: Decoder) -> None:
        for weight in decoder.parameters():
            self.on_weight_gradient(weight)

    def _make_schedule(self, microbatches: int) -> Any:
        count, stages = self._placement.num_stages, []
        for index, stage in self._stages.items():
            last = index == count - 1
            # With known shapes torch does not run the stage once to infer them.
            inputs = (self._tokens,) if index == 0 else self._between
            outputs = (_expected((), self._wide),) if last else self._between
            place = index, count, self._device
            lean = LeanStage(stage, *place, inputs, outputs, group=self._group)
            # Embeddings of further tokens depend on no stage input: torch would free their
            # graph too early.
            lean.splits_backward = self._splits_backward and stage.decoder.mtp is None
            lean.on_weight_gradients = partial(self._take, stage.decoder)
            stages.append(lean)
        kind = SCHEDULES[self._schedule]
        run = stages if issubclass(kind, schedules.PipelineScheduleMulti) else stages[0]
        # Without a loss function a stage that is not the last would never run backward.
        return kind(run, microbatches, loss_fn=lambda loss, rows: loss, scale_grads=False)


Microbatches = GradientAccumulation | Pipeline
"""Runner of a step's forward and backward passes, or of a forward pass only."""


def _expected(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


class _Stage(nn.Module):
    """Stage module that torch's schedules call; a microbatch's number arrives as a tensor."""

    def __init__(self, decoder: Decoder, compute: Compute) -> None:
        super().__init__()
        self.decoder = decoder
        self.compute = compute
        self.scale = 1.0

    def forward(self, *inputs: Tensor, rows: Tensor, number: Tensor) -> Tensor | StageOutput:
        result = self.compute(self.decoder, inputs, rows, int(number))
        if len(result) > 1:
            return result
        if self.decoder.final_norm is None or not torch.is_grad_enabled():
            return result[0]
        return result[0] * self.scale

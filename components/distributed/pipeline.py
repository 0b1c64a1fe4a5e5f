"""Pipeline parallelism: the parts of a stage, and its schedule over a step's microbatches."""

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


def cut_stage(decoder: Decoder, layers: Sequence[int], *, first: bool, last: bool) -> bool:
    """Leave only one stage's parts; say whether its embedding has a twin on another stage.

    The first stage embeds, the last one normalizes, maps to logits and takes the loss. Where
    the head is the embedding's weight, or further tokens are embedded for their prediction,
    both ends keep it. Names stay those of the whole. Both ends on one rank are no twins: see
    `share_ends`.
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


def share_ends(stages: Sequence[Decoder]) -> None:
    """Let a last stage on the embedding's own rank use its weight; call it after `to_empty`."""
    first, last = stages[0].embedding, stages[-1].embedding
    if first is not last and first is not None and last is not None:
        last.weight = first.weight


def sum_tied_gradients(shards: Sequence[WeightShard], mesh: Mesh) -> None:
    """Add up what both ends of the pipeline found for the weight that they share.

    Each end sends its rows to the other: both get the same sum, bit for bit.
    """
    group = mesh.axis("pipeline").get_group()
    opposite = mesh.layout.pipeline - 1 - mesh.place("pipeline")  # in a loop
    for shard in shards:
        if shard.tied:
            mine = shard.parameter.grad
            assert mine is not None
            theirs = torch.empty_like(mine, memory_format=torch.contiguous_format)
            ways = (dist.isend, mine.contiguous()), (dist.irecv, theirs)
            operations = [
                dist.P2POp(send_or_receive, rows, group=group, group_peer=opposite)
                for send_or_receive, rows in ways
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

# Tests failed in 2.10 and 2.11; by its code (`pipelining._backward`) torch adds a weight's
# gradient up twice there where one of its products follows another. 2.12 was not tried.
SPLIT_SINCE = (2, 13)

# What goes from stage to stage: tokens or hidden states, and what else later stages need.
Passed = tuple[Tensor, ...]
# (stage, its inputs, the microbatch's tokens, the microbatch's number) -> what to pass on, or
# the loss to differentiate where the stage is the last.
Compute = Callable[[Decoder, Passed, Tensor, int], Passed]


def check_schedule(schedule: str) -> None:
    """Raise RecipeError for weight gradients apart, which torch adds up wrongly before 2.13."""
    if schedule in SPLIT_SCHEDULES and release_of(torch.__version__) < SPLIT_SINCE:
        problem = f"{schedule}, which torch {torch.__version__} was not seen to compute right"
        remedy = "set parallelism.schedule=interleaved, or use torch 2.13 or newer"
        raise RecipeError("parallelism.schedule", problem, remedy)


class Accumulation:
    """One stage: microbatch after microbatch."""

    def __init__(self, decoder: Decoder, compute: Compute) -> None:
        self._decoder = decoder
        self._compute = compute

    def run(self, batch: Tensor, scale: float) -> None:
        """Accumulate the gradients of ``scale`` times each microbatch's loss.

        ``batch`` is (microbatches, sequences, length + 1).
        """
        for number, rows in enumerate(batch):
            (loss,) = self._compute(self._decoder, (rows[:, :-1],), rows, number)
            torch.autograd.backward(loss * scale)

    def evaluate(self, rows: Tensor) -> Tensor | None:
        """Return the loss of ``rows``, (sequences, length + 1), where the last stage is."""
        return self._compute(self._decoder, (rows[:, :-1],), rows, 0)[0]


class Pipeline:
    """Several stages over the pipeline's ranks, in one of torch's schedules.

    This rank has the ``decoders`` of its stages in the order of the model. Between stages go
    hidden states of ``hidden_shape`` for one microbatch, in ``dtype``, and in training a row of
    ``carried`` numbers if there are any, in float32 or finer like the loss. Unless it
    ``splits_backward``, no schedule computes weight gradients apart.
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
        self._group = mesh.axis("pipeline").get_group()
        self._place = mesh.place("pipeline")
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
        made = (_Stage(decoder, compute) for decoder in decoders)
        self._stages = dict(zip(numbers, made, strict=True))
        self._tokens = torch.empty(tokens_shape, dtype=torch.int64, device="meta")
        self._wide = torch.promote_types(dtype, torch.float32)
        sums = (_expected((carried,), self._wide),) if carried else ()
        self._between = _expected(hidden_shape, dtype), *sums
        self._made: tuple[int, Any] = (0, None)

    # Called for every weight of a stage after a pass that gives gradients of weights alone,
    # which autograd's hooks do not see.
    on_weight_gradient: Callable[[Tensor], None] = staticmethod(lambda weight: None)

    def run(self, batch: Tensor, scale: float) -> None:
        count = len(batch)
        if count != self._made[0]:  # a batch that ramps up has several
            self._made = count, self._make_schedule(count)
        for stage in self._stages.values():
            stage.scale = scale
        rows = batch.flatten(0, 1)
        given = (rows[:, :-1],) if self._place == 0 else ()
        # The number of a microbatch stays on the host: a device would have to be asked for it.
        kwargs = {"rows": rows, "number": torch.arange(count)}
        self._made[1].step(*given, target=rows, return_outputs=False, **kwargs)

    def evaluate(self, rows: Tensor) -> Tensor | None:
        length = (rows.shape[1] - 1) * self._hidden_shape[1] // self._tokens.shape[1]
        shape = len(rows), length, self._hidden_shape[2]
        hidden = torch.empty(shape, dtype=self._dtype, device=self._device)
        given, loss = rows[:, :-1], None
        for number, stage in self._stages.items():
            if number and number - 1 not in self._stages:
                self._pass_on(dist.irecv, hidden, number - 1)
                given = hidden
            result = stage(given, rows=rows, number=torch.zeros(1, dtype=torch.int64))
            if number == self._placement.count - 1:
                loss = result
            elif number + 1 in self._stages:
                given = result
            else:
                self._pass_on(dist.isend, result.contiguous(), number + 1)
        return loss

    def _pass_on(self, send_or_receive: Callable[..., Any], hidden: Tensor, stage: int) -> None:
        """Send or receive as torch's schedules do: alone it would need other connections."""
        peer = self._placement.rank_of(stage)
        operation = dist.P2POp(send_or_receive, hidden, group=self._group, group_peer=peer)
        for work in dist.batch_isend_irecv([operation]):
            work.wait()

    def _take(self, decoder: Decoder) -> None:
        for weight in decoder.parameters():
            self.on_weight_gradient(weight)

    def _make_schedule(self, microbatches: int) -> Any:
        count, stages = self._placement.count, []
        for index, stage in self._stages.items():
            last = index == count - 1
            # Shapes are known: torch need not run the stage once to learn them.
            given = (self._tokens,) if index == 0 else self._between
            gives = (_expected((), self._wide),) if last else self._between
            place = index, count, self._device
            lean = LeanStage(stage, *place, given, gives, group=self._group)
            # What further tokens embed comes of no input: torch would free its graph too early.
            lean.splits_backward = self._splits_backward and stage.decoder.mtp is None
            lean.on_weight_gradients = partial(self._take, stage.decoder)
            stages.append(lean)
        kind = SCHEDULES[self._schedule]
        run = stages if issubclass(kind, schedules.PipelineScheduleMulti) else stages[0]
        # Without a loss function a stage that is not the last would never run backward.
        return kind(run, microbatches, loss_fn=lambda loss, rows: loss, scale_grads=False)


Microbatches = Accumulation | Pipeline
"""One step's forward and backward passes, or a forward pass alone."""


def _expected(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


class _Stage(nn.Module):
    """What torch's schedules call: the numbers that go with a microbatch come as tensors."""

    def __init__(self, decoder: Decoder, compute: Compute) -> None:
        super().__init__()
        self.decoder = decoder
        self.compute = compute
        self.scale = 1.0

    def forward(self, *inputs: Tensor, rows: Tensor, number: Tensor) -> Tensor | Passed:
        result = self.compute(self.decoder, inputs, rows, int(number))
        if len(result) > 1:
            return result
        if self.decoder.final_norm is None or not torch.is_grad_enabled():
            return result[0]
        return result[0] * self.scale

"""A model sharded by a layout, and the same model on one process for comparison."""

import copy
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.functional import pad

from components.config.schema.sections import Parallelism
from components.config.stages import StagePlacement, stage_layers, style_of
from components.distributed.activation_checkpoint import checkpoint_activations
from components.distributed.compile import compile_layers
from components.distributed.data import DataParallel, shard_weights
from components.distributed.devices import StateDtypes
from components.distributed.experts import Dispatch, figures_of, split_experts, take_tally
from components.distributed.mesh import Mesh, build_mesh
from components.distributed.pipeline import (
    TIED,
    GradientAccumulation,
    Microbatches,
    Pipeline,
    StageOutput,
    prune_to_stage,
    sum_tied_gradients,
    tie_embedding,
)
from components.distributed.tensor import split_tensors
from components.distributed.tensor_styles import seed_layers
from components.model.decoder import Decoder
from components.model.moe import expert_layers
from components.model.mtp import MTPTargets
from components.model.routing import RoutingTally
from tests.components.distributed.tensor_cases import LENGTH, VOCAB_SIZE, relative
from tests.components.layouts import mesh_layout
from tests.components.model.comparison import gradient_of

SEQUENCES = 2
FLOAT32 = StateDtypes(*[torch.float32] * 4)
DIM = 24


class Layout(NamedTuple):
    """Parallel degrees and other settings; the defaults are one process."""

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    expert: int = 1
    tensor: int = 1
    zero: int = 0
    schedule: str = "1f1b"
    stages_per_rank: int = 1
    sequence_parallel: bool = False
    recompute: Literal["none", "selective", "full"] = "none"
    recompute_every: int = 1
    compile: Literal["none", "layers"] = "none"
    dispatch: Dispatch = "all_gather"
    overlap: int = 1
    bound: float | None = None
    expert_aware: bool = True
    weights: str = "master"
    accumulate: str = "float64"
    reduce: str = "float64"
    bucket_elements: int = 2**25
    overlaps: bool = True
    divisor: Literal["ranks", "replicas"] = "ranks"

    @property
    def data(self) -> int:
        """Count the ranks that read different samples."""
        return self.replicate * self.shard * self.expert

    @property
    def ranks(self) -> int:
        return self.data * self.pipeline * self.tensor


def state_dtypes(layout: Layout, master: torch.dtype) -> StateDtypes:
    """Return the dtypes of a layout; master weights have the dtype of the model."""
    sums = getattr(torch, layout.accumulate), getattr(torch, layout.reduce)
    weights = master if layout.weights == "master" else getattr(torch, layout.weights)
    return StateDtypes(weights, master, *sums)


def layout_mesh(layout: Layout) -> Mesh:
    sizes = {"data_replicate": layout.replicate, "data_shard": layout.shard}
    sizes |= {axis: getattr(layout, axis) for axis in ("pipeline", "expert", "tensor")}
    return mesh_of_degrees(mesh_layout(sizes, expert_aware=layout.expert_aware))


@cache
def mesh_of_degrees(layout: Parallelism) -> Mesh:
    return build_mesh("cpu", layout)


class Compute:
    """Run a microbatch through a stage like the train step, and record its loss."""

    def __init__(self, context: DeviceMesh | None) -> None:
        self.losses: list[float] = []
        self._context = context
        self._number = 0

    def __call__(
        self, decoder: Decoder, inputs: StageOutput, rows: Tensor, number: int
    ) -> StageOutput:
        self._number = number
        torch.manual_seed(self.seed("embedding"))
        is_last = decoder.final_norm is not None
        further = look_further(decoder, rows) if torch.is_grad_enabled() else []
        targets = rows[:, 1:] if is_last else None
        result: Tensor = decoder(inputs[0], targets=targets, further=further)
        if decoder.mtp is not None and further:
            result = result[0] + decoder.mtp.loss_weight * result[1:].mean()
        if not torch.is_grad_enabled():
            return (result,)
        tally = take_tally(decoder, inputs[1] if len(inputs) > 1 else None, self._context)
        if not is_last:
            return (result,) if tally is None else (result, tally.to_row())
        figures = figures_of(decoder, tally, result, decoder.readout.penalty)
        assert not figures[3].item(), "a bound left pairs out"
        loss = figures[:2].sum()
        self.losses.append(loss.item())
        return (loss,)

    def seed(self, part: str) -> int:
        return sum(map(ord, part)) * 1_000 + self._number


def look_further(decoder: Decoder, rows: Tensor) -> list[MTPTargets]:
    """Return the targets of each prediction depth; positions beyond the row do not count."""
    depth = len(decoder.mtp or ())
    longer, place = pad(rows, (0, depth)), torch.arange(LENGTH)
    return [
        MTPTargets(
            tokens=longer[:, by : by + LENGTH],
            targets=longer[:, by + 1 : by + 1 + LENGTH],
            counted=(place < LENGTH - by).expand(len(rows), -1),
        )
        for by in range(1, 1 + depth)
    ]


class Whole:
    """A copy of the model on one process, which trains on the samples of all data ranks."""

    def __init__(self, model: Decoder) -> None:
        self.decoder = copy.deepcopy(model)
        self.compute = Compute(None)
        seed_layers(self.decoder, self.compute.seed)

    def backward(self, batches: Sequence[Tensor]) -> list[list[float]]:
        """Average over microbatches and ranks; return each rank's losses."""
        losses = []
        self.decoder.zero_grad()
        for batch in batches:
            self.compute.losses = []
            for number, rows in enumerate(batch):
                (loss,) = self.compute(self.decoder, (rows[:, :-1],), rows, number)
                torch.autograd.backward(loss / (len(batch) * len(batches)))
            losses.append(self.compute.losses)
        return losses

    def gradients(self) -> dict[str, Tensor]:
        return {name: gradient_of(p) for name, p in self.decoder.named_parameters()}

    def weights(self) -> dict[str, Tensor]:
        """Return weights and router biases."""
        return {name: p.detach() for name, p in self.decoder.state_dict().items()}


class ParallelModel:
    """The part of a model on one rank, with its training steps."""

    def __init__(self, model: Decoder, layout: Layout) -> None:
        self.mesh = layout_mesh(layout)
        self.compute = Compute(self.mesh.get_axis("context"))
        dtypes = state_dtypes(layout, next(model.parameters()).dtype)
        self.stages, tied = _cut(model, layout, self.mesh)
        for stage in self.stages:
            _parallelize(stage, layout, self.mesh, dtypes)
            seed_layers(stage, self.compute.seed)
        tie_embedding(self.stages)
        self.parallel = DataParallel(
            self.stages,
            self.mesh,
            zero=layout.zero,
            dtypes=dtypes,
            tied=(TIED,) if tied else (),
            expert_grad_average=layout.divisor,
            bucket_elements=layout.bucket_elements,
            overlap=layout.overlaps,
        )
        self.shards = self.parallel.shards
        self.microbatches = self._microbatches(layout)
        if isinstance(self.microbatches, Pipeline):
            self.microbatches.on_weight_gradient = self.parallel.collect_gradient

    def backward(self, batch: Tensor) -> list[float]:
        """Average over microbatches and ranks into the shards; return this rank's losses."""
        self.compute.losses = []
        self.parallel.start_step(len(batch))
        self.microbatches.accumulate_gradients(batch, 1 / len(batch))
        self.parallel.reduce_gradients()
        sum_tied_gradients(self.shards, self.mesh)
        return self.compute.losses

    def gradients(self) -> dict[str, Tensor]:
        """Gather the gradients of this rank's stages."""
        return {s.name: gather(s.to_dtensor(gradient_of(s.parameter))) for s in self.shards}

    def weights(self) -> dict[str, Tensor]:
        self.parallel.wait_for_weights()
        weights = {shard.name: gather(shard.weight.detach()) for shard in self.shards}
        return weights | self.parallel.buffers

    def _microbatches(self, layout: Layout) -> Microbatches:
        if layout.pipeline == 1:
            return GradientAccumulation(self.stages[0], self.compute)
        slices = layout.tensor if layout.sequence_parallel else 1
        experts = expert_layers(self.stages[0])
        return Pipeline(
            self.stages,
            self.mesh,
            compute=self.compute,
            schedule=layout.schedule,
            splits_backward=layout.recompute == layout.compile == "none",
            tokens_shape=(SEQUENCES, LENGTH),
            hidden_shape=(SEQUENCES, LENGTH // slices, DIM),
            carried=RoutingTally.count_row_numbers(len(experts[0].up.weight)) if experts else 0,
            dtype=self.shards[0].weight.dtype,
            device=torch.device("cpu"),
        )


def _cut(model: Decoder, layout: Layout, mesh: Mesh) -> tuple[list[Decoder], bool]:
    where = StagePlacement(
        pipeline=layout.pipeline,
        stages_per_rank=layout.stages_per_rank,
        style=style_of(layout.schedule),
    )
    ranges = stage_layers(model.num_layers, where.num_stages, "layers")
    stages, tied = [], False
    for index in where.stages_of(mesh.get_axis_rank("pipeline")):
        stage = copy.deepcopy(model)
        last = index == where.num_stages - 1
        tied |= prune_to_stage(stage, ranges[index], first=index == 0, last=last)
        stages.append(stage)
    return stages, tied and not where.has_both_ends


def _parallelize(stage: Decoder, layout: Layout, mesh: Mesh, dtypes: StateDtypes) -> None:
    split_experts(
        stage,
        mesh.get_axis("expert"),
        dispatch=layout.dispatch,
        overlap=layout.overlap,
        bound=layout.bound,
    )
    split_tensors(stage, mesh.get_axis("tensor"), sequence_parallel=layout.sequence_parallel)
    checkpoint_activations(stage, layout.recompute, every=layout.recompute_every)
    compile_layers(
        stage, layout.compile, recompute=layout.recompute, every=layout.recompute_every
    )
    if layout.zero == 3:
        shard_weights(stage, mesh, dtypes=dtypes)


def gather(tensor: Tensor) -> Tensor:
    """Return a copy of the whole tensor; all ranks with parts of it must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


def batch_of(step: int, data_rank: int, *, microbatches: int = 2) -> Tensor:
    """Draw (microbatches, sequences, length + 1) tokens by step and rank."""
    generator = torch.Generator().manual_seed(100 * step + data_rank)
    shape = (microbatches, SEQUENCES, LENGTH + 1)
    return torch.randint(VOCAB_SIZE, shape, generator=generator)


def largest_difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the largest relative difference, with a lower bound for tensors near zero."""
    assert found.keys() <= expected.keys()
    floor = 1e-4 * max(tensor.norm().item() for tensor in expected.values())
    return max(
        relative(tensor, expected[name].view_as(tensor), floor=floor)  # stacks as rows
        for name, tensor in found.items()
    )

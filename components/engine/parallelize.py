"""Parallelize a model: build this rank's part in its layout, and fill it with weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from components.build import build_node
from components.config.recipe import Recipe
from components.config.rules.engine import FLOAT8
from components.config.schema.types import to_plain
from components.convert.reading import read_folder
from components.distributed.activation_checkpoint import checkpoint_activations
from components.distributed.broadcast_read import reads_for_stage, send_over_stage
from components.distributed.collectives import gather_results
from components.distributed.compile import compile_layers
from components.distributed.context import split_sequence
from components.distributed.data import shard_weights
from components.distributed.devices import StateDtypes, check_float8_device, emulates_float8
from components.distributed.experts import split_experts
from components.distributed.mesh import Mesh
from components.distributed.pipeline import TIED, prune_to_stage, tie_embedding
from components.distributed.tensor import split_tensors
from components.distributed.weight_shards import get_local_part
from components.model.decoder import Decoder
from components.model.first_weights import draw_vector, initial_constant, initial_stds
from components.model.float8 import float8_layers
from components.model.initialization import draw_rows
from components.torch_internals.distributed import StridedShard


@torch.no_grad()
def draw_weights(decoder: Decoder, *, seed: int) -> None:
    """Overwrite this rank's part of every parameter by its initial values.

    Weights are drawn; vectors are drawn or start at `initial_constant`; buffers and the padding
    row are 0. A wrapper that changes parameter names changes the values.
    """
    for name, weight, std in initial_stds(decoder):
        here = get_local_part(weight)
        if std is None:
            vector = draw_vector(decoder, name, size=len(weight), seed=seed)
            if vector is None:
                here.fill_(initial_constant(decoder, name))
            else:
                here.copy_(vector[list_local_indices(weight, 0)])
        elif here.numel():
            rows, columns = (
                list_local_indices(weight, 0),
                list_local_indices(weight, weight.dim() - 1),
            )
            width = prod(weight.shape[1:-1])  # rows are counted over all but the last dimension
            drawn = draw_rows(
                name,
                weight.shape,
                first_row=int(rows[0]) * width,
                last_row=(int(rows[-1]) + 1) * width,
                seed=seed,
                std=std,
                cutoff=decoder.initialization.cutoff,
            )
            assert len(drawn) == len(rows) * width, "a rank's rows lie together"
            here.copy_(drawn[:, columns].view(here.shape))
    for buffer in decoder.buffers():
        buffer.zero_()
    row = decoder.initialization.padding_row
    for module in decoder.modules():
        if row is not None and isinstance(module, nn.Embedding):
            get_local_part(module.weight)[list_local_indices(module.weight, 0) == row] = 0.0


@torch.no_grad()
def copy_weights(decoder: Decoder, whole: Decoder, mesh: Mesh) -> None:
    """Copy this rank's part of every weight of ``whole``, by name.

    One rank of each pipeline stage has the values. The others have ``whole`` on ``meta``.
    """
    whole_weights = dict(whole.named_parameters())
    for name, weight in decoder.named_parameters():
        part = torch.empty_like(whole_weights[name], device=get_local_part(weight).device)
        if reads_for_stage(mesh):
            part.copy_(whole_weights[name])
        send_over_stage(part, mesh)
        for dim in range(weight.dim() if isinstance(weight, DTensor) else 0):
            part = part.index_select(dim, list_local_indices(weight, dim).to(part.device))
        get_local_part(weight).copy_(part)
    for name, buffer in decoder.named_buffers():
        if reads_for_stage(mesh):
            buffer.copy_(whole.get_buffer(name))
        send_over_stage(buffer, mesh)


def list_local_indices(weight: Tensor, dim: int) -> Tensor:
    """Return the indices of dimension ``dim`` that are on this rank, as the weight is split."""
    indices = torch.arange(weight.shape[dim])
    if not isinstance(weight, DTensor):
        return indices
    placements: list[Placement] = []
    for placement in weight.placements:
        if isinstance(placement, StridedShard) and placement.dim % weight.dim() == dim:
            placements.append(StridedShard(0, split_factor=placement.split_factor))
        elif isinstance(placement, Shard) and placement.dim % weight.dim() == dim:
            placements.append(Shard(0))
        else:
            placements.append(Replicate())
    indices = indices.to(weight.device_mesh.device_type)
    parted = distribute_tensor(indices, weight.device_mesh, placements, src_data_rank=None)
    return parted.to_local().cpu()


@dataclass(frozen=True)
class RankModel:
    """The stages of one rank, their layers, and the weights with a copy on another rank."""

    stages: list[Decoder]
    layers: Sequence[range]
    tied: tuple[str, ...]


def build_rank_model(recipe: Recipe, mesh: Mesh, *, device: torch.device) -> RankModel:
    """Build this rank's part of the model; RecipeError if ``device`` lacks its float8."""
    if recipe.precision.compute == FLOAT8:
        check_float8_device(device)
    model = parallelize_model(recipe, mesh, device=device)
    allocate_stages(model, device=device)
    for decoder, layers in zip(model.stages, model.layers, strict=True):
        _fill(decoder, recipe, layers, mesh)
        degrees = recipe.parallelism
        compile_layers(
            decoder, degrees.compile, recompute=degrees.recompute, every=degrees.recompute_every
        )
    return model


def allocate_stages(model: RankModel, *, device: torch.device) -> None:
    """Allocate all stages of a rank; both ends on one rank share the embedding."""
    for decoder in model.stages:
        decoder.to_empty(device=device)
    tie_embedding(model.stages)


def parallelize_model(recipe: Recipe, mesh: Mesh, *, device: torch.device) -> RankModel:
    """Build the model on ``meta``, cut it into stages and split it, for ``device``."""
    degrees = recipe.parallelism
    dtypes = StateDtypes.from_precision(recipe.precision, device)
    placement = recipe.stage_placement
    ranges = [
        recipe.stage_layers[stage]
        for stage in placement.stages_of(mesh.get_axis_rank("pipeline"))
    ]
    stages, tied = [], False
    for layers in ranges:
        decoder = _build(recipe).to(dtypes.master)
        tied |= _cut(decoder, recipe, layers)
        if degrees.context > 1:
            split_sequence(decoder, mesh.get_axis("context"))
        if degrees.expert > 1:
            split_experts(
                decoder,
                mesh.get_axis("expert"),
                dispatch=degrees.expert_dispatch,
                overlap=degrees.expert_overlap,
                bound=degrees.expert_capacity_factor,
            )
        if degrees.tensor > 1:
            split_tensors(
                decoder,
                mesh.get_axis("tensor"),
                sequence_parallel=degrees.sequence_parallel,
                reduce=dtypes.reduce,
            )
        if recipe.precision.compute == FLOAT8:
            float8_layers(decoder, emulates=emulates_float8(device.type))
        checkpoint_activations(
            decoder,
            degrees.recompute,
            every=degrees.recompute_every,
            compiled=degrees.compile != "none",
        )
        if degrees.zero == 3 and degrees.engine == "mesh":
            shard_weights(decoder, mesh, dtypes=dtypes)
        stages.append(decoder)
    return RankModel(stages, ranges, (TIED,) if tied and not placement.has_both_ends else ())


def _build(recipe: Recipe) -> Decoder:
    with torch.device("meta"):
        decoder = build_node(recipe.model, "model")
    assert isinstance(decoder, Decoder)
    return decoder


def _cut(decoder: Decoder, recipe: Recipe, layers: range) -> bool:
    first, last = layers == recipe.stage_layers[0], layers == recipe.stage_layers[-1]
    return prune_to_stage(decoder, layers, first=first, last=last)


def _fill(decoder: Decoder, recipe: Recipe, layers: range, mesh: Mesh) -> None:
    """Draw the weights, or read them from a folder on one rank of each stage."""
    folder = recipe.model["init_from"]
    if folder == "none":
        draw_weights(decoder, seed=recipe.budget.seed)
        return
    whole = _build(recipe)
    _cut(whole, recipe, layers)

    def read_weights() -> None:
        if reads_for_stage(mesh):
            read_folder(
                Path(folder),
                whole.to_empty(device="cpu"),
                section=to_plain(recipe.model),
                tokenizer_vocab_size=recipe.tokenizer["vocab_size"],
            )

    gather_results(read_weights)  # all ranks raise a RecipeError of `read`, so none waits
    copy_weights(decoder, whole, mesh)

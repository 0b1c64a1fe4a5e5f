"""Parallelize a model: build this rank's part in its layout, and fill it with weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from components.build import build
from components.config.rules.engine import FLOAT8
from components.config.schema.recipe import Recipe
from components.config.schema.types import thaw
from components.convert.reading import read_folder
from components.distributed.context import split_sequence
from components.distributed.data import shard_weights
from components.distributed.devices import (
    check_float8_device,
    compute_dtype,
    emulates_float8,
)
from components.distributed.experts import split_experts
from components.distributed.mesh import Mesh
from components.distributed.pipeline import TIED, cut_stage, share_ends
from components.distributed.tensor import split_tensors
from components.distributed.weight_shards import local
from components.model.compiling import checkpoint_activations, compile_layers
from components.model.decoder import Decoder
from components.model.float8 import float8_layers
from components.model.initialization import draw_rows, initial_stds
from components.torch_internals.distributed import StridedShard


@torch.no_grad()
def draw_weights(decoder: Decoder, *, seed: int) -> None:
    """Overwrite this rank's part of every parameter by its initial values.

    Weights are drawn, norms' weights are 1, biases and the padding row 0. Only a wrapper that
    changes names changes the values.
    """
    for name, weight, std in initial_stds(decoder):
        here = local(weight)
        if std is None:
            here.fill_(0.0 if name.endswith("bias") else 1.0)
        elif here.numel():
            rows, columns = held(weight, 0), held(weight, weight.dim() - 1)
            width = prod(weight.shape[1:-1])  # rows are counted over all but the last dimension
            drawn = draw_rows(
                name,
                weight.shape,
                first_row=int(rows[0]) * width,
                last_row=(int(rows[-1]) + 1) * width,
                seed=seed,
                std=std,
            )
            assert len(drawn) == len(rows) * width, "a rank's rows lie together"
            here.copy_(drawn[:, columns].view(here.shape))
    row = decoder.initialization.padding_row
    for module in decoder.modules():
        if row is not None and isinstance(module, nn.Embedding):
            local(module.weight)[held(module.weight, 0) == row] = 0.0


@torch.no_grad()
def copy_weights(decoder: Decoder, whole: Mapping[str, Tensor]) -> None:
    """Copy this rank's part of every weight from the ``whole`` ones, by name."""
    for name, weight in decoder.named_parameters():
        part = whole[name]
        for dim in range(weight.dim() if isinstance(weight, DTensor) else 0):
            part = part.index_select(dim, held(weight, dim))
        local(weight).copy_(part)


def held(weight: Tensor, dim: int) -> Tensor:
    """List which indices of one dimension lie on this rank, parted as the weight is."""
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
    """The stages of one rank, their layers, and the weights of which another has a copy."""

    stages: list[Decoder]
    layers: Sequence[range]
    tied: tuple[str, ...]


def build_rank_model(recipe: Recipe, mesh: Mesh, *, device: torch.device) -> RankModel:
    """Give memory and starting values to this rank's part of the model.

    Raises:
        RecipeError: the recipe computes in float8, which ``device`` does not have.
    """
    if recipe.precision.compute == FLOAT8:
        check_float8_device(device)
    model = parallelize_model(recipe, mesh, device=device)
    allocate(model, device=device)
    for decoder, layers in zip(model.stages, model.layers, strict=True):
        _fill(decoder, recipe, layers)
        degrees = recipe.parallelism
        compile_layers(decoder, degrees.compile, recompute=degrees.recompute)
    return model


def allocate(model: RankModel, *, device: torch.device) -> None:
    """Give memory to all stages of a rank: both ends, where it has them, are one weight."""
    for decoder in model.stages:
        decoder.to_empty(device=device)
    share_ends(model.stages)


def parallelize_model(recipe: Recipe, mesh: Mesh, *, device: torch.device) -> RankModel:
    """Build on ``meta``, cut and split, to compute on ``device``."""
    degrees = recipe.parallelism
    dtype = torch.promote_types(compute_dtype(recipe.precision.compute, device), torch.float32)
    placement = recipe.placement
    ranges = [recipe.stages[stage] for stage in placement.stages_of(mesh.place("pipeline"))]
    stages, tied = [], False
    for layers in ranges:
        decoder = _build(recipe).to(dtype)
        tied |= _cut(decoder, recipe, layers)
        if degrees.context > 1:
            split_sequence(decoder, mesh.axis("context"))
        if degrees.expert > 1:
            split_experts(
                decoder,
                mesh.axis("expert"),
                dispatch=degrees.expert_dispatch,
                overlap=degrees.expert_overlap,
            )
        if degrees.tensor > 1:
            split_tensors(
                decoder, mesh.axis("tensor"), sequence_parallel=degrees.sequence_parallel
            )
        if recipe.precision.compute == FLOAT8:
            float8_layers(decoder, emulates=emulates_float8(device.type))
        checkpoint_activations(decoder, degrees.recompute)
        if degrees.zero == 3 and degrees.engine == "mesh":
            reduce_dtype = compute_dtype(recipe.precision.reduce, device)
            shard_weights(decoder, mesh, reduce_dtype=reduce_dtype)
        stages.append(decoder)
    return RankModel(stages, ranges, (TIED,) if tied and not placement.has_both_ends else ())


def _build(recipe: Recipe) -> Decoder:
    with torch.device("meta"):
        decoder = build(recipe.model, "model")
    assert isinstance(decoder, Decoder)
    return decoder


def _cut(decoder: Decoder, recipe: Recipe, layers: range) -> bool:
    first, last = layers == recipe.stages[0], layers == recipe.stages[-1]
    return cut_stage(decoder, layers, first=first, last=last)


def _fill(decoder: Decoder, recipe: Recipe, layers: range) -> None:
    """Draw the weights, or read a Hugging Face folder."""
    folder = recipe.model["init_from"]
    if folder == "none":
        draw_weights(decoder, seed=recipe.budget.seed)
        return
    whole = _build(recipe)
    _cut(whole, recipe, layers)
    whole.to_empty(device="cpu")
    read_folder(
        Path(folder),
        whole,
        section=thaw(recipe.model),
        tokenizer_vocab_size=recipe.tokenizer["vocab_size"],
    )
    copy_weights(decoder, dict(whole.named_parameters()))

"""Build this rank's part of the model and pour the recipe's layout over it."""

from dataclasses import dataclass
from pathlib import Path

import torch

from components.build import build
from components.convert.reading import read_folder
from components.model.checkpointing import checkpoint_activations
from components.model.decoder import Decoder
from components.parallelism.context import split_sequence
from components.parallelism.data import shard_weights
from components.parallelism.experts import split_experts
from components.parallelism.filling import copy_weights, draw_weights
from components.parallelism.mesh import Mesh
from components.parallelism.stages import TIED, cut_stage
from components.parallelism.tensor import split_tensors
from components.spec.frozen import thaw
from components.spec.recipe import Recipe
from components.spec.stages import stage_layers


@dataclass(frozen=True)
class RankModel:
    """The stages of one rank, in the order that a microbatch meets them.

    ``tied`` names the weights of which another stage has a copy.
    """

    stages: list[Decoder]
    tied: tuple[str, ...]


def build_rank_model(
    recipe: Recipe,
    mesh: Mesh,
    *,
    device: torch.device,
    dtype: torch.dtype,
    reduce_dtype: torch.dtype,
) -> RankModel:
    """Build on ``meta``, cut, split, then give memory and starting values to what is left."""
    degrees = recipe.parallelism
    count = degrees.pipeline * degrees.stages_per_rank if degrees.pipeline > 1 else 1
    ranges = stage_layers(recipe.shape.num_layers, count, degrees.stage_balance)
    stages, tied = [], False
    for index in range(mesh.place("pipeline"), len(ranges), degrees.pipeline):
        first, last = index == 0, index == len(ranges) - 1
        decoder = _build(recipe).to(dtype)
        tied |= cut_stage(decoder, ranges[index], first=first, last=last)
        if degrees.context > 1:
            split_sequence(decoder, mesh.axis("context"))
        if degrees.expert > 1:
            split_experts(decoder, mesh.axis("expert"), dispatch=degrees.expert_dispatch)
        if degrees.tensor > 1:
            split_tensors(
                decoder, mesh.axis("tensor"), sequence_parallel=degrees.sequence_parallel
            )
        checkpoint_activations(decoder, degrees.recompute)
        if degrees.zero == 3 and degrees.engine == "mesh":
            shard_weights(decoder, mesh, reduce_dtype=reduce_dtype)
        decoder.to_empty(device=device)
        _fill(decoder, recipe, ranges[index], first=first, last=last)
        stages.append(decoder)
    return RankModel(stages, (TIED,) if tied else ())


def _build(recipe: Recipe) -> Decoder:
    with torch.device("meta"):
        decoder = build(recipe.model, "model")
    assert isinstance(decoder, Decoder)
    return decoder


def _fill(decoder: Decoder, recipe: Recipe, layers: range, *, first: bool, last: bool) -> None:
    """Draw the weights, or take them from a Hugging Face folder, a stage at a time."""
    folder = recipe.model["init_from"]
    if folder == "none":
        draw_weights(decoder, seed=recipe.budget.seed)
        return
    whole = _build(recipe)
    cut_stage(whole, layers, first=first, last=last)
    whole.to_empty(device="cpu")
    read_folder(
        Path(folder),
        whole,
        section=thaw(recipe.model),
        tokenizer_vocab_size=recipe.tokenizer["vocab_size"],
    )
    copy_weights(decoder, dict(whole.named_parameters()))

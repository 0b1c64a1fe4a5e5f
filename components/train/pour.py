"""Build this rank's part of the model and pour the recipe's layout over it."""

from dataclasses import dataclass
from pathlib import Path

import torch

from components.build import build
from components.convert.reading import read_folder
from components.model.checkpointing import checkpoint_activations
from components.model.compiling import compile_layers
from components.model.decoder import Decoder
from components.model.float8 import float8_layers
from components.parallelism.context import split_sequence
from components.parallelism.data import shard_weights
from components.parallelism.experts import split_experts
from components.parallelism.filling import copy_weights, draw_weights
from components.parallelism.mesh import Mesh
from components.parallelism.stages import TIED, cut_stage
from components.parallelism.tensor import split_tensors
from components.spec.float8_rules import FLOAT8
from components.spec.frozen import thaw
from components.spec.recipe import Recipe
from components.train.devices import check_float8_device, emulates_float8


@dataclass(frozen=True)
class RankModel:
    """The stages of one rank, in the order that a microbatch meets them, and their layers.

    ``tied`` names the weights of which another stage has a copy.
    """

    stages: list[Decoder]
    layers: list[range]
    tied: tuple[str, ...]


def build_rank_model(
    recipe: Recipe,
    mesh: Mesh,
    *,
    device: torch.device,
    dtype: torch.dtype,
    reduce_dtype: torch.dtype,
) -> RankModel:
    """Give memory and starting values to this rank's part of the model.

    Raises:
        RecipeError: the recipe computes in float8, which ``device`` does not have.
    """
    if recipe.precision.compute == FLOAT8:
        check_float8_device(device)
    model = pour_rank_model(
        recipe, mesh, dtype=dtype, reduce_dtype=reduce_dtype, device_kind=device.type
    )
    for decoder, layers in zip(model.stages, model.layers, strict=True):
        decoder.to_empty(device=device)
        _fill(decoder, recipe, layers)
        compile_layers(
            decoder, recipe.parallelism.compile, recompute=recipe.parallelism.recompute
        )
    return model


def pour_rank_model(
    recipe: Recipe,
    mesh: Mesh,
    *,
    dtype: torch.dtype,
    reduce_dtype: torch.dtype,
    device_kind: str,
) -> RankModel:
    """Build on ``meta``, cut and split; what is left has shapes and no memory.

    ``device_kind`` is where it will compute.
    """
    degrees = recipe.parallelism
    stages, ranges, tied = [], [], False
    for index in range(mesh.place("pipeline"), len(recipe.stages), degrees.pipeline):
        layers = recipe.stages[index]
        decoder = _build(recipe).to(dtype)
        tied |= cut_stage(decoder, layers, **_ends(recipe, layers))
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
            float8_layers(decoder, emulates=emulates_float8(device_kind))
        checkpoint_activations(decoder, degrees.recompute)
        if degrees.zero == 3 and degrees.engine == "mesh":
            shard_weights(decoder, mesh, reduce_dtype=reduce_dtype)
        stages.append(decoder)
        ranges.append(layers)
    return RankModel(stages, ranges, (TIED,) if tied else ())


def _build(recipe: Recipe) -> Decoder:
    with torch.device("meta"):
        decoder = build(recipe.model, "model")
    assert isinstance(decoder, Decoder)
    return decoder


def _ends(recipe: Recipe, layers: range) -> dict[str, bool]:
    return {"first": layers == recipe.stages[0], "last": layers == recipe.stages[-1]}


def _fill(decoder: Decoder, recipe: Recipe, layers: range) -> None:
    """Draw the weights, or take them from a Hugging Face folder, a stage at a time."""
    folder = recipe.model["init_from"]
    if folder == "none":
        draw_weights(decoder, seed=recipe.budget.seed)
        return
    whole = _build(recipe)
    cut_stage(whole, layers, **_ends(recipe, layers))
    whole.to_empty(device="cpu")
    read_folder(
        Path(folder),
        whole,
        section=thaw(recipe.model),
        tokenizer_vocab_size=recipe.tokenizer["vocab_size"],
    )
    copy_weights(decoder, dict(whole.named_parameters()))

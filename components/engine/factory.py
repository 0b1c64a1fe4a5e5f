"""Making what a recipe trains with on this rank: its engine, and what runs its passes."""

from collections.abc import Callable, Sequence

import torch

from components.build import build
from components.config.schema.recipe import Recipe
from components.distributed.data import DataParallel
from components.distributed.devices import compute_dtype
from components.distributed.mesh import Mesh
from components.distributed.pipeline import Accumulation, Compute, Microbatches, Pipeline
from components.engine.mesh_engine import Engine, MeshEngine
from components.model.decoder import Decoder
from components.model.routing import RoutingTally
from components.optim.loss_scale import LossScale


def make_engine(
    recipe: Recipe,
    mesh: Mesh,
    decoders: Sequence[Decoder],
    *,
    tied: tuple[str, ...],
    compute: Compute,
    make_microbatches: Callable[[], Microbatches],
    device: torch.device,
) -> Engine:
    """Make the engine, which makes the optimizer over what it updates.

    ``tied`` names the weights of ``decoders`` of which another stage has a copy.

    Raises:
        RecipeError: a precision that DeepSpeed has not, or not on this device.
    """
    make_optimizer = build(recipe.optimizer, "optimizer")
    precision = recipe.precision
    if recipe.parallelism.engine == "deepspeed":
        from components.engine.deepspeed_engine import DeepSpeedEngine

        return DeepSpeedEngine(
            recipe=recipe,
            decoder=decoders[0],
            compute=compute,
            make_optimizer=make_optimizer,
            compute_dtype=compute_dtype(precision.compute, device),
            device=device,
        )
    parallel = DataParallel(
        (pair for decoder in decoders for pair in decoder.named_parameters()),
        mesh,
        zero=recipe.parallelism.zero,
        accumulate_dtype=compute_dtype(precision.accumulate, device),
        reduce_dtype=compute_dtype(precision.reduce, device),
        tied=tied,
        expert_divisor=recipe.parallelism.expert_divisor,
    )
    return MeshEngine(
        mesh=mesh,
        data_parallel=parallel,
        microbatches=make_microbatches(),
        optimizer=make_optimizer(
            parameters=[(one.name, one.parameter) for one in parallel.shards]
        ),
        loss_scale=_loss_scale(recipe, device),
    )


def _loss_scale(recipe: Recipe, device: torch.device) -> LossScale | None:
    """Scale losses in float16 alone: what else is computed in has float32's exponents."""
    scaling = recipe.precision.loss_scale
    half = compute_dtype(recipe.precision.compute, device) == torch.float16
    return None if isinstance(scaling, str) or not half else LossScale(**scaling.model_dump())


def make_microbatches(
    recipe: Recipe,
    mesh: Mesh,
    decoders: Sequence[Decoder],
    *,
    compute: Compute,
    device: torch.device,
) -> Microbatches:
    """Make what runs a step's passes over this rank's stages."""
    degrees, length = recipe.parallelism, recipe.budget.sequence_length
    if degrees.pipeline == 1:
        return Accumulation(decoders[0], compute)
    sequences, experts = degrees.microbatch_sequences, recipe.shape.mlp.num_experts
    slices = degrees.context * (degrees.tensor if degrees.sequence_parallel else 1)
    return Pipeline(
        decoders,
        mesh,
        compute=compute,
        schedule=degrees.schedule,
        tokens_shape=(sequences, length),
        hidden_shape=(sequences, length // slices, recipe.shape.dim),
        carried=RoutingTally.numbers(experts) if experts else 0,
        dtype=compute_dtype(recipe.precision.compute, device),
        device=device,
    )

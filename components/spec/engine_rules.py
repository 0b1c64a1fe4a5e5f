"""Rules of the engine that takes the step: what DeepSpeed cannot do is refused at once."""

from math import log2
from typing import TYPE_CHECKING

from components.errors import RecipeError

if TYPE_CHECKING:
    from components.spec.recipe import Recipe

_OTHER_AXES = ("tensor", "pipeline", "expert", "context")
_TO_MESH = "or parallelism.engine=mesh"


def check_engine(recipe: "Recipe") -> None:
    """Hold what each of the two engines can do.

    Raises:
        RecipeError: the first thing that the chosen one cannot.
    """
    degrees = recipe.parallelism
    if degrees.engine == "mesh":
        if degrees.offload_optimizer:
            raise RecipeError(
                "parallelism.offload_optimizer",
                "true, but the mesh engine keeps the optimizer's state on the device",
                "set offload_optimizer=false, or parallelism.engine=deepspeed",
            )
        return
    _check_degrees(recipe)
    _check_compiler(recipe)
    compute, device = recipe.precision.compute, recipe.cluster.device
    if compute != "auto":
        check_precision(recipe, compute)
    elif device != "auto":
        check_precision(recipe, "float32" if device == "cpu" else "bfloat16")


def _check_degrees(recipe: "Recipe") -> None:
    degrees = recipe.parallelism
    for axis in _OTHER_AXES:
        if (degree := getattr(degrees, axis)) > 1:
            raise RecipeError(
                f"parallelism.{axis}",
                f"{degree}, but the deepspeed engine has data ranks alone",
                f"set parallelism.{axis}=1, {_TO_MESH}",
            )
    if degrees.zero and degrees.data_shard != degrees.data:
        raise RecipeError(
            "parallelism.data_shard",
            f"{degrees.data_shard}, but DeepSpeed shards over all {degrees.data} data ranks",
            f"set parallelism.data_shard={degrees.data}, {_TO_MESH}",
        )
    if degrees.offload_optimizer and degrees.zero == 0:
        raise RecipeError(
            "parallelism.offload_optimizer",
            "true at zero=0, where DeepSpeed has no state of its own to move",
            "set parallelism.zero=1, or offload_optimizer=false",
        )


def _check_compiler(recipe: "Recipe") -> None:
    """Refuse layers that could not share a graph: a run would stop at the ninth."""
    degrees = recipe.parallelism
    if degrees.compile != "none" and degrees.zero == 3:
        raise RecipeError(
            "parallelism.compile",
            f"{degrees.compile}, but at zero=3 DeepSpeed's hooks are inside of each layer, and "
            "no two layers have a graph in common",
            f"set parallelism.compile=none, zero=2, {_TO_MESH}",
        )


def check_precision(recipe: "Recipe", compute: str) -> None:
    """Hold what DeepSpeed can do in ``compute``, which is never ``auto`` here.

    Raises:
        RecipeError: the first dtype or loss scale that it has not.
    """
    for key, value in {**recipe.precision.model_dump(), "compute": compute}.items():
        if value == "float64":
            raise RecipeError(
                f"precision.{key}",
                "float64 is unknown to DeepSpeed",
                f"set precision.{key}=float32, {_TO_MESH}",
            )
    if compute != "float32" and recipe.parallelism.zero == 0:
        raise RecipeError(
            "parallelism.zero",
            f"0, but in {compute} DeepSpeed keeps float32 weights that can be saved only with "
            "ZeRO",
            f"set parallelism.zero=1, {_TO_MESH}",
        )
    accumulate = recipe.precision.accumulate
    if accumulate not in {"float32", compute}:
        raise RecipeError(
            "precision.accumulate",
            f"{accumulate}, but beside {compute} weights DeepSpeed adds up in float32",
            f"set precision.accumulate=float32, {_TO_MESH}",
        )
    if compute == "float16":
        _check_loss_scale(recipe)


def _check_loss_scale(recipe: "Recipe") -> None:
    scaling = recipe.precision.loss_scale
    assert not isinstance(scaling, str), "float16 without one is refused before"
    if scaling.initial < 1 or not log2(scaling.initial).is_integer():
        raise RecipeError(
            "precision.loss_scale.initial",
            f"{scaling.initial:,}, but DeepSpeed starts from a power of two",
            f"the nearest: {2.0 ** max(0, round(log2(scaling.initial))):,}",
        )
    if scaling.minimum < 1 or not scaling.minimum.is_integer():
        raise RecipeError(
            "precision.loss_scale.minimum",
            f"{scaling.minimum}, but DeepSpeed takes whole numbers from 1 on",
            f"the nearest: {max(1.0, float(round(scaling.minimum)))}",
        )

"""Rules of ``precision.compute=float8``: the layouts, widths and devices that it is for."""

from typing import TYPE_CHECKING

from components.errors import RecipeError

if TYPE_CHECKING:
    from components.spec.recipe import Recipe

FLOAT8 = "float8"
# `torch._scaled_mm` asks it of both sides of a weight; what is emulated must run there too.
MULTIPLE = 16
_TO_BFLOAT16 = "precision.compute=bfloat16"


def check_float8(recipe: "Recipe") -> None:
    """Hold what products in float8 ask of the model and of the device.

    Raises:
        RecipeError: a width that they cannot have, or a device that has none.
    """
    if recipe.precision.compute == FLOAT8:
        _check_shapes(recipe)
        _check_profile(recipe)


def check_float8_layout(recipe: "Recipe") -> None:
    """Hold that every rank has whole rows and float32 weights to round by itself.

    Raises:
        RecipeError: tensor ranks have parts of rows, or DeepSpeed has weights of its own.
    """
    degrees = recipe.parallelism
    if recipe.precision.compute != FLOAT8:
        return
    if degrees.engine != "mesh":
        raise RecipeError(
            "parallelism.engine",
            f"{degrees.engine}, which rounds weights to bfloat16 before they could become "
            f"{FLOAT8}",
            f"set parallelism.engine=mesh, or {_TO_BFLOAT16}",
        )
    if degrees.tensor > 1:
        raise RecipeError(
            "parallelism.tensor",
            f"{degrees.tensor}, but in {FLOAT8} a row has one scale, and tensor ranks have "
            "parts of rows",
            f"set parallelism.tensor=1, or {_TO_BFLOAT16}",
        )


def _check_shapes(recipe: "Recipe") -> None:
    shape = recipe.shape
    heads, experts = shape.attention, shape.mlp.num_experts
    widths = {
        "model.dim": shape.dim,
        "model.attention.head_dim": heads.num_heads * heads.head_dim,
        "model.attention.num_kv_heads": heads.num_kv_heads * heads.head_dim,
    }
    if not experts:  # their products stay in bfloat16
        widths["model.mlp.ffn_dim"] = shape.mlp.ffn_dim
    for key, width in widths.items():
        if width % MULTIPLE:
            raise RecipeError(
                key,
                f"gives linear maps {width:,} wide, but products in {FLOAT8} want multiples "
                f"of {MULTIPLE}",
                f"choose it so that they are {width + MULTIPLE - width % MULTIPLE:,}, or set "
                f"{_TO_BFLOAT16}",
            )


def _check_profile(recipe: "Recipe") -> None:
    """Where devices have float8, a profile states its peak."""
    hardware = recipe.cluster.hardware
    if recipe.cluster.device == "cpu" or isinstance(hardware, str):
        return  # emulated, or known on the machine alone
    if FLOAT8 not in hardware.peak_teraflops:
        raise RecipeError(
            "precision.compute",
            f"{FLOAT8}, but {hardware.device} has none: its profile states a peak in "
            f"{', '.join(hardware.peak_teraflops)}",
            f"set {_TO_BFLOAT16}, or choose a cluster whose devices have it",
        )

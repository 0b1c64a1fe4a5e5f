"""Rules of attention and scans: backends of the recipe that its device supports."""

from typing import Literal

from components.attention_backends import AttentionCase, Backend, select_backends
from components.config.recipe import Recipe
from components.scan_backends import select_scan


def attention_backends(recipe: Recipe) -> dict[bool, tuple[Backend, ...]]:
    """Return the backends for layers without (False) and with a window (True), best first.

    A window as long as the sequence counts as no window; the result has only the kinds of
    existing layers. The backends are empty on a CPU, where torch chooses, and with
    ``cluster.device=auto``, where the device is unknown.

    Raises:
        RecipeError: no backend in ``attention.backends`` has a kernel for this recipe.
    """
    order = recipe.decoder_spec.attention.backends
    return {
        narrow: select_backends(order, _case(recipe, narrow=narrow)) if order else ()
        for narrow in sorted(set(_are_narrow(recipe)))
    }


def check_scans(recipe: Recipe) -> None:
    """Raise a RecipeError if no scan backend of a mixer, installed or not, has a kernel."""
    for name, mixer in recipe.decoder_spec.mixers.items():
        case = mixer.scan_case(recipe.cluster.device, _compute_dtype(recipe))
        select_scan(f"model.mixers.{name}.scan_backends", mixer.scan_backends, case)


def attention_passes(recipe: Recipe) -> float:
    """Return the mean passes over attention scores per layer: flex with dropout needs two."""
    if not recipe.decoder_spec.attention.dropout:
        return 1
    kernels, layers = attention_backends(recipe), _are_narrow(recipe)
    flex = sum(kernels[narrow][:1] == ("flex",) for narrow in layers)
    return 1 + flex / max(len(layers), 1)


def _are_narrow(recipe: Recipe) -> list[bool]:
    length = recipe.budget.sequence_length
    return [keys < length for keys in recipe.decoder_spec.visible_keys(length)]


def _case(recipe: Recipe, *, narrow: bool) -> AttentionCase:
    shape, degrees = recipe.decoder_spec, recipe.parallelism
    heads = shape.attention.num_heads / degrees.tensor
    keys = max(shape.attention.num_kv_heads / degrees.tensor, 1)
    sloped = shape.positions.has_slopes
    mask: Literal["causal", "offset", "structured"] = "structured"
    if not (recipe.data.document_mask or sloped or narrow):
        mask = "causal" if degrees.context == 1 else "offset"
    return AttentionCase(
        device=recipe.cluster.device,
        dtype=_compute_dtype(recipe),
        head_dim=shape.attention.head_dim,
        grouped=heads != keys,
        dropout=recipe.decoder_spec.attention.dropout > 0,
        mask=mask,
        sinks=shape.attention.sinks,
    )


def _compute_dtype(recipe: Recipe) -> str:
    compute = recipe.precision.compute
    return "bfloat16" if compute in {"auto", "float8"} else compute

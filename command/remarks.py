"""Remarks that ``show``, ``plan`` and ``train`` print about a recipe."""

from collections.abc import Iterator

from command.arguments import Arguments
from command.composition.compose import ComposedRun


def iter_remarks(composed: ComposedRun, arguments: Arguments) -> Iterator[str]:
    """Yield a remark about the scale that a bundle set."""
    recipe = composed.recipe
    if "scale" in arguments.choices or composed.draft.bundle is None:
        return
    here, full = recipe.cluster.scheduler == "none", isinstance(recipe.scale.shrink, str)
    packed = f"the bundle sets scale={recipe.scale.name}"
    if here and full:
        yield f"{packed}; add scale=mini to train a miniature here"
    elif not here and not full:
        yield f"{packed}; add scale=full for the full size"

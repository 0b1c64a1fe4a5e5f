"""What ``show``, ``plan`` and ``train`` say of a recipe that the user may not expect."""

from collections.abc import Iterator

from command.arguments import Arguments
from command.composition.compose import ComposedRun
from components.config.stand_ins import note_of_carriers


def remarks(composed: ComposedRun, arguments: Arguments) -> Iterator[str]:
    """Say what was mixed into the user's text, and which scale a bundle brought."""
    recipe = composed.recipe
    if note := note_of_carriers(recipe):
        yield note
    if "scale" in arguments.choices or composed.bundle is None:
        return
    here, full = recipe.cluster.scheduler == "none", isinstance(recipe.scale.shrink, str)
    packed = f"bundle: scale={recipe.scale.name}, as it was packed"
    if here and full:
        yield f"{packed}; add scale=mini to train a miniature here"
    elif not here and not full:
        yield f"{packed}; add scale=full for the recipe's own size"

"""The rule for fractions that training drops."""

from components.errors import RecipeError


def check_dropout(path: str, fraction: float) -> float:
    """Return ``fraction``, to be dropped in training and never in evaluation.

    Raises:
        RecipeError: it is negative, or nothing would be left.
    """
    if not 0 <= fraction < 1:
        raise RecipeError(
            path, f"{fraction} is no fraction to drop", "use 0.0 for none, or less than 1.0"
        )
    return fraction

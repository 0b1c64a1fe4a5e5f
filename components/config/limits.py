"""Comparisons shared by many rules; each raises a RecipeError with path, value and fix."""

from heapq import nsmallest

from components.config.suggestions import list_divisors
from components.errors import RecipeError

MOST_LISTED = 12  # divisors in a message


def check_at_most(path: str, value: float, name: str, most: float) -> None:
    """Raise a RecipeError for a value above ``most``, the number that ``name`` describes."""
    if value > most:
        problem = f"{value:,} is more than {name} {most:,}"
        raise RecipeError(path, problem, f"write {path}={most:_} or less")


def check_at_least(path: str, value: float, name: str, least: float) -> None:
    """Raise a RecipeError for a value below ``least``, the number that ``name`` describes."""
    if value < least:
        problem = f"{value:,} is less than {name} {least:,}"
        raise RecipeError(path, problem, f"write {path}={least:_} or more")


def check_multiple(path: str, value: int, name: str, unit: int, fitting: int = 0) -> None:
    """Raise a RecipeError for a value that is not a multiple of ``unit``.

    The fix lists multiples of ``fitting``, if other rules need more than ``unit``.
    """
    if value % unit:
        problem = f"{value:,} is not a multiple of {name} {unit:,}"
        raise RecipeError(path, problem, nearest_multiples(value, fitting or unit))


def check_divides(path: str, value: int, name: str, number: int) -> None:
    """Raise a RecipeError for a value that does not divide ``number``."""
    if number % value:
        divisors = list_divisors(number)
        near = nsmallest(MOST_LISTED, divisors, key=lambda divisor: abs(divisor - value))
        fix = f"valid values: {', '.join(map(str, sorted(near)))}"
        raise RecipeError(path, f"{value:,} does not divide {name} {number:,}", fix)


def nearest_multiples(value: int, divisor: int) -> str:
    """Return a fix with the nearest positive multiples of ``divisor``."""
    below = value // divisor * divisor
    near = [f"{number:_}" for number in (below, below + divisor) if number > 0]
    return f"nearest valid value{'s' if near[1:] else ''}: {' and '.join(near)}"

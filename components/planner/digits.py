"""How the planner writes figures that it only estimates."""

_GROUPED = 1_000


def significant(value: float, digits: int = 4) -> str:
    """Write so many digits: 1,110,000, 46.5 or 0.406; an exponent only where it is tiny."""
    number = float(f"{value:.{digits}g}")
    return f"{number:,.0f}" if abs(number) >= _GROUPED else f"{number:.{digits}g}"

"""A listed study as one self-contained HTML file: the work's figure, and all its points."""

from collections.abc import Sequence
from pathlib import Path

from command.study.figure import study_figure
from command.study.listed_points import ListedStudy
from command.study.rows import PointResult, median_deviation, study_grid, summary
from components.report import numbers
from components.report.cards import Card
from components.report.document import check_destination, embedded, set_page, write_page


def write_study(
    study: ListedStudy, tried: Sequence[PointResult], changed: Sequence[str], destination: Path
) -> Path:
    """Write the page whole or not at all; ``changed`` are words that the study lacks.

    Raises:
        RecipeError: the destination is a folder.
    """
    check_destination(destination)
    parts = {
        "study": study,
        "changed": changed,
        "summary": summary(tried),
        "cards": _cards(tried),
        "chart": embedded("study", study_figure(study, tried)),
        "table": study_grid(study, tried),
    }
    return write_page(set_page("study_page.html.j2", parts), destination)


def _cards(tried: Sequence[PointResult]) -> tuple[Card, ...]:
    """Choose how many points there are of each kind, and how far the plans are off."""
    quotes = [quote for one in tried for quote in one.quotes]
    planned = [one for one in tried if one.planned is not None]
    measured = [one for one in tried if one.measured is not None]
    middle = median_deviation(tried)
    return (
        Card(
            title="plans off by",
            value=numbers.ABSENT if middle is None else f"{middle:.1%}",
            notes=("at the median of what is published",),
        ),
        Card(
            title="published figures",
            value=str(len(quotes)),
            notes=(f"of {sum(bool(one.quotes) for one in tried)} points",),
        ),
        Card(
            title="points planned",
            value=str(len(planned)),
            notes=(f"of {len(tried)}", f"{len(measured)} measured"),
        ),
    )

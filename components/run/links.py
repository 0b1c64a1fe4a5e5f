"""Links in a run folder: one that leads out of it makes others' files part of the run."""

import os
from collections.abc import Iterator
from pathlib import Path

from components.errors import RecipeError

_WAY = "remove the link, or put what it leads to in its place"


def check_links(run: Path, key: str) -> None:
    """Refuse a run folder in which a link leads out of it.

    The folder itself may be reached through a link, and links that stay inside are a run's own.

    Raises:
        RecipeError: the first such link; who follows it reads, appends to or removes what
            does not belong to the run.
    """
    inside = Path(os.path.realpath(run))
    for link in _links(inside):
        target = Path(os.path.realpath(link))
        if not target.is_relative_to(inside):
            shown = run / link.relative_to(inside)
            raise RecipeError(
                key, f"{shown} is a link that leads out of the run, to {target}", _WAY
            )


def _links(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        yield from (
            one for name in (*folders, *files) if (one := Path(place, name)).is_symlink()
        )

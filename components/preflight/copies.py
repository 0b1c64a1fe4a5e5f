"""Errors of the node-local copies of Python and the code. The host reads them without numpy."""

from pathlib import Path

FOLDER = "copies"  # below the run's folder


def failed_copies(run: Path) -> dict[str, str]:
    """Return the reason for each node without a copy."""
    files = sorted((run / FOLDER).glob("*.failed"))
    return {file.stem: file.read_text("utf-8").strip() for file in files}

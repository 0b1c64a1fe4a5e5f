"""What nodes say of their copies of Python and the code; read on the host, without numpy."""

from pathlib import Path

FOLDER = "copies"  # below the run's folder


def failed_copies(run: Path) -> dict[str, str]:
    """Read by node why it has no copy."""
    files = sorted((run / FOLDER).glob("*.failed"))
    return {file.stem: file.read_text("utf-8").strip() for file in files}

"""Archive the code and Python before the ranks start: ``python -m cluster.copies RUN PYTHON``.

PYTHON is a virtual environment or an image. ``RUN/copies`` then contains ``code.tar`` and
``archives``, the paths of all archives. ``unpack.sh`` later adds the duration or the error of
each node. If archiving fails, the exit status is 2 and the error is the job's reason.
"""

import json
import sys
import tarfile
from pathlib import Path

from cluster.copies.venv import archive_venv
from components.data.files import replace_atomically
from components.errors import RecipeError
from components.fault_tolerance.failures import MENDABLE, error_file
from components.preflight.copies import FOLDER
from components.run.provenance import ROOMS, ROOT
from components.terminal import log_line

# The preflight compares the installed packages with the locks in requirements.
CODE = sorted({room.partition("/")[0] for room in ROOMS} | {"requirements"})


def list_archives(run: Path, python: Path, repository: Path) -> None:
    """Write the archives to copy for this job and list their paths in the run folder.

    ``python`` is a virtual environment, or an image, which is copied unchanged.
    """
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():  # left by the previous job
        file.unlink()
    code = folder / "code.tar"
    with replace_atomically(code) as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        for room in CODE:
            tar.add(
                repository / room,
                f"code/{room}",
                filter=lambda info: None if Path(info.name).name == "__pycache__" else info,
            )
    archive = archive_venv(python) if python.is_dir() else python
    (folder / "archives").write_text(f"{code}\n{archive}\n", "utf-8")


def main(run: Path, python: Path) -> int:
    """List the archives, or write the error to rank 0's error file."""
    try:
        list_archives(run, python, ROOT)
    except RecipeError as error:
        message = {"message": f"{RecipeError.__name__}: {error}"}
        error_file(run / "ranks", 0).write_text(json.dumps(message), "utf-8")
        log_line(str(error))
        return MENDABLE
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))

"""Before the ranks start: ``python -m cluster.copies RUN PYTHON``, an environment or an image.

``RUN/copies`` then holds ``code.tar``, in ``archives`` the path of each archive, and of each
node its seconds or why it has no copy. The status is 2 if that fails, with the job's reason.
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
from components.terminal import say

# The preflight compares the packages with the locks.
CODE = sorted({room.partition("/")[0] for room in ROOMS} | {"requirements"})


def list_archives(run: Path, python: Path, repository: Path) -> None:
    """Make what is to be copied for this job, and say in the run's folder where it is.

    ``python`` is a virtual environment, or an image, which is copied as it is.

    Raises:
        RecipeError: the environment cannot be archived.
    """
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():  # of the job before
        file.unlink()
    code = folder / "code.tar"
    with replace_atomically(code) as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        for room in CODE:
            tar.add(
                repository / room,
                f"code/{room}",
                filter=lambda one: None if Path(one.name).name == "__pycache__" else one,
            )
    whole = archive_venv(python) if python.is_dir() else python
    (folder / "archives").write_text(f"{code}\n{whole}\n", "utf-8")


def main(run: Path, python: Path) -> int:
    """List the archives, or leave the error as a rank would."""
    try:
        list_archives(run, python, ROOT)
    except RecipeError as error:
        message = {"message": f"{RecipeError.__name__}: {error}"}
        error_file(run / "ranks", 0).write_text(json.dumps(message), "utf-8")
        say(str(error))
        return MENDABLE
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))

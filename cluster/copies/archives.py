"""What a job copies to its nodes: this code, and an environment or an image.

``RUN/copies`` holds ``code.tar``, in ``archives`` the path of each archive, and of each node
its seconds or why it has no copy.
"""

import tarfile
from pathlib import Path

from cluster.copies.venv import archive_venv
from components.data.files import replace_atomically
from components.preflight.node_checks import FOLDER
from components.run.provenance import ROOMS

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
            tar.add(repository / room, f"code/{room}", filter=_without_compiled)
    whole = archive_venv(python) if python.is_dir() else python
    (folder / "archives").write_text(f"{code}\n{whole}\n", "utf-8")


def _without_compiled(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(info.name).name == "__pycache__" else info

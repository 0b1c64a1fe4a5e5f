"""This repository at its commit, as one file that git clones from."""

import subprocess
from pathlib import Path

from components.errors import RecipeError

FILE = "repository.bundle"


def bundle_code(repository: Path, folder: Path) -> str:
    """Write ``folder/repository.bundle`` and return the commit that it holds.

    Raises:
        RecipeError: git has no commit here, or files differ from it.
    """
    commit = _git(repository, "rev-parse", "HEAD").strip()
    if changed := _git(repository, "status", "--porcelain").splitlines():
        raise RecipeError(
            "repository",
            f"{len(changed)} files differ from the commit, {changed[0][3:]} for one, and would "
            "not be staged",
            "commit them, or stage from a clean clone",
        )
    partial = folder / f".{FILE}"
    _git(repository, "bundle", "create", "--quiet", str(partial.absolute()), "HEAD")
    partial.replace(folder / FILE)
    return commit


def _git(repository: Path, *words: str) -> str:
    command = ["git", "-C", str(repository), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise RecipeError(
            "repository",
            f"git {words[0]} in {repository}: {said.strip()}",
            "stage from a clone that git made",
        ) from None
    return done.stdout

"""Are the data that ranks read here, whole, and those that the run was made with?"""

import zlib
from collections.abc import Iterator
from pathlib import Path

from components.data.files import FileRecord, verify_file
from components.data.manifest import Manifest
from components.errors import RecipeError
from components.preflight.verdict import Finding, refused
from components.spec.preflight import Preflight
from components.spec.recipe import Recipe
from components.train.run_folder import RunFolder


def check_data(recipe: Recipe, rules: Preflight, folder: RunFolder, node: str) -> Finding:
    """Compare every file's size with the manifest, and the hashes of some.

    Each node begins its hashes elsewhere in the list: together they see more.
    """
    if not (folder.path / "data.json").exists():
        return _finding("not prepared", "data.json", "unknown", "action=prepare")
    try:
        noted = folder.data
        place = Path(noted.folder)
        manifest = Manifest.read(place)
        if manifest.key != noted.key:
            problem = f"holds {manifest.key[:12]}, the run has {noted.key[:12]}"
            raise RecipeError(str(place), problem, "name the run's own data")
        files = list(manifest.files())
        for record in files:
            verify_file(place, record, contents=False)
        hashed = list(some_files(files, rules.hashed_bytes, node))
        for record in hashed:
            verify_file(place, record, contents=True)
        _check_start(recipe)
    except RecipeError as error:
        return refused("data", error)
    said = f"{len(files)} files by size, {len(hashed)} of them by hash"
    return _finding(said, "manifest.json", "ok", "")


def some_files(files: list[FileRecord], most_bytes: int, node: str) -> Iterator[FileRecord]:
    """Go through the list from a place that follows from the node's name, up to a sum."""
    start = zlib.crc32(node.encode()) % max(1, len(files))
    left = most_bytes
    for record in (*files[start:], *files[:start]):
        if record.bytes <= left:
            left -= record.bytes
            yield record


def _check_start(recipe: Recipe) -> None:
    start = recipe.model["init_from"]
    if start != "none" and not Path(str(start)).exists():
        problem = f"{start} is not to be seen from this node"
        raise RecipeError(
            "model.init_from", problem, "put it on a file system that nodes share"
        )


def _finding(found: str, rule: str, verdict: str, remedy: str) -> Finding:
    return Finding.model_validate({
        "check": "data",
        "found": found,
        "expected": "as the manifest says",
        "rule": rule,
        "verdict": verdict,
        "remedy": remedy,
    })

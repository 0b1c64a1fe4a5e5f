"""Contents of a node: packages and data are those that the run was made with."""

import platform
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from components.config.schema.cluster import Preflight
from components.config.schema.recipe import Recipe
from components.data.files import FileRecord, verify_file
from components.data.manifest import Manifest
from components.errors import RecipeError
from components.preflight.verdict import NodeFinding, refused
from components.run.folder import RunFolder
from components.run.provenance import ABSENT, RECORDED, ROOT, required, version_of
from components.run.records import Packages
from components.versions import PYTHON, TORCH, installed, judge

_PIN = re.compile(r"^([A-Za-z0-9][^\\\n]*)", re.MULTILINE)
_SHOWN = 3


def check_packages(folder: RunFolder, parts: Sequence[str]) -> NodeFinding:
    """Compare versions; what the run was made without may be here all the same."""
    expected, where = expected_versions(folder, parts)
    here = {
        name: platform.python_version() if name == "python" else version_of(name)
        for name in expected
    }
    other = [
        f"{name} {here[name]}, not {wanted}"
        for name, wanted in expected.items()
        if here[name] != wanted
    ]
    shown = ", ".join(other[:_SHOWN]) + (f" and {len(other) - _SHOWN} more" * (len(other) > 3))
    return NodeFinding(
        check="packages",
        found=shown or f"{len(expected)} as expected",
        expected="the versions listed",
        rule=where,
        verdict="bad" if other else "ok",
        remedy="make setup again, or load the modules with which the run was made",
    )


def check_versions() -> NodeFinding:
    """Look whether torch and Python lie in the range that was tried."""
    verdicts: dict[str, Literal["ok", "bad", "unknown"]]
    verdicts = {"below": "bad", "above": "unknown", "tried": "ok"}
    found = installed()
    judged = {judge(version, tried) for tried, version in found.items()}
    worst = next(side for side in verdicts if side in judged)
    return NodeFinding(
        check="versions",
        found=", ".join(f"{tried.name} {version}" for tried, version in found.items()),
        expected=f"{TORCH}, {PYTHON}",
        rule="docs/versions.md",
        verdict=verdicts[worst],
        remedy="load modules with others, or make setup where there are none",
    )


def expected_versions(folder: RunFolder, parts: Sequence[str]) -> tuple[dict[str, str], str]:
    """Read what the run was made with, or the locks of ``parts``, and say where that stands.

    No lock has torch: it is left to the site.
    """
    if (folder.path / "software.json").exists():
        software = folder.read("software.json", Packages)
        made = {"python": software.python, **software.packages}
        # What no rank of this run imports, an environment for it need not have.
        others = required([part for part in RECORDED if part not in parts])
        absent = {name for name, version in made.items() if version == ABSENT}
        idle = absent | set(others) - set(required(parts))
        return {name: made[name] for name in made if name not in idle}, "software.json"
    pinned = {key: version for part in parts for key, version in _pins(part).items()}
    return {name: pinned[name] for name in required(parts) if name in pinned}, "requirements"


def _pins(part: str) -> Mapping[str, str]:
    """Read the lines of a lock that are meant for this interpreter and system."""
    text = (ROOT / "requirements" / f"{part}.lock").read_text("utf-8")
    lines = [Requirement(found.group(1).strip()) for found in _PIN.finditer(text)]
    here = [one for one in lines if one.marker is None or one.marker.evaluate()]
    return {one.name: str(one.specifier).removeprefix("==") for one in here}


def check_data(recipe: Recipe, rules: Preflight, folder: RunFolder, node: str) -> NodeFinding:
    """Compare every file's size with the manifest, and the hashes of some.

    Each node begins its hashes elsewhere in the list: together they see more.
    """
    if not (folder.path / "data.json").exists():
        return NodeFinding(
            check="data",
            found="not prepared",
            expected="as the manifest says",
            rule="data.json",
            verdict="unknown",
            remedy="action=prepare",
        )
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
        start = recipe.model["init_from"]
        if start != "none" and not Path(str(start)).exists():
            problem = f"{start} is not to be seen from this node"
            remedy = "put it on a file system that nodes share"
            raise RecipeError("model.init_from", problem, remedy)
    except RecipeError as error:
        return refused("data", error)
    return NodeFinding(
        check="data",
        found=f"{len(files)} files by size, {len(hashed)} of them by hash",
        expected="as the manifest says",
        rule="manifest.json",
        verdict="ok",
        remedy="",
    )


def some_files(files: list[FileRecord], most_bytes: int, node: str) -> Iterator[FileRecord]:
    """Go through the list from a place that follows from the node's name, up to a sum."""
    start = zlib.crc32(node.encode()) % max(1, len(files))
    left = most_bytes
    for record in (*files[start:], *files[:start]):
        if record.bytes <= left:
            left -= record.bytes
            yield record

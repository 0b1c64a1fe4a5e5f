"""Are the packages on this node those that the run was made with, or else those of the lock?"""

import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from packaging.requirements import Requirement

from components.preflight.verdict import Finding
from components.run.records import Packages
from components.train.run_folder import RunFolder
from components.train.software import ABSENT, RECORDED, ROOT, required, version_of
from components.versions import PYTHON, TORCH, installed, judge

_PIN = re.compile(r"^([A-Za-z0-9][^\\\n]*)", re.MULTILINE)
_SHOWN = 3


def check_packages(folder: RunFolder, parts: Sequence[str]) -> Finding:
    """Compare versions; what the run was made without may be here all the same."""
    expected, where = expected_versions(folder, parts)
    other = list(_differences(expected))
    shown = ", ".join(other[:_SHOWN]) + (f" and {len(other) - _SHOWN} more" * (len(other) > 3))
    return Finding(
        check="packages",
        found=shown or f"{len(expected)} as expected",
        expected="the versions listed",
        rule=where,
        verdict="bad" if other else "ok",
        remedy="make setup again, or load the modules with which the run was made",
    )


def check_versions() -> Finding:
    """Look whether torch and Python lie in the range that was tried."""
    verdicts: dict[str, Literal["ok", "bad", "unknown"]]
    verdicts = {"below": "bad", "above": "unknown", "tried": "ok"}
    found = installed()
    judged = {judge(version, tried) for tried, version in found.items()}
    worst = next(side for side in verdicts if side in judged)
    return Finding(
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
        other = set(_asked_by_others(parts))
        kept = {
            name: version
            for name, version in made.items()
            if version != ABSENT and name not in other
        }
        return kept, "software.json"
    pinned = {key: version for part in parts for key, version in _pins(part).items()}
    return {name: pinned[name] for name in required(parts) if name in pinned}, "requirements"


def _asked_by_others(parts: Sequence[str]) -> Iterator[str]:
    """Name what no rank of this run imports: an environment for it need not have them."""
    others = [part for part in RECORDED if part not in parts]
    yield from set(required(others)) - set(required(parts))


def _pins(part: str) -> Mapping[str, str]:
    """Read the lines of a lock that are meant for this interpreter and system."""
    text = (ROOT / "requirements" / f"{part}.lock").read_text("utf-8")
    lines = [Requirement(found.group(1).strip()) for found in _PIN.finditer(text)]
    here = [one for one in lines if one.marker is None or one.marker.evaluate()]
    return {one.name: str(one.specifier).removeprefix("==") for one in here}


def _differences(expected: Mapping[str, str]) -> Iterator[str]:
    for name, wanted in expected.items():
        found = platform.python_version() if name == "python" else version_of(name)
        if found != wanted:
            yield f"{name} {found}, not {wanted}"

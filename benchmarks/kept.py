"""What a proof or benchmark leaves behind: of what it is, where, with what and when found.

A row speaks of the recipe of today while its fingerprints are those of that recipe at the row's
scale, as ``action=show`` prints the one of the mathematics; the ledger says where they are not.
"""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from components.config.fingerprint import fingerprint_of
from components.config.key_groups import KeyGroup
from components.config.recipe import Recipe

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("torch", "lightning")

Row = dict[str, Any]


def stamp(recipe: Recipe, *groups: KeyGroup, packages: Sequence[str] = ()) -> Row:
    """Describe what was proved of which groups' keys here and now.

    ``packages`` name what computed beside torch and Lightning.
    """
    return {
        "scale": recipe.scale.name,
        "fingerprint": fingerprints(recipe.model_dump(mode="json"), groups),
        **here_and_now((*PACKAGES, *packages)),
    }


def circumstances(
    *,
    peer: str,
    convention: str,
    shape: Mapping[str, object],
    packages: Sequence[str] = PACKAGES,
) -> Row:
    """Say of a benchmark's result beside whom, how and of what it was measured, where and when.

    ``packages`` name what computed, ours and the peer's.
    """
    said = {"peer": peer, "convention": convention, "shape": dict(shape)}
    return said | here_and_now(packages)


def here_and_now(packages: Sequence[str]) -> Row:
    """Describe when, on which machine and with which versions of ``packages``."""
    versions = {name: version(name) for name in packages}
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine(),
        "versions": {"python": platform.python_version(), **versions},
    }


def fingerprints(tree: Mapping[str, Any], groups: Sequence[KeyGroup]) -> dict[str, str]:
    """Hash each of a settled recipe's groups by itself, as a lock does."""
    return {group.value: fingerprint_of(tree, group) for group in groups}


def read_rows(file: Path) -> list[Row]:
    """Read what was kept; nothing where nothing was."""
    if not file.exists():
        return []
    rows: list[Row] = json.loads(file.read_text("utf-8"))["rows"]
    return rows


def keep_recipes(file: Path, context: Row, rows: Sequence[Row]) -> None:
    """Put rows of recipes next to those that are stored of other recipes."""
    named = {row["recipe"]: row for row in [*read_rows(file), *rows]}
    tree = context | {"rows": list(named.values())}
    file.write_text(json.dumps(tree, indent=1) + "\n", "utf-8")


def keep_rows(
    file: Path, convention: str, rows: Sequence[Row], key: Callable[[Row], Sequence[object]]
) -> None:
    """Put rows beside those that are kept; one of the same key takes the older one's place."""
    kept = {tuple(key(row)): row for row in [*read_rows(file), *rows]}
    ordered = [kept[one] for one in sorted(kept, key=repr)]
    tree = {"convention": convention, "rows": ordered}
    file.write_text(json.dumps(tree, indent=1) + "\n", "utf-8")

"""Storage of proofs and benchmarks: rows with recipe, machine, versions and date.

A row is current while its fingerprints equal the fingerprints of today's recipe at the row's
scale; ``action=show`` prints the fingerprint of the mathematics. The ledger marks stale rows.
"""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from benchmarks.machine import describe_machine
from components.config.fingerprint import fingerprint_of
from components.config.key_groups import KeyGroup
from components.config.recipe import Recipe
from components.data.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CONVENTIONS = ROOT / "benchmarks" / "data" / "conventions.yaml"
PACKAGES = ("torch", "lightning")

ResultRow = dict[str, Any]


def stamp_row(recipe: Recipe, *groups: KeyGroup, packages: Sequence[str] = ()) -> ResultRow:
    """Return scale, fingerprints of the key groups, date, machine and versions of a row.

    ``packages`` are added to torch and Lightning.
    """
    return {
        "scale": recipe.scale.name,
        "fingerprint": hash_groups(recipe.model_dump(mode="json"), groups),
        **run_environment((*PACKAGES, *packages)),
    }


def result_context(
    *,
    peer: str,
    convention: str,
    shape: Mapping[str, object],
    packages: Sequence[str] = PACKAGES,
) -> ResultRow:
    """Return the context of a result: peer, convention, shape, machine, versions and date.

    ``packages`` are the packages that computed the result, ours and the peer's.
    """
    context = {"peer": peer, "convention": convention, "shape": dict(shape)}
    return context | run_environment(packages)


def benchmark_context(name: str, shape: Mapping[str, object]) -> ResultRow:
    """Return the context of a benchmark in `benchmarks/data/conventions.yaml`."""
    conventions = yaml.safe_load(CONVENTIONS.read_text("utf-8"))
    return result_context(shape=shape, **conventions[name])


def run_environment(packages: Sequence[str]) -> ResultRow:
    """Return date, machine and versions of Python and ``packages``."""
    versions = {name: version(name) for name in packages}
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": describe_machine(),
        "versions": {"python": platform.python_version(), **versions},
    }


def hash_groups(tree: Mapping[str, Any], groups: Sequence[KeyGroup]) -> dict[str, str]:
    """Hash each key group of a resolved recipe, as a lock does."""
    return {group.value: fingerprint_of(tree, group) for group in groups}


def read_tree(file: Path) -> ResultRow:
    """Read a file of results; empty if there is no file."""
    tree: ResultRow = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return tree


def save_tree(file: Path, tree: Mapping[str, Any]) -> None:
    """Replace a file of results, which is complete at every moment."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(tree, indent=1) + "\n")


def read_rows(file: Path) -> list[ResultRow]:
    """Read the rows of a file; empty if there is no file."""
    rows: list[ResultRow] = read_tree(file).get("rows", [])
    return rows


def save_recipe_rows(file: Path, context: ResultRow, rows: Sequence[ResultRow]) -> None:
    """Save rows of recipes; each replaces the stored row of its recipe."""
    by_recipe = {row["recipe"]: row for row in [*read_rows(file), *rows]}
    save_tree(file, context | {"rows": list(by_recipe.values())})


def save_rows(
    file: Path,
    convention: str,
    rows: Sequence[ResultRow],
    key: Callable[[ResultRow], Sequence[object]],
) -> None:
    """Save rows; each replaces the stored row of the same key."""
    by_key = {tuple(key(row)): row for row in [*read_rows(file), *rows]}
    ordered = [by_key[k] for k in sorted(by_key, key=repr)]
    save_tree(file, {"convention": convention, "rows": ordered})

"""Ledger entries: each recipe with its plan and its stored proofs.

This module proves nothing: the rows come from `benchmarks/results`. Plans are computed.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.recipes import published_recipes, recipe_tree
from benchmarks.results_store import RESULTS, ResultRow, hash_groups, read_rows
from command.actions.show import as_json
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.key_groups import KeyGroup
from components.config.recipe import Recipe
from components.planner.plan import plan_recipe

DRY_RUN, PARITY, MINIATURE, MEASURED = "dry run", "parity", "miniature", "measured"
FILES = {
    DRY_RUN: RESULTS / "dryruns.json",
    PARITY: RESULTS / "parity.json",
    MINIATURE: RESULTS / "miniatures.json",
    MEASURED: RESULTS / "measured.json",
}
NOT_DONE = {
    DRY_RUN: "not rehearsed",
    PARITY: "not proved",
    MINIATURE: "not trained",
    MEASURED: "not measured",
}
SUCCESS_KEYS = {PARITY: "holds", MINIATURE: "falls"}  # other kinds have only figures
GIB = 2**30
MOST_KEYS = 4  # changed keys that the text of a run lists

JsonTree = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class StoredProof:
    """One stored row with its verdict and finding; stale if the recipe has changed since."""

    kind: str
    row: ResultRow
    verdict: str
    finding: str
    stale: bool

    @property
    def is_valid(self) -> bool:
        """Return whether the row is current and its proof succeeded."""
        return not self.stale and bool(self.row.get(SUCCESS_KEYS.get(self.kind, ""), True))


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """A recipe with its plan and its proofs."""

    name: str
    composed: JsonTree
    plan: JsonTree
    proofs: tuple[StoredProof, ...]

    def proofs_of(self, kind: str) -> list[StoredProof]:
        return [proof for proof in self.proofs if proof.kind == kind]


def read_entries() -> list[LedgerEntry]:
    """Read the entries of all recipes, sorted by name."""
    return [read_entry(name) for name in published_recipes()]


def read_entry(name: str) -> LedgerEntry:
    """Read the entry of one recipe."""
    return LedgerEntry(
        name=name,
        composed=_composed(name, "full"),
        plan=plan_at_home(name),
        proofs=tuple(read_proof(kind, row) for kind in FILES for row in rows_of(kind, name)),
    )


def rows_of(kind: str, name: str) -> Iterator[ResultRow]:
    """Read the stored rows of one kind and recipe."""
    if kind == DRY_RUN:
        results = json.loads(FILES[kind].read_text("utf-8"))["recipes"]
        yield from [results[name]] if name in results else []
    else:
        yield from (row for row in read_rows(FILES[kind]) if row["recipe"] == name)


def read_proof(kind: str, row: ResultRow) -> StoredProof:
    """Build the proof of a row: its verdict, its finding, and whether it is stale."""
    verdict, text = DESCRIPTIONS[kind](row)
    groups = [KeyGroup(name) for name in row["fingerprint"]]
    today = hash_groups(_composed(row["recipe"], row["scale"])["recipe"], groups)
    stale = row["fingerprint"] != today
    return StoredProof(kind=kind, verdict=verdict, finding=text, row=row, stale=stale)


@cache
def plan_at_home(name: str) -> JsonTree:
    """Plan a recipe on its reference cluster; the tree of ``action=plan output=json``."""
    return plan_recipe(recipe_at_home(name)).as_json()


@cache
def recipe_at_home(name: str) -> Recipe:
    """Compose a recipe at full size on its reference cluster."""
    words = [f"recipe={name}", f"cluster={recipe_tree(name)['reference_cluster']}"]
    return compose_recipe(read_point(words))


@cache
def recipe_at_scale(name: str, scale: str) -> Recipe:
    """Compose a recipe at one scale, for the machine that runs the command."""
    return compose_recipe(read_point([f"recipe={name}", f"scale={scale}"]))


@cache
def _composed(name: str, scale: str) -> JsonTree:
    return as_json(recipe_at_scale(name, scale))


def _dry_run(row: ResultRow) -> tuple[str, str]:
    memory = row["memory"]
    verdict = memory["verdict"].replace("_", " ")
    peak, usable = (memory[f"{key}_bytes"] / GIB for key in ("peak", "usable"))
    roles = len(row["roles"])
    ranks = f"{roles} of {row['ranks']:,} ranks rehearsed"
    return verdict, f"{peak:.1f} of {usable:.1f} GiB, {verdict}; {ranks}"


def _parity(row: ResultRow) -> tuple[str, str]:
    label = ", ".join([row["label"], *row["words"]])
    verdict = "holds" if row["holds"] else "**does not hold**"
    parts = [
        f"{part} {row[part]:.1e}"
        for part in ("loss", "gradient", "weight")
        if row[part] is not None
    ]
    return verdict, f"{label}: {verdict}; {', '.join(parts)} in {row['precision']}"


def _miniature(row: ResultRow) -> tuple[str, str]:
    if "error" in row:
        return "**failed**", "**failed**"
    verdict = "learns" if row["falls"] else "**does not learn**"
    pairs = [("first", "last"), ("held_out_first", "held_out_final")]
    loss, held_out = (f"{row[a]:.2f} to {row[b]:.2f}" for a, b in pairs)
    return verdict, f"{verdict}: loss {loss}, held-out {held_out} in {row['steps']} steps"


def _run(row: ResultRow) -> tuple[str, str]:
    verdict = f"{row['step_seconds']:.3g} s"
    peak = row["peak_memory_bytes"]
    memory = "" if peak is None else f", {peak / GIB:.1f} GiB peak of the first rank"
    changed = row["changed"][:MOST_KEYS]
    more = len(row["changed"]) - len(changed)
    differences = f", with changed {', '.join(changed)}" if changed else ""
    differences += f" and {more} more keys" if more else ""
    where = f"{row['ranks']:,} ranks of {row['cluster']}"
    return verdict, f"{verdict} per step on {where}{memory}{differences}"


DESCRIPTIONS = {DRY_RUN: _dry_run, PARITY: _parity, MINIATURE: _miniature, MEASURED: _run}

"""What is known of each recipe: as it is composed and planned, and what proofs of it have kept.

Nothing is proved here: the rows come from `benchmarks/results`. A plan is computed when read.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.kept import RESULTS, Row, fingerprints, read_rows
from benchmarks.recipes import published_recipes, recipe_tree
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
HOLDS = {PARITY: "holds", MINIATURE: "falls"}  # the others find a figure
GIB = 2**30
MOST_KEYS = 4  # that a row names of those which a run had otherwise

Tree = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class KeptProof:
    """One kept row: what was found, in short and at length; stale if of another recipe."""

    kind: str
    row: Row
    verdict: str
    found: str
    stale: bool

    @property
    def stands(self) -> bool:
        """Return whether it is of the recipe of today and found what it looked for."""
        return not self.stale and bool(self.row.get(HOLDS.get(self.kind, ""), True))


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """A recipe of today and all that is known of it."""

    name: str
    composed: Tree
    plan: Tree
    proofs: tuple[KeptProof, ...]

    def of(self, kind: str) -> list[KeptProof]:
        return [proof for proof in self.proofs if proof.kind == kind]


def read_entries() -> list[LedgerEntry]:
    """Read every recipe's entry, in the order of their names."""
    return [read_entry(name) for name in published_recipes()]


def read_entry(name: str) -> LedgerEntry:
    """Collect what is known of one recipe."""
    return LedgerEntry(
        name=name,
        composed=_composed(name, "full"),
        plan=plan_at_home(name),
        proofs=tuple(proof_of(kind, row) for kind in FILES for row in rows_of(kind, name)),
    )


def rows_of(kind: str, name: str) -> Iterator[Row]:
    """Read what was kept of one kind and recipe."""
    if kind == DRY_RUN:
        known = json.loads(FILES[kind].read_text("utf-8"))["recipes"]
        yield from [known[name]] if name in known else []
    else:
        yield from (row for row in read_rows(FILES[kind]) if row["recipe"] == name)


def proof_of(kind: str, row: Row) -> KeptProof:
    """Judge a row: what it found, and whether it is of the recipe of today."""
    verdict, found = TOLD[kind](row)
    return KeptProof(kind=kind, verdict=verdict, found=found, row=row, stale=is_stale(row))


def is_stale(row: Row) -> bool:
    """Return whether a key has changed on which the row's finding rests."""
    return bool(row["fingerprint"] != fingerprints_today(row))


def fingerprints_today(row: Row) -> dict[str, str]:
    """Hash today's recipe at the row's scale, in the groups that the row names."""
    groups = [KeyGroup(name) for name in row["fingerprint"]]
    return fingerprints(_composed(row["recipe"], row["scale"])["recipe"], groups)


@cache
def plan_at_home(name: str) -> Tree:
    """Plan a recipe on its home cluster, in the tree of ``action=plan output=json``."""
    recipe = recipe_at_home(name)
    return plan_recipe(recipe).as_json()


@cache
def recipe_at_home(name: str) -> Recipe:
    """Compose a recipe at full size on its home cluster."""
    words = [f"recipe={name}", f"cluster={recipe_tree(name)['home']}"]
    return compose_recipe(read_point(words))


@cache
def _composed(name: str, scale: str) -> Tree:
    return as_json(compose_recipe(read_point([f"recipe={name}", f"scale={scale}"])))


def _dry_run(row: Row) -> tuple[str, str]:
    memory = row["memory"]
    verdict = memory["verdict"].replace("_", " ")
    peak, usable = (memory[f"{key}_bytes"] / GIB for key in ("peak", "usable"))
    roles = len(row["roles"])
    ranks = f"{roles} of {row['ranks']:,} ranks rehearsed"
    return verdict, f"{peak:.1f} of {usable:.1f} GiB, {verdict}; {ranks}"


def _parity(row: Row) -> tuple[str, str]:
    label = ", ".join([row["label"], *row["words"]])
    verdict = "holds" if row["holds"] else "**does not hold**"
    parts = [
        f"{part} {row[part]:.1e}"
        for part in ("loss", "gradient", "weight")
        if row[part] is not None
    ]
    return verdict, f"{label}: {verdict}; {', '.join(parts)} in {row['precision']}"


def _miniature(row: Row) -> tuple[str, str]:
    if "error" in row:
        return "**failed**", "**failed**"
    verdict = "learns" if row["falls"] else "**does not learn**"
    pairs = [("first", "last"), ("held_out_first", "held_out_final")]
    loss, held_out = (f"{row[a]:.2f} to {row[b]:.2f}" for a, b in pairs)
    return verdict, f"{verdict}: loss {loss}, held-out {held_out} in {row['steps']} steps"


def _measured(row: Row) -> tuple[str, str]:
    verdict = f"{row['step_seconds']:.3g} s"
    peak = row["peak_memory_bytes"]
    memory = "" if peak is None else f", {peak / GIB:.1f} GiB at the peak of the first rank"
    changed = row["changed"][:MOST_KEYS]
    more = len(row["changed"]) - len(changed)
    other = f", with other {', '.join(changed)}" if changed else ""
    other += f" and {more} keys more" if more else ""
    where = f"{row['ranks']:,} ranks of {row['cluster']}"
    return verdict, f"{verdict} a step on {where}{memory}{other}"


TOLD = {DRY_RUN: _dry_run, PARITY: _parity, MINIATURE: _miniature, MEASURED: _measured}
